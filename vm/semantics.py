"""What the computing instructions mean, written once over an array namespace (``Namespace`` for JAX or NumPy).

16-bit floating types compute through float32 and round once per instruction. Executors own memory, loops and masks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from vm import isa

Array = Any


class JaxNamespace:
    """The operations of ``jax.lax`` under the names used here."""

    def __init__(self) -> None:
        import jax.numpy as jnp
        from jax import lax

        self.np, self.lax = jnp, lax

    def unary(self, name: str) -> Callable[[Array], Array]:
        """The function of a unary instruction."""
        lax, jnp = self.lax, self.np
        special: dict[str, Callable[[Array], Array]] = {
            "trunc": jnp.trunc,
            "round": lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
            "reciprocal": lambda x: lax.div(lax.full_like(x, 1), x),
            "square": lambda x: lax.mul(x, x),
            "is_nan": lambda x: lax.ne(x, x),
            "is_inf": jnp.isinf,
            "not": lax.bitwise_not,
        }
        return special.get(name) or getattr(lax, name)

    def binary(self, name: str) -> Callable[[Array, Array], Array]:
        """The function of a binary instruction."""
        lax, jnp = self.lax, self.np
        special: dict[str, Callable[[Array, Array], Array]] = {
            "and": lax.bitwise_and,
            "or": lax.bitwise_or,
            "xor": lax.bitwise_xor,
            "pow": lambda x, y: jnp.power(x, y),
        }
        return special.get(name) or getattr(lax, name)


def _computes_wide(dtype: np.dtype) -> bool:
    return dtype.itemsize == 2 and dtype.kind not in "iu"


_SAME_BITS = frozenset(("neg", "abs", "is_finite", "is_nan", "is_inf", "not"))


def unary(ns: JaxNamespace, name: str, x: Array) -> Array:
    """Result of unary instruction ``name``; bool for the predicates, otherwise of x's dtype."""
    fn = ns.unary(name)
    if name == "is_inf" and x.dtype.kind in "iub":
        return ns.np.zeros(x.shape, bool)
    if _computes_wide(x.dtype) and name not in _SAME_BITS:
        return fn(x.astype(np.float32)).astype(x.dtype)
    return fn(x)


_COMPARE = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))


def binary(ns: JaxNamespace, name: str, x: Array, y: Array) -> Array:
    """Result of binary instruction ``name``; bool for comparisons, otherwise of x's dtype."""
    fn = ns.binary(name)
    if _computes_wide(x.dtype) and name not in _COMPARE and name not in ("max", "min"):
        return fn(x.astype(np.float32), y.astype(np.float32)).astype(x.dtype)
    return fn(x, y)


def combine(ns: JaxNamespace, kind: str, x: Array, y: Array) -> Array:
    """One step of a reduction."""
    if x.dtype == np.bool_:
        kind = {"sum": "or", "prod": "and", "max": "or", "min": "and"}.get(kind, kind)
    return binary(ns, {"sum": "add", "prod": "mul"}.get(kind, kind), x, y)


def reduce(ns: JaxNamespace, kind: str, x: Array, axes: tuple[int, ...]) -> Array:
    """``x`` reduced over ``axes``."""
    if x.dtype == np.bool_:
        return (ns.np.any if kind in ("sum", "max", "or") else ns.np.all)(x, axis=axes)
    jnp = ns.np
    if kind in ("and", "or"):
        fn = ns.lax.reduce_and if kind == "and" else ns.lax.reduce_or
        return fn(x, axes)
    wide = x.astype(np.float32) if _computes_wide(x.dtype) else x
    fn = {"sum": jnp.sum, "prod": jnp.prod, "max": jnp.max, "min": jnp.min}[kind]
    kw: dict[str, Any] = (
        {"axis": axes, "initial": isa.identity(kind, wide.dtype)}
        if kind in ("max", "min")
        else {"axis": axes, "dtype": wide.dtype}
    )
    return fn(wide, **kw).astype(x.dtype)


def cast(ns: JaxNamespace, x: Array, dtype: np.dtype) -> Array:
    """Converts; to bool means "is not 0"."""
    return x != 0 if dtype == np.bool_ and x.dtype != np.bool_ else x.astype(dtype)
