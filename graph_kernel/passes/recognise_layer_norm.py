"""(x - mean) / sqrt(variance + eps), scaled and shifted, becomes one ``layer_norm``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graph_kernel.ir import Node, Value
from graph_kernel.passes.composite_parts import Axes, mean, number, pairs, spread
from graph_kernel.passes.composites import Finder, Match, Recogniser
from graph_kernel.passes.match import made_by
from graph_kernel.passes.recognise_norms import ANCHORS, deviation, mean_square, scaled_by_root, tail


@dataclass(frozen=True)
class RecogniseLayerNorm(Recogniser):
    """Mean and variance have to be over the same axes, each sum divided by the size of these axes (a constant or the dim itself), and
    what is scaled has to be x less that mean. The variance may be the mean of squares less the squared mean; eps is a constant."""

    name: ClassVar[str] = "recognise_layer_norm"
    op: ClassVar[str] = "layer_norm"
    anchors: ClassVar[frozenset[str]] = ANCHORS

    def match(self, finder: Finder, node: Node) -> Match | None:
        found = deviation(finder, node)
        centre = None if found is None else _centred(finder, found.variance) or _moments(finder, found.variance)
        if found is None or centre is None:
            return None
        x, d, axes, variance = centre
        scaled = scaled_by_root(finder, found.root, d, axes)
        if scaled is None:
            return None
        y, inner_scale = scaled
        leaf, output, extra = tail(finder, x, y, axes, ["add"] if inner_scale else ["mul", "add"])
        affine = ["scale"] * (bool(inner_scale) or "mul" in extra) + ["bias"] * ("add" in extra)
        attrs = {"axes": axes, "eps": found.eps, "variance": variance, "affine": "+".join(affine) or "none"}
        instead = {} if found.guarded is None else {found.guarded: found.variance}
        return Match(output, (leaf, *inner_scale, *extra.values()), attrs, instead)


def _less_mean(finder: Finder, d: Value, axes: Axes) -> Value | None:
    """x if d is x less its mean over axes."""
    node = made_by(d, "sub")
    if node is None:
        return None
    x, shift = node.inputs
    row = spread(finder.scope, shift, x)
    return x if row is not None and row[1] == axes and mean(finder.scope, row[0]) == (x, axes) else None


def _centred(finder: Finder, variance: Value) -> tuple[Value, Value, Axes, str] | None:
    found = mean_square(finder, variance)
    x = None if found is None else _less_mean(finder, *found)
    return None if found is None or x is None else (x, *found, "centred")


def _moments(finder: Finder, variance: Value) -> tuple[Value, Value, Axes, str] | None:
    """The mean of squares less the squared mean, not below 0."""
    positive = made_by(variance, "max")
    if positive is not None:
        variance = next((a for a, b in pairs(positive) if number(b) == 0), variance)
    node = made_by(variance, "sub")
    found = None if node is None else mean_square(finder, node.inputs[0])
    square = None if node is None else node.inputs[1].producer
    if found is None or square is None or square.op != "square":
        return None
    x, axes = found
    if mean(finder.scope, square.inputs[0]) != (x, axes):
        return None
    for user in finder.readers(x):
        if user.op == "sub" and _less_mean(finder, user.output, axes) is x:
            return x, user.output, axes, "moments"
    return None
