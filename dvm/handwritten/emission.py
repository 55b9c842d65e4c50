"""Emits the nodes of a hand-written kernel: NumPy's broadcasting, pushed towards the loads where sizes decide at launch."""

from __future__ import annotations

from collections.abc import Sequence

from graph_kernel.builder import GraphBuilder
from graph_kernel.ir import Graph, Value
from graph_kernel.ops import OPS, Pattern
from symbolic import Dim


class KernelBuilder(GraphBuilder):
    """A ``GraphBuilder`` that broadcasts loaded values instead of computed ones.

    Whether ``[n]`` is repeated over ``[m]`` may be known only at launch. A load can have a stride that is 0 or not; a value in local memory
    cannot. So ``broadcast(f(x))`` becomes ``f(broadcast(x))`` for elementwise ``f``, which keeps such a kernel in one piece.
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self._spread: dict[tuple[Value, tuple[Dim, ...]], Value] = {}

    def broadcast_to(self, x: Value, shape: Sequence[Dim]) -> Value:
        """NumPy broadcasting to ``shape``."""
        shape = tuple(shape)
        if x.shape == shape or x.producer is None or self._is_certain(x, shape):
            return super().broadcast_to(x, shape)
        if (x, shape) not in self._spread:
            self._spread[x, shape] = self._pushed(x, shape)
        return self._spread[x, shape]

    def _is_certain(self, x: Value, shape: tuple[Dim, ...]) -> bool:
        tail = shape[len(shape) - x.rank :]
        return all(a == 1 or self.same_dim(a, b) for a, b in zip(x.shape, tail, strict=True))

    def _pushed(self, x: Value, shape: tuple[Dim, ...]) -> Value:
        node = x.producer
        assert node is not None
        if OPS[node.op].pattern is Pattern.ELEMENTWISE and len(node.outputs) == 1:
            inputs = [self.broadcast_to(v, shape) for v in node.inputs]
            return self.graph.add(node.op, *inputs, origin=node.origin, **node.attrs)
        if node.op == "broadcast":
            lead = len(shape) - x.rank
            return self.op("broadcast", node.inputs[0], shape=shape, dims=tuple(lead + a for a in node.attrs["dims"]))
        return super().broadcast_to(x, shape)
