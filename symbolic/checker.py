"""Accepts or refuses a proof, step by step, by plain arithmetic. It shares no code with what finds proofs.

What has to be trusted: this file and the normal form of expressions (``expr``, ``functions``). Every rule of ``RULES`` states when a
claim follows from its premises; nothing is searched for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import NoReturn

from symbolic import functions, relations
from symbolic.expr import BROADCAST, FLOORDIV, MAX, MIN, MOD, SYMBOL, Atom, Dim, Expr, content, symbol
from symbolic.proof import FALSE, Branch, Proof, Step
from symbolic.relations import Relation, divides, either, eq, le, lt

Interval = tuple[int | None, int | None]


class ProofError(Exception):
    """The proof does not show what it claims; the text names the step."""


def check(proof: Proof) -> None:
    """Raises ``ProofError`` at the first step that does not follow, or where the last step is not the goal."""
    if not proof.steps or proof.steps[-1].claim != proof.goal:
        raise ProofError(f"the last step is not the goal {proof.goal}")
    _Checker(proof).run(proof.steps, {})


class _Checker:
    def __init__(self, proof: Proof) -> None:
        self.proof = proof
        self.names = {d.name for d in proof.declarations}
        for rel in (proof.goal, *(rel for rel, _ in proof.facts)):
            if not rel.symbol_set <= self.names:
                raise ProofError(f"{rel} has symbols that are not declared")

    def run(self, steps: tuple[Step, ...], known: Mapping[int, Relation]) -> Relation:
        """Checks steps in order; the last claim."""
        here = dict(known)
        claim = FALSE
        for step in steps:
            if step.id in here:
                raise ProofError(f"step {step.id} is numbered twice")
            try:
                premises = [here[i] for i in step.premises]
                RULES[step.rule](self, step, premises, here)
            except (KeyError, IndexError, ValueError, TypeError, AttributeError, ZeroDivisionError) as error:
                raise ProofError(f"step {step.id}, {step.claim}: malformed {step.rule} ({error!r})") from error
            if not step.claim.symbol_set <= self.names:
                raise ProofError(f"step {step.id}, {step.claim}: it has symbols without a meaning")
            here[step.id] = claim = step.claim
        return claim

    def branch(self, branch: Branch, known: Mapping[int, Relation], expected: tuple[Relation, ...]) -> Relation:
        """What a case shows under exactly the ``expected`` assumptions."""
        if tuple(rel for _, rel in branch.assumptions) != expected or not branch.steps:
            raise ProofError(f"a case assumes something else than {', '.join(map(str, expected))}")
        names = set(self.names)
        try:
            return self.run(branch.steps, {**known, **dict(branch.assumptions)})
        finally:
            self.names = names


def _need(condition: bool, step: Step, why: str) -> None:
    if not condition:
        _refuse(step, why)


def _refuse(step: Step, why: str) -> NoReturn:
    raise ProofError(f"step {step.id}, {step.claim}: {step.rule}: {why}")


def gap(rel: Relation) -> Dim:
    """What is zero (``==``) or not negative (``<=``, ``<``)."""
    a, b = rel.args
    return b - a - 1 if rel.op == relations.LT else b - a


def _is(rel: Relation, *ops: str) -> bool:
    return rel.op in ops


def _at_least(premises: list[Relation], dim: Dim, step: Step) -> None:
    """``dim >= 0`` is a number that is, or a premise says it."""
    if isinstance(dim, int):
        _need(dim >= 0, step, f"{dim} is negative")
        return
    _need(any(_is(p, relations.LE, relations.LT) and gap(p) == dim for p in premises), step, f"{dim} >= 0 is missing")


# --- intervals, written anew ------------------------------------------------------------------------------------------


def _mul(a: Interval, b: Interval) -> Interval:
    for one, other in ((a, b), (b, a)):
        if one[0] is not None and one[0] == one[1]:
            return _scaled(other, one[0])
    ends = [(x, y) for x in a for y in b]
    if all(x is not None and y is not None for x, y in ends):
        products = [x * y for x, y in ends if x is not None and y is not None]
        return min(products), max(products)
    positive = [i[0] is not None and i[0] >= 0 for i in (a, b)]
    if all(positive):
        return a[0] * b[0], (None if a[1] is None or b[1] is None else a[1] * b[1])  # type: ignore[operator]
    negative = [i[1] is not None and i[1] <= 0 for i in (a, b)]
    if all(p or n for p, n in zip(positive, negative, strict=True)):
        return (0, None) if positive[0] == positive[1] else (None, 0)
    return None, None


def _scaled(a: Interval, c: int) -> Interval:
    if c == 0:
        return 0, 0
    low, high = (None if v is None else v * c for v in a)
    return (low, high) if c > 0 else (high, low)


def _interval(dim: Dim, ranges: Mapping[str, Interval]) -> Interval:
    if isinstance(dim, int):
        return dim, dim
    low: int | None = 0
    high: int | None = 0
    for mono, c in dim.terms.items():
        term: Interval = (1, 1)
        for atom in dict.fromkeys(mono):
            one, power = _atom_interval(atom, ranges), mono.count(atom)
            value = reduce(_mul, [one] * power)
            if power % 2 == 0 and (value[0] is None or value[0] < 0):
                value = 0, value[1]
            term = _mul(term, value)
        term = _scaled(term, c)
        low = None if low is None or term[0] is None else low + term[0]
        high = None if high is None or term[1] is None else high + term[1]
    return low, high


def _atom_interval(atom: Atom, ranges: Mapping[str, Interval]) -> Interval:
    if atom.op == SYMBOL:
        return ranges.get(atom.args[0], (None, None))
    args = [_interval(a, ranges) for a in atom.args]
    if atom.op in (FLOORDIV, MOD):
        (xl, xh), (dl, dh) = args
        if dl is None or dl < 0:
            return None, None
        if atom.op == MOD:
            high = None if dh is None else max(dh - 1, 0)
            if xl is not None and xl >= 0 and xh is not None:
                high = xh if high is None else min(high, xh)
            return 0, high
        if dl == 0:
            return (None if xl is None else min(0, xl)), (None if xh is None else max(0, xh))
        low = None if xl is None else xl // dl if xl < 0 else 0 if dh is None else xl // dh
        return low, (None if xh is None else xh // dl if xh >= 0 else -1 if dh is None else xh // dh)
    lows, highs = [a[0] for a in args], [a[1] for a in args]
    low_known, high_known = [v for v in lows if v is not None], [v for v in highs if v is not None]
    if atom.op == MAX:
        return max(low_known, default=None), (max(high_known) if None not in highs else None)
    if atom.op == MIN:
        return (min(low_known) if None not in lows else None), min(high_known, default=None)
    return (min(low_known) if None not in lows else None), (max([1, *high_known]) if None not in highs else None)


def _ranges_of(premises: list[Relation], step: Step) -> dict[str, Interval]:
    found: dict[str, Interval] = {}
    for premise in premises:
        p = gap(premise)
        _need(_is(premise, relations.LE, relations.LT) and isinstance(p, Expr), step, "a premise is no range")
        assert isinstance(p, Expr)
        terms = [(m, c) for m, c in p.terms.items() if m]
        _need(len(terms) == 1 and len(terms[0][0]) == 1 and terms[0][0][0].op == SYMBOL, step, "no range of a symbol")
        ((mono, c),) = terms
        low, high = found.get(mono[0].args[0], (None, None))
        if c > 0:
            bound = -(p.constant // c)
            low = bound if low is None else max(low, bound)
        else:
            bound = p.constant // -c
            high = bound if high is None else min(high, bound)
        found[mono[0].args[0]] = low, high
    return found


# --- rules ------------------------------------------------------------------------------------------------------------


def _declared(self: _Checker, step: Step, premises: list[Relation], known: Mapping[int, Relation]) -> None:
    _need(any(step.claim in d.relations() for d in self.proof.declarations), step, "no declaration says so")


def _fact(self: _Checker, step: Step, premises: list[Relation], known: Mapping[int, Relation]) -> None:
    _need(any(step.claim == rel for rel, _ in self.proof.facts), step, "no fact says so")


def _fresh(self: _Checker, step: Step, name: str, meaning: Dim) -> None:
    _need(name not in self.names, step, f"{name} has a meaning already")
    _need(not isinstance(meaning, Expr) or meaning.symbol_set <= self.names, step, "its meaning is not known")
    self.names.add(name)


def _let(self: _Checker, step: Step, premises: list[Relation], known: Mapping[int, Relation]) -> None:
    """``h == x`` for a new name h."""
    (name,) = step.data
    h, x = step.claim.args
    _need(step.claim.op == relations.EQ and h == symbol(name), step, "it defines something else")
    _fresh(self, step, name, x)


def _quotient(self: _Checker, step: Step, premises: list[Relation], known: Mapping[int, Relation]) -> None:
    """``d*h == x`` for a new name h, where d divides x."""
    name, d = step.data
    product, x = step.claim.args
    _need(step.claim == eq(d * symbol(name), x) and isinstance(d, int) and d != 0, step, "it defines something else")
    _need(divides(d, x) in premises, step, "the division is not exact")
    _fresh(self, step, name, x)


def _ranges(self: _Checker, step: Step, premises: list[Relation], known: Mapping[int, Relation]) -> None:
    """Not negative by intervals, or with every factor counted from its lower bound."""
    _need(_is(step.claim, relations.LE, relations.LT), step, "no inequality")
    why = not_negative(gap(step.claim), _ranges_of(premises, step))
    _need(not why, step, why)


def not_negative(p: Dim, ranges: Mapping[str, Interval]) -> str:
    """Empty where ``p >= 0`` follows from the ranges of its symbols, else what is in the way."""
    low = _interval(p, ranges)[0]
    if low is not None and low >= 0:
        return ""
    if isinstance(p, int):
        return "it is negative"
    moved: Dim = 0
    for mono, c in p.terms.items():
        value: Dim = c
        for atom in mono:
            low = _atom_interval(atom, ranges)[0]
            if low is None:
                return f"{atom!r} has no lower bound"
            value = value * (Expr({(atom,): 1}) + low)
        moved = moved + value
    coefficients = moved.terms.values() if isinstance(moved, Expr) else (moved,)
    return "" if all(c >= 0 for c in coefficients) else "it may be negative"


def _linear(self: _Checker, step: Step, premises: list[Relation], known: Mapping[int, Relation]) -> None:
    """``den * claim`` is a sum of products of what is not negative, and of multiples of what is zero, with less than 1 left over."""
    den, terms, equal = step.data
    claim = step.claim
    _need(isinstance(den, int) and den > 0, step, "the denominator is not positive")
    rest = gap(claim) * den
    for weight, ids in terms:
        value: Dim = weight
        for i in ids:
            _need(i in step.premises and _is(known[i], relations.LE, relations.LT), step, f"{i} is no inequality")
            value = value * gap(known[i])
        _need(isinstance(weight, int) and weight > 0 and bool(ids), step, "a weight is not positive")
        rest = rest - value
    for multiplier, i in equal:
        _need(i in step.premises and _is(known[i], relations.EQ), step, f"{i} is no equality")
        rest = rest - multiplier * gap(known[i])
    if claim.op == relations.EQ:
        _need(not terms and rest == 0, step, f"{rest} is left over")
        return
    _need(_is(claim, relations.LE, relations.LT), step, "no inequality")
    _need(isinstance(rest, int) and rest > -den, step, f"{rest} is left over")


def _both(self: _Checker, step: Step, premises: list[Relation], known: Mapping[int, Relation]) -> None:
    """Neither side is larger."""
    p = gap(step.claim)
    _need(_is(step.claim, relations.EQ), step, "no equality")
    _at_least(premises, p, step)
    _at_least(premises, -1 * p, step)


def _rewrite(self: _Checker, step: Step, premises: list[Relation], known: Mapping[int, Relation]) -> None:
    """Equals replaced by equals, inside functions too."""
    before, after = step.claim.args
    mapping: dict[Atom, Dim] = {}
    for premise in premises:
        left, right = premise.args
        _need(_is(premise, relations.EQ) and isinstance(left, Expr) and left.as_atom is not None, step, "no atom")
        mapping[left.as_atom] = right
    _need(_is(step.claim, relations.EQ), step, "no equality")
    _need(before.rebuild(mapping.get) == after, step, "the replacement gives something else")


def _congruence(self: _Checker, step: Step, premises: list[Relation], known: Mapping[int, Relation]) -> None:
    """The same function of equal arguments."""
    left, right = step.claim.args
    atom = left.as_atom
    args = []
    for arg in atom.args:
        match = next((p.args[1] for p in premises if _is(p, relations.EQ) and p.args[0] == arg), arg)
        args.append(match)
    _need(_is(step.claim, relations.EQ) and functions.apply(atom.op, args) == right, step, "the values differ")


def _law(self: _Checker, step: Step, premises: list[Relation], known: Mapping[int, Relation]) -> None:
    """What holds for every quotient, remainder, maximum and minimum with a positive divisor, and for squares."""
    claim = step.claim
    if len(step.data) == 2:
        x, d = step.data
        _at_least(premises, d - 1, step)
        _need(claim == eq(x, d * functions.floordiv(x, d) + functions.mod(x, d)), step, "no division")
        return
    (atom,) = step.data
    if isinstance(atom, Expr):
        _need(claim == le(0, atom * atom), step, "no square")
        return
    this = Expr({(atom,): 1})
    if atom.op in (MAX, MIN):
        sign = 1 if atom.op == MAX else -1
        _need(any(claim == le(0, sign * (this - a)) for a in atom.args), step, "not about an argument")
        return
    x, d = atom.args
    _at_least(premises, d - 1, step)
    if atom.op == FLOORDIV:
        laws = [le(0, x - d * this), le(0, d * this + d - 1 - x)]
    else:
        _need(atom.op == MOD, step, "no law is known")
        laws = [le(0, this), le(0, d - 1 - this), eq(x, d * functions.floordiv(x, d) + this)]
        if claim == le(0, x - this):
            _at_least(premises, x, step)
            return
    _need(claim in laws, step, "no law says so")


def _division(self: _Checker, step: Step, premises: list[Relation], known: Mapping[int, Relation]) -> None:
    """``x // d == q`` where ``d*q <= x < d*q + d``."""
    x, d = step.data
    q = step.claim.args[1]
    _need(step.claim == eq(functions.floordiv(x, d), q), step, "another quotient")
    _at_least(premises, x - d * q, step)
    _at_least(premises, d * q + d - 1 - x, step)


def _remainder(self: _Checker, step: Step, premises: list[Relation], known: Mapping[int, Relation]) -> None:
    """``x % d == r`` where ``x == d*k + r`` and ``0 <= r < d``."""
    x, d, k = step.data
    r = step.claim.args[1]
    _need(step.claim == eq(functions.mod(x, d), r) and x - d * k - r == 0, step, "another remainder")
    _at_least(premises, r, step)
    _at_least(premises, d - 1 - r, step)


def _pull_out(self: _Checker, step: Step, premises: list[Relation], known: Mapping[int, Relation]) -> None:
    """``(q*d + r) // d == q + r // d``."""
    q, r, d = step.data
    atom = step.claim.args[0].as_atom
    _need(atom.op == FLOORDIV and atom.args == (q * d + r, d), step, "another quotient")
    _need(step.claim.args[1] == q + functions.floordiv(r, d), step, "another value")
    _at_least(premises, d - 1, step)


def _cancel(self: _Checker, step: Step, premises: list[Relation], known: Mapping[int, Relation]) -> None:
    """``(f*y) // (f*e) == y // e`` and ``(f*y) % (f*e) == f*(y % e)`` for a product f of positive factors."""
    factors, y, e = step.data
    f: Dim = 1
    for factor in factors:
        _at_least(premises, factor - 1, step)
        f = f * factor
    atom = step.claim.args[0].as_atom
    _need(atom.args == (f * y, f * e), step, "other arguments")
    value = functions.apply(atom.op, (y, e))
    _need(step.claim.args[1] == (value if atom.op == FLOORDIV else f * value), step, "another value")
    _need(atom.op in (FLOORDIV, MOD), step, "no division")


def _nested(self: _Checker, step: Step, premises: list[Relation], known: Mapping[int, Relation]) -> None:
    """``(y // e + c) // d == (y + c*e) // (d*e)``."""
    y, e, c, d = step.data
    atom = step.claim.args[0].as_atom
    _need(atom.op == FLOORDIV and atom.args == (functions.floordiv(y, e) + c, d), step, "another quotient")
    _need(step.claim.args[1] == functions.floordiv(y + c * e, d * e), step, "another value")
    _at_least(premises, e - 1, step)
    _at_least(premises, d - 1, step)


def _remainder_quotient(self: _Checker, step: Step, premises: list[Relation], known: Mapping[int, Relation]) -> None:
    """``(y % (d*k)) // d == (y // d) % k``."""
    y, d, k = step.data
    atom = step.claim.args[0].as_atom
    _need(atom.op == FLOORDIV and atom.args == (functions.mod(y, d * k), d), step, "another quotient")
    _need(step.claim.args[1] == functions.mod(functions.floordiv(y, d), k), step, "another value")
    _at_least(premises, d - 1, step)
    _at_least(premises, k - 1, step)


def _dominated(self: _Checker, step: Step, premises: list[Relation], known: Mapping[int, Relation]) -> None:
    """A maximum (minimum) without arguments that another one is never below (above)."""
    (alive,) = step.data
    atom = step.claim.args[0].as_atom
    sign = 1 if atom.op == MAX else -1
    _need(atom.op in (MAX, MIN) and set(alive) <= set(atom.args) and bool(alive), step, "other arguments")
    _need(functions.apply(atom.op, alive) == step.claim.args[1], step, "another value")
    for arg in atom.args:
        if arg in alive:
            continue
        gaps = [sign * (o - arg) for o in alive]
        _need(
            any(isinstance(g, int) and g >= 0 for g in gaps)
            or any(_is(p, relations.LE, relations.LT) and gap(p) in gaps for p in premises),
            step,
            f"{arg} may win",
        )


def _broadcast(self: _Checker, step: Step, premises: list[Relation], known: Mapping[int, Relation]) -> None:
    """A broadcast is the maximum where all sizes are positive, or one is at least 2, or none can be 1."""
    atom = step.claim.args[0].as_atom
    _need(atom.op == BROADCAST and step.claim.args[1] == functions.smax(*atom.args), step, "another value")

    def given(dim: Dim) -> bool:
        if isinstance(dim, int):
            return dim >= 0
        return any(_is(p, relations.LE, relations.LT) and gap(p) == dim for p in premises)

    args = atom.args
    plain = all(given(a - 1) for a in args) or any(given(a - 2) for a in args)
    _need(plain or all(given(-1 * a) or given(a - 2) for a in args), step, "a 1 may be among them")


def _positive_factor(self: _Checker, step: Step, premises: list[Relation], known: Mapping[int, Relation]) -> None:
    """``g >= 0`` where ``d*g + d - 1 >= 0`` and d is positive."""
    (d,) = step.data
    g = gap(step.claim)
    _need(_is(step.claim, relations.LE, relations.LT), step, "no inequality")
    _at_least(premises, d - 1, step)
    _at_least(premises, d * g + d - 1, step)


def _multiple(self: _Checker, step: Step, premises: list[Relation], known: Mapping[int, Relation]) -> None:
    """``d`` divides ``x``: because ``x == d*k``, ``x % d == 0``, ``x == y + r`` with ``y % d == r``, or both equal what it holds for."""
    d, x = step.claim.args
    _need(_is(step.claim, relations.DIVIDES), step, "no divisibility")
    for premise in premises:
        if _is(premise, relations.EQ) and step.data:
            (k,) = step.data
            if premise == eq(x, d * k):
                return
        if _is(premise, relations.EQ) and isinstance(d, int) and d:
            if premise == eq(functions.mod(x, d), 0):
                return
            atom = premise.args[0].as_atom if isinstance(premise.args[0], Expr) else None
            if atom is not None and atom.op == MOD and atom.args[1] == d and x == atom.args[0] - premise.args[1]:
                return
    same = {(p.args[0], p.args[1]) for p in premises if _is(p, relations.EQ)}
    for premise in premises:
        if _is(premise, relations.DIVIDES):
            a, b = premise.args
            if (a == d or (a, d) in same) and (b == x or (b, x) in same):
                return
    if isinstance(x, int) and (x % d == 0 if isinstance(d, int) and d else x == 0):
        return
    _refuse(step, "it does not follow")


def _no_remainder(self: _Checker, step: Step, premises: list[Relation], known: Mapping[int, Relation]) -> None:
    """From ``d`` divides ``x``: ``x % d == 0``, ``d*(x // d) == x``, and ``x == 0`` where d is 0."""
    (premise,) = premises
    _need(_is(premise, relations.DIVIDES), step, "no divisibility")
    d, x = premise.args
    if isinstance(d, int) and d == 0:
        _need(step.claim == eq(x, 0), step, "it does not follow")
        return
    allowed = [eq(d * functions.floordiv(x, d), x)]
    if isinstance(d, int):
        allowed.append(eq(functions.mod(x, d), 0))
    _need(step.claim in allowed, step, "it does not follow")


def _different(self: _Checker, step: Step, premises: list[Relation], known: Mapping[int, Relation]) -> None:
    """``a != b``: one side is larger, or no integers make the remainders agree."""
    _need(_is(step.claim, relations.NE), step, "no inequation")
    p = gap(step.claim)
    if any(_is(q, relations.NE) and gap(q) == p for q in premises):
        return
    equal = [q.args for q in premises if _is(q, relations.EQ)]
    forms = [p, *(b for a, b in equal if a == p)]
    for form in forms:
        if isinstance(form, int):
            if form:
                return
            continue
        if form.constant % content(form, with_constant=False):
            return
        for sign in (1, -1):
            if any(_is(q, relations.LE, relations.LT) and gap(q) == sign * form - 1 for q in premises):
                return
    _refuse(step, "the sides may be equal")


def _not_zero(self: _Checker, step: Step, premises: list[Relation], known: Mapping[int, Relation]) -> None:
    """From ``p != 0``: p or -p is at least 1 where it is not negative, and one of both in any case."""
    unequal = [p for p in premises if _is(p, relations.NE)][0]
    p = gap(unequal)
    forms = [p, *(q.args[1] for q in premises if _is(q, relations.EQ) and q.args[0] == p)]
    for form in forms:
        if step.claim in (either(lt(form, 0), lt(0, form)), relations.ne(0, form)):
            return
        for signed in (form, -1 * form):
            if step.claim == le(0, signed - 1):
                _at_least(premises, signed, step)
                return
    _refuse(step, "it does not follow")


def _absurd(self: _Checker, step: Step, premises: list[Relation], known: Mapping[int, Relation]) -> None:
    """A premise that no integers meet."""
    (premise,) = premises
    if premise.op == relations.EITHER:
        _need(not premise.args, step, "something is possible")
    elif premise.op == relations.DIVIDES:
        d, x = premise.args
        _need(isinstance(d, int) and isinstance(x, int) and (x % d if d else x) != 0, step, "it is possible")
    else:
        p = gap(premise)
        if premise.op == relations.EQ and isinstance(p, Expr):
            _need(p.constant % content(p, with_constant=False) != 0, step, "it is possible")
        else:
            _need(isinstance(p, int), step, "it is possible")
            false = {relations.EQ: p != 0, relations.NE: p == 0}.get(premise.op, isinstance(p, int) and p < 0)
            _need(false, step, "it is possible")
    _need(step.claim == FALSE, step, "not the claim of a contradiction")


def _split(self: _Checker, step: Step, premises: list[Relation], known: Mapping[int, Relation]) -> None:
    """Cases of which one always holds: ``a <= b`` or ``b < a``; ``x <= c`` or ``c + 1 <= x`` or between; every remainder."""
    parts = step.claim.args
    if all(_is(p, relations.DIVIDES) for p in parts):
        d = parts[0].args[0]
        x = parts[0].args[1]
        _need(isinstance(d, int) and d > 0, step, "no number")
        rest = {(p.args[1] - x) % d for p in parts if p.args[0] == d and isinstance(p.args[1] - x, int)}
        _need(len(rest) == d, step, "a remainder is missing")
        return
    first, last = parts[0], parts[-1]
    _need(_is(first, relations.LE) and _is(last, relations.LE, relations.LT), step, "no such cases")
    upper, lower = gap(first), gap(last)  # each not negative
    between = [gap(p) for p in parts[1:-1] if _is(p, relations.EQ)]
    hole = upper + lower  # first: upper >= 0; last: lower >= 0; without a gap upper + lower >= -1
    _need(isinstance(hole, int), step, "the cases are not about one dim")
    # What lies between, upper == -k for k from 1 to -hole - 1, has to be among the equalities.
    missing = [upper + k for k in range(1, -hole)] if isinstance(hole, int) else []
    for dim in missing:
        _need(any(b in (dim, -1 * dim) for b in between), step, "a case is missing")


def _cases(self: _Checker, step: Step, premises: list[Relation], known: Mapping[int, Relation]) -> None:
    """Every case shows the claim or cannot happen."""
    (premise,) = premises
    parts = premise.args if premise.op == relations.EITHER else (premise,)
    _need(len(parts) == len(step.branches), step, "a case is missing")
    for part, branch in zip(parts, step.branches, strict=True):
        shown = self.branch(branch, known, (part,))
        _need(shown in (step.claim, FALSE), step, f"the case {part} shows {shown}")


def _exclusion(self: _Checker, step: Step, premises: list[Relation], known: Mapping[int, Relation]) -> None:
    """One alternative holds wherever all others fail."""
    (index,) = step.data
    (branch,) = step.branches
    others = [negated(r) for i, r in enumerate(step.claim.args) if i != index]
    shown = self.branch(branch, known, tuple(n for ns in others for n in ns))
    _need(shown in (step.claim.args[index], FALSE), step, f"it shows {shown}")


def negated(rel: Relation) -> tuple[Relation, ...]:
    """Relations that all hold exactly where ``rel`` fails."""
    if rel.op == relations.EITHER:
        return tuple(n for r in rel.args for n in negated(r))
    a, b = rel.args
    if rel.op == relations.EQ:
        return (relations.ne(a, b),)
    if rel.op == relations.NE:
        return (eq(a, b),)
    if rel.op == relations.DIVIDES:
        raise ValueError("a divisibility has no negation here")
    return (lt(b, a),) if rel.op == relations.LE else (le(b, a),)


def _part(self: _Checker, step: Step, premises: list[Relation], known: Mapping[int, Relation]) -> None:
    """One of the alternatives is known."""
    _need(_is(step.claim, relations.EITHER), step, "no alternatives")
    _need(any(p in step.claim.args for p in premises), step, "none of them is known")


def _same(self: _Checker, step: Step, premises: list[Relation], known: Mapping[int, Relation]) -> None:
    """The premise again, or anything after a contradiction."""
    (premise,) = premises
    _need(premise in (step.claim, FALSE), step, "another claim")


RULES: dict[str, Callable[[_Checker, Step, list[Relation], Mapping[int, Relation]], None]] = {
    "declared": _declared,
    "fact": _fact,
    "definition": _let,
    "exact quotient": _quotient,
    "ranges": _ranges,
    "arithmetic": _linear,
    "neither is larger": _both,
    "replacement": _rewrite,
    "equal arguments": _congruence,
    "law": _law,
    "division": _division,
    "remainder": _remainder,
    "multiple pulled out": _pull_out,
    "common factor": _cancel,
    "nested division": _nested,
    "quotient of a remainder": _remainder_quotient,
    "dominated": _dominated,
    "broadcast": _broadcast,
    "positive factor": _positive_factor,
    "multiple": _multiple,
    "no remainder": _no_remainder,
    "different": _different,
    "not zero": _not_zero,
    "contradiction": _absurd,
    "one of": _split,
    "cases": _cases,
    "exclusion": _exclusion,
    "alternative": _part,
    "as shown": _same,
}

__all__ = ["ProofError", "check", "negated"]
