"""Host functions that move elements: views, sorting, lax's general gather and scatter, sizes that depend on data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vm.host_math import Attrs, HostFunction, dtype_attr, free_axes, is_float, widen

# ---- views


def _broadcast(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    """lax.broadcast_in_dim, except that an axis of size 1 may also be repeated."""
    shape = [1] * len(attrs["shape"])
    for size, axis in zip(xs[0].shape, attrs["dims"], strict=True):
        shape[axis] = size
    return [np.broadcast_to(xs[0].reshape(shape), tuple(attrs["shape"]))]


def _slice(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    parts = zip(attrs["starts"], attrs["limits"], attrs["strides"], strict=True)
    return [xs[0][tuple(slice(*part) for part in parts)]]


def spread(x: np.ndarray, base: Sequence[int], padding: Sequence[Sequence[int]], fill: Any) -> np.ndarray:
    """``x`` with ``base - 1`` fills between neighbours, then padded, or cut if negative, by (low, high) at the ends of each axis."""
    fill = np.asarray(fill).astype(x.dtype)
    if any(b > 1 for b in base):
        out = np.full([max((n - 1) * b + 1, 0) for n, b in zip(x.shape, base, strict=True)], fill, x.dtype)
        out[tuple(slice(None, None, b) for b in base)] = x
        x = out
    if any(low > 0 or high > 0 for low, high in padding):
        out = np.full(
            [n + max(lo, 0) + max(hi, 0) for n, (lo, hi) in zip(x.shape, padding, strict=True)], fill, x.dtype
        )
        out[tuple(slice(max(lo, 0), max(lo, 0) + n) for n, (lo, _) in zip(x.shape, padding, strict=True))] = x
        x = out
    cut = [(max(-lo, 0), n - max(-hi, 0)) for n, (lo, hi) in zip(x.shape, padding, strict=True)]
    return x[tuple(slice(lo, max(lo, hi)) for lo, hi in cut)]


def _pad(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    x, value = xs
    padding = list(zip(attrs["low"], attrs["high"], strict=True))
    return [spread(x, [i + 1 for i in attrs["interior"]], padding, value)]


def _iota(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    shape, axis = tuple(attrs["shape"]), attrs["axis"]
    line = np.arange(shape[axis]).astype(dtype_attr(attrs))
    return [np.broadcast_to(line.reshape([-1 if a == axis else 1 for a in range(len(shape))]), shape)]


def _window(x: np.ndarray, starts: Sequence[np.ndarray], sizes: Sequence[int]) -> tuple[slice, ...]:
    """The window of ``sizes`` at ``starts``, each clamped to [0, n - size]."""
    low = [max(0, min(int(s), n - size)) for s, n, size in zip(starts, x.shape, sizes, strict=True)]
    return tuple(slice(a, a + size) for a, size in zip(low, sizes, strict=True))


def _dynamic_slice(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    return [xs[0][_window(xs[0], xs[1:], attrs["sizes"])]]


def _dynamic_update_slice(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    x, update, *starts = xs
    out = x.copy()
    out[_window(x, starts, update.shape)] = update
    return [out]


# ---- gather and scatter. The last axis of the indices is the index vector.


def _signed(indices: np.ndarray) -> np.ndarray:
    """As int64; what is larger stays out of bounds."""
    if indices.dtype == np.uint64:
        indices = np.minimum(indices, np.uint64(np.iinfo(np.int64).max))
    return indices.astype(np.int64)


def _fill_value(attrs: Attrs, dtype: np.dtype) -> np.ndarray:
    """What lax fills with by default: NaN, the least signed, or the largest unsigned integer."""
    fill = attrs.get("fill")
    if fill is None:
        if is_float(dtype) or dtype.kind == "c":
            fill = np.nan
        elif dtype == np.bool_:
            fill = True
        else:
            fill = np.iinfo(dtype).max if dtype.kind == "u" else np.iinfo(dtype).min
    return np.asarray(fill).astype(dtype)


def _take(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    x, axis, index = xs[0], attrs["axis"], _signed(xs[1])
    n = x.shape[axis]
    fill = _fill_value(attrs, x.dtype) if attrs["mode"] == "fill" else np.zeros((), x.dtype)
    if n == 0:
        return [np.full(x.shape[:axis] + index.shape + x.shape[axis + 1 :], fill, x.dtype)]
    out = np.take(x, np.clip(index, 0, n - 1), axis=axis)
    if attrs["mode"] == "fill":
        outside = (index < 0) | (index >= n)
        out[(slice(None),) * axis + (outside,)] = fill
    return [out]


def _take_along(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    x, axis, index = xs[0], attrs["axis"], _signed(xs[1])
    if x.shape[axis] == 0:
        return [np.zeros(index.shape, x.dtype)]
    return [np.take_along_axis(x, np.clip(index, 0, x.shape[axis] - 1), axis)]


def _starts(indices: np.ndarray, attrs: Attrs, rank: int) -> np.ndarray:
    """int64[positions..., rank]: where each window begins, axes that the indices do not name at 0."""
    indices = _signed(indices)
    out = np.zeros((*indices.shape[:-1], rank), np.int64)
    for k, axis in enumerate(attrs["start_index_map"]):
        out[..., axis] = indices[..., k]
    for axis, at in zip(attrs["operand_batch_dims"], attrs["indices_batch_dims"], strict=True):
        line = np.arange(indices.shape[at])
        out[..., axis] = line.reshape([-1 if a == at else 1 for a in range(indices.ndim - 1)])
    return out


class _Windows:
    """Windows of ``sizes`` of an operand, one for each of a list of starts, as one advanced index into a view of it.

    Axes that a window spans as a whole are left to a slice: they go last in ``order``, the view's axis order. The result of
    indexing has the axes: position, the other axes of the windows, the whole ones.
    """

    def __init__(self, shape: Sequence[int], sizes: Sequence[int]) -> None:
        self.sizes = list(sizes)
        whole = [a for a, (n, size) in enumerate(zip(shape, sizes, strict=True)) if n == size]
        self.partial = [a for a in range(len(shape)) if a not in whole]
        self.order = [*self.partial, *whole]

    def index(self, starts: np.ndarray) -> tuple[np.ndarray, ...]:
        """The index for starts int64[positions, rank] that are all in bounds."""
        count = len(self.partial)
        parts = []
        for k, axis in enumerate(self.partial):
            steps = np.arange(self.sizes[axis]).reshape([-1 if j == k else 1 for j in range(count)])
            parts.append(starts[:, axis].reshape([-1] + [1] * count) + steps)
        return tuple(parts)

    @property
    def shape(self) -> list[int]:
        """Of one window, in the view's axis order."""
        return [self.sizes[a] for a in self.order]


def _gather(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    """lax.gather with offset_dims, collapsed_dims, start_index_map, operand_batch_dims, indices_batch_dims, slice_sizes and mode: a
    window that is not inside is moved in (clip) or replaced by the fill value (fill)."""
    x, indices = xs
    sizes, room = list(attrs["slice_sizes"]), np.array(x.shape, np.int64) - np.array(attrs["slice_sizes"], np.int64)
    starts = _starts(indices, attrs, x.ndim).reshape(-1, x.ndim)
    fills = attrs["mode"] == "fill"
    fill = _fill_value(attrs, x.dtype) if fills else np.zeros((), x.dtype)
    windows = _Windows(x.shape, sizes)
    if (room < 0).any():  # no window fits
        out = np.full([len(starts), *windows.shape], fill, x.dtype)
    else:
        parts = windows.index(np.clip(starts, 0, room))
        view = x.transpose(windows.order)
        out = view[parts] if parts else np.repeat(view[None], len(starts), axis=0)
        if fills:
            out[((starts < 0) | (starts > room)).any(axis=1)] = fill
    # Axes of windows back into the operand's order, without the ones that are dropped (all of size 1).
    out = out.transpose([0, *(1 + np.argsort(windows.order))])
    kept = free_axes(x.ndim, attrs["collapsed_dims"], attrs["operand_batch_dims"])
    out = out.reshape([*indices.shape[:-1], *(sizes[a] for a in kept)])
    offsets = list(attrs["offset_dims"])
    return [out.transpose(np.argsort([*free_axes(out.ndim, offsets), *offsets]))]


_COMBINE: dict[str, np.ufunc | None] = {
    "set": None,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


def _scatter(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    """lax.scatter and its relatives: ``kind`` is set, add, sub, mul, min or max. A window that is not inside is moved in (clip) or
    dropped as a whole (fill). Of equal positions the last one wins in a set. 16-bit floats are combined in float32."""
    x, indices, updates = xs
    combine = _COMBINE[attrs["kind"]]
    windows_at = list(attrs["update_window_dims"])
    kept = free_axes(x.ndim, attrs["inserted_dims"], attrs["operand_batch_dims"])
    sizes = [1] * x.ndim
    for axis, at in zip(kept, windows_at, strict=True):
        sizes[axis] = updates.shape[at]
    room = np.array(x.shape, np.int64) - np.array(sizes, np.int64)
    starts = _starts(indices, attrs, x.ndim).reshape(-1, x.ndim)
    windows = _Windows(x.shape, sizes)
    moved = updates.transpose([*free_axes(updates.ndim, windows_at), *windows_at]).reshape(len(starts), *sizes)
    moved = moved.transpose([0, *(1 + a for a in windows.order)])
    if (room < 0).any():
        return [x.copy()]
    if attrs["mode"] == "clip":
        starts = np.clip(starts, 0, room)
    else:
        inside = ((starts >= 0) & (starts <= room)).all(axis=1)
        starts, moved = starts[inside], moved[inside]
    out = x.copy() if combine is None else widen(x).copy() if widen(x) is x else widen(x)
    view = out.transpose(windows.order)
    parts = windows.index(starts)
    with np.errstate(all="ignore"):
        if not parts:  # every window is the whole operand
            for update in moved:
                view[...] = update if combine is None else combine(view, widen(update))
        elif combine is None:
            view[parts] = moved
        else:
            combine.at(view, parts, widen(moved))
        return [out.astype(x.dtype, copy=False)]


# ---- sorting and sizes that depend on data


def _sort(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    """All operands in the ascending, stable order of the first ``num_keys`` of them along ``axis``; NaN last."""
    axis, keys = attrs["axis"], xs[: attrs["num_keys"]]
    order = np.lexsort([widen(k) for k in reversed(keys)], axis=axis)
    return [np.take_along_axis(x, order, axis) for x in xs]


def _top_k(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    """The ``k`` largest along ``axis`` in falling order and their indices (``dtype``); of equals the first wins, NaN is largest."""
    x, axis, k = xs[0], attrs["axis"], attrs["k"]
    rank = np.argsort(np.flip(widen(x), axis), axis=axis, kind="stable")
    order = x.shape[axis] - 1 - np.flip(rank, axis)
    order = np.take(order, np.arange(k), axis=axis)
    return [np.take_along_axis(x, order, axis), order.astype(dtype_attr(attrs))]


def _nonzero(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    """int64[rank, count]: the indices of entries that are not 0, in row-major order."""
    found = np.nonzero(np.atleast_1d(xs[0]))[: xs[0].ndim]
    if not found:
        return [np.zeros((0, int(bool(xs[0]))), np.int64)]
    return [np.stack(found).astype(np.int64)]


def _unique(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    """The distinct slices along ``axis`` (entries of a vector), ascending or by first occurrence; first index, inverse and count of
    each (int64)."""
    x, axis = xs[0], attrs.get("axis", 0)
    if x.ndim == 1:  # NaN is equal to NaN
        _, first, inverse, counts = np.unique(widen(x), return_index=True, return_inverse=True, return_counts=True)
    else:
        n = x.shape[axis]
        first, inverse, counts = _distinct_rows(widen(np.moveaxis(x, axis, 0)).reshape(n, x.size // max(n, 1)))
    if not attrs["sorted"]:
        order = np.argsort(first, kind="stable")
        rank = np.argsort(order, kind="stable")
        first, inverse, counts = first[order], rank[inverse], counts[order]
    indices = [a.astype(np.int64).reshape(-1) for a in (first, inverse, counts)]
    return [np.take(x, first, axis), *indices]


def _distinct_rows(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First index, inverse and count of the distinct rows of a matrix, in lexicographic order."""
    n, width = rows.shape
    order = np.lexsort(rows.T[::-1]) if width else np.arange(n)
    new = np.ones(n, bool)
    new[1:] = (rows[order][1:] != rows[order][:-1]).any(axis=1)
    group = np.cumsum(new) - 1
    inverse = np.empty(n, np.int64)
    inverse[order] = group
    return order[new], inverse, np.bincount(group)


def _one(fn: Callable[[np.ndarray, Attrs], np.ndarray]) -> HostFunction:
    return lambda xs, attrs: [fn(xs[0], attrs)]


FUNCTIONS: dict[str, HostFunction] = {
    "copy": lambda xs, attrs: [x.copy() for x in xs],
    "broadcast": _broadcast,
    "reshape": _one(lambda x, attrs: x.reshape(tuple(attrs["shape"]))),
    "transpose": _one(lambda x, attrs: x.transpose(tuple(attrs["perm"]))),
    "slice": _slice,
    "rev": _one(lambda x, attrs: np.flip(x, tuple(attrs["axes"]))),
    "pad": _pad,
    "concat": lambda xs, attrs: [np.concatenate(xs, attrs["axis"])],
    "iota": _iota,
    "dim": lambda xs, attrs: [np.asarray(attrs["expr"]).astype(dtype_attr(attrs))],
    "take": _take,
    "take_along": _take_along,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
    "scatter": _scatter,
    "sort": _sort,
    "top_k": _top_k,
    "nonzero": _nonzero,
    "unique": _unique,
}
