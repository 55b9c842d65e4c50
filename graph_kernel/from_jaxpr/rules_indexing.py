"""Rules of indexing: gathers and scatters become slices, takes and updates wherever they are those."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graph_kernel.from_jaxpr.affine import as_slice
from graph_kernel.from_jaxpr.lowering import Lowering, Unsupported, rule
from graph_kernel.from_jaxpr.rules_movement import static_slice
from graph_kernel.ir import Value
from symbolic import Dim, ge, le, product, smax, smin


@rule("dynamic_slice")
def dynamic_slice(low: Lowering, eqn: Any, x: Value, *starts: Value) -> Value:
    """A window at starts that clamp; known starts make it a slice."""
    return window(low, x, starts, low.dim.shape(eqn.params["slice_sizes"]))


def window(low: Lowering, x: Value, starts: Sequence[Value], sizes: tuple[Dim, ...]) -> Value:
    """``x`` from ``starts``, clamped so that it fits."""
    known = [low.scalar_dim(s) for s in starts]
    begin: list[Dim] = []
    for n, size, start in zip(x.shape, sizes, known, strict=True):
        if low.scope.equal(n, size):
            begin.append(0)
        elif start is not None:
            begin.append(low.scope.simplify(smax(0, smin(start, n - size))))
        else:
            return low.add("dynamic_slice", x, *starts, sizes=sizes)
    limits = tuple(n if b == 0 and low.scope.equal(n, size) else low.scope.simplify(b + size)
                   for n, b, size in zip(x.shape, begin, sizes, strict=True))  # fmt: skip
    return static_slice(low, x, tuple(begin), limits, (1,) * x.rank)


@rule("dynamic_update_slice")
def dynamic_update_slice(low: Lowering, eqn: Any, x: Value, update: Value, *starts: Value) -> Value:
    """A window replaced."""
    return low.add("dynamic_update_slice", x, update, *starts)


# ---- index tensors


def column(low: Lowering, indices: Value, k: int) -> Value:
    """Entry ``k`` of every index vector (the last axis of ``indices``), looking through how they were put together."""
    producer = indices.producer
    last = indices.rank - 1
    if producer is not None and producer.op == "concat" and producer.attrs["axis"] == last:
        at = 0
        for part in producer.inputs:
            n = part.shape[last]
            if not isinstance(n, int):
                break
            if at <= k < at + n:
                return column(low, part, k - at)
            at += n
    if indices.shape[last] == 1 and producer is not None:
        shape = indices.shape[:last]
        (source,) = producer.inputs if len(producer.inputs) == 1 else (None,)
        adds_axis = producer.op == "reshape" or (
            producer.op == "broadcast" and producer.attrs["dims"] == tuple(range(last))
        )
        if source is not None and adds_axis and source.shape == shape:
            return source
    starts = tuple(k if a == last else 0 for a in range(indices.rank))
    limits = tuple(k + 1 if a == last else n for a, n in enumerate(indices.shape))
    part = static_slice(low, indices, starts, limits, (1,) * indices.rank)
    return low.reshape(part, indices.shape[:last])


def in_range(low: Lowering, index: Value, last: Dim) -> Value | None:
    """Where ``0 <= index <= last``, as a bool tensor; None if that is proved everywhere."""
    known = low.scalar_dim(index)
    if known is not None and low.scope.proves(ge(known, 0)) and low.scope.proves(le(known, last)):
        return None
    producer = index.producer
    if producer is not None and producer.op == "iota":
        size = index.shape[producer.attrs["axis"]]
        if low.scope.proves(le(size, last + 1)):
            return None
    shape = index.shape
    above = low.add("ge", index, low.full(0, shape, index.dtype))
    below = low.add("le", index, low.fit(low.dim_value(last, index.dtype), shape))
    return low.add("and", above, below)


def clamp_index(low: Lowering, index: Value, last: Dim) -> Value:
    """``index`` moved into [0, last]."""
    if in_range_proved(low, index, last):
        return index
    top = low.fit(low.dim_value(last, index.dtype), index.shape)
    return low.add("max", low.add("min", index, top), low.full(0, index.shape, index.dtype))


def in_range_proved(low: Lowering, index: Value, last: Dim) -> bool:
    """Whether ``0 <= index <= last`` is known while compiling."""
    known = low.scalar_dim(index)
    if known is not None:
        return low.scope.proves(ge(known, 0)) and low.scope.proves(le(known, last))
    producer = index.producer
    while producer is not None and producer.op == "broadcast":
        index = producer.inputs[0]
        producer = index.producer
    if producer is None or producer.op != "iota":
        return False
    return low.scope.proves(le(index.shape[producer.attrs["axis"]], last + 1))


def _all_of(low: Lowering, masks: Sequence[Value | None]) -> Value | None:
    result: Value | None = None
    for mask in masks:
        if mask is not None:
            result = mask if result is None else low.add("and", result, mask)
    return result


# ---- gather


def _mode(params: dict[str, Any]) -> str:
    """``fill`` or ``clip``; promised-in-bounds indices clamp, as they do in XLA."""
    name = getattr(params["mode"], "name", str(params["mode"]))
    if name not in ("FILL_OR_DROP", "CLIP", "PROMISE_IN_BOUNDS"):
        raise Unsupported(f"mode {name}")
    return "fill" if name == "FILL_OR_DROP" else "clip"


class _Gather:
    """A gather's parameters, with the operand axes in classes."""

    def __init__(self, low: Lowering, eqn: Any, x: Value, indices: Value) -> None:
        p, numbers = eqn.params, eqn.params["dimension_numbers"]
        self.low, self.x, self.indices = low, x, indices
        self.mode = _mode(p)
        self.fill = p["fill_value"]
        self.sizes = low.dim.shape(p["slice_sizes"])
        self.offset_dims = tuple(numbers.offset_dims)
        self.collapsed = tuple(numbers.collapsed_slice_dims)
        self.mapped = tuple(numbers.start_index_map)
        self.batched = tuple(numbers.operand_batching_dims)
        self.index_batch = tuple(numbers.start_indices_batching_dims)
        self.batch_shape = indices.shape[:-1]
        self.rank = len(self.offset_dims) + len(self.batch_shape)
        self.window_axes = [a for a in range(x.rank) if a not in self.collapsed and a not in self.batched]

    def is_full(self, axis: int) -> bool:
        """Whether the window spans the whole axis."""
        return self.low.scope.equal(self.sizes[axis], self.x.shape[axis])

    def place(self, value: Value, axes: Sequence[int]) -> Value:
        """``value`` with axes (batch..., operand axes ``axes``...) in the result's order."""
        low = self.low
        missing = [a for a in self.window_axes if a not in axes]
        if missing:  # mapped axes of size 1 that stay
            value = low.reshape(value, (*self.batch_shape, *(self.sizes[a] for a in self.window_axes)))
        batch = [a for a in range(self.rank) if a not in self.offset_dims]
        order = batch + list(self.offset_dims)
        return low.transpose(value, tuple(int(i) for i in np.argsort(order)))


@rule("gather")
def gather(low: Lowering, eqn: Any, x: Value, indices: Value) -> Value:
    """A slice, a window, a take or a take_along where it is one; else the host op."""
    g = _Gather(low, eqn, x, indices)
    if not g.batch_shape:
        return _gather_window(g)
    others = [a for a in range(x.rank) if a not in g.mapped and a not in g.batched]
    points = all(g.sizes[a] == 1 for a in g.mapped) and all(g.is_full(a) for a in others)
    if not points:
        return _gather_host(g)
    if len(g.mapped) == 1 and not g.batched:
        return _gather_take(g)
    if len(g.mapped) == 1 and not others and len(g.batch_shape) == x.rank:
        return _gather_take_along(g)
    return _gather_points(g, others)


def _gather_window(g: _Gather) -> Value:
    low, x = g.low, g.x
    columns = {axis: column(low, g.indices, k) for k, axis in enumerate(g.mapped)}
    zero = low.constant(0, g.indices.dtype)
    starts = [columns.get(a, zero) for a in range(x.rank)]
    mask = None
    if g.mode == "fill":
        mask = _all_of(low, [in_range(low, c, x.shape[a] - g.sizes[a]) for a, c in columns.items()])
    out = window(low, x, starts, g.sizes)
    out = low.reshape(out, tuple(g.sizes[a] for a in g.window_axes))
    if mask is None:
        return out
    return low.add("select", low.fit(mask, out.shape), out, low.full(g.fill, out.shape, out.dtype))


def _gather_take(g: _Gather) -> Value:
    """``jnp.take``: one axis indexed by an array of any shape."""
    low, (axis,) = g.low, g.mapped
    index = column(low, g.indices, 0)
    attrs: dict[str, Any] = {"axis": axis, "mode": g.mode}
    if g.mode == "fill" and in_range_proved(low, index, g.x.shape[axis] - 1):
        attrs["mode"] = "clip"
    elif g.mode == "fill":
        attrs["fill"] = g.fill
    found = as_slice(low, g.x, index, axis) if index.rank == 1 else None
    out = found if found is not None else low.add("take", g.x, index, **attrs)
    n = index.rank
    rest = [a for a in range(g.x.rank) if a != axis]
    # (before..., index..., after...) to (index..., before..., after...), unless the result wants just that
    if g.window_axes == rest and g.offset_dims == (*range(axis), *range(axis + n, axis + n + len(rest) - axis)):
        return out
    perm = (*range(axis, axis + n), *range(axis), *range(axis + n, out.rank))
    return g.place(low.transpose(out, perm), rest)


def _gather_take_along(g: _Gather) -> Value:
    """``jnp.take_along_axis``: every other axis is a batch axis."""
    low, (axis,) = g.low, g.mapped
    index = column(low, g.indices, 0)
    (free,) = [a for a in range(index.rank) if a not in g.index_batch]
    source = {a: g.index_batch[i] for i, a in enumerate(g.batched)} | {axis: free}
    perm = tuple(source[a] for a in range(g.x.rank))
    last = g.x.shape[axis] - 1
    mask = in_range(low, index, last) if g.mode == "fill" and not in_range_proved(low, index, last) else None
    out = low.add("take_along", g.x, low.transpose(index, perm), axis=axis)
    out = low.transpose(out, tuple(int(i) for i in np.argsort(perm)))
    if mask is not None:
        out = low.add("select", mask, out, low.full(g.fill, out.shape, out.dtype))
    return g.place(out, [])


def _gather_points(g: _Gather, others: list[int]) -> Value:
    """Several axes indexed by points: they are merged into one axis, and the indices into one index."""
    low, x = g.low, g.x
    columns: dict[int, Value] = {}
    for k, axis in enumerate(g.mapped):
        columns[axis] = column(low, g.indices, k)
    for axis, batch_axis in zip(g.batched, g.index_batch, strict=True):
        columns[axis] = low.add("iota", shape=g.batch_shape, axis=batch_axis, dtype=g.indices.dtype)
    masks = []
    flat: Value | None = None
    for axis in sorted(columns):
        index, last = columns[axis], x.shape[axis] - 1
        if g.mode == "fill" and axis in g.mapped and not in_range_proved(low, index, last):
            masks.append(in_range(low, index, last))
        index = clamp_index(low, index, last)
        if flat is not None:
            size = low.fit(low.dim_value(x.shape[axis], index.dtype), g.batch_shape)
            index = low.add("add", low.add("mul", flat, size), index)
        flat = index
    assert flat is not None
    first = sorted(columns)
    merged = low.transpose(x, (*first, *others))
    total = product([x.shape[a] for a in first])
    merged = low.reshape(merged, (total, *(x.shape[a] for a in others)))
    out = low.add("take", merged, flat, axis=0, mode="clip")
    mask = _all_of(low, masks)
    if mask is not None:
        wide = mask
        if others:
            wide = low.add("broadcast", mask, shape=out.shape, dims=tuple(range(mask.rank)))
        out = low.add("select", wide, out, low.full(g.fill, out.shape, out.dtype))
    return g.place(out, others)


def _gather_host(g: _Gather) -> Value:
    return g.low.add(
        "gather",
        g.x,
        g.indices,
        offset_dims=g.offset_dims,
        collapsed_dims=g.collapsed,
        start_index_map=g.mapped,
        operand_batch_dims=g.batched,
        indices_batch_dims=g.index_batch,
        slice_sizes=g.sizes,
        mode=g.mode,
        fill=g.fill if g.mode == "fill" else 0,
    )


# ---- scatter

_SCATTERS = {
    "scatter": "set",
    "scatter-add": "add",
    "scatter-sub": "sub",
    "scatter-mul": "mul",
    "scatter-min": "min",
    "scatter-max": "max",
}


@rule(*_SCATTERS)
def scatter(low: Lowering, eqn: Any, x: Value, indices: Value, updates: Value) -> Value:
    """One window is an update; windows at many places are a host op."""
    p, numbers = eqn.params, eqn.params["dimension_numbers"]
    kind = _SCATTERS[eqn.primitive.name]
    if kind == "set" and p["update_jaxpr"] is not None:
        raise Unsupported("by a computation of the user's")
    drop = _mode(p) == "fill" or p["mode"].name == "PROMISE_IN_BOUNDS"
    mapped = tuple(numbers.scatter_dims_to_operand_dims)
    if indices.rank > 1:
        attrs = {
            "kind": kind,
            "mode": "fill" if drop else "clip",
            "update_window_dims": tuple(numbers.update_window_dims),
            "inserted_dims": tuple(numbers.inserted_window_dims),
            "start_index_map": mapped,
            "operand_batch_dims": tuple(numbers.operand_batching_dims),
            "indices_batch_dims": tuple(numbers.scatter_indices_batching_dims),
        }
        return low.add("scatter", x, indices, updates, **attrs)
    inserted = tuple(numbers.inserted_window_dims)
    window_sizes = iter(updates.shape)
    sizes = tuple(1 if a in inserted else next(window_sizes) for a in range(x.rank))
    update = low.reshape(updates, sizes)
    columns = {axis: column(low, indices, k) for k, axis in enumerate(mapped)}
    zero = low.constant(0, indices.dtype)
    starts = [columns.get(a, zero) for a in range(x.rank)]
    mask = None
    if _mode(p) == "fill":
        mask = _all_of(low, [in_range(low, c, x.shape[a] - sizes[a]) for a, c in columns.items()])
    if kind != "set":
        op = {"add": "or", "mul": "and", "max": "or", "min": "and"}.get(kind, kind) if x.dtype == np.bool_ else kind
        update = low.add(op, window(low, x, starts, sizes), update)
    out = low.add("dynamic_update_slice", x, update, *starts)
    return out if mask is None else low.add("select", low.fit(mask, out.shape), out, x)
