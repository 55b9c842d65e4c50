"""The fusion rules: which neighbours may become one kernel, in the order in which they are tried."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from graph_kernel.fusion.axes import ARG, CUMULATIVE, REDUCTIONS, Axes, Tied
from graph_kernel.fusion.layout import CUBE_SPAN, Layout, Sharing
from graph_kernel.ir import Node, Value
from symbolic import product


@dataclass(eq=False)
class Group:
    """Nodes of one kernel, the values it stores, and (once final) its axes and loops: those of the first group that is equal but for its
    values."""

    id: int
    nodes: list[Node]
    outputs: list[Value] = field(default_factory=list)
    axes: Axes | None = None
    layout: Layout | None = None
    parts: tuple[Group, ...] = ()  # the groups that were merged into this one
    facts: list[str] = field(
        default_factory=list
    )  # relations between sizes that its loops rest on, each with why it holds
    code: Any = None  # what ``lower`` made of it
    stores: list[Value] = field(default_factory=list)  # the memory it writes: results, or slots in larger values
    tied: Tied = ()  # results of siblings that have one iteration space
    shape: tuple[Any, ...] | None = None  # of every value, where nothing but elementwise nodes and scalars takes part
    rule: Rule | None = None  # that merged its parts
    apart: tuple[
        Group, ...
    ] = ()  # kernels that do the same, in order, where the rule is speculative or the product's sum can be divided
    sharing: Sharing = Sharing.TILES

    @functools.cached_property
    def ops(self) -> frozenset[str]:
        """The operators of its nodes."""
        return frozenset(n.op for n in self.nodes)

    def has(self, ops: Iterable[str]) -> bool:
        """Whether a node of the group is one of ``ops``."""
        return not self.ops.isdisjoint(ops)


MAX_MOVED = 8  # results of one kernel that only moves data: kernels of equal layers stay equal

Siblings = Callable[[Group, Group], bool]
"""Whether two groups, neither of which reads the other, should be one kernel."""


class Reach(Protocol):
    """What rules ask the fuser."""

    def feeds_product(self, producer: Group, consumer: Group) -> bool:
        """Whether a product of ``consumer`` depends on ``producer``."""
        ...


def has_product(group: Group) -> bool:
    """Whether the group has a matrix product."""
    return group.has(("dot",))


def no_reduction(group: Group) -> bool:
    """Whether nothing in the group runs over an axis, products aside."""
    return not (group.has(REDUCTIONS) or group.has(ARG) or group.has(CUMULATIVE))


def elementwise(group: Group) -> bool:
    """Whether every node of the group is elementwise."""
    return no_reduction(group) and not has_product(group)


def products(group: Group) -> bool:
    """Whether the group is products and elementwise nodes."""
    return no_reduction(group) and has_product(group)


def short_rows(producer: Group, consumer: Group) -> bool:
    """Whether the rows of the producer's products are short, so that each is whole in a tile anyway, and the consumer reduces such rows."""
    rows = [
        math.prod(_columns(n)) for n in producer.nodes if n.op == "dot" if all(isinstance(m, int) for m in _columns(n))
    ]
    whole = len(rows) == sum(n.op == "dot" for n in producer.nodes) > 0 and max(rows) <= CUBE_SPAN
    reductions = [n for n in consumer.nodes if n.op in REDUCTIONS]
    others = has_product(consumer) or consumer.has(ARG) or consumer.has(CUMULATIVE)
    return whole and no_reduction(producer) and bool(reductions) and not others and all(map(_static_row, reductions))


COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def wide_rows(producer: Group, consumer: Group) -> bool:
    """Whether the consumer reduces rows that the producer's products make: of any fixed length, so that each is whole in a tile, which
    leaves room for few of them; or of a symbolic one, in passes that compute the products again. A comparison might then see two
    values that differ in their last bit where there is one."""
    reductions = [n for n in consumer.nodes if n.op in REDUCTIONS]
    others = has_product(consumer) or consumer.has(ARG) or consumer.has(CUMULATIVE)
    apart = producer.rule is None or not producer.rule.patience
    if not (apart and products(producer) and reductions and not others):
        return False
    fixed = all(isinstance(m, int) for n in producer.nodes if n.op == "dot" for m in _columns(n))
    if fixed and all(map(_static_row, reductions)):
        return True
    return not (producer.has(COMPARISONS) or consumer.has(COMPARISONS))


def row_lengths(group: Group) -> list[Any]:
    """The lengths of the rows that a group reduces, each once."""
    lengths = (product([n.inputs[0].shape[a] for a in n.attrs["axes"]]) for n in group.nodes if n.op in REDUCTIONS)
    return list(dict.fromkeys(lengths))


def _columns(dot: Node) -> tuple[Any, ...]:
    """Sizes of the second operand's free axes."""
    _, y = dot.inputs
    used = (*dot.attrs["contract"][1], *dot.attrs["batch"][1])
    return tuple(n for i, n in enumerate(y.shape) if i not in used)


def _static_row(node: Node) -> bool:
    return all(isinstance(node.inputs[0].shape[a], int) for a in node.attrs["axes"])


def movement(group: Group) -> bool:
    """Whether the group only moves data: what it stores is read and stored as it is, or joined."""
    return all(n.op in ("concat", "reshape", "transpose") for n in group.nodes)


@dataclass(frozen=True)
class Rule:
    """A rule: may a producer and a consumer be merged? ``strict``: not if anything of the producer would be computed repeatedly, however
    cheap, and not without trying whether code generation finds room for it. ``patience``: how many times as long as the kernels apart the
    merged one may take before they are run instead; of such a merge both forms are kept, where sizes decide (0: it is always merged)."""

    name: str
    allowed: Callable[[Reach, Group, Group], bool]
    strict: bool = False
    patience: float = 0.0


RULES: tuple[Rule, ...] = (
    Rule("elementwise", lambda _, p, c: elementwise(p) and elementwise(c)),
    Rule("reduce", lambda _, p, c: elementwise(p) and not has_product(c)),
    Rule("post-reduce", lambda _, p, c: not has_product(p) and not has_product(c)),
    Rule("matmul epilogue", lambda _, p, c: has_product(p) and elementwise(c)),
    Rule("joined products", lambda f, p, c: products(p) and products(c) and not f.feeds_product(p, c), strict=True),
)
SIBLINGS = Rule("sibling products", lambda f, p, c: products(p) and products(c), strict=True)
JOINED = Rule("joined operands", lambda _, p, c: not has_product(p) and not has_product(c), strict=True)
MOVEMENT = Rule(
    "sibling movement",
    lambda _, p, c: movement(p) and movement(c) and len(p.nodes) + len(c.nodes) <= MAX_MOVED,
    strict=True,
)
LATE_RULES: tuple[Rule, ...] = (
    Rule("product post-reduce", lambda _, p, c: short_rows(p, c), strict=True),
    Rule(
        "matmul prologue",
        lambda _, p, c: not has_product(p) and has_product(c),
        strict=True,
        patience=2.0,  # a kernel more, and a tensor more in memory: that has to be worth it
    ),
)
SPECULATIVE = Rule("speculative post-reduce", lambda _, p, c: wide_rows(p, c), strict=True, patience=0.9)
