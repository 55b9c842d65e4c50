"""Which nodes form one kernel: greedy merging of groups, in the order attention, elementwise, reduce, post-reduce, matmul epilogue.

Data movement, generators (iota, constants, dims) and cheap predicates over them belong to no group: every group that needs them carries
its own copy, where they become index maps and immediates. A merge is legal if the merged nodes have one loop structure
(``layout.plan``) and the graph of groups stays acyclic. Every merge and every refusal is recorded with its reason.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from graph_kernel.fusion import division
from graph_kernel.fusion.attention import plan
from graph_kernel.fusion.axes import REDUCTIONS, Axes, Refusal, Tied, find_axes
from graph_kernel.fusion.layout import Layout
from graph_kernel.fusion.prepare import (
    FREE_OPS,
    GENERATORS,
    empty_results,
    is_carried,
    is_scalar_chain,
    root_of,
    unshare,
)
from graph_kernel.fusion.record import cut, describe, once
from graph_kernel.fusion.repeats import Code, Completed, Known
from graph_kernel.fusion.rules import (
    LATE_RULES,
    MOVEMENT,
    RULES,
    SIBLINGS,
    SPECULATIVE,
    Group,
    Rule,
    Siblings,
    movement,
    products,
)
from graph_kernel.fusion.slots import Slot, Slots, whole
from graph_kernel.fusion.speculation import parts_of
from graph_kernel.fusion.waste import EXPENSIVE, expensive, wasteful
from graph_kernel.ir import Graph, Node, Value
from graph_kernel.ops import OPS
from graph_kernel.ops.base import Pattern, on_chip
from graph_kernel.passes.liveness import after_sizes, data_symbols, defined_in_order, used_symbols
from symbolic import Scope

WANTED = Rule("siblings", lambda *_: True)
MAX_GROUP = 128  # nodes of one kernel


Places = Callable[[Value], tuple[Slot, ...]]
Lower = Callable[[list[Node], list[Value], Axes, Layout, set[Value], Places], Code]
"""Code generation of a group (nodes, outputs, axes, layout, values in memory, where an output is stored); raises ``Refusal`` where it has
none."""
Divide = Callable[[list[Group]], list[Group]]
"""Which of a graph's kernels may be better off as a product whose sum is divided."""


@dataclass
class Plan:
    """The result: steps in order (groups and nodes left to the host or to control flow), stored values, aliases, and the record."""

    steps: list[Group | Node]
    stored: set[Value]
    aliases: dict[Value, Value]  # value -> the stored value whose memory it is, in another shape
    merges: list[dict[str, str]]
    cuts: list[dict[str, str]]


class Fuser:
    """Fuses one graph (not its sub-graphs)."""

    def __init__(
        self,
        graph: Graph,
        enabled: bool = True,
        lower: Lower | None = None,
        siblings: Siblings | None = None,
        known: Known | None = None,
        speculative: Divide | None = None,
    ) -> None:
        self.graph, self.scope, self.enabled, self.lower, self.siblings = graph, graph.scope, enabled, lower, siblings
        self.speculative = speculative
        self.position = {n: i for i, n in enumerate(graph.nodes)}
        self.users = graph.users()
        self.results = set(graph.outputs)
        self.makers = self._size_makers()
        self.forced: dict[Value, None] = {}
        self.aliases: dict[Value, Value] = {}
        self.group_of: dict[Node, Group] = {}
        self.alone: dict[Node, None] = {}  # host and control nodes
        self.merges: list[dict[str, str]] = []
        self.cuts: list[dict[str, str]] = []
        self.free = self._free_nodes()
        self.constants = {n.output for n in graph.nodes if n.op == "constant" and not is_carried(n)}
        self.tried: dict[tuple[int, int], str] = {}
        known = known or Known()
        self.structures, self.completed, self.verdicts = known.structures, known.completed, known.verdicts
        self.reads: dict[
            Group, list[tuple[Node, Value]]
        ] = {}  # what groups read of nodes in groups, once all are seeded
        self.count = 0
        self.across = np.zeros(
            len(graph.nodes) + 1, np.int32
        )  # how many groups have nodes on both sides of a position's end
        self.slots = Slots(self)

    def _size_makers(self) -> dict[Node, list[Value]]:
        """For each node that uses sizes that depend on data, the values that have them. Such a node counts as a user of these values,
        so that no kernel comes before a size that it needs."""
        data = data_symbols(self.graph)
        if not data:
            return {}
        made = {name: value for name, (value, _) in defined_in_order(self.graph).items()}
        found: dict[Node, list[Value]] = {}
        for node in self.graph.nodes:
            for name in sorted(used_symbols(node, data)):
                if name in made and made[name] not in node.inputs:
                    found.setdefault(node, []).append(made[name])
                    self.users.setdefault(made[name], []).append(node)
        return found

    # --- classes of nodes ---------------------------------------------------------------------------------------------------------
    def _free_nodes(self) -> set[Node]:
        """Nodes that every consumer carries for itself."""
        free: set[Node] = set()
        generated: set[Value] = set()
        for node in self.graph.nodes:
            from_generators = bool(node.inputs) and all(v in generated for v in node.inputs)
            if node.op in FREE_OPS and (node.op == "constant" or self._chip(node)):
                free.add(node)
                if (node.op in GENERATORS and is_carried(node)) or (
                    from_generators and node.op in ("broadcast", "reshape", "transpose")
                ):
                    generated.update(node.outputs)
            elif (
                from_generators
                and OPS[node.op].pattern is Pattern.ELEMENTWISE
                and node.op not in EXPENSIVE
                and self._chip(node)
            ):
                free.add(node)
                generated.update(node.outputs)
        return free

    def _chip(self, node: Node) -> bool:
        dtypes = [v.dtype for v in (*node.inputs, *node.outputs)]
        return OPS[node.op].pattern is not Pattern.CONTROL and on_chip(node.op, dtypes)

    # --- closures -----------------------------------------------------------------------------------------------------------------
    def closure(self, nodes: Iterable[Node]) -> list[Node]:
        """The nodes with the free nodes they need, in graph order."""
        found: dict[Node, None] = {}
        stack = list(nodes)
        while stack:
            node = stack.pop()
            if node in found:
                continue
            found[node] = None
            for value in node.inputs:
                producer = value.producer
                if producer is None or producer in found or value in self.forced:
                    continue
                if producer in self.free:
                    stack.append(producer)
        return sorted(found, key=self.position.__getitem__)

    def outside(self, nodes: list[Node]) -> set[Value]:
        """Values that a kernel of ``nodes`` may load: whatever it needs and does not make."""
        inside = {v for n in nodes for v in n.outputs}
        out = {v for n in nodes for v in n.inputs if v not in inside}
        out |= {v for n in nodes for v in n.outputs if v in self.constants}
        return out

    def stored_outputs(self, members: dict[Node, None]) -> list[Value]:
        """Values of ``members`` that something else reads."""
        found = []
        for node in members:
            for value in node.outputs:
                if value in self.results or value in self.forced or self.read_outside(value, members):
                    found.append(value)
        return found

    def _results(self, members: dict[Node, None]) -> list[Value]:
        """What a kernel of ``members`` (in order) stores: the last value if nothing else reads any."""
        return self.stored_outputs(members) or [list(members)[-1].outputs[0]]

    def read_outside(self, value: Value, members: Mapping[Node, None]) -> bool:
        """Whether a node outside ``members`` reads the value, directly or through free nodes."""
        stack, seen = [value], {value}
        while stack:
            for user in self.users.get(stack.pop(), ()):
                if user in members:
                    continue
                if user not in self.free:
                    return True
                out = user.outputs[0]
                if out in self.forced or out in self.results:
                    return True
                if out not in seen:
                    seen.add(out)
                    stack.append(out)
        return False

    def analyse(self, members: Iterable[Node]) -> None:
        """Raises ``Refusal`` if a group of nodes has no axes and loops."""
        chosen = self._in_order(members)
        nodes = self.closure(chosen)
        outputs = self._results(chosen)
        structure = self.structures.of(nodes, dict.fromkeys(chosen, 1), outputs, self.constants)
        known = self.verdicts.get(structure.key)
        if known is None:
            known = ""
            try:
                axes = find_axes(nodes, self.outside(nodes), self.scope)
                plan(nodes, axes, outputs, self.scope)
            except Refusal as refusal:
                known = structure.written(str(refusal))
            self.verdicts[structure.key] = known
        if known:
            raise Refusal(structure.read(known))

    def _in_order(self, nodes: Iterable[Node]) -> dict[Node, None]:
        return dict.fromkeys(sorted(nodes, key=self.position.__getitem__))

    def complete(self, group: Group) -> None:
        """Fills in a group's outputs, axes, layout, facts and code; raises ``Refusal``. Groups of one structure share what does not depend
        on which values they have."""
        members = self._in_order(group.nodes)
        nodes = self.closure(members)
        outputs = self._results(members)
        stores = [self.slots.stores(value) for value in outputs]
        shapes = tuple(tuple((s.name is s.target, s.offset, s.strides) for s in found) for found in stores)
        names = [slot.name for found in stores for slot in found]
        structure = self.structures.of(
            nodes, dict.fromkeys(members, 1), outputs, self.constants, group.tied, shapes, group.sharing
        )
        found = self.completed.get(structure.key)
        if found is None:
            try:
                found = self._complete(group, nodes, outputs, [*structure.values, *names])
            except Refusal as refusal:
                found = structure.written(str(refusal))
            self.completed[structure.key] = found
        if isinstance(found, str):
            raise Refusal(structure.read(found))
        group.outputs, group.axes, group.layout, group.facts = outputs, found.axes, found.layout, found.facts
        group.stores = names
        if found.code is not None:
            group.code = found.code.over(dict(zip(found.values, [*structure.values, *names], strict=True)))

    def _complete(self, group: Group, nodes: list[Node], outputs: list[Value], values: list[Value]) -> Completed:
        stored = self.outside(nodes)
        with self.scope.recording() as used:
            axes = find_axes(nodes, stored, self.scope, group.tied)
            layout = plan(nodes, axes, outputs, self.scope)
            layout.sharing = group.sharing
            places = self.slots.stores
            code = None if self.lower is None else self.lower(group.nodes, outputs, axes, layout, stored, places)
        return Completed(tuple(values), axes, layout, used.lines(), code)

    # --- single nodes ---------------------------------------------------------------------------------------------------------------
    def seed(self) -> None:
        """One group a node; what cannot be a kernel goes to the host, with its operands stored."""
        for node in self.graph.nodes:
            if node.op == "barrier":
                self.force(node.output)
        for node in self.graph.nodes:
            if node in self.free:
                continue
            if not self._chip(node):
                self.alone[node] = None
                for value in node.inputs:
                    self.force(value)
                continue
            self._seed_one(node)
        for value in self.graph.outputs:
            self.force(value)
        for sub in self._captured():
            self.force(sub)

    def _captured(self) -> Iterable[Value]:
        return ()

    def _seed_one(self, node: Node) -> None:
        if OPS[node.op].pattern is Pattern.ELEMENTWISE and all(
            n is node or self._is_number(n) for n in self.closure([node])
        ):
            self._new_group([node]).shape = node.output.shape  # nothing moves: always a kernel
            return
        for _attempt in range(len(node.inputs) + 1):
            try:
                self.complete(Group(-1, [node]))
                break
            except Refusal as refusal:
                view = next((v for v in node.inputs if v.producer in self.free and self._movable(v)), None)
                if view is None:
                    self._to_host(node, refusal)
                    return
                self.cuts.append(cut(view.producer, node, view, f"stored, because {refusal}"))
                self.force(view)
        self._new_group([node])

    def _to_host(self, node: Node, refusal: Refusal) -> None:
        """Leaves a node without a kernel form to NumPy, its operands stored."""
        self.free.discard(node)
        self.alone[node] = None
        for value in node.inputs:
            self.force(value)
        self.cuts.append(cut(node, node, node.outputs[0], f"runs on the host: {refusal}"))

    def _is_number(self, node: Node) -> bool:
        """Whether a node makes the same number everywhere."""
        if node.op == "broadcast":
            return not node.inputs[0].shape and node.inputs[0] not in self.forced
        return node.op == "dim" or (node.op == "constant" and is_carried(node) and node.output not in self.constants)

    def _movable(self, value: Value) -> bool:
        """Whether storing a free value would change what a consumer sees: not yet stored, and more than a scalar."""
        producer = value.producer
        return (
            producer is not None
            and value not in self.forced
            and value not in self.constants
            and producer.op not in GENERATORS
        )

    def _new_group(self, nodes: list[Node]) -> Group:
        parts = tuple(dict.fromkeys(self.group_of[n] for n in nodes if n in self.group_of))
        group = Group(self.count, nodes, parts=parts)
        self.count += 1
        for n in nodes:
            self.group_of[n] = group
        inside = set(nodes)
        for part in parts:
            if inside.issuperset(part.nodes):
                self._count_across(part, -1)
        self._count_across(group, 1)
        return group

    def _count_across(self, group: Group, change: int) -> None:
        places = [self.position[n] for n in group.nodes]
        self.across[min(places) : max(places)] += change

    def force(self, value: Value) -> None:
        """Makes a value stored. A reshape of a stored value is the same memory; other movement becomes a kernel of its own."""
        producer = value.producer
        if value in self.forced or producer is None or value in self.constants:
            return
        if producer.op == "constant":  # a number that the host reads; kernels still carry their own
            self.constants.add(value)
            return
        self.forced[value] = None
        if producer not in self.free:
            return
        same_memory = producer.op == "barrier" or (producer.op == "reshape" and not producer.attrs.get("copy"))
        if same_memory and not is_scalar_chain(producer):
            self.force(producer.inputs[0])
            self.aliases[value] = producer.inputs[0]
            return
        while True:
            try:
                self.complete(Group(-1, [producer]))
                break
            except Refusal as refusal:
                view = next((v for v in producer.inputs if v.producer in self.free and self._movable(v)), None)
                if view is None:
                    self._to_host(producer, refusal)
                    return
                self.cuts.append(cut(view.producer, producer, view, f"stored, because {refusal}"))
                self.force(view)
        self._new_group([producer])

    # --- merging ------------------------------------------------------------------------------------------------------------------
    def run(self) -> Plan:
        """Fuses and returns the steps in order."""
        self.seed()
        if self.enabled:
            self._attention()
            for rule in RULES:
                while self._sweep(rule):
                    pass
            self._siblings()
            for rule in (*LATE_RULES, *([SPECULATIVE] if self.speculative is not None else [])):
                while self._sweep(rule):
                    pass
            self.slots.run()
            self._sibling_movement()
            if self.siblings is not None:
                self._merge_siblings(self.siblings)
        return self._finish()

    def _merge_siblings(self, allowed: Siblings) -> None:
        """Merges groups that ``allowed`` wants as one, though neither reads the other: a kernel with several results."""
        changed = True
        while changed:
            changed = False
            for first, second in itertools.combinations(self.groups(), 2):
                current = all(self.group_of[g.nodes[0]] is g for g in (first, second))
                if current and allowed(first, second):
                    changed |= self._merge(first, second, first.nodes[-1].outputs[0], WANTED)

    def groups(self) -> list[Group]:
        """Current groups by their first node."""
        found = dict.fromkeys(self.group_of.values())
        return sorted(found, key=lambda g: self.position[g.nodes[0]])

    def producers(self, group: Group) -> list[tuple[Group, Value]]:
        """Groups whose values this one reads (through free nodes), with the value."""
        reads = self.reads.get(group)
        if reads is None:
            values = dict.fromkeys(v for node in self.closure(group.nodes) for v in node.inputs)
            makers = [(v.producer, v) for v in values if v.producer is not None and v.producer in self.group_of]
            reads = self.reads[group] = [(n, v) for n, v in makers if n not in self.free or v in self.forced]
        out: dict[Group, Value] = {}
        for producer, value in reads:
            other = self.group_of[producer]
            if other is not group:
                out.setdefault(other, value)
        return list(out.items())

    def _sweep(self, rule: Rule) -> bool:
        changed = False
        for consumer in self.groups():
            if self.group_of[consumer.nodes[0]] is not consumer:
                continue
            again = True
            while again:
                again = False
                for producer, value in self.producers(consumer):
                    if value in self.aliases or not rule.allowed(self, producer, consumer):
                        continue
                    if self._merge(producer, consumer, value, rule):
                        consumer = self.group_of[consumer.nodes[0]]
                        changed = again = True
                        break
        return changed

    def _siblings(self) -> None:
        """Merges products that read one operand and do not depend on each other: each with the first before it that it can join. What has
        been merged stands where the first was and is looked at again."""
        order: list[Group | None] = [g for g in self.groups() if products(g)]
        place = {g: k for k, g in enumerate(order) if g is not None}
        operands = {g: self._operands(g) for g in place}
        readers: dict[Value, list[Group]] = {}
        for g, values in operands.items():
            for value in values:
                readers.setdefault(value, []).append(g)
        k = 0
        while k < len(order):
            second = order[k]
            near = [] if second is None else [g for v in operands[second] for g in readers[v] if place.get(g, k) < k]
            for first in sorted(dict.fromkeys(near), key=place.__getitem__):
                assert second is not None
                shared = next(v for v in operands[first] if v in operands[second])
                if SIBLINGS.allowed(self, first, second) and self._merge(first, second, shared, SIBLINGS):
                    order[k], k = None, place.pop(first)
                    del place[second]
                    merged = order[k] = self.group_of[first.nodes[0]]
                    place[merged], operands[merged] = k, self._operands(merged)
                    for value in operands[merged]:
                        readers[value].append(merged)
                    break
            else:
                k += 1

    def _operands(self, group: Group) -> dict[Value, None]:
        """What the products of a group read from memory, data movement aside."""
        inside = set(group.nodes)
        roots = (root_of(v) for n in group.nodes if n.op == "dot" for v in n.inputs)
        return {v: None for v in roots if v.producer not in inside}

    def feeds_product(self, producer: Group, consumer: Group) -> bool:
        """Whether a product of ``consumer`` depends on ``producer`` without another kernel in between."""
        members = dict.fromkeys((*producer.nodes, *consumer.nodes))
        products = [n for n in consumer.nodes if n.op == "dot"]
        return any(dot in self._reachable(node, members) for node in producer.nodes for dot in products)

    def _merge(self, producer: Group, consumer: Group, value: Value, rule: Rule, tie: Tied = ()) -> bool:
        key = (producer.id, consumer.id)
        if key in self.tried:
            return False
        reason = self._refuse(producer, consumer, rule, tie)
        if reason:
            self.tried[key] = reason
            self.cuts.append(cut(producer.nodes[-1], consumer.nodes[0], value, reason))
            return False
        nodes = sorted({*producer.nodes, *consumer.nodes}, key=self.position.__getitem__)
        self.merges.append(
            {
                "rule": rule.name,
                "from": describe(producer.nodes[-1]),
                "to": describe(consumer.nodes[0]),
                "value": value.name,
            }
        )
        merged = self._new_group(nodes)
        merged.rule = rule
        merged.tied = self._tied(producer, consumer, rule) + tie
        if producer.shape == consumer.shape:
            merged.shape = producer.shape
        return True

    def _tied(self, producer: Group, consumer: Group, rule: Rule) -> Tied:
        """Results of the two that are to have one iteration space; of siblings without a common operand, their last ones."""
        old = producer.tied + consumer.tied
        return (*old, (producer.nodes[-1].outputs[0], consumer.nodes[-1].outputs[0])) if rule is MOVEMENT else old

    def _sibling_movement(self) -> None:
        """Merges kernels that only move data into results of one shape, such as past and new keys and values into the caches."""
        for first, second in itertools.combinations([g for g in self.groups() if movement(g)], 2):
            first, second = (self.group_of[g.nodes[0]] for g in (first, second))
            if first is second or not MOVEMENT.allowed(self, first, second):
                continue
            a, b = (g.nodes[-1].outputs[0] for g in (first, second))
            if same_shape(a, b, self.scope):
                self._merge(first, second, a, MOVEMENT)

    def _refuse(self, producer: Group, consumer: Group, rule: Rule, tie: Tied = ()) -> str:
        if len(producer.nodes) + len(consumer.nodes) > MAX_GROUP:
            return f"more than {MAX_GROUP} nodes"
        members = dict.fromkeys((*producer.nodes, *consumer.nodes))
        if self._cycle(members):
            return "another kernel lies between them"
        if producer.shape is not None and producer.shape == consumer.shape:
            return ""  # one index for everything
        tied = self._tied(producer, consumer, rule) + tie
        nodes = self.closure(members)
        outputs = self._results(self._in_order(members))
        marks = dict.fromkeys(producer.nodes, 1) | dict.fromkeys(consumer.nodes, 2)
        structure = self.structures.of(nodes, marks, outputs, self.constants, tied, rule.strict)
        known = self.verdicts.get(structure.key)
        if known is not None:
            return structure.read(known)
        checked = nodes if rule.strict else [n for n in producer.nodes if expensive(n)]
        reason = self._judge(list(members), nodes, outputs, tied, checked, rule.strict)
        self.verdicts[structure.key] = structure.written(reason)
        return reason

    def _judge(
        self,
        members: list[Node],
        nodes: list[Node],
        outputs: list[Value],
        tied: Tied,
        checked: list[Node],
        strict: bool,
    ) -> str:
        """Why ``members`` (``nodes`` with the free ones) are no good kernel; empty if they are. ``checked`` must not be repeated."""
        stored = self.outside(nodes)
        try:
            axes = find_axes(nodes, stored, self.scope, tied)
            layout = plan(nodes, axes, outputs, self.scope)
            reason = wasteful([n for n in checked if n not in self.free], outputs, axes, layout)
            if not reason and strict and self.lower is not None:
                self.lower(members, outputs, axes, layout, stored, lambda value: (whole(value),))
        except Refusal as refusal:
            return str(refusal)
        return reason

    def _cycle(self, members: dict[Node, None]) -> bool:
        """Whether a path leaves the members, passes a kernel or stored memory, and comes back. Free nodes between two members are no
        obstacle: the kernel carries them."""
        last = max(self.position[n] for n in members)
        last += int(np.argmax(self.across[last:] == 0))  # no group reaches back over this position, so no path does
        stack: list[tuple[Node, bool]] = [(n, False) for n in members]
        seen: set[tuple[Node, bool]] = set(stack)
        while stack:
            node, through = stack.pop()
            for value in node.outputs:
                for user in self.users.get(value, ()):
                    if user in members:
                        if through:
                            return True
                        continue
                    group = self.group_of.get(user)
                    carried = group is None and user in self.free and user.outputs[0] not in self.forced
                    if self.position[user if group is None else group.nodes[0]] > last:
                        continue
                    for inner in (user,) if group is None else group.nodes:
                        item = (inner, through or not carried)
                        if item not in seen:
                            seen.add(item)
                            stack.append(item)
        return False

    # --- slots --------------------------------------------------------------------------------------------------------------------
    def cut(self, a: Node | None, b: Node, value: Value, reason: str) -> None:
        """Records why ``a`` and ``b`` are not one kernel."""
        self.cuts.append(cut(a, b, value, reason))

    def merge(self, first: Group, second: Group, value: Value, rule: Rule, tie: Tied = ()) -> bool:
        """Merges two groups if nothing speaks against it; ``tie``: pairs of results with one iteration space."""
        return self._merge(first, second, value, rule, tie)

    def same_shape(self, a: Value, b: Value) -> bool:
        """Whether two values are proven to have the same shape."""
        return same_shape(a, b, self.scope)

    def regroup(self, nodes: list[Node], tied: Tied) -> None:
        """Makes a group of what is left of one."""
        group = self._new_group(nodes)
        group.parts, group.tied = (), tied

    def add_copy(self, value: Value, concat: Node) -> Value:
        """A kernel that copies ``value``, an operand of ``concat``; returns the copy."""
        node = self.graph.make_node("reshape", [value], {"shape": value.shape, "copy": True}, concat.origin)
        self.graph.nodes.insert(self.graph.nodes.index(concat), node)
        self.position[node] = self.position[concat]
        self.users.setdefault(value, []).append(node)
        self.users[node.output] = [concat]
        self._new_group([node])
        node.output.name = concat.output.name
        return node.output

    def slot_merge(self, concat: Node, how: str) -> None:
        """Records that a concatenation's operands are written in place."""
        self.merges.append({"rule": how, "from": "operands", "to": describe(concat), "value": concat.output.name})

    # --- attention ----------------------------------------------------------------------------------------------------------------
    def _attention(self) -> None:
        """dot -> elementwise -> softmax-like reductions -> dot, as one kernel that streams over the contracted axis."""
        for second in [n for n in self.graph.nodes if n.op == "dot" and n in self.group_of]:
            for side in (0, 1):
                cone = self._cone(second, second.inputs[side])
                if cone is None:
                    continue
                members = dict.fromkeys([*cone, second])
                if len({self.group_of[n] for n in members}) < 2 or self._cycle(members):
                    continue
                try:
                    self.analyse(members)
                except Refusal as refusal:
                    self.cuts.append(cut(cone[0], second, second.inputs[side], f"not one attention kernel: {refusal}"))
                    continue
                self.merges.append(
                    {
                        "rule": "attention",
                        "from": describe(cone[0]),
                        "to": describe(second),
                        "value": second.inputs[side].name,
                    }
                )
                self._new_group(sorted(members, key=self.position.__getitem__))
                break

    def _cone(self, second: Node, operand: Value) -> list[Node] | None:
        found: dict[Node, None] = {}
        stack = [operand]
        dots, reductions = 0, 0
        while stack:
            node = stack.pop().producer
            if node is None or node in found:
                continue
            if node in self.free:
                stack += node.inputs
                continue
            if node not in self.group_of or len(self.group_of[node].nodes) > 1:
                continue
            found[node] = None
            if node.op == "dot":
                dots += 1
                continue
            reductions += node.op in REDUCTIONS
            if node.op in REDUCTIONS or OPS[node.op].pattern is Pattern.ELEMENTWISE:
                stack += node.inputs
            else:
                del found[node]
        if dots != 1 or not reductions:
            return None
        members = dict.fromkeys([*found, second])
        dropped = True
        while dropped:  # what others read stays outside
            dropped = False
            for node in list(found):
                if any(v in self.results or v in self.forced or self.read_outside(v, members) for v in node.outputs):
                    del found[node], members[node]
                    dropped = True
        if not any(n.op == "dot" for n in found) or not any(n.op in REDUCTIONS for n in found):
            return None
        dot = next(n for n in found if n.op == "dot")
        below = self._reachable(dot, members)
        kept = [n for n in found if n is dot or n in below]
        return sorted(kept, key=self.position.__getitem__)

    def _reachable(self, start: Node, members: dict[Node, None]) -> set[Node]:
        """Members that depend on ``start``."""
        out: set[Node] = set()
        stack = [start]
        while stack:
            for value in stack.pop().outputs:
                for user in self.users.get(value, ()):
                    if user in out or (user not in members and user not in self.free):
                        continue
                    out.add(user)
                    stack.append(user)
        return out

    # --- the end ------------------------------------------------------------------------------------------------------------------
    def _finish(self) -> Plan:
        for group in self.groups():
            self._complete_or_split(group)
        groups = self.groups()
        if self.speculative is not None:
            for group in groups:
                group.apart = parts_of(group, self)
            for group in self.speculative(groups):
                group.apart = division.parts_of(group, self)
        steps: list[Group | Node] = [*groups, *self.alone]
        targets = self.slots.targets()
        stored = set(self.graph.inputs) | self.constants | set(self.forced) | set(targets.values())
        for group in groups:
            stored.update(group.stores)
            stored.update(v for part in group.apart for v in part.stores)
        for node in self.alone:
            stored.update(node.outputs)
        return Plan(self._order(steps), stored, self.aliases | targets, self.merges, once(self.cuts))

    def _complete_or_split(self, group: Group) -> None:
        """Completes a group; one without a kernel form after all falls apart into what was merged last. (Its parts cannot form a cycle
        with other groups: whatever lay between them would have lain on a cycle through the group.)"""
        try:
            self.complete(group)
        except Refusal as refusal:
            if not group.parts:
                raise
            value = next((v for n in group.parts[0].nodes for v in n.outputs), group.nodes[0].outputs[0])
            self.cuts.append(cut(group.parts[0].nodes[-1], group.parts[-1].nodes[0], value, str(refusal)))
            for part in group.parts:
                for n in part.nodes:
                    self.group_of[n] = part
                self._complete_or_split(part)

    def _order(self, steps: list[Group | Node]) -> list[Group | Node]:
        """Topological order, ties by position in the graph."""
        targets = self.slots.targets()
        makers: dict[Value, list[Group | Node]] = {}
        for step in steps:
            for value in step.stores if isinstance(step, Group) else step.outputs:
                makers.setdefault(targets.get(value, value), []).append(step)
        done: dict[Group | Node, None] = {}

        def first(step: Group | Node) -> int:
            return self.position[step.nodes[0] if isinstance(step, Group) else step]

        def needs(step: Group | Node) -> list[Group | Node]:
            nodes = self.closure(step.nodes if isinstance(step, Group) else [step])
            out = []
            for node in nodes:
                for value in (*node.inputs, *self.makers.get(node, ())):
                    while value in self.aliases:
                        value = self.aliases[value]
                    out += [other for other in makers.get(value, ()) if other is not step]
            return list(dict.fromkeys(out))

        for root in sorted(steps, key=first):
            stack: list[tuple[Group | Node, bool]] = [(root, False)]
            open_steps: set[Group | Node] = set()
            while stack:
                step, ready = stack.pop()
                if step in done:
                    continue
                if ready:
                    done[step] = None
                    open_steps.discard(step)
                    continue
                if step in open_steps:
                    raise AssertionError("the groups form a cycle")
                open_steps.add(step)
                stack.append((step, True))
                stack += [(other, False) for other in sorted(needs(step), key=first, reverse=True) if other not in done]
        return list(done)


def same_shape(a: Value, b: Value, scope: Scope) -> bool:
    """Whether two values are proven to have the same shape."""
    return a.rank == b.rank and all(scope.equal(m, n) for m, n in zip(a.shape, b.shape, strict=True))


def fuse(
    graph: Graph,
    enabled: bool = True,
    lower: Lower | None = None,
    siblings: Siblings | None = None,
    known: Known | None = None,
    speculative: Divide | None = None,
) -> Plan:
    """Fuses a graph. With ``enabled`` False every node is a kernel of its own. ``lower`` is asked whether a group has code, ``siblings``
    which groups are to be one kernel even if neither reads the other. ``known`` is shared by graphs of one scope and one ``lower``. With
    ``speculative``, groups that may be better off apart at some sizes have their parts as well (``Group.apart``), and so have the products
    that it chooses."""
    empty_results(graph)
    after_sizes(graph)
    unshare(graph)
    return Fuser(graph, enabled, lower, siblings, known, speculative).run()
