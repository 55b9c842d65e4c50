"""Rules of primitives that make or move data without looking at it."""

from __future__ import annotations

from typing import Any

import numpy as np

from graph_kernel.from_jaxpr.lowering import Lowering, Unsupported, is_key, rule
from graph_kernel.ir import Value
from symbolic import Dim


@rule("broadcast_in_dim")
def broadcast_in_dim(low: Lowering, eqn: Any, x: Value, *dynamic: Value) -> Value:
    """The op of the same meaning; adding nothing is the identity."""
    if dynamic:
        raise Unsupported("sizes that are tensors")
    shape, dims = low.dim.shape(eqn.params["shape"]), tuple(eqn.params["broadcast_dimensions"])
    if is_key(eqn.outvars[0].aval.dtype):
        shape, dims = (*shape, *x.shape[len(dims) :]), (*dims, *range(len(shape), len(shape) + x.rank - len(dims)))
    if shape == x.shape and dims == tuple(range(x.rank)):
        return x
    return low.add("broadcast", x, shape=shape, dims=dims)


def _words(eqn: Any, x: Value) -> tuple[Dim, ...]:
    """The trailing axes that a random key's words add."""
    return x.shape[len(eqn.invars[0].aval.shape) :]


@rule("reshape")
def reshape(low: Lowering, eqn: Any, x: Value) -> Value:
    """Row-major."""
    if eqn.params.get("dimensions") is not None:
        raise Unsupported("with an axis order")
    return low.reshape(x, (*low.dim.shape(eqn.params["new_sizes"]), *_words(eqn, x)))


@rule("squeeze")
def squeeze(low: Lowering, eqn: Any, x: Value) -> Value:
    """Drops axes of size 1."""
    dropped = eqn.params["dimensions"]
    return low.reshape(x, tuple(n for a, n in enumerate(x.shape) if a not in dropped))


@rule("transpose")
def transpose(low: Lowering, eqn: Any, x: Value) -> Value:
    """Permutes axes."""
    perm = tuple(eqn.params["permutation"])
    return low.transpose(x, (*perm, *range(len(perm), x.rank)))


@rule("rev")
def rev(low: Lowering, eqn: Any, x: Value) -> Value:
    """Reverses axes."""
    axes = tuple(eqn.params["dimensions"])
    return low.add("rev", x, axes=axes) if axes else x


def static_slice(
    low: Lowering, x: Value, starts: tuple[Dim, ...], limits: tuple[Dim, ...], strides: tuple[int, ...]
) -> Value:
    """A slice; one that takes everything is the identity."""
    if all(s == 0 for s in starts) and limits == x.shape and all(s == 1 for s in strides):
        return x
    return low.add("slice", x, starts=starts, limits=limits, strides=strides)


@rule("slice")
def slice_(low: Lowering, eqn: Any, x: Value) -> Value:
    """Starts, limits and strides, for keys over the outer axes."""
    starts, limits = low.dim.shape(eqn.params["start_indices"]), low.dim.shape(eqn.params["limit_indices"])
    strides = tuple(int(s) for s in eqn.params["strides"] or (1,) * len(starts))
    words = _words(eqn, x)
    return static_slice(low, x, (*starts, *(0 for _ in words)), (*limits, *words), (*strides, *(1 for _ in words)))


@rule("pad")
def pad(low: Lowering, eqn: Any, x: Value, value: Value) -> Value:
    """Low, high and interior per axis."""
    config = eqn.params["padding_config"]
    if all(isinstance(n, int) and n == 0 for entry in config for n in entry):
        return x
    return low.add(
        "pad",
        x,
        value,
        low=tuple(low.dim(lo) for lo, _, _ in config),
        high=tuple(low.dim(hi) for _, hi, _ in config),
        interior=tuple(int(i) for _, _, i in config),
    )


@rule("concatenate")
def concatenate(low: Lowering, eqn: Any, *xs: Value) -> Value:
    """One after another."""
    return xs[0] if len(xs) == 1 else low.add("concat", *xs, axis=eqn.params["dimension"])


@rule("stack")
def stack(low: Lowering, eqn: Any, *xs: Value) -> Value:
    """Concatenation along a new axis."""
    axis = eqn.params["axis"]
    rows = [low.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:])) for x in xs]
    return rows[0] if len(rows) == 1 else low.add("concat", *rows, axis=axis)


@rule("unstack")
def unstack(low: Lowering, eqn: Any, x: Value) -> list[Value]:
    """One slice per entry of an axis, which goes."""
    axis = eqn.params["axis"]
    count = len(eqn.outvars)
    parts = split_axis(low, x, axis, [1] * count)
    return [low.reshape(p, (*x.shape[:axis], *x.shape[axis + 1 :])) for p in parts]


def split_axis(low: Lowering, x: Value, axis: int, sizes: list[Dim]) -> list[Value]:
    """Consecutive slices of the given sizes."""
    parts: list[Value] = []
    start: Dim = 0
    for size in sizes:
        starts = tuple(start if a == axis else 0 for a in range(x.rank))
        limits = tuple(start + size if a == axis else n for a, n in enumerate(x.shape))
        parts.append(static_slice(low, x, starts, limits, (1,) * x.rank))
        start = start + size
    return parts


@rule("split")
def split(low: Lowering, eqn: Any, x: Value) -> list[Value]:
    """Consecutive slices."""
    return split_axis(low, x, eqn.params["axis"], list(low.dim.shape(eqn.params["sizes"])))


@rule("tile")
def tile(low: Lowering, eqn: Any, x: Value) -> Value:
    """A broadcast over new axes that a reshape merges."""
    reps = low.dim.shape(eqn.params["reps"])
    shape: list[Dim] = []
    for n, r in zip(x.shape, reps, strict=True):
        shape += [r, n]
    if all(r == 1 for r in reps):
        return x
    wide = low.add("broadcast", x, shape=tuple(shape), dims=tuple(range(1, 2 * x.rank, 2)))
    return low.reshape(wide, tuple(r * n for n, r in zip(x.shape, reps, strict=True)))


@rule("iota")
def iota(low: Lowering, eqn: Any, *dynamic: Value) -> Value:
    """Counts along an axis."""
    if dynamic:
        raise Unsupported("sizes that are tensors")
    p = eqn.params
    return low.add("iota", shape=low.dim.shape(p["shape"]), axis=p["dimension"], dtype=np.dtype(p["dtype"]))


@rule("dim_as_value")
def dim_as_value(low: Lowering, eqn: Any) -> Value:
    """The value of a dimension."""
    return low.dim_value(low.dim(eqn.params["dim"]), eqn.outvars[0].aval.dtype)


@rule("dimension_size")
def dimension_size(low: Lowering, eqn: Any, x: Value) -> Value:
    """The size of one axis."""
    return low.dim_value(x.shape[eqn.params["dimension"]], eqn.outvars[0].aval.dtype)


@rule("zeros_like", "empty", "empty2")
def zeros(low: Lowering, eqn: Any, *inputs: Value) -> Value:
    """Zeros, which also serve where the contents do not matter."""
    return low.full(0, *low.type_of(eqn.outvars[0].aval))
