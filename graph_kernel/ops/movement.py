"""Data movement by indices that are data: take, take_along, dynamic_slice, dynamic_update_slice."""

from __future__ import annotations

from typing import Any

import numpy as np

from graph_kernel.ir import Origin, Value
from graph_kernel.ops.base import (
    Attrs,
    OpDef,
    Pattern,
    Type,
    check_axis,
    fail,
    is_int,
    register,
    same_dim,
    shape_text,
)
from symbolic import Dim, Scope, ge, le


def _check_index(index: Value, origin: Origin) -> None:
    if not is_int(index.dtype):
        raise fail(origin, f"indices must be integers, not {index.dtype}")


def _infer_take(scope: Scope, inputs: tuple[Value, ...], attrs: Attrs, origin: Origin) -> list[Type]:
    x, index = inputs
    _check_index(index, origin)
    axis = check_axis(attrs["axis"], x.rank, origin)
    if attrs["mode"] not in ("clip", "fill"):
        raise fail(origin, f"take has mode clip or fill, not {attrs['mode']!r}")
    return [(x.shape[:axis] + index.shape + x.shape[axis + 1 :], x.dtype)]


def _evaluate_take(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    x, index = xs
    axis, n = attrs["axis"], x.shape[attrs["axis"]]
    index = index.astype(np.int64)
    fill = attrs.get("fill") if attrs["mode"] == "fill" else 0
    shape = x.shape[:axis] + index.shape + x.shape[axis + 1 :]
    if n == 0:
        return [np.full(shape, fill, dtype=x.dtype)]
    out = np.take(x, np.clip(index, 0, n - 1), axis=axis)
    if attrs["mode"] == "clip":
        return [out]
    outside = ((index < 0) | (index >= n)).reshape(index.shape + (1,) * (x.ndim - axis - 1))
    return [np.where(outside, np.asarray(fill).astype(x.dtype), out)]


def _take_value(scope: Scope, values: list[np.ndarray], attrs: Attrs) -> np.ndarray | None:
    x, index = values
    n = x.shape[attrs["axis"]]
    flat: list[Any] = list(index.reshape(-1))
    if any(not isinstance(i, int) or not 0 <= i < n for i in flat):
        return None
    return np.take(x, index.astype(np.int64), axis=attrs["axis"])


register(
    OpDef(
        "take",
        Pattern.VIEW,
        2,
        _infer_take,
        _evaluate_take,
        value_rule=_take_value,
        doc="x.shape[:axis] + indices.shape + x.shape[axis + 1:]; an index outside clamps, or gives fill with mode fill",
    )
)


def _infer_take_along(scope: Scope, inputs: tuple[Value, ...], attrs: Attrs, origin: Origin) -> list[Type]:
    x, index = inputs
    _check_index(index, origin)
    axis = check_axis(attrs["axis"], x.rank, origin)
    if index.rank != x.rank:
        raise fail(origin, f"take_along of {shape_text(x.shape)} by indices {shape_text(index.shape)} of another rank")
    shape = tuple(
        index.shape[a] if a == axis else same_dim(scope, x.shape[a], index.shape[a], origin, f"axis {a} of take_along")
        for a in range(x.rank)
    )
    return [(shape, x.dtype)]


def _evaluate_take_along(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    x, index = xs
    n = x.shape[attrs["axis"]]
    if n == 0:
        return [np.zeros(index.shape, dtype=x.dtype)]
    return [np.take_along_axis(x, np.clip(index.astype(np.int64), 0, n - 1), attrs["axis"])]


register(
    OpDef(
        "take_along",
        Pattern.VIEW,
        2,
        _infer_take_along,
        _evaluate_take_along,
        doc="as numpy.take_along_axis; an index outside clamps",
    )
)


def _check_starts(x: Value, starts: tuple[Value, ...], origin: Origin) -> None:
    if len(starts) != x.rank:
        raise fail(origin, f"{len(starts)} start indices for a tensor of rank {x.rank}")
    for start in starts:
        _check_index(start, origin)
        if start.shape:
            raise fail(origin, f"start indices must be scalars, got {start!r}")


def _check_window(scope: Scope, sizes: tuple[Dim, ...], shape: tuple[Dim, ...], origin: Origin) -> None:
    for axis, (size, n) in enumerate(zip(sizes, shape, strict=True)):
        if size == n:
            continue
        message = f"a window of size {size} must fit into axis {axis} of size {n}"
        if isinstance(size, int) and isinstance(n, int):
            if not 0 <= size <= n:
                raise fail(origin, message)
            continue
        scope.require(le(size, n), str(origin), message)
        scope.require(ge(size, 0), str(origin), message)


def _infer_dynamic_slice(scope: Scope, inputs: tuple[Value, ...], attrs: Attrs, origin: Origin) -> list[Type]:
    x, *starts = inputs
    _check_starts(x, tuple(starts), origin)
    sizes = tuple(attrs["sizes"])
    if len(sizes) != x.rank:
        raise fail(origin, f"dynamic_slice of {shape_text(x.shape)} needs {x.rank} sizes, got {len(sizes)}")
    _check_window(scope, sizes, x.shape, origin)
    return [(sizes, x.dtype)]


def _window(x: np.ndarray, starts: list[np.ndarray], sizes: tuple[int, ...]) -> tuple[slice, ...]:
    low = [max(0, min(int(s), n - size)) for s, n, size in zip(starts, x.shape, sizes, strict=True)]
    return tuple(slice(a, a + size) for a, size in zip(low, sizes, strict=True))


def _dynamic_slice_value(scope: Scope, values: list[np.ndarray], attrs: Attrs) -> np.ndarray | None:
    x, *starts = values
    sizes = attrs["sizes"]
    if not all(isinstance(s[()], int) for s in starts) or not all(isinstance(n, int) for n in sizes):
        return None
    return x[_window(x, starts, sizes)]


register(
    OpDef(
        "dynamic_slice",
        Pattern.VIEW,
        None,
        _infer_dynamic_slice,
        lambda xs, attrs: [xs[0][_window(xs[0], xs[1:], attrs["sizes"])]],
        value_rule=_dynamic_slice_value,
        doc="a window of the given sizes that begins at the starts, each clamped to [0, n - size]",
    )
)


def _infer_update(scope: Scope, inputs: tuple[Value, ...], attrs: Attrs, origin: Origin) -> list[Type]:
    x, update, *starts = inputs
    _check_starts(x, tuple(starts), origin)
    if update.rank != x.rank or update.dtype != x.dtype:
        raise fail(origin, f"cannot write {update!r} into {x!r}")
    _check_window(scope, update.shape, x.shape, origin)
    return [(x.shape, x.dtype)]


def _evaluate_update(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    x, update, *starts = xs
    out = x.copy()
    out[_window(x, starts, update.shape)] = update
    return [out]


register(
    OpDef(
        "dynamic_update_slice",
        Pattern.VIEW,
        None,
        _infer_update,
        _evaluate_update,
        doc="x with the window that begins at the starts, each clamped to [0, n - size], replaced by update",
    )
)
