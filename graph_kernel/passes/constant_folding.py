"""Constant folding: nodes of constants are computed once, at compile time.

A broadcast or an iota of constants is not materialised: both are cheaper as an index map than as memory. Weight
expressions (transposes, reshapes, casts, products of weights) fold when they do not grow, whatever their size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from graph_kernel.ir import Node, Value
from graph_kernel.ops.base import OPS, Pattern
from graph_kernel.passes.base import Rewriter, RulePass
from graph_kernel.passes.match import array_of, is_static, made_by

LAZY = frozenset({"constant", "broadcast", "iota"})


def dim_to_constant(rw: Rewriter, node: Node) -> Value | None:
    """``dim`` of a number is a constant."""
    expr = node.attrs["expr"]
    return rw.constant(np.asarray(expr, dtype=node.output.dtype)) if isinstance(expr, int) else None


def fold(rw: Rewriter, node: Node) -> tuple[Value, ...] | None:
    """op(constants) -> constants."""
    if not node.inputs or any(made_by(v, "constant") is None for v in node.inputs):
        return None
    op = OPS[node.op]
    if op.pattern is Pattern.CONTROL or not all(is_static(v) for v in node.attrs.values()):
        return None
    limit = rw.options.limit if isinstance(rw.options, ConstantFolding) else 0
    if not _small(node, limit):
        return None
    with np.errstate(all="ignore"):
        arrays = op.evaluate([np.asarray(array_of(v)) for v in node.inputs], dict(node.attrs))
    return tuple(
        rw.constant(np.ascontiguousarray(a, dtype=v.dtype).reshape(np.shape(a)))
        for a, v in zip(arrays, node.outputs, strict=True)
    )


def _small(node: Node, limit: int) -> bool:
    """Whether the results are static and either below the limit or not larger than what they replace."""
    total = 0
    for value in node.outputs:
        if not all(isinstance(d, int) for d in value.shape):
            return False
        total += int(np.prod([d for d in value.shape if isinstance(d, int)], dtype=np.int64)) * value.dtype.itemsize
    return total <= limit or total <= sum(np.asarray(array_of(v)).nbytes for v in node.inputs)


@dataclass(frozen=True)
class ConstantFolding(RulePass):
    """Folds nodes of constants whose results have at most ``limit`` bytes, or no more bytes than their inputs."""

    name: ClassVar[str] = "constant_folding"
    group: ClassVar[str] = "cluster"
    level: ClassVar[int] = 1
    limit: int = 1 << 16
    rules: ClassVar = {op: (dim_to_constant,) if op == "dim" else (fold,) for op in OPS if op not in LAZY}
