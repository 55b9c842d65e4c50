"""Data movement that is an index map: broadcast, reshape, barrier, transpose, slice, rev, pad, concat."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graph_kernel.ir import Origin, Value
from graph_kernel.ops.base import (
    Attrs,
    OpDef,
    Pattern,
    Type,
    check_axis,
    fail,
    register,
    same_dim,
    shape_text,
    static_shape,
)
from symbolic import Dim, Relation, Scope, ceildiv, either, eq, ge, le, product, smax, ssum


def _infer_broadcast(scope: Scope, inputs: tuple[Value, ...], attrs: Attrs, origin: Origin) -> list[Type]:
    (x,) = inputs
    shape, dims = tuple(attrs["shape"]), tuple(attrs["dims"])
    if len(dims) != x.rank or list(dims) != sorted(set(dims)) or any(not 0 <= d < len(shape) for d in dims):
        raise fail(origin, f"broadcast of {shape_text(x.shape)} to {shape_text(shape)} has bad dims {dims}")
    for size, axis in zip(x.shape, dims, strict=True):
        out = shape[axis]
        if size == out or size == 1:
            continue
        if isinstance(size, int) and isinstance(out, int):
            raise fail(
                origin, f"cannot broadcast {shape_text(x.shape)} to {shape_text(shape)}: {size} is neither {out} nor 1"
            )
        if not scope.proves(eq(size, out)) and not scope.proves(eq(size, 1)):
            scope.require(
                either(eq(size, out), eq(size, 1)),
                str(origin),
                f"size {size} must be 1 or {out} to be broadcast to {out}",
            )
    return [(shape, x.dtype)]


def _evaluate_broadcast(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    shape, dims = attrs["shape"], attrs["dims"]
    spread = [1] * len(shape)
    for size, axis in zip(xs[0].shape, dims, strict=True):
        spread[axis] = size
    return [np.broadcast_to(xs[0].reshape(spread), shape)]


def _broadcast_value(scope: Scope, values: list[np.ndarray], attrs: Attrs) -> np.ndarray | None:
    shape = static_shape(attrs["shape"])
    return None if shape is None else _evaluate_broadcast(values, attrs | {"shape": shape})[0]


register(
    OpDef(
        "broadcast",
        Pattern.BROADCAST,
        1,
        _infer_broadcast,
        _evaluate_broadcast,
        value_rule=_broadcast_value,
        doc="axis i of x becomes axis dims[i] of shape; size 1 is repeated, the other axes are new",
    )
)


def _infer_reshape(scope: Scope, inputs: tuple[Value, ...], attrs: Attrs, origin: Origin) -> list[Type]:
    (x,) = inputs
    shape = tuple(attrs["shape"])
    before, after = product(x.shape), product(shape)
    if isinstance(before, int) and isinstance(after, int):
        if before != after:
            raise fail(
                origin, f"cannot reshape {shape_text(x.shape)} to {shape_text(shape)}: {before} elements, not {after}"
            )
    elif not scope.equal(before, after):
        message = f"{shape_text(x.shape)} must have as many elements as {shape_text(shape)}"
        scope.require(eq(before, after), str(origin), message)
    return [(shape, x.dtype)]


def _reshape_value(scope: Scope, values: list[np.ndarray], attrs: Attrs) -> np.ndarray | None:
    shape = static_shape(attrs["shape"])
    return None if shape is None else values[0].reshape(shape)


register(
    OpDef(
        "reshape",
        Pattern.VIEW,
        1,
        _infer_reshape,
        lambda xs, attrs: [xs[0].reshape(attrs["shape"])],
        value_rule=_reshape_value,
        doc="the elements of x in row-major order with a new shape",
    )
)


register(
    OpDef(
        "barrier",
        Pattern.VIEW,
        1,
        lambda scope, inputs, attrs, origin: [(inputs[0].shape, inputs[0].dtype)],
        lambda xs, attrs: [xs[0]],
        value_rule=lambda scope, values, attrs: values[0],
        doc="x itself, in memory: no kernel holds both what makes x and what reads the result",
    )
)


def _infer_transpose(scope: Scope, inputs: tuple[Value, ...], attrs: Attrs, origin: Origin) -> list[Type]:
    (x,) = inputs
    if sorted(attrs["perm"]) != list(range(x.rank)):
        raise fail(origin, f"{tuple(attrs['perm'])} is not a permutation of the axes of {shape_text(x.shape)}")
    return [(tuple(x.shape[a] for a in attrs["perm"]), x.dtype)]


register(
    OpDef(
        "transpose",
        Pattern.VIEW,
        1,
        _infer_transpose,
        lambda xs, attrs: [xs[0].transpose(attrs["perm"])],
        value_rule=lambda scope, values, attrs: values[0].transpose(attrs["perm"]),
        doc="axis perm[i] of x becomes axis i",
    )
)


def slice_size(start: Dim, limit: Dim, stride: int) -> Dim:
    """Number of elements at start, start + stride, ... below limit, for start <= limit."""
    return limit - start if stride == 1 else ceildiv(limit - start, stride)


def _infer_slice(scope: Scope, inputs: tuple[Value, ...], attrs: Attrs, origin: Origin) -> list[Type]:
    (x,) = inputs
    starts, limits, strides = attrs["starts"], attrs["limits"], attrs["strides"]
    if not len(starts) == len(limits) == len(strides) == x.rank:
        raise fail(origin, f"slice of {shape_text(x.shape)} needs one start, limit and stride per axis")
    shape: list[Dim] = []
    for axis, (n, start, limit, stride) in enumerate(zip(x.shape, starts, limits, strides, strict=True)):
        if stride < 1:
            raise fail(origin, f"slice stride {stride} on axis {axis} must be at least 1")
        if start == 0 and limit == n and stride == 1:
            shape.append(n)
            continue
        what = f"slice {start}:{limit} of axis {axis} of size {n}"
        _need(scope, ge(start, 0), origin, f"{what}: the start must not be negative", (start, 0))
        _need(scope, le(start, limit), origin, f"{what}: the start must not be above the limit", (limit, start))
        _need(scope, le(limit, n), origin, f"{what}: the limit must not be above the size", (n, limit))
        shape.append(scope.simplify(slice_size(start, limit, stride)))
    return [(tuple(shape), x.dtype)]


def _need(scope: Scope, relation: Relation, origin: Origin, message: str, pair: tuple[Dim, Dim]) -> None:
    """Requires ``pair[0] >= pair[1]``, given as ``relation`` too."""
    larger, smaller = pair
    if isinstance(larger, int) and isinstance(smaller, int):
        if larger < smaller:
            raise fail(origin, message)
        return
    scope.require(relation, str(origin), message)


def _evaluate_slice(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    index = tuple(slice(*part) for part in zip(attrs["starts"], attrs["limits"], attrs["strides"], strict=True))
    return [xs[0][index]]


def _slice_value(scope: Scope, values: list[np.ndarray], attrs: Attrs) -> np.ndarray | None:
    starts, limits = static_shape(attrs["starts"]), static_shape(attrs["limits"])
    if starts is None or limits is None:
        return None
    return _evaluate_slice(values, {"starts": starts, "limits": limits, "strides": attrs["strides"]})[0]


register(
    OpDef(
        "slice",
        Pattern.VIEW,
        1,
        _infer_slice,
        _evaluate_slice,
        value_rule=_slice_value,
        doc="elements starts[i], starts[i] + strides[i], ... below limits[i] of axis i; 0 <= start <= limit <= size",
    )
)


def _infer_rev(scope: Scope, inputs: tuple[Value, ...], attrs: Attrs, origin: Origin) -> list[Type]:
    for axis in attrs["axes"]:
        check_axis(axis, inputs[0].rank, origin)
    return [(inputs[0].shape, inputs[0].dtype)]


def _flip(x: np.ndarray, axes: Sequence[int]) -> np.ndarray:
    return np.flip(x, tuple(axes)) if axes else x


register(
    OpDef(
        "rev",
        Pattern.VIEW,
        1,
        _infer_rev,
        lambda xs, attrs: [_flip(xs[0], attrs["axes"])],
        value_rule=lambda scope, values, attrs: _flip(values[0], attrs["axes"]),
        doc="reverses the order along axes",
    )
)


def padded_size(n: Dim, low: Dim, high: Dim, interior: int) -> Dim:
    """Size of an axis of size n after ``pad``; ``interior`` values go between neighbours."""
    spread = n if interior == 0 else smax(n + interior * (n - 1), 0)
    return spread + low + high


def _infer_pad(scope: Scope, inputs: tuple[Value, ...], attrs: Attrs, origin: Origin) -> list[Type]:
    x, value = inputs
    if value.shape or value.dtype != x.dtype:
        raise fail(origin, f"the padding value must be a scalar of {x.dtype}, not {value!r}")
    low, high, interior = attrs["low"], attrs["high"], attrs["interior"]
    if not len(low) == len(high) == len(interior) == x.rank:
        raise fail(origin, f"pad of {shape_text(x.shape)} needs low, high and interior per axis")
    shape: list[Dim] = []
    for axis, n in enumerate(x.shape):
        size = scope.simplify(padded_size(n, low[axis], high[axis], interior[axis]))
        message = f"padding axis {axis} of size {n} by {low[axis]} and {high[axis]} must not give a negative size"
        _need(scope, ge(size, 0), origin, message, (size, 0))
        shape.append(size)
    return [(tuple(shape), x.dtype)]


def _evaluate_pad(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    x, value = xs
    low, high, interior = attrs["low"], attrs["high"], attrs["interior"]
    spread_shape = [n if not i else max(n + i * (n - 1), 0) for n, i in zip(x.shape, interior, strict=True)]
    spread = np.full(spread_shape, value, dtype=x.dtype)
    spread[tuple(slice(None, None, i + 1) for i in interior)] = x
    padded = np.pad(
        spread,
        [(max(lo, 0), max(hi, 0)) for lo, hi in zip(low, high, strict=True)],
        constant_values=value.astype(x.dtype),
    )
    crop = tuple(slice(max(-lo, 0), n - max(-hi, 0)) for lo, hi, n in zip(low, high, padded.shape, strict=True))
    return [padded[crop]]


register(
    OpDef(
        "pad",
        Pattern.VIEW,
        2,
        _infer_pad,
        _evaluate_pad,
        doc="puts low values before, high after and interior between the elements of each axis; negative low and high cut",
    )
)


def _infer_concat(scope: Scope, inputs: tuple[Value, ...], attrs: Attrs, origin: Origin) -> list[Type]:
    first = inputs[0]
    axis = check_axis(attrs["axis"], first.rank, origin)
    shape = list(first.shape)
    for other in inputs[1:]:
        if other.rank != first.rank or other.dtype != first.dtype:
            raise fail(origin, f"cannot concatenate {first!r} and {other!r}")
        for a in range(first.rank):
            if a != axis:
                shape[a] = same_dim(scope, shape[a], other.shape[a], origin, f"axis {a} of the operands of concat")
    shape[axis] = scope.simplify(ssum(v.shape[axis] for v in inputs))
    return [(tuple(shape), first.dtype)]


register(
    OpDef(
        "concat",
        Pattern.VIEW,
        None,
        _infer_concat,
        lambda xs, attrs: [np.concatenate(xs, attrs["axis"])],
        value_rule=lambda scope, values, attrs: np.concatenate(values, attrs["axis"]),
        doc="the operands one after another along axis",
    )
)
