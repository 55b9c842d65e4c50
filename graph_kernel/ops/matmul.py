"""The matrix product."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from graph_kernel.ir import Origin, Value
from graph_kernel.ops.base import (
    HALF,
    Attrs,
    OpDef,
    Pattern,
    Type,
    check_axis,
    fail,
    is_float,
    register,
    same_dim,
    widen,
)
from symbolic import Scope


def free_axes(rank: int, contract: Sequence[int], batch: Sequence[int]) -> list[int]:
    """The axes of a ``dot`` operand that are neither summed over nor batched, in order."""
    return [a for a in range(rank) if a not in contract and a not in batch]


def _infer_dot(scope: Scope, inputs: tuple[Value, ...], attrs: Attrs, origin: Origin) -> list[Type]:
    a, b = inputs
    (contract_a, contract_b), (batch_a, batch_b) = attrs["contract"], attrs["batch"]
    if len(contract_a) != len(contract_b) or len(batch_a) != len(batch_b):
        raise fail(
            origin,
            f"dot pairs axes {tuple(contract_a)} with {tuple(contract_b)} and {tuple(batch_a)} with {tuple(batch_b)}",
        )
    for axes, value in (((*contract_a, *batch_a), a), ((*contract_b, *batch_b), b)):
        for axis in axes:
            check_axis(axis, value.rank, origin)
        if len(set(axes)) != len(axes):
            raise fail(origin, f"dot uses an axis of {value!r} twice: {axes}")
    if is_float(a.dtype) != is_float(b.dtype):
        raise fail(origin, f"dot of {a.dtype} and {b.dtype}")
    for i, j in zip(contract_a, contract_b, strict=True):
        same_dim(scope, a.shape[i], b.shape[j], origin, f"the summed axes {i} and {j} of dot")
    shape = [
        same_dim(scope, a.shape[i], b.shape[j], origin, f"the batch axes {i} and {j} of dot")
        for i, j in zip(batch_a, batch_b, strict=True)
    ]
    shape += [a.shape[i] for i in free_axes(a.rank, contract_a, batch_a)]
    shape += [b.shape[j] for j in free_axes(b.rank, contract_b, batch_b)]
    return [(tuple(shape), np.dtype(attrs["dtype"]))]


def _evaluate_dot(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    a, b = xs
    (contract_a, contract_b), (batch_a, batch_b) = attrs["contract"], attrs["batch"]
    dtype = np.dtype(attrs["dtype"])
    accumulate = np.dtype(np.float32) if dtype in HALF else dtype
    free_a, free_b = free_axes(a.ndim, contract_a, batch_a), free_axes(b.ndim, contract_b, batch_b)
    batch, rows, cols = ([x.shape[i] for i in axes] for x, axes in ((a, batch_a), (a, free_a), (b, free_b)))
    inner = prod(a.shape[i] for i in contract_a)
    left = a.transpose([*batch_a, *free_a, *contract_a]).reshape(prod(batch), prod(rows), inner)
    right = b.transpose([*batch_b, *contract_b, *free_b]).reshape(prod(batch), inner, prod(cols))
    with np.errstate(all="ignore"):
        out = np.matmul(widen(left).astype(accumulate), widen(right).astype(accumulate))
    return [out.reshape([*batch, *rows, *cols]).astype(dtype)]


register(
    OpDef(
        "dot",
        Pattern.MATMUL,
        2,
        _infer_dot,
        _evaluate_dot,
        doc="lax.dot_general: batch axes, free axes of a, free axes of b; 16-bit floats accumulate in float32",
    )
)
