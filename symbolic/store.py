"""What a scope knows, in the prover's own terms.

Inside, every dim is an expression over *root* symbols: declared symbols minus those that equalities eliminated. A symbol with a
divisor, ``c = 8*c' + r``, is replaced by that expression over a hidden symbol ``c'``, so congruences become plain arithmetic.
``norm`` brings a dim into this form and applies the rewrites that need ranges.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from symbolic import functions
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
    make,
    symbols_of,
)
from symbolic.functions import Range, mul_range, poly_divmod, scale_range
from symbolic.journal import Journal, JournalDict
from symbolic.substitution import Substitution


@dataclass(frozen=True)
class Inequality:
    """``expr >= 0``, over roots when it was added; ``text`` says where it comes from."""

    expr: Expr
    text: str


class Store:
    """Ranges of roots, eliminated symbols, product rules and inequalities."""

    def __init__(self) -> None:
        self.journal = Journal()
        self.ranges: JournalDict[str, Range] = JournalDict(self.journal)
        self.order: JournalDict[str, int] = JournalDict(self.journal)  # symbol -> rank: the order of declaration
        self.inequalities: list[Inequality] = []
        self.by_symbol: JournalDict[str, tuple[int, ...]] = JournalDict(
            self.journal
        )  # symbol -> indices of inequalities
        self.hidden: JournalDict[str, tuple[Dim, int]] = JournalDict(
            self.journal
        )  # hidden symbol h -> (x, d): h == x / d exactly
        self.products: JournalDict[Mono, Dim] = JournalDict(self.journal)  # leading monomial -> its value
        self.rules_at: JournalDict[Atom, tuple[Mono, ...]] = JournalDict(self.journal)  # first atom of a lead -> leads
        self.rules_of: JournalDict[str, tuple[Mono, ...]] = JournalDict(
            self.journal
        )  # symbol -> leads of rules with it
        self.sub = Substitution(JournalDict(self.journal), self.order.__getitem__)
        self.steps = 0  # work done, for tests
        self._norms: dict[Dim, Dim] = {}
        self._bounds: dict[Expr, Range] = {}
        self._plain: dict[Dim, Dim] = {}  # facts in normal form, made without the help of other facts
        self._use_facts = True

    def changed(self) -> None:
        """Forgets cached results after a fact was added."""
        self._norms, self._bounds, self._plain = {}, {}, {}

    def add_symbol(self, name: str, lo: int | None, hi: int | None) -> None:
        """A new root symbol with its range."""
        self.order[name] = len(self.order)
        self.ranges[name] = (lo, hi)

    def add_inequality(self, expr: Expr, text: str) -> None:
        """Records ``expr >= 0``."""
        index = len(self.inequalities)
        self.inequalities.append(Inequality(expr, text))
        for name in expr.symbols:
            self.by_symbol[name] = (*self.by_symbol.get(name, ()), index)

    def relevant(self, symbols: Iterable[str], limit: int = 48) -> list[int]:
        """Indices of at most ``limit`` inequalities that mention one of ``symbols``; those of rare symbols first."""
        found: dict[int, None] = {}
        for name in sorted(symbols, key=lambda s: (len(self.by_symbol.get(s, ())), s)):
            for index in self.by_symbol.get(name, ()):
                if len(found) >= limit:
                    return sorted(found)
                found.setdefault(index)
        return sorted(found)

    def fact(self, index: int) -> Dim:
        """An inequality's left side over today's roots, simplified by ranges only (other facts would make this circular)."""
        expr = self.inequalities[index].expr
        known = self._plain.get(expr)
        if known is None:
            outer, self._use_facts = self._use_facts, False
            try:
                known = self._plain[expr] = self._norm(expr)
            finally:
                self._use_facts = outer
        return known

    # --- normal form under the facts ----------------------------------------------------------------------------------

    def norm(self, dim: Dim) -> Dim:
        """``dim`` over roots, simplified with everything known about ranges."""
        if isinstance(dim, int):
            return dim
        known = self._norms.get(dim)
        if known is None:
            self.steps += 1
            if self._use_facts:
                known = self._norms[dim] = self._norm(dim)
            else:
                known = self._norm(dim)
        return known

    def _norm(self, dim: Expr) -> Dim:
        current = self.sub.apply(dim)
        for _ in range(4):
            if isinstance(current, int):
                return current
            before = current
            if not current.flat:
                current = current.rebuild(self._rewrite)
            current = self._reduce_products(current)
            if current == before:
                return current
        return current

    def _reduce_products(self, dim: Dim) -> Dim:
        if not self.products or isinstance(dim, int):
            return dim
        for _ in range(16):
            if isinstance(dim, int) or len(dim.terms) > 256:
                return dim
            for mono, c in dim.ordered():
                hit = self._product_rule(mono)
                if hit is not None:
                    quotient, value = hit
                    dim = dim - make({mono: c}) + c * (value * make({quotient: 1}))
                    break
            else:
                return dim
        return dim

    def _product_rule(self, mono: Mono) -> tuple[Mono, Dim] | None:
        for atom in dict.fromkeys(mono):
            for lead in self.rules_at.get(atom, ()):
                quotient = functions.mono_quotient(mono, lead)
                if quotient is not None and lead in self.products:
                    return quotient, self.products[lead]
        return None

    def rules_of_mono(self, mono: Mono) -> list[Mono]:
        """Leads of rules that may divide ``mono``, in the order in which they are tried."""
        leads = [lead for atom in dict.fromkeys(mono) for lead in self.rules_at.get(atom, ())]
        return [lead for lead in leads if lead in self.products]

    def add_rule(self, lead: Mono, value: Dim) -> None:
        """``lead`` is replaced by ``value`` from now on."""
        self.products[lead] = value
        if lead not in self.rules_at.get(lead[0], ()):
            self.rules_at[lead[0]] = (*self.rules_at.get(lead[0], ()), lead)
        for name in dict.fromkeys((*make({lead: 1}).symbols, *symbols_of(value))):  # type: ignore[union-attr]
            if lead not in self.rules_of.get(name, ()):
                self.rules_of[name] = (*self.rules_of.get(name, ()), lead)

    def rule_zeros(self, name: str) -> list[Expr]:
        """The rules that mention the root ``name``, as dims over roots that are zero."""
        zeros = [self.sub.apply(make({lead: 1}) - self.products[lead]) for lead in self.rules_with(name)]
        return [z for z in zeros if isinstance(z, Expr)]

    def rules_with(self, name: str) -> list[Mono]:
        """Leads of the rules that mention the root ``name``."""
        return [lead for lead in self.rules_of.get(name, ()) if lead in self.products]

    def _rewrite(self, atom: Atom) -> Dim | None:
        """A simpler value of ``atom`` (its arguments are already in normal form), or None."""
        self.steps += atom.op != SYMBOL
        if self.products and atom.op != SYMBOL:
            args = [self._reduce_products(a) for a in atom.args]
            if args != list(atom.args):
                return functions.apply(atom.op, args)
        if atom.op == FLOORDIV:
            return self._rewrite_floordiv(*atom.args)
        if atom.op == MOD:
            return self._rewrite_mod(*atom.args)
        if atom.op in (MAX, MIN):
            return self._rewrite_extremum(atom)
        if atom.op == BROADCAST:
            return self._rewrite_broadcast(atom)
        return None

    def _rewrite_floordiv(self, x: Dim, d: Dim) -> Dim | None:
        if isinstance(d, int):
            lo, hi = self.bounds(x)
            return lo // d if lo is not None and hi is not None and lo // d == hi // d else None
        if not self.positive(d):
            return None
        q, r = poly_divmod(x, d)
        if self.nonneg(r) and self.nonneg(d - r - 1):
            return q
        top = x.as_atom if isinstance(x, Expr) else None
        if top is not None and top.op == MOD and isinstance(top.args[1], Expr):  # (y % (d*k)) // d == (y // d) % k
            k, rest = poly_divmod(top.args[1], d)
            if isinstance(rest, int) and rest == 0 and self.positive(k):
                return functions.mod(functions.floordiv(top.args[0], d), k)
        if q != 0:
            return q + functions.floordiv(r, d)
        x, d, changed = self._cancel(x, d)
        if changed:
            return functions.floordiv(x, d)
        return self._nested_floordiv(x, d)

    def _nested_floordiv(self, x: Dim, d: Dim) -> Dim | None:
        """``(y // e + c) // d == (y + c*e) // (d*e)`` for positive d and e."""
        if isinstance(x, int):
            return None
        atom = (x - x.constant).as_atom if isinstance(x - x.constant, Expr) else None  # type: ignore[union-attr]
        if atom is None or atom.op != FLOORDIV:
            return None
        y, e = atom.args
        return functions.floordiv(y + x.constant * e, d * e) if self.positive(e) else None

    def _cancel(self, x: Dim, d: Dim) -> tuple[Dim, Dim, bool]:
        """Without the positive atoms that all terms of both share."""
        changed = False
        while isinstance(x, Expr) and isinstance(d, Expr):
            monos = [*x.terms, *d.terms]
            common = next((a for a in monos[0] if all(a in m for m in monos) and self.positive(atom_expr(a))), None)
            if common is None:
                break
            x, d = _without(x, common), _without(d, common)
            changed = True
        return x, d, changed

    def _rewrite_mod(self, x: Dim, d: Dim) -> Dim | None:
        lo, hi = self.bounds(x)
        if isinstance(d, int):
            return x - d * (lo // d) if lo is not None and hi is not None and lo // d == hi // d else None
        if lo is not None and lo >= 0 and self.nonneg(d - x - 1):
            return x
        y, e, changed = self._cancel(x, d)
        if changed:  # x == s*y, d == s*e
            q, r = poly_divmod(x, y) if isinstance(y, Expr) else (None, None)
            if r == 0 and q is not None:
                return q * functions.mod(y, e)
        return None

    def _rewrite_extremum(self, atom: Atom) -> Dim | None:
        sign = 1 if atom.op == MAX else -1
        alive = list(atom.args)
        for arg in atom.args:
            if len(alive) > 1 and any(o is not arg and self.nonneg(sign * (o - arg)) for o in alive):
                alive.remove(arg)
        if len(alive) == len(atom.args):
            return None
        return functions.smax(*alive) if atom.op == MAX else functions.smin(*alive)

    def _rewrite_broadcast(self, atom: Atom) -> Dim | None:
        """A plain maximum where no 1 can be mistaken: all sizes are positive, or none is 1, or one is at least 2."""
        args = atom.args
        if all(self.positive(a) for a in args) or any(self.nonneg(a - 2) for a in args):
            return functions.smax(*args)
        return functions.smax(*args) if all(self.nonneg(-1 * a) or self.nonneg(a - 2) for a in args) else None

    # --- bounds ----------------------------------------------------------------------------------------------------------

    def bounds(self, dim: Dim) -> Range:
        """Interval of a dim over roots."""
        if isinstance(dim, int):
            return dim, dim
        known = self._bounds.get(dim)
        if known is not None:
            return known
        self.steps += 1
        lo: int | None = 0
        hi: int | None = 0
        for mono, c in dim.terms.items():
            if not mono:
                tlo: int | None = c
                thi: int | None = c
            elif len(mono) == 1:
                tlo, thi = scale_range(self.atom_bounds(mono[0]), c)
            else:
                tlo, thi = scale_range(self._mono_bounds(mono), c)
            lo = None if lo is None or tlo is None else lo + tlo
            hi = None if hi is None or thi is None else hi + thi
        self._bounds[dim] = lo, hi
        return lo, hi

    def _mono_bounds(self, mono: Mono) -> Range:
        result: Range = (1, 1)
        for atom in dict.fromkeys(mono):
            one = self.atom_bounds(atom)
            power = one
            for _ in range(mono.count(atom) - 1):
                power = mul_range(power, one)
            if mono.count(atom) % 2 == 0 and (power[0] is None or power[0] < 0):
                power = (0, power[1])
            result = mul_range(result, power)
        return result

    def atom_bounds(self, atom: Atom) -> Range:
        """Interval of an atom over roots."""
        if atom.op == SYMBOL:
            return self.ranges.get(atom.args[0], (None, None))
        args = []
        for arg in atom.args:
            args.append(self.bounds(arg))
        if atom.op == FLOORDIV:
            return _div_range(*args)
        if atom.op == MOD:
            return _mod_range(*args)
        los, his = [a[0] for a in args], [a[1] for a in args]
        known_los, known_his = [v for v in los if v is not None], [v for v in his if v is not None]
        if atom.op == MAX:
            return max(known_los, default=None), (max(known_his) if len(known_his) == len(his) else None)
        if atom.op == MIN:
            return (min(known_los) if len(known_los) == len(los) else None), min(known_his, default=None)
        lo = min(known_los) if len(known_los) == len(los) else None
        return lo, (max([1, *known_his]) if len(known_his) == len(his) else None)

    def positive(self, dim: Dim) -> bool:
        """Whether ``dim >= 1`` follows quickly."""
        return self.nonneg(dim - 1)

    def nonneg(self, dim: Dim) -> bool:
        """Whether ``dim >= 0`` follows from ranges alone: intervals, then products of non-negative terms."""
        if isinstance(dim, int):
            return dim >= 0
        lo, hi = self.bounds(dim)
        if lo is not None and lo >= 0:
            return True
        if hi is not None and hi < 0:
            return False
        if self._shifted_nonneg(dim) or (self._use_facts and self._nonneg_by_fact(dim)):
            return True
        worst = self._remainders_at_most(dim)
        return worst is not None and self.nonneg(worst)

    def _remainders_at_most(self, dim: Expr) -> Dim | None:
        """A lower bound of ``dim``: a remainder ``x % d`` that counts against it is taken as ``d - 1``; None where there is none."""
        for mono, c in dim.ordered():
            if c > 0:
                continue
            for atom in mono:
                if atom.op != MOD or isinstance(atom.args[1], int) or not self.positive(atom.args[1]):
                    continue
                rest = list(mono)
                rest.remove(atom)
                if all(self.nonneg(atom_expr(a)) for a in rest):
                    return dim - make({mono: c}) + c * (make({tuple(rest): 1}) * (atom.args[1] - 1))
        return None

    def _nonneg_by_fact(self, dim: Expr) -> bool:
        """``dim``, without its common factor, is one known inequality plus something that ranges make non-negative."""
        self.steps += 1
        dim = rounded(dim)
        for index in self.relevant(dim.symbols, 8):
            rest = dim - self.fact(index)
            lo = self.bounds(rest)[0]
            if lo is not None and lo >= 0:
                return True
        return False

    def _shifted_nonneg(self, dim: Expr) -> bool:
        """With every atom written as its lower bound plus something non-negative, no coefficient is negative."""
        if len(dim.terms) > 64 or all(len(m) < 2 for m in dim.terms):
            return False
        shifted: Dim = 0
        for mono, c in dim.terms.items():
            value: Dim = c
            for atom in mono:
                lo, _ = self.atom_bounds(atom)
                if lo is None:
                    return False
                value = value * (atom_expr(atom) + lo)
            shifted = shifted + value
        return shifted >= 0 if isinstance(shifted, int) else all(c >= 0 for c in shifted.terms.values())

    # --- back to declared symbols ------------------------------------------------------------------------------------------

    def back(self, dim: Dim) -> Dim:
        """``dim`` over roots, in declared symbols: hidden symbols are replaced by their meaning."""
        if isinstance(dim, int) or self.hidden.keys().isdisjoint(dim.symbol_set):
            return dim
        total: Dim = 0
        for mono, c in dim.ordered():
            factors: list[Dim] = []
            for atom in mono:
                value: Dim = atom_expr(atom)
                if atom.op != SYMBOL:
                    value = functions.apply(atom.op, [self.back(a) for a in atom.args])
                elif atom.args[0] in self.hidden:
                    x, d = self.hidden[atom.args[0]]
                    if c % d == 0:
                        c, value = c // d, x
                    else:
                        value = functions.floordiv(x, d)
                factors.append(value)
            term: Dim = c
            for f in factors:
                term = term * f
            total = total + term
        return total


def rounded(dim: Expr) -> Expr:
    """An expression that is not negative exactly where ``dim`` is not: without common factors, the constant rounded down."""
    g = content(dim, with_constant=False)
    reduced = dim if g == 1 else make({m: c // g for m, c in dim.terms.items() if c // g})
    assert isinstance(reduced, Expr)
    return reduced


def _without(dim: Expr, atom: Atom) -> Dim:
    terms: dict[Mono, int] = {}
    for mono, c in dim.terms.items():
        rest = list(mono)
        rest.remove(atom)
        terms[tuple(rest)] = c
    return make(terms)


def _div_range(x: Range, d: Range) -> Range:
    if d[0] is None or d[0] < 0:
        return None, None
    if d[0] == 0:  # a division by 0 gives 0
        lo = None if x[0] is None else min(0, x[0])
        return lo, (None if x[1] is None else max(0, x[1]))
    corners_lo: int | None
    if x[0] is None:
        corners_lo = None
    elif x[0] >= 0:
        corners_lo = 0 if d[1] is None else x[0] // d[1]
    else:
        corners_lo = x[0] // d[0]
    if x[1] is None:
        return corners_lo, None
    if x[1] >= 0:
        return corners_lo, x[1] // d[0]
    return corners_lo, (-1 if d[1] is None else x[1] // d[1])


def _mod_range(x: Range, d: Range) -> Range:
    if d[0] is None or d[0] < 0:
        return None, None
    hi = None if d[1] is None else max(d[1] - 1, 0)
    if x[0] is not None and x[0] >= 0 and x[1] is not None:
        hi = x[1] if hi is None else min(hi, x[1])
    return 0, hi
