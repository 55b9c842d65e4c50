"""exp(x - max(x)) / sum(exp(x - max(x))) over axes becomes one ``softmax``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graph_kernel.ir import Node, Value
from graph_kernel.passes.composite_parts import Axes, narrowed, pairs, reduction, spread, under_cast
from graph_kernel.passes.composites import Finder, Match, Recogniser
from graph_kernel.passes.match import made_by, splat_is


@dataclass(frozen=True)
class RecogniseSoftmax(Recogniser):
    """The maximum and the sum have to be over the same axes of the same x, and go back along these axes.

    The maximum may be guarded (a row that is all -inf shifted by 0), the sum accumulated in a wider dtype. A softmax without a shift is
    not one: it overflows where this one does not.
    """

    name: ClassVar[str] = "recognise_softmax"
    op: ClassVar[str] = "softmax"
    anchors: ClassVar[frozenset[str]] = frozenset(("div", "mul"))

    def match(self, finder: Finder, node: Node) -> Match | None:
        found = _quotient(finder, node)
        if found is None:
            return None
        powers, axes = found
        exp = made_by(powers, "exp")
        shifted = None if exp is None else made_by(exp.inputs[0], "sub")
        if shifted is None:
            return None
        x, shift = shifted.inputs
        maximum = spread(finder.scope, shift, x)
        if maximum is None or maximum[1] != axes or reduction(_unguarded(maximum[0]), "reduce_max") != (x, axes):
            return None
        leaf, output = narrowed(finder, x, node.output)
        return Match(output, (leaf,), {"axes": axes})


def _quotient(finder: Finder, node: Node) -> tuple[Value, Axes] | None:
    """(powers, axes) if ``node`` divides powers by their own sum over axes."""
    for powers, other in pairs(node) if node.op == "mul" else (node.inputs,):
        found = spread(finder.scope, other, powers)
        if found is None:
            continue
        total, axes = found
        if node.op == "mul":
            inverse = made_by(total, "reciprocal")
            if inverse is None:
                continue
            total = inverse.inputs[0]
        summed = reduction(under_cast(total), "reduce_sum")
        if summed is not None and summed[1] == axes and powers in (summed[0], under_cast(summed[0])):
            return powers, axes
    return None


def _unguarded(maximum: Value) -> Value:
    """The maximum under select(is_finite(maximum), maximum, 0)."""
    guard = made_by(maximum, "select")
    if guard is None:
        return maximum
    finite = made_by(guard.inputs[0], "is_finite")
    guarded = finite is not None and finite.inputs[0] is guard.inputs[1] and splat_is(guard.inputs[2], 0)
    return guard.inputs[1] if guarded else maximum
