"""A scope: the symbols of one compile, what is known about them, and what is left to be checked at launch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NoReturn

from symbolic import conflict, relations
from symbolic.answers import Answer, Disproved, Proved, Unknown
from symbolic.expr import Dim, Expr, symbol, to_dim
from symbolic.learn import Contradiction, Knowledge
from symbolic.prover import Prover
from symbolic.relations import Relation, divides, either, eq, le
from symbolic.search import Models
from symbolic.tidy import tidy
from vm.errors import CompileError

if TYPE_CHECKING:
    from symbolic.proof import Proof


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

    @property
    def cause(self) -> str:
        """Who introduced it, in parentheses, for a line that begins with the range."""
        notes = [self.origin] * bool(self.origin) + ["known once that has run"] * self.data_dependent
        return f"  ({', '.join(notes)})" if notes else ""

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

    @property
    def text(self) -> str:
        """What a failure says: the message, and the relation where the message does not have it."""
        if not self.message:
            return f"{self.rel} must hold"
        return self.message if str(self.rel) in self.message else f"{self.message}: {self.rel} must hold"

    def __str__(self) -> str:
        return f"{self.rel}" + (f"  ({self.origin})" if self.origin else "")


class Used:
    """The relations that were found to hold during a ``Scope.recording``, in order, once each."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self.relations: dict[Relation, None] = {}

    def lines(self) -> list[str]:
        """``relation: why it holds``, for those that are not true of all integers by arithmetic alone."""
        found = []
        for rel in self.relations:
            why = self._scope._prover.quick(rel) or self._scope._prover.reason(rel)
            if why is not None and why != "both sides have the same normal form":
                found.append(f"{rel}: {why}")
        return found


class Scope:
    """Symbols, facts and launch checks of one compile. All answers follow from declarations and facts only."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.symbols: dict[str, SymbolInfo] = {}
        self.facts: list[Fact] = []
        self.checks: list[LaunchCheck] = []
        self.notes: list[str] = []  # what was declared and needs neither a fact nor a check, for ``constraints``
        self._by_symbol: dict[str, list[Fact]] = {}
        self._store = Knowledge()
        self._prover = Prover(self._store)
        self._models = Models(self._store, self.symbols, self._by_symbol)
        self._answers: dict[Relation, Answer] = {}
        self._proved: dict[Relation, bool] = {}
        self._fresh = 0
        self._recordings: list[Used] = []

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
            raise CompileError(
                f"no value of {name} is possible: min={min}, max={max}, multiple_of={multiple_of} ({origin})"
            )
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

    def introduced(self, name: str, origin: str) -> None:
        """Says where a symbol comes from, if nothing has said so yet."""
        info = self.symbols[name]
        if not info.origin:
            self.symbols[name] = replace(info, origin=origin)

    def _add(self, info: SymbolInfo) -> None:
        d, r = info.multiple_of, info.remainder
        lo = -((r - info.min) // d)  # the range of k in value == d*k + r
        hi = None if info.max is None else (info.max - r) // d
        if hi is not None and hi < lo:
            raise CompileError(f"no value of {info.name} is possible: {info} ({info.origin})")
        self.symbols[info.name] = info
        self._store.add_symbol(info.name, info.min, info.max)
        if d > 1:
            hidden = self._store.hide(info.name, symbol(info.name) - r, lo, hi, d)
            self._store.sub.define(info.name, d * symbol(hidden) + r)
            self._store.because[info.name] = f"{symbol(info.name)} % {d} == {r} (declared)"
        if lo == hi:
            self._store.sub.define(hidden if d > 1 else info.name, lo)
        self._changed()

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
        self._models.changed()
        if self._answers:
            self._answers = {}
        if self._proved:
            self._proved = {}

    # --- facts --------------------------------------------------------------------------------------------------------

    def assume(self, rel: Relation, origin: str = "") -> None:
        """Adds a fact. Raises ``CompileError`` with the facts that clash where it cannot hold."""
        self._declare_missing(rel)
        if self._prover.quick(rel) is not None:
            return
        if not self._satisfiable(rel) and self._prover.impossible(rel):
            self._clash(rel, origin)
        self._add_fact(Fact(rel, origin))

    def _add_fact(self, fact: Fact) -> None:
        with self._store.assuming():  # a trial run, so that a contradiction leaves nothing half learned
            try:
                self._store.learn(fact.rel, str(fact))
            except Contradiction as clash:
                self._clash(fact.rel, fact.origin, str(clash))
        self._store.learn(fact.rel, str(fact))
        self.facts.append(fact)
        for name in fact.rel.symbols:
            self._by_symbol.setdefault(name, []).append(fact)
        self._changed()

    def of_data(self, fact: Fact) -> bool:
        """Whether a fact is the upper limit of a data-dependent size, true because of the op that makes it."""
        name = (
            fact.rel.args[0].as_symbol if fact.rel.op == relations.LE and isinstance(fact.rel.args[0], Expr) else None
        )
        info = None if name is None else self.symbols[name]
        return info is not None and info.data_dependent and info.origin == fact.origin

    def facts_about(self, name: str) -> Sequence[Fact]:
        """The facts that mention a symbol, oldest first."""
        return self._by_symbol.get(name, ())

    def _satisfiable(self, rel: Relation) -> bool:
        """Whether some known model meets ``rel`` (False: not known)."""
        return any(rel.holds(m) for m in self._models.values_for(rel))

    def _declare_missing(self, rel: Relation) -> None:
        for name in rel.symbols:
            if name not in self.symbols:
                raise CompileError(f"the relation {rel} uses the symbol {name!r}, which is not declared")

    def _clash(self, rel: Relation, origin: str, detail: str = "") -> NoReturn:
        lines = [f"  {part.text}" for part in self._clashing(rel)]
        where = f" ({origin})" if origin else ""
        if not lines:
            raise CompileError(f"{rel} can never hold{where}, whatever the sizes" + (f": {detail}" if detail else ""))
        raise CompileError(f"{rel} can never hold{where}; it contradicts:\n" + "\n".join(lines))

    def _clashing(self, rel: Relation) -> list[conflict.Part]:
        """The smallest set of declarations and facts that contradicts ``rel`` (all that is near where none is found)."""
        infos, facts = self._connected(rel, len(self.facts), len(self.symbols))
        parts = [conflict.Part(f.rel, str(f)) for f in facts]
        for i in infos:
            text = f"declared: {i.origin}" if i.origin else "declared"
            parts += conflict.declared_parts(i.name, i.min, i.max, i.multiple_of, i.remainder, text)
        found = conflict.smallest(parts, rel)
        return parts if found is None else found

    # --- questions ----------------------------------------------------------------------------------------------------

    def prove(self, rel: Relation) -> Answer:
        """Whether ``rel`` follows from what is known: ``Proved``, ``Disproved`` with a counterexample, or ``Unknown``."""
        answer = self._answers.get(rel)
        if answer is None:
            answer = self._answers[rel] = self._prove(rel)
        if self._recordings and answer.proved:
            self._note(rel)
        return answer

    @contextmanager
    def recording(self) -> Iterator[Used]:
        """Notes what is found to hold inside the block: the facts that a decision rests on."""
        used = Used(self)
        self._recordings.append(used)
        try:
            yield used
        finally:
            self._recordings.remove(used)

    def _note(self, rel: Relation) -> None:
        for used in self._recordings:
            used.relations.setdefault(rel)

    def _prove(self, rel: Relation) -> Answer:
        self._declare_missing(rel)
        why = self._prover.quick(rel)
        if why is None:
            broken = self._models.against(rel)
            if broken is not None:
                return Disproved(broken)
            why = self._prover.reason(rel)
        if why is not None:
            return Proved(why, self._recorder(rel))
        broken = self._models.search(rel)
        return Unknown(self.missing(rel)) if broken is None else Disproved(broken)

    def _recorder(self, rel: Relation) -> Callable[[], Proof]:
        """Writes the proof of ``rel`` down, from what is known now."""
        count, symbols = len(self.facts), len(self.symbols)

        def make() -> Proof:
            from symbolic.record_search import record

            return record(rel, *self._connected(rel, count, symbols))

        return make

    def _connected(self, rel: Relation, count: int, symbols: int) -> tuple[list[SymbolInfo], list[Fact]]:
        """The declarations and facts (the first ``count`` of each) that share symbols with ``rel``, directly or through other facts."""
        return self._connected_names(rel.symbols, count, symbols)

    def _connected_names(self, start: Sequence[str], count: int, symbols: int) -> tuple[list[SymbolInfo], list[Fact]]:
        names = dict.fromkeys(start)
        queue = list(names)
        kept: set[int] = set()
        position = {id(f): i for i, f in enumerate(self.facts[:count])}
        for name in queue:
            for fact in self._by_symbol.get(name, ()):
                index = position.get(id(fact))
                if index is None or index in kept:
                    continue
                kept.add(index)
                for other in fact.rel.symbols:
                    if other not in names:
                        names[other] = None
                        queue.append(other)
        infos = [info for i, (n, info) in enumerate(self.symbols.items()) if i < symbols and n in names]
        return infos, [self.facts[i] for i in sorted(kept)]

    def missing(self, rel: Relation) -> str:
        """The weakest fact found that would prove ``rel``: that a size is not at its lower bound, that a division is exact, which of two
        sizes is larger; else ``rel`` itself in its plainest form."""
        for candidate in self._candidates(rel):
            try:
                with self._store.assuming(candidate):
                    if self._prover.reason(rel, fuel=12) is not None:
                        return str(candidate)
            except Contradiction:
                continue
        plain = Relation(rel.op, tuple(self.simplify(a) if isinstance(a, Expr) else a for a in rel.args))
        return str(tidy(plain, self._store))

    def _candidates(self, rel: Relation) -> list[Relation]:
        names = rel.symbols[:4]
        found = [le(self.symbols[n].min + 1, symbol(n)) for n in names]
        dims = [d for r in (rel.args if rel.op == relations.EITHER else (rel,)) for d in r.args]
        atoms = list(dict.fromkeys(a for d in dims if isinstance(d, Expr) for m in d.terms for a in m))
        for atom in atoms[:4]:
            if atom.op in ("floordiv", "mod"):
                found.append(divides(atom.args[1], atom.args[0]))
            elif atom.op in ("max", "min"):
                found += [le(*atom.args[:2]), le(*reversed(atom.args[:2]))]
        if len(names) == 2:
            found += [le(symbol(names[0]), symbol(names[1])), le(symbol(names[1]), symbol(names[0]))]
        return [c for c in found if self._satisfiable(c) and c != rel]

    def restricted(self, names: Sequence[str]) -> Scope:
        """A scope of its own with the named symbols and all declarations and facts that are connected with them."""
        infos, facts = self._connected_names(names, len(self.facts), len(self.symbols))
        other = Scope(self.name)
        for info in infos:
            other._add(info)
        for fact in facts:
            other._add_fact(fact)
        return other

    def examples(self, names: Sequence[str]) -> Iterator[dict[str, int]]:
        """Some values of the named symbols that meet the facts; none where facts connect too many symbols to be sure."""
        relation = either(*(le(symbol(n), symbol(n)) for n in names)) if names else None
        yield from ({},) if relation is None else self._models.samples(relation)

    def proves(self, rel: Relation) -> bool:
        """Whether ``rel`` is proved (cheaper than ``prove`` where it is not: no counterexample is made)."""
        if rel.op == relations.EQ and rel.args[0] == rel.args[1]:
            return True
        answer = self._answers.get(rel)
        known = self._proved.get(rel) if answer is None else answer.proved
        if known is None:
            self._declare_missing(rel)
            known = self._prover.quick(rel) is not None or (
                not self._models.breaks(rel) and self._prover.reason(rel) is not None
            )
            self._proved[rel] = known
        if known and self._recordings:
            self._note(rel)
        return known

    def equal(self, a: Dim, b: Dim) -> bool:
        """Whether ``a == b`` is proved."""
        if a is b or a == b:
            return True
        if isinstance(a, int) and isinstance(b, int):
            return False
        store = self._store
        left, right = store.norm(a), store.norm(b)
        if left == right:
            if self._recordings:
                self._note(eq(a, b))
            return True
        return not (isinstance(left, int) and isinstance(right, int)) and self.proves(eq(a, b))

    def require(self, rel: Relation, origin: str = "", message: str = "") -> None:
        """Makes sure that ``rel`` holds: proved now, or checked at launch (and a fact from then on).

        Raises ``CompileError`` where it holds for no sizes at all.
        """
        self._declare_missing(rel)
        if self.proves(rel):
            return
        if not self._satisfiable(rel) and self._prover.impossible(rel):
            where = f", needed by {origin}" if origin else ""
            raise CompileError(f"{message or f'{rel} can never hold'}{where}")
        message = message or f"{rel} is required"
        if rel.op == relations.EITHER:
            rel = either(*(r for r in rel.args if self._satisfiable(r) or not self._prover.impossible(r, fuel=10)))
        rel = tidy(rel, self._store)
        self._add_fact(Fact(rel, origin))
        self._drop_implied(rel)
        self.checks.append(LaunchCheck(rel, origin, message))

    def _drop_implied(self, new: Relation) -> None:
        """Drops earlier checks that follow from declarations and ``new`` alone, unless ``new`` has to wait for data."""
        names = new.symbol_set
        if any(self.symbols[name].data_dependent for name in names):
            return
        near = [c for c in self.checks[-64:] if not names.isdisjoint(c.rel.symbol_set)][-8:]
        for check in near:
            trial = Scope()
            for name in sorted(names | check.rel.symbol_set):
                info = self.symbols[name]
                trial._add(info)
            trial._add_fact(Fact(new, ""))
            if trial._prover.reason(check.rel, fuel=8) is not None:
                self.checks.remove(check)

    def simplify(self, dim: Dim) -> Dim:
        """The canonical dim among all that are known to be equal to ``dim`` by normal form."""
        dim = to_dim(dim)
        return dim if isinstance(dim, int) else self._store.back(self._store.norm(dim))

    def bounds(self, dim: Dim) -> tuple[int | None, int | None]:
        """An interval that holds ``dim``; None where there is no bound."""
        store = self._store
        p = store.norm(to_dim(dim))
        lo, hi = store.bounds(p)
        for index in store.relevant(p.symbols, 8) if isinstance(p, Expr) else ():
            fact = store.fact(index)  # not negative, so p - fact <= p <= p + fact
            below, above = store.bounds(p - fact)[0], store.bounds(p + fact)[1]
            lo = below if lo is None or (below is not None and below > lo) else lo
            hi = above if hi is None or (above is not None and above < hi) else hi
        return lo, hi

    def holds(self, values: Mapping[str, int]) -> bool:
        """Whether ``values`` (one for every declared symbol) meet all declarations and facts."""
        if not all(info.holds(values[name]) for name, info in self.symbols.items()):
            return False
        return all(fact.rel.holds(values) for fact in self.facts)

    @property
    def constraints(self) -> list[str]:
        """Printable lines: declared ranges, facts with their cause, launch checks."""
        checked = {c.rel for c in self.checks}
        lines = [str(info) + info.cause for info in self.symbols.values()]
        lines += [str(f) for f in self.facts if f.rel not in checked]
        return lines + self.notes + [f"at launch: {c}" for c in self.checks]
