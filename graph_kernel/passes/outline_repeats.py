"""Outlining: the equal layers of a deep graph become calls of one body, which is then optimised, fused and compiled once.

Layers stand one after the other, so the kinds of nodes (operator, attributes, types) repeat with a period. Where a period is cut into
blocks is free; the cut is made where the fewest values cross it, which for a decoder is the residual stream. A block reads results of the
block before, values from in front of all blocks, and graph inputs such as its weights: these become parameters, results that others read
become results of the body. If the blocks do not agree in who reads what, nothing is done.

What all blocks read alike and what is no more than a number or an index (a scalar, a mask made of positions) is made again in the body,
so that it stays an immediate or an index map; anything else (the cosines of RoPE) is a parameter and computed once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from graph_kernel.ir import Graph, Node, Value
from graph_kernel.ops import OPS, Pattern
from graph_kernel.passes.base import Pass
from graph_kernel.passes.composites import claim_name
from graph_kernel.passes.cse import ConstantPool, attrs_key
from graph_kernel.passes.liveness import data_symbols, remove_dead

CANDIDATES = 8  # periods that are tried, the likeliest first
CHEAP = frozenset(("broadcast", "reshape", "transpose", "iota", "dim"))
Place = tuple[int, int]  # offset of a node in its block, number of its output


@dataclass(frozen=True)
class OutlineRepeats(Pass):
    """Graphs of fewer than ``nodes`` nodes, and layers that repeat less than ``repeats`` times, stay as they are: little is gained there,
    and what is one graph can be optimised across layers."""

    name: ClassVar[str] = "outline_repeats"
    group: ClassVar[str] = "cluster"
    level: ClassVar[int] = 2
    nodes: int = 800
    repeats: int = 5

    def rewrite(self, graph: Graph, notes: Counter[str]) -> bool:
        if len(graph.nodes) < self.nodes or data_symbols(graph):
            return False
        found = _period(graph)
        if found is None:
            return False
        first, period, count = _cut(graph, *found)
        if count < self.repeats:
            return False
        blocks = [graph.nodes[first + k * period : first + (k + 1) * period] for k in range(count)]
        layer = _Layer.of(graph, blocks)
        if layer is None:
            return False
        body = layer.body(graph)
        calls = layer.calls(body)
        graph.nodes = [*graph.nodes[:first], *calls, *graph.nodes[first + count * period :]]
        remove_dead(graph)
        notes["calls"] += count
        return True


# ---- where layers repeat


def _kinds(graph: Graph) -> list[int]:
    """A number for every node, equal for nodes of equal operator, attributes and types."""
    numbers: dict[Hashable, int] = {}
    pool = ConstantPool()
    out: list[int] = []
    for node in graph.nodes:
        attrs: Hashable = attrs_key(node.attrs, pool)
        if attrs is None:
            attrs = ("unlike any other", len(out))
        types = tuple([(v.shape, v.dtype) for v in (*node.inputs, *node.outputs)])
        out.append(numbers.setdefault((node.op, attrs, types), len(numbers)))
    return out


def _period(graph: Graph) -> tuple[int, int, int] | None:
    """(first node, period, end) of the longest part of the graph whose kinds repeat with a period."""
    kinds = _kinds(graph)
    last: dict[int, int] = {}
    gaps: Counter[int] = Counter()
    for i, kind in enumerate(kinds):
        if kind in last:
            gaps[i - last[kind]] += 1
        last[kind] = i
    likely = sorted(gaps, key=lambda gap: (-gap * gaps[gap], gap))[:CANDIDATES]
    best: tuple[int, int, int] | None = None
    for period in likely:
        start, end = _run(kinds, period)
        if end - start > 2 * period and (best is None or end - start > best[2] - best[0]):
            best = (start, period, end)
    return best


def _run(kinds: Sequence[int], period: int) -> tuple[int, int]:
    """The longest part [start, end) in which every kind stands again after ``period`` nodes, the last period included."""
    best, start = (0, 0), 0
    for i in range(len(kinds) - period + 1):
        if i == len(kinds) - period or kinds[i] != kinds[i + period]:
            if i > start and i + period - start > best[1] - best[0]:
                best = (start, i + period)
            start = i + 1
    return best


def _cut(graph: Graph, start: int, period: int, end: int) -> tuple[int, int, int]:
    """(first node, period, number of blocks), cut where the fewest values pass from one block to the next."""
    last: dict[Value, int] = {}
    for i in range(start, min(start + 3 * period, end)):
        for value in graph.nodes[i].inputs:
            last[value] = i
    crossing = [0] * (period + 1)  # of a cut in front of node start + period + k, as differences
    for i in range(start, min(start + 2 * period, end)):
        for value in graph.nodes[i].outputs:
            low, high = max(i + 1, start + period), min(last.get(value, 0), start + 2 * period - 1)
            if low <= high:
                crossing[low - start - period] += 1
                crossing[high - start - period + 1] -= 1
    total, sums = 0, []
    for change in crossing[:-1]:
        total += change
        sums.append(total)
    shift = sums.index(min(sums))
    return start + shift, period, (end - start - shift) // period


# ---- what a layer reads and gives


@dataclass
class _Layer:
    """Blocks that agree: for every operand where it comes from, and what each block has for every parameter."""

    blocks: list[list[Node]]
    operands: dict[Place, Place] = field(default_factory=dict)  # (offset, operand) -> which node of the block makes it
    before: dict[Place, Place] = field(default_factory=dict)  # ... of the block before
    outside: dict[Place, tuple[Value, ...]] = field(default_factory=dict)  # ... values from elsewhere, block by block
    first: dict[Place, Value] = field(default_factory=dict)  # what the first block has for a result of the block before
    results: list[Place] = field(default_factory=list)

    @classmethod
    def of(cls, graph: Graph, blocks: list[list[Node]]) -> _Layer | None:
        """None if the blocks do not agree."""
        self = cls(blocks)
        home = {
            v: (k, (o, n)) for k, b in enumerate(blocks) for o, node in enumerate(b) for n, v in enumerate(node.outputs)
        }
        for offset, node in enumerate(blocks[0]):
            for slot in range(len(node.inputs)):
                if not self._operand(home, offset, slot):
                    return None
        inside = {node for b in blocks for node in b}
        read = {v for node in graph.nodes if node not in inside for v in node.inputs} | set(graph.outputs)
        places = set(self.before.values()) | {home[v][1] for v in read if v in home}
        self.results = sorted(places)
        return self if self.results else None

    def _operand(self, home: dict[Value, tuple[int, Place]], offset: int, slot: int) -> bool:
        values = tuple([block[offset].inputs[slot] for block in self.blocks])
        origins = [home.get(v) for v in values]
        apart = {None if o is None else (k - o[0], o[1]) for k, o in enumerate(origins)}
        if apart == {None}:
            self.outside[offset, slot] = values
            same = all(v is values[0] for v in values)
            return same or all(v.producer is None or v.producer.op != "constant" for v in values)
        if len(apart) == 1:  # in the block itself: nothing is made in the one in front of the first
            ((delta, place),) = apart  # type: ignore[misc]
            self.operands[offset, slot] = place
            return delta == 0
        if origins[0] is not None or len(apart) != 2:
            return False
        delta, place = next(a for a in apart if a is not None)
        self.before[offset, slot] = place
        return delta == 1 and None not in origins[1:] and self.first.setdefault(place, values[0]) is values[0]

    # ---- the body

    def body(self, graph: Graph) -> Graph:
        """The body, made of the second block."""
        body = Graph(graph.scope, name="layer")
        made: dict[Value, Value] = {}  # values of the block, and of what is made again, in the body
        self.arguments: list[tuple[Value, ...]] = []  # for every parameter the values of all calls
        known: dict[tuple[Value, ...], Value] = {}
        names = {v.name for node in self.blocks[1] for v in node.outputs}

        def parameter(values: tuple[Value, ...]) -> Value:
            if values not in known:
                like = values[-1]
                known[values] = body.add_input(like.shape, like.dtype, like.name)
                claim_name(known[values], names, body)
                self.arguments.append(values)
            return known[values]

        def again(value: Value) -> Value:
            """A value that all blocks read, made in the body as far as it is cheap."""
            node = value.producer
            if value in made:
                return made[value]
            if node is None or not (node.op in CHEAP or _is_number(node) or _generated(node)):
                return parameter((value,) * len(self.blocks))
            inputs = [again(v) for v in node.inputs]
            _copy(node, inputs, made, body)
            for out in body.nodes[-1].outputs:
                claim_name(out, names, body)
            return made[value]

        for offset, node in enumerate(self.blocks[1]):
            inputs = []
            for slot, value in enumerate(node.inputs):
                if (offset, slot) in self.operands:
                    inputs.append(made[value])
                elif (offset, slot) in self.before:
                    inputs.append(parameter(self._stream(self.before[offset, slot])))
                else:
                    values = self.outside[offset, slot]
                    inputs.append(again(value) if all(v is value for v in values) else parameter(values))
            _copy(node, inputs, made, body)
        body.outputs = [made[self._at(1, place)] for place in self.results]
        return body

    def calls(self, body: Graph) -> list[Node]:
        """A node for every block; it defines the values that the block did."""
        out = []
        for k, block in enumerate(self.blocks):
            outputs = tuple(self._at(k, place) for place in self.results)
            call = Node("call", tuple(values[k] for values in self.arguments), outputs, {"body": body}, block[0].origin)
            for value in outputs:
                value.producer = call
            out.append(call)
        return out

    def _at(self, block: int, place: Place) -> Value:
        return self.blocks[block][place[0]].outputs[place[1]]

    def _stream(self, place: Place) -> tuple[Value, ...]:
        """What each block has of a result of the block before."""
        return (self.first[place], *(self._at(k, place) for k in range(len(self.blocks) - 1)))


def _copy(node: Node, inputs: Iterable[Value], made: dict[Value, Value], body: Graph) -> None:
    outputs = tuple(Value(v.shape, v.dtype, v.name) for v in node.outputs)
    copy = Node(node.op, tuple(inputs), outputs, dict(node.attrs), node.origin)
    for old, new in zip(node.outputs, outputs, strict=True):
        new.producer = copy
        made[old] = new
    body.nodes.append(copy)


def _is_number(node: Node) -> bool:
    return node.op == "constant" and node.attrs["value"].size == 1


def _generated(node: Node) -> bool:
    """Whether a node is elementwise and a bool or an integer made of positions and numbers alone: a mask, an index."""
    stack, seen = [node], {node}
    while stack:
        n = stack.pop()
        plain = n.op in CHEAP or _is_number(n)
        if not plain and not (OPS[n.op].pattern is Pattern.ELEMENTWISE and n.output.dtype.kind in "iub"):
            return False
        for value in n.inputs:
            if value.producer is None:
                return False
            if value.producer not in seen:
                seen.add(value.producer)
                stack.append(value.producer)
    return True
