"""Reductions, argmax and argmin, cumulative sums."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from graph_kernel.from_onnx.builder import Builder
from graph_kernel.from_onnx.registry import CONVERTERS, Call, Result, converter
from graph_kernel.ir import Value

Steps = Callable[[Builder, Value, list[int], bool], Value]


def _reduction(steps: Steps) -> Callable[[Call], Result]:
    def convert(c: Call) -> Result:
        x = c.x()
        axes = c.axes(1, x.rank)
        if not axes:
            axes = [] if c.attr("noop_with_empty_axes", 0) else list(range(x.rank))
        b = c.builder
        return b.cast(steps(b, b.wide(x), axes, bool(c.attr("keepdims", 1))), x.dtype)

    return convert


def _sum(b: Builder, x: Value, axes: list[int], keep: bool) -> Value:
    return b.reduce("reduce_sum", x, axes, keep)


def _prod(b: Builder, x: Value, axes: list[int], keep: bool) -> Value:
    return b.reduce("reduce_prod", x, axes, keep)


def _mean(b: Builder, x: Value, axes: list[int], keep: bool) -> Value:
    return b.mean(x, axes, keep) if axes else x


def _max(b: Builder, x: Value, axes: list[int], keep: bool) -> Value:
    return b.reduce("reduce_or" if x.dtype == np.bool_ else "reduce_max", x, axes, keep)


def _min(b: Builder, x: Value, axes: list[int], keep: bool) -> Value:
    return b.reduce("reduce_and" if x.dtype == np.bool_ else "reduce_min", x, axes, keep)


def _l1(b: Builder, x: Value, axes: list[int], keep: bool) -> Value:
    return _sum(b, b.unary("abs", x), axes, keep)


def _sum_square(b: Builder, x: Value, axes: list[int], keep: bool) -> Value:
    return _sum(b, b.unary("square", x), axes, keep)


def _l2(b: Builder, x: Value, axes: list[int], keep: bool) -> Value:
    wide = x if x.dtype.kind not in "iu" else b.cast(x, np.float32)
    return b.unary("sqrt", _sum_square(b, wide, axes, keep))


def _log_sum(b: Builder, x: Value, axes: list[int], keep: bool) -> Value:
    wide = x if x.dtype.kind not in "iu" else b.cast(x, np.float32)
    return b.unary("log", _sum(b, wide, axes, keep))


def _log_sum_exp(b: Builder, x: Value, axes: list[int], keep: bool) -> Value:
    """max + log(sum(exp(x - max))); an infinite max counts as 0, so that all -inf stays -inf."""
    x = x if x.dtype.kind not in "iu" else b.cast(x, np.float32)
    if not axes:
        return x
    top = b.reduce("reduce_max", x, axes)
    top = b.select(b.unary("is_inf", top), 0.0, top)
    total = b.reduce("reduce_sum", b.unary("exp", b.op("sub", x, b.spread(top, axes, x.shape))), axes)
    out = b.op("add", b.unary("log", total), top)
    return b.unsqueeze(out, *axes) if keep else out


for _name, _steps in {
    "Sum": _sum, "Prod": _prod, "Mean": _mean, "Max": _max, "Min": _min, "L1": _l1, "L2": _l2, "SumSquare": _sum_square,
    "LogSum": _log_sum, "LogSumExp": _log_sum_exp,
}.items():  # fmt: skip
    CONVERTERS["", "Reduce" + _name] = _reduction(_steps)


@converter("ArgMax", "ArgMin")
def _arg(c: Call) -> Result:
    b, x = c.builder, c.x()
    axis = c.axis(c.attr("axis", 0), x.rank)
    last = bool(c.attr("select_last_index", 0))
    name = "argmax" if c.node.op_type == "ArgMax" else "argmin"
    out = b.op(name, b.rev(x, axis) if last else x, axis=axis, dtype=np.dtype(np.int64))
    if last:
        out = b.sub(b.dim(x.shape[axis] - 1), out)
    return b.unsqueeze(out, axis) if c.attr("keepdims", 1) else out


@converter("CumSum", "CumProd")
def _cumulative(c: Call) -> Result:
    b, x = c.builder, c.x()
    axis = c.axis(c.ints(1)[0], x.rank)
    is_sum = c.node.op_type == "CumSum"
    reverse = bool(c.attr("reverse", 0))
    if c.attr("exclusive", 0):
        # element i leaves itself out: the same as the inclusive one of the sequence moved on by one
        low, high = [0] * x.rank, [0] * x.rank
        low[axis], high[axis] = (-1, 1) if reverse else (1, -1)
        x = b.pad(x, low, high, 0 if is_sum else 1)
    return b.op("cumsum" if is_sum else "cumprod", x, axis=axis, reverse=reverse)
