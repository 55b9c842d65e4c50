"""Transpose sinking: a transpose moves past everything that does not care about the order of axes, to where it vanishes.

From a transpose the pass walks its users forward: elementwise ops, reductions, broadcasts, slices, concats along
any axis and matrix products are computed in the untransposed layout instead. Where the walk ends, a product absorbs
the transpose into its dimension numbers, a transpose merges with it, and anything else needs a transpose again. The
region is rewritten if that takes no more transposes than before; every move goes forward, so the pass ends.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field
from typing import ClassVar

from graph_kernel.ir import Graph, Node, Value
from graph_kernel.passes.axis_maps import Map, identity_map, respell
from graph_kernel.passes.base import Pass
from graph_kernel.passes.liveness import remove_dead
from graph_kernel.passes.match import ELEMENTWISE, REDUCES, SCANS, inverse, is_identity
from graph_kernel.passes.regions import Region

Perm = tuple[int, ...]
PLAIN = ELEMENTWISE | SCANS | {"concat", "rev", "slice", "pad"}  # results have the layout of the operands
ARG = ("argmax", "argmin")


@dataclass
class _Plan:
    perms: dict[Value, Perm] = field(default_factory=dict)  # axis i of the value is axis perm[i] of its new form
    nodes: dict[Node, Perm] = field(default_factory=dict)  # rewritten nodes -> permutation of their output
    absorbed: dict[Node, None] = field(default_factory=dict)  # transposes that merge with the moved one
    exits: dict[Value, None] = field(default_factory=dict)  # values that somebody needs transposed
    removed: dict[Node, None] = field(default_factory=dict)  # equal transposes that other operands come through


@dataclass(frozen=True)
class TransposeSinking(Pass):
    """Moves transposes forward through regions of at most ``limit`` nodes."""

    name: ClassVar[str] = "transpose_sinking"
    level: ClassVar[int] = 3
    limit: int = 100

    def rewrite(self, graph: Graph, notes: Counter[str]) -> bool:
        region = Region(graph)
        changed = False
        for node in graph.nodes:
            if node.op != "transpose" or node in region.touched:
                continue
            plan = _grow(region, node, self.limit)
            if plan is not None and _worth(region, node, plan):
                _apply(region, node, plan)
                notes["moved" if plan.exits else "absorbed"] += 1
                changed = True
        if changed:
            region.finish()
            remove_dead(graph)
        return changed


def _grow(region: Region, seed: Node, limit: int) -> _Plan | None:
    """Walks forward in node order, so that all operands of a node have been decided on before the node."""
    plan = _Plan()
    plan.perms[seed.output] = tuple(seed.attrs["perm"])
    queue: list[tuple[int, Node]] = []
    queued: set[Node] = set()

    def visit(value: Value) -> None:
        for user in region.users.get(value, ()):
            if user not in queued:
                queued.add(user)
                heapq.heappush(queue, (region.order[user], user))
        if value in region.outputs:
            plan.exits[value] = None

    visit(seed.output)
    while queue:
        _, node = heapq.heappop(queue)
        if node in region.touched or len(plan.nodes) > limit:
            return None
        if node.op == "transpose":
            plan.absorbed[node] = None
            continue
        perm = _result_perm(region, plan, node)
        if perm is None:
            plan.exits.update((v, None) for v in node.inputs if v in plan.perms)
            continue
        plan.nodes[node] = perm
        if not is_identity(perm):
            plan.perms[node.output] = perm
            visit(node.output)
    return plan


def _result_perm(region: Region, plan: _Plan, node: Node) -> Perm | None:
    """The permutation of a node's result when its operands are read untransposed; None if it cannot be."""
    perms = [plan.perms.get(v) for v in node.inputs]
    if node.op in PLAIN:
        (perm, *others) = dict.fromkeys(p for p in perms if p is not None)
        if others:
            return None
        for slot, (value, own) in enumerate(zip(node.inputs, perms, strict=True)):
            if own is None and not (node.op == "pad" and slot == 1) and not _enter(region, plan, value, perm):
                return None
        return perm
    if node.op in REDUCES or node.op in ARG:
        perm = perms[0] or ()
        gone = node.attrs["axes"] if node.op in REDUCES else (node.attrs["axis"],)
        kept = [perm[i] for i in range(len(perm)) if i not in gone]
        place = {p: k for k, p in enumerate(sorted(kept))}
        return tuple(place[p] for p in kept)
    if node.op == "broadcast":
        perm, dims = perms[0] or (), node.attrs["dims"]
        out = list(range(node.output.rank))
        for j, p in enumerate(perm):
            out[dims[j]] = dims[p]
        return tuple(out)
    return _dot_perm(node, perms) if node.op == "dot" else None


def _dot_perm(node: Node, perms: list[Perm | None]) -> Perm:
    """Batch axes keep their places; the free axes of each operand come in the order they have in its new form."""
    out = list(range(len(node.attrs["batch"][0])))
    for slot, value in enumerate(node.inputs):
        perm = perms[slot] or tuple(range(value.rank))
        used = {*node.attrs["contract"][slot], *node.attrs["batch"][slot]}
        free = [perm[i] for i in range(value.rank) if i not in used]
        place = {p: len(out) + k for k, p in enumerate(sorted(free))}
        out.extend(place[p] for p in free)
    return tuple(out)


def _enter(region: Region, plan: _Plan, value: Value, perm: Perm) -> bool:
    """Whether an operand from outside can be had in the region's layout at no cost."""
    node = value.producer
    if (
        node is None or node in region.touched or node in plan.absorbed
    ):  # what an absorbed one reads has a new layout itself
        return False
    if node.op == "transpose" and tuple(node.attrs["perm"]) == perm:
        if len(region.users.get(value, ())) == 1 and value not in region.outputs:
            plan.removed[node] = None
        return True
    if node.op == "broadcast":
        dims = [perm[k] for k in node.attrs["dims"]]
        source = node.inputs[0].producer
        return dims == sorted(dims) or source is not None and source.op == "constant"
    return node.op in ("constant", "iota")


def _worth(region: Region, seed: Node, plan: _Plan) -> bool:
    """Fewer transposes than before, or as many and the transpose has moved forward."""
    before = 1 + len(plan.removed)
    after = len(plan.exits)
    for node in plan.absorbed:
        merged = _merged(plan, node)
        before += 1
        after += not is_identity(merged)
    if seed.output in plan.exits and after >= before:
        return False  # the transpose itself stays
    if after != before or not plan.nodes:
        return after < before
    # moved, not removed: never to where there is more data, nor behind a broadcast (broadcast_folding moves it back)
    return all(
        v.rank <= seed.output.rank and v.producer is not None and v.producer.op != "broadcast" for v in plan.exits
    )


def _merged(plan: _Plan, node: Node) -> Perm:
    first = plan.perms[node.inputs[0]]
    return tuple(first[p] for p in node.attrs["perm"])


def _apply(region: Region, seed: Node, plan: _Plan) -> None:
    new: dict[Value, Value] = {seed.output: seed.inputs[0]}
    old: dict[Value, Value] = {}
    maps: dict[Value, Map] = {v: tuple((p,) for p in perm) for v, perm in plan.perms.items()}
    region.touched.add(seed)
    for node, perm in plan.nodes.items():
        region.touched.add(node)
        out = node.output
        out_map: Map = tuple((p,) for p in perm)
        shape = tuple(out.shape[i] for i in inverse(perm))
        node_perm = next(plan.perms[v] for v in node.inputs if v in plan.perms)
        slots: list[Map] = [maps.get(v, identity_map(v.rank)) for v in node.inputs]
        inputs: list[Value] = []
        for slot, v in enumerate(node.inputs):
            if v in new:
                inputs.append(new[v])
            elif node.op in PLAIN and not (node.op == "pad" and slot == 1):
                inputs.append(_entered(region, v, node_perm, node))
                slots[slot] = tuple((p,) for p in node_perm)
            else:
                inputs.append(v)
        node.attrs = respell(node, [*slots, out_map], shape)
        node.inputs = tuple(inputs)
        out.shape = shape
        if not is_identity(perm):
            new[out] = out
    for value in plan.exits:
        if value is seed.output:
            continue
        old[value] = region.insert("transpose", (new[value],), {"perm": plan.perms[value]}, value.producer)
        if value in region.outputs:
            old[value].name, value.name = value.name, old[value].name
    for node in plan.absorbed:
        region.touched.add(node)
        node.attrs = {"perm": _merged(plan, node)}
        node.inputs = (new[node.inputs[0]],)
    for value, replacement in old.items():
        for user in region.users.get(value, ()):
            if user not in plan.nodes and user not in plan.absorbed:
                user.inputs = tuple(replacement if v is value else v for v in user.inputs)
                region.touched.add(user)
    region.graph.outputs = [old.get(v, v) for v in region.graph.outputs]
    region.outputs = dict.fromkeys(region.graph.outputs)


def _entered(region: Region, value: Value, perm: Perm, before: Node) -> Value:
    """An operand from outside in the layout in which axis i of ``value`` is axis perm[i]."""
    node = value.producer
    back = inverse(perm)
    shape = tuple(value.shape[i] for i in back)
    if node is not None and node.op == "transpose" and tuple(node.attrs["perm"]) == perm:
        region.touched.add(node)
        return node.inputs[0]
    if node is not None and node.op == "broadcast":
        dims = [perm[k] for k in node.attrs["dims"]]
        order = tuple(sorted(range(len(dims)), key=dims.__getitem__))
        (x,) = node.inputs
        if not is_identity(order):
            x = region.insert("transpose", (x,), {"perm": order}, node, before)
        return region.insert("broadcast", (x,), {"shape": shape, "dims": tuple(sorted(dims))}, node, before)
    if node is not None and node.op == "iota":
        attrs = dict(node.attrs) | {"shape": shape, "axis": perm[node.attrs["axis"]]}
        return region.insert("iota", (), attrs, node, before)
    return region.insert("transpose", (value,), {"perm": back}, node, before)
