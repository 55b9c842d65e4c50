"""Speculative merges undone: the kernels that a launch may run instead of a merged one (``codegen.choices`` says when)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from graph_kernel.fusion.axes import Refusal
from graph_kernel.fusion.rules import Group
from graph_kernel.ir import Node


class Completes(Protocol):
    """What is asked of the fuser."""

    def complete(self, group: Group) -> None:
        """Fills in what code generation needs; raises ``Refusal``."""
        ...

    def closure(self, nodes: Iterable[Node]) -> list[Node]:
        """The nodes with the free nodes they need."""
        ...


def parts_of(group: Group, fuser: Completes) -> tuple[Group, ...]:
    """The kernels that speculative merges made a group of, in an order in which they can run, each complete; none if there was no such
    merge, or if a part has no kernel form by itself."""
    parts = _parts(group)
    if len(parts) < 2:
        return ()
    try:
        for part in parts:
            fuser.complete(part)
    except Refusal:
        return ()
    made = {v: part for part in parts for v in part.outputs}
    order: dict[Group, None] = {}
    while len(order) < len(parts):  # one of what is left reads nothing of the others: merges make no cycles
        for part in parts:
            reads = {made[v] for node in fuser.closure(part.nodes) for v in node.inputs if v in made}
            if part not in order and reads <= {part, *order}:
                order[part] = None
    return tuple(order)


def _parts(group: Group) -> list[Group]:
    if group.rule is None or not group.rule.patience:
        return [group]
    return [found for part in group.parts for found in _parts(part)]
