"""A matrix product and its bias become one ``linear``; max(x, 0) becomes one ``relu``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graph_kernel.ir import Node
from graph_kernel.ops.matmul import free_axes
from graph_kernel.passes.composite_parts import number, pairs, varies_along
from graph_kernel.passes.composites import Finder, Match, Recogniser
from graph_kernel.passes.match import made_by
from graph_kernel.passes.recognise_norms import source


@dataclass(frozen=True)
class RecogniseLinear(Recogniser):
    """The bias has to vary along axes that one operand alone gives the product; nothing else may read the product."""

    name: ClassVar[str] = "recognise_linear"
    op: ClassVar[str] = "linear"
    anchors: ClassVar[frozenset[str]] = frozenset(("add",))

    def match(self, finder: Finder, node: Node) -> Match | None:
        for product, bias in pairs(node):
            dot = made_by(product, "dot")
            if dot is None or finder.only_reader(product) is not node:
                continue
            if any(varies_along(bias, axes) for axes in _own_axes(dot)):
                return Match(node.output, (*dot.inputs, source(bias)), {})
        return None


def _own_axes(dot: Node) -> list[tuple[int, ...]]:
    """The axes of a product that come from its second operand alone, and from its first."""
    (contract_a, contract_b), (batch_a, batch_b) = dot.attrs["contract"], dot.attrs["batch"]
    a, b = dot.inputs
    first = len(batch_a)
    second = first + len(free_axes(a.rank, contract_a, batch_a))
    end = second + len(free_axes(b.rank, contract_b, batch_b))
    return [tuple(range(second, end)), tuple(range(first, second))]


@dataclass(frozen=True)
class RecogniseRelu(Recogniser):
    """The other operand has to be the number 0, of either sign."""

    name: ClassVar[str] = "recognise_relu"
    op: ClassVar[str] = "relu"
    anchors: ClassVar[frozenset[str]] = frozenset(("max",))

    def match(self, finder: Finder, node: Node) -> Match | None:
        x = next((a for a, b in pairs(node) if number(b) == 0 and number(a) is None), None)
        return None if x is None else Match(node.output, (x,), {})
