"""Scatters and TopK, which the host computes."""

from __future__ import annotations

import numpy as np

import symbolic
from graph_kernel.from_onnx.builder import Builder
from graph_kernel.from_onnx.indexing import non_negative
from graph_kernel.from_onnx.registry import Call, Result, converter
from graph_kernel.ir import Value

KINDS = {"none": "set", "add": "add", "mul": "mul", "max": "max", "min": "min"}


def scatter(b: Builder, x: Value, idx: Value, updates: Value, kind: str) -> Value:
    """Rows ``idx[..., :]`` of x combined with updates[..., rest of x]."""
    depth = idx.shape[-1]
    if not isinstance(depth, int):
        raise TypeError("the last size of the indices has to be a number")
    windows = tuple(range(idx.rank - 1, updates.rank))
    axes = tuple(range(depth))
    attrs = {"update_window_dims": windows, "inserted_dims": axes, "start_index_map": axes}
    return b.op(
        "scatter", x, idx, updates, kind=kind, mode="fill", operand_batch_dims=(), indices_batch_dims=(), **attrs
    )


def _from_start(b: Builder, x: Value, idx: Value) -> Value:
    """Index vectors made non-negative, component by component."""
    depth = idx.shape[-1]
    if not isinstance(depth, int):
        raise TypeError("the last size of the indices has to be a number")
    last = idx.rank - 1
    parts = [non_negative(b, b.slice_axis(idx, last, k, k + 1), x.shape[k]) for k in range(depth)]
    return b.concat(parts, last)


@converter("ScatterND")
def _scatter_nd(c: Call) -> Result:
    b, x, idx = c.builder, c.x(0), c.x(1)
    if not isinstance(idx.shape[-1], int):
        raise c.unsupported(f"the last size of the indices has to be a number, it is {idx.shape[-1]}")
    return scatter(b, x, _from_start(b, x, idx), c.x(2), KINDS[c.attr("reduction", "none")])


@converter("ScatterElements")
def _scatter_elements(c: Call) -> Result:
    """Each element of updates goes to its own place with the index along ``axis`` replaced."""
    b, x, idx = c.builder, c.x(0), c.x(1)
    axis = c.axis(c.attr("axis", 0), x.rank)
    idx = b.cast(non_negative(b, idx, x.shape[axis]), np.int64)
    places = [idx if i == axis else b.iota(idx.shape, i) for i in range(x.rank)]
    vectors = b.concat([b.unsqueeze(p, x.rank) for p in places], x.rank)
    return scatter(b, x, vectors, c.x(2), KINDS[c.attr("reduction", "none")])


@converter("TensorScatter")
def _tensor_scatter(c: Call) -> Result:
    """A cache update: update[b, ..., t] goes to position start[b] + t (modulo the size where ``circular``)."""
    b, x, update = c.builder, c.x(0), c.x(1)
    axis = c.axis(c.attr("axis", -2), x.rank)
    place = b.iota(update.shape, axis)
    if c.has(2):
        others = [i for i in range(x.rank) if i != 0]
        place = b.add(place, b.spread(b.cast(c.x(2), np.int64), others, update.shape))
    if c.attr("mode", "linear") == "circular":
        place = b.binary("rem", place, b.dim(x.shape[axis]))
    places = [place if i == axis else b.iota(update.shape, i) for i in range(x.rank)]
    vectors = b.concat([b.unsqueeze(p, x.rank) for p in places], x.rank)
    return scatter(b, x, vectors, update, "set")


@converter("TopK")
def _top_k(c: Call) -> Result:
    b, x = c.builder, c.x(0)
    axis = c.axis(c.attr("axis", -1), x.rank)
    (k,) = c.dims(1)
    b.require(symbolic.le(k, x.shape[axis]), f"cannot take {k} of {x.shape[axis]}")
    largest = bool(c.attr("largest", 1))
    source = x if largest else _descending(b, x)
    _, idx = b.ops("top_k", [source], axis=axis, k=k, dtype=np.dtype(np.int64))
    return b.op("take_along", x, idx, axis=axis), idx


def _descending(b: Builder, x: Value) -> Value:
    """Values whose order is reversed: -x for floats, ~x for integers (which cannot overflow)."""
    return b.unary("not" if x.dtype.kind in "iu" else "neg", x)
