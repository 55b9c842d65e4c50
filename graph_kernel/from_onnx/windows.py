"""Convolution and pooling, composed of strided slices, products and reductions, so that nothing needs the host."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import symbolic
from graph_kernel.from_onnx.builder import Builder
from graph_kernel.from_onnx.dims import at_least, is_less, larger
from graph_kernel.from_onnx.registry import Call, Result, converter
from graph_kernel.ir import Value
from symbolic import Dim

MAX_TAPS = 4096  # positions in a window, each a slice of its own


@dataclass(frozen=True)
class Window:
    """A window that moves along one spatial axis of size ``n``, and how often it fits."""

    n: Dim
    size: int
    stride: int
    dilation: int
    low: Dim
    high: Dim
    count: Dim

    @property
    def reach(self) -> int:
        """Elements from the first to the last tap."""
        return (self.size - 1) * self.dilation + 1

    @property
    def tiles(self) -> bool:
        """Whether windows neither overlap nor leave gaps nor touch padding."""
        unpadded = all(isinstance(p, int) and p == 0 for p in (self.low, self.high))
        return unpadded and self.size == self.stride and self.dilation == 1


def windows(c: Call, sizes: Sequence[Dim], kernel: Sequence[int]) -> list[Window]:
    """The windows of a Conv or pooling node along its spatial axes."""
    rank = len(kernel)
    strides = c.attr("strides") or [1] * rank
    dilations = c.attr("dilations") or [1] * rank
    pads = c.attr("pads") or [0] * (2 * rank)
    auto, ceil = c.attr("auto_pad", "NOTSET"), bool(c.attr("ceil_mode", 0))
    if math.prod(kernel) > MAX_TAPS or min([*kernel, *strides, *dilations], default=1) < 1:
        raise c.unsupported(f"a window of {list(kernel)}, strides {strides} and dilations {dilations}")
    if not len(sizes) == len(strides) == len(dilations) == rank or len(pads) != 2 * rank:
        raise c.unsupported(f"strides, dilations and pads have to fit {rank} spatial axes")
    scope, found = c.builder.scope, []
    for i, n in enumerate(sizes):
        size, stride, dilation = kernel[i], strides[i], dilations[i]
        reach = (size - 1) * dilation + 1
        low: Dim = pads[i]
        high: Dim = pads[i + rank]
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            count = symbolic.ceildiv(n, stride)
            total = larger(scope, 0, (count - 1) * stride + reach - n)
            low = total // 2 if auto == "SAME_UPPER" else total - total // 2
            high = total - low
        else:
            low, high = (0, 0) if auto == "VALID" else (low, high)
            room = n + low + high - reach
            count = (symbolic.ceildiv(room, stride) if ceil else room // stride) + 1
            if ceil:  # the last window has to start inside the input or its left padding
                count = count - is_less(scope, n + low - 1, (count - 1) * stride)
        found.append(Window(n, size, stride, dilation, low, high, larger(scope, count, 0)))
    return found


def taps(b: Builder, x: Value, ws: Sequence[Window], fill: float) -> list[Value]:
    """For every position in the window the elements of ``x`` there: [N, C, count...] each.

    Padded so far that every position has room for ``count`` whole strides: the slices' sizes are then plainly ``count``.
    """
    first = x.rank - len(ws)
    low: list[Dim] = [0] * x.rank
    high: list[Dim] = [0] * x.rank
    for axis, w in enumerate(ws, start=first):
        low[axis], high[axis] = w.low, larger(b.scope, 0, w.count * w.stride + w.reach - 1 - w.n - w.low)
    x = b.pad(x, low, high, fill)
    lengths = [w.count * w.stride for w in ws]
    found = []
    for position in itertools.product(*(range(w.size) for w in ws)):
        offsets = [at * w.dilation for w, at in zip(ws, position, strict=True)]
        starts: list[Dim] = [*(0,) * first, *offsets]
        limits = list(x.shape[:first]) + [s + n for s, n in zip(starts[first:], lengths, strict=True)]
        strides = (1,) * first + tuple(w.stride for w in ws)
        whole = all(isinstance(s, int) and s == 0 for s in starts) and tuple(limits) == x.shape and set(strides) == {1}
        found.append(x if whole else b.op("slice", x, starts=tuple(starts), limits=tuple(limits), strides=strides))
    return found


def reduce_windows(b: Builder, x: Value, ws: Sequence[Window], reduce: str, combine: str, fill: float) -> Value:
    """A reduction over every window; windows that tile the input become an axis of their own."""
    first = x.rank - len(ws)
    if all(w.tiles and at_least(b.scope, w.n, w.count * w.stride) for w in ws):
        shape: list[Dim] = list(x.shape[:first])
        for axis, w in enumerate(ws, start=first):
            x = b.slice_axis(x, axis, 0, w.count * w.stride)
            shape += [w.count, w.size]
        return b.reduce(reduce, b.reshape(x, shape), [first + 2 * i + 1 for i in range(len(ws))])
    first_tap, *others = taps(b, x, ws, fill)
    for tap in others:
        first_tap = b.op(combine, first_tap, tap)
    return first_tap


def lowest(dtype: np.dtype) -> float:
    """What max starts from."""
    return np.iinfo(dtype).min if dtype.kind in "iu" else float("-inf")


@converter("MaxPool")
def _max_pool(c: Call) -> Result:
    b, x = c.builder, c.x()
    if c.wants(1):
        raise c.unsupported("the indices of the maxima are not supported")
    ws = windows(c, x.shape[2:], c.attr("kernel_shape"))
    return reduce_windows(b, x, ws, "reduce_max", "max", lowest(x.dtype))


@converter("AveragePool")
def _average_pool(c: Call) -> Result:
    b, x = c.builder, c.x()
    ws = windows(c, x.shape[2:], c.attr("kernel_shape"))
    out = reduce_windows(b, b.wide(x), ws, "reduce_sum", "add", 0)
    include = bool(c.attr("count_include_pad", 0))
    for axis, w in enumerate(ws, start=2):
        divisor = _window_counts(b, w, include, out.dtype)
        out = b.div(out, divisor if divisor.rank == 0 else b.reshape(divisor, (w.count,) + (1,) * (x.rank - 1 - axis)))
    return b.cast(out, x.dtype)


def _window_counts(b: Builder, w: Window, include_pad: bool, dtype: np.dtype) -> Value:
    """How many elements each window averages along one axis: a number, or [count]."""
    first, end = (0 - w.low, w.n + w.high) if include_pad else (0, w.n)
    last = (w.count - 1) * w.stride - w.low + w.reach
    if at_least(b.scope, 0 - w.low, first) and at_least(b.scope, end, last):
        return b.scalar(w.size, dtype)
    starts = b.sub(b.mul(b.iota((w.count,), 0), w.stride), b.dim(w.low))
    total: Value | None = None
    for at in range(w.size):
        place = b.add(starts, at * w.dilation)
        inside = b.op("and", b.binary("ge", place, b.dim(first)), b.binary("lt", place, b.dim(end)))
        one = b.cast(inside, dtype)
        total = one if total is None else b.op("add", total, one)
    assert total is not None  # a kernel has at least one element
    return b.maximum(total, 1)


@converter("LpPool")
def _lp_pool(c: Call) -> Result:
    b, x, p = c.builder, c.x(), c.attr("p", 2)
    ws = windows(c, x.shape[2:], c.attr("kernel_shape"))
    powers = b.binary("pow", b.unary("abs", x), float(p))
    return b.binary("pow", reduce_windows(b, powers, ws, "reduce_sum", "add", 0), 1.0 / p)


@converter("GlobalMaxPool")
def _global_max_pool(c: Call) -> Result:
    x = c.x()
    return c.builder.reduce("reduce_max", x, range(2, x.rank), keepdims=True)


@converter("GlobalAveragePool")
def _global_average_pool(c: Call) -> Result:
    b, x = c.builder, c.x()
    return b.cast(b.mean(b.wide(x), range(2, x.rank), keepdims=True), x.dtype)


@converter("GlobalLpPool")
def _global_lp_pool(c: Call) -> Result:
    b, x, p = c.builder, c.x(), float(c.attr("p", 2))
    total = b.reduce("reduce_sum", b.binary("pow", b.unary("abs", x), p), range(2, x.rank), keepdims=True)
    return b.binary("pow", total, 1.0 / p)


# ---- convolution


def convolve(b: Builder, x: Value, w: Value, ws: Sequence[Window], group: int) -> Value:
    """x[N, C, ...] * w[O, C / group, ...] -> [N, O, count...], as one product over channels and window positions."""
    n, out_channels, per_group = x.shape[0], w.shape[0], w.shape[1]
    b.require_equal(x.shape[1], per_group * group, "the channels have to fit the weights")
    parts = taps(b, x, ws, 0)
    counts = tuple(w_.count for w_ in ws)
    places = symbolic.product(counts)
    if isinstance(per_group, int) and per_group == 1 and b.same_dim(out_channels, group):
        return _depthwise(b, parts, w, counts)
    size = len(parts)
    spatial = b.transpose(b.reshape(w, (out_channels, per_group, size)), (0, 2, 1))
    rows = size * per_group
    if group == 1:
        columns = b.concat([b.reshape(p, (n, per_group, places)) for p in parts], 1)
        out = b.dot(columns, b.reshape(spatial, (out_channels, rows)), ((1,), (1,)))
        return b.reshape(b.transpose(out, (0, 2, 1)), (n, out_channels, *counts))
    columns = b.concat([b.reshape(p, (n, group, per_group, places)) for p in parts], 2)
    weights = b.reshape(spatial, (group, out_channels // group, rows))
    out = b.dot(weights, columns, ((2,), (2,)), ((0,), (1,)))
    return b.reshape(b.transpose(out, (2, 0, 1, 3)), (n, out_channels, *counts))


def _depthwise(b: Builder, parts: list[Value], w: Value, counts: tuple[Dim, ...]) -> Value:
    flat = b.reshape(w, (w.shape[0], len(parts)))
    total: Value | None = None
    for k, part in enumerate(parts):
        factor = b.reshape(b.slice_axis(flat, 1, k, k + 1), (w.shape[0],) + (1,) * len(counts))
        product = b.mul(part, factor)
        total = product if total is None else b.op("add", total, product)
    assert total is not None  # a kernel has at least one element
    return total


def _kernel(c: Call, w: Value) -> list[int]:
    kernel = list(w.shape[2:])
    if not all(isinstance(k, int) for k in kernel):
        raise c.unsupported(f"the size of the kernel has to be a number, it is {kernel}")
    return [int(k) for k in kernel]


def _with_bias(b: Builder, out: Value, bias: Value | None) -> Value:
    return out if bias is None else b.add(out, b.reshape(bias, (bias.shape[0],) + (1,) * (out.rank - 2)))


@converter("Conv")
def _conv(c: Call) -> Result:
    b, x, w = c.builder, c.x(0), c.x(1)
    out = convolve(b, x, w, windows(c, x.shape[2:], _kernel(c, w)), c.attr("group", 1))
    return _with_bias(b, out, c.maybe(2))


@converter("ConvInteger")
def _conv_integer(c: Call) -> Result:
    b = c.builder
    x, w = b.cast(c.x(0), np.int32), b.cast(c.x(1), np.int32)
    if c.has(2):
        x = b.sub(x, b.reshape(b.cast(c.x(2), np.int32), ()))
    if c.has(3):
        zero = b.cast(c.x(3), np.int32)
        w = b.sub(w, b.reshape(zero, (zero.shape[0],) + (1,) * (w.rank - 1)) if zero.rank else zero)
    return convolve(b, x, w, windows(c, x.shape[2:], _kernel(c, w)), c.attr("group", 1))


@converter("ConvTranspose")
def _conv_transpose(c: Call) -> Result:
    """The input spread by the strides, convolved with the mirrored kernel."""
    b, x, w = c.builder, c.x(0), c.x(1)
    group, kernel = c.attr("group", 1), _kernel(c, w)
    rank = len(kernel)
    strides, dilations = c.attr("strides") or [1] * rank, c.attr("dilations") or [1] * rank
    extra = c.attr("output_padding") or [0] * rank
    low: list[Dim] = [0, 0]
    high: list[Dim] = [0, 0]
    ws = []
    for i, size in enumerate(kernel):
        reach = (size - 1) * dilations[i] + 1
        n = x.shape[2 + i]
        full = (n - 1) * strides[i] + reach + extra[i]
        cut_low, cut_high = _transposed_pads(c, i, rank, n, full)
        count = larger(b.scope, full - cut_low - cut_high, 0)
        low.append(reach - 1 - cut_low)
        high.append(reach - 1 - cut_high + extra[i])
        ws.append(Window(count + reach - 1, size, 1, dilations[i], 0, 0, count))
    x = b.pad(x, low, high, 0, (0, 0, *(s - 1 for s in strides)))
    channels, per_group = w.shape[0], w.shape[1]
    w = b.rev(w, *range(2, w.rank))
    w = b.transpose(b.reshape(w, (group, channels // group, per_group, *kernel)), (0, 2, 1, *range(3, 3 + rank)))
    w = b.reshape(w, (group * per_group, channels // group, *kernel))
    return _with_bias(b, convolve(b, x, w, ws, group), c.maybe(2))


def _transposed_pads(c: Call, i: int, rank: int, n: Dim, full: Dim) -> tuple[Dim, Dim]:
    """What is cut off at both ends of the full result."""
    auto, wanted = c.attr("auto_pad", "NOTSET"), c.attr("output_shape")
    if wanted:
        total = full - wanted[i - rank]
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        total = full - n * (c.attr("strides") or [1] * rank)[i]
    else:
        pads = [0] * (2 * rank) if auto == "VALID" else c.attr("pads") or [0] * (2 * rank)
        return pads[i], pads[i + rank]
    half = total // 2
    return (half, total - half) if auto == "SAME_UPPER" else (total - half, half)
