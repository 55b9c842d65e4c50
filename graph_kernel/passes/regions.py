"""What passes that rewrite a whole region share: users, node order and the insertion of conversions."""

from __future__ import annotations

from typing import Any

from graph_kernel.ir import NO_ORIGIN, Graph, Node, Value
from graph_kernel.passes.base import all_values


class Region:
    """A graph being edited in place. Nodes keep their order; new ones are put after a value's definition.

    ``users`` is computed once; nodes that an edit has touched are in ``touched`` and are left alone until the next
    sweep.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.users = graph.users()
        self.order = {node: i for i, node in enumerate(graph.nodes)}
        self.outputs = dict.fromkeys(graph.outputs)
        self.touched: set[Node] = set()
        self.ties: dict[Node, Any] = {}
        self._after: dict[Node | None, list[Node]] = {}
        self._before: dict[Node, list[Node]] = {}
        self._names = {v.name for v in all_values(graph)}

    def insert(
        self,
        op: str,
        inputs: tuple[Value, ...],
        attrs: dict[str, object],
        like: Node | None,
        before: Node | None = None,
    ) -> Value:
        """A new node right after the definition of its first input, or in front of ``before``."""
        node = self.graph.make_node(op, inputs, attrs, like.origin if like is not None else NO_ORIGIN)
        for out in node.outputs:
            while out.name in self._names:
                out.name = self.graph.new_value((), out.dtype).name
            self._names.add(out.name)
        if before is not None:
            for value in dict.fromkeys(inputs):  # a later edit of this sweep must see that its operands are read
                self.users.setdefault(value, []).append(node)
            self.touched.add(node)
            self._before.setdefault(before, []).append(node)
        else:
            self._after.setdefault(inputs[0].producer if inputs else None, []).append(node)
        return node.output

    def finish(self) -> None:
        """Puts the inserted nodes into the graph."""
        nodes: list[Node] = []
        for node in [*self._after.get(None, ()), *self.graph.nodes]:
            self._place(node, nodes)
        self.graph.nodes = nodes

    def _place(self, node: Node, nodes: list[Node]) -> None:
        for item in self._before.get(node, ()):
            self._place(item, nodes)
        nodes.append(node)
        for item in self._after.get(node, ()):
            self._place(item, nodes)
