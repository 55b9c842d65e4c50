"""Ops that the host computes on whole tensors: sorting, general gather and scatter, windows, data-dependent sizes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graph_kernel.ir import Origin, Value
from graph_kernel.ops.base import (
    Attrs,
    Evaluate,
    Infer,
    OpDef,
    Pattern,
    Type,
    check_axis,
    fail,
    register,
    same_shape_of,
    widen,
)
from graph_kernel.ops.reduce import highest, lowest
from symbolic import Dim, Scope, ge, le, product, smax


def _host(name: str, n: int | None, infer: Infer, evaluate: Evaluate, doc: str) -> None:
    register(OpDef(name, Pattern.HOST, n, infer, evaluate, chip=False, host=name, doc=doc))


# ---- sort and top_k


def _infer_sort(scope: Scope, inputs: tuple[Value, ...], attrs: Attrs, origin: Origin) -> list[Type]:
    shape = same_shape_of(scope, inputs, origin, "operands of sort")
    check_axis(attrs["axis"], len(shape), origin)
    return [(shape, v.dtype) for v in inputs]


def _evaluate_sort(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    axis, keys = attrs["axis"], xs[: attrs["num_keys"]]
    order = np.lexsort([widen(k) for k in reversed(keys)], axis=axis)
    return [np.take_along_axis(x, order, axis) for x in xs]


_host(
    "sort",
    None,
    _infer_sort,
    _evaluate_sort,
    "all operands in the ascending, stable order of the first num_keys of them along axis; NaN last",
)


def _infer_top_k(scope: Scope, inputs: tuple[Value, ...], attrs: Attrs, origin: Origin) -> list[Type]:
    (x,) = inputs
    axis, k = check_axis(attrs["axis"], x.rank, origin), attrs["k"]
    scope.require(ge(x.shape[axis], k), str(origin), f"top_k needs at least {k} entries, the axis has {x.shape[axis]}")
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return [(shape, x.dtype), (shape, np.dtype(attrs["dtype"]))]


def _evaluate_top_k(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    x, axis, k = xs[0], attrs["axis"], attrs["k"]
    rank = np.argsort(np.flip(widen(x), axis), axis=axis, kind="stable")  # of equals the first wins
    order = x.shape[axis] - 1 - np.flip(rank, axis)
    order = np.take(order, np.arange(k), axis=axis)
    return [np.take_along_axis(x, order, axis), order.astype(attrs["dtype"])]


_host("top_k", 1, _infer_top_k, _evaluate_top_k, "the k largest along axis in falling order, and their indices (dtype)")


# ---- general gather and scatter, in lax's terms; the last axis of the indices is the index vector


def _positions(rank: int, without: Sequence[int]) -> list[int]:
    return [a for a in range(rank) if a not in without]


def _infer_gather(scope: Scope, inputs: tuple[Value, ...], attrs: Attrs, origin: Origin) -> list[Type]:
    x, indices = inputs
    sizes = attrs["slice_sizes"]
    dropped = (*attrs["collapsed_dims"], *attrs["operand_batch_dims"])
    window = iter([sizes[a] for a in _positions(x.rank, dropped)])
    batch = iter(indices.shape[:-1])
    rank = len(attrs["offset_dims"]) + indices.rank - 1
    shape = tuple(next(window) if a in attrs["offset_dims"] else next(batch) for a in range(rank))
    return [(shape, x.dtype)]


def _starts(indices: np.ndarray, at: tuple[int, ...], attrs: Attrs, rank: int) -> list[int]:
    """The start of the window that belongs to batch position ``at``, per operand axis."""
    start = [0] * rank
    for k, axis in enumerate(attrs["start_index_map"]):
        start[axis] = int(indices[(*at, k)])
    for axis, batch_axis in zip(attrs["operand_batch_dims"], attrs["indices_batch_dims"], strict=True):
        start[axis] = at[batch_axis]
    return start


def _evaluate_gather(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    x, indices = xs
    sizes = attrs["slice_sizes"]
    dropped = (*attrs["collapsed_dims"], *attrs["operand_batch_dims"])
    window = [sizes[a] for a in _positions(x.ndim, dropped)]
    out = np.empty([*indices.shape[:-1], *window], dtype=x.dtype)
    fill = np.asarray(attrs["fill"] if attrs["mode"] == "fill" else 0).astype(x.dtype)
    for at in np.ndindex(*indices.shape[:-1]):
        start = _starts(indices, at, attrs, x.ndim)
        inside = all(0 <= s <= n - size for s, n, size in zip(start, x.shape, sizes, strict=True))
        if attrs["mode"] == "fill" and not inside:
            out[at] = fill
            continue
        low = [max(0, min(s, n - size)) for s, n, size in zip(start, x.shape, sizes, strict=True)]
        out[at] = x[tuple(slice(a, a + size) for a, size in zip(low, sizes, strict=True))].reshape(window)
    rank, offsets = out.ndim, tuple(attrs["offset_dims"])
    order = _positions(rank, offsets) + list(offsets)
    return [out.transpose(np.argsort(order))]


_host(
    "gather",
    2,
    _infer_gather,
    _evaluate_gather,
    "lax.gather: offset_dims, collapsed_dims, start_index_map, operand_batch_dims, indices_batch_dims, slice_sizes, "
    "mode clip or fill, fill",
)

_SCATTER: dict[str, Callable[[Any, Any], Any]] = {
    "set": lambda old, new: new,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


def _infer_scatter(scope: Scope, inputs: tuple[Value, ...], attrs: Attrs, origin: Origin) -> list[Type]:
    x, _, updates = inputs
    if attrs["kind"] not in _SCATTER:
        raise fail(origin, f"scatter combines by {', '.join(_SCATTER)}, not {attrs['kind']}")
    if x.dtype != updates.dtype:
        raise fail(origin, f"cannot scatter {updates!r} into {x!r}")
    return [(x.shape, x.dtype)]


def _evaluate_scatter(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    x, indices, updates = xs
    combine, out = _SCATTER[attrs["kind"]], x.copy()
    windows = tuple(attrs["update_window_dims"])
    dropped = (*attrs["inserted_dims"], *attrs["operand_batch_dims"])
    moved = updates.transpose(_positions(updates.ndim, windows) + list(windows))
    window = iter(moved.shape[indices.ndim - 1 :])
    sizes = [1 if a in dropped else next(window) for a in range(x.ndim)]
    for at in np.ndindex(*indices.shape[:-1]):
        start = _starts(indices, at, attrs, x.ndim)
        if attrs["mode"] == "clip":
            start = [max(0, min(s, n - size)) for s, n, size in zip(start, x.shape, sizes, strict=True)]
        elif not all(0 <= s <= n - size for s, n, size in zip(start, x.shape, sizes, strict=True)):
            continue
        where = tuple(slice(a, a + size) for a, size in zip(start, sizes, strict=True))
        old = out[where]
        with np.errstate(all="ignore"):
            out[where] = np.asarray(combine(widen(old), widen(moved[at].reshape(old.shape)))).astype(x.dtype)
    return [out]


_host(
    "scatter",
    3,
    _infer_scatter,
    _evaluate_scatter,
    "lax.scatter of updates at indices: kind set, add, sub, mul, min or max; update_window_dims, inserted_dims, "
    "start_index_map, operand_batch_dims, indices_batch_dims; windows outside are dropped (mode fill) or moved in (clip)",
)


# ---- windows


def window_size(n: Dim, size: Dim, stride: int, low: Dim, high: Dim, base: int, dilation: int) -> Dim:
    """Number of window positions along an axis of size ``n`` spread by ``base`` and padded by ``low`` and ``high``."""
    spread = n if base == 1 else smax((n - 1) * base + 1, 0)
    room = spread + low + high - ((size - 1) * dilation + 1)
    return smax(room // stride + 1, 0)


def _window_shape(scope: Scope, shape: Sequence[Dim], attrs: Attrs) -> tuple[Dim, ...]:
    fields = (attrs[k] for k in ("window", "strides", "padding", "base_dilation", "window_dilation"))
    return tuple(
        scope.simplify(window_size(n, size, stride, pad[0], pad[1], base, dilation))
        for n, size, stride, pad, base, dilation in zip(shape, *fields, strict=True)
    )


def _infer_reduce_window(scope: Scope, inputs: tuple[Value, ...], attrs: Attrs, origin: Origin) -> list[Type]:
    (x,) = inputs
    return [(_window_shape(scope, x.shape, attrs), x.dtype)]


def _spread(x: np.ndarray, base: Sequence[int], padding: Sequence[Sequence[int]], fill: Any) -> np.ndarray:
    """``x`` with ``base - 1`` fills between neighbours and padded (or cut, if negative) at the ends."""
    shape = [max((n - 1) * b + 1, 0) for n, b in zip(x.shape, base, strict=True)]
    out = np.full(shape, fill, dtype=x.dtype)
    out[tuple(slice(None, None, b) for b in base)] = x
    out = np.pad(
        out, [(max(lo, 0), max(hi, 0)) for lo, hi in padding], constant_values=np.asarray(fill).astype(x.dtype)
    )
    return out[tuple(slice(max(-lo, 0), n - max(-hi, 0)) for (lo, hi), n in zip(padding, out.shape, strict=True))]


_WINDOW: dict[str, tuple[np.ufunc, Callable[[np.dtype], Any]]] = {
    "sum": (np.add, lambda d: 0),
    "prod": (np.multiply, lambda d: 1),
    "max": (np.maximum, lowest),
    "min": (np.minimum, highest),
}


def _evaluate_reduce_window(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    ufunc, identity = _WINDOW[attrs["kind"]]
    x = widen(xs[0])
    padded = _spread(x, attrs["base_dilation"], attrs["padding"], identity(xs[0].dtype))
    window, strides, dilation = attrs["window"], attrs["strides"], attrs["window_dilation"]
    counts = [
        max((n - ((size - 1) * d + 1)) // s + 1, 0)
        for n, size, s, d in zip(padded.shape, window, strides, dilation, strict=True)
    ]
    out = np.full(counts, identity(xs[0].dtype), dtype=x.dtype)
    for offset in itertools.product(*(range(n) for n in window)):
        part = padded[
            tuple(
                slice(o * d, o * d + (c - 1) * s + 1 if c else o * d, s)
                for o, d, c, s in zip(offset, dilation, counts, strides, strict=True)
            )
        ]
        out = ufunc(out, part)
    return [out.astype(xs[0].dtype)]


_host(
    "reduce_window",
    1,
    _infer_reduce_window,
    _evaluate_reduce_window,
    "kind sum, prod, max or min over windows: window, strides, padding (pairs), base_dilation, window_dilation per axis",
)


def _infer_conv(scope: Scope, inputs: tuple[Value, ...], attrs: Attrs, origin: Origin) -> list[Type]:
    x, w = inputs
    if x.rank != w.rank or x.rank < 2:
        raise fail(origin, f"conv of {x!r} with {w!r}")
    groups, batch_groups = attrs["groups"], attrs["batch_groups"]
    spatial = tuple(
        scope.simplify(window_size(n, size, stride, pad[0], pad[1], base, dilation))
        for n, size, stride, pad, base, dilation in zip(
            x.shape[2:], w.shape[2:], attrs["strides"], attrs["padding"], attrs["base_dilation"], attrs["window_dilation"],
            strict=True,
        )
    )  # fmt: skip
    if isinstance(x.shape[1], int) and isinstance(w.shape[1], int) and x.shape[1] != w.shape[1] * groups:
        raise fail(origin, f"conv of {x.shape[1]} channels in {groups} groups with filters of {w.shape[1]} channels")
    batch = x.shape[0] if batch_groups == 1 else x.shape[0] // batch_groups
    return [((batch, w.shape[0], *spatial), np.dtype(attrs["dtype"]))]


def _evaluate_conv(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    x, w = widen(xs[0]), widen(xs[1])
    groups, batch_groups = attrs["groups"], attrs["batch_groups"]
    if batch_groups > 1:
        parts = zip(np.split(x, batch_groups, 0), np.split(w, batch_groups, 0), strict=True)
        outs = [_conv(a, b, attrs) for a, b in parts]
    else:
        parts = zip(np.split(x, groups, 1), np.split(w, groups, 0), strict=True)
        outs = [_conv(a, b, attrs) for a, b in parts]
    return [np.concatenate(outs, 1).astype(attrs["dtype"])]


def _conv(x: np.ndarray, w: np.ndarray, attrs: Attrs) -> np.ndarray:
    padded = _spread(x, (1, 1, *attrs["base_dilation"]), ((0, 0), (0, 0), *attrs["padding"]), 0)
    strides, dilation = attrs["strides"], attrs["window_dilation"]
    counts = [
        max((n - ((size - 1) * d + 1)) // s + 1, 0)
        for n, size, s, d in zip(padded.shape[2:], w.shape[2:], strides, dilation, strict=True)
    ]
    out = np.zeros([x.shape[0], w.shape[0], *counts], dtype=x.dtype)
    for offset in itertools.product(*(range(n) for n in w.shape[2:])):
        where = tuple(
            slice(o * d, o * d + (c - 1) * s + 1 if c else o * d, s)
            for o, d, c, s in zip(offset, dilation, counts, strides, strict=True)
        )
        part = padded[(slice(None), slice(None), *where)]
        taps = np.moveaxis(w, (0, 1), (-2, -1))[offset]
        out += np.moveaxis(np.tensordot(part, taps, ((1,), (1,))), -1, 1)
    return out


_host(
    "conv",
    2,
    _infer_conv,
    _evaluate_conv,
    "convolution of x [n, c, spatial...] with w [out, c / groups, spatial...]: strides, padding (pairs), base_dilation, "
    "window_dilation, groups, batch_groups, dtype",
)


# ---- sizes that depend on data


def _count(scope: Scope, hint: str, most: Dim, origin: Origin) -> Dim:
    """A size that is known when the op has run: between 0 and ``most``."""
    size = scope.fresh(hint, 0, str(origin))
    scope.assume(le(size, most), str(origin))
    return size


def _infer_nonzero(scope: Scope, inputs: tuple[Value, ...], attrs: Attrs, origin: Origin) -> list[Type]:
    (x,) = inputs
    return [((x.rank, _count(scope, "nonzero", product(x.shape), origin)), np.dtype(np.int64))]


def _evaluate_nonzero(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    x = xs[0]
    return [np.argwhere(x).T.astype(np.int64).reshape(x.ndim, -1 if x.ndim else int(x.any()))]


_host(
    "nonzero",
    1,
    _infer_nonzero,
    _evaluate_nonzero,
    "indices of the entries that are not 0, [rank, count] in row-major order; the count depends on data",
)


def _infer_unique(scope: Scope, inputs: tuple[Value, ...], attrs: Attrs, origin: Origin) -> list[Type]:
    (x,) = inputs
    axis = attrs.get("axis", 0)
    if not 0 <= axis < x.rank:
        raise fail(origin, f"unique along axis {axis} of {x!r}")
    size = x.shape[axis]
    count = _count(scope, "unique", size, origin)
    long = np.dtype(np.int64)
    values = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    return [(values, x.dtype), ((count,), long), ((size,), long), ((count,), long)]


def _evaluate_unique(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    x, axis = xs[0], attrs.get("axis", 0)
    rows = np.moveaxis(x, axis, 0)
    order: Sequence[int] = range(len(rows))
    if attrs["sorted"] and x.ndim == 1:
        order = np.argsort(widen(x), kind="stable").tolist()
    elif attrs["sorted"]:
        order = sorted(order, key=lambda i: tuple(widen(rows[i]).reshape(-1).tolist()))
    first: list[int] = []
    inverse = np.zeros(len(rows), np.int64)
    counts: list[int] = []
    for i in order:
        same = next((k for k, j in enumerate(first) if _same(rows[i], rows[j])), None)
        if same is None:
            first.append(i)
            counts.append(0)
            same = len(first) - 1
        inverse[i] = same
        counts[same] += 1
    at = np.array(first, np.int64)
    return [np.moveaxis(rows[at], 0, axis), at, inverse, np.array(counts, np.int64)]


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    """NaN is equal to NaN as an entry of a vector, not inside a slice."""
    return bool(((a == b) | ((a != a) & (b != b) & (a.ndim == 0))).all())


_host(
    "unique",
    1,
    _infer_unique,
    _evaluate_unique,
    "distinct slices along axis (0 if not given; ascending, or by first occurrence if not sorted), first index, inverse and count of each",
)
