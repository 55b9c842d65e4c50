"""A scope: the symbols of one compile, what is known about them, and what is left to be checked at launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from symbolic import relations
from symbolic.answers import Answer, Disproved, Proved, Unknown
from symbolic.expr import SYMBOL, Dim, Expr, make, symbol, to_dim
from symbolic.functions import mod
from symbolic.prover import Prover
from symbolic.relations import Relation, divides, eq, le, ne
from symbolic.search import find_counterexample
from symbolic.store import Store
from symbolic.substitution import smallest_linear, without_content
from vm.errors import CompileError


@dataclass(frozen=True)
class SymbolInfo:
    """A symbol as declared: ``min <= value <= max`` and ``value % multiple_of == remainder``."""

    name: str
    min: int
    max: int | None = None
    multiple_of: int = 1
    remainder: int = 0
    origin: str = ""
    data_dependent: bool = False

    def __str__(self) -> str:
        text = f"{self.min} <= {symbol(self.name)}" + ("" if self.max is None else f" <= {self.max}")
        if self.multiple_of > 1:
            text += f", {symbol(self.name)} % {self.multiple_of} == {self.remainder}"
        return text

    def holds(self, value: int) -> bool:
        """Whether ``value`` is allowed."""
        in_range = self.min <= value and (self.max is None or value <= self.max)
        return in_range and value % self.multiple_of == self.remainder


@dataclass(frozen=True)
class Fact:
    """Something that holds, and who said so."""

    rel: Relation
    origin: str

    def __str__(self) -> str:
        return f"{self.rel}" + (f"  ({self.origin})" if self.origin else "")


@dataclass(frozen=True)
class LaunchCheck:
    """A relation that is evaluated when the dims are bound."""

    rel: Relation
    origin: str
    message: str = ""

    def __str__(self) -> str:
        return f"{self.rel}" + (f"  ({self.origin})" if self.origin else "")


class Scope:
    """Symbols, facts and launch checks of one compile. All answers follow from declarations and facts only."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.symbols: dict[str, SymbolInfo] = {}
        self.facts: list[Fact] = []
        self.checks: list[LaunchCheck] = []
        self._store = Store()
        self._prover = Prover(self._store)
        self._answers: dict[Relation, Answer] = {}
        self._fresh = 0
        self._by_symbol: dict[str, list[Fact]] = {}

    # --- symbols ------------------------------------------------------------------------------------------------------

    def declare(
        self,
        name: str,
        min: int = 1,
        max: int | None = None,
        multiple_of: int = 1,
        remainder: int = 0,
        origin: str = "",
    ) -> Expr:
        """A symbol for a size that is at least ``min``; declaring it again adds the new limits to the old ones.

        Raises ``CompileError`` where no value is possible.
        """
        if multiple_of < 1 or (max is not None and max < min):
            raise CompileError(f"no value of {name} is possible: min={min}, max={max}, multiple_of={multiple_of} ({origin})")
        info = SymbolInfo(name, min, max, multiple_of, remainder % multiple_of, origin)
        if name in self.symbols:
            return self._redeclare(info)
        self._add(info)
        return symbol(name)

    def fresh(self, hint: str, min: int = 0, origin: str = "", max: int | None = None) -> Expr:
        """A new symbol for a size that is known only from data, such as the number of non-zero elements."""
        name = hint or "n"
        while name in self.symbols:
            self._fresh += 1
            name = f"{hint or 'n'}_{self._fresh}"
        self._add(SymbolInfo(name, min, max, origin=origin, data_dependent=True))
        return symbol(name)

    def _add(self, info: SymbolInfo) -> None:
        d, r = info.multiple_of, info.remainder
        lo = -((r - info.min) // d)  # the range of k in value == d*k + r
        hi = None if info.max is None else (info.max - r) // d
        if hi is not None and hi < lo:
            raise CompileError(f"no value of {info.name} is possible: {info} ({info.origin})")
        self.symbols[info.name] = info
        self._store.add_symbol(info.name, info.min, info.max)
        if d > 1:
            hidden = self._hide(info.name, (symbol(info.name) - r) // d, lo, hi)
            self._store.sub.define(info.name, d * symbol(hidden) + r)
        if lo == hi:
            self._store.sub.define(hidden if d > 1 else info.name, lo)
        self._changed()

    def _hide(self, hint: str, meaning: Dim, lo: int | None, hi: int | None) -> str:
        """A hidden symbol of the prover, with its meaning in declared symbols."""
        name = hint + "'"
        while name in self._store.order:
            name += "'"
        self._store.add_symbol(name, lo, hi)
        self._store.hidden[name] = meaning
        return name

    def _redeclare(self, new: SymbolInfo) -> Expr:
        old = self.symbols[new.name]
        s = symbol(new.name)
        if new.min > old.min:
            self.assume(le(new.min, s), new.origin)
        if new.max is not None and (old.max is None or new.max < old.max):
            self.assume(le(s, new.max), new.origin)
        if new.multiple_of > 1:
            self.assume(divides(new.multiple_of, s - new.remainder), new.origin)
        return s

    def _changed(self) -> None:
        self._store.changed()
        if self._answers:
            self._answers = {}

    # --- facts --------------------------------------------------------------------------------------------------------

    def assume(self, rel: Relation, origin: str = "") -> None:
        """Adds a fact. Raises ``CompileError`` with the facts that clash where it cannot hold."""
        self._declare_missing(rel)
        if self._prover.reason(rel) is not None:
            return
        if self._refuted(rel):
            self._clash(rel, origin)
        fact = Fact(rel, origin)
        self.facts.append(fact)
        for name in rel.symbols:
            self._by_symbol.setdefault(name, []).append(fact)
        self._learn(rel, str(fact))
        self._changed()

    def _declare_missing(self, rel: Relation) -> None:
        for name in rel.symbols:
            if name not in self.symbols:
                raise CompileError(f"the relation {rel} uses the symbol {name!r}, which is not declared")

    def _refuted(self, rel: Relation) -> bool:
        if rel.op == relations.EITHER:
            return all(self._refuted(r) for r in rel.args)
        if rel.op == relations.DIVIDES:
            d, x = (self._store.norm(a) for a in rel.args)
            if isinstance(d, int) and d != 0:
                rest = self._store.norm(mod(x, d))
                return rest != 0 and self._prover.reason(ne(rest, 0)) is not None
            return False
        return all(self._prover.reason(r) is not None for r in relations.negation(rel))

    def _clash(self, rel: Relation, origin: str) -> None:
        lines = [f"  {self.symbols[name]}  (declared)" for name in rel.symbols]
        related = dict.fromkeys(f for name in rel.symbols for f in self._by_symbol.get(name, ()))
        lines += [f"  {fact}" for fact in related]
        where = f" ({origin})" if origin else ""
        raise CompileError(f"{rel} can never hold{where}; it contradicts:\n" + "\n".join(lines))

    def _learn(self, rel: Relation, text: str) -> None:
        """Puts a fact to use in the store."""
        if rel.op in (relations.EITHER, relations.NE):
            return
        a, b = rel.args
        store = self._store
        if rel.op == relations.DIVIDES:
            x, d = store.norm(b), store.norm(a)
            if isinstance(d, int) and d > 1 and isinstance(x, Expr):
                quotient = symbol(self._hide("q", store.back(x) // d, *store.bounds(x // d)))
                self._learn_zero(x - d * quotient, text)
            return
        p = store.norm(b - a)
        if isinstance(p, int):
            return
        if rel.op == relations.EQ:
            self._learn_zero(p, text)
        else:
            self._learn_nonneg(p if rel.op == relations.LE else p - 1, text)

    def _learn_zero(self, p: Dim, text: str) -> None:
        store = self._store
        while isinstance(p, Expr):
            reduced = without_content(p)
            if not isinstance(reduced, Expr):
                return
            p = reduced
            name = store.sub.eliminate(p)
            if name is not None:
                self._keep_range(name, text)
                self._changed()
                return
            found = smallest_linear(p)
            if found is None:
                break
            # No coefficient is +-1: introduce k = (p without x) // c so that x is replaced and coefficients shrink.
            name, c = found
            rest = p - c * symbol(name)
            if not isinstance(rest, Expr):
                return
            whole = make({m: v // c for m, v in rest.terms.items() if v // c})
            k = symbol(self._hide(name, store.back(symbol(name) + whole), None, None))
            store.sub.define(name, k - whole)
            self._keep_range(name, text)
            self._changed()
            p = store.sub.apply(p)
        if isinstance(p, Expr):
            store.add_inequality(p, text)
            store.add_inequality(-p, text)

    def _keep_range(self, name: str, text: str) -> None:
        """The range of an eliminated symbol becomes facts about what replaced it."""
        lo, hi = self._store.ranges[name]
        self._store.changed()
        value = self._store.sub.apply(symbol(name))
        if lo is not None:
            self._learn_nonneg(value - lo, f"{lo} <= {name} and {text}")
        if hi is not None:
            self._learn_nonneg(hi - value, f"{name} <= {hi} and {text}")

    def _learn_nonneg(self, p: Dim, text: str) -> None:
        store = self._store
        if isinstance(p, int):
            if p < 0:
                raise CompileError(f"contradiction: {text}")
            return
        if store.nonneg(p):
            return
        body = p - p.constant
        assert isinstance(body, Expr)
        if len(body.terms) == 1:
            ((mono, c),) = body.terms.items()
            if len(mono) == 1 and mono[0].op == SYMBOL:
                name = mono[0].args[0]
                lo, hi = store.ranges[name]
                if c > 0:
                    bound = -(p.constant // c)
                    lo = bound if lo is None or bound > lo else lo
                else:
                    bound = p.constant // -c
                    hi = bound if hi is None or bound < hi else hi
                if lo is not None and hi is not None and lo > hi:
                    raise CompileError(f"no value is left for {store.back(symbol(name))}: {text}")
                store.ranges[name] = lo, hi
                if lo is not None and lo == hi:
                    store.sub.define(name, lo)
                self._changed()
                return
        store.add_inequality(p, text)

    # --- questions ----------------------------------------------------------------------------------------------------

    def prove(self, rel: Relation) -> Answer:
        """Whether ``rel`` follows from what is known: ``Proved``, ``Disproved`` with a counterexample, or ``Unknown``."""
        answer = self._answers.get(rel)
        if answer is None:
            answer = self._answers[rel] = self._prove(rel)
        return answer

    def _prove(self, rel: Relation) -> Answer:
        self._declare_missing(rel)
        why = self._prover.reason(rel)
        if why is not None:
            return Proved(why)
        example = find_counterexample(self, rel)
        if example is not None:
            return Disproved(example)
        return Unknown(str(rel))

    def proves(self, rel: Relation) -> bool:
        """Whether ``rel`` is proved (faster than ``prove``: no counterexample is sought)."""
        if rel.op == relations.EQ and rel.args[0] == rel.args[1]:
            return True
        answer = self._answers.get(rel)
        if answer is not None:
            return answer.proved
        self._declare_missing(rel)
        return self._prover.reason(rel) is not None

    def equal(self, a: Dim, b: Dim) -> bool:
        """Whether ``a == b`` is proved."""
        return a is b or a == b or self.proves(eq(a, b))

    def require(self, rel: Relation, origin: str = "", message: str = "") -> None:
        """Makes sure that ``rel`` holds: proved now, or checked at launch (and a fact from then on).

        Raises ``CompileError`` where it holds for no sizes at all.
        """
        self._declare_missing(rel)
        if self._prover.reason(rel) is not None:
            return
        if self._refuted(rel):
            where = f", needed by {origin}" if origin else ""
            raise CompileError(f"{message or f'{rel} can never hold'}{where}")
        self.assume(rel, origin)
        self.checks.append(LaunchCheck(rel, origin, message or f"{rel} is required"))

    def simplify(self, dim: Dim) -> Dim:
        """The canonical dim among all that are known to be equal to ``dim`` by normal form."""
        dim = to_dim(dim)
        return dim if isinstance(dim, int) else self._store.back(self._store.norm(dim))

    def bounds(self, dim: Dim) -> tuple[int | None, int | None]:
        """An interval that holds ``dim``; None where there is no bound."""
        return self._store.bounds(self._store.norm(to_dim(dim)))

    def holds(self, values: Mapping[str, int]) -> bool:
        """Whether ``values`` (one for every declared symbol) meet all declarations and facts."""
        if not all(info.holds(values[name]) for name, info in self.symbols.items()):
            return False
        return all(fact.rel.holds(values) for fact in self.facts)

    def component(self, rel: Relation) -> tuple[list[str], list[Fact]]:
        """The symbols connected with ``rel`` through facts (in order of discovery), and those facts."""
        names = list(rel.symbols)
        seen = set(names)
        facts: dict[Fact, None] = {}
        for name in names:  # grows while it is walked
            for fact in self._by_symbol.get(name, ()):
                facts.setdefault(fact)
                new = [n for n in fact.rel.symbols if n not in seen]
                seen.update(new)
                names.extend(new)
        return names, list(facts)

    @property
    def constraints(self) -> list[str]:
        """Printable lines: declared ranges, facts with their cause, launch checks."""
        checked = {c.rel for c in self.checks}
        lines = [f"{info}" + (f"  ({info.origin})" if info.origin else "") for info in self.symbols.values()]
        lines += [str(f) for f in self.facts if f.rel not in checked]
        return lines + [f"at launch: {c}" for c in self.checks]


__all__ = ["Any", "Disproved", "Fact", "LaunchCheck", "Scope", "SymbolInfo", "Unknown"]
