"""Finds assignments that meet all facts: to refute what cannot be proved, and to not waste effort on what is false.

A *model* gives values to the root symbols that facts connect with a question. Eliminated symbols follow from them, so equalities
hold by construction; ranges, inequalities, rules and alternatives are checked, and every counterexample is checked once more
against the declarations and facts as they were given. Deterministic and bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from symbolic.expr import Expr, evaluate, symbol
from symbolic.learn import Knowledge
from symbolic.relations import Relation
from symbolic.sampling import Sampler

MAX_ROOTS = 24
MAX_FACTS = 160
KEPT = 6
TRIALS = 60
SEARCH_TRIALS = 400


class Models:
    """Models of a scope, found on demand and kept until a fact is added."""

    def __init__(self, store: Knowledge, symbols: dict[str, Any], facts_of: dict[str, Any]) -> None:
        """``symbols`` and ``facts_of`` (symbol -> facts) belong to the scope and grow with it."""
        self.store, self.symbols, self.facts_of = store, symbols, facts_of
        self._cache: dict[tuple[str, ...], tuple[list[dict[str, int]], Iterator[dict[str, int]]]] = {}

    def changed(self) -> None:
        """Forgets all models."""
        if self._cache:
            self._cache = {}

    def breaks(self, rel: Relation) -> bool:
        """Whether a kept model shows that ``rel`` is not always true."""
        return any(not rel.holds(m) for m in self.values_for(rel))

    def against(self, rel: Relation) -> dict[str, int] | None:
        """A verified counterexample among the kept models."""
        roots, whole = self._component(rel)
        return self._verified(rel, self._models(roots)) if whole else None

    def search(self, rel: Relation) -> dict[str, int] | None:
        """A verified counterexample from a longer search."""
        roots, whole = self._component(rel)
        return self._verified(rel, self._sample(roots, SEARCH_TRIALS, 10**6)) if whole else None

    def samples(self, rel: Relation) -> Iterator[dict[str, int]]:
        """Values of the symbols of ``rel`` that meet all facts, as far as they could be checked against all."""
        roots, whole = self._component(rel)
        for model in self._sample(roots, SEARCH_TRIALS, 64) if whole else ():
            values = self._declared(rel.symbols, model)
            if self._meets_facts(values):
                yield values

    def values_for(self, rel: Relation) -> Iterator[dict[str, int]]:
        """Values of the symbols of ``rel`` in each kept model.

        Where facts connect too many symbols, the models meet only those facts near ``rel``: good enough to see that a proof is not
        worth trying, and never used as a counterexample.
        """
        inner = [(n, self.store.sub.apply(symbol(n))) for n in rel.symbols]
        for model in self._models(self._component(rel)[0]):
            yield {n: evaluate(dim, model) for n, dim in inner}

    # --- components ---------------------------------------------------------------------------------------------------------

    def _component(self, rel: Relation) -> tuple[tuple[str, ...], bool]:
        """Root symbols connected with ``rel`` through facts, in order of discovery, and whether that is all of them."""
        store = self.store
        names = dict.fromkeys(s for name in rel.symbols for s in self._roots_of(name))
        queue = list(names)
        seen: set[int] = set()
        for name in queue:
            indices = [i for i in store.by_symbol.get(name, ()) if i not in seen]
            if len(indices) > MAX_FACTS or len(queue) > MAX_ROOTS:
                return tuple(queue[: 2 * MAX_ROOTS]), False
            seen.update(indices)
            near = [s for i in indices for s in store.inequalities[i].expr.symbols]
            near += [s for i in store.alternatives_of.get(name, ()) for s in store.alternatives[i].names]
            near += [s for zero in store.rule_zeros(name) for s in zero.symbols]
            for other in near:
                for root in self._roots_of(other):
                    if root not in names:
                        names[root] = None
                        queue.append(root)
        return tuple(queue), True

    def _roots_of(self, name: str) -> tuple[str, ...]:
        if name not in self.store.sub.map:
            return (name,)
        inner = self.store.sub.apply(symbol(name))
        return inner.symbols if isinstance(inner, Expr) else ()

    # --- models ---------------------------------------------------------------------------------------------------------------

    def _models(self, component: tuple[str, ...]) -> Iterator[dict[str, int]]:
        """The kept models of a component, made one by one as they are asked for."""
        entry = self._cache.get(component)
        if entry is None:
            entry = self._cache[component] = [], self._sample(component, TRIALS, KEPT)
        made, more = entry
        yield from made
        for model in more:
            made.append(model)
            yield model

    def _sample(self, component: tuple[str, ...], trials: int, wanted: int) -> Iterator[dict[str, int]]:
        return Sampler(self.store, component).points(trials, wanted)

    # --- from roots to declared symbols ------------------------------------------------------------------------------------------

    def _declared(self, names: tuple[str, ...], model: dict[str, int]) -> dict[str, int]:
        return {n: evaluate(self.store.sub.apply(symbol(n)), model) for n in names}

    def _verified(self, rel: Relation, models: Iterator[dict[str, int]]) -> dict[str, int] | None:
        names = self._neighbours(rel)
        for model in models:
            values = self._declared(rel.symbols, model)
            if rel.holds(values):
                continue
            for name in names:
                inner = self.store.sub.apply(symbol(name))
                if name not in values and (isinstance(inner, int) or inner.symbol_set <= model.keys()):
                    values[name] = evaluate(inner, model)
            if self._meets_facts(values):
                return dict(sorted(values.items()))
        return None

    def _neighbours(self, rel: Relation) -> list[str]:
        """Declared symbols that facts connect with ``rel``, at most 64."""
        names = dict.fromkeys(rel.symbols)
        queue = list(names)
        for name in queue:
            for fact in self.facts_of.get(name, ())[:64]:
                for other in fact.rel.symbols:
                    if other not in names and len(names) < 64:
                        names[other] = None
                        queue.append(other)
        return queue

    def _meets_facts(self, values: dict[str, int]) -> bool:
        if not all(self.symbols[n].holds(v) for n, v in values.items()):
            return False
        facts = dict.fromkeys(f for n in values for f in self.facts_of.get(n, ())[:64])
        return all(f.rel.holds(values) for f in facts if all(s in values for s in f.rel.symbols))
