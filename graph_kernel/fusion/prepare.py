"""What is done to a graph before fusion: results without elements are made from nothing, and every use of data movement gets its own
copy of it. Also the classes of nodes that belong to no kernel: each kernel carries its own."""

from __future__ import annotations

import numpy as np

from graph_kernel.fusion.views import VIEW_OPS
from graph_kernel.ir import Graph, Node, Value
from graph_kernel.ops import OPS
from graph_kernel.ops.base import Pattern, on_chip
from graph_kernel.passes.liveness import data_symbols, defined_symbols, remove_dead

FREE_OPS = VIEW_OPS | {"broadcast", "iota", "constant", "dim", "barrier"}
GENERATORS = frozenset(("iota", "constant", "dim"))


def is_carried(node: Node) -> bool:
    """False for constants that are arrays in memory: those of several elements, and of dtypes that the chip lacks."""
    return node.op != "constant" or (
        np.asarray(node.attrs["value"]).size == 1 and on_chip("constant", [node.output.dtype])
    )


def is_scalar_chain(node: Node) -> bool:
    """Whether a free node's value is made from generators alone and has no memory to share."""
    stack = [node]
    while stack:
        n = stack.pop()
        for v in n.inputs:
            if v.producer is None:
                return False
            if v.producer.op in GENERATORS:
                if not is_carried(v.producer):
                    return False
                continue
            if v.producer.op not in FREE_OPS:
                return False
            stack.append(v.producer)
    return True


def unshare(graph: Graph) -> None:
    """Gives every use of a free node a copy of it, so that one value can be read along different axes in one kernel: ``x[i]`` and
    ``x[j]`` are two loads. Operands that broadcasts and products share with other uses get an identity reshape for the same reason."""
    uses: dict[Value, int] = {}
    for node in graph.nodes:
        for value in node.inputs:
            uses[value] = uses.get(value, 0) + 1
    for value in graph.outputs:
        uses[value] = uses.get(value, 0) + 1
    before: dict[Node, list[Node]] = {}

    def own(value: Value, user: Node, always: bool) -> Value:
        producer = value.producer
        shared = uses[value] > 1
        if producer is not None and producer.op in FREE_OPS and is_carried(producer):
            if not shared:
                return value
            uses[value] -= 1
            copy = Node(producer.op, producer.inputs, (), dict(producer.attrs), producer.origin)
            copy.outputs = tuple(graph.new_value(v.shape, v.dtype) for v in producer.outputs)
            for out in copy.outputs:
                out.producer = copy
                uses[out] = 1
            for v in copy.inputs:
                uses[v] += 1
            before[user].append(copy)
            before[copy] = []
            separate(copy)
            return copy.outputs[producer.outputs.index(value)]
        if always and shared and value.shape:
            node = graph.make_node("reshape", [value], {"shape": value.shape}, user.origin)
            before[user].append(node)
            before[node] = []
            uses[node.output] = 1
            return node.output
        return value

    def separate(node: Node) -> None:
        twice = node.op == "dot" and root_of(node.inputs[0]) is root_of(node.inputs[1])
        fresh = []
        for k, value in enumerate(node.inputs):
            fresh.append(own(value, node, node.op == "broadcast" or (twice and k == 1)))
        node.inputs = tuple(fresh)

    for node in reversed(graph.nodes):
        before[node] = []
        separate(node)
    order: list[Node] = []

    def place(node: Node) -> None:
        for n in reversed(before[node]):
            place(n)
        order.append(node)

    for node in graph.nodes:
        place(node)
    graph.nodes[:] = order


def root_of(value: Value) -> Value:
    while value.producer is not None and value.producer.op in VIEW_OPS:
        value = value.producer.inputs[0]
    return value


def _is_empty(value: Value) -> bool:
    return any(isinstance(n, int) and n == 0 for n in value.shape)


def empty_results(graph: Graph) -> None:
    """Whatever has no element at any size is made from nothing: its node becomes a broadcast scalar, and what only it read is dropped."""
    out: list[Node] = []
    data = data_symbols(graph)
    for node in graph.nodes:
        if node.op == "pad" and _is_empty(node.inputs[0]) and on_chip("pad", [node.output.dtype]):
            node.op, node.inputs, node.attrs = "broadcast", node.inputs[1:], {"shape": node.output.shape, "dims": ()}
        elif node.op == "concat" and any(map(_is_empty, node.inputs)) and not all(map(_is_empty, node.inputs)):
            node.inputs = tuple(v for v in node.inputs if not _is_empty(v))
        empty = bool(node.outputs) and all(map(_is_empty, node.outputs))
        if (
            not empty
            or (data and defined_symbols(node, data))
            or OPS[node.op].pattern is Pattern.CONTROL
            or node.op == "constant"
            or not on_chip("add", [v.dtype for v in node.outputs])
        ):
            out.append(node)
            continue
        for value in node.outputs:
            zero = graph.make_node("constant", [], {"value": np.zeros((), value.dtype)}, node.origin)
            fill = Node("broadcast", zero.outputs, (value,), {"shape": value.shape, "dims": ()}, node.origin)
            value.producer = fill
            out += [zero, fill]
    graph.nodes[:] = out
    remove_dead(graph)
