"""Finds assignments that meet all facts: to refute what cannot be proved, and to not waste effort on what is false.

A *model* gives values to the root symbols that facts connect with a question. Eliminated symbols follow from them, so equalities
hold by construction; ranges, inequalities, rules and alternatives are checked, and every counterexample is checked once more
against the declarations and facts as they were given. Deterministic and bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from symbolic.expr import Dim, Expr, evaluate, make, symbol
from symbolic.learn import Knowledge
from symbolic.relations import Relation

MAX_ROOTS = 24
MAX_FACTS = 160
KEPT = 6
TRIALS = 60
SEARCH_TRIALS = 400
_STEPS = (0, 1, 2, 3, 5, 7, 4, 6, 12, 16, 31, 64, 8, 9, 10, 127)


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
        return self._verified(rel, self._models(self._component(rel)))

    def search(self, rel: Relation) -> dict[str, int] | None:
        """A verified counterexample from a longer search."""
        component = self._component(rel)
        return None if component is None else self._verified(rel, self._sample(component, SEARCH_TRIALS, 10**6))

    def values_for(self, rel: Relation) -> Iterator[dict[str, int]]:
        """Values of the symbols of ``rel`` in each kept model."""
        names = rel.symbols
        inner = [(n, self.store.sub.apply(symbol(n))) for n in names]
        for model in self._models(self._component(rel)):
            yield {n: evaluate(dim, model) for n, dim in inner}

    # --- components ---------------------------------------------------------------------------------------------------------

    def _component(self, rel: Relation) -> tuple[str, ...] | None:
        """Root symbols connected with ``rel`` through facts, in order of discovery; None if there are too many."""
        store = self.store
        names = dict.fromkeys(s for name in rel.symbols for s in self._roots(symbol(name)))
        queue = list(names)
        seen: set[int] = set()
        for name in queue:
            if len(queue) > MAX_ROOTS or len(seen) > MAX_FACTS:
                return None
            near: list[Dim] = [store.inequalities[i].expr for i in store.by_symbol.get(name, ()) if i not in seen]
            seen.update(store.by_symbol.get(name, ()))
            near += [
                a for i in store.alternatives_of.get(name, ()) for r in store.alternatives[i].parts for a in _dims(r)
            ]
            near += self._rules(name)
            for dim in near:
                for other in self._roots(dim):
                    if other not in names:
                        names[other] = None
                        queue.append(other)
        return tuple(queue) if len(queue) <= MAX_ROOTS else None

    def _rules(self, name: str) -> list[Expr]:
        """The rewrite rules that mention the root ``name``, as dims that are zero."""
        zeros = [self.store.sub.apply(make({m: 1}) - self.store.products[m]) for m in self.store.rules_with(name)]
        return [z for z in zeros if isinstance(z, Expr)]

    def _roots(self, dim: Dim) -> tuple[str, ...]:
        inner = self.store.sub.apply(dim)
        return inner.symbols if isinstance(inner, Expr) else ()

    # --- models ---------------------------------------------------------------------------------------------------------------

    def _models(self, component: tuple[str, ...] | None) -> Iterator[dict[str, int]]:
        """The kept models of a component, made one by one as they are asked for."""
        if component is None:
            return
        entry = self._cache.get(component)
        if entry is None:
            entry = self._cache[component] = [], self._sample(component, TRIALS, KEPT)
        made, more = entry
        yield from made
        for model in more:
            made.append(model)
            yield model

    def _sample(self, component: tuple[str, ...], trials: int, wanted: int) -> Iterator[dict[str, int]]:
        constraints = self._constraints(component)
        alternatives = self._alternatives(component)
        state = 12345
        found: set[tuple[int, ...]] = set()
        for trial in range(trials):
            point: dict[str, int] = {}
            for i, name in enumerate(component):
                state = (state * 1103515245 + 12345) % 2**31
                point[name] = self._pick(name, self._step(trial, i, state), state >> 20)
            if not self._repair(point, constraints):
                continue
            if not all(any(r.holds(point) for r in parts) for parts in alternatives):
                continue
            key = tuple(point.values())
            if key not in found:
                found.add(key)
                yield point
                if len(found) >= wanted:
                    return

    @staticmethod
    def _step(trial: int, i: int, state: int) -> int:
        """How far from its lower bound symbol ``i`` goes: all at it first, then all different, then at random."""
        if trial == 0:
            return 0
        if trial == 1:
            return i + 2
        return _STEPS[(state >> 8) % (2 + min(trial, len(_STEPS) - 2))]

    def _pick(self, name: str, step: int, noise: int) -> int:
        lo, hi = self.store.ranges[name]
        if lo is None:
            return hi - step if hi is not None else step if noise % 3 else -step
        if hi is None:
            return lo + step
        if noise % 7 == 0:
            return max(lo, hi - step)
        return lo + step % (hi - lo + 1)

    def _constraints(self, component: tuple[str, ...]) -> list[Expr]:
        store = self.store
        indices = sorted({i for name in component for i in store.by_symbol.get(name, ())})
        dims = [store.sub.apply(store.inequalities[i].expr) for i in indices]
        for zero in dict.fromkeys(z for name in component for z in self._rules(name)):
            dims += [zero, -zero]
        return [d for d in dims if isinstance(d, Expr)]

    def _alternatives(self, component: tuple[str, ...]) -> list[list[Relation]]:
        store = self.store
        indices = sorted({i for name in component for i in store.alternatives_of.get(name, ())})
        return [[_inner(store, r) for r in store.alternatives[i].parts] for i in indices]

    def _repair(self, point: dict[str, int], constraints: list[Expr]) -> bool:
        """Moves ``point`` until all inequalities hold; False where a few steps do not reach that."""
        for _ in range(12):
            broken = next((c for c in constraints if c.evaluate(point) < 0), None)
            if broken is None:
                return True
            if not self._move(point, broken):
                return False
        return False

    def _move(self, point: dict[str, int], broken: Expr) -> bool:
        """Changes one symbol so that the linear part of ``broken`` becomes non-negative, if its range allows that."""
        need = -broken.evaluate(point)
        for mono, c in broken.ordered():
            if len(mono) != 1 or mono[0].op != "symbol":
                continue
            name = mono[0].args[0]
            step = -(-need // abs(c)) * (1 if c > 0 else -1)
            lo, hi = self.store.ranges[name]
            value = point[name] + step
            if (lo is None or value >= lo) and (hi is None or value <= hi):
                point[name] = value
                return True
        return False

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


def _dims(rel: Relation) -> list[Dim]:
    return [d for a in rel.args for d in (_dims(a) if isinstance(a, Relation) else [a])]


def _inner(store: Knowledge, rel: Relation) -> Relation:
    args = tuple(_inner(store, a) if isinstance(a, Relation) else store.sub.apply(a) for a in rel.args)
    return Relation(rel.op, args)
