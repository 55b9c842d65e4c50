"""Matrix products of a block as XLA computes them fastest on a processor. Measured on two cores; docs/executor.md has figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from vm import isa
from vm.packing import Packing

LONG_ROW = 512  # contracted elements from which on a product of one row is computed in parts
ROW_PARTS = 16
TURNED_ROWS = 32  # rows up to which a product with a packed weight is computed weight first

Array = Any


def _dims(role: Sequence[int], kind: int) -> list[int]:
    return [d for d, r in enumerate(role) if r == kind]


def product(x: Array, x_role: Sequence[int], y: Array, y_role: Sequence[int], dtype: np.dtype) -> Array:
    """x . y; a role is batch, free or contracted for every dim. The result's dims: batch, x's free, y's free."""
    contract = _dims(x_role, isa.DOT_CONTRACT), _dims(y_role, isa.DOT_CONTRACT)
    batch = _dims(x_role, isa.DOT_BATCH), _dims(y_role, isa.DOT_BATCH)
    rows = math.prod(x.shape[d] for d in _dims(x_role, isa.DOT_FREE))
    if rows == 1 and not batch[0] and _splits(y, contract[1]):
        return _row_product(x, y, len(contract[1]), dtype)
    return lax.dot_general(x, y, (contract, batch), preferred_element_type=dtype)


def _splits(y: Array, contract: list[int]) -> bool:
    """Whether the product of one row with ``y`` is computed in parts."""
    leading = contract == list(range(len(contract)))
    n = math.prod(y.shape[: len(contract)])
    return leading and y.dtype == np.float32 and n >= LONG_ROW and n % ROW_PARTS == 0 and y.size >= n * LONG_ROW // 2


def _row_product(x: Array, y: Array, contracted: int, dtype: np.dtype) -> Array:
    """x . y for one row and leading contracted dims, as a sum of parts: XLA walks down a long matrix in columns, which is slower the
    longer they are."""
    n = math.prod(y.shape[:contracted])
    a, b = x.reshape(ROW_PARTS, 1, n // ROW_PARTS), y.reshape(ROW_PARTS, n // ROW_PARTS, -1)
    return lax.dot_general(a, b, (((2,), (1,)), ((0,), (0,))), preferred_element_type=dtype).sum(0)


def with_weight(
    x: Array, x_role: Sequence[int], y: Array, y_role: Sequence[int], packing: Packing, one: Callable[[], Array]
) -> Array:
    """x . y with y a packed weight; ``y_role`` is that of the tile it was loaded into. Few rows are computed as y . x and turned: the
    right operand is the one that XLA brings into an order of its own, and x is the smaller one then. ``one`` gives a 1.0 that only the
    launch knows."""
    places = [packing.dims.index(d) for d in _dims(y_role, isa.DOT_CONTRACT)]
    contracted = _dims(x_role, isa.DOT_CONTRACT)
    if packing.batch:
        batch = _dims(x_role, isa.DOT_BATCH), [packing.dims.index(d) for d in _dims(y_role, isa.DOT_BATCH)]
        return lax.dot_general(x, y, ((contracted, places), batch), preferred_element_type=y.dtype)
    # As matrices, since XLA may copy a weight of more dims to make it one.
    depth = math.prod(y.shape[y.ndim - packing.contract :])
    in_order = [d for _, d in sorted(zip(places, contracted, strict=True))]
    x = jnp.transpose(x, [*_dims(x_role, isa.DOT_FREE), *in_order]).reshape(-1, depth)
    y = y.reshape(-1, depth)
    matrices = ([1], [1]), ([], [])  # type: tuple[tuple[list[int], list[int]], tuple[list[int], list[int]]]
    if x.shape[0] > TURNED_ROWS:
        return lax.dot_general(x, y, matrices, preferred_element_type=y.dtype)
    out = lax.dot_general(y, x, matrices, preferred_element_type=y.dtype)
    # XLA would undo the turn if nothing stood between.
    return (out * one()).T if x.shape[0] > 1 else out
