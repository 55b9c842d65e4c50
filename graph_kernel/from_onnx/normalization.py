"""Normalisations, as canonical compositions of reductions and elementwise ops in float32."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import symbolic
from graph_kernel.from_onnx.builder import Builder
from graph_kernel.from_onnx.registry import MICROSOFT, Call, Result, converter
from graph_kernel.ir import Value


def centred(b: Builder, x: Value, axes: Sequence[int]) -> tuple[Value, Value, Value]:
    """(mean, x - mean, mean of its square): mean and variance without the axes."""
    mean = b.mean(x, axes)
    diff = b.op("sub", x, b.spread(mean, axes, x.shape))
    return mean, diff, b.mean(b.unary("square", diff), axes)


def standardise(b: Builder, x: Value, axes: Sequence[int], epsilon: float) -> tuple[Value, Value, Value]:
    """((x - mean) / sqrt(var + epsilon), mean, 1 / sqrt(var + epsilon)) over axes; the last two without them."""
    mean, diff, variance = centred(b, x, axes)
    inverse = b.unary("rsqrt", b.add(variance, epsilon))
    return b.op("mul", diff, b.spread(inverse, axes, x.shape)), mean, inverse


def rms(b: Builder, x: Value, axes: Sequence[int], epsilon: float) -> tuple[Value, Value]:
    """(x / sqrt(mean(x^2) + epsilon), the inverse root)."""
    inverse = b.unary("rsqrt", b.add(b.mean(b.unary("square", x), axes), epsilon))
    return b.op("mul", x, b.spread(inverse, axes, x.shape)), inverse


def _per_channel(b: Builder, v: Value, rank: int, dtype: np.dtype | None = None) -> Value:
    """[C] as [C, 1, ...], to broadcast against [N, C, ...]."""
    v = v if dtype is None else b.cast(v, dtype)
    return b.reshape(v, (v.shape[0],) + (1,) * (rank - 2))


@converter("LayerNormalization")
def _layer_norm(c: Call) -> Result:
    b, x = c.builder, c.x(0)
    axes = list(range(c.axis(c.attr("axis", -1), x.rank), x.rank))
    y, mean, inverse = standardise(b, b.wide(x), axes, c.attr("epsilon", 1e-5))
    y = b.mul(b.cast(y, x.dtype), c.x(1))
    y = b.add(y, c.x(2)) if c.has(2) else y
    return y, *(b.unsqueeze(v, *axes) if c.wants(i) else None for i, v in ((1, mean), (2, inverse)))


@converter("RMSNormalization", "SimplifiedLayerNormalization")
def _rms_norm(c: Call) -> Result:
    b, x = c.builder, c.x(0)
    axes = list(range(c.axis(c.attr("axis", -1), x.rank), x.rank))
    y, inverse = rms(b, b.wide(x), axes, c.attr("epsilon", 1e-5))
    return b.mul(b.cast(y, x.dtype), c.x(1)), (b.unsqueeze(inverse, *axes) if c.wants(1) else None)


@converter("SkipSimplifiedLayerNormalization", "SkipLayerNormalization", domain=MICROSOFT)
def _skip_norm(c: Call) -> Result:
    """norm(input + skip + bias) * gamma (+ beta); output 3 is that sum."""
    b = c.builder
    simplified = c.node.op_type == "SkipSimplifiedLayerNormalization"
    total = b.add(c.x(0), c.x(1))
    bias = 3 if simplified else 4
    if c.has(bias):
        total = b.add(total, c.x(bias))
    axes, epsilon = [total.rank - 1], c.attr("epsilon", 1e-5)
    wide = b.wide(total)
    y = rms(b, wide, axes, epsilon)[0] if simplified else standardise(b, wide, axes, epsilon)[0]
    y = b.mul(b.cast(y, total.dtype), c.x(2))
    if not simplified and c.has(3):
        y = b.add(y, c.x(3))
    return y, None, None, total


@converter("SimplifiedLayerNormalization", domain=MICROSOFT)
def _ms_rms_norm(c: Call) -> Result:
    return _rms_norm(c)


@converter("GroupNormalization")
def _group_norm(c: Call) -> Result:
    """x[N, C, ...] in groups of channels; scale and bias per channel (opset 21) or per group (18)."""
    b, x = c.builder, c.x(0)
    groups = c.attr("num_groups")
    channels = x.shape[1]
    b.require(symbolic.divides(groups, channels), f"num_groups must divide {channels} channels")
    per_group = channels // groups
    shape = (x.shape[0], groups, per_group, *x.shape[2:])
    y = standardise(b, b.wide(b.reshape(x, shape)), range(2, len(shape)), c.attr("epsilon", 1e-5))[0]
    y = b.cast(y, x.dtype)
    if c.opset >= 21:
        y = b.reshape(y, x.shape)
        return b.add(b.mul(y, _per_channel(b, c.x(1), x.rank)), _per_channel(b, c.x(2), x.rank))
    y = b.add(b.mul(y, _per_channel(b, c.x(1), len(shape))), _per_channel(b, c.x(2), len(shape)))
    return b.reshape(y, x.shape)


@converter("InstanceNormalization")
def _instance_norm(c: Call) -> Result:
    b, x = c.builder, c.x(0)
    y = b.cast(standardise(b, b.wide(x), range(2, x.rank), c.attr("epsilon", 1e-5))[0], x.dtype)
    return b.add(b.mul(y, _per_channel(b, c.x(1), x.rank)), _per_channel(b, c.x(2), x.rank))


@converter("BatchNormalization")
def _batch_norm(c: Call) -> Result:
    """(x - mean) / sqrt(var + epsilon) * scale + bias by channel; in training mode with the batch's own statistics."""
    b, x = c.builder, c.x(0)
    wide = b.wide(x)
    scale, bias, mean, variance = (b.cast(c.x(i), wide.dtype) for i in range(1, 5))
    running: list[Value | None] = [None, None]
    if c.attr("training_mode", 0):
        axes = [0, *range(2, x.rank)]
        keep = c.attr("momentum", 0.9)
        old = (mean, variance)
        mean, _, variance = centred(b, wide, axes)
        running = [
            b.cast(b.add(b.mul(was, keep), b.mul(now, 1 - keep)), c.tensor(i).dtype)
            for i, was, now in ((3, old[0], mean), (4, old[1], variance))
        ]
    factor = b.mul(b.unary("rsqrt", b.add(variance, c.attr("epsilon", 1e-5))), scale)
    y = b.mul(b.sub(wide, _per_channel(b, mean, x.rank)), _per_channel(b, factor, x.rank))
    return b.cast(b.add(y, _per_channel(b, bias, x.rank)), x.dtype), *running


@converter("LpNormalization")
def _lp_norm(c: Call) -> Result:
    b, x = c.builder, c.x()
    axis = c.axis(c.attr("axis", -1), x.rank)
    if c.attr("p", 2) == 1:
        norm = b.reduce("reduce_sum", b.unary("abs", x), (axis,))
    else:
        norm = b.unary("sqrt", b.reduce("reduce_sum", b.unary("square", x), (axis,)))
    norm = b.spread(norm, (axis,), x.shape)
    return b.select(b.binary("eq", norm, 0), 0, b.op("div", x, norm))


@converter("LRN")
def _lrn(c: Call) -> Result:
    """x / (bias + alpha / size * sum of squares over `size` neighbouring channels) ** beta."""
    b, x = c.builder, c.x()
    size = c.attr("size")
    if not 1 <= size <= 1024:
        raise c.unsupported(f"a neighbourhood of {size} channels")
    low, high = [0] * x.rank, [0] * x.rank
    low[1], high[1] = (size - 1) // 2, size // 2
    padded = b.pad(b.unary("square", x), low, high)
    channels = x.shape[1]
    total = b.slice_axis(padded, 1, 0, channels)
    for i in range(1, size):
        total = b.add(total, b.slice_axis(padded, 1, i, channels + i))
    scale = b.add(b.mul(total, c.attr("alpha", 0.0001) / size), c.attr("bias", 1.0))
    return b.div(x, b.binary("pow", scale, c.attr("beta", 0.75)))
