"""Reductions, argmax/argmin and cumulative ops. 16-bit floats accumulate in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from graph_kernel.ir import Origin, Value
from graph_kernel.ops.base import (
    Attrs,
    OpDef,
    Pattern,
    Type,
    ValueRule,
    check_axis,
    fail,
    is_float,
    is_int,
    register,
    widen,
)
from symbolic import Dim, Scope, smax, smin


def lowest(dtype: np.dtype) -> Any:
    """The identity of max: -inf, the least integer, or False."""
    if is_float(dtype):
        return -np.inf
    return False if dtype == np.bool_ else np.iinfo(dtype).min


def highest(dtype: np.dtype) -> Any:
    """The identity of min: inf, the largest integer, or True."""
    if is_float(dtype):
        return np.inf
    return True if dtype == np.bool_ else np.iinfo(dtype).max


def _infer_reduce(name: str, accepts: Callable[[np.dtype], bool]) -> Callable[..., list[Type]]:
    def infer(scope: Scope, inputs: tuple[Value, ...], attrs: Attrs, origin: Origin) -> list[Type]:
        (x,) = inputs
        axes = [check_axis(a, x.rank, origin) for a in attrs["axes"]]
        if len(set(axes)) != len(axes):
            raise fail(origin, f"{name} names an axis twice: {tuple(axes)}")
        if not accepts(x.dtype):
            raise fail(origin, f"{name} is not defined on {x.dtype}")
        return [(tuple(n for a, n in enumerate(x.shape) if a not in axes), x.dtype)]

    return infer


def _reduce(ufunc: np.ufunc, initial: Callable[[np.dtype], Any]) -> Callable[..., list[np.ndarray]]:
    def evaluate(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
        x, axes = xs[0], tuple(attrs["axes"])
        if not axes:
            return [x]
        wide = widen(x)
        with np.errstate(all="ignore"):
            if ufunc is np.add and x.dtype.kind in "fiu":
                out = np.sum(wide, axis=axes, dtype=wide.dtype)  # pairwise
            else:
                out = ufunc.reduce(wide, axis=axes, dtype=wide.dtype, initial=wide.dtype.type(initial(x.dtype)))
        return [np.asarray(out).astype(x.dtype, copy=False)]

    return evaluate


def _fold(fn: Callable[[Dim, Dim], Dim]) -> ValueRule:
    """The value rule of a reduction by ``fn`` over non-empty axes."""

    def rule(scope: Scope, values: list[np.ndarray], attrs: Attrs) -> np.ndarray | None:
        (x,) = values
        axes = sorted(attrs["axes"])
        kept = [a for a in range(x.ndim) if a not in axes]
        moved = x.transpose(kept + axes).reshape([x.shape[a] for a in kept] + [-1] if axes and x.size else x.shape)
        if not axes or not x.size:
            return x if not axes else None
        out = np.empty(moved.shape[:-1], dtype=object)
        for index in np.ndindex(*out.shape):
            total: Any = moved[index][0]
            for entry in moved[index][1:]:
                total = None if total is None or entry is None else fn(total, entry)
            out[index] = total
        return out

    return rule


def _anything(dtype: np.dtype) -> bool:
    return True


def _number(dtype: np.dtype) -> bool:
    return dtype != np.bool_


def _bits(dtype: np.dtype) -> bool:
    return is_int(dtype) or dtype == np.bool_


_ONES: dict[str, Callable[[np.dtype], Any]] = {
    "and": lambda d: True if d == np.bool_ else np.array(-1).astype(d),
    "zero": lambda d: 0,
    "one": lambda d: 1,
}

for _name, _ufunc, _initial, _accepts, _value, _doc in (
    ("sum", np.add, _ONES["zero"], _number, lambda a, b: a + b, "sum"),
    ("prod", np.multiply, _ONES["one"], _number, lambda a, b: a * b, "product"),
    ("max", np.maximum, lowest, _anything, smax, "maximum; NaN wins; -inf or the least value if empty"),
    ("min", np.minimum, highest, _anything, smin, "minimum; NaN wins; inf or the largest value if empty"),
    ("and", np.bitwise_and, _ONES["and"], _bits, None, "bitwise and"),
    ("or", np.bitwise_or, _ONES["zero"], _bits, None, "bitwise or"),
):
    register(
        OpDef(
            f"reduce_{_name}",
            Pattern.REDUCE,
            1,
            _infer_reduce(f"reduce_{_name}", _accepts),
            _reduce(_ufunc, _initial),
            value_rule=None if _value is None else _fold(_value),
            doc=f"{_doc} over axes, which are removed",
        )
    )


def _infer_arg(scope: Scope, inputs: tuple[Value, ...], attrs: Attrs, origin: Origin) -> list[Type]:
    (x,) = inputs
    axis = check_axis(attrs["axis"], x.rank, origin)
    return [(x.shape[:axis] + x.shape[axis + 1 :], np.dtype(attrs["dtype"]))]


def _arg(fn: Callable[..., Any]) -> Callable[..., list[np.ndarray]]:
    def evaluate(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
        x, axis = widen(xs[0]), attrs["axis"]
        if x.shape[axis] == 0:
            return [np.zeros(x.shape[:axis] + x.shape[axis + 1 :], dtype=attrs["dtype"])]
        return [np.asarray(fn(x, axis=axis)).astype(attrs["dtype"])]

    return evaluate


for _name, _argfn in (("argmax", np.argmax), ("argmin", np.argmin)):
    register(
        OpDef(
            _name,
            Pattern.REDUCE,
            1,
            _infer_arg,
            _arg(_argfn),
            doc=f"first index of the {_name[3:]}imum along axis, which is removed; the first NaN wins; 0 if empty",
        )
    )


def _infer_cumulative(scope: Scope, inputs: tuple[Value, ...], attrs: Attrs, origin: Origin) -> list[Type]:
    check_axis(attrs["axis"], inputs[0].rank, origin)
    return [(inputs[0].shape, inputs[0].dtype)]


def _cumulative(ufunc: np.ufunc) -> Callable[..., list[np.ndarray]]:
    def evaluate(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
        axis = attrs["axis"]
        x = np.flip(xs[0], axis) if attrs.get("reverse") else xs[0]
        wide = widen(x)
        with np.errstate(all="ignore"):
            out = ufunc.accumulate(wide, axis=axis, dtype=wide.dtype)
        out = out.astype(x.dtype, copy=False)
        return [np.flip(out, axis) if attrs.get("reverse") else out]

    return evaluate


for _name, _accumulate, _doc in (
    ("cumsum", np.add, "running sum"),
    ("cumprod", np.multiply, "running product"),
    ("cummax", np.maximum, "running maximum"),
    ("cummin", np.minimum, "running minimum"),
    ("cumlogsumexp", np.logaddexp, "logarithm of the running sum of exponentials"),
):
    register(
        OpDef(
            _name,
            Pattern.REDUCE,
            1,
            _infer_cumulative,
            _cumulative(_accumulate),
            doc=f"{_doc} along axis, from its end with reverse; the shape stays",
        )
    )
