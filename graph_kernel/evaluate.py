"""A NumPy evaluator of graphs at concrete sizes: the oracle that everything else is tested against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graph_kernel.ir import Graph, Node, Value
from graph_kernel.ops import OPS
from symbolic import Expr
from symbolic import evaluate as evaluate_dim
from vm.errors import InputError, ShapeError


def evaluate(graph: Graph, inputs: Sequence[Any], dims: Mapping[str, int]) -> list[np.ndarray]:
    """Runs ``graph`` on arrays whose symbols have the sizes ``dims``; returns the outputs.

    Every array is checked against the deduced shape and dtype, so a wrong shape rule shows as an ``AssertionError``.
    Data-dependent symbols are bound when the node that makes them has run. Raises ``InputError`` or ``ShapeError`` if
    the inputs do not fit ``dims``.
    """
    sizes = dict(dims)
    if len(inputs) != len(graph.inputs):
        raise InputError(f"{graph.name} takes {len(graph.inputs)} inputs, got {len(inputs)}")
    arrays = [np.asarray(x) for x in inputs]
    for value, array in zip(graph.inputs, arrays, strict=True):
        want = shape_of(value, sizes)
        if array.shape != want:
            raise ShapeError(f"input {value.name} has shape {list(array.shape)}, expected {list(want)} at {sizes}")
        if array.dtype != value.dtype:
            raise InputError(f"input {value.name} is {array.dtype}, expected {value.dtype}")
    return _run(graph, arrays, sizes)


def shape_of(value: Value, dims: Mapping[str, int]) -> tuple[int, ...]:
    """The sizes of ``value`` when its symbols are ``dims``."""
    return tuple(evaluate_dim(d, dims) for d in value.shape)


class _Body:
    """A sub-graph at concrete sizes, as ops' ``evaluate`` sees it."""

    def __init__(self, graph: Graph, sizes: dict[str, int]) -> None:
        self.graph = graph
        self.sizes = sizes

    def __call__(self, *arrays: np.ndarray) -> list[np.ndarray]:
        return _run(self.graph, list(arrays), self.sizes)

    def output_types(self) -> list[tuple[tuple[int, ...], np.dtype]]:
        """Shape and dtype of each result."""
        return [(shape_of(v, self.sizes), v.dtype) for v in self.graph.outputs]


def concrete(attr: Any, sizes: dict[str, int]) -> Any:
    """An attribute with dims replaced by sizes and graphs by callables."""
    if isinstance(attr, Expr):
        return evaluate_dim(attr, sizes)
    if isinstance(attr, tuple | list):
        return tuple(concrete(a, sizes) for a in attr)
    return _Body(attr, sizes) if isinstance(attr, Graph) else attr


def _run(graph: Graph, arrays: list[np.ndarray], sizes: dict[str, int]) -> list[np.ndarray]:
    env: dict[Value, np.ndarray] = dict(zip(graph.inputs, arrays, strict=True))
    last_use = {v: i for i, node in enumerate(graph.nodes) for v in node.inputs}
    kept = dict.fromkeys(graph.outputs)
    for i, node in enumerate(graph.nodes):
        attrs = {k: concrete(a, sizes) for k, a in node.attrs.items()}
        outs = OPS[node.op].evaluate([env[v] for v in node.inputs], attrs)
        for value, out in zip(node.outputs, outs, strict=True):
            env[value] = _checked(node, value, np.asarray(out), sizes)
        for v in dict.fromkeys(node.inputs):
            if last_use[v] == i and v not in kept:
                del env[v]
    return [env[v] for v in graph.outputs]


def _checked(node: Node, value: Value, out: np.ndarray, sizes: dict[str, int]) -> np.ndarray:
    for size, d in zip(out.shape, value.shape, strict=False):
        if isinstance(d, Expr) and len(d.symbols) == 1 and str(d) == d.symbols[0] and d.symbols[0] not in sizes:
            sizes[d.symbols[0]] = size
    want = shape_of(value, sizes)
    assert out.shape == want and out.dtype == value.dtype, (
        f"{node.origin}: {node!r} gave {out.dtype}{list(out.shape)}, deduced {value!r} = {list(want)}"
    )
    return out
