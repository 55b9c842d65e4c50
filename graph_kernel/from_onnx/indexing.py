"""Gather and its relatives, OneHot, Trilu, TopK, scatters."""

from __future__ import annotations

import numpy as np

import symbolic
from graph_kernel.from_onnx.affine import Affine, affine
from graph_kernel.from_onnx.builder import Builder
from graph_kernel.from_onnx.dims import at_least
from graph_kernel.from_onnx.registry import Call, Result, converter, np_dtype
from graph_kernel.ir import Value
from symbolic import Dim


def non_negative(b: Builder, idx: Value, size: Dim) -> Value:
    """Indices that count from the end made to count from the start; nothing is emitted where none can."""
    if idx.dtype.kind == "u" or _never_negative(b, idx):
        return idx
    return b.select(b.binary("lt", idx, 0), b.add(idx, b.dim(size, idx.dtype)), idx)


def _never_negative(b: Builder, idx: Value) -> bool:
    if idx.producer is not None and idx.producer.op == "constant":
        return bool((idx.producer.attrs["value"] >= 0).all())
    form = affine(idx)
    return form is not None and all(at_least(b.scope, v, 0) for v in (form.offset, *form.steps))


def _as_range(b: Builder, form: Affine | None, idx_shape: tuple[Dim, ...], size: Dim) -> tuple[Dim, Dim, int] | None:
    """(start, limit, stride) if the index runs over a slice along one axis, or stands still; else None.

    That the slice is inside ``size`` is required: ONNX leaves indices out of range undefined.
    """
    if form is None or len(form.moving) > 1:
        return None
    start, stride = form.offset, 1
    count: Dim = 1
    if form.moving:
        step = form.steps[form.moving[0]]
        if not isinstance(step, int) or step < 1:
            return None
        stride, count = step, idx_shape[form.moving[0]]
    if isinstance(start, int) and start < 0 and not form.moving:
        start = start + size
        b.require(symbolic.ge(start, 0), f"index {form.offset} has to be inside an axis of size {size}")
    elif not at_least(b.scope, start, 0):
        return None
    # a run of no elements may start anywhere, so its limit is not beyond its start
    limit = start + count if stride == 1 else start + symbolic.smax(0, (count - 1) * stride + 1)
    b.require(symbolic.le(limit, size), f"indices {start} to {limit - 1} have to be inside an axis of size {size}")
    return start, limit, stride


def gather(b: Builder, x: Value, idx: Value, axis: int) -> Value:
    """ONNX Gather: x.shape[:axis] + idx.shape + x.shape[axis + 1:]; a slice where the index is affine."""
    form = affine(idx)
    part = _gather_rows(b, x, idx.shape, axis, form) if form else None
    if part is None or form is None:
        return b.take(x, non_negative(b, idx, x.shape[axis]), axis)
    shape = x.shape[:axis] + idx.shape + x.shape[axis + 1 :]
    place = list(range(axis)) + [axis + a for a in form.moving] + list(range(axis + idx.rank, len(shape)))
    if part.rank == len(shape):
        return part
    if all(isinstance(d, int) and d == 1 for i, d in enumerate(shape) if i not in place):
        return b.reshape(part, shape)
    return b.op("broadcast", part, shape=shape, dims=tuple(place))


def _gather_rows(b: Builder, x: Value, idx_shape: tuple[Dim, ...], axis: int, form: Affine) -> Value | None:
    """The part of x that an affine index reads, its axis replaced by the axes along which the index moves."""
    if len(form.moving) == 2:
        return _gather_grid(b, x, idx_shape, axis, form)
    run = _as_range(b, form, idx_shape, x.shape[axis])
    if run is None:
        return None
    part = b.slice_axis(x, axis, *run)
    return part if form.moving else b.reshape(part, x.shape[:axis] + x.shape[axis + 1 :])


def _gather_grid(b: Builder, x: Value, idx_shape: tuple[Dim, ...], axis: int, form: Affine) -> Value | None:
    """Index ``i * width + j`` into rows that were flattened: the rows again, cut to the length of j.

    This is how ``mask[arange(n)[:, None], arange(m)]`` is written without GatherND.
    """
    outer, inner = form.moving
    count, width, length = idx_shape[outer], form.steps[outer], idx_shape[inner]
    if form.offset != 0 or form.steps[inner] != 1 or not b.same_dim(x.shape[axis], count * width):
        return None
    rows = b.reshape(x, (*x.shape[:axis], count, width, *x.shape[axis + 1 :]))
    # the last row's indices are inside only if no row is longer than the width
    b.require(symbolic.le(length, width), f"indices up to {length - 1} have to be inside rows of {width}")
    return b.slice_axis(rows, axis + 1, 0, length)


@converter("Gather")
def _gather(c: Call) -> Result:
    x = c.x(0)
    return gather(c.builder, x, c.x(1), c.axis(c.attr("axis", 0), x.rank))


@converter("GatherElements")
def _gather_elements(c: Call) -> Result:
    b, x, idx = c.builder, c.x(0), c.x(1)
    axis = c.axis(c.attr("axis", 0), x.rank)
    for i in range(x.rank):
        if i != axis and not b.same_dim(x.shape[i], idx.shape[i]):
            b.require(symbolic.le(idx.shape[i], x.shape[i]), "indices may not be larger than the data")
            x = b.slice_axis(x, i, 0, idx.shape[i])
    return b.op("take_along", x, non_negative(b, idx, x.shape[axis]), axis=axis)


@converter("GatherND")
def _gather_nd(c: Call) -> Result:
    b, x, idx = c.builder, c.x(0), c.x(1)
    batch = c.attr("batch_dims", 0)
    depth = idx.shape[-1]
    if not isinstance(depth, int):
        raise c.unsupported(f"the last size of the indices has to be a number, it is {depth}")
    for i in range(batch):
        b.require_equal(x.shape[i], idx.shape[i])
    parts = [_component(b, idx, k) for k in range(depth)]
    sliced = None if batch else _gather_runs(b, x, parts)
    return _gather_flat(b, x, parts, batch) if sliced is None else sliced


def _component(b: Builder, idx: Value, k: int) -> Value:
    """``idx[..., k]``; looks through the concat that exporters build it with."""
    node = idx.producer
    joined = node is not None and node.op == "concat" and node.attrs["axis"] == idx.rank - 1
    if node is not None and joined and all(_is_one(v.shape[-1]) for v in node.inputs):
        return b.reshape(node.inputs[k], idx.shape[:-1])
    return b.reshape(b.slice_axis(idx, idx.rank - 1, k, k + 1), idx.shape[:-1])


def _is_one(dim: Dim) -> bool:
    return isinstance(dim, int) and dim == 1


def _gather_runs(b: Builder, x: Value, parts: list[Value]) -> Value | None:
    """Every component a run along an axis of its own: slices, then one broadcast."""
    if not parts:
        return None
    forms = [affine(p) for p in parts]
    moving = [f.moving[0] if f and f.moving else -1 for f in forms]
    used = [m for m in moving if m >= 0]
    if any(f is None or len(f.moving) > 1 for f in forms) or used != sorted(set(used)):
        return None
    if not all(_sliceable(b, f) for f in forms if f):
        return None
    out = x
    for axis, (part, form) in enumerate(zip(parts, forms, strict=True)):
        run = _as_range(b, form, part.shape, x.shape[axis])
        assert run is not None  # _sliceable says so
        out = b.slice_axis(out, axis, *run)
    still = [axis for axis, m in enumerate(moving) if m < 0]
    out = b.reshape(out, [d for axis, d in enumerate(out.shape) if axis not in still])
    lead = parts[0].rank
    shape = parts[0].shape + x.shape[len(parts) :]
    place = used + list(range(lead, len(shape)))
    return out if len(place) == len(shape) else b.op("broadcast", out, shape=shape, dims=tuple(place))


def _sliceable(b: Builder, form: Affine) -> bool:
    steps = [form.steps[m] for m in form.moving]
    return at_least(b.scope, form.offset, 0) and all(isinstance(s, int) and s > 0 for s in steps)


def _gather_flat(b: Builder, x: Value, parts: list[Value], batch: int) -> Value:
    """One ``take`` by the flat position of each indexed row."""
    depth = len(parts)
    indexed = x.shape[batch : batch + depth]
    lead = parts[0].shape if parts else x.shape[:batch]
    flat: Value | None = None
    for i in range(batch):
        flat = _horner(b, flat, x.shape[i], b.iota(lead, i))
    for size, part in zip(indexed, parts, strict=True):
        flat = _horner(b, flat, size, b.cast(non_negative(b, part, size), np.int64))
    rest = x.shape[batch + depth :]
    rows = b.reshape(x, (symbolic.product(x.shape[: batch + depth]), *rest))
    return b.take(rows, b.full(lead, 0, np.int64) if flat is None else flat, 0)


def _horner(b: Builder, flat: Value | None, size: Dim, part: Value) -> Value:
    return part if flat is None else b.add(b.mul(flat, b.dim(size)), part)


@converter("OneHot")
def _one_hot(c: Call) -> Result:
    b, idx = c.builder, c.x(0)
    depth = c.dims(1)[0] if c.number(1) is None else int(c.number(1))
    values = c.x(2)
    axis = c.axis(c.attr("axis", -1), idx.rank + 1)
    idx = b.cast(idx, np.int64)
    idx = non_negative(b, idx, depth)
    shape = (*idx.shape[:axis], depth, *idx.shape[axis:])
    hot = b.op("eq", b.iota(shape, axis), b.spread(idx, (axis,), shape))
    off, on = (b.reshape(b.slice_axis(values, 0, i, i + 1), ()) for i in (0, 1))
    return b.select(hot, on, off)


@converter("Trilu")
def _trilu(c: Call) -> Result:
    b, x = c.builder, c.x(0)
    k = b.reshape(c.x(1), ()) if c.has(1) else 0
    rows, columns = b.iota(x.shape, x.rank - 2), b.iota(x.shape, x.rank - 1)
    keep = b.binary("ge" if c.attr("upper", 1) else "le", columns, b.add(rows, k))
    return b.select(keep, x, 0)


@converter("EyeLike")
def _eye_like(c: Call) -> Result:
    b, like = c.builder, c.tensor(0)
    dtype = np_dtype(c.attr("dtype"), c.where()) if c.attr("dtype") else like.dtype
    rows, columns = b.iota(like.shape, 0), b.iota(like.shape, 1)
    return b.cast(b.binary("eq", columns, b.add(rows, c.attr("k", 0))), dtype)


@converter("ReverseSequence")
def _reverse_sequence(c: Call) -> Result:
    """The first ``lengths[i]`` elements of each sequence reversed."""
    b, x = c.builder, c.x(0)
    time, batch = c.attr("time_axis", 0), c.attr("batch_axis", 1)
    others = [i for i in range(x.rank) if i != batch]
    lengths = b.spread(b.cast(c.x(1), np.int64), others, x.shape)
    t = b.iota(x.shape, time)
    idx = b.select(b.op("lt", t, lengths), b.sub(b.sub(lengths, 1), t), t)
    return b.op("take_along", x, idx, axis=time)
