"""x * logistic(beta * x) becomes one ``silu`` (swish, and with beta = 1.702 the quick GELU)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from graph_kernel.ir import Graph, Node, Value
from graph_kernel.passes.composite_parts import factored, number, pairs
from graph_kernel.passes.composites import Finder, Match, Recogniser
from graph_kernel.passes.match import made_by


@dataclass(frozen=True)
class RecogniseSilu(Recogniser):
    """The logistic function has to be of the x that it is multiplied with. x / (1 + exp(-x)) is the same, in float32 written as such."""

    name: ClassVar[str] = "recognise_silu"
    op: ClassVar[str] = "silu"
    anchors: ClassVar[frozenset[str]] = frozenset(("mul", "div"))

    def match(self, finder: Finder, node: Node) -> Match | None:
        if node.op == "div":
            return _quotient(node)
        for x, other in pairs(node):
            logistic = made_by(other, "logistic")
            base, beta = (None, 0.0) if logistic is None else factored(logistic.inputs[0])
            if base is x:
                return Match(node.output, (x,), {"beta": beta})
        return None


def _quotient(node: Node) -> Match | None:
    """x / (1 + exp(-x))."""
    x, divisor = node.inputs
    total = made_by(divisor, "add")
    power = None if total is None else next((a for a, b in pairs(total) if number(b) == 1), None)
    exp = None if power is None else made_by(power, "exp")
    if exp is None or factored(exp.inputs[0]) != (x, -1.0):
        return None
    return Match(node.output, (x,), {"beta": 1.0}, build=_product if x.dtype == np.float32 else None)


def _product(graph: Graph, inputs: Sequence[Value]) -> Value:
    (x,) = inputs
    return graph.add("mul", x, graph.add("logistic", x))
