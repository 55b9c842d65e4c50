"""Elementwise arithmetic, comparison, logic and casts."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

from graph_kernel.from_onnx.builder import Builder
from graph_kernel.from_onnx.registry import CONVERTERS, Call, Result, converter, np_dtype
from graph_kernel.ir import Value

UNARY = {
    "Abs": "abs", "Neg": "neg", "Sign": "sign", "Floor": "floor", "Ceil": "ceil", "Round": "round", "Exp": "exp",
    "Log": "log", "Sqrt": "sqrt", "Reciprocal": "reciprocal", "Sin": "sin", "Cos": "cos", "Tan": "tan", "Asin": "asin",
    "Acos": "acos", "Atan": "atan", "Sinh": "sinh", "Cosh": "cosh", "Tanh": "tanh", "Asinh": "asinh", "Acosh": "acosh",
    "Atanh": "atanh", "Erf": "erf", "Sigmoid": "logistic", "Not": "not", "BitwiseNot": "not", "IsNaN": "is_nan",
}  # fmt: skip
BINARY = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "And": "and", "Or": "or", "Xor": "xor", "BitwiseAnd": "and",
    "BitwiseOr": "or", "BitwiseXor": "xor", "Equal": "eq", "Less": "lt", "LessOrEqual": "le", "Greater": "gt",
    "GreaterOrEqual": "ge",
}  # fmt: skip


def _unary(name: str) -> Callable[[Call], Result]:
    return lambda c: c.builder.unary(name, c.x())


def _binary(name: str) -> Callable[[Call], Result]:
    return lambda c: c.builder.binary(name, c.x(0), c.x(1))


for _onnx, _name in UNARY.items():
    CONVERTERS["", _onnx] = _unary(_name)
for _onnx, _name in BINARY.items():
    CONVERTERS["", _onnx] = _binary(_name)


def _fold(c: Call, name: str) -> Value:
    first, *rest = c.xs()
    for other in rest:
        first = c.builder.binary(name, first, other)
    return first


@converter("Sum")
def _sum(c: Call) -> Result:
    return _fold(c, "add")


@converter("Max")
def _max(c: Call) -> Result:
    return _fold(c, "max")


@converter("Min")
def _min(c: Call) -> Result:
    return _fold(c, "min")


@converter("Mean")
def _mean(c: Call) -> Result:
    return c.builder.div(_fold(c, "add"), len(c.xs()))


@converter("Pow")
def _pow(c: Call) -> Result:
    b, x = c.builder, c.x(0)
    exponent = c.number(1)
    if exponent is not None and c.tensor(1).shape in ((), (1,)) and x.rank >= len(c.tensor(1).shape):
        if exponent == 1:
            return x
        if exponent == 2:
            return b.unary("square", x)
        if exponent == 3:
            return b.mul(b.unary("square", x), x)
    y = c.x(1)
    if x.dtype.kind in "iu" and y.dtype.kind not in "iu":
        return b.cast(b.binary("pow", b.cast(x, y.dtype), y), x.dtype)
    return b.binary("pow", x, b.cast(y, x.dtype))


@converter("Mod")
def _mod(c: Call) -> Result:
    b = c.builder
    x, y = b.broadcast(c.x(0), c.x(1))
    rest = b.op("rem", x, y)
    if c.attr("fmod", 0) or x.dtype.kind == "u":
        return rest
    # the result has the divisor's sign, as in Python
    differs = b.op("ne", b.binary("lt", rest, 0), b.binary("lt", y, 0))
    return b.select(b.op("and", b.binary("ne", rest, 0), differs), b.add(rest, y), rest)


@converter("BitShift")
def _bit_shift(c: Call) -> Result:
    """A shift by the width or more shifts everything out; a signed right shift keeps the sign."""
    b, (x, y) = c.builder, c.builder.broadcast(c.x(0), c.x(1))
    width = x.dtype.itemsize * 8
    if c.attr("direction") == "LEFT":
        return b.op("shift_left", x, y)
    if x.dtype.kind == "u":
        return b.op("shift_right_logical", x, y)
    outside = b.op("or", b.binary("lt", y, 0), b.binary("ge", y, width))
    return b.op("shift_right_arithmetic", x, b.select(outside, width - 1, y))


@converter("IsInf")
def _is_inf(c: Call) -> Result:
    b, x = c.builder, c.x()
    positive, negative = c.attr("detect_positive", 1), c.attr("detect_negative", 1)
    if positive and negative:
        return b.unary("is_inf", x)
    if not positive and not negative:
        return b.full(x.shape, False, np.bool_)
    return b.binary("eq", x, float("inf") if positive else float("-inf"))


@converter("Where")
def _where(c: Call) -> Result:
    return c.builder.select(c.x(0), c.x(1), c.x(2))


@converter("Clip")
def _clip(c: Call) -> Result:
    b, x = c.builder, c.x()
    low, high = c.maybe(1), c.maybe(2)
    if low is not None:
        x = b.maximum(x, b.reshape(low, ()))
    return x if high is None else b.minimum(x, b.reshape(high, ()))


@converter("Cast")
def _cast(c: Call) -> Result:
    return _converted(c, np_dtype(c.attr("to"), c.where()))


@converter("CastLike")
def _cast_like(c: Call) -> Result:
    return _converted(c, c.tensor(1).dtype)


def _converted(c: Call, dtype: np.dtype) -> Value:
    """A cast to an 8-bit float keeps within its range, unless ``saturate`` is 0; NaN stays."""
    b, x = c.builder, c.x()
    if dtype.name == "float8_e8m0fnu" and x.dtype != dtype:
        raise c.unsupported("a cast to float8_e8m0fnu, which has rounding modes of its own")
    if dtype.name.startswith("float8") and x.dtype != dtype and c.attr("saturate", 1):
        limit = float(ml_dtypes.finfo(dtype).max)
        x = b.minimum(b.maximum(b.cast(x, np.float32), -limit), limit)
    return cast(b, x, dtype)


def cast(b: Builder, x: Value, dtype: np.dtype) -> Value:
    """ONNX Cast: floats truncate towards zero when they become integers."""
    return b.cast(x, dtype)


@converter("BitCast")
def _bit_cast(c: Call) -> Result:
    x, dtype = c.x(), np_dtype(c.attr("to"), c.where())
    if x.dtype == dtype:
        return x
    if x.dtype.itemsize != dtype.itemsize or "V" in (x.dtype.kind, dtype.kind):
        raise c.unsupported(f"bits of {x.dtype} as {dtype}")
    return c.builder.op("bitcast", x, dtype=dtype)


@converter("Identity")
def _identity(c: Call) -> Result:
    return c.tensor(0)


@converter("Dropout")
def _dropout(c: Call) -> Result:
    """Inference only: nothing is dropped."""
    if c.has(2) and c.number(2) is not False and c.number(2) != 0 and not (c.has(1) and c.number(1) == 0):
        raise c.unsupported("training mode is random")
    x = c.tensor(0)
    return x, (c.builder.full(x.shape, True, np.bool_) if c.wants(1) else None)
