"""Concatenations whose operands are written in place: an index map on the producer's store instead of a kernel that copies.

A concatenation that has to be in memory anyway is a larger value of which each operand is a slice: at an offset, with the strides of the
whole. Where an operand is what another kernel computes (through reshapes and transposes), that kernel stores it there, and the
concatenation is no node of any kernel; the operands that no kernel computes are copied by one that does nothing else. The decision is by
estimated traffic, counted in kernels where several of them would write one after the other: kernels that store into one buffer do not run
side by side.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from graph_kernel.fusion.axes import Refusal
from graph_kernel.fusion.layout import strides
from graph_kernel.fusion.rules import JOINED, Group, has_product
from graph_kernel.ir import Node, Value
from graph_kernel.passes.liveness import data_symbols
from symbolic import Dim, Scope, numel, product, reshape_groups

if TYPE_CHECKING:
    from graph_kernel.fusion.fuse import Fuser

MAX_WRITERS = 2  # kernels that write one concatenation: as many stages as the operands side by side and a copy take


@dataclass(frozen=True)
class Slot:
    """Where a result is stored: element ``i`` of it at ``offset + i . strides`` of ``target`` (elements). ``name`` is a value of the
    result's shape that stands for this part of ``target``'s memory, or the result itself where it has memory of its own."""

    name: Value
    target: Value
    offset: Dim
    strides: tuple[Dim, ...]


def whole(value: Value) -> Slot:
    """A result in memory of its own."""
    return Slot(value, value, 0, tuple(strides(value.shape)))


@dataclass
class _Operand:
    """An operand of a concatenation: the value in memory behind it and its place in the whole. ``root`` is the value if a kernel
    makes it."""

    value: Value
    offset: Dim
    strides: tuple[Dim, ...]
    root: Value | None = None


@dataclass
class Slots:
    """The concatenations of a graph that became slots."""

    fuser: Fuser
    of: dict[Value, list[Slot]] = field(default_factory=dict)
    gone: dict[Node, None] = field(default_factory=dict)  # concatenations that no kernel computes

    # --- what fusion and code generation ask ----------------------------------------------------------------------------------------
    def stores(self, value: Value) -> tuple[Slot, ...]:
        """Everywhere a result is stored: in its slots, and in memory of its own if anything else reads it or nothing has a slot."""
        found = self.of.get(value)
        if not found:
            return (whole(value),)
        return (*found, *((whole(value),) if self._read_elsewhere(value) else ()))

    def targets(self) -> dict[Value, Value]:
        """For the name of every slot the value in whose memory it lies."""
        return {slot.name: slot.target for found in self.of.values() for slot in found}

    def _read_elsewhere(self, value: Value) -> bool:
        inside = dict.fromkeys((*self._group(value).nodes, *self.gone))
        return value in self.fuser.results or self.fuser.read_outside(value, inside)

    # --- the decision ---------------------------------------------------------------------------------------------------------------
    def run(self) -> None:
        """Decides about every concatenation."""
        if data_symbols(self.fuser.graph):
            return  # a slice lies behind sizes that another kernel may still have to find
        for node in [n for n in self.fuser.graph.nodes if n.op == "concat"]:
            group = self.fuser.group_of.get(node)
            if group is None or node.output not in self.fuser.stored_outputs(dict.fromkeys(group.nodes)):
                continue
            operands = self._operands(node, group)
            if operands is None or not any(x.root is not None for x in operands):
                continue
            roots = [x.root for x in operands if x.root is not None]
            self._join(roots)
            reason = self._refuse(operands) or self._remove(node, self.fuser.group_of[node], operands)
            if not reason:
                self._join([*roots, *(x.root for x in operands if x.root is not None and x.root not in roots)])
            else:
                self.fuser.cut(None, node, node.output, f"its operands are stored and copied: {reason}")

    def _operands(self, node: Node, group: Group) -> list[_Operand] | None:
        """The operands with their places; None if the concatenation's own kernel computes one of them."""
        out = node.output
        axis, steps = node.attrs["axis"], tuple(strides(out.shape))
        found: list[_Operand] = []
        at: Dim = 0
        for value in node.inputs:
            operand = _Operand(value, at * steps[axis], steps)
            at = at + value.shape[axis]
            below = self._stored(value, steps)
            if below is not None:
                operand.value, operand.strides = below
                if operand.value.producer in self.fuser.group_of:
                    operand.root = operand.value
                    if operand.value.producer in group.nodes:
                        return None
            found.append(operand)
        return found

    def _stored(self, value: Value, steps: tuple[Dim, ...]) -> tuple[Value, tuple[Dim, ...]] | None:
        """The value in memory behind reshapes and transposes, and its strides where ``value`` has the strides ``steps``."""
        free, groups = self.fuser.free, self.fuser.group_of
        while value.producer is not None and value.producer in free and value.producer not in groups:
            node = value.producer
            if node.op == "transpose":
                steps = tuple(steps[node.attrs["perm"].index(i)] for i in range(len(steps)))
            elif node.op == "reshape":
                found = _reshaped(node.inputs[0].shape, value.shape, steps, self.fuser.scope)
                if found is None:
                    return None
                steps = found
            else:
                return None
            value = node.inputs[0]
        return value, steps

    def _join(self, values: list[Value]) -> None:
        """Makes one kernel of those that compute operands of one shape, where that repeats nothing."""
        for k, second in enumerate(values):
            for first in values[:k]:
                a, b = self._group(first), self._group(second)
                if a is not b and self.fuser.same_shape(first, second) and JOINED.allowed(self.fuser, a, b):
                    self.fuser.merge(a, b, first, JOINED, ((first, second),))

    def _group(self, value: Value) -> Group:
        assert value.producer is not None
        return self.fuser.group_of[value.producer]

    def _refuse(self, operands: list[_Operand]) -> str:
        """Why in-place operands would not pay; empty if they do."""
        fuser = self.fuser
        writers = {self._group(x.root).id for x in operands if x.root is not None}
        shapes = [x.root for x in operands if x.root is not None and not has_product(self._group(x.root))]
        beside = len(shapes)  # a copy of the same shape can be part of these kernels
        for x in operands:
            if x.root is None and x.value.shape and not any(fuser.same_shape(x.value, v) for v in shapes):
                shapes.append(x.value)
        kernels = len(writers) + len(shapes) - beside
        if kernels > MAX_WRITERS:
            return f"{kernels} kernels would write into one buffer, one after the other"
        return ""

    def _remove(self, node: Node, group: Group, operands: list[_Operand]) -> str:
        """Takes the concatenation out of its kernel; the reason if what is left of that has no kernel form."""
        fuser = self.fuser
        rest = [n for n in group.nodes if n is not node]
        left = Group(group.id, rest, tied=group.tied)
        if rest:
            if any(node.output in pair for pair in group.tied):
                return "the kernel's loops run over its elements"
            try:
                fuser.complete(left)
            except Refusal as refusal:
                return str(refusal)
        del fuser.group_of[node]
        self.gone[node] = None
        if rest:
            fuser.regroup(rest, group.tied)
        saved: Dim = 0
        for x in operands:
            if x.root is not None:
                saved = saved + numel(x.root.shape) * x.root.dtype.itemsize
            elif numel(x.value.shape) == 0:
                continue
            else:
                x.root = fuser.add_copy(x.value, node)
            name = fuser.graph.new_value(x.root.shape, x.root.dtype)
            name.name = x.root.name
            self.of.setdefault(x.root, []).append(Slot(name, node.output, x.offset, x.strides))
        fuser.slot_merge(node, f"store in place ({saved} bytes are not read again)")
        return ""


def _reshaped(
    source: tuple[Dim, ...], target: tuple[Dim, ...], steps: tuple[Dim, ...], scope: Scope
) -> tuple[Dim, ...] | None:
    """Strides of a value whose reshape to ``target`` has the strides ``steps``; None if it has none."""
    groups = reshape_groups(scope, source, target)
    if groups is None:
        return None
    out: list[Dim] = [0] * len(source)
    for in_axes, out_axes in groups:
        ins = [a for a in in_axes if source[a] != 1]
        outs = [a for a in out_axes if target[a] != 1]
        if not ins:
            continue
        if not outs or not all(
            scope.equal(steps[a], steps[b] * target[b]) for a, b in zip(outs, outs[1:], strict=False)
        ):
            return None
        for k, a in enumerate(ins):
            out[a] = steps[outs[-1]] * product([source[x] for x in ins[k + 1 :]])
    return tuple(out)
