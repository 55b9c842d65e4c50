"""Turns facts into what the prover works with: ranges, eliminated symbols, rewrite rules, inequalities, alternatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from symbolic import relations
from symbolic.expr import FLOORDIV, MOD, SYMBOL, Atom, Dim, Expr, Mono, atom_expr, content, make, symbol
from symbolic.functions import Range, floordiv, mod
from symbolic.journal import JournalDict
from symbolic.relations import Relation, either, lt
from symbolic.store import Store, rounded
from symbolic.substitution import smallest_linear, without_content

MAX_PROPAGATED = 16  # inequalities looked at again when a range changes


class Contradiction(Exception):
    """The facts cannot all hold; the text names what clashes. Never leaves this package."""


class Silent:
    """Stands where a recorder would be: every note is ignored."""

    def __getattr__(self, note: str) -> Callable[..., None]:
        return _ignore


def _ignore(*args: Any) -> None:
    pass


@dataclass(frozen=True)
class Alternatives:
    """At least one of ``parts`` holds."""

    parts: tuple[Relation, ...]
    text: str
    names: tuple[str, ...]  # the roots they mentioned when they were learned


class Knowledge(Store):
    """A store that learns relations, and can do so for the time of one case of a proof."""

    def __init__(self) -> None:
        super().__init__()
        self.alternatives: list[Alternatives] = []
        self.alternatives_of: JournalDict[str, tuple[int, ...]] = JournalDict(self.journal)
        self.rules: JournalDict[Mono, str] = JournalDict(self.journal)  # where each entry of ``products`` comes from
        self.because: JournalDict[str, str] = JournalDict(self.journal)  # the fact that eliminated each symbol
        self.log: Any = Silent()  # or a ``record.Recorder``, which writes down why each thing is known

    @contextmanager
    def assuming(self, *rels: Relation) -> Iterator[None]:
        """What is learned inside is forgotten afterwards. Raises ``Contradiction`` where ``rels`` cannot hold."""
        mark = self.journal.mark()
        lengths = len(self.inequalities), len(self.alternatives)
        caches = self._norms, self._bounds, self._plain
        self._norms, self._bounds, self._plain = {}, {}, {}
        self.log.enter(rels)
        try:
            for rel in rels:
                self.learn(rel, f"case {rel}")
            yield
        finally:
            self.log.leave()
            self.journal.undo(mark)
            self._norms, self._bounds, self._plain = caches
            del self.inequalities[lengths[0] :], self.alternatives[lengths[1] :]

    def hide(
        self, hint: str, meaning: Dim, lo: int | None, hi: int | None, d: int = 1, over_roots: Dim | None = None
    ) -> str:
        """A hidden symbol that is exactly ``meaning / d``, ``meaning`` over declared symbols; ``over_roots`` is the same over roots."""
        name = hint.rstrip("'") + "'"
        while name in self.order:
            name += "'"
        self.add_symbol(name, lo, hi)
        self.hidden[name] = meaning, d
        if over_roots is not None:
            self.log.hidden(name, over_roots, lo, hi, d)
        return name

    def learn(self, rel: Relation, text: str) -> None:
        """Takes ``rel`` as true. Raises ``Contradiction``."""
        if rel.op == relations.EITHER:
            self._learn_either(rel.args, text)
            return
        a, b = rel.args
        if rel.op == relations.DIVIDES:
            self.log.divides(rel)
            self._learn_divides(self.norm(a), self.norm(b), text)
            return
        p = self.norm(b - a)
        self.log.relation(rel, p)
        if rel.op == relations.EQ:
            self.learn_zero(p, text)
        elif rel.op == relations.NE:
            self._learn_nonzero(p, text)
        else:
            self.learn_nonneg(p if rel.op == relations.LE else p - 1, text)
        self.changed()

    # --- equalities ---------------------------------------------------------------------------------------------------

    def learn_zero(self, p: Dim, text: str) -> None:
        """``p == 0``, p over roots: eliminates a symbol where it can, else adds a rewrite rule."""
        self.steps += 4
        while isinstance(p, Expr):
            reduced = without_content(p)
            if reduced is None:
                self.log.absurd(("zero", p))
                raise Contradiction(text)
            assert isinstance(reduced, Expr)
            self.log.scaled_zero(p, reduced)
            p = reduced
            found = self.sub.candidate(p)
            if found is not None:
                value = symbol(found[0]) - p * found[1]
                self.log.solved(found[0], value, p, found[1])
                self._eliminate(found[0], value, text)
                return
            smallest = smallest_linear(p)
            if smallest is None:
                self._learn_nonlinear(p, text)
                return
            # No coefficient is +-1. Replace x by k - whole, so that all coefficients shrink (as in the Omega test).
            name, c = smallest
            rest = p - c * symbol(name)
            assert isinstance(rest, Expr)
            whole = make({m: v // c for m, v in rest.terms.items() if v // c})
            k = symbol(self.hide(name, self.back(symbol(name) + whole), None, None, 1, symbol(name) + whole))
            self.log.defined(name, k - whole, k)
            self._eliminate(name, k - whole, text)
            self.log.zero_norm(p)
            p = self.norm(p)
        if p != 0:
            self.log.absurd(("zero", p))
            raise Contradiction(text)

    def _eliminate(self, name: str, value: Dim, text: str) -> None:
        """The root ``name`` is ``value`` from now on; what was known about it becomes known about the value."""
        lo, hi = self.ranges[name]
        self.sub.define(name, value)
        self.because[name] = text
        self.changed()
        self.log.bounds_moved(symbol(name), value, lo, hi, ("sub", name))
        if lo is not None:
            self.log.nonneg_norm(value - lo)
            self.learn_nonneg(self.norm(value - lo), f"{lo} <= {self._shown(name)} and {text}")
        if hi is not None:
            self.log.nonneg_norm(hi - value)
            self.learn_nonneg(self.norm(hi - value), f"{self._shown(name)} <= {hi} and {text}")
        # All rules about the name go before one of them is learned again: none may bring the name back.
        dropped = []
        for mono in self.rules_with(name):
            rule = make({mono: 1}) - self.products.pop(mono)
            self.log.rule_dropped(mono, rule)
            dropped.append((rule, self.rules.pop(mono)))
        if dropped:
            self.changed()
        for rule, origin in dropped:
            if rule != 0:
                self.log.zero_norm(rule)
                self.learn_zero(self.norm(rule), origin)
        if self.alternatives_of.get(name):
            for other in self._roots(symbol(name)):
                fresh = [i for i in self.alternatives_of[name] if i not in self.alternatives_of.get(other, ())]
                self.alternatives_of[other] = (*self.alternatives_of.get(other, ()), *fresh)
        if self.by_symbol.get(name):
            self._refresh(self.by_symbol[name])

    def _refresh(self, indices: tuple[int, ...]) -> None:
        """Inequalities that an elimination turned into bounds of one symbol tighten that symbol's range."""
        for i in indices:
            fact = self.inequalities[i]
            p = self.norm(fact.expr)
            if not (isinstance(p, int) and p >= 0):
                self.log.nonneg_norm(fact.expr, ("ineq", i))
            if isinstance(p, int):
                if p < 0:
                    self.log.absurd(("nonneg", p))
                    raise Contradiction(fact.text)
            elif _single_symbol(p) is not None:
                self.learn_nonneg(p, fact.text)
            else:
                for s in p.symbols:
                    if i not in self.by_symbol.get(s, ()):
                        self.by_symbol[s] = (*self.by_symbol.get(s, ()), i)

    def _shown(self, name: str) -> str:
        return str(self.back(symbol(name)))

    def _learn_nonlinear(self, p: Expr, text: str) -> None:
        for mono, c in p.ordered():
            if len(mono) == 1 and abs(c) == 1 and mono[0].op in (FLOORDIV, MOD) and isinstance(mono[0].args[1], int):
                value = atom_expr(mono[0]) - c * p  # atom == value
                if not isinstance(value, Expr) or mono[0] not in _atoms_of(value):
                    self.log.equal_from_zero(atom_expr(mono[0]), value, p, c)
                    self._learn_division(mono[0], value, text)
                    return
        if self._split_numerator(p, text):
            return
        mono, c = max(p.terms.items(), key=lambda t: _rule_order(t[0]))
        if abs(c) != 1:
            self.log.both_signs(p)
            self.add_inequality(p, text)
            self.add_inequality(-p, text)
            return
        # A rule that replaces the largest monomial of a monomial order: what comes instead is smaller, so rewriting ends.
        lead = make({mono: 1})
        value = lead - c * p
        lo, hi = self.bounds(lead)
        self.log.rule_added(mono, lead, value, p, c, lo, hi)
        self.add_rule(mono, value)
        self.rules[mono] = text
        self.changed()
        if lo is not None:
            self.log.nonneg_norm(value - lo)
            self.learn_nonneg(self.norm(value - lo), f"{lo} <= {self.back(lead)} and {text}")
        if hi is not None:
            self.log.nonneg_norm(hi - value)
            self.learn_nonneg(self.norm(hi - value), f"{self.back(lead)} <= {hi} and {text}")

    def _split_numerator(self, p: Expr, text: str) -> bool:
        """Replaces a symbol inside ``x // d`` so that ``x == d*q + r`` with hidden q and r, if that makes ``p`` simpler."""
        divisions = [a for m in p.terms for a in m if a.op in (FLOORDIV, MOD) and isinstance(a.args[1], int)]
        for atom in list(dict.fromkeys(divisions))[:4]:
            x, d = atom.args
            found = self.sub.candidate(x) if isinstance(x, Expr) else None
            if found is None:
                continue
            name, c = found
            lo, hi = self.bounds(x // d)
            q = symbol(self.hide("q", self.back(x // d), lo, hi, 1, x // d))
            r = symbol(self.hide("r", self.back(mod(x, d)), 0, d - 1, 1, mod(x, d)))
            value = symbol(name) - c * (x - d * q - r)
            self.log.split(name, value, self.norm(value), x, d, q, r, c)
            self._eliminate(name, self.norm(value), text)
            self.log.zero_norm(p)
            self.learn_zero(self.norm(p), text)
            return True
        return False

    def _learn_division(self, atom: Atom, value: Dim, text: str) -> None:
        """``x // d == value`` or ``x % d == value``: x is d*value + r, or d*q + value."""
        x, d = atom.args
        if atom.op == FLOORDIV:
            part = symbol(self.hide("r", self.back(mod(x, d)), 0, d - 1, 1, mod(x, d)))
            self.log.quotient_known(atom, value, part)
            self.learn_zero(self.norm(x - d * value - part), text)
            return
        self.log.remainder_known(atom, value)
        part = symbol(self.hide("q", self.back(x - value), *self.bounds(x // d), d, x - value))
        self.log.zero_norm(x - d * part - value, ("quotient", part.as_symbol))
        self.log.nonneg_norm(value)
        self.log.nonneg_norm(d - 1 - value)
        self.learn_nonneg(self.norm(value), text)
        self.learn_nonneg(self.norm(d - 1 - value), text)
        self.log.zero_norm(x - d * part - value)
        self.learn_zero(self.norm(x - d * part - value), text)

    def _learn_divides(self, d: Dim, x: Dim, text: str) -> None:
        if isinstance(x, int) and isinstance(d, int):
            if (x % d if d else x) != 0:
                self.log.absurd(("divides", d, x))
                raise Contradiction(text)
            return
        if x == 0 or d in (1, -1):
            return
        if isinstance(d, int) and isinstance(x, Expr):
            if d == 0:
                self.log.divides_by_zero(x)
                self.learn_zero(x, text)
                return
            rest = self.norm(mod(x, d))  # smaller: without common factors, and without what is known to be divisible
            if rest != 0:
                self.log.no_remainder(d, x, rest)
            if isinstance(rest, int):
                if rest:
                    self.log.absurd(("zero", rest))
                    raise Contradiction(text)
                return
            ((mono, c), *others) = rest.terms.items()
            if not others and len(mono) == 1 and mono[0].op == MOD and isinstance(mono[0].args[1], int):
                self.log.smaller_multiple(mono[0], c, rest)
                x, d = mono[0].args
            low, high = self.bounds(x // d)
        else:
            low = high = None
            if isinstance(d, Expr) and self.positive(d):
                lo, hi = self.bounds(x)
                low = 0 if lo is not None and lo >= 0 else None
                high = hi if hi is not None and hi >= 0 else None
        if isinstance(d, int):
            quotient = symbol(self.hide("q", self.back(x), low, high, d, x))
        else:
            meaning = self.back(x) // self.back(d) if isinstance(x, Expr) else x // d
            quotient = symbol(self.hide("q", meaning, low, high, 1, floordiv(x, d)))
        self.log.exact(x, d, quotient)
        self.learn_zero(self.norm(x - d * quotient), text)

    # --- inequalities -------------------------------------------------------------------------------------------------

    def learn_nonneg(self, p: Dim, text: str) -> None:
        """``p >= 0``, p over roots."""
        if isinstance(p, int):
            if p < 0:
                self.log.absurd(("nonneg", p))
                raise Contradiction(text)
            return
        g = content(p, with_constant=False)
        if g > 1:
            reduced = rounded(p)
            self.log.scaled_nonneg(p, reduced, g)
            p = reduced
        if self.nonneg(p):
            return
        hi = self.bounds(p)[1]
        if hi is not None and hi < 0:
            self.log.below_zero(p, hi)
            raise Contradiction(text)
        found = _single_symbol(p)
        if found is None:
            self.log.inequality(len(self.inequalities), p)
            self.add_inequality(p, text)
            self.changed()
            self._propagate([len(self.inequalities) - 1])
            return
        name, c = found
        lo, hi = self.ranges[name]
        if c > 0:
            bound = -(p.constant // c)
            lo = bound if lo is None or bound > lo else lo
        else:
            bound = p.constant // -c
            hi = bound if hi is None or bound < hi else hi
        self.log.range_from(p, name, c, bound)
        if lo is not None and hi is not None and lo > hi:
            self.log.empty_range(name)
            raise Contradiction(text)
        self.ranges[name] = lo, hi
        self.changed()
        if lo is not None and lo == hi:
            self.log.pinned(name, lo)
            self._eliminate(name, lo, text)
        else:
            self._propagate(list(self.by_symbol.get(name, ())[:MAX_PROPAGATED]))

    def _propagate(self, queue: list[int]) -> None:
        """Tightens ranges of symbols from linear inequalities and the ranges of the other symbols; bounded, not to a fixpoint."""
        for index in queue:
            p = self.fact(index)
            if not isinstance(p, Expr) or len(p.terms) > 8:
                continue
            self.log.fact(index)
            for mono, c in p.ordered():
                if len(mono) != 1 or mono[0].op != SYMBOL or mono[0].args[0] not in self.ranges:
                    continue
                name = mono[0].args[0]
                top = self.bounds(p - c * symbol(name))[1]  # c*x >= -top
                lo, hi = self.ranges[name]
                if top is None or name in self.sub.map:
                    continue
                limit = -(top // c) if c > 0 else top // -c
                if (lo is None or limit > lo) if c > 0 else (hi is None or limit < hi):
                    lo, hi = (limit, hi) if c > 0 else (lo, limit)
                    self.log.propagated(index, p, name, c, top, limit)
                    if lo is not None and hi is not None and lo > hi:
                        self.log.empty_range(name)
                        raise Contradiction(self.inequalities[index].text)
                    self.ranges[name] = lo, hi
                    self.changed()
                    more = [i for i in self.by_symbol.get(name, ())[:MAX_PROPAGATED] if i != index]
                    queue += more[: max(0, MAX_PROPAGATED - len(queue))]

    def _learn_nonzero(self, p: Dim, text: str) -> None:
        if isinstance(p, int):
            if p == 0:
                self.log.absurd(("unequal", p))
                raise Contradiction(text)
            return
        if self.nonneg(p):
            self.log.not_zero(p, p)
            self.learn_nonneg(p - 1, text)
        elif self.nonneg(-p):
            self.log.not_zero(p, -p)
            self.learn_nonneg(-p - 1, text)
        else:
            shown = self.back(p) if isinstance(self.log, Silent) else p
            self.log.not_zero(p, None)
            self._learn_either((lt(shown, 0), lt(0, shown)), text)

    def _learn_either(self, parts: tuple[Relation, ...], text: str) -> None:
        possible = []
        self.log.begin_cases(either(*parts))
        names = tuple(dict.fromkeys(s for r in parts for s in self._roots(r)))[:8]
        spans: list[list[Range]] = []
        for part in parts:
            try:
                with self.assuming(part):
                    spans.append([self.bounds(self.sub.apply(symbol(n))) for n in names])
                    possible.append(part)
                    self.log.possible(part, names, spans[-1])
            except Contradiction:
                self.log.case_closed()
                continue
            self.log.case_closed()
        self.log.remaining(tuple(possible), names, spans)
        if not possible:
            raise Contradiction(text)
        if len(possible) == 1:
            self.learn(possible[0], text)
            return
        index = len(self.alternatives)
        roots = tuple(dict.fromkeys(s for r in possible for s in self._roots(r)))
        self.alternatives.append(Alternatives(tuple(possible), text, roots))
        self.log.alternatives(index, tuple(possible))
        for name in roots:
            self.alternatives_of[name] = (*self.alternatives_of.get(name, ()), index)
        self.changed()
        for name, ranges in zip(names, zip(*spans, strict=True), strict=True):
            lows, highs = [lo for lo, _ in ranges], [hi for _, hi in ranges]
            if None not in lows:
                self.log.nonneg_norm(symbol(name) - min(lows))
                self.learn_nonneg(self.norm(symbol(name) - min(lows)), text)
            if None not in highs:
                self.log.nonneg_norm(max(highs) - symbol(name))
                self.learn_nonneg(self.norm(max(highs) - symbol(name)), text)

    def _roots(self, part: Dim | Relation) -> tuple[str, ...]:
        if isinstance(part, Relation):
            return tuple(s for a in part.args for s in self._roots(a))
        inner = self.sub.apply(part)
        return inner.symbols if isinstance(inner, Expr) else ()


def _single_symbol(p: Expr) -> tuple[str, int] | None:
    """(name, coefficient) where ``p`` is ``coefficient * name + constant``."""
    if len(p.terms) > 2 or (len(p.terms) == 2 and not p.constant):
        return None
    ((mono, c),) = ((m, c) for m, c in p.terms.items() if m)
    return (mono[0].args[0], c) if len(mono) == 1 and mono[0].op == SYMBOL else None


def _rule_order(mono: Mono) -> tuple[list[tuple[int, str]], int, list[str]]:
    """A monomial order: function applications first, the deeper the larger, then symbols by degree and name.

    So rules replace what is nested by what is plain, and rewriting with them ends.
    """
    functions = sorted(((a.depth, a.key) for a in mono if a.op != SYMBOL), reverse=True)
    symbols = sorted((a.key for a in mono if a.op == SYMBOL), reverse=True)
    return functions, len(symbols), symbols


def _atoms_of(dim: Expr) -> set[Atom]:
    return {a for m in dim.terms for a in m}
