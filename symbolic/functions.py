"""Floor-division, modulo, max, min and broadcast of dims: the rewrite rules that hold for *all* integers.

Semantics, the same as ``vm.intcode``: division rounds down, ``x // 0 == x % 0 == 0``; ``broadcast(a, b, ..)`` is the size of a
broadcast axis: the largest of the sizes that are not 1, or 1 if all are (so a size 0 against 1 gives 0).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from math import gcd
from typing import Any

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
    exact_div,
    intern_function,
    make,
    ssum,
    to_dim,
)

Range = tuple[int | None, int | None]
_cache: dict[tuple[Any, ...], Dim] = {}
_CACHE_LIMIT = 200_000


def _remember(key: tuple[Any, ...], value: Dim) -> Dim:
    if len(_cache) >= _CACHE_LIMIT:
        _cache.clear()
    _cache[key] = value
    return value


# --- meaning on integers --------------------------------------------------------------------------------------------


def apply_ints(op: str, args: Sequence[int]) -> int:
    """The meaning of the function ``op`` on integers."""
    if op == FLOORDIV:
        return args[0] // args[1] if args[1] else 0
    if op == MOD:
        return args[0] % args[1] if args[1] else 0
    if op == MAX:
        return max(args)
    if op == MIN:
        return min(args)
    if op == BROADCAST:
        return max((a for a in args if a != 1), default=1)
    raise ValueError(f"unknown integer function {op!r}")


def apply(op: str, args: Sequence[Dim]) -> Dim:
    """The function ``op`` applied to dims, in normal form. A divisor that became the number 0 gives 0."""
    if op in (FLOORDIV, MOD) and isinstance(args[1], int) and args[1] == 0:
        return 0
    if op == FLOORDIV:
        return floordiv(args[0], args[1])
    if op == MOD:
        return mod(args[0], args[1])
    if op == MAX:
        return smax(*args)
    if op == MIN:
        return smin(*args)
    if op == BROADCAST:
        return broadcast_dim(*args)
    raise ValueError(f"unknown integer function {op!r}")


# --- bounds that hold for all integers --------------------------------------------------------------------------------


def range_of(dim: Dim) -> Range:
    """Bounds of ``dim`` whatever integers its symbols are: mostly (None, None), but ``0 <= x % 8 <= 7``."""
    if isinstance(dim, int):
        return dim, dim
    lo: int | None = 0
    hi: int | None = 0
    for mono, c in dim.terms.items():
        if not mono:
            tlo: int | None = c
            thi: int | None = c
        else:
            tlo, thi = scale_range(mono[0].range, c)
            for atom in mono[1:]:
                tlo, thi = mul_range((tlo, thi), atom.range)
        lo = None if lo is None or tlo is None else lo + tlo
        hi = None if hi is None or thi is None else hi + thi
        if lo is None and hi is None:
            break
    return lo, hi


def scale_range(r: Range, c: int) -> Range:
    """Bounds of ``c * x``."""
    lo, hi = r
    if c < 0:
        lo, hi = hi, lo
    return (None if lo is None else lo * c), (None if hi is None else hi * c)


def mul_range(a: Range, b: Range) -> Range:
    """Bounds of ``x * y``."""
    if a == (0, 0) or b == (0, 0):
        return 0, 0
    if a[0] is not None and b[0] is not None and a[0] >= 0 and b[0] >= 0:
        return a[0] * b[0], (None if a[1] is None or b[1] is None else a[1] * b[1])
    if None in a or None in b:
        return _mul_range_open(a, b)
    corners = [x * y for x in a for y in b if x is not None and y is not None]
    return min(corners), max(corners)


def _mul_range_open(a: Range, b: Range) -> Range:
    """As ``mul_range`` where some bound is missing: only the sign is kept."""
    signs = []
    for lo, hi in (a, b):
        signs.append(1 if lo is not None and lo >= 0 else -1 if hi is not None and hi <= 0 else 0)
    if 0 in signs:
        return None, None
    return (0, None) if signs[0] == signs[1] else (None, 0)


# --- floor division ---------------------------------------------------------------------------------------------------


def floordiv(x: Any, y: Any) -> Dim:
    """``x // y``, rounding down. Raises ``ZeroDivisionError`` for the constant divisor 0."""
    x, y = to_dim(x), to_dim(y)
    if isinstance(y, int):
        if isinstance(x, int):
            return x // y
        if y == 0:
            raise ZeroDivisionError(f"({x})//0")
        return x if y == 1 else -x if y == -1 else _floordiv_const(x, y)
    return _floordiv_symbolic(x, y)


def _floordiv_const(x: Expr, d: int) -> Dim:
    if d < 0:
        return _floordiv_const(-x, -d)
    key = (FLOORDIV, x, d)
    known = _cache.get(key)
    if known is not None:
        return known
    whole: dict[Mono, int] = {}
    rest: dict[Mono, int] = {}
    for mono, c in x.terms.items():
        if not mono or c % d == 0:
            if c // d:
                whole[mono] = c // d
            if c % d:
                rest[mono] = c % d
        else:
            rest[mono] = c
    return _remember(key, make(whole) + _floordiv_rest(make(rest), d))


def _floordiv_rest(x: Dim, d: int) -> Dim:
    """``x // d`` where no term of x is a multiple of d and the constant is in [0, d)."""
    if isinstance(x, int):
        return x // d
    g = gcd(content(x, with_constant=False), d)
    if g > 1:  # (g*y + r) // (g*e) == (y + r // g) // e
        inner = make({m: c // g for m, c in x.terms.items() if m and c}) + x.constant // g
        return floordiv(inner, d // g)
    lo, hi = range_of(x)
    if lo is not None and hi is not None and lo // d == hi // d:
        return lo // d
    single = [a[0] for a, c in x.terms.items() if len(a) == 1 and c == 1 and a[0].op in (FLOORDIV, MOD)]
    if len(single) == 1 and len(x.terms) <= 2 and (len(x.terms) == 1 or x.constant):
        atom = single[0]
        inner, e = atom.args
        if isinstance(e, int) and e > 0:
            if atom.op == FLOORDIV:  # (y // e + c) // d == (y + c * e) // (d * e)
                return floordiv(inner + x.constant * e, d * e)
            if not x.constant and e % d == 0:  # (y % (d*k)) // d == (y // d) % k
                return mod(floordiv(inner, d), e // d)
    lo_q = None if lo is None else lo // d
    hi_q = None if hi is None else hi // d
    return atom_expr(intern_function(FLOORDIV, (x, d), (lo_q, hi_q)))


def _floordiv_symbolic(x: Dim, y: Expr) -> Dim:
    if x == 0:
        return 0
    x, reduced, _ = _reduced(x, y)
    if isinstance(reduced, int):
        return floordiv(x, reduced)
    return atom_expr(intern_function(FLOORDIV, (x, reduced), (None, None)))


def _reduced(x: Dim, y: Expr) -> tuple[Dim, Dim, int]:
    """``x`` and ``y`` without their common integer factor, and the factor; its sign makes y's leading coefficient positive."""
    g = gcd(x if isinstance(x, int) else content(x), content(y))
    if y.ordered()[0][1] < 0:
        g = -g
    return (x, y, 1) if g == 1 else (exact_div(x, g), exact_div(y, g), g)


def ceildiv(x: Any, y: Any) -> Dim:
    """``x / y`` rounded up, for a divisor that is positive."""
    x, y = to_dim(x), to_dim(y)
    if isinstance(x, int) and isinstance(y, int):
        return -(-x // y)
    return floordiv(x + y - 1, y)


# --- modulo -----------------------------------------------------------------------------------------------------------


def mod(x: Any, y: Any) -> Dim:
    """``x % y`` with the sign of y (floor semantics). Raises ``ZeroDivisionError`` for the constant divisor 0."""
    x, y = to_dim(x), to_dim(y)
    if isinstance(y, int):
        if isinstance(x, int):
            return x % y
        if y == 0:
            raise ZeroDivisionError(f"({x}) % 0")
        return 0 if y in (1, -1) else _mod_const(x, y) if y > 0 else -1 * _mod_const(-x, -y)
    return _mod_symbolic(x, y)


def _mod_const(x: Expr, d: int) -> Dim:
    key = (MOD, x, d)
    known = _cache.get(key)
    if known is not None:
        return known
    return _remember(key, _mod_const_uncached(x, d))


def _mod_const_uncached(x: Expr, d: int) -> Dim:
    parts: list[Dim] = []
    for mono, c in x.terms.items():
        if not mono:
            parts.append(c % d)
            continue
        c = (c + (d - 1) // 2) % d - (d - 1) // 2  # the representative nearest to 0
        if not c:
            continue
        atom = mono[0]
        if len(mono) == 1 and atom.op == MOD and isinstance(atom.args[1], int) and (c * atom.args[1]) % d == 0:
            parts.append(c * atom.args[0])  # c*(y % n) == c*y modulo d when d divides c*n
        else:
            parts.append(Expr({mono: c}))
    reduced = ssum(parts)
    if isinstance(reduced, int):
        return reduced % d
    if reduced != x:
        return mod(reduced, d)
    g = gcd(content(x, with_constant=False), d)
    if g > 1:  # (g*y + r) % (g*e) == g*((y + r // g) % e) + r % g
        inner = exact_div(x - x.constant, g) + x.constant // g
        return g * mod(inner, d // g) + x.constant % g
    lo, hi = range_of(x)
    if lo is not None and hi is not None and lo // d == hi // d:
        return x - d * (lo // d)
    return atom_expr(intern_function(MOD, (x, d), (0, d - 1)))


def _mod_symbolic(x: Dim, y: Expr) -> Dim:
    _, x = poly_divmod(_without_remainders(x, y), y)
    if isinstance(x, int) and x == 0:
        return 0
    x, reduced, g = _reduced(x, y)
    if isinstance(reduced, int):
        return g * mod(x, reduced)
    return g * atom_expr(intern_function(MOD, (x, reduced), (None, None)))


def _without_remainders(x: Dim, y: Expr) -> Dim:
    """``x`` with ``c*(z % e)`` replaced by ``c*z`` where y divides ``c*e``: the same modulo y."""
    if isinstance(x, int):
        return x
    parts: list[Dim] = []
    for mono, c in x.terms.items():
        part: Dim = Expr({mono: c}) if mono else c
        for i, atom in enumerate(mono):
            if atom.op != MOD:
                continue
            z, e = atom.args
            factor = make({mono[:i] + mono[i + 1 :]: c})
            # z % 0 is 0 and not z: where e is 0, y has to be 0 as well, and so has everything modulo y
            if poly_divmod(factor * e, y)[1] == 0 and (isinstance(e, int) or poly_divmod(y, e)[1] == 0):
                part = factor * z
                break
        parts.append(part)
    result = ssum(parts)
    return result if result == x else _without_remainders(result, y)


def poly_divmod(x: Dim, y: Expr) -> tuple[Dim, Dim]:
    """Polynomials q and r with ``x == q*y + r``; r has no term that y's leading term divides."""
    if isinstance(x, int):
        return 0, x
    lead, lead_c = y.ordered()[0]
    if not any(mono_quotient(m, lead) is not None for m in x.terms):
        return 0, x
    quotient: Dim = 0
    rest: Dim = x
    for _ in range(64):
        if isinstance(rest, int):
            break
        for mono, c in rest.ordered():
            q = mono_quotient(mono, lead)
            if q is not None and abs(c) >= abs(lead_c):
                times = abs(c) // abs(lead_c)
                step = make({q: times if (c < 0) == (lead_c < 0) else -times})
                break
        else:
            break
        quotient = quotient + step
        rest = rest - step * y
    return quotient, rest


def mono_quotient(mono: Mono, by: Mono) -> Mono | None:
    """``mono / by``, or None where it does not divide."""
    if len(by) > len(mono):
        return None
    rest = list(mono)
    for atom in by:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


# --- max, min, broadcast ------------------------------------------------------------------------------------------------


def smax(*dims: Any) -> Dim:
    """The largest of ``dims`` (at least one)."""
    return _extremum(MAX, dims, max)


def smin(*dims: Any) -> Dim:
    """The smallest of ``dims`` (at least one)."""
    return _extremum(MIN, dims, min)


def _extremum(op: str, dims: Iterable[Any], pick: Callable[..., int]) -> Dim:
    args = [to_dim(d) for d in dims]
    if not args:
        raise ValueError(f"{op} of nothing")
    if all(isinstance(a, int) for a in args):
        return pick(args)
    key = (op, *args)
    known = _cache.get(key)
    return _remember(key, _extremum_uncached(op, args, pick)) if known is None else known


def _extremum_uncached(op: str, args: list[Dim], pick: Callable[..., int]) -> Dim:
    # Arguments that differ by a constant are one: keep the better constant.
    best: dict[Dim, int] = {}
    for arg in _flattened(op, args):
        c = arg if isinstance(arg, int) else arg.constant
        body = arg - c
        best[body] = pick(best[body], c) if body in best else c
    entries = _undominated(op, [body + c for body, c in best.items()])
    if len(entries) == 1:
        return entries[0]
    shift = min(e.constant for e in entries if isinstance(e, Expr))
    entries = [e - shift for e in entries]
    g = reduce(gcd, (abs(e) if isinstance(e, int) else content(e) for e in entries), 0)
    entries = [exact_div(e, g) for e in entries]
    entries.sort(key=lambda e: (isinstance(e, int), str(e) if isinstance(e, int) else e.key))
    ranges = [range_of(e) for e in entries]
    lows = [lo for lo, _ in ranges if lo is not None]
    highs = [hi for _, hi in ranges if hi is not None]
    if op == MAX:
        bounds: Range = (max(lows) if lows else None, max(highs) if len(highs) == len(ranges) else None)
    else:
        bounds = (min(lows) if len(lows) == len(ranges) else None, min(highs) if highs else None)
    return g * atom_expr(intern_function(op, tuple(entries), bounds)) + shift


def _flattened(op: str, args: Sequence[Dim]) -> list[Dim]:
    """Arguments with nested applications of ``op`` (times a positive number, plus a number) spread out."""
    out: list[Dim] = []
    for arg in args:
        if isinstance(arg, Expr):
            body = arg - arg.constant
            if isinstance(body, Expr) and len(body.terms) == 1:
                ((mono, c),) = body.terms.items()
                if len(mono) == 1 and mono[0].op == op and c > 0:
                    out.extend(_flattened(op, [c * a + arg.constant for a in mono[0].args]))
                    continue
        out.append(arg)
    return out


def _undominated(op: str, entries: list[Dim]) -> list[Dim]:
    """``entries`` without those that never win, judged by bounds that hold for all integers."""
    ranges = [range_of(e) for e in entries]
    if op == MIN:
        ranges = [scale_range(r, -1) for r in ranges]
    alive = list(range(len(entries)))
    for i, (_, hi) in enumerate(ranges):
        if hi is None:
            continue
        for j in alive:
            lo = ranges[j][0]
            if j != i and lo is not None and lo >= hi:
                alive.remove(i)
                break
    return [entries[i] for i in alive]


def broadcast_dim(*dims: Any) -> Dim:
    """The size of a broadcast axis: the largest size that is not 1, or 1 if all are 1."""
    flat: list[Dim] = []
    for dim in map(to_dim, dims):
        atom = dim.as_atom if isinstance(dim, Expr) else None
        flat.extend(atom.args if atom is not None and atom.op == BROADCAST else (dim,))
    constants = [d for d in flat if isinstance(d, int)]
    exprs = dict.fromkeys(d for d in flat if isinstance(d, Expr))
    entries: list[Dim] = [*sorted(exprs, key=lambda e: e.key)]
    if constants and apply_ints(BROADCAST, constants) != 1:
        entries.append(apply_ints(BROADCAST, constants))
    if not entries:
        return 1
    if len(entries) == 1:
        return entries[0]
    return atom_expr(intern_function(BROADCAST, tuple(entries), (None, None)))


def is_symbol(atom: Atom) -> bool:
    """Whether ``atom`` is a symbol and not a function application."""
    return atom.op == SYMBOL
