"""Host functions over sliding windows: reductions and convolution."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from vm.host_index import spread
from vm.host_math import Attrs, HostFunction, dtype_attr, highest, is_float, lowest, widen

_KINDS: dict[str, tuple[np.ufunc, Callable[[np.dtype], Any]]] = {
    "sum": (np.add, lambda d: 0),
    "prod": (np.multiply, lambda d: 1),
    "max": (np.maximum, lowest),
    "min": (np.minimum, highest),
}


def _counts(shape: Sequence[int], window: Sequence[int], strides: Sequence[int], dilation: Sequence[int]) -> list[int]:
    """Window positions along each axis."""
    room = [n - ((size - 1) * d + 1) for n, size, d in zip(shape, window, dilation, strict=True)]
    return [max(r // s + 1, 0) for r, s in zip(room, strides, strict=True)]


def _parts(
    window: Sequence[int], counts: Sequence[int], strides: Sequence[int], dilation: Sequence[int]
) -> Iterator[tuple[slice, ...]]:
    """For every position inside a window, in row-major order: the slices that hold its element of all windows."""
    for offset in itertools.product(*(range(n) for n in window)):
        places = zip(offset, dilation, counts, strides, strict=True)
        yield tuple(slice(o * d, o * d + (c - 1) * s + 1 if c else o * d, s) for o, d, c, s in places)


def _reduce_window(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    """lax.reduce_window of ``kind`` sum, prod, max or min: window, strides, padding (pairs), base_dilation, window_dilation."""
    ufunc, identity = _KINDS[attrs["kind"]]
    x, strides, dilation = widen(xs[0]), attrs["strides"], attrs["window_dilation"]
    start = identity(xs[0].dtype)
    padded = spread(x, attrs["base_dilation"], attrs["padding"], start)
    counts = _counts(padded.shape, attrs["window"], strides, dilation)
    out = np.full(counts, start, x.dtype)
    with np.errstate(all="ignore"):
        for where in _parts(attrs["window"], counts, strides, dilation):
            ufunc(out, padded[where], out=out)
        return [out.astype(xs[0].dtype, copy=False)]


def _conv(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    """lax.conv_general_dilated of x [n, c, spatial...] with w [out, c / groups, spatial...]: strides, padding (pairs),
    base_dilation, window_dilation, groups, batch_groups, dtype. 16-bit floats are accumulated in float32."""
    x, w = xs
    dtype = dtype_attr(attrs)
    accumulate = np.dtype(np.float32) if is_float(dtype) and dtype.itemsize < 4 else dtype
    x, w = x.astype(accumulate, copy=False), w.astype(accumulate, copy=False)
    groups = attrs["groups"]
    if (
        attrs["batch_groups"] > 1
    ):  # group i of the batch meets group i of the filters: as channels they are ordinary groups
        groups = attrs["batch_groups"]
        split = x.reshape(groups, x.shape[0] // groups, *x.shape[1:])
        x = np.moveaxis(split, 0, 1).reshape(split.shape[1], groups * x.shape[1], *x.shape[2:])
    strides, dilation, window = attrs["strides"], attrs["window_dilation"], w.shape[2:]
    padded = spread(x, (1, 1, *attrs["base_dilation"]), ((0, 0), (0, 0), *attrs["padding"]), 0)
    counts = _counts(padded.shape[2:], window, strides, dilation)
    n, inner, places = x.shape[0], w.shape[1], math.prod(counts)
    padded = padded.reshape(n, groups, inner, *padded.shape[2:])
    filters = w.reshape(groups, w.shape[0] // groups, inner, math.prod(window))
    out = np.zeros((n, groups, filters.shape[1], places), accumulate)
    with np.errstate(all="ignore"):
        for k, where in enumerate(_parts(window, counts, strides, dilation)):
            part = padded[(slice(None),) * 3 + where].reshape(n, groups, inner, places)
            out += np.matmul(filters[..., k], part)
        return [out.reshape(n, w.shape[0], *counts).astype(dtype, copy=False)]


FUNCTIONS: dict[str, HostFunction] = {"reduce_window": _reduce_window, "conv": _conv}
