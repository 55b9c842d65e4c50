"""Ops that move or reshape data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import symbolic
from graph_kernel.from_onnx.builder import Builder
from graph_kernel.from_onnx.dims import at_least, smaller, without_common
from graph_kernel.from_onnx.dims import slice_bounds as bounds_of
from graph_kernel.from_onnx.registry import Call, Result, converter
from graph_kernel.ir import Value
from symbolic import Dim
from vm.errors import CompileError


@converter("Transpose")
def _transpose(c: Call) -> Result:
    x = c.x()
    return c.builder.transpose(x, c.attr("perm") or list(reversed(range(x.rank))))


def resolve_shape(b: Builder, shape: Sequence[Dim], wanted: Sequence[Dim], allowzero: bool, where: str) -> list[Dim]:
    """The target of a Reshape with its 0 (copy, unless ``allowzero``) and -1 (whatever is left) made real.

    That the elements divide is required; a symbolic entry that may be 0 means itself.
    """
    target: list[Dim] = []
    unknown = -1
    for i, dim in enumerate(wanted):
        if isinstance(dim, int) and dim == 0 and not allowzero:
            if i >= len(shape):
                raise CompileError(f"{where}: entry {i} of the shape copies an axis that the input does not have")
            dim = shape[i]
        if isinstance(dim, int) and dim == -1:
            if unknown >= 0:
                raise CompileError(f"{where}: the shape {list(wanted)} has more than one -1")
            unknown = i
        target.append(dim)
    if unknown < 0:
        return target
    top, bottom = without_common(b.scope, list(shape), target[:unknown] + target[unknown + 1 :])
    message = f"the {symbolic.product(shape)} elements of {_text(shape)} have to fill {_text(wanted)}"
    target[unknown] = symbolic.exact_quotient(b.scope, top, bottom, str(b.origin), message)
    return target


def _text(shape: Sequence[Dim]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


@converter("Reshape")
def _reshape(c: Call) -> Result:
    x = c.x(0)
    target = resolve_shape(c.builder, x.shape, c.dims(1), bool(c.attr("allowzero", 0)), c.where())
    return c.builder.reshape(x, target)


@converter("Flatten")
def _flatten(c: Call) -> Result:
    x = c.x()
    axis = c.attr("axis", 1)
    if not -x.rank <= axis <= x.rank:
        raise CompileError(f"{c.where()}: axis {axis} is out of range for rank {x.rank}")
    axis = axis + x.rank if axis < 0 else axis
    return c.builder.reshape(x, (symbolic.product(x.shape[:axis]), symbolic.product(x.shape[axis:])))


@converter("Squeeze")
def _squeeze(c: Call) -> Result:
    b, x = c.builder, c.x(0)
    axes = c.axes(1, x.rank)
    if axes is None:
        axes = [i for i, d in enumerate(x.shape) if b.same_dim(d, 1)]
        unsure = [str(d) for i, d in enumerate(x.shape) if i not in axes and not b.scope.proves(symbolic.ne(d, 1))]
        if unsure:
            raise c.unsupported(f"without axes the rank depends on whether {', '.join(unsure)} is 1")
    for axis in axes:
        b.require_equal(x.shape[axis], 1, f"axis {axis} is squeezed, its size has to be 1")
    return b.reshape(x, [d for i, d in enumerate(x.shape) if i not in axes])


@converter("Unsqueeze")
def _unsqueeze(c: Call) -> Result:
    x = c.x(0)
    count = len(c.ints(1) if c.has(1) else c.attr("axes", []))
    return c.builder.unsqueeze(x, *(c.axes(1, x.rank + count) or []))


@converter("Expand")
def _expand(c: Call) -> Result:
    b, x = c.builder, c.x(0)
    return b.broadcast_to(x, b.broadcast_shape(x.shape, tuple(c.dims(1))))


@converter("Tile")
def _tile(c: Call) -> Result:
    x = c.x(0)
    return repeat(c.builder, x, [(r, 1) for r in c.dims(1)])


def repeat(b: Builder, x: Value, times: Sequence[tuple[Dim, Dim]]) -> Value:
    """Axis i repeated as a whole ``times[i][0]`` times, and each of its elements ``times[i][1]`` times."""
    wide: list[Dim] = []
    source: list[Dim] = []
    final: list[Dim] = []
    for size, (outer, inner) in zip(x.shape, times, strict=True):
        for place, count in (((0,), outer), ((2,), inner)):
            if not (isinstance(count, int) and count == 1):
                wide.append(count)
                source.append(1)
            if place == (0,):
                wide.append(size)
                source.append(size)
        final.append(size * outer * inner)
    return b.reshape(b.broadcast_to(b.reshape(x, source), wide), final)


@converter("Concat")
def _concat(c: Call) -> Result:
    xs = c.xs()
    return c.builder.concat(xs, c.axis(c.attr("axis"), xs[0].rank))


@converter("Slice")
def _slice(c: Call) -> Result:
    b, x = c.builder, c.x(0)
    starts, ends = c.dims(1), c.dims(2)
    axes = c.axes(3, x.rank)
    steps = c.ints(4) if c.has(4) else [1] * len(starts)
    for axis, start, end, step in zip(axes or range(len(starts)), starts, ends, steps, strict=True):
        x = slice_axis(b, x, axis, start, end, step)
    return x


def slice_axis(b: Builder, x: Value, axis: int, start: Dim, end: Dim, step: int) -> Value:
    """``x[start:end:step]`` along an axis with the conventions of ONNX and NumPy."""
    if step == 0:
        raise CompileError("a slice step may not be 0")
    low, high = bounds_of(b.scope, x.shape[axis], start, end, step)
    if step > 0:
        return b.slice_axis(x, axis, low, high, step)
    part = b.rev(b.slice_axis(x, axis, low, high), axis)
    return part if step == -1 else b.slice_axis(part, axis, 0, part.shape[axis], -step)


@converter("Split")
def _split(c: Call) -> Result:
    b, x = c.builder, c.x(0)
    axis = c.axis(c.attr("axis", 0), x.rank)
    size = x.shape[axis]
    if c.has(1):
        parts = c.dims(1)
        b.require_equal(symbolic.ssum(parts), size, "the parts of a split have to add up to the axis")
    elif c.attr("num_outputs"):
        count = c.attr("num_outputs")
        if count != len(c.node.output):
            raise CompileError(f"{c.where()}: {count} parts for {len(c.node.output)} outputs")
        chunk = symbolic.ceildiv(size, count)
        parts = [chunk] * (count - 1) + [size - chunk * (count - 1)]
        b.require(symbolic.ge(parts[-1], 0), f"{size} has to be enough for {count} parts of {chunk}")
    else:
        count = len(c.node.output)
        b.require(symbolic.divides(count, size), f"{size} is split into {count} equal parts")
        parts = [size // count] * count
    outs: list[Value] = []
    at: Dim = 0
    for part in parts:
        outs.append(b.slice_axis(x, axis, at, at + part))
        at = at + part
    return outs


@converter("Pad")
def _pad(c: Call) -> Result:
    b, x = c.builder, c.x(0)
    pads = c.dims(1)
    axes = c.axes(3, x.rank) or list(range(x.rank))
    low: list[Dim] = [0] * x.rank
    high: list[Dim] = [0] * x.rank
    for i, axis in enumerate(axes):
        low[axis], high[axis] = pads[i], pads[i + len(axes)]
    mode = c.attr("mode", "constant")
    if mode == "constant":
        return b.pad(x, low, high, b.reshape(c.x(2), ()) if c.has(2) else 0)
    for axis in range(x.rank):
        if not all(isinstance(p, int) and p == 0 for p in (low[axis], high[axis])):
            x = _pad_by_index(b, x, axis, low[axis], high[axis], mode)
    return x


def _pad_by_index(b: Builder, x: Value, axis: int, low: Dim, high: Dim, mode: str) -> Value:
    """edge, reflect and wrap: a ``take`` with the indices that each mode reads."""
    size = x.shape[axis]
    n = b.dim(size)
    i = b.sub(b.iota((low + size + high,), 0), b.dim(low))
    if mode == "edge":
        return b.take(x, b.minimum(b.maximum(i, 0), b.dim(size - 1)), axis)
    if mode == "wrap":
        return b.take(x, _floor_mod(b, i, n), axis)
    if mode != "reflect":
        raise CompileError(f"padding mode {mode!r} is unknown")
    period = b.dim(symbolic.smax(1, 2 * (size - 1)))
    i = _floor_mod(b, i, period)
    return b.take(x, b.minimum(i, b.sub(period, i)), axis)


def _floor_mod(b: Builder, x: Value, n: Value) -> Value:
    rest = b.binary("rem", x, n)
    return b.select(b.binary("lt", rest, 0), b.add(rest, n), rest)


@converter("DepthToSpace")
def _depth_to_space(c: Call) -> Result:
    b, x = c.builder, c.x()
    n, channels, h, w = x.shape
    block = c.attr("blocksize")
    b.require(symbolic.divides(block * block, channels), f"{channels} channels hold blocks of {block}x{block}")
    depth = channels // (block * block)
    if c.attr("mode", "DCR") == "DCR":
        parts = b.transpose(b.reshape(x, (n, block, block, depth, h, w)), (0, 3, 4, 1, 5, 2))
    else:
        parts = b.transpose(b.reshape(x, (n, depth, block, block, h, w)), (0, 1, 4, 2, 5, 3))
    return b.reshape(parts, (n, depth, h * block, w * block))


@converter("SpaceToDepth")
def _space_to_depth(c: Call) -> Result:
    b, x = c.builder, c.x()
    n, channels, h, w = x.shape
    block = c.attr("blocksize")
    for size in (h, w):
        b.require(symbolic.divides(block, size), f"{size} holds blocks of {block}")
    parts = b.reshape(x, (n, channels, h // block, block, w // block, block))
    order = (0, 3, 5, 1, 2, 4) if c.attr("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    return b.reshape(b.transpose(parts, order), (n, channels * block * block, h // block, w // block))


@converter("CenterCropPad")
def _center_crop_pad(c: Call) -> Result:
    b, x = c.builder, c.x(0)
    axes = [c.axis(a, x.rank) for a in c.attr("axes", list(range(x.rank)))]
    for axis, target in zip(axes, c.dims(1), strict=True):
        size = x.shape[axis]
        kept = smaller(b.scope, size, target)
        start = (size - kept) // 2
        x = b.slice_axis(x, axis, start, start + kept)
        low, high = [0] * x.rank, [0] * x.rank
        low[axis] = (target - kept) // 2  # type: ignore[assignment]
        high[axis] = target - kept - low[axis]  # type: ignore[assignment]
        x = b.pad(x, low, high)
    return x


@converter("Compress")
def _compress(c: Call) -> Result:
    """The rows where the condition holds; unless it is a constant, their number is a new symbol that the launch finds out."""
    b, x = c.builder, c.x(0)
    condition = c.tensor(1)
    if c.attr("axis", None) is None:
        x, axis = b.reshape(x, (symbolic.product(x.shape),)), 0
    else:
        axis = c.axis(c.attr("axis"), x.rank)
    size = x.shape[axis]
    if condition.array is None:
        b.require(
            symbolic.le(condition.shape[0], size), f"the condition may not be longer than the axis of size {size}"
        )
        rows = b.nonzero(c.x(1))
        return b.take(x, b.reshape(rows, rows.shape[1:]), axis)
    chosen = np.flatnonzero(condition.array)
    if chosen.size and not at_least(b.scope, size, int(chosen[-1]) + 1):
        b.require(symbolic.gt(size, int(chosen[-1])), "the condition may not be longer than the axis")
    return b.take(x, b.constant(chosen, np.int64), axis)
