"""Index arithmetic: gathers by ranges become slices, and comparisons of positions that are decided at compile time vanish.

``affine(value)`` finds ``value[i0, i1, ...] = offset + sum(step_k * i_k)`` in the nodes that make an int32 or int64
value. Positions are taken as integers that do not wrap: a tensor whose positions leave int32 has no int32 index
that could name them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from graph_kernel.ir import Node, Value
from graph_kernel.ops.base import is_int
from graph_kernel.passes.base import Rewriter, RulePass
from graph_kernel.passes.match import exact_cast, made_by, same_dim
from graph_kernel.passes.view_folding import take_slice
from symbolic import ge

if TYPE_CHECKING:
    from symbolic import Dim, Scope

_DEPTH = 32
_LIMIT = 1 << 16


@dataclass(frozen=True)
class Affine:
    """``offset + sum(steps[k] * i_k)``; the step of an axis of size 1 is 0."""

    offset: Dim
    steps: tuple[Dim, ...]

    @property
    def moving(self) -> list[int]:
        """Axes along which the value changes."""
        return [i for i, step in enumerate(self.steps) if step != 0]


def affine(scope: Scope, value: Value, depth: int = _DEPTH) -> Affine | None:
    """The affine form of an integer value, or None."""
    node = value.producer
    if node is None or value.dtype.kind != "i" or value.dtype.itemsize < 4 or depth == 0:
        return None
    found = _form(scope, node, depth - 1)
    if found is None:
        return None
    return Affine(found.offset, tuple(0 if n == 1 else s for s, n in zip(found.steps, value.shape, strict=True)))


def _form(scope: Scope, node: Node, depth: int) -> Affine | None:
    op = node.op
    if op == "constant":
        return _of_array(np.asarray(node.attrs["value"]))
    if op == "dim":
        return Affine(node.attrs["expr"], ())
    if op == "iota":
        return Affine(0, tuple(int(i == node.attrs["axis"]) for i in range(node.output.rank)))
    forms = [affine(scope, v, depth) for v in node.inputs]
    inner = forms[0] if forms else None
    if inner is None or None in forms:
        return None
    if op == "broadcast":
        return _of_broadcast(scope, node, inner)
    if op == "transpose":
        return Affine(inner.offset, tuple(inner.steps[p] for p in node.attrs["perm"]))
    if op == "reshape":
        return _of_reshape(scope, node, inner)
    if op == "slice":
        offset = inner.offset
        for step, start in zip(inner.steps, node.attrs["starts"], strict=True):
            offset = offset + step * start
        return Affine(offset, tuple(s * t for s, t in zip(inner.steps, node.attrs["strides"], strict=True)))
    if op == "cast":
        return inner if exact_cast(node.inputs[0].dtype, node.output.dtype) else None
    if op == "neg" and node.output.dtype.kind == "i":
        return Affine(-inner.offset, tuple(-s for s in inner.steps))
    other = forms[-1]
    assert other is not None
    if op in ("add", "sub"):
        sign = 1 if op == "add" else -1
        return Affine(
            inner.offset + sign * other.offset,
            tuple(a + sign * b for a, b in zip(inner.steps, other.steps, strict=True)),
        )
    if op == "mul" and not (inner.moving and other.moving):
        moving, still = (inner, other) if inner.moving else (other, inner)
        return Affine(moving.offset * still.offset, tuple(still.offset * s for s in moving.steps))
    return None


def _of_array(array: np.ndarray) -> Affine | None:
    if not 0 < array.size <= _LIMIT:
        return None
    base = int(array[(0,) * array.ndim])
    expected = np.full(array.shape, base, dtype=object if array.dtype == np.uint64 else np.int64)
    steps = []
    for axis, n in enumerate(array.shape):
        step = int(array[tuple(int(i == axis) for i in range(array.ndim))]) - base if n > 1 else 0
        expected = expected + (np.arange(n) * step).reshape([-1 if i == axis else 1 for i in range(array.ndim)])
        steps.append(step)
    return Affine(base, tuple(steps)) if np.array_equal(expected, array) else None


def _of_broadcast(scope: Scope, node: Node, inner: Affine) -> Affine | None:
    steps: list[Dim] = [0] * node.output.rank
    for i, axis in enumerate(node.attrs["dims"]):
        if inner.steps[i] != 0 and not same_dim(scope, node.inputs[0].shape[i], node.output.shape[axis]):
            return None
        steps[axis] = inner.steps[i]
    return Affine(inner.offset, tuple(steps))


def _of_reshape(scope: Scope, node: Node, inner: Affine) -> Affine | None:
    """Only reshapes that add or drop axes of size 1."""
    left = [(n, step) for n, step in zip(node.inputs[0].shape, inner.steps, strict=True) if n != 1]
    steps: list[Dim] = []
    for n in node.output.shape:
        if n == 1:
            steps.append(0)
        elif left and same_dim(scope, left[0][0], n):
            steps.append(left.pop(0)[1])
        else:
            return None
    return None if left else Affine(inner.offset, tuple(steps))


def lowest(scope: Scope, form: Affine, shape: tuple[Dim, ...]) -> Dim | None:
    """The least value the form takes on a box of this shape, if the sign of every step is known."""
    total = form.offset
    for step, n in zip(form.steps, shape, strict=True):
        if _holds(scope, step, 0):
            continue
        if not _holds(scope, 0, step):
            return None
        total = total + step * (n - 1)
    return total


def _holds(scope: Scope, a: Dim, b: Dim) -> bool:
    """a >= b, proved."""
    return a >= b if isinstance(a, int) and isinstance(b, int) else scope.proves(ge(a, b))


def decided_comparison(rw: Rewriter, node: Node) -> Value | None:
    """A comparison of positions that has one answer everywhere, such as ``iota >= 0``."""
    x, y = node.inputs
    if not is_int(x.dtype) or x.dtype.kind == "u":
        return None
    a, b = affine(rw.scope, x), affine(rw.scope, y)
    if a is None or b is None:
        return None
    diff = Affine(a.offset - b.offset, tuple(s - t for s, t in zip(a.steps, b.steps, strict=True)))
    back = Affine(-diff.offset, tuple(-s for s in diff.steps))
    shape = node.output.shape
    least, most_negated = lowest(rw.scope, diff, shape), lowest(rw.scope, back, shape)
    answer = _answer(rw.scope, node.op, least, most_negated)
    if answer is None:
        return None
    scalar = rw.constant(np.asarray(answer))
    return rw.add("broadcast", scalar, shape=shape, dims=()) if shape else scalar


def _answer(scope: Scope, op: str, least: Dim | None, most_negated: Dim | None) -> bool | None:
    """What x op y is everywhere, from the least of x - y and the least of y - x."""
    at_least = least is not None and _holds(scope, least, 0)
    above = least is not None and _holds(scope, least, 1)
    at_most = most_negated is not None and _holds(scope, most_negated, 0)
    below = most_negated is not None and _holds(scope, most_negated, 1)
    yes = {"ge": at_least, "gt": above, "le": at_most, "lt": below, "eq": at_least and at_most, "ne": above or below}[
        op
    ]
    no = {"ge": below, "gt": at_most, "le": above, "lt": at_least, "eq": above or below, "ne": at_least and at_most}[op]
    return True if yes else False if no else None


def decided_extreme(rw: Rewriter, node: Node) -> Value | None:
    """max or min of positions one of which is never the other side of the other."""
    x, y = node.inputs
    if not is_int(x.dtype) or x.dtype.kind == "u":
        return None
    a, b = affine(rw.scope, x), affine(rw.scope, y)
    if a is None or b is None:
        return None
    diff = Affine(a.offset - b.offset, tuple(s - t for s, t in zip(a.steps, b.steps, strict=True)))
    least = lowest(rw.scope, diff, node.output.shape)
    if least is not None and _holds(rw.scope, least, 0):
        return x if node.op == "max" else y
    back = Affine(-diff.offset, tuple(-s for s in diff.steps))
    least = lowest(rw.scope, back, node.output.shape)
    if least is not None and _holds(rw.scope, least, 0):
        return y if node.op == "max" else x
    return None


def take_of_range(rw: Rewriter, node: Node) -> Value | None:
    """take by ``start + stride * i`` along one axis of the index (or by one number) -> slice, proved to be inside."""
    x, index = node.inputs
    axis = node.attrs["axis"]
    form = affine(rw.scope, index)
    if form is None or len(form.moving) > 1:
        return None
    stride: Dim = form.steps[form.moving[0]] if form.moving else 1
    count: Dim = index.shape[form.moving[0]] if form.moving else 1
    if not isinstance(stride, int) or stride < 1 or isinstance(count, int) and count == 0:
        return None
    start = form.offset
    if not isinstance(count, int) and stride != 1:
        return None
    limit = start + count if stride == 1 else start + (count - 1) * stride + 1
    if not _holds(rw.scope, start, 0) or not _holds(rw.scope, x.shape[axis], limit):
        return None
    part = take_slice(rw, x, axis, start, limit, stride)
    place = [*range(axis), *(axis + a for a in form.moving), *range(axis + index.rank, node.output.rank)]
    if not form.moving:
        part = rw.add("reshape", part, shape=x.shape[:axis] + x.shape[axis + 1 :])
    if len(place) == node.output.rank:
        return part
    return rw.add("broadcast", part, shape=node.output.shape, dims=tuple(place))


def take_of_flat_grid(rw: Rewriter, node: Node) -> Value | None:
    """take from a flattened grid by all its row-major positions -> the grid (a GatherND by aranges)."""
    x, index = node.inputs
    form = affine(rw.scope, index)
    if form is None or len(form.moving) < 2 or form.offset != 0:
        return None
    axis = node.attrs["axis"]
    expected: Dim = 1
    for k in reversed(form.moving):
        if not same_dim(rw.scope, form.steps[k], expected):
            return None
        expected = expected * index.shape[k]
    if not same_dim(rw.scope, expected, x.shape[axis]):
        return None
    grid = tuple(index.shape[k] for k in form.moving)
    part = rw.add("reshape", x, shape=x.shape[:axis] + grid + x.shape[axis + 1 :])
    place = [*range(axis), *(axis + a for a in form.moving), *range(axis + index.rank, node.output.rank)]
    if len(place) == node.output.rank:
        return part
    return rw.add("broadcast", part, shape=node.output.shape, dims=tuple(place))


def take_of_splat_or_iota(rw: Rewriter, node: Node) -> Value | None:
    """take from a 1-D iota by indices proved inside -> the indices."""
    x, index = node.inputs
    source = made_by(x, "iota")
    if source is None or x.rank != 1:
        return None
    form = affine(rw.scope, index)
    if form is None:
        return None
    least = lowest(rw.scope, form, index.shape)
    back = Affine(x.shape[0] - 1 - form.offset, tuple(-s for s in form.steps))
    most = lowest(rw.scope, back, index.shape)
    if least is None or most is None or not _holds(rw.scope, least, 0) or not _holds(rw.scope, most, 0):
        return None
    return index if index.dtype == x.dtype else rw.add("cast", index, dtype=x.dtype)


@dataclass(frozen=True)
class IndexFolding(RulePass):
    """Decides comparisons, extremes and gathers of positions."""

    name: ClassVar[str] = "index_folding"
    rules: ClassVar = {
        **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), (decided_comparison,)),
        "max": (decided_extreme,),
        "min": (decided_extreme,),
        "take": (take_of_range, take_of_flat_grid, take_of_splat_or_iota),
    }
