"""What the recognisers share: a match becomes one composite node with the matched nodes as its body, and a body goes back in its place.

A recogniser only has to say where a composite ends and what it reads. Its body is a copy of the nodes in between, so a composite can
mean nothing else than what was there, whatever the recogniser thinks of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from graph_kernel.ir import NO_ORIGIN, Graph, Node, Value
from graph_kernel.ops import OPS, Pattern
from graph_kernel.passes.base import Pass, all_graphs
from graph_kernel.passes.liveness import remove_dead

COMPOSITES = frozenset(name for name, op in OPS.items() if op.pattern is Pattern.COMPOSITE)

Build = Callable[[Graph, Sequence[Value]], Value]


@dataclass(frozen=True)
class Match:
    """A composite that ends in ``output`` and reads ``leaves``. ``attrs`` are the node's attributes without its body.

    ``instead`` replaces values in the body that are provably equal to another one. ``build(body, inputs)`` makes a shorter body of the
    same meaning up to rounding; without it the body is a copy.
    """

    output: Value
    leaves: tuple[Value, ...]
    attrs: Mapping[str, Any]
    instead: Mapping[Value, Value] = field(default_factory=dict)
    build: Build | None = None


@dataclass(frozen=True)
class Composite:
    """One recognised composite, for reports: its op, its parameters as text, where the nodes of its body came from, and the composites
    inside it."""

    op: str
    parameters: str
    origins: tuple[str, ...]
    inner: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.op} {self.parameters}".strip()


class Finder:
    """A graph while its composites are looked for: who reads what."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.scope = graph, graph.scope
        self.users = graph.users()
        self.outputs = dict.fromkeys(graph.outputs)

    def readers(self, value: Value) -> list[Node]:
        """The nodes that read ``value``."""
        return self.users.get(value, [])

    def only_reader(self, value: Value) -> Node | None:
        """The one node that reads ``value``, if nothing else does."""
        found = self.readers(value)
        return found[0] if len(found) == 1 and value not in self.outputs else None


@dataclass(frozen=True)
class Recogniser(Pass):
    """Base of the ``recognise_*`` passes: looks at every node whose op is in ``anchors`` and asks ``match`` what it belongs to."""

    group: ClassVar[str] = "expand"
    op: ClassVar[str] = ""
    anchors: ClassVar[frozenset[str]] = frozenset()

    def match(self, finder: Finder, node: Node) -> Match | None:
        """The composite that ``node`` is the heart of."""
        raise NotImplementedError

    def rewrite(self, graph: Graph, notes: Counter[str]) -> bool:
        if not any(node.op in self.anchors for node in graph.nodes):
            return False
        finder = Finder(graph)
        found: dict[Value, tuple[Match, list[Value], Graph]] = {}
        for node in graph.nodes:
            match = self.match(finder, node) if node.op in self.anchors else None
            if match is not None and match.output not in found:
                found[match.output] = (match, *_body(graph, self.op, match))
        if not found:
            return False
        notes[self.op] += len(found)
        new: dict[Value, Value] = {}
        for i, node in enumerate(graph.nodes):
            if len(node.outputs) != 1 or node.output not in found:
                node.inputs = tuple(new.get(v, v) for v in node.inputs)
                continue
            match, inputs, body = found[node.output]
            attrs = dict(match.attrs) | {"body": body}
            graph.nodes[i] = graph.make_node(self.op, [new.get(v, v) for v in inputs], attrs, node.origin)
            graph.nodes[i].output.name = node.output.name  # whose node is gone
            new[node.output] = graph.nodes[i].output
        graph.outputs = [new.get(v, v) for v in graph.outputs]
        remove_dead(graph)
        return True


def _body(graph: Graph, op: str, match: Match) -> tuple[list[Value], Graph]:
    """What the composite reads, and its body."""
    body = Graph(graph.scope, name=op)
    if match.build is not None:
        inputs = list(dict.fromkeys(match.leaves))
        body.inputs = [_parameter(v) for v in inputs]
        values = dict(zip(inputs, body.inputs, strict=True))
        body.outputs = [match.build(body, [values[v] for v in match.leaves])]
        names = {v.name for v in body.inputs}
        for node in body.nodes:
            node.origin = match.output.producer.origin if match.output.producer is not None else NO_ORIGIN
            for out in node.outputs:
                claim_name(out, names, body)
        return inputs, body
    inputs, nodes = between(match.output, match.leaves, match.instead)
    body.inputs = [_parameter(v) for v in inputs]
    values = dict(zip(inputs, body.inputs, strict=True))
    copy_nodes(nodes, values, body, match.instead)
    body.outputs = [values[match.output]]
    return inputs, body


def claim_name(value: Value, names: set[str], graph: Graph) -> None:
    """Gives ``value`` another name if its own is in ``names``, and puts it there."""
    while value.name in names:
        value.name = graph.new_value((), value.dtype).name
    names.add(value.name)


def _parameter(value: Value) -> Value:
    return Value(value.shape, value.dtype, value.name)


def copy_nodes(
    nodes: Iterable[Node], values: dict[Value, Value], into: Graph, instead: Mapping[Value, Value] | None = None
) -> None:
    """Appends copies of ``nodes`` to ``into``, reading and writing through ``values``; names stay."""
    for node in nodes:
        inputs = tuple(values[(instead or {}).get(v, v)] for v in node.inputs)
        outputs = tuple(Value(v.shape, v.dtype, v.name) for v in node.outputs)
        copy = Node(node.op, inputs, outputs, dict(node.attrs), node.origin)
        for old, out in zip(node.outputs, outputs, strict=True):
            out.producer = copy
            values[old] = out
        into.nodes.append(copy)


def between(
    output: Value, leaves: Sequence[Value], instead: Mapping[Value, Value] | None = None
) -> tuple[list[Value], list[Node]]:
    """What a body reads and the nodes it holds: those on the way from ``leaves`` to ``output``, with the numbers that they use.

    Graph inputs and arrays of several elements that turn up on the way are read as well.
    """
    inputs = dict.fromkeys(leaves)
    order: dict[Node, None] = {}
    stack: list[tuple[Value, bool]] = [(output, False)]
    while stack:
        value, done = stack.pop()
        value = (instead or {}).get(value, value)
        node = value.producer
        if value in inputs or (node in order if node is not None else False):
            continue
        if node is None or _is_array(node):
            inputs[value] = None
            continue
        if done:
            order[node] = None
            continue
        stack.append((value, True))
        stack += [(v, False) for v in reversed(node.inputs)]
    return list(inputs), list(order)


def _is_array(node: Node) -> bool:
    return node.op == "constant" and np.asarray(node.attrs["value"]).size != 1


def expanded(node: Node, inputs: Sequence[Value], into: Graph) -> Value:
    """Appends the body of a composite to ``into``, composites inside it expanded too; returns what stands for the node's output."""
    body: Graph = node.attrs["body"]
    values = dict(zip(body.inputs, inputs, strict=True))
    for inner in body.nodes:
        if inner.op in COMPOSITES:
            values[inner.output] = expanded(inner, [values[v] for v in inner.inputs], into)
        else:
            copy_nodes([inner], values, into)
    return values[body.outputs[0]]


def composites(graph: Graph) -> list[Composite]:
    """The composites of ``graph`` and its control-flow sub-graphs, in order; those inside another are named by it."""
    return [describe(node) for g in all_graphs(graph) for node in g.nodes if node.op in COMPOSITES]


def describe(node: Node) -> Composite:
    """What a report says about one composite node."""
    shown = [f"{key}={_text(value)}" for key, value in node.attrs.items() if key != "body"]
    nested = [n for n in _inside(node) if n.op in COMPOSITES]
    places = [str(n.origin) for n in _inside(node) if n.op not in (*COMPOSITES, "constant", "broadcast")]
    origins = tuple(dict.fromkeys(p for p in [*places, str(node.origin)] if p))
    return Composite(node.op, " ".join(shown), origins, tuple(n.op for n in nested))


def _inside(node: Node) -> Iterable[Node]:
    for inner in node.attrs["body"].nodes:
        yield inner
        if inner.op in COMPOSITES:
            yield from _inside(inner)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(list(value) if isinstance(value, tuple) else value)
