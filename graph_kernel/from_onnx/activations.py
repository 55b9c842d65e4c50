"""Activation functions as compositions of elementwise ops."""

from __future__ import annotations

import math

from graph_kernel.from_onnx.builder import Builder
from graph_kernel.from_onnx.registry import MICROSOFT, Call, Result, converter
from graph_kernel.ir import Value


@converter("Relu")
def _relu(c: Call) -> Result:
    return c.builder.maximum(c.x(), 0)


@converter("LeakyRelu")
def _leaky_relu(c: Call) -> Result:
    b, x = c.builder, c.x()
    return b.select(b.binary("lt", x, 0), b.mul(x, c.attr("alpha", 0.01)), x)


@converter("PRelu")
def _prelu(c: Call) -> Result:
    b, x = c.builder, c.x()
    return b.select(b.binary("lt", x, 0), b.mul(x, c.x(1)), x)


@converter("ThresholdedRelu")
def _thresholded_relu(c: Call) -> Result:
    b, x = c.builder, c.x()
    return b.select(b.binary("gt", x, c.attr("alpha", 1.0)), x, 0)


@converter("Shrink")
def _shrink(c: Call) -> Result:
    b, x = c.builder, c.x()
    lambd, bias = c.attr("lambd", 0.5), c.attr("bias", 0.0)
    right = b.select(b.binary("gt", x, lambd), b.sub(x, bias), 0)
    return b.select(b.binary("lt", x, -lambd), b.add(x, bias), right)


def gelu(b: Builder, x: Value, tanh: bool) -> Value:
    """GELU, exact (erf) or by the tanh approximation."""
    if not tanh:
        return b.mul(b.mul(x, 0.5), b.add(b.unary("erf", b.mul(x, math.sqrt(0.5))), 1.0))
    inner = b.mul(b.add(x, b.mul(b.mul(b.unary("square", x), x), 0.044715)), math.sqrt(2 / math.pi))
    return b.mul(b.mul(x, 0.5), b.add(b.unary("tanh", inner), 1.0))


@converter("Gelu")
def _gelu(c: Call) -> Result:
    x = c.x()
    b = c.builder
    return b.cast(gelu(b, b.wide(x), c.attr("approximate", "none") == "tanh"), x.dtype)


@converter("Gelu", domain=MICROSOFT)
def _ms_gelu(c: Call) -> Result:
    return gelu(c.builder, c.x(), False)


@converter("BiasGelu", domain=MICROSOFT)
def _bias_gelu(c: Call) -> Result:
    return gelu(c.builder, c.builder.add(c.x(0), c.x(1)), False)


@converter("FastGelu", domain=MICROSOFT)
def _fast_gelu(c: Call) -> Result:
    x = c.builder.add(c.x(0), c.x(1)) if c.has(1) else c.x(0)
    return gelu(c.builder, x, True)


@converter("QuickGelu", domain=MICROSOFT)
def _quick_gelu(c: Call) -> Result:
    b, x = c.builder, c.x()
    return b.mul(x, b.unary("logistic", b.mul(x, c.attr("alpha", 1.702))))


@converter("Swish")
def _swish(c: Call) -> Result:
    b, x = c.builder, c.x()
    return b.mul(x, b.unary("logistic", b.mul(x, c.attr("alpha", 1.0))))


@converter("HardSigmoid")
def _hard_sigmoid(c: Call) -> Result:
    return hard_sigmoid(c.builder, c.x(), c.attr("alpha", 0.2), c.attr("beta", 0.5))


def hard_sigmoid(b: Builder, x: Value, alpha: float, beta: float) -> Value:
    """max(0, min(1, alpha * x + beta))."""
    return b.maximum(b.minimum(b.add(b.mul(x, alpha), beta), 1.0), 0.0)


@converter("HardSwish")
def _hard_swish(c: Call) -> Result:
    x = c.x()
    return c.builder.mul(x, hard_sigmoid(c.builder, x, 1 / 6, 0.5))


def softplus(b: Builder, x: Value) -> Value:
    """log(1 + exp(x)) without overflow: max(x, 0) + log1p(exp(-|x|))."""
    return b.add(b.maximum(x, 0), b.unary("log1p", b.unary("exp", b.unary("neg", b.unary("abs", x)))))


@converter("Softplus")
def _softplus(c: Call) -> Result:
    return softplus(c.builder, c.x())


@converter("Softsign")
def _softsign(c: Call) -> Result:
    b, x = c.builder, c.x()
    return b.div(x, b.add(b.unary("abs", x), 1))


@converter("Mish")
def _mish(c: Call) -> Result:
    b, x = c.builder, c.x()
    return b.mul(x, b.unary("tanh", softplus(b, x)))


def _elu(b: Builder, x: Value, alpha: float, inside: float = 1.0) -> Value:
    """x where it is positive, else alpha * (exp(x / inside) - 1); the exponent is clamped so that it stays finite."""
    low = b.minimum(x, 0)
    scaled = low if inside == 1.0 else b.div(low, inside)
    return b.select(b.binary("gt", x, 0), x, b.mul(b.unary("expm1", scaled), alpha))


@converter("Elu")
def _onnx_elu(c: Call) -> Result:
    return _elu(c.builder, c.x(), c.attr("alpha", 1.0))


@converter("Celu")
def _celu(c: Call) -> Result:
    alpha = c.attr("alpha", 1.0)
    return _elu(c.builder, c.x(), alpha, alpha)


@converter("Selu")
def _selu(c: Call) -> Result:
    alpha, gamma = c.attr("alpha", 1.67326319217681884765625), c.attr("gamma", 1.05070102214813232421875)
    return c.builder.mul(_elu(c.builder, c.x(), alpha), gamma)


def exp_and_sum(b: Builder, x: Value, axis: int) -> tuple[Value, Value, Value]:
    """(x - max, exp of it, its sum spread back) along an axis: what softmax and log-softmax are made of."""
    shifted = b.op("sub", x, b.spread(b.reduce("reduce_max", x, (axis,)), (axis,), x.shape))
    powers = b.unary("exp", shifted)
    return shifted, powers, b.reduce("reduce_sum", powers, (axis,))


def softmax(b: Builder, x: Value, axis: int) -> Value:
    """Softmax in at least float32, in x's dtype."""
    _, powers, total = exp_and_sum(b, b.wide(x), axis)
    return b.cast(b.op("div", powers, b.spread(total, (axis,), x.shape)), x.dtype)


@converter("Softmax")
def _softmax(c: Call) -> Result:
    x = c.x()
    return softmax(c.builder, x, c.axis(c.attr("axis", -1), x.rank))


@converter("LogSoftmax")
def _log_softmax(c: Call) -> Result:
    b, x = c.builder, c.x()
    axis = c.axis(c.attr("axis", -1), x.rank)
    shifted, _, total = exp_and_sum(b, b.wide(x), axis)
    return b.cast(b.op("sub", shifted, b.spread(b.unary("log", total), (axis,), x.shape)), x.dtype)


@converter("Hardmax")
def _hardmax(c: Call) -> Result:
    b, x = c.builder, c.x()
    axis = c.axis(c.attr("axis", -1), x.rank)
    first = b.op("argmax", x, axis=axis, dtype=b.iota((1,), 0).dtype)
    return b.cast(b.op("eq", b.iota(x.shape, axis), b.spread(first, (axis,), x.shape)), x.dtype)
