"""Softmax whose statistics are kept while its axis streams by (online softmax), found in a group's nodes.

    m = max(s)    e = exp(s - m)    l = sum(e)    w = e / l    o = w . v

In one pass over blocks of the axis: a running maximum, and sums that are multiplied by exp(old maximum - new maximum) whenever it
grows; the division by ``l`` comes last. Everything else about the nodes (masks, scaling, casts, grouped heads) is whatever computes
``s``. A variation that does not match is no error: its reductions are computed in a pass each.

The running maximum starts at the lowest finite number instead of -inf. So exp(-inf - m) is 0 and not NaN while only -inf has been seen,
and a row of nothing but -inf ends as 0 / 0, the NaN that it is when computed as written. For that, ``m`` and ``l`` may be used in the
softmax only: the matcher sees to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from graph_kernel.fusion import layout
from graph_kernel.fusion.axes import ARG, REDUCTIONS, Axes, Refusal
from graph_kernel.fusion.layout import CONTRACT, Layout, TileDim, product_roles, static_size, value_dims
from graph_kernel.ir import Node, Value
from symbolic import Scope

MAX_RECOMPUTED_CONTRACTION = 256

SAME_TILE = frozenset(("reshape", "transpose"))  # of computed values: another name for the same tile
CAST = SAME_TILE | {"cast"}
SPREAD = CAST | {"broadcast"}
FLOAT32 = np.dtype(np.float32)


@dataclass(frozen=True)
class Product:
    """A matrix product with softmax weights as its operand ``side``."""

    dot: Node
    side: int


@dataclass(frozen=True)
class Online:
    """One softmax: the nodes of its statistics and the products of its weights."""

    scores: Value
    maximum: Node
    total: Node
    reduced: frozenset[TileDim]  # tile dims that are reduced; one is a stage loop
    products: tuple[Product, ...]


def find(axes: Axes, layout: Layout, outputs: Iterable[Value]) -> list[Online]:
    """The softmaxes of a group that can run online over a stage loop. ``outputs`` are the values that the group stores."""
    return [found for node in axes.computed if (found := _Matcher(axes, layout, outputs).match(node)) is not None]


class _Matcher:
    def __init__(self, axes: Axes, layout: Layout, outputs: Iterable[Value]) -> None:
        self.axes, self.layout, self.outputs = axes, layout, set(outputs)
        self.node_of = {v: n for n in axes.computed for v in n.outputs if v not in axes.loads}
        self.users: dict[Value, list[Node]] = {}
        for node in axes.computed:
            if any(v in self.node_of for v in node.outputs):
                for value in dict.fromkeys(node.inputs):
                    self.users.setdefault(value, []).append(node)

    def match(self, maximum: Node) -> Online | None:
        """The softmax whose maximum is ``maximum``."""
        if maximum.op != "reduce_max" or maximum.output not in self.node_of:
            return None
        scores = self.origin(maximum.inputs[0], SAME_TILE)
        reduced = self.reduced(maximum)
        stages = [d for d in reduced if d.loop >= 0]
        if scores.dtype.kind in "iub" or len(stages) != 1 or not self.layout.loops[stages[0].loop].stage:
            return None
        exps: list[Node] = []
        for sub in self.uses(maximum.output, SPREAD):
            after = self.uses(sub.output, SAME_TILE) if sub.op == "sub" else []
            if not after or any(n.op != "exp" for n in after) or not self.subtracts(sub, scores, maximum):
                return None
            exps += after
        sums, quotients = self.consumers(exps)
        if len(sums) != 1 or self.reduced(sums[0]) != reduced:
            return None
        divides = self.uses(sums[0].output, SPREAD)
        if not quotients or set(divides) != set(quotients):
            return None
        exp_values = {e.output for e in exps}
        for div in quotients:
            x, y = div.inputs
            numerator, denominator = self.origin(x, CAST), self.origin(y, SPREAD)
            if numerator not in exp_values or denominator is not sums[0].output or not self.same_dims(x, div.output):
                return None
        products = [p for div in quotients for p in self.products(div, reduced)]
        if not products and any(v.dtype != FLOAT32 for v in (maximum.output, sums[0].output)):
            return None
        return Online(scores, maximum, sums[0], reduced, tuple(products))

    def subtracts(self, sub: Node, scores: Value, maximum: Node) -> bool:
        x, y = sub.inputs
        of = self.origin(y, SPREAD)
        return self.origin(x, SAME_TILE) is scores and of is maximum.output and self.same_dims(sub.output, scores)

    def consumers(self, exps: list[Node]) -> tuple[list[Node], list[Node]]:
        """Sums and quotients that read the exponentials; nothing else may."""
        sums: dict[Node, None] = {}
        quotients: dict[Node, None] = {}
        for exp in exps:
            for user in self.uses(exp.output, CAST):
                if user.op == "reduce_sum":
                    sums[user] = None
                elif user.op == "div":
                    quotients[user] = None
                else:
                    return [], []
        return list(sums), list(quotients)

    def products(self, div: Node, reduced: frozenset[TileDim]) -> list[Product]:
        """Products that contract the weights over just the softmax's axis."""
        found: list[Product] = []
        for node in self.uses(div.output, CAST, closed=False):
            if node.op != "dot":
                continue
            sides = [k for k in (0, 1) if self.origin(node.inputs[k], CAST) is div.output]
            if len(sides) != 1 or node.output.dtype.kind in "iub":
                continue
            roles = product_roles(self.layout, node)[sides[0]]
            same = self.layout.tile_dims(node.inputs[sides[0]]) == self.layout.tile_dims(div.output)
            if same and frozenset(d for d, role in roles if role == CONTRACT) == reduced:
                found.append(Product(node, sides[0]))
        return found

    # --- chains of nodes that only rename a tile ------------------------------------------------------------------------------------
    def origin(self, value: Value, through: frozenset[str]) -> Value:
        """The value behind nodes of the kinds ``through``; a cast must be one between floating types."""
        while True:
            node = self.node_of.get(value)
            if node is None or node.op not in through or node.inputs[0] not in self.node_of:
                return value
            if node.op == "cast" and not _floats(node):
                return value
            value = node.inputs[0]

    def uses(self, value: Value, through: frozenset[str], closed: bool = True) -> list[Node]:
        """Nodes that read a value, directly or through ``through``. ``closed``: empty if the group stores it."""
        out: dict[Node, None] = {}
        stack = [value]
        while stack:
            v = stack.pop()
            if closed and v in self.outputs:
                return []
            for node in self.users.get(v, ()):
                if node.op in through and (node.op != "cast" or _floats(node)):
                    stack.append(node.output)
                else:
                    out[node] = None
        return list(out)

    def reduced(self, node: Node) -> frozenset[TileDim]:
        return frozenset(d for a in node.attrs["axes"] for d in value_dims(self.layout, node.inputs[0], a))

    def same_dims(self, a: Value, b: Value) -> bool:
        return self.layout.tile_dims(a) == self.layout.tile_dims(b)


def _floats(node: Node) -> bool:
    return all(v.dtype.kind not in "iub" for v in (node.inputs[0], node.output))


def plan(nodes: list[Node], axes: Axes, outputs: list[Value], scope: Scope) -> Layout:
    """The loops of a group (``layout.plan``), unless it would compute long products several times. Raises ``Refusal``."""
    found = layout.plan(nodes, axes, outputs, scope)
    _recomputation(found, outputs)
    return found


def _recomputation(planned: Layout, outputs: list[Value]) -> None:
    """A product inside a stage loop is computed again in every pass: only short contractions may, unless there is one pass."""
    axes = planned.axes
    stages = {loop.id for loop in planned.loops if loop.stage}
    reductions = [n for n in axes.computed if n.op in REDUCTIONS or n.op in ARG or n.op == "dot"]
    softmaxes: list[Online] | None = None
    for dot in [n for n in axes.computed if n.op == "dot"]:
        mine = {d.loop for d in planned.tile_dims(dot.output) if d.loop in stages}
        passes = [n for n in reductions if n is not dot and any(d.loop in mine for d in planned.tile_dims(n.inputs[0]))]
        contracted = [a for d in dot.attrs["contract"][0] for a in axes.dims[dot.inputs[0]][d]]
        span = static_size(axes, contracted)
        if not passes or span <= MAX_RECOMPUTED_CONTRACTION:
            continue
        if softmaxes is None:
            softmaxes = find(axes, planned, outputs)
        if not any(set(passes) == {s.maximum, s.total, *(p.dot for p in s.products)} for s in softmaxes if s.products):
            raise Refusal(f"a product with {span} contracted elements would be computed {len(passes)} times")
