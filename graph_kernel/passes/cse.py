"""Common subexpression elimination: equal ops on equal inputs with equal attributes become one node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from graph_kernel.ir import Graph, Value
from graph_kernel.passes.base import Pass
from graph_kernel.passes.liveness import data_symbols, defined_symbols
from symbolic import Expr

_SAMPLES = 32
COMMUTATIVE = frozenset({"add", "mul", "max", "min", "and", "or", "xor", "eq", "ne"})


@dataclass(frozen=True)
class CommonSubexpressions(Pass):
    """One forward sweep with a table of seen nodes. Constants are compared by content, nodes with sub-graphs not at all.

    The two inputs of a commutative op count in either order. Nodes that determine a data-dependent size stay: each
    has a symbol of its own.
    """

    name: ClassVar[str] = "cse"
    group: ClassVar[str] = "cluster"
    level: ClassVar[int] = 1

    def rewrite(self, graph: Graph, notes: Counter[str]) -> bool:
        number: dict[Value, int] = {}
        seen: dict[Hashable, tuple[Value, ...]] = {}
        pool = ConstantPool()
        mapping: dict[Value, Value] = {}
        kept = []
        data = data_symbols(graph)
        for node in graph.nodes:
            if any(v in mapping for v in node.inputs):
                node.inputs = tuple(mapping.get(v, v) for v in node.inputs)
            attrs = attrs_key(node.attrs, pool)
            if data and defined_symbols(node, data):
                attrs = None
            ins = tuple(number.setdefault(v, len(number)) for v in node.inputs)
            if node.op in COMMUTATIVE:
                ins = tuple(sorted(ins))
            key = (node.op, ins, attrs)
            if attrs is None or key not in seen:
                if attrs is not None:
                    seen[key] = node.outputs
                kept.append(node)
                continue
            mapping.update(zip(node.outputs, seen[key], strict=True))
            notes["merged"] += 1
        if not mapping:
            return False
        graph.nodes = kept
        graph.outputs = [mapping.get(v, v) for v in graph.outputs]
        return True


class ConstantPool:
    """Numbers arrays by content: equal dtype, shape and bits give the same number.

    A few sampled bytes decide nearly every comparison, so large weights are not hashed.
    """

    def __init__(self) -> None:
        self._buckets: dict[Hashable, list[tuple[np.ndarray, int]]] = {}
        self._count = 0

    def number(self, array: np.ndarray) -> int:
        """The array's number in this pool."""
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        step = max(1, flat.size // _SAMPLES)
        bucket = self._buckets.setdefault((str(array.dtype), array.shape, flat[::step].tobytes()), [])
        for other, index in bucket:
            if other is array or np.array_equal(flat, np.ascontiguousarray(other).reshape(-1).view(np.uint8)):
                return index
        bucket.append((array, self._count))
        self._count += 1
        return self._count - 1


def attrs_key(attrs: dict[str, Any], pool: ConstantPool) -> Hashable | None:
    """A hashable key of attributes, equal only if they mean the same; None if one of them is a graph."""
    items = []
    for name in sorted(attrs):
        key = _key(attrs[name], pool)
        if key is None:
            return None
        items.append((name, key))
    return tuple(items)


def _key(value: Any, pool: ConstantPool) -> Hashable | None:
    kind = type(value)
    if kind is int or kind is str or kind is Expr:
        return value
    if kind is tuple or kind is list:
        keys = tuple([_key(v, pool) for v in value])
        return None if None in keys else keys
    if isinstance(value, Graph):
        return None
    if isinstance(value, np.ndarray | np.generic):
        return ("array", pool.number(np.asarray(value)))
    if isinstance(value, float):
        return ("float", value.hex())  # tells -0.0 from 0.0 and NaN equal to itself
    return (kind.__name__, value)
