"""Symbolic values of small integer tensors, the driver of the ops' value rules.

A known tensor is an object array whose entries are dims, or None where unknown; bools are 0 and 1.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from graph_kernel.ir import Graph, Node, Value
from graph_kernel.ops.base import OPS, static_shape
from symbolic import Dim, Scope

MAX_ENTRIES = 256  # tensors that hold shapes are small; larger ones are data


def carries_dims(value: Value) -> bool:
    """Whether ``value`` can hold a shape: a small signed integer or bool tensor of static shape."""
    shape = static_shape(value.shape)
    fits = value.dtype == np.bool_ or value.dtype.kind == "i"
    return fits and shape is not None and prod(shape) <= MAX_ENTRIES


def infer_values(scope: Scope, node: Node, known: dict[Value, np.ndarray]) -> np.ndarray | None:
    """What is known of the output of ``node`` given ``known`` inputs; None if nothing is."""
    rule = OPS[node.op].value_rule
    if rule is None or len(node.outputs) != 1 or not carries_dims(node.outputs[0]):
        return None
    if not all(carries_dims(v) for v in node.inputs) or (node.inputs and not any(v in known for v in node.inputs)):
        return None
    values = [known.get(v) for v in node.inputs]
    filled = [
        np.full(static_shape(v.shape) or (), None, dtype=object) if x is None else x
        for v, x in zip(node.inputs, values, strict=True)
    ]
    attrs = node.attrs | {"in_dtype": node.inputs[0].dtype if node.inputs else None}
    found = rule(scope, filled, attrs)
    if found is None:
        return None
    return _within_range(np.asarray(found, dtype=object), node.outputs[0].dtype)


def _within_range(found: np.ndarray, dtype: np.dtype) -> np.ndarray | None:
    """``found`` with numbers that overflow ``dtype`` made unknown; None if nothing is left."""
    low, high = (0, 1) if dtype == np.bool_ else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    out = np.empty(found.shape, dtype=object)
    for index in np.ndindex(*found.shape):
        entry = found[index]
        out[index] = None if isinstance(entry, int) and not low <= entry <= high else entry
    return out if out.size == 0 or any(e is not None for e in out.reshape(-1)) else None


def propagate(graph: Graph, known: dict[Value, np.ndarray] | None = None) -> dict[Value, np.ndarray]:
    """Known values of ``graph`` (its sub-graphs not entered), from its nodes in order and from ``known`` inputs."""
    found = dict(known or {})
    for node in graph.nodes:
        value = infer_values(graph.scope, node, found)
        if value is not None:
            found[node.outputs[0]] = value
    return found


def literal_value(known: dict[Value, np.ndarray], value: Value) -> list[Dim] | None:
    """The entries of a rank-0 or rank-1 tensor as dims, or None if any entry is unknown."""
    found = known.get(value)
    if found is None or found.ndim > 1:
        return None
    entries: list[Any] = list(found.reshape(-1))
    return None if any(e is None for e in entries) else entries
