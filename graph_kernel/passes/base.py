"""What a pass is, and the one driver of local rewrites that most passes share.

A pass is a frozen dataclass: its fields are its options, ``name`` is what reports, options and dumps show. A *rule*
is a function ``rule(rw, node)`` that looks at one node and returns what replaces it, or None. ``Rewriter`` applies
rules in one sweep in definition order, so a sweep costs time linear in the number of nodes.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from graph_kernel.ir import NO_ORIGIN, Graph, Node, Origin, Value
from graph_kernel.ops import OPS, Pattern
from graph_kernel.passes.liveness import remove_dead
from vm.errors import CompileError

Rule = Callable[["Rewriter", Node], "Value | tuple[Value, ...] | None"]
Rules = Mapping[str, Sequence[Rule]]

CONTROL = frozenset(name for name, op in OPS.items() if op.pattern is Pattern.CONTROL)
GROUPS = {
    "expand": "composite and nested things become plain nodes, or are recognised as one thing",
    "cluster": "what is dead, equal or constant goes, so that regions of nodes grow together",
    "simplify": "algebra, and data movement that is folded away or moved to where it vanishes",
    "split": "the graph is cut into kernels (fusion)",
    "parallel": "independent kernels run side by side (stacking)",
}
MAX_DEPTH = 24  # nested rewrites of nodes that a rule itself makes; a bound, not a tuning knob


@dataclass(frozen=True)
class Pass:
    """Base of all passes. Subclasses define ``name`` and ``rewrite``; they must keep the graph's inputs and output types. ``group`` is one
    of ``GROUPS``; ``level`` is the lowest level of optimisation that runs the pass."""

    name: ClassVar[str] = ""
    group: ClassVar[str] = "simplify"
    level: ClassVar[int] = 2

    def run(self, graph: Graph) -> bool:
        """Rewrites ``graph`` and its sub-graphs in place; True if anything changed."""
        return self.apply(graph, Counter())

    def apply(self, graph: Graph, notes: Counter[str]) -> bool:
        """As ``run``; counts in ``notes`` what was done, by rule name."""
        changed = False
        for sub in dict.fromkeys(subgraphs(graph)):  # calls share a body
            changed |= self.apply(sub, notes)
        return self.rewrite(graph, notes) or changed

    def rewrite(self, graph: Graph, notes: Counter[str]) -> bool:
        """Rewrites one graph, not its sub-graphs."""
        raise NotImplementedError


@dataclass(frozen=True)
class RulePass(Pass):
    """A pass that is a table of local rules: op name -> rules, tried in order."""

    rules: ClassVar[Rules] = {}

    def rewrite(self, graph: Graph, notes: Counter[str]) -> bool:
        return Rewriter(graph, self.rules, notes, self).run()


@dataclass(frozen=True)
class PassReport:
    """What one run of one pass did. Node counts include control-flow sub-graphs and count a composite as one; ``operations`` are the
    counts without constants; ``notes`` counts rewrites by rule name; ``composites`` are those that the pass expanded."""

    name: str
    nodes_before: int
    nodes_after: int
    seconds: float
    notes: dict[str, int] = field(default_factory=dict)
    modified: bool = False
    round: int = 0
    operations: tuple[int, int] = (0, 0)
    composites: tuple[Any, ...] = ()
    group: str = "simplify"

    def __str__(self) -> str:
        what = ", ".join(f"{rule} {n}" for rule, n in sorted(self.notes.items()))
        return f"{self.name}: {self.nodes_before} -> {self.nodes_after} nodes, {self.seconds * 1e3:.1f} ms{'; ' if what else ''}{what}"


class Rewriter:
    """One sweep over a graph that replaces nodes by what rules return.

    Rules see nodes whose inputs are already rewritten. They make nodes with ``add`` (which applies the rules to the
    new node too) and must look before they make.
    """

    def __init__(self, graph: Graph, rules: Rules, notes: Counter[str] | None = None, options: Any = None) -> None:
        self.graph = graph
        self.scope = graph.scope
        self.rules = rules
        self.notes: Counter[str] = Counter() if notes is None else notes
        self.options = options
        self.nodes: list[Node] = []
        self.changed = False
        self._map: dict[Value, Value] = {}
        self._fresh: set[Value] = set()
        self._origin: Origin = NO_ORIGIN
        self._depth = 0

    def run(self) -> bool:
        """The sweep; True if the graph changed."""
        for node in self.graph.nodes:
            if self._map:
                node.inputs = tuple([self._map.get(v, v) for v in node.inputs])
            if node.op not in self.rules:
                self.nodes.append(node)
                continue
            self._origin = node.origin
            self._place(node)
        self.graph.nodes = self.nodes
        self.graph.outputs = [self._map.get(v, v) for v in self.graph.outputs]
        if self.changed:
            remove_dead(self.graph)
        return self.changed

    @functools.cached_property
    def _uses(self) -> dict[Value, int]:
        """How many nodes and graph outputs read each value. Made when first asked for, which is before the first change."""
        found: dict[Value, int] = {}
        for node in self.graph.nodes:
            for value in node.inputs:
                found[value] = found.get(value, 0) + 1
        for value in self.graph.outputs:
            found[value] = found.get(value, 0) + 1
        return found

    @functools.cached_property
    def _reader(self) -> dict[Value, Node | None]:
        """The one node that reads each value, None where there are several. Made before the first change."""
        found: dict[Value, Node | None] = {}
        for node in self.graph.nodes:
            for value in node.inputs:
                found[value] = None if value in found else node
        found.update(dict.fromkeys(self.graph.outputs))
        return found

    @functools.cached_property
    def _names(self) -> set[str]:
        return {v.name for v in all_values(self.graph)}

    def add(self, op: str, *inputs: Value, **attrs: Any) -> Value:
        """A new node with one output in front of the node being looked at, simplified by the rules."""
        return self.add_multi(op, inputs, attrs)[0]

    def add_multi(
        self, op: str, inputs: Sequence[Value], attrs: dict[str, Any], origin: Origin | None = None
    ) -> tuple[Value, ...]:
        """As ``add`` for any number of outputs; ``origin`` is that of the node being looked at if not given."""
        _ = self._reader  # while the graph is as it was
        node = self.graph.make_node(op, inputs, attrs, origin or self._origin)
        for out in node.outputs:
            self._rename(out)
            self._fresh.add(out)
        self._count(node.inputs, 1)
        self._depth += 1
        try:
            self._place(node)
        finally:
            self._depth -= 1
        return tuple(self._map.get(v, v) for v in node.outputs)

    def constant(self, value: Any) -> Value:
        """A constant node holding ``value`` (a NumPy array)."""
        return self.add("constant", value=value)

    def single_use(self, value: Value) -> bool:
        """True if one node (or one graph output) reads ``value``."""
        return self._uses.get(value, 0) <= 1

    def only_reader(self, value: Value) -> Node | None:
        """The one node that read ``value`` when the sweep began, if it was one."""
        return self._reader.get(value)

    def uses(self, value: Value) -> int:
        """How many nodes and graph outputs read ``value``, as far as the sweep has come."""
        return self._uses.get(value, 0)

    def _place(self, node: Node) -> None:
        if self._depth < MAX_DEPTH:
            for rule in self.rules.get(node.op, ()):
                result = rule(self, node)
                if result is None:
                    continue
                self._replace(node, (result,) if isinstance(result, Value) else result, rule)
                return
        self.nodes.append(node)

    def _replace(self, node: Node, values: tuple[Value, ...], rule: Rule) -> None:
        self.notes[rule.__name__] += 1
        self.changed = True
        _ = self._reader, self._uses  # while the graph is as it was
        for old, new in zip(node.outputs, values, strict=True):
            if old.dtype != new.dtype or len(old.shape) != len(new.shape):
                raise CompileError(f"rule {rule.__name__} turned {old!r} into {new!r} at {node.origin}")
            self._map[old] = new
            self._uses[new] = self._uses.get(new, 0) + self._uses.pop(old, 0)
            if new in self._fresh and old not in self._fresh:
                new.name = old.name  # the old value is gone: its name says more than a number
                self._fresh.discard(new)
        self._count(node.inputs, -1)

    def _count(self, values: Iterable[Value], change: int) -> None:
        """Adjusts use counts; a value that nobody reads any more stops counting as a reader of its inputs."""
        work = list(values)
        while work:
            value = work.pop()
            left = self._uses.get(value, 0) + change
            self._uses[value] = left
            if change < 0 and left == 0 and value.producer is not None and len(value.producer.outputs) == 1:
                work.extend(value.producer.inputs)

    def _rename(self, value: Value) -> None:
        while value.name in self._names:
            value.name = self.graph.new_value((), value.dtype).name
        self._names.add(value.name)


def all_values(graph: Graph) -> Iterable[Value]:
    """Inputs and node outputs of one graph, in order of definition."""
    yield from graph.inputs
    for node in graph.nodes:
        yield from node.outputs


def all_graphs(graph: Graph) -> Iterable[Graph]:
    """``graph`` and its sub-graphs, outermost first."""
    yield graph
    for sub in subgraphs(graph):
        yield from all_graphs(sub)


def subgraphs(graph: Graph) -> list[Graph]:
    """As ``graph.subgraphs()``, without a look at the attributes of ops that hold none."""
    held = [node.attrs for node in graph.nodes if node.op in CONTROL]
    items = [v if isinstance(v, tuple) else (v,) for attrs in held for v in attrs.values()]
    return [item for group in items for item in group if isinstance(item, Graph)]


def count_nodes(graph: Graph, without: Iterable[str] = ()) -> int:
    """Nodes of the graph and control-flow sub-graphs, except those whose op is in ``without`` (say, ``constant``); a composite is one."""
    skip = frozenset(without)
    return sum(sum(node.op not in skip for node in g.nodes) if skip else len(g.nodes) for g in all_graphs(graph))


def _counts(graph: Graph) -> tuple[int, int]:
    """Nodes of the graph and its sub-graphs, with and without constants."""
    total = constants = 0
    for g in all_graphs(graph):
        total += len(g.nodes)
        constants += [node.op for node in g.nodes].count("constant")
    return total, total - constants


def run_passes(graph: Graph, passes: Sequence[Pass], verify: bool = False, round: int = 0) -> list[PassReport]:
    """Runs the passes once, in order. With ``verify`` the graph is checked before the first and after each.

    Raises ``CompileError`` that names the pass after which the graph is wrong.
    """
    from graph_kernel.verifier import verify as check

    if verify:
        check(graph)
    reports = []
    for item in passes:
        before, operations = _counts(graph)
        notes: Counter[str] = Counter()
        start = time.perf_counter()
        modified = item.apply(graph, notes)
        seconds = time.perf_counter() - start
        after, left = _counts(graph)
        counts = (operations, left)
        report = PassReport(item.name, before, after, seconds, dict(notes), modified, round, counts, group=item.group)
        reports.append(report)
        if verify:
            try:
                check(graph)
            except CompileError as error:
                raise CompileError(f"after pass {item.name}: {error}") from error
    return reports
