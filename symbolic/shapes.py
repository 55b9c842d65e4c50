"""Combinators that the shape rules of ops are made of. Each takes the scope where it may have to ask or require something.

Shapes are tuples of dims. ``origin`` is anything printable; it ends up in messages and launch checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symbolic.expr import Dim, Expr, is_static, product
from symbolic.functions import broadcast_dim, ceildiv, floordiv, poly_divmod, smax, smin
from symbolic.relations import divides, either, eq, ne
from symbolic.scope import Scope
from vm.errors import CompileError

Shape = tuple[Dim, ...]


def shape_text(shape: Sequence[Dim]) -> str:
    """``[b, s, 4096]``."""
    return "[" + ", ".join(map(str, shape)) + "]"


def numel(shape: Sequence[Dim]) -> Dim:
    """The number of elements."""
    return product(shape)


def same_shape(scope: Scope, a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    """Whether the shapes are proved equal."""
    return len(a) == len(b) and all(scope.equal(x, y) for x, y in zip(a, b, strict=True))


def require_same_shape(scope: Scope, a: Sequence[Dim], b: Sequence[Dim], origin: Any) -> None:
    """Requires equal shapes. Raises ``CompileError`` for different ranks or sizes that can never agree."""
    if len(a) != len(b):
        raise CompileError(f"{origin}: shapes {shape_text(a)} and {shape_text(b)} differ in rank")
    for axis, (x, y) in enumerate(zip(a, b, strict=True)):
        if not scope.equal(x, y):
            scope.require(
                eq(x, y),
                str(origin),
                f"shapes {shape_text(a)} and {shape_text(b)} must agree in axis {axis}: {x} == {y}",
            )


def broadcast(scope: Scope, shapes: Sequence[Sequence[Dim]], origin: Any) -> Shape:
    """The common shape of NumPy-style broadcasting (aligned at the last axis).

    Two dims of which neither is proved to be 1 or equal to the other give a launch check, ``a == b or a == 1 or b == 1``, and the
    result ``broadcast(a, b)``: the size that is not 1 (so 0 against 1 gives 0). Where one side cannot be 1, the result is that side.
    Raises ``CompileError`` where the sizes can never be broadcast.
    """
    rank = max((len(s) for s in shapes), default=0)
    out: list[Dim] = []
    for axis in range(rank):
        dims = [s[axis - rank + len(s)] for s in shapes if axis - rank + len(s) >= 0]
        result: Dim = 1
        for dim in dims:
            result = broadcast_pair(scope, result, dim, origin)
        out.append(result)
    return tuple(out)


def broadcast_pair(scope: Scope, a: Dim, b: Dim, origin: Any) -> Dim:
    """The size of one axis when sizes ``a`` and ``b`` are broadcast; see ``broadcast``."""
    if a == 1 or (a is not b and b != 1 and scope.equal(a, 1)):
        return b
    if b == 1 or scope.equal(b, 1):
        return a
    if scope.equal(a, b):
        return a
    message = f"sizes {a} and {b} cannot be broadcast"
    a_wide, b_wide = scope.proves(ne(a, 1)), scope.proves(ne(b, 1))
    if a_wide and b_wide:
        scope.require(eq(a, b), str(origin), message)
        return b if is_static(b) else a
    if a_wide or b_wide:
        wide, other = (a, b) if a_wide else (b, a)
        scope.require(either(eq(other, wide), eq(other, 1)), str(origin), message)
        return wide
    scope.require(either(eq(a, b), eq(a, 1), eq(b, 1)), str(origin), message)
    return scope.simplify(broadcast_dim(a, b))


def reshape_groups(
    scope: Scope, in_shape: Sequence[Dim], out_shape: Sequence[Dim]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]] | None:
    """The finest split of both axis lists into consecutive groups with proved-equal products, in order.

    An axis of size 1 may stand alone against no axis. None where not even the whole shapes are proved equal in size.
    """
    n, m = len(in_shape), len(out_shape)
    dead: set[tuple[int, int]] = set()

    def search(i: int, j: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]] | None:
        if i == n and j == m:
            return []
        if (i, j) in dead:
            return None
        for di, dj in _group_sizes(n - i, m - j):
            if scope.equal(product(in_shape[i : i + di]), product(out_shape[j : j + dj])):
                rest = search(i + di, j + dj)
                if rest is not None:
                    return [(tuple(range(i, i + di)), tuple(range(j, j + dj))), *rest]
        dead.add((i, j))
        return None

    return search(0, 0)


def _group_sizes(n: int, m: int) -> list[tuple[int, int]]:
    """Candidate sizes of the next group, the finest first: one to one, one against none, then by growing size."""
    first = [(1, 1)] if n and m else []
    first += [(1, 0)] if n else []
    first += [(0, 1)] if m else []
    pairs = [(i, j) for i in range(1, n + 1) for j in range(1, m + 1) if (i, j) != (1, 1)]
    return first + sorted(pairs, key=lambda p: (p[0] + p[1], p[0]))


def reshape(scope: Scope, in_shape: Sequence[Dim], target: Sequence[Dim], origin: Any) -> Shape:
    """The result of reshaping to ``target``, in which one plain -1 stands for what is left.

    Requires the element counts to agree (for -1: the known part divides the count). Raises ``CompileError``.
    """
    holes = [i for i, d in enumerate(target) if is_static(d) and d == -1]
    if len(holes) > 1:
        raise CompileError(f"{origin}: reshape to {shape_text(target)} has more than one -1")
    total = scope.simplify(numel(in_shape))
    if not holes:
        if reshape_groups(scope, in_shape, target) is None:
            message = f"a tensor of shape {shape_text(in_shape)} cannot be reshaped to {shape_text(target)}"
            scope.require(eq(total, scope.simplify(numel(target))), str(origin), message)
        return tuple(target)
    known = scope.simplify(product(d for i, d in enumerate(target) if i != holes[0]))
    message = f"a tensor of shape {shape_text(in_shape)} cannot be reshaped to {shape_text(target)}: {total} is no multiple of {known}"
    out = list(target)
    out[holes[0]] = exact_quotient(scope, total, known, origin, message)
    return tuple(out)


def exact_quotient(scope: Scope, total: Dim, divisor: Dim, origin: Any, message: str = "") -> Dim:
    """``total / divisor``, required to be exact. Common factors cancel even where they may be 0 (as JAX does for a -1)."""
    if is_static(divisor) and divisor == 0:
        if not is_static(total) or total != 0:
            scope.require(eq(total, 0), str(origin), message)
        return 0
    if isinstance(divisor, Expr):
        quotient, rest = poly_divmod(total, divisor)
        if is_static(rest) and rest == 0:
            return scope.simplify(quotient)
        total, divisor = cancel(total, divisor)
    scope.require(divides(divisor, total), str(origin), message)
    return scope.simplify(floordiv(total, divisor))


def cancel(a: Dim, b: Dim) -> tuple[Dim, Dim]:
    """Both dims without the atoms that are factors of every term of both."""
    while isinstance(a, Expr) and isinstance(b, Expr):
        monos = [*a.terms, *b.terms]
        common = next((atom for atom in monos[0] if all(atom in m for m in monos)), None)
        if common is None:
            break
        factor = Expr({(common,): 1})
        a, b = poly_divmod(a, factor)[0], poly_divmod(b, factor)[0]
    return a, b


def concat_dim(scope: Scope, dims: Sequence[Dim]) -> Dim:
    """The size of the concatenated axis."""
    total: Dim = 0
    for dim in dims:
        total = total + dim
    return scope.simplify(total)


def slice_dim(scope: Scope, n: Dim, start: Dim, limit: Dim, stride: int = 1) -> Dim:
    """How many elements ``x[start:limit:stride]`` has; start and limit are within ``[0, n]``, stride is at least 1."""
    del n  # the bounds are the caller's business (``clamp_slice``)
    return scope.simplify(smax(ceildiv(limit - start, stride), 0))


def clamp_slice(scope: Scope, n: Dim, start: Dim, limit: Dim, step: int) -> tuple[Dim, Dim, Dim]:
    """Start, limit and size of a Python-style slice (negative and out-of-range values allowed, step not 0).

    For a negative step the elements are ``start, start + step, ..`` down to above ``limit``.
    """
    lo, hi = (0, n) if step > 0 else (-1, n - 1)

    def clamp(value: Dim) -> Dim:
        wrapped = value + n if scope.proves(_negative(value)) else value
        return scope.simplify(smin(smax(wrapped, lo), hi))

    start, limit = clamp(start), clamp(limit)
    size = ceildiv(limit - start, step) if step > 0 else ceildiv(start - limit, -step)
    return start, limit, scope.simplify(smax(size, 0))


def _negative(value: Dim) -> Any:
    from symbolic.relations import lt

    return lt(value, 0)


def window_dim(
    scope: Scope,
    n: Dim,
    size: Dim,
    stride: int = 1,
    lo: Dim = 0,
    hi: Dim = 0,
    dilation: int = 1,
    ceil_mode: bool = False,
) -> Dim:
    """How many windows fit (convolution and pooling): never negative.

    Floor mode: ``(n + lo + hi - ((size - 1)*dilation + 1)) // stride + 1``. Ceil mode rounds up, but the last window must start
    inside the input or its low padding (the rule of ONNX and PyTorch).
    """
    room = n + lo + hi - ((size - 1) * dilation + 1)
    count = ceildiv(room, stride) + 1 if ceil_mode else floordiv(room, stride) + 1
    if ceil_mode:
        count = smin(count, ceildiv(n + lo, stride))
    return scope.simplify(smax(count, 0))


def pad_dim(scope: Scope, n: Dim, lo: Dim, hi: Dim, interior: int = 0) -> Dim:
    """The size after padding with ``lo``, ``hi`` (negative crops) and ``interior`` elements between neighbours."""
    inner = n if not interior else n + interior * smax(n - 1, 0)
    return scope.simplify(smax(lo + inner + hi, 0))
