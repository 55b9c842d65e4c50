"""Rotary position embedding, written with whole tables or by halves, becomes one ``rope``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graph_kernel.ir import Node, Value
from graph_kernel.passes.composite_parts import narrowed, pairs, same_dim
from graph_kernel.passes.composites import Finder, Match, Recogniser
from graph_kernel.passes.match import made_by

Half = tuple[Value, int, bool]


@dataclass(frozen=True)
class RecogniseRope(Recogniser):
    """x * cos + concat(-x2, x1) * sin, or concat(x1 * cos - x2 * sin, x2 * cos + x1 * sin), where x1 and x2 are the two halves of x along
    one axis: proved to be equally long and to cover it. cos and sin may be any tables; the name says what they are for."""

    name: ClassVar[str] = "recognise_rope"
    op: ClassVar[str] = "rope"
    anchors: ClassVar[frozenset[str]] = frozenset(("add", "concat"))

    def match(self, finder: Finder, node: Node) -> Match | None:
        found = _rotation(finder, node) if node.op == "add" else _by_halves(finder, node)
        if found is None:
            return None
        x, cos, sin, axis, form = found
        leaf, output = narrowed(finder, x, node.output)
        return Match(output, (leaf, _table(cos), _table(sin)), {"axis": axis, "form": form})


def _table(value: Value) -> Value:
    """cos or sin before it was repeated for every head."""
    node = made_by(value, "broadcast")
    return value if node is None else node.inputs[0]


def half(finder: Finder, value: Value) -> Half | None:
    """(x, axis, whether it is the second) if ``value`` is one half of x along an axis."""
    node = made_by(value, "slice")
    if node is None or any(step != 1 for step in node.attrs["strides"]):
        return None
    x, scope = node.inputs[0], finder.scope
    bounds = list(zip(node.attrs["starts"], node.attrs["limits"], x.shape, strict=True))
    cut = [i for i, (low, high, n) in enumerate(bounds) if low != 0 or not same_dim(scope, high, n)]
    if len(cut) != 1:
        return None
    low, high, n = bounds[cut[0]]
    if low == 0:
        return (x, cut[0], False) if same_dim(scope, high * 2, n) else None
    return (x, cut[0], True) if same_dim(scope, high, n) and same_dim(scope, low * 2, n) else None


def _halves(finder: Finder, first: Value, second: Value) -> tuple[Value, int] | None:
    """(x, axis) if they are its first and its second half."""
    a, b = half(finder, first), half(finder, second)
    if a is None or b is None or a[0] is not b[0] or a[1] != b[1] or a[2] or not b[2]:
        return None
    return a[0], a[1]


def _rotation(finder: Finder, node: Node) -> tuple[Value, Value, Value, int, str] | None:
    for straight, crossed in pairs(node):
        a, b = made_by(straight, "mul"), made_by(crossed, "mul")
        if a is None or b is None:
            continue
        for turned, sin in pairs(b):
            found = _turned(finder, turned)
            if found is None or found[0] not in a.inputs:
                continue
            x, axis = found
            cos = a.inputs[1] if a.inputs[0] is x else a.inputs[0]
            return x, cos, sin, axis, "rotate"
    return None


def _turned(finder: Finder, value: Value) -> tuple[Value, int] | None:
    """(x, axis) if ``value`` is concat(-x2, x1)."""
    node = made_by(value, "concat")
    if node is None or len(node.inputs) != 2:
        return None
    negative = made_by(node.inputs[0], "neg")
    found = None if negative is None else _halves(finder, node.inputs[1], negative.inputs[0])
    return found if found is not None and found[1] == node.attrs["axis"] else None


def _by_halves(finder: Finder, node: Node) -> tuple[Value, Value, Value, int, str] | None:
    if len(node.inputs) != 2:
        return None
    less, plus = made_by(node.inputs[0], "sub"), made_by(node.inputs[1], "add")
    if less is None or plus is None:
        return None
    left, right = (made_by(v, "mul") for v in less.inputs)
    if left is None or right is None:
        return None
    for x1, cos in pairs(left):
        for x2, sin in pairs(right):
            found = _halves(finder, x1, x2)
            if found is None or found[1] != node.attrs["axis"]:
                continue
            if any(_is_product(a, x2, cos) and _is_product(b, x1, sin) for a, b in pairs(plus)):
                return found[0], cos, sin, found[1], "halves"
    return None


def _is_product(value: Value, a: Value, b: Value) -> bool:
    node = made_by(value, "mul")
    return node is not None and node.inputs in ((a, b), (b, a))
