"""Elementwise ops: equal shapes in, the same shape out."""

from __future__ import annotations

import importlib
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
    entrywise,
    fail,
    is_float,
    is_int,
    register,
    same_shape_of,
    widen,
)
from symbolic import Dim, Scope, ge, gt, smax, smin
from symbolic import eq as eq_rel
from symbolic import le as le_rel
from symbolic import lt as lt_rel
from symbolic import ne as ne_rel

Check = Callable[[np.dtype], bool]


def _numeric(dtype: np.dtype) -> bool:
    return is_float(dtype) or is_int(dtype) or dtype.kind == "c"


def _floating(dtype: np.dtype) -> bool:
    return is_float(dtype) or dtype.kind == "c"


def _bits(dtype: np.dtype) -> bool:
    return is_int(dtype) or dtype == np.bool_


def _any(dtype: np.dtype) -> bool:
    return True


def infer_elementwise(name: str, accepts: Check, to_bool: bool = False) -> Callable[..., list[Type]]:
    """The shape rule of an elementwise op on operands of one dtype; comparisons give bool."""

    def infer(scope: Scope, inputs: tuple[Value, ...], attrs: Attrs, origin: Origin) -> list[Type]:
        dtypes = [v.dtype for v in inputs]
        if any(d != dtypes[0] for d in dtypes):
            raise fail(origin, f"{name} needs operands of one dtype, got {', '.join(map(str, dtypes))}")
        if not accepts(dtypes[0]):
            raise fail(origin, f"{name} is not defined on {dtypes[0]}")
        shape = same_shape_of(scope, inputs, origin, f"operands of {name}")
        return [(shape, np.dtype(bool) if to_bool else dtypes[0])]

    return infer


def rounded(fn: Callable[..., Any], to_bool: bool = False) -> Callable[[list[np.ndarray], Attrs], list[np.ndarray]]:
    """``evaluate`` from a NumPy function: 16-bit floats go through float32; no floating-point warnings."""

    def evaluate(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
        with np.errstate(all="ignore"):
            out = np.asarray(fn(*(widen(x) for x in xs)))
        return [out.astype(bool if to_bool else xs[0].dtype, copy=False)]

    return evaluate


def _define(
    name: str,
    n: int,
    fn: Callable[..., Any],
    doc: str,
    accepts: Check = _floating,
    to_bool: bool = False,
    value: Callable[..., Any] | None = None,
) -> None:
    rule: ValueRule | None = None
    if value is not None:

        def rule(scope: Scope, values: list[np.ndarray], attrs: Attrs) -> np.ndarray | None:
            if attrs["in_dtype"] == np.bool_ and accepts is _any and name in ("add", "mul"):
                return np.full(values[0].shape, None, dtype=object)  # on bool these are "or" and "and"
            return entrywise(lambda *entries: value(scope, *entries), *values)

    register(
        OpDef(
            name,
            Pattern.ELEMENTWISE,
            n,
            infer_elementwise(name, accepts, to_bool),
            rounded(fn, to_bool),
            value_rule=rule,
            doc=doc,
        )
    )


# ---- symbolic values of small integer tensors; bools are 0 and 1, None is "cannot tell"


def _compare(relation: Callable[[Dim, Dim], Any], opposite: Callable[[Dim, Dim], Any]) -> Callable[..., int | None]:
    def decide(scope: Scope, a: Dim, b: Dim) -> int | None:
        if scope.proves(relation(a, b)):
            return 1
        return 0 if scope.proves(opposite(a, b)) else None

    return decide


def divide(scope: Scope, a: Dim, b: Dim) -> Dim | None:
    """``a / b`` truncated toward zero, if the signs are known well enough to say."""
    if isinstance(a, int) and isinstance(b, int):
        return None if b == 0 else abs(a) // abs(b) * (1 if (a >= 0) == (b >= 0) else -1)
    if scope.proves(ge(a, 0)) and scope.proves(gt(b, 0)):
        return a // b
    return None


def remainder(scope: Scope, a: Dim, b: Dim) -> Dim | None:
    """``a - b * divide(a, b)``, if known."""
    if scope.proves(ge(a, 0)) and scope.proves(gt(b, 0)):
        return a % b
    quotient = divide(scope, a, b)
    return None if quotient is None else a - b * quotient


def _ints(fn: Callable[[int, int], int]) -> Callable[..., int | None]:
    return lambda scope, a, b: fn(a, b) if isinstance(a, int) and isinstance(b, int) else None


def _sign_value(scope: Scope, a: Dim) -> int | None:
    if scope.proves(gt(a, 0)):
        return 1
    if scope.proves(lt_rel(a, 0)):
        return -1
    return 0 if scope.proves(eq_rel(a, 0)) else None


# ---- NumPy meanings that NumPy does not have under one name


def _sign(x: np.ndarray) -> np.ndarray:
    return np.where(x == 0, x, np.sign(x)) if x.dtype.kind == "f" else np.sign(x)


def _logistic(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _special(name: str) -> Callable[[np.ndarray], np.ndarray]:
    def call(x: np.ndarray) -> np.ndarray:
        special = importlib.import_module("scipy.special")  # for the oracle and for constant folding only
        return getattr(special, name)(x)

    return call


def _int_div(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Truncating division; by zero it gives all ones, and the least integer over -1 wraps, as in XLA."""
    one = np.ones_like(y)
    safe = np.where(y == 0, one, y)
    if x.dtype.kind == "i":
        safe = np.where(safe == -1, one, safe)
    floor = np.floor_divide(x, safe)
    quotient = floor + ((floor * safe != x) & ((x < 0) != (safe < 0))).astype(x.dtype)
    if x.dtype.kind == "i":
        quotient = np.where(y == -1, -x, quotient)
    return np.where(y == 0, np.array(-1).astype(x.dtype), quotient)


def _div(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return _int_div(x, y) if is_int(x.dtype) else np.true_divide(x, y)


def _rem(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if not is_int(x.dtype):
        return np.fmod(x, y)
    return np.where(y == 0, x, x - _int_div(x, y) * y)


def _pow(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if not is_int(x.dtype):
        return np.power(x, y)
    result = np.power(x, np.maximum(y, 0))
    inverse = np.where(x == 1, 1, np.where(x == -1, 1 - 2 * (y & 1), 0)).astype(x.dtype)
    return np.where(y < 0, inverse, result) if x.dtype.kind == "i" else result


def _shift(kind: str) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    def shift(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        bits = x.dtype.itemsize * 8
        unsigned = np.dtype(f"u{x.dtype.itemsize}")
        amount = y.view(unsigned) if y.dtype.kind == "i" else y
        over = amount >= bits
        amount = np.where(over, 0, amount).astype(unsigned)
        if kind == "left":
            return np.where(over, 0, np.left_shift(x.view(unsigned), amount)).astype(unsigned).view(x.dtype)
        if kind == "logical":
            return np.where(over, 0, np.right_shift(x.view(unsigned), amount)).astype(unsigned).view(x.dtype)
        if x.dtype.kind == "u":
            signed = np.dtype(f"i{x.dtype.itemsize}")
            filled = np.right_shift(x.view(signed), np.where(over, bits - 1, amount).astype(signed))
            return filled.view(x.dtype)
        return np.right_shift(x, np.where(over, bits - 1, amount).astype(x.dtype))

    return shift


_define("neg", 1, np.negative, "-x", _numeric, value=lambda scope, a: -a)
_define("abs", 1, np.abs, "|x|", _numeric, value=lambda scope, a: a if scope.proves(ge(a, 0)) else smax(a, -a))
_define("sign", 1, _sign, "-1, 0 or 1; NaN and -0 stay", _numeric, value=_sign_value)
_define("floor", 1, np.floor, "largest integer not above x")
_define("ceil", 1, np.ceil, "least integer not below x")
_define("round", 1, np.rint, "nearest integer, halves to even")
_define("trunc", 1, np.trunc, "integer part")
_define("exp", 1, np.exp, "e to the x")
_define("exp2", 1, np.exp2, "2 to the x")
_define("log", 1, np.log, "natural logarithm")
_define("log1p", 1, np.log1p, "log(1 + x)")
_define("expm1", 1, np.expm1, "exp(x) - 1")
_define("sqrt", 1, np.sqrt, "square root")
_define("rsqrt", 1, lambda x: 1 / np.sqrt(x), "1 / sqrt(x)")
_define("cbrt", 1, np.cbrt, "cube root")
_define("reciprocal", 1, lambda x: 1 / x, "1 / x")
_define("square", 1, np.square, "x * x", _numeric, value=lambda scope, a: a * a)
_define("sin", 1, np.sin, "sine of x in radians")
_define("cos", 1, np.cos, "cosine of x in radians")
_define("tan", 1, np.tan, "tangent of x in radians")
_define("asin", 1, np.arcsin, "inverse sine")
_define("acos", 1, np.arccos, "inverse cosine")
_define("atan", 1, np.arctan, "inverse tangent")
_define("sinh", 1, np.sinh, "hyperbolic sine")
_define("cosh", 1, np.cosh, "hyperbolic cosine")
_define("tanh", 1, np.tanh, "hyperbolic tangent")
_define("asinh", 1, np.arcsinh, "inverse hyperbolic sine")
_define("acosh", 1, np.arccosh, "inverse hyperbolic cosine")
_define("atanh", 1, np.arctanh, "inverse hyperbolic tangent")
_define("erf", 1, _special("erf"), "error function")
_define("erfc", 1, _special("erfc"), "1 - erf(x)")
_define("erf_inv", 1, _special("erfinv"), "inverse error function")
_define("logistic", 1, _logistic, "1 / (1 + exp(-x))")
_define("is_finite", 1, np.isfinite, "neither infinite nor NaN", to_bool=True)
_define("is_nan", 1, np.isnan, "x is NaN", to_bool=True)
_define("is_inf", 1, np.isinf, "x is infinite", to_bool=True)
register(
    OpDef(
        "not",
        Pattern.ELEMENTWISE,
        1,
        infer_elementwise("not", _bits),
        rounded(np.invert),
        value_rule=lambda scope, values, attrs: entrywise(
            (lambda a: 1 - a) if attrs["in_dtype"] == np.bool_ else (lambda a: -1 - a), values[0]
        ),
        doc="logical not of a bool, bitwise complement of an integer",
    )
)

_define("add", 2, np.add, "x + y; or on bool", _any, value=lambda scope, a, b: a + b)
_define("sub", 2, np.subtract, "x - y", _numeric, value=lambda scope, a, b: a - b)
_define("mul", 2, np.multiply, "x * y; and on bool", _any, value=lambda scope, a, b: a * b)
_define("div", 2, _div, "x / y; integers truncate toward zero", _numeric, value=divide)
_define("rem", 2, _rem, "remainder with the sign of x", _numeric, value=remainder)
_define("pow", 2, _pow, "x to the power of y", _numeric, value=_ints(lambda a, b: a**b if b >= 0 else 0))
_define("max", 2, np.maximum, "larger of x and y; NaN wins", _any, value=lambda scope, a, b: smax(a, b))
_define("min", 2, np.minimum, "smaller of x and y; NaN wins", _any, value=lambda scope, a, b: smin(a, b))
_define("atan2", 2, np.arctan2, "angle of the point (y=x, x=y)")
_define("and", 2, np.bitwise_and, "bitwise and", _bits, value=_ints(lambda a, b: a & b))
_define("or", 2, np.bitwise_or, "bitwise or", _bits, value=_ints(lambda a, b: a | b))
_define("xor", 2, np.bitwise_xor, "bitwise exclusive or", _bits, value=_ints(lambda a, b: a ^ b))
_define("shift_left", 2, _shift("left"), "x << y; 0 if y is not in [0, bits)", is_int)
_define("shift_right_logical", 2, _shift("logical"), "x >> y with zeros shifted in", is_int)
_define("shift_right_arithmetic", 2, _shift("arithmetic"), "x >> y with the sign shifted in", is_int)
_define("eq", 2, np.equal, "x == y", _any, to_bool=True, value=_compare(eq_rel, ne_rel))
_define("ne", 2, np.not_equal, "x != y", _any, to_bool=True, value=_compare(ne_rel, eq_rel))
_define("lt", 2, np.less, "x < y", _any, to_bool=True, value=_compare(lt_rel, ge))
_define("le", 2, np.less_equal, "x <= y", _any, to_bool=True, value=_compare(le_rel, gt))
_define("gt", 2, np.greater, "x > y", _any, to_bool=True, value=_compare(gt, le_rel))
_define("ge", 2, np.greater_equal, "x >= y", _any, to_bool=True, value=_compare(ge, lt_rel))


# ---- select and cast, whose operands differ in dtype


def _infer_select(scope: Scope, inputs: tuple[Value, ...], attrs: Attrs, origin: Origin) -> list[Type]:
    pred, x, y = inputs
    if pred.dtype != np.bool_:
        raise fail(origin, f"the predicate of select must be bool, not {pred.dtype}")
    if x.dtype != y.dtype:
        raise fail(origin, f"select between {x.dtype} and {y.dtype}: the dtypes must be equal")
    return [(same_shape_of(scope, (x, y, pred), origin, "operands of select"), x.dtype)]


def _select_value(scope: Scope, values: list[np.ndarray], attrs: Attrs) -> np.ndarray:
    pred, x, y = values
    out = np.empty(pred.shape, dtype=object)
    for index in np.ndindex(*pred.shape):
        if pred[index] is None:
            a: Any = x[index]
            b: Any = y[index]
            out[index] = a if a is not None and b is not None and scope.equal(a, b) else None
        else:
            out[index] = x[index] if pred[index] else y[index]
    return out


register(
    OpDef(
        "select",
        Pattern.ELEMENTWISE,
        3,
        _infer_select,
        lambda xs, attrs: [np.where(xs[0], xs[1], xs[2])],
        value_rule=_select_value,
        doc="pred ? x : y",
    )
)


def _infer_cast(scope: Scope, inputs: tuple[Value, ...], attrs: Attrs, origin: Origin) -> list[Type]:
    return [(inputs[0].shape, np.dtype(attrs["dtype"]))]


def cast_array(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """``x`` as ``dtype``: to bool is ``x != 0``; float to integer truncates, saturates and makes NaN 0, as XLA does."""
    if dtype == np.bool_:
        return x != 0
    if is_float(x.dtype) and is_int(dtype):
        wide = x.astype(np.float64)
        info = np.iinfo(dtype)
        with np.errstate(all="ignore"):
            inside = np.trunc(np.nan_to_num(wide, nan=0.0)).astype(dtype)
        inside = np.where(wide >= float(info.max), info.max, inside)
        return np.where(wide <= float(info.min), info.min, inside).astype(dtype)
    if x.dtype.kind == "c" and dtype.kind != "c":
        x = x.real
    with np.errstate(all="ignore"):
        return x.astype(dtype)


def _cast_value(scope: Scope, values: list[np.ndarray], attrs: Attrs) -> np.ndarray | None:
    dtype = np.dtype(attrs["dtype"])
    if dtype == np.bool_:
        return entrywise(lambda a: _compare(ne_rel, eq_rel)(scope, a, 0), values[0])
    return values[0] if is_int(dtype) else None


register(
    OpDef(
        "cast",
        Pattern.ELEMENTWISE,
        1,
        _infer_cast,
        lambda xs, attrs: [cast_array(xs[0], np.dtype(attrs["dtype"]))],
        value_rule=_cast_value,
        doc="x converted to dtype",
    )
)
