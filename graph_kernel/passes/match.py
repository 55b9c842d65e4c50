"""What rules ask about values and dimensions. Nothing here changes a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from graph_kernel.ir import Node, Value
from graph_kernel.ops.base import HALF, is_float, is_int

if TYPE_CHECKING:
    from symbolic import Dim, Scope

UNARY = frozenset(
    [
        "neg",
        "abs",
        "sign",
        "floor",
        "ceil",
        "round",
        "trunc",
        "exp",
        "exp2",
        "log",
        "log1p",
        "expm1",
        "sqrt",
        "rsqrt",
        "cbrt",
        "reciprocal",
        "square",
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "tanh",
        "asinh",
        "acosh",
        "atanh",
        "erf",
        "erfc",
        "erf_inv",
        "logistic",
        "is_finite",
        "is_nan",
        "is_inf",
        "not",
        "cast",
    ]
)
BINARY = frozenset(
    [
        "add",
        "sub",
        "mul",
        "div",
        "rem",
        "pow",
        "max",
        "min",
        "atan2",
        "and",
        "or",
        "xor",
        "shift_left",
        "shift_right_logical",
        "shift_right_arithmetic",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
    ]
)
ELEMENTWISE = UNARY | BINARY | {"select"}
REDUCES = frozenset({"reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or"})
SCANS = frozenset({"cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"})


def made_by(value: Value, op: str) -> Node | None:
    """The node that defines ``value`` if its op is ``op``."""
    node = value.producer
    return node if node is not None and node.op == op else None


def array_of(value: Value) -> np.ndarray | None:
    """The array of a ``constant``."""
    node = made_by(value, "constant")
    return None if node is None else np.asarray(node.attrs["value"])


def splat(value: Value) -> np.ndarray | None:
    """The one number that a value holds everywhere, as a rank-0 array: a scalar constant, or broadcasts of one."""
    node = value.producer
    while node is not None and node.op == "broadcast":
        node = node.inputs[0].producer
    if node is None or node.op != "constant":
        return None
    array = np.asarray(node.attrs["value"])
    return array.reshape(()) if array.size == 1 else None


def splat_is(value: Value, number: float, negative_zero: bool = False) -> bool:
    """Whether ``value`` is ``number`` everywhere; the sign of a zero is compared as well."""
    found = splat(value)
    if found is None or not bool(found == number):
        return False
    return number != 0 or not is_float(found.dtype) or bool(np.signbit(found.astype(np.float64))) == negative_zero


def same_dim(scope: Scope, a: Dim, b: Dim) -> bool:
    """Equal by form or proved equal."""
    if a == b:
        return True
    if isinstance(a, int) and isinstance(b, int):
        return False
    return scope.equal(a, b)


def same_shape(scope: Scope, a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    """Equal rank and every dimension equal by form or proved."""
    return len(a) == len(b) and all(same_dim(scope, x, y) for x, y in zip(a, b, strict=True))


def is_static(value: Any) -> bool:
    """Whether an attribute holds no symbolic dimension and no graph."""
    if isinstance(value, tuple | list):
        return all(is_static(v) for v in value)
    return value is None or isinstance(
        value, int | float | complex | str | bytes | np.ndarray | np.generic | np.dtype | type
    )


def is_identity(perm: Sequence[int]) -> bool:
    """Whether a permutation moves nothing."""
    return all(i == p for i, p in enumerate(perm))


def inverse(perm: Sequence[int]) -> tuple[int, ...]:
    """The permutation that undoes ``perm``."""
    out = [0] * len(perm)
    for i, p in enumerate(perm):
        out[p] = i
    return tuple(out)


def exact_cast(a: np.dtype, b: np.dtype) -> bool:
    """Whether every value of dtype ``a`` is a value of dtype ``b``."""
    if a == b:
        return True
    if a == np.bool_:
        return is_int(b) or is_float(b)
    if is_int(a) and is_int(b):
        return bool(np.can_cast(a, b, "safe"))
    if is_int(a) and is_float(b):
        digits = {2: 11, 4: 24, 8: 53}[b.itemsize] if b not in HALF or b == np.float16 else 8
        return a.itemsize * 8 - (a.kind == "i") <= digits
    if is_float(a) and is_float(b):
        return a in HALF and b.itemsize > 2 or a == np.float32 and b == np.float64
    return False
