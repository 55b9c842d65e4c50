"""Axis splitting: a reshape that splits or merges one axis vanishes when everything that shares the axis is split.

Take ``dot(x, w) -> [b, s, 64]``, then ``reshape -> [b, s, 4, 16]``. The axis of size 64 lives in two values only:
the product and the weight ``w``. Written with the axis split, the reshape is the identity and a constant weight is
reshaped at compile time. The same move removes the merge of heads in front of an output projection (the product
contracts two axes then), the ``[b, s, k] -> [m, k]`` around a matrix product, the merge of repeated key heads in
grouped-query attention, and, with no parts at all, an axis of size 1 that ``keepdims`` or an unsqueeze has put in.

For a reshape, the pass collects the values that share the axis (``axis_maps.ties``), counts the reshape groups that
would vanish and the conversions that would be needed where the axis meets an op that cannot treat it as several,
and rewrites the whole region if that is a gain. The number of reshape groups goes down each time, so the pass ends.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from graph_kernel.ir import Graph, Node, Value
from graph_kernel.passes.axis_maps import Classes, Map, respell, ties
from graph_kernel.passes.base import Pass
from graph_kernel.passes.liveness import remove_dead
from graph_kernel.passes.match import same_dim
from graph_kernel.passes.regions import Region
from graph_kernel.passes.reshape_groups import axis_groups, nontrivial

if TYPE_CHECKING:
    from symbolic import Dim

RESHAPE, INPUT = 8, 1  # cost of a reshape group; a reshape of a graph input is a renaming of memory


@dataclass
class _Plan:
    """A region: the values whose axes are split, and where conversions are needed."""

    parts: tuple[Dim, ...]
    members: dict[Value, set[int]] = field(default_factory=dict)
    clones: dict[Value, set[int]] = field(default_factory=dict)  # cheap values; only the region sees the split form
    nodes: dict[Node, bool] = field(default_factory=dict)  # visited nodes -> whether they can be written split


@dataclass(frozen=True)
class AxisSplitting(Pass):
    """Removes reshapes by splitting, merging or dropping axes of whole regions of at most ``limit`` values."""

    name: ClassVar[str] = "axis_splitting"
    level: ClassVar[int] = 3
    limit: int = 200

    def rewrite(self, graph: Graph, notes: Counter[str]) -> bool:
        region = Region(graph)
        changed = False
        for node in graph.nodes:
            if node.op != "reshape":
                continue
            for seed, axis, parts in _seeds(region, node):
                if node in region.touched:
                    break
                plan = _grow(region, seed, axis, parts, self.limit)
                if plan is not None and _gain(region, plan) > 0:
                    _apply(region, plan)
                    notes["split" if parts else "dropped"] += 1
                    changed = True
        if changed:
            region.finish()
            remove_dead(graph)
        return changed


def _seeds(region: Region, node: Node) -> list[tuple[Value, int, tuple[Dim, ...]]]:
    """(value, axis, parts) for every group of a reshape with one axis on one side."""
    (x,), out = node.inputs, node.output
    seeds: list[tuple[Value, int, tuple[Dim, ...]]] = []
    for ins, outs in axis_groups(region.graph.scope, x.shape, out.shape) or ():
        if len(ins) == 1 and len(outs) != 1:
            seeds.append((x, ins[0], tuple(out.shape[k] for k in outs)))
        elif len(outs) == 1 and len(ins) != 1:
            seeds.append((out, outs[0], tuple(x.shape[i] for i in ins)))
    return seeds


def _grow(region: Region, seed: Value, axis: int, parts: tuple[Dim, ...], limit: int) -> _Plan | None:
    """All values that share the axis; None if there are too many or another edit of this sweep is in the way."""
    plan = _Plan(parts)
    work = [(seed, axis)]
    plan.members[seed] = {axis}
    while work:
        value, axis = work.pop()
        near = list(region.users.get(value, ()))
        if value.producer is not None:
            near.append(value.producer)
        for node in near:
            if node in region.touched:
                return None
            for other, other_axis in _follow(region, plan, node, value, axis):
                if other.producer is not node and _clonable(region, other, other_axis):
                    plan.clones.setdefault(other, set()).add(other_axis)
                    continue
                axes = plan.members.setdefault(other, set())
                if other_axis not in axes:
                    axes.add(other_axis)
                    work.append((other, other_axis))
        if len(plan.members) > limit:
            return None
    for value in plan.clones.keys() & plan.members.keys():
        del plan.clones[value]
    return plan


def _follow(region: Region, plan: _Plan, node: Node, value: Value, axis: int) -> list[tuple[Value, int]]:
    """The axes of other values that ``node`` ties to this one."""
    plan.nodes.setdefault(node, True)
    if node.op == "reshape":
        return []
    slots = [*node.inputs, *node.outputs]
    found: list[tuple[Value, int]] = []
    seen: set[int] = set()
    for cls in _ties(region, node):
        here = [(slots[k], i) for k, i in cls]
        if (value, axis) in here:
            seen.update(k for k, i in cls if slots[k] is value and i == axis)
            found.extend(place for place in here if place != (value, axis))
    if seen != {k for k, v in enumerate(slots) if v is value}:
        plan.nodes[node] = False
        return []
    return found


def _clonable(region: Region, value: Value, axis: int) -> bool:
    """Whether the value is cheap to make again with the axis split, so that its other users need not take part."""
    node = value.producer
    while node is not None and node.op == "broadcast":
        if axis not in node.attrs["dims"]:
            return True
        i = node.attrs["dims"].index(axis)
        (x,) = node.inputs
        if x.shape[i] == 1 and node.output.shape[axis] != 1:
            return True
        if not same_dim(region.graph.scope, x.shape[i], node.output.shape[axis]):
            return False
        axis, node = i, x.producer
    return node is not None and (node.op == "constant" or node.op == "iota" and node.attrs["axis"] != axis)


def _slot_axes(region: Region, plan: _Plan, node: Node) -> list[set[int]]:
    """For every slot of a node, the axes that are split; of a cheap operand those that this node ties to a member."""
    slots = [*node.inputs, *node.outputs]
    found = [set(plan.members.get(v, ())) for v in slots]
    if node.op == "reshape":
        return found
    for cls in _ties(region, node):
        if any(i in plan.members.get(slots[k], ()) for k, i in cls):
            for k, i in cls:
                found[k].add(i)
    return found


def _ok(region: Region, plan: _Plan, node: Node) -> bool:
    """Whether a node can be written with the split axes of all its operands and results."""
    if node.op == "reshape":
        return True
    if not plan.nodes[node]:
        return False
    slots = [*node.inputs, *node.outputs]
    found = _slot_axes(region, plan, node)
    tied = {place for cls in _ties(region, node) for place in cls}
    for k, value in enumerate(slots):
        if value in plan.members and found[k] != plan.members[value]:
            return False
        if any((k, i) not in tied for i in found[k]):
            return False
        if found[k] and value not in plan.members and value not in plan.clones:
            return False
    contract = node.attrs["contract"][0] if node.op == "dot" else ()
    return bool(plan.parts) or not contract or not found[0].issuperset(contract)  # one summed axis stays


def _ties(region: Region, node: Node) -> Classes:
    if node not in region.ties:
        region.ties[node] = ties(region.graph.scope, node)
    return region.ties[node]


def _new_shape(shape: tuple[Dim, ...], axes: set[int], parts: tuple[Dim, ...]) -> tuple[Dim, ...]:
    return tuple(d for i, n in enumerate(shape) for d in (parts if i in axes else (n,)))


def _new_map(rank: int, axes: set[int], count: int) -> Map:
    out: list[tuple[int, ...]] = []
    place = 0
    for i in range(rank):
        width = count if i in axes else 1
        out.append(tuple(range(place, place + width)))
        place += width
    return tuple(out)


def _gain(region: Region, plan: _Plan) -> int:
    """Reshape groups removed less conversions needed, in units of ``RESHAPE`` = one group."""
    scope = region.graph.scope
    if any(node in plan.nodes for value in plan.clones for node in _makers(value)):
        return -1  # made again from what is itself being rewritten
    for node in plan.nodes:
        plan.nodes[node] = _ok(region, plan, node)
    gain = 0
    for node in plan.nodes:
        if node.op != "reshape":
            continue
        shapes = [v.shape for v in (node.inputs[0], node.output)]
        x, out = node.inputs[0], node.output
        read = plan.members.get(x, set()) if _split_at_definition(plan, x) else set()  # else it reads x as it is
        after = [_new_shape(x.shape, read, plan.parts), _new_shape(out.shape, plan.members.get(out, set()), plan.parts)]
        old, new = axis_groups(scope, *shapes), axis_groups(scope, *after)
        if old is None or new is None:
            return -1
        gain += _weight(node.inputs[0]) * (nontrivial(old) - nontrivial(new))
    for value, axes in plan.members.items():
        if not _split_at_definition(plan, value):
            gain -= len(axes) * _weight(value) * _needed_split(region, plan, value)
        elif _needed_whole(region, plan, value):
            gain -= len(axes) * RESHAPE
    return gain


def _makers(value: Value) -> list[Node]:
    """The nodes behind a cheap value, which ``_clone`` makes again."""
    found: list[Node] = []
    node = value.producer
    while node is not None:
        found.append(node)
        node = node.inputs[0].producer if node.op == "broadcast" else None
    return found


def _weight(value: Value) -> int:
    """What a reshape of ``value`` costs."""
    if value.producer is None:
        return INPUT
    return 0 if value.producer.op == "constant" else RESHAPE


def _split_at_definition(plan: _Plan, value: Value) -> bool:
    return value.producer is not None and plan.nodes.get(value.producer, False)


def _needed_split(region: Region, plan: _Plan, value: Value) -> bool:
    return any(plan.nodes.get(user, False) and user.op != "reshape" for user in region.users.get(value, ()))


def _needed_whole(region: Region, plan: _Plan, value: Value) -> bool:
    return value in region.outputs or any(not plan.nodes.get(user, True) for user in region.users.get(value, ()))


def _apply(region: Region, plan: _Plan) -> None:
    """Rewrites the region in place; conversions are reshapes."""
    count = len(plan.parts)
    old_shape = {v: v.shape for v in plan.members}
    # the definition of a value decides its form; the other form is a reshape of it
    split: dict[Value, Value] = {}
    late: set[Value] = set()  # values whose definition stays as it is
    found = {node: _slot_axes(region, plan, node) for node, ok in plan.nodes.items() if ok}
    for value, axes in plan.members.items():
        if not _split_at_definition(plan, value):
            late.add(value)
            shape = _new_shape(value.shape, axes, plan.parts)
            if _needed_split(region, plan, value):
                split[value] = region.insert("reshape", (value,), {"shape": shape}, value.producer)
    for value, axes in plan.members.items():
        if value not in late:
            value.shape = _new_shape(value.shape, axes, plan.parts)
            split[value] = value
    whole: dict[Value, Value] = {}
    for value in plan.members:
        if value not in late and _needed_whole(region, plan, value):
            whole[value] = region.insert("reshape", (value,), {"shape": old_shape[value]}, value.producer)
            if value in region.outputs:
                whole[value].name, value.name = value.name, whole[value].name
        else:
            whole[value] = value
    for node, ok in plan.nodes.items():
        region.touched.add(node)
        inputs = node.inputs
        if not ok:
            node.inputs = tuple(whole.get(v, v) for v in inputs)
            continue
        if node.op == "reshape" and inputs[0] in late:
            node.attrs = {"shape": node.output.shape}
            continue
        slot_axes = found[node]
        ranks = [len(old_shape.get(v, v.shape)) for v in (*inputs, *node.outputs)]
        slot_maps = [_new_map(rank, own, count) for rank, own in zip(ranks, slot_axes, strict=True)]
        node.inputs = tuple(
            split[v] if v in split else _clone(region, v, own, plan.parts, node)
            for v, own in zip(inputs, slot_axes, strict=False)
        )
        if node.op == "constant":
            node.attrs = {"value": node.attrs["value"].reshape(node.output.shape)}
        else:
            node.attrs = respell(node, slot_maps, node.outputs[0].shape)
    region.graph.outputs = [whole.get(v, v) for v in region.graph.outputs]
    region.outputs = dict.fromkeys(region.graph.outputs)


def _clone(region: Region, value: Value, axes: set[int], parts: tuple[Dim, ...], before: Node) -> Value:
    """A cheap value made again with ``axes`` split, in front of the node that reads it."""
    if not axes:
        return value
    node = value.producer
    assert node is not None
    shape = _new_shape(value.shape, axes, parts)
    if node.op == "constant":
        attrs = {"value": node.attrs["value"].reshape(shape)}
        return region.insert("constant", (), attrs, node, before)
    out_map = _new_map(value.rank, axes, len(parts))
    if node.op == "iota":
        return region.insert("iota", (), respell(node, (out_map,), shape), node, before)
    (x,) = node.inputs
    scope, target = region.graph.scope, node.output.shape
    inner = {i for i, k in enumerate(node.attrs["dims"]) if k in axes and same_dim(scope, x.shape[i], target[k])}
    source = _clone(region, x, inner, parts, before)
    attrs = respell(node, (_new_map(x.rank, inner, len(parts)), out_map), shape)
    return region.insert("broadcast", (source,), attrs, node, before)
