"""Emits canonical ops for the ONNX converters: what ``GraphBuilder`` has, and ONNX values on demand.

A builder owns one graph. Bodies of control flow get a builder of their own whose ``parent`` is the outer one; a value
of an outer graph becomes an input of the body when it is first used (``captured``).
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from graph_kernel.builder import GraphBuilder, Operand
from graph_kernel.from_onnx.dims import require_min_fits
from graph_kernel.from_onnx.tensor import Ratio, Tensor, object_array
from graph_kernel.ir import Graph, Shape, Value
from vm.errors import UnsupportedOp

__all__ = ["Builder", "Operand"]


class Builder(GraphBuilder):
    """A ``GraphBuilder`` that also knows ONNX values."""

    def __init__(self, graph: Graph, parent: Builder | None = None) -> None:
        super().__init__(graph)
        self.parent = parent
        self.captured: list[Tensor] = []
        self._values: dict[Tensor, Value] = {}
        self._nonzero: dict[Value, Value] = {}

    def value(self, x: Tensor | Value) -> Value:
        """The graph value of a tensor; makes a constant, dims or a captured input if it has none here yet."""
        if isinstance(x, Value):
            return x
        if x.value is not None and x.owner is self:
            return x.value
        if x not in self._values:
            self._values[x] = self._materialise(x)
        return self._values[x]

    def _materialise(self, x: Tensor) -> Value:
        if x.array is not None:
            return self.constant(x.array)
        if x.elements is not None:
            return self._from_elements(x.elements, x.dtype)
        if x.items is not None:
            raise UnsupportedOp("a sequence takes part where a tensor must")
        self.captured.append(x)
        return self.graph.add_input(x.shape, x.dtype)

    def _from_elements(self, elements: np.ndarray, dtype: np.dtype) -> Value:
        scalars = [self._element(e, dtype) for e in elements.flat]
        if elements.ndim == 0:
            return scalars[0]
        parts = [self.reshape(s, (1,)) for s in scalars]
        flat = parts[0] if len(parts) == 1 else self.concat(parts, 0)
        return self.reshape(flat, elements.shape)

    def _element(self, element: Any, dtype: np.dtype) -> Value:
        if isinstance(element, Ratio):
            top = self.dim(element.num, dtype)
            return top if element.den == 1 else self.binary("div", top, float(element.den))
        if isinstance(element, (int, float)):
            return self.scalar(element, dtype)
        if dtype == np.bool_:
            return self.op("ne", self.dim(element, np.int64), self.scalar(0, np.int64))
        return self.dim(element, dtype)

    # ---- shapes

    def nonzero(self, x: Value) -> Value:
        """int64[rank, count]: where ``x`` is not 0. The same mask gives the same value, and so one symbol for its count."""
        if x not in self._nonzero:
            self._nonzero[x] = self.op("nonzero", x)
        return self._nonzero[x]

    def broadcast_shape(self, *shapes: Shape) -> Shape:
        """As in ``GraphBuilder``, with what a table sliced to the length of an input implies."""
        if not all(s == shapes[0] for s in shapes):
            origin = str(self.origin)
            for x, y in itertools.permutations(shapes, 2):
                for a, b in zip(reversed(x), reversed(y), strict=False):
                    if a != b:
                        require_min_fits(self.scope, a, b, origin)
        return super().broadcast_shape(*shapes)

    def dims_of(self, x: Value) -> np.ndarray:
        """The shape as an object array."""
        return object_array(list(x.shape), (x.rank,))
