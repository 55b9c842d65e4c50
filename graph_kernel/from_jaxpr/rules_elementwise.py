"""Rules of elementwise primitives, casts and identities."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from graph_kernel.from_jaxpr.lowering import Lowering, Unsupported, rule
from graph_kernel.ir import Value
from graph_kernel.ops.base import is_float

_SAME = (
    "neg abs sign floor ceil exp exp2 log log1p expm1 sqrt rsqrt cbrt square sin cos tan asin acos atan sinh cosh tanh "
    "asinh acosh atanh erf erfc erf_inv logistic is_finite not sub div rem atan2 and or xor shift_left "
    "shift_right_logical shift_right_arithmetic eq ne lt le gt ge lgamma digamma bessel_i0e bessel_i1e igamma igammac "
    "zeta polygamma population_count clz nextafter"
)
_RENAMED = {
    "regularized_incomplete_beta": "betainc",
    "add_any": "add",
    "add": "add",
    "mul": "mul",
    "max": "max",
    "min": "min",
}
_ON_BOOL = {"add": "or", "mul": "and", "max": "or", "min": "and"}
_IDENTITIES = (
    "copy stop_gradient copy_p name optimization_barrier sharding_constraint layout_constraint reshard pvary pbroadcast "
    "device_put reduced_vary_cast_p vary_unreduced_cast_p xla_metadata_value mesh_cast pin unpin stage"
)


def fitted(low: Lowering, eqn: Any, inputs: tuple[Value, ...]) -> list[Value]:
    """The operands at the shape of the result: JAX leaves scalars as they are."""
    shape = low.dim.shape(eqn.outvars[0].aval.shape)
    return [low.fit(x, shape) for x in inputs]


def _elementwise(name: str) -> None:
    op = _RENAMED.get(name, name)

    @rule(name)
    def convert(low: Lowering, eqn: Any, *inputs: Value) -> Value:
        wanted = eqn.params.get("out_dtype")
        args = [low.cast(x, wanted) for x in inputs] if wanted is not None else list(inputs)
        chosen = _ON_BOOL.get(op, op) if args[0].dtype == np.bool_ else op
        return low.add(chosen, *fitted(low, eqn, tuple(args)))


for _name in (*_SAME.split(), *_RENAMED):
    _elementwise(_name)


@rule(*_IDENTITIES.split())
def identity(low: Lowering, eqn: Any, *inputs: Value) -> tuple[Value, ...]:
    """Values pass unchanged."""
    return inputs


@rule("tie")
def tie(low: Lowering, eqn: Any, x: Value, y: Value) -> Value:
    """Orders y after x; its value is y."""
    return y


@rule("dce_sink")
def dce_sink(low: Lowering, eqn: Any, *inputs: Value) -> tuple[Value, ...]:
    """Keeps an operand alive; there is no result."""
    return ()


@rule("round")
def round_(low: Lowering, eqn: Any, x: Value) -> Value:
    """Halves to even is the op; halves away from zero is trunc(x) plus the sign where the fraction is at least a half."""
    if int(eqn.params["rounding_method"]) == 1:
        return low.add("round", x)
    whole = low.add("trunc", x)
    fraction = low.add("abs", low.add("sub", x, whole))
    up = low.add("ge", fraction, low.full(0.5, x.shape, x.dtype))
    rounded = low.add("add", whole, low.add("sign", x))
    return low.add("select", up, rounded, whole)


@rule("pow")
def pow_(low: Lowering, eqn: Any, x: Value, y: Value) -> Value:
    """An integer exponent of a float base is cast."""
    x, y = fitted(low, eqn, (x, y))
    return low.add("pow", x, low.cast(y, x.dtype))


@rule("integer_pow")
def integer_pow(low: Lowering, eqn: Any, x: Value) -> Value:
    """By repeated squaring; a negative power is the reciprocal of the positive one."""
    n = int(eqn.params["y"])
    if n == 0:
        return low.full(1, x.shape, x.dtype)
    result, factor, rest = None, x, abs(n)
    while rest:
        if rest & 1:
            result = factor if result is None else low.add("mul", result, factor)
        rest >>= 1
        if rest:
            factor = low.add("square", factor)
    assert result is not None
    if n > 0:
        return result
    return low.add("reciprocal", result) if is_float(x.dtype) else low.add("div", low.full(1, x.shape, x.dtype), result)


@rule("clamp")
def clamp(low: Lowering, eqn: Any, lo: Value, x: Value, hi: Value) -> Value:
    """min(max(x, lo), hi)."""
    lo, x, hi = fitted(low, eqn, (lo, x, hi))
    return low.add("min", low.add("max", x, lo), hi)


@rule("select_n")
def select_n(low: Lowering, eqn: Any, which: Value, *cases: Value) -> Value:
    """A chain of selects; ``which`` may be a scalar while the cases are not."""
    if len(cases) == 1:
        return cases[0]
    known = low.scalar_dim(which) if not which.shape else None
    if isinstance(known, int):
        return cases[min(max(known, 0), len(cases) - 1)]
    shape = cases[0].shape
    if 0 < which.rank < len(shape):  # of random keys, whose words are an axis more
        which = low.add("broadcast", which, shape=shape, dims=tuple(range(which.rank)))
    which = low.fit(which, shape)
    if which.dtype == np.bool_:
        return low.add("select", which, cases[1], cases[0])
    result = cases[-1]
    for i in range(len(cases) - 2, -1, -1):
        below = low.add("lt", which, low.full(i + 1, shape, which.dtype))
        result = low.add("select", below, cases[i], result)
    return result


@rule("convert_element_type")
def convert_element_type(low: Lowering, eqn: Any, x: Value) -> Value:
    """A cast."""
    return low.cast(x, low.type_of(eqn.outvars[0].aval)[1])


@rule("bitcast_convert_type")
def bitcast(low: Lowering, eqn: Any, x: Value) -> Value:
    """Reinterprets bits."""
    dtype = np.dtype(eqn.params["new_dtype"])
    return x if x.dtype == dtype else low.add("bitcast", x, dtype=dtype)


_FORMATS = {(8, 7): np.dtype(ml_dtypes.bfloat16), (5, 10): np.dtype(np.float16), (8, 23): np.dtype(np.float32)}


@rule("reduce_precision")
def reduce_precision(low: Lowering, eqn: Any, x: Value) -> Value:
    """A cast there and back, for the formats that are dtypes."""
    bits = (eqn.params["exponent_bits"], eqn.params["mantissa_bits"])
    if bits not in _FORMATS:
        raise Unsupported(f"to {bits[0]} exponent and {bits[1]} mantissa bits")
    return low.cast(low.cast(x, _FORMATS[bits]), x.dtype)
