"""Host functions on elements and along axes: arithmetic, comparisons, casts, bits, reductions, cumulative ops, the matrix product.

16-bit floats are computed in float32 and rounded once; sums of float32 along an axis are accumulated in float64.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from vm.dtypes import DTYPES, dtype_of

Attrs = dict[str, Any]
HostFunction = Callable[[list[np.ndarray], Attrs], list[np.ndarray]]

_HALF = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
_FLOATS = tuple(dtype for name, dtype in DTYPES.items() if "float" in name)


def dtype_attr(attrs: Attrs) -> np.dtype:
    """The element type in ``attrs["dtype"]``, a name or a NumPy dtype."""
    value = attrs["dtype"]
    return dtype_of(value) if isinstance(value, str) else np.dtype(value)


def is_float(dtype: np.dtype) -> bool:
    """True for real floating-point types, those of ``ml_dtypes`` included."""
    return dtype in _FLOATS


def widen(x: np.ndarray) -> np.ndarray:
    """Floats of 16 and fewer bits as float32, others unchanged."""
    return x.astype(np.float32) if is_float(x.dtype) and x.dtype.itemsize < 4 else x


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


# ---- elementwise


def _special(name: str) -> Callable[..., Any]:
    """A SciPy function, evaluated in float64; JAX depends on SciPy, so it is there, but it is slow to import."""

    def call(*xs: np.ndarray) -> Any:
        return getattr(importlib.import_module("scipy.special"), name)(*(x.astype(np.float64) for x in xs))

    return call


def _sign(x: np.ndarray) -> np.ndarray:
    return np.where(x == 0, x, np.sign(x))  # keeps -0


def _int_div(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Truncating division; by zero it gives all ones, and the least integer over -1 wraps, as in XLA."""
    one = np.ones_like(y)
    safe = np.where(y == 0, one, y)
    if x.dtype.kind == "i":
        safe = np.where(safe == -1, one, safe)
    floor = np.floor_divide(x, safe)
    quotient = floor + ((floor * safe != x) & ((x < 0) != (safe < 0))).astype(x.dtype)
    if x.dtype.kind == "i":
        quotient = np.where(y == -1, np.negative(x), quotient)
    return np.where(y == 0, np.array(-1).astype(x.dtype), quotient)


def _is_int(x: np.ndarray) -> bool:
    return x.dtype.kind in "iu"


def _div(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return _int_div(x, y) if _is_int(x) else np.true_divide(x, y)


def _rem(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if not _is_int(x):
        return np.fmod(x, y)
    return np.where(y == 0, x, x - _int_div(x, y) * y)


def _pow(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if not _is_int(x):
        return np.power(x, y)
    result = np.power(x, np.maximum(y, 0))
    inverse = np.where(x == 1, 1, np.where(x == -1, 1 - 2 * (y & 1), 0)).astype(x.dtype)
    return np.where(y < 0, inverse, result) if x.dtype.kind == "i" else result


def _shift(kind: str) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Shifts by amounts outside [0, bits) give 0, or all copies of the sign."""

    def shift(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        x, y = np.ascontiguousarray(x), np.ascontiguousarray(y)
        bits = 8 * x.dtype.itemsize
        signed, unsigned = np.dtype(f"i{x.dtype.itemsize}"), np.dtype(f"u{x.dtype.itemsize}")
        amount = y.view(unsigned)
        over = amount >= bits
        if kind == "arithmetic":
            amount = np.where(over, bits - 1, amount).astype(signed)
            return np.right_shift(x.view(signed), amount).view(x.dtype)
        move = np.left_shift if kind == "left" else np.right_shift
        amount = np.where(over, 0, amount).astype(unsigned)
        return np.where(over, 0, move(x.view(unsigned), amount)).astype(unsigned).view(x.dtype)

    return shift


def _population_count(x: np.ndarray) -> np.ndarray:
    return np.bitwise_count(x.view(f"u{x.dtype.itemsize}"))


def _clz(x: np.ndarray) -> np.ndarray:
    rest = x.view(f"u{x.dtype.itemsize}")
    for shift in (1, 2, 4, 8, 16, 32):
        if shift < 8 * x.dtype.itemsize:
            rest = rest | rest >> np.array(shift, rest.dtype)  # every bit below the highest one becomes one
    return 8 * x.dtype.itemsize - np.bitwise_count(rest).astype(np.int16)


def _lgamma(x: np.ndarray) -> np.ndarray:
    return np.where(np.isinf(x), np.inf, _special("gammaln")(x))


def _digamma(x: np.ndarray) -> np.ndarray:
    return np.where((x <= 0) & (np.floor(x) == x), np.nan, _special("digamma")(x))


def _polygamma(n: np.ndarray, x: np.ndarray) -> np.ndarray:
    return importlib.import_module("scipy.special").polygamma(n.astype(np.int64), x.astype(np.float64))


ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "neg": np.negative, "abs": np.abs, "sign": _sign, "floor": np.floor, "ceil": np.ceil, "round": np.rint, "trunc": np.trunc,
    "exp": np.exp, "exp2": np.exp2, "log": np.log, "log1p": np.log1p, "expm1": np.expm1, "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x), "cbrt": np.cbrt, "reciprocal": lambda x: 1 / x, "square": np.square,
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "erf": _special("erf"), "erfc": _special("erfc"), "erf_inv": _special("erfinv"), "logistic": lambda x: 1 / (1 + np.exp(-x)),
    "not": np.invert, "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": _div, "rem": _rem, "pow": _pow,
    "max": np.maximum, "min": np.minimum, "atan2": np.arctan2, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "shift_left": _shift("left"), "shift_right_logical": _shift("logical"), "shift_right_arithmetic": _shift("arithmetic"),
    "lgamma": _lgamma, "digamma": _digamma, "bessel_i0e": _special("i0e"), "bessel_i1e": _special("i1e"),
    "igamma": _special("gammainc"), "igammac": _special("gammaincc"), "zeta": _special("zeta"), "polygamma": _polygamma,
    "betainc": _special("betainc"), "population_count": _population_count, "clz": _clz,
    "conj": np.conj,
}  # fmt: skip

_TO_BOOL: dict[str, Callable[..., Any]] = {
    "is_finite": np.isfinite, "is_nan": np.isnan, "is_inf": np.isinf,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip


def _elementwise(fn: Callable[..., Any], to_bool: bool = False) -> HostFunction:
    def call(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
        with np.errstate(all="ignore"):
            out = np.asarray(fn(*(widen(x) for x in xs)))
            if to_bool or (out.dtype.kind == "f" and xs[0].dtype.kind == "c"):  # |z| is real
                return [out]
            return [out.astype(xs[0].dtype, copy=False)]

    return call


def _nextafter(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    return [np.asarray(np.nextafter(xs[0], xs[1]))]


def _select(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    return [np.where(xs[0], xs[1], xs[2])]


def _cast(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    """To bool is ``x != 0``; a float to an integer truncates, saturates and makes NaN 0, as in XLA; complex to real drops."""
    x, dtype = xs[0], dtype_attr(attrs)
    if dtype == np.bool_:
        return [np.asarray(x != 0)]
    if x.dtype.kind == "c" and dtype.kind != "c":
        x = x.real
    with np.errstate(all="ignore"):
        if not (is_float(x.dtype) and dtype.kind in "iu"):
            return [x.astype(dtype)]
        wide, info = x.astype(np.float64), np.iinfo(dtype)
        low, high = wide <= float(info.min), wide >= float(info.max)
        inside = np.where(low | high | np.isnan(wide), 0, wide).astype(dtype)
        return [np.where(high, info.max, np.where(low, info.min, inside)).astype(dtype)]


def _bitcast(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    """The bits read as another type; a narrower one adds a last axis, a wider one removes it."""
    x, dtype = np.ascontiguousarray(xs[0]).reshape(xs[0].shape), dtype_attr(attrs)
    if x.dtype.itemsize > dtype.itemsize:
        return [x[..., None].view(dtype)]
    return [x.view(dtype) if x.dtype.itemsize == dtype.itemsize else x.view(dtype)[..., 0]]


def _complex(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    out = np.empty(xs[0].shape, np.complex64 if xs[0].dtype == np.float32 else np.complex128)
    out.real, out.imag = xs
    return [out]


def _threefry2x32(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    """The Threefry-2x32 block cipher with 20 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): key words
    k1, k2 and counter words x1, x2, all uint32 of one shape; two results."""
    k1, k2, a, b = xs
    rotations = ((13, 15, 26, 6), (17, 29, 16, 24))
    keys = (k1, k2, k1 ^ k2 ^ np.uint32(0x1BD11BDA))
    with np.errstate(over="ignore"):
        a, b = a + keys[0], b + keys[1]
        for group in range(5):
            for r in rotations[group % 2]:
                a = a + b
                b = a ^ (b << np.uint32(r) | b >> np.uint32(32 - r))
            a = a + keys[(group + 1) % 3]
            b = b + keys[(group + 2) % 3] + np.uint32(group + 1)
    return [np.asarray(a), np.asarray(b)]


# ---- along axes


def _accumulator(dtype: np.dtype) -> np.dtype:
    return np.dtype(np.float64) if dtype == np.float32 else dtype


def _reduce(ufunc: np.ufunc, identity: Callable[[np.dtype], Any], exact: bool) -> HostFunction:
    def call(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
        x, axes = xs[0], tuple(attrs["axes"])
        if not axes:
            return [x]
        wide = widen(x)
        dtype = wide.dtype if exact else _accumulator(wide.dtype)
        with np.errstate(all="ignore"):
            out = ufunc.reduce(wide, axis=axes, dtype=dtype, initial=dtype.type(identity(x.dtype)))
            return [np.asarray(out).astype(x.dtype, copy=False)]

    return call


def _arg(fn: Callable[..., Any]) -> HostFunction:
    def call(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
        x, axis = widen(xs[0]), attrs["axis"]
        if x.shape[axis] == 0:
            return [np.zeros(x.shape[:axis] + x.shape[axis + 1 :], dtype_attr(attrs))]
        return [np.asarray(fn(x, axis=axis)).astype(dtype_attr(attrs))]

    return call


def _cumulative(ufunc: np.ufunc, exact: bool) -> HostFunction:
    def call(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
        axis, reverse = attrs["axis"], bool(attrs.get("reverse"))
        wide = widen(np.flip(xs[0], axis) if reverse else xs[0])
        with np.errstate(all="ignore"):
            out = ufunc.accumulate(wide, axis=axis, dtype=wide.dtype if exact else _accumulator(wide.dtype))
            out = out.astype(xs[0].dtype, copy=False)
        return [np.flip(out, axis) if reverse else out]

    return call


def _all_ones(dtype: np.dtype) -> Any:
    return True if dtype == np.bool_ else np.array(-1).astype(dtype)


def free_axes(rank: int, *used: Sequence[int]) -> list[int]:
    """The axes that are in none of ``used``, in order."""
    return [a for a in range(rank) if not any(a in axes for axes in used)]


def _dot(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    """lax.dot_general: batch axes, free axes of a, free axes of b; 16-bit floats are accumulated in float32."""
    a, b = xs
    (sum_a, sum_b), (batch_a, batch_b) = attrs["contract"], attrs["batch"]
    dtype = dtype_attr(attrs)
    accumulate = np.dtype(np.float32) if dtype in _HALF else dtype
    free_a, free_b = free_axes(a.ndim, sum_a, batch_a), free_axes(b.ndim, sum_b, batch_b)
    batch, rows, cols = ([x.shape[i] for i in axes] for x, axes in ((a, batch_a), (a, free_a), (b, free_b)))
    inner = math.prod(a.shape[i] for i in sum_a)
    left = a.transpose([*batch_a, *free_a, *sum_a]).reshape(math.prod(batch), math.prod(rows), inner)
    right = b.transpose([*batch_b, *sum_b, *free_b]).reshape(math.prod(batch), inner, math.prod(cols))
    with np.errstate(all="ignore"):
        out = np.matmul(left.astype(accumulate, copy=False), right.astype(accumulate, copy=False))
        return [out.reshape([*batch, *rows, *cols]).astype(dtype, copy=False)]


FUNCTIONS: dict[str, HostFunction] = {
    **{name: _elementwise(fn) for name, fn in ELEMENTWISE.items()},
    **{name: _elementwise(fn, to_bool=True) for name, fn in _TO_BOOL.items()},
    "nextafter": _nextafter,
    "select": _select,
    "cast": _cast,
    "bitcast": _bitcast,
    "real": lambda xs, attrs: [xs[0].real],
    "imag": lambda xs, attrs: [xs[0].imag],
    "complex": _complex,
    "threefry2x32": _threefry2x32,
    "reduce_sum": _reduce(np.add, lambda d: 0, exact=False),
    "reduce_prod": _reduce(np.multiply, lambda d: 1, exact=False),
    "reduce_max": _reduce(np.maximum, lowest, exact=True),
    "reduce_min": _reduce(np.minimum, highest, exact=True),
    "reduce_and": _reduce(np.bitwise_and, _all_ones, exact=True),
    "reduce_or": _reduce(np.bitwise_or, lambda d: 0, exact=True),
    "reduce_xor": _reduce(np.bitwise_xor, lambda d: 0, exact=True),
    "argmax": _arg(np.argmax),
    "argmin": _arg(np.argmin),
    "cumsum": _cumulative(np.add, exact=False),
    "cumprod": _cumulative(np.multiply, exact=False),
    "cummax": _cumulative(np.maximum, exact=True),
    "cummin": _cumulative(np.minimum, exact=True),
    "cumlogsumexp": _cumulative(np.logaddexp, exact=False),
    "dot": _dot,
}
