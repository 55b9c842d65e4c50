"""What the computing instructions mean, written once over an array namespace: ``JaxNamespace`` or ``NumpyNamespace``.

16-bit floating types compute through float32 and round once per instruction. Executors own memory, loops and masks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from vm import isa

Array = Any
Axes = tuple[int, ...]


class Namespace(Protocol):
    """The few functions that NumPy and JAX spell differently. ``np`` is the array module for everything else."""

    np: Any

    def unary(self, name: str) -> Callable[[Array], Array]: ...
    def binary(self, name: str) -> Callable[[Array, Array], Array]: ...
    def bitwise_reduce(self, kind: str, x: Array, axes: Axes) -> Array: ...
    def total(self, x: Array, axes: Axes) -> Array: ...
    def convert(self, x: Array, dtype: np.dtype) -> Array: ...
    def scan(self, name: str, x: Array, dim: int, reverse: bool) -> Array: ...
    def product(
        self, x: Array, y: Array, contract: tuple[Axes, Axes], batch: tuple[Axes, Axes], dtype: np.dtype
    ) -> Array: ...


class JaxNamespace:
    """The operations of ``jax.lax`` under the names used here."""

    def __init__(self) -> None:
        import jax.numpy as jnp
        from jax import lax

        self.np: Any = jnp
        self.lax = lax

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

    def bitwise_reduce(self, kind: str, x: Array, axes: Axes) -> Array:
        """The bitwise ``and`` or ``or`` of x along ``axes``."""
        return (self.lax.reduce_and if kind == "and" else self.lax.reduce_or)(x, axes)

    def total(self, x: Array, axes: Axes) -> Array:
        """The sum of x along ``axes``, in x's dtype."""
        return self.np.sum(x, axis=axes, dtype=x.dtype)

    def convert(self, x: Array, dtype: np.dtype) -> Array:
        """x in another dtype; floats saturate in integers."""
        return x.astype(dtype)

    def scan(self, name: str, x: Array, dim: int, reverse: bool) -> Array:
        """A cumulative instruction along one dim."""
        return getattr(self.lax, name)(x, axis=dim, reverse=reverse)

    def product(
        self, x: Array, y: Array, contract: tuple[Axes, Axes], batch: tuple[Axes, Axes], dtype: np.dtype
    ) -> Array:
        """lax.dot_general accumulated in ``dtype``."""
        return self.lax.dot_general(x, y, (contract, batch), preferred_element_type=dtype)


class NumpyNamespace:
    """The same on NumPy arrays. Sums of float32 accumulate in float64, so that they stand in the middle of all orders of adding."""

    def __init__(self) -> None:
        from vm import host_math

        self.np: Any = np
        self.host = host_math

    def unary(self, name: str) -> Callable[[Array], Array]:
        """The function of a unary instruction."""
        return self._function(name)

    def binary(self, name: str) -> Callable[[Array, Array], Array]:
        """The function of a binary instruction."""
        return self._function(name)

    def _function(self, name: str) -> Callable[..., Array]:
        fn = self.host.FUNCTIONS[name]
        return lambda *xs: np.asarray(fn(list(xs), {})[0])

    def bitwise_reduce(self, kind: str, x: Array, axes: Axes) -> Array:
        """The bitwise ``and`` or ``or`` of x along ``axes``."""
        return np.asarray((np.bitwise_and if kind == "and" else np.bitwise_or).reduce(x, axis=axes))

    def total(self, x: Array, axes: Axes) -> Array:
        """The sum of x along ``axes``, in x's dtype."""
        wide = np.dtype(np.float64) if x.dtype == np.float32 else x.dtype
        return np.asarray(np.sum(x, axis=axes, dtype=wide)).astype(x.dtype)

    def convert(self, x: Array, dtype: np.dtype) -> Array:
        """x in another dtype; floats saturate in integers."""
        return np.asarray(self.host.FUNCTIONS["cast"]([x], {"dtype": dtype})[0])

    def scan(self, name: str, x: Array, dim: int, reverse: bool) -> Array:
        """A cumulative instruction along one dim."""
        return np.asarray(self.host.FUNCTIONS[name]([x], {"axis": dim, "reverse": reverse})[0])

    def product(
        self, x: Array, y: Array, contract: tuple[Axes, Axes], batch: tuple[Axes, Axes], dtype: np.dtype
    ) -> Array:
        """lax.dot_general accumulated in ``dtype``."""
        attrs = {"contract": contract, "batch": batch, "dtype": dtype}
        return np.asarray(self.host.FUNCTIONS["dot"]([x, y], attrs)[0])


def _computes_wide(dtype: np.dtype) -> bool:
    return dtype.itemsize == 2 and dtype.kind not in "iu"


_SAME_BITS = frozenset(("neg", "abs", "is_finite", "is_nan", "is_inf", "not"))


def unary(ns: Namespace, name: str, x: Array) -> Array:
    """Result of unary instruction ``name``; bool for the predicates, otherwise of x's dtype."""
    fn = ns.unary(name)
    if name == "is_inf" and x.dtype.kind in "iub":
        return ns.np.zeros(x.shape, bool)
    if _computes_wide(x.dtype) and name not in _SAME_BITS:
        return fn(x.astype(np.float32)).astype(x.dtype)
    return fn(x)


_COMPARE = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))


def binary(ns: Namespace, name: str, x: Array, y: Array) -> Array:
    """Result of binary instruction ``name``; bool for comparisons, otherwise of x's dtype."""
    fn = ns.binary(name)
    if _computes_wide(x.dtype) and name not in _COMPARE and name not in ("max", "min"):
        return fn(x.astype(np.float32), y.astype(np.float32)).astype(x.dtype)
    return fn(x, y)


def select(ns: Namespace, p: Array, x: Array, y: Array) -> Array:
    """x where p, else y."""
    return ns.np.where(p, x, y)


def combine(ns: Namespace, kind: str, x: Array, y: Array) -> Array:
    """One step of a reduction."""
    if x.dtype == np.bool_:
        kind = {"sum": "or", "prod": "and", "max": "or", "min": "and"}.get(kind, kind)
    return binary(ns, {"sum": "add", "prod": "mul"}.get(kind, kind), x, y)


def reduce(ns: Namespace, kind: str, x: Array, axes: Axes) -> Array:
    """``x`` reduced over ``axes``."""
    if x.dtype == np.bool_:
        return (ns.np.any if kind in ("sum", "max", "or") else ns.np.all)(x, axis=axes)
    if kind in ("and", "or"):
        return ns.bitwise_reduce(kind, x, axes)
    wide = x.astype(np.float32) if _computes_wide(x.dtype) else x
    if kind == "sum":
        return ns.total(wide, axes).astype(x.dtype)
    if kind == "prod":
        return ns.np.prod(wide, axis=axes, dtype=wide.dtype).astype(x.dtype)
    fn = ns.np.max if kind == "max" else ns.np.min
    return fn(wide, axis=axes, initial=isa.identity(kind, wide.dtype)).astype(x.dtype)


def arg_reduce(ns: Namespace, kind: str, x: Array, dim: int) -> tuple[Array, Array]:
    """Index (int64) of the first maximum or minimum of ``x`` along ``dim``, a NaN before all, and its value."""
    wide = x.astype(np.float32) if _computes_wide(x.dtype) else x
    pick = (ns.np.argmax if kind == "max" else ns.np.argmin)(wide, axis=dim)
    return pick.astype(np.int64), reduce(ns, kind, x, (dim,))


def better(ns: Namespace, kind: str, index: Array, value: Array, old_index: Array, old: Array) -> tuple[Array, Array]:
    """The winner of two results of ``arg_reduce`` in order; a negative old index stands for no result yet."""
    wins = value > old if kind == "max" else value < old
    wins = (wins | (value != value)) & (old == old) | (old_index < 0)
    return ns.np.where(wins, index, old_index), ns.np.where(wins, value, old)


SCANNED = {"cumsum": "sum", "cumprod": "prod", "cummax": "max", "cummin": "min"}


def cumulative(ns: Namespace, name: str, x: Array, dim: int, reverse: bool, carry: Array | None) -> Array:
    """A cumulative instruction in float32 for 16-bit floats, else in x's dtype: the caller rounds after it has taken the carry."""
    wide = x.astype(np.float32) if _computes_wide(x.dtype) else x
    out = ns.scan(name, wide, dim, reverse)
    if carry is None:
        return out
    return combine(ns, SCANNED[name], out, ns.np.broadcast_to(carry.astype(out.dtype), out.shape))


def product(ns: Namespace, x: Array, xdims: int, y: Array, ydims: int, dtype: np.dtype) -> Array:
    """``mmad`` without the accumulator: x . y with the roles of dims packed in two bits each."""
    roles = [[packed >> (2 * d) & 3 for d in range(v.ndim)] for packed, v in ((xdims, x), (ydims, y))]

    def dims(kind: int) -> tuple[Axes, Axes]:
        x_role, y_role = roles
        return tuple(d for d, r in enumerate(x_role) if r == kind), tuple(d for d, r in enumerate(y_role) if r == kind)

    return ns.product(x, y, dims(isa.DOT_CONTRACT), dims(isa.DOT_BATCH), dtype)


def cast(ns: Namespace, x: Array, dtype: np.dtype) -> Array:
    """Converts; to bool means "is not 0"."""
    return x != 0 if dtype == np.bool_ and x.dtype != np.bool_ else ns.convert(x, dtype)


def bcast(ns: Namespace, x: Array, shape: list[int], mask: int) -> Array:
    """x repeated to ``shape``; its dims are those in ``mask``, in order."""
    inner = [n if mask >> d & 1 else 1 for d, n in enumerate(shape)]
    return ns.np.broadcast_to(x.reshape(inner), shape)


def lookup(ns: Namespace, x: Array, y: Array, dim: int) -> Array:
    """x taken along ``dim`` at the clamped indices y (see the instruction table)."""
    at = ns.np.clip(y, 0, x.shape[dim] - 1)
    return ns.np.take(x, at, axis=0) if x.ndim == 1 else ns.np.take_along_axis(x, at, axis=dim)
