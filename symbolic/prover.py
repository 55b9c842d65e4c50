"""The decision procedure: why a relation holds, from ``Knowledge`` alone.

In order of cost: normal forms; ranges; linear arithmetic over monomials with what is known about every function application
(``linear``); then case splits (max/min, alternatives, residues of a symbol, a size at its lower bound), each case by the same means.
Fuel bounds the work of one question, so nothing runs away: out of fuel means "not proved".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd, lcm
from typing import Any

from symbolic import relations
from symbolic.expr import (
    BROADCAST,
    FLOORDIV,
    MAX,
    MIN,
    MOD,
    SYMBOL,
    Atom,
    Dim,
    Expr,
    Mono,
    atom_expr,
    content,
    symbol,
)
from symbolic.functions import floordiv, mod, poly_divmod
from symbolic.learn import Contradiction, Knowledge
from symbolic.linear import Certificate, certificate, verify
from symbolic.relations import Relation, divides, eq, ge, le, lt, ne
from symbolic.store import rounded

FUEL = 60  # cases plus calls of the linear solver per question
MAX_STEPS = 4_000  # normalisations, rewrites and intervals per question
MAX_FACTS = 48
MAX_RESIDUES = 24
MAX_DEPTH = 4

ZERO, NONZERO, NONNEG, MULTIPLE = "zero", "nonzero", "nonneg", "multiple"


@dataclass(frozen=True)
class Goal:
    """``dim`` is zero, nonzero, non-negative, or (``MULTIPLE``) a multiple of ``divisor``; over declared or root symbols."""

    kind: str
    dim: Dim
    divisor: Dim = 1


def goal_of(rel: Relation) -> Goal:
    """The goal of a relation that is not ``either``."""
    a, b = rel.args
    if rel.op == relations.DIVIDES:
        return Goal(MULTIPLE, b, a)
    if rel.op == relations.EQ:
        return Goal(ZERO, b - a)
    if rel.op == relations.NE:
        return Goal(NONZERO, b - a)
    return Goal(NONNEG, b - a if rel.op == relations.LE else b - a - 1)


class Prover:
    """Proves relations over one ``Knowledge``."""

    def __init__(self, store: Knowledge) -> None:
        self.store = store
        self.fuel = 0
        self.last_step = 0
        self.sources: dict[Expr, tuple[Any, ...]] = {}  # of the inequalities offered last

    # --- entry points -----------------------------------------------------------------------------------------------------

    def quick(self, rel: Relation) -> str | None:
        """Why ``rel`` holds, by normal forms and ranges only."""
        if rel.op == relations.EITHER:
            return next((f"{r}: {why}" for r in rel.args if (why := self.quick(r)) is not None), None)
        return self._quick(goal_of(rel))

    def reason(self, rel: Relation, fuel: int = FUEL) -> str | None:
        """Why ``rel`` holds, or None where that was not found within the budget."""
        why = self.quick(rel)
        if why is None:
            self.fuel = fuel
            self.last_step = self.store.steps + MAX_STEPS * fuel // FUEL
            goals = tuple(goal_of(r) for r in rel.args) if rel.op == relations.EITHER else (goal_of(rel),)
            why = self._prove(goals, 0)
            if why is None and rel.op == relations.EITHER:
                why = self._by_exclusion(rel)
        return why

    def _exhausted(self) -> bool:
        """Whether the question has had its share of work."""
        return self.fuel <= 0 or self.store.steps > self.last_step

    def _by_exclusion(self, rel: Relation) -> str | None:
        """Of alternatives, one holds wherever all others fail."""
        for part in rel.args[-3:]:
            others = [relations.negation(r) for r in rel.args if r is not part]
            if not all(others):
                continue
            try:
                with self.store.assuming(*(n for ns in others for n in ns)):
                    if self._prove((goal_of(part),), 1) is not None:
                        return f"{part} wherever the others fail"
            except Contradiction:
                return "the others cannot all fail"
        return None

    def impossible(self, rel: Relation, fuel: int = FUEL) -> bool:
        """Whether ``rel`` fails for every assignment."""
        if rel.op == relations.EITHER:
            return all(self.impossible(r, fuel) for r in rel.args)
        if rel.op == relations.DIVIDES:
            d, x = (self.store.norm(a) for a in rel.args)
            if not isinstance(d, int) or d == 0:
                return False
            return self.reason(ne(self.store.back(self.store.norm(mod(x, d))), 0), fuel) is not None
        return all(self.reason(r, fuel) is not None for r in relations.negation(rel))

    # --- direct proofs --------------------------------------------------------------------------------------------------------

    def _quick(self, goal: Goal) -> str | None:
        store = self.store
        d = store.norm(goal.dim)
        if goal.kind == ZERO:
            return self._same_form(goal) if isinstance(d, int) and d == 0 else None
        if goal.kind == NONNEG:
            return "it follows from the ranges" if store.nonneg(d) else None
        if goal.kind == NONZERO:
            return self._quick_nonzero(d)
        return self._quick_multiple(d, store.norm(goal.divisor))

    def _same_form(self, goal: Goal) -> str:
        names = goal.dim.symbols if isinstance(goal.dim, Expr) else ()
        given = dict.fromkeys(self.store.because[n] for n in names if n in self.store.because)
        return "both sides have the same normal form" + (f", given {' and '.join(list(given)[:4])}" if given else "")

    def _quick_nonzero(self, d: Dim) -> str | None:
        if isinstance(d, int):
            return f"the sides differ by {abs(d)}" if d else None
        if d.constant % content(d, with_constant=False):
            return "the sides differ in their remainder"
        if self.store.nonneg(d - 1) or self.store.nonneg(-d - 1):
            return "one side is always larger"
        return None

    def _quick_multiple(self, x: Dim, d: Dim) -> str | None:
        if isinstance(x, int) and x == 0:
            return "0 is a multiple of everything"
        if isinstance(d, int):
            if d == 0:
                return None
            rest = self.store.norm(mod(x, d))
            return f"the remainder modulo {d} is 0" if isinstance(rest, int) and rest == 0 else None
        quotient, rest = poly_divmod(x, d)
        if isinstance(rest, int) and rest == 0:
            return f"it is ({self.store.back(quotient)})*({self.store.back(d)})"
        return None

    def _direct(self, goal: Goal) -> str | None:
        why = self._quick(goal)
        if why is not None:
            return why
        d = self.store.norm(goal.dim)
        if goal.kind == MULTIPLE:
            divisor = self.store.norm(goal.divisor)
            if isinstance(divisor, int) and divisor != 0:
                return self._direct(Goal(ZERO, mod(d, divisor)))
            if isinstance(divisor, int):
                return self._direct(Goal(ZERO, d))
            rest = d - divisor * floordiv(d, divisor)
            return self._direct(Goal(ZERO, rest)) if rest != d else None
        if isinstance(d, int):
            return None
        if goal.kind == NONNEG:
            return self._at_least_zero(d)
        if goal.kind == NONZERO:
            return self._at_least_zero(d - 1) or self._at_least_zero(-d - 1)
        if d.constant % content(d, with_constant=False):
            return None
        above = self._at_least_zero(d)
        below = above and self._at_least_zero(-d)
        return f"neither side is larger: {above}; {below}" if below and above != below else below

    # --- linear arithmetic ------------------------------------------------------------------------------------------------------

    def _at_least_zero(self, goal: Dim) -> str | None:
        """Linear arithmetic on ``goal``; where it divides by a size d, also on ``d*goal + d - 1``, which has the same sign."""
        why = self._linear(goal)
        if why is not None or isinstance(goal, int):
            return why
        divisors = [a.args[1] for m in goal.terms for a in m if a.op == FLOORDIV and isinstance(a.args[1], Expr)]
        for d in list(dict.fromkeys(divisors))[:2]:
            if self.store.positive(d):
                why = self._linear(self.store.norm(d * goal + d - 1))
                if why is not None:
                    return f"{why} (after multiplying by {self.store.back(d)})"
        return None

    def _linear(self, goal: Dim) -> str | None:
        if self._exhausted():
            return None
        if isinstance(goal, int):
            return "a number" if goal >= 0 else None
        hi = self.store.bounds(goal)[1]
        if hi is not None and hi < 0:
            return None
        self.fuel -= 1
        facts, texts = self._facts_for(goal)
        kept: list[Expr] = []
        lows: dict[Atom, int | None] = {}
        shifted_goal = self._shift(goal, lows)
        if isinstance(shifted_goal, int):
            return "a number" if shifted_goal >= 0 else None
        shifted: list[Expr] = []
        used: list[str] = []
        for fact, text in zip(facts, texts, strict=True):
            moved = self._shift(fact, lows)
            if isinstance(moved, Expr):
                shifted.append(rounded(moved))
                used.append(text)
                kept.append(fact)
        monos = {m for e in (shifted_goal, *shifted) for m in e.terms if m}
        free = {m for m in monos if any(lows[a] is None for a in m)}
        found = certificate(shifted_goal, shifted, free)
        if found is None or not verify(found, shifted_goal, shifted, free):
            return None
        self._found(goal, found, kept, shifted, lows)
        names = list(dict.fromkeys(used[i] for i, _ in found.weights))
        return "it follows from " + (" and ".join(names[:6]) if names else "the ranges")

    def _found(
        self, goal: Expr, found: Certificate, facts: list[Expr], shifted: list[Expr], lows: dict[Atom, int | None]
    ) -> None:
        """Told of every certificate: ``shifted`` are the ``facts`` counted from the lower bounds ``lows``, without common factors."""

    def _shift(self, dim: Expr, lows: dict[Atom, int | None]) -> Dim:
        """``dim`` with every atom that has a lower bound counted from there."""
        moves = False
        for mono in dim.terms:
            for atom in mono:
                if atom not in lows:
                    lows[atom] = self.store.atom_bounds(atom)[0]
                moves = moves or bool(lows[atom])
        if not moves:
            return dim
        total: Dim = 0
        for mono, c in dim.terms.items():
            value: Dim = c
            for atom in mono:
                value = value * (atom_expr(atom) + (lows[atom] or 0))
            total = total + value
        return total

    def _facts_for(self, goal: Expr) -> tuple[list[Expr], list[str]]:
        """Inequalities ``fact >= 0`` that may matter for ``goal``, with their texts."""
        facts: dict[Expr, str] = {}
        atoms: dict[Atom, None] = {}
        asked: set[int] = set()

        sources = self.sources = {}

        def add(dim: Dim, text: str, source: tuple[Any, ...]) -> None:
            if isinstance(dim, Expr) and len(facts) < MAX_FACTS and dim not in facts:
                facts[dim], sources[dim] = text, source

        frontier: list[Expr] = [goal]
        for _ in range(3):
            fresh = list(dict.fromkeys(a for e in frontier for m in e.terms for a in m if a not in atoms))
            before = len(facts)
            for atom in fresh:
                atoms[atom] = None
                for dim, text in self._lemmas(atom):
                    add(dim, text, ("lemma", atom))
            names = dict.fromkeys(s for e in frontier for m in e.terms for a in m for s in a.symbols)
            for index in self.store.relevant(names, MAX_FACTS):
                if index not in asked:
                    asked.add(index)
                    add(self.store.fact(index), self.store.inequalities[index].text, ("fact", index))
            frontier = list(facts)[before:]
            if not frontier or len(facts) >= MAX_FACTS:
                break
        for dim, text, source in (*self._products(goal, facts), *self._cubes(goal)):
            add(dim, text, source)
        return list(facts), list(facts.values())

    def _lemmas(self, atom: Atom) -> Iterator[tuple[Dim, str]]:
        """What is always true of an atom: the definition of a division, a maximum's arguments, an upper bound."""
        store, this = self.store, atom_expr(atom)
        hi = store.atom_bounds(atom)[1]
        if hi is not None:
            yield hi - this, f"{store.back(this)} <= {hi}"
        if atom.op in (FLOORDIV, MOD):
            x, d = atom.args
            if not store.positive(d):
                return
            shown = store.back(this)
            if atom.op == FLOORDIV:
                yield x - d * this, f"{store.back(d)}*({shown}) <= {store.back(x)}"
                yield d * this + d - 1 - x, f"{store.back(x)} < {store.back(d)}*({shown}) + {store.back(d)}"
                return
            yield d - 1 - this, f"{shown} < {store.back(d)}"
            if store.nonneg(x):
                yield x - this, f"{shown} <= {store.back(x)}"
            quotient = store.norm(floordiv(x, d))
            yield x - this - d * quotient, f"{store.back(x)} == {store.back(d)}*({store.back(quotient)}) + {shown}"
            yield d * quotient + this - x, f"{store.back(x)} == {store.back(d)}*({store.back(quotient)}) + {shown}"
        elif atom.op in (MAX, MIN):
            for arg in atom.args:
                low, high = (arg, this) if atom.op == MAX else (this, arg)
                yield high - low, f"{store.back(low)} <= {store.back(high)}"

    def _products(self, goal: Expr, facts: dict[Expr, str]) -> list[tuple[Dim, str, tuple[Any, ...]]]:
        """Facts times a non-negative atom, where a monomial of degree 2 or more in sight suggests it."""
        out: list[tuple[Dim, str, tuple[Any, ...]]] = []
        monos = [m for e in (goal, *facts) for m in e.terms if len(m) > 1]
        for mono in list(dict.fromkeys(monos))[:12]:
            if len(mono) == 2 and mono[0] is not mono[1]:
                gap = atom_expr(mono[0]) - atom_expr(mono[1])
                out.append((gap * gap, f"({self.store.back(gap)})**2 >= 0", ("square", gap)))
            for atom in dict.fromkeys(mono):
                rest = list(mono)
                rest.remove(atom)
                if not self.store.nonneg(atom_expr(atom)):
                    continue
                for fact, text in list(facts.items())[:24]:
                    if tuple(rest) in fact.terms:
                        shown = f"{text} (times {self.store.back(atom_expr(atom))})"
                        out.append((fact * atom_expr(atom), shown, ("product", fact, atom)))
                    if len(out) >= 24:
                        return out
        return out

    def _cubes(self, goal: Expr) -> Iterator[tuple[Dim, str, tuple[Any, ...]]]:
        """Squares of differences, and these times a non-negative atom, for a goal of degree 3: what makes means comparable."""
        if max(map(len, goal.terms)) != 3:
            return
        atoms = list(dict.fromkeys(a for m in goal.terms for a in m if len(m) == 3))
        if not 2 <= len(atoms) <= 3:
            return
        for i, first in enumerate(atoms):
            for second in atoms[i + 1 :]:
                gap = atom_expr(first) - atom_expr(second)
                square, text = gap * gap, f"({self.store.back(gap)})**2 >= 0"
                yield square, text, ("square", gap)
                for atom in atoms:
                    if self.store.nonneg(atom_expr(atom)):
                        shown = f"{text} (times {self.store.back(atom_expr(atom))})"
                        yield square * atom_expr(atom), shown, ("product", square, atom)

    # --- case splits --------------------------------------------------------------------------------------------------------------

    def _prove(self, goals: tuple[Goal, ...], depth: int) -> str | None:
        """Why at least one of ``goals`` holds."""
        for goal in goals:
            why = self._direct(goal)
            if why is not None:
                return why
        if depth >= MAX_DEPTH or self._exhausted():
            return None
        for cases in self._splits(goals):
            spent = self.fuel
            if self._all_cases(goals, cases, depth):
                return "by cases: " + "; ".join(self._shown(c) for c in cases)
            if spent - self.fuel > FUEL // 2 or self._exhausted():
                return None
        return None

    def _shown(self, rel: Relation) -> str:
        """``rel`` in declared symbols."""
        if rel.op == relations.EITHER:
            return " or ".join(self._shown(r) for r in rel.args)
        return str(Relation(rel.op, tuple(self.store.back(a) for a in rel.args)))

    def _all_cases(self, goals: tuple[Goal, ...], cases: list[Relation], depth: int) -> bool:
        for case in cases:
            self.fuel -= 1
            if self._exhausted():
                return False
            try:
                with self.store.assuming(case):
                    if self._prove(goals, depth + 1) is None:
                        return False
            except Contradiction:
                continue  # the case cannot happen
        return True

    def _splits(self, goals: tuple[Goal, ...]) -> Iterator[list[Relation]]:
        """Exhaustive lists of cases that may help, the most promising first. Relations are over roots."""
        store = self.store
        dims = [d for g in goals for d in (store.norm(g.dim), store.norm(g.divisor)) if isinstance(d, Expr)]
        for g in goals:
            if g.kind == MULTIPLE and isinstance(g.divisor, int) and g.divisor:
                rest = store.norm(mod(store.norm(g.dim), g.divisor))
                dims += [rest] if isinstance(rest, Expr) else []
        atoms = _all_atoms(dims)
        for atom in atoms:
            if atom.op in (MAX, MIN):
                a, b = atom.args[:2]
                yield [le(a, b), lt(b, a)]
                break
        names = dict.fromkeys(s for d in dims for s in d.symbols)
        seen: set[int] = set()
        for name in names:
            for index in store.alternatives_of.get(name, ())[:8]:
                if index not in seen and len(seen) < 4:
                    seen.add(index)
                    yield list(store.alternatives[index].parts)
        for atom in atoms:
            if atom.op == BROADCAST:
                yield [le(atom.args[0], 0), eq(atom.args[0], 1), ge(atom.args[0], 2)]
                break
        yield from self._residue_splits(atoms)
        if atoms or any(g.kind != ZERO for g in goals):  # an equality of polynomials is no truer where sizes are large
            yield from self._bound_splits(dims, atoms)

    def _residue_splits(self, atoms: list[Atom]) -> Iterator[list[Relation]]:
        """A symbol inside divisions by numbers, by its remainder modulo their common multiple."""
        moduli: dict[str, int] = {}
        for atom in atoms:
            if (
                atom.op not in (FLOORDIV, MOD)
                or not isinstance(atom.args[1], int)
                or not isinstance(atom.args[0], Expr)
            ):
                continue
            x, d = atom.args
            for mono, c in x.terms.items():
                for factor in mono:
                    if factor.op != SYMBOL:
                        break
                    name = factor.args[0]
                    moduli[name] = lcm(moduli.get(name, 1), d // gcd(d, c))
        for name, modulus in sorted(moduli.items(), key=lambda t: (t[1], t[0])):
            if 1 < modulus <= MAX_RESIDUES:
                yield [divides(modulus, symbol(name) - r) for r in range(modulus)]

    def _bound_splits(self, dims: list[Expr], atoms: list[Atom]) -> Iterator[list[Relation]]:
        """A size that may be 0 (or is at its lower bound) apart from the rest: products and divisors change there."""
        interesting: dict[str, None] = {}
        for atom in atoms:
            if atom.op in (FLOORDIV, MOD) and isinstance(atom.args[1], Expr):
                interesting.update(dict.fromkeys(atom.args[1].symbols))
        for dim in dims:
            for mono in dim.terms:
                if len(mono) > 1:
                    interesting.update(dict.fromkeys(a.args[0] for a in mono if a.op == SYMBOL))
        count = 0
        for name in interesting:
            lo = self.store.ranges.get(name, (None, None))[0]
            if lo is not None and lo <= 1 and count < 3:
                count += 1
                yield [le(symbol(name), lo), le(lo + 1, symbol(name))]


def _all_atoms(dims: list[Expr]) -> list[Atom]:
    """Function applications in ``dims``, nested ones too, inner ones first."""
    found: dict[Atom, None] = {}

    def walk(dim: Dim, depth: int) -> None:
        if isinstance(dim, int) or depth > 12 or len(found) > 64:
            return
        for mono in dim.terms:
            for atom in mono:
                if atom.op != SYMBOL and atom not in found:
                    for arg in atom.args:
                        walk(arg, depth + 1)
                    found[atom] = None

    for dim in dims:
        walk(dim, 0)
    return list(found)


__all__ = ["Goal", "Mono", "Prover", "goal_of"]
