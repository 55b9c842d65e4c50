"""QuantizeLinear, DequantizeLinear and products of quantised tensors."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from graph_kernel.from_onnx.builder import Builder
from graph_kernel.from_onnx.matmul import matmul
from graph_kernel.from_onnx.registry import Call, Result, converter, np_dtype
from graph_kernel.ir import Value


def _is_integer(dtype: np.dtype) -> bool:
    """Whether a dtype holds integers, those of 2 and 4 bits included."""
    return dtype.kind in "iu" or (dtype.kind == "V" and "int" in dtype.name)


def _per_axis(c: Call, v: Value, x: Value) -> Value:
    """A scale or zero point shaped to broadcast against x: per tensor, per axis, or in blocks along an axis."""
    b = c.builder
    if v.rank == 0 or v.shape == (1,):
        return b.reshape(v, ())
    axis = c.axis(c.attr("axis", 1), x.rank)
    if v.rank == 1:
        return b.reshape(v, (v.shape[0],) + (1,) * (x.rank - 1 - axis))
    block = c.attr("block_size", 0)
    if not block:
        raise c.unsupported("a scale of this rank needs a block size")
    wide = b.unsqueeze(v, axis + 1)
    spread = b.broadcast_to(wide, (*v.shape[: axis + 1], block, *v.shape[axis + 1 :]))
    whole = b.reshape(spread, (*v.shape[:axis], v.shape[axis] * block, *v.shape[axis + 1 :]))
    return b.slice_axis(whole, axis, 0, x.shape[axis])


def quantize(b: Builder, x: Value, scale: Value, zero: Value | None, dtype: np.dtype) -> Value:
    """saturate(round(x / scale) + zero)."""
    info = ml_dtypes.iinfo(dtype) if dtype.kind == "V" else np.iinfo(dtype)
    y = b.unary("round", b.div(x, scale))
    if zero is not None:
        y = b.add(y, b.cast(zero, x.dtype))
    return b.cast(b.minimum(b.maximum(y, float(info.min)), float(info.max)), dtype)


@converter("QuantizeLinear")
def _quantize_linear(c: Call) -> Result:
    b, x = c.builder, c.x(0)
    if c.has(2):
        dtype = c.tensor(2).dtype
    else:
        dtype = np_dtype(c.attr("output_dtype"), c.where()) if c.attr("output_dtype") else np.dtype(np.uint8)
    if not _is_integer(dtype):
        raise c.unsupported(f"quantising to {dtype}")
    x = b.cast(x, np.float32) if x.dtype.kind in "iu" else b.wide(x)
    scale = b.cast(_per_axis(c, c.x(1), x), x.dtype)
    zero = _per_axis(c, b.cast(c.x(2), np.int32), x) if c.has(2) else None
    return quantize(b, x, scale, zero, dtype)


@converter("DequantizeLinear")
def _dequantize_linear(c: Call) -> Result:
    b, x = c.builder, c.x(0)
    scale = c.x(1)
    out = np_dtype(c.attr("output_dtype"), c.where()) if c.attr("output_dtype") else scale.dtype
    y = b.cast(x, np.int32) if _is_integer(x.dtype) else b.cast(x, np.float32)
    if c.has(2) and _is_integer(x.dtype):
        y = b.sub(y, _per_axis(c, b.cast(c.x(2), np.int32), x))
    return b.cast(b.mul(b.cast(y, np.float32), b.cast(_per_axis(c, scale, x), np.float32)), out)


@converter("QLinearMatMul")
def _qlinear_matmul(c: Call) -> Result:
    b = c.builder
    x = b.sub(b.cast(c.x(0), np.int32), _column(b, b.cast(c.x(2), np.int32)))
    y = b.sub(b.cast(c.x(3), np.int32), b.cast(c.x(5), np.int32))
    scale = b.div(b.mul(_column(b, c.x(1)), c.x(4)), c.x(6))
    product = b.mul(b.cast(matmul(b, x, y), np.float32), b.cast(scale, np.float32))
    return quantize(b, product, b.scalar(1.0, np.float32), b.cast(c.x(7), np.int32), c.tensor(7).dtype)


def _column(b: Builder, v: Value) -> Value:
    return b.unsqueeze(v, 1) if v.rank == 1 and v.shape != (1,) else v
