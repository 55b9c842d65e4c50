"""Resize: nearest, linear and cubic, one axis at a time."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from graph_kernel.from_onnx.builder import Builder
from graph_kernel.from_onnx.registry import Call, Result, converter
from graph_kernel.from_onnx.shaping import repeat
from graph_kernel.from_onnx.tensor import Ratio
from graph_kernel.ir import Value
from symbolic import Dim
from symbolic.functions import poly_divmod


@converter("Resize")
def _resize(c: Call) -> Result:
    b, x = c.builder, c.x(0)
    for name, fine in (("antialias", 0), ("exclude_outside", 0), ("keep_aspect_ratio_policy", "stretch")):
        if c.attr(name, fine) != fine:
            raise c.unsupported(f"{name} = {c.attr(name)} is not supported")
    axes = [c.axis(a, x.rank) for a in c.attr("axes", list(range(x.rank)))]
    sizes, scales = _targets(c, x, axes)
    mode = c.attr("mode", "nearest")
    if mode == "nearest" and _repeats(c, scales):
        times: list[tuple[Dim, Dim]] = [(1, 1)] * x.rank
        for axis, scale in zip(axes, scales, strict=True):
            times[axis] = (1, scale.num if isinstance(scale, Ratio) else int(scale))
        return repeat(b, x, times)
    dtype, y = x.dtype, x if mode == "nearest" else b.wide(x)
    y = b.cast(y, np.float32) if mode != "nearest" and y.dtype.kind in "iu" else y
    for axis, size, scale in zip(axes, sizes, scales, strict=True):
        if b.same_dim(size, x.shape[axis]) and _is_one(scale):
            continue
        at = _coordinates(c, x.shape[axis], size, scale)
        y = _nearest(c, y, axis, at) if mode == "nearest" else _weighted(c, y, axis, at, mode)
    return b.cast(y, dtype)


def _targets(c: Call, x: Value, axes: list[int]) -> tuple[list[Dim], list[Ratio | float]]:
    """Sizes and scales per axis, each made from the other where it is not given."""
    if c.has(3) and c.tensor(3).shape != (0,):
        sizes = c.dims(3)
        scales: list[Ratio | float] = [_scale_of(x.shape[a], s) for a, s in zip(axes, sizes, strict=True)]
        return sizes, scales
    known = c.tensor(2).known
    if known is None:
        raise c.unsupported("the scales depend on data")
    scales = list(known.flat)
    sizes = []
    for axis, scale in zip(axes, scales, strict=True):
        if isinstance(scale, Ratio):
            sizes.append(x.shape[axis] * scale.num // scale.den)
        else:
            fraction = Fraction(float(scale))
            sizes.append(x.shape[axis] * fraction.numerator // fraction.denominator)
    return sizes, scales


def _scale_of(size: Dim, target: Dim) -> Ratio | float:
    """target / size where that is a number; NaN stands for a scale only known at launch."""
    if isinstance(size, int) and isinstance(target, int):
        return target / size if size else 1.0
    if size == target:
        return 1.0
    if not isinstance(size, int):
        quotient = poly_divmod(target, size) if not isinstance(target, int) else (0, target)
        if isinstance(quotient[0], int) and isinstance(quotient[1], int) and quotient[1] == 0:
            return float(quotient[0])
    return float("nan")


def _is_one(scale: Ratio | float) -> bool:
    return not isinstance(scale, Ratio) and scale == 1.0


def _repeats(c: Call, scales: list[Ratio | float]) -> bool:
    """Whether every source index is i // scale: whole scales, and a rounding that agrees."""
    for scale in scales:
        if isinstance(scale, Ratio):
            if scale.den != 1:
                return False
        elif scale != scale or scale < 1 or scale != int(scale):
            return False
    how = (c.attr("coordinate_transformation_mode", "half_pixel"), c.attr("nearest_mode", "round_prefer_floor"))
    rounded = ("round_prefer_floor", "round_prefer_ceil")
    return how == ("asymmetric", "floor") or (how[0] == "half_pixel" and how[1] in rounded)


def _coordinates(c: Call, size: Dim, target: Dim, scale: Ratio | float) -> Value:
    """Where in the input each output element along an axis lies, float32 [target]."""
    b = c.builder
    mode = c.attr("coordinate_transformation_mode", "half_pixel")
    i = b.cast(b.iota((target,), 0), np.float32)
    n, whole = b.dim(size, np.float32), b.dim(target, np.float32)
    if isinstance(scale, Ratio):
        factor = b.div(b.dim(scale.num, np.float32), float(scale.den))
    else:
        factor = b.div(whole, n) if scale != scale else b.scalar(scale, np.float32)
    m = b.mul(n, factor)  # the size before it was rounded down
    if mode == "asymmetric":
        return b.div(i, factor)
    if mode == "align_corners":
        return b.div(b.mul(i, b.sub(n, 1.0)), b.maximum(b.sub(m, 1.0), 1.0))
    half = b.sub(b.div(b.add(i, 0.5), factor), 0.5)
    if mode == "half_pixel":
        return half
    if mode == "pytorch_half_pixel":
        return b.select(b.binary("gt", m, 1.0), half, 0.0)
    if mode == "half_pixel_symmetric":
        adjust = b.div(whole, m)
        return b.add(half, b.mul(b.mul(n, 0.5), b.sub(1.0, adjust)))
    raise c.unsupported(f"coordinate transformation {mode!r} is not supported")


def _clamped(b: Builder, index: Value, size: Dim) -> Value:
    return b.minimum(b.maximum(b.cast(index, np.int64), 0), b.dim(size - 1))


def _nearest(c: Call, x: Value, axis: int, at: Value) -> Value:
    b = c.builder
    mode = c.attr("nearest_mode", "round_prefer_floor")
    if mode == "round_prefer_floor":
        index = b.unary("ceil", b.sub(at, 0.5))
    elif mode == "round_prefer_ceil":
        index = b.unary("floor", b.add(at, 0.5))
    else:
        index = b.unary(mode, at)
    return b.take(x, _clamped(b, index, x.shape[axis]), axis)


def _weighted(c: Call, x: Value, axis: int, at: Value, mode: str) -> Value:
    b = c.builder
    low = b.unary("floor", at)
    t = b.op("sub", at, low)
    if mode == "linear":
        taps = [(0, b.sub(1.0, t)), (1, t)]
    elif mode == "cubic":
        taps = _cubic_taps(b, t, c.attr("cubic_coeff_a", -0.75))
    else:
        raise c.unsupported(f"mode {mode!r} is not supported")
    total: Value | None = None
    tail = (1,) * (x.rank - 1 - axis)
    for step, weight in taps:
        part = b.take(x, _clamped(b, b.add(low, float(step)), x.shape[axis]), axis)
        term = b.mul(part, b.reshape(b.cast(weight, x.dtype), (*weight.shape, *tail)))
        total = term if total is None else b.op("add", total, term)
    assert total is not None  # both modes have taps
    return total


def _cubic_taps(b: Builder, t: Value, a: float) -> list[tuple[int, Value]]:
    """Keys' cubic convolution kernel at the four neighbours."""

    def near(d: Value) -> Value:  # |d| <= 1
        return b.add(b.mul(b.mul(b.sub(b.mul(d, a + 2), a + 3), d), d), 1.0)

    def far(d: Value) -> Value:  # 1 < |d| < 2
        return b.sub(b.mul(b.add(b.mul(b.sub(b.mul(d, a), 5 * a), d), 8 * a), d), 4 * a)

    other = b.sub(1.0, t)
    return [(-1, far(b.add(t, 1.0))), (0, near(t)), (1, near(other)), (2, far(b.add(other, 1.0)))]
