"""Rules of reductions, products, sorting and windows."""

from __future__ import annotations

from typing import Any

import numpy as np

from graph_kernel.from_jaxpr.lowering import Lowering, Unsupported, rule
from graph_kernel.ir import Value

_MONOIDS = {"add": "sum", "add_any": "sum", "mul": "prod", "max": "max", "min": "min", "and": "and", "or": "or"}
_COMBINE = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "and": "and", "or": "or"}


@rule("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or")
def reduce_(low: Lowering, eqn: Any, x: Value) -> Value:
    """The op of the same name; max and min of bools are or and and."""
    op = eqn.primitive.name
    if x.dtype == np.bool_:
        op = {"reduce_max": "reduce_or", "reduce_min": "reduce_and"}.get(op, op)
    axes = tuple(eqn.params["axes"])
    return low.add(op, x, axes=axes) if axes else x


def monoid_of(jaxpr: Any) -> str | None:
    """The monoid that a two-argument scalar computation is, if it is one that we know."""
    inner = jaxpr.jaxpr if hasattr(jaxpr, "jaxpr") else jaxpr
    if len(inner.eqns) != 1 or list(inner.outvars) != list(inner.eqns[0].outvars):
        return None
    if {str(v) for v in inner.eqns[0].invars} != {str(v) for v in inner.invars} or len(inner.invars) != 2:
        return None
    return _MONOIDS.get(inner.eqns[0].primitive.name)


@rule("reduce")
def reduce_general(low: Lowering, eqn: Any, *inputs: Value) -> Value:
    """``lax.reduce`` by a known monoid: the reduction, then combined with the initial value."""
    kind = monoid_of(eqn.params["jaxpr"])
    if kind is None or len(inputs) != 2:
        raise Unsupported("by a computation of the user's")
    x, initial = inputs
    out = low.add(f"reduce_{kind}", x, axes=tuple(eqn.params["dimensions"]))
    return low.add(_COMBINE[kind], out, low.fit(initial, out.shape))


@rule("argmax", "argmin")
def arg(low: Lowering, eqn: Any, x: Value) -> Value:
    """First index of the extreme."""
    axes = eqn.params["axes"]
    if len(axes) != 1:
        raise Unsupported("over several axes")
    return low.add(eqn.primitive.name, x, axis=axes[0], dtype=np.dtype(eqn.params["index_dtype"]))


@rule("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
def cumulative(low: Lowering, eqn: Any, x: Value) -> Value:
    """Along one axis, from either end."""
    return low.add(eqn.primitive.name, x, axis=eqn.params["axis"], reverse=bool(eqn.params["reverse"]))


@rule("dot_general")
def dot_general(low: Lowering, eqn: Any, a: Value, b: Value) -> Value:
    """The op ``dot``; the result's dtype is the one that JAX deduced."""
    contract, batch = eqn.params["dimension_numbers"]
    pair = lambda axes: tuple(tuple(int(i) for i in side) for side in axes)  # noqa: E731
    return low.add("dot", a, b, contract=pair(contract), batch=pair(batch), dtype=low.type_of(eqn.outvars[0].aval)[1])


@rule("sort")
def sort(low: Lowering, eqn: Any, *xs: Value) -> tuple[Value, ...]:
    """A host op; always stable."""
    p = eqn.params
    return low.add_multi("sort", xs, {"axis": int(p["dimension"]), "num_keys": int(p["num_keys"])})


@rule("top_k")
def top_k(low: Lowering, eqn: Any, x: Value) -> tuple[Value, ...]:
    """A host op."""
    dtype = low.type_of(eqn.outvars[1].aval)[1]
    axis = int(eqn.params["axis"]) % x.rank
    return low.add_multi("top_k", (x,), {"k": low.dim(eqn.params["k"]), "axis": axis, "dtype": dtype})


@rule("conv_general_dilated")
def conv(low: Lowering, eqn: Any, x: Value, w: Value) -> Value:
    """The host op ``conv``, whose operands and result have channels first."""
    p = eqn.params
    lhs, rhs, out = p["dimension_numbers"]
    result = low.add(
        "conv",
        low.transpose(x, lhs),
        low.transpose(w, rhs),
        strides=tuple(p["window_strides"]),
        padding=tuple((low.dim(lo), low.dim(hi)) for lo, hi in p["padding"]),
        base_dilation=tuple(p["lhs_dilation"]),
        window_dilation=tuple(p["rhs_dilation"]),
        groups=p["feature_group_count"],
        batch_groups=p["batch_group_count"],
        dtype=low.type_of(eqn.outvars[0].aval)[1],
    )
    return low.transpose(result, tuple(int(i) for i in np.argsort(out)))


def _window(low: Lowering, p: dict[str, Any], x: Value, kind: str) -> Value:
    return low.add(
        "reduce_window",
        x,
        kind=kind,
        window=low.dim.shape(p["window_dimensions"]),
        strides=tuple(p["window_strides"]),
        padding=tuple((low.dim(lo), low.dim(hi)) for lo, hi in p["padding"]),
        base_dilation=tuple(p["base_dilation"]),
        window_dilation=tuple(p["window_dilation"]),
    )


@rule("reduce_window_sum", "reduce_window_max", "reduce_window_min")
def reduce_window_named(low: Lowering, eqn: Any, x: Value) -> Value:
    """A host op."""
    return _window(low, eqn.params, x, eqn.primitive.name.removeprefix("reduce_window_"))


@rule("reduce_window")
def reduce_window(low: Lowering, eqn: Any, *inputs: Value) -> Value:
    """By a known monoid: the windows, then combined with the initial value."""
    kind = monoid_of(eqn.params["jaxpr"])
    if kind not in ("sum", "prod", "max", "min") or len(inputs) != 2:
        raise Unsupported("by a computation of the user's")
    x, initial = inputs
    out = _window(low, eqn.params, x, kind)
    return low.add(_COMBINE[kind], out, low.fit(initial, out.shape))
