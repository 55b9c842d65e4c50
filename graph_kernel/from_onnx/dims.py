"""Arithmetic on dims that asks the scope first: bounds that are known drop min and max, conditions become 0 or 1."""

from __future__ import annotations

import symbolic
from symbolic import Dim, Scope

TO_THE_END = 10**9  # exporters write "to the end" as any number from here on (tf2onnx: 1000000000)


def at_least(scope: Scope, a: Dim, b: Dim) -> bool:
    """Whether a >= b is proved."""
    if isinstance(a, int) and isinstance(b, int):
        return a >= b
    return scope.proves(symbolic.ge(a, b))


def smaller(scope: Scope, a: Dim, b: Dim) -> Dim:
    """min(a, b)."""
    if at_least(scope, b, a):
        return a
    return b if at_least(scope, a, b) else symbolic.smin(a, b)


def larger(scope: Scope, a: Dim, b: Dim) -> Dim:
    """max(a, b)."""
    if at_least(scope, a, b):
        return a
    return b if at_least(scope, b, a) else symbolic.smax(a, b)


def is_less(scope: Scope, a: Dim, b: Dim) -> Dim:
    """1 where a < b, else 0: a number if it is proved, else an expression of the dims."""
    if at_least(scope, b, a + 1):
        return 1
    if at_least(scope, a, b):
        return 0
    return symbolic.smin(1, symbolic.smax(0, b - a))


def is_equal(scope: Scope, a: Dim, b: Dim) -> Dim:
    """1 where a == b, else 0: a number if it is proved, else an expression of the dims."""
    if a == b or scope.equal(a, b):
        return 1
    if isinstance(a, int) and isinstance(b, int) or scope.proves(symbolic.ne(a, b)):
        return 0
    return 1 - symbolic.smin(1, symbolic.smax(a - b, b - a))


def choose(condition: Dim, x: Dim, y: Dim) -> Dim:
    """x where condition is 1, y where it is 0."""
    if isinstance(condition, int):
        return x if condition else y
    return x if x == y else condition * x + (1 - condition) * y


def truncated_div(scope: Scope, a: Dim, b: Dim) -> Dim | None:
    """a / b rounded towards zero, as ONNX divides integers; None if the sign of b is unknown (dividing by 0 is undefined)."""
    if at_least(scope, -1, b):
        a, b = -a, -b
    if not at_least(scope, b, 0) or (isinstance(b, int) and b == 0):
        return None
    if at_least(scope, a, 0):
        return a // b
    return symbolic.smax(a, 0) // b - symbolic.smax(-a, 0) // b


def from_end(scope: Scope, position: Dim, size: Dim) -> Dim:
    """A position that counts from the end where it is negative, as a position from the start (not clamped)."""
    return position + is_less(scope, position, 0) * size


def slice_bounds(scope: Scope, size: Dim, start: Dim, end: Dim, step: int) -> tuple[Dim, Dim]:
    """The elements lo <= i < hi that ``[start:end:step]`` runs over, clamped as in ONNX and NumPy.

    With a negative step the run starts at ``hi - 1``.
    """
    if step > 0:
        lo, hi = (_bound(scope, v, size, 0, size) for v in (start, end))
    else:
        lo, hi = (_bound(scope, v, size, -1, size - 1) + 1 for v in (end, start))
    return lo, larger(scope, lo, hi)


def _bound(scope: Scope, position: Dim, size: Dim, low: Dim, high: Dim) -> Dim:
    if isinstance(position, int):
        if position >= TO_THE_END:
            return high
        if position <= -TO_THE_END:
            return low
    return larger(scope, low, smaller(scope, from_end(scope, position, size), high))


def without_common(scope: Scope, top: list[Dim], bottom: list[Dim]) -> tuple[Dim, Dim]:
    """product(top) and product(bottom) without the dims that are proved to occur in both.

    Cancelling a dim that may be 0 is right wherever a quotient exists at all.
    """
    top, left = list(top), []
    for dim in bottom:
        match = next((i for i, t in enumerate(top) if t == dim or scope.equal(t, dim)), None)
        if match is None:
            left.append(dim)
        else:
            del top[match]
    return symbolic.product(top), symbolic.product(left)


def require_min_fits(scope: Scope, a: Dim, b: Dim, origin: str) -> None:
    """Sizes a and min(a, c) broadcast only where a <= c (for c > 1): requires just that, instead of alternatives.

    A table that is sliced to the length of the input gives such a pair.
    """
    if isinstance(b, int) or b.as_atom is None or b.as_atom.op != "min" or a not in b.as_atom.args:
        return
    others = [c for c in b.as_atom.args if c != a]
    if all(at_least(scope, c, 2) for c in others):
        for c in others:
            scope.require(symbolic.le(a, c), origin, f"{a} has to be at most {c}")
