"""x / sqrt(mean(x^2) + eps), scaled, becomes one ``rms_norm``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graph_kernel.ir import Node
from graph_kernel.passes.composites import Finder, Match, Recogniser
from graph_kernel.passes.recognise_norms import ANCHORS, deviation, mean_square, scaled_by_root, tail


@dataclass(frozen=True)
class RecogniseRmsNorm(Recogniser):
    """The sum of squares has to be divided by the size of its axes, eps has to be a constant, and what is scaled has to be what was
    squared. Runs after ``recognise_layer_norm``: a value less its own mean is that one's."""

    name: ClassVar[str] = "recognise_rms_norm"
    op: ClassVar[str] = "rms_norm"
    anchors: ClassVar[frozenset[str]] = ANCHORS

    def match(self, finder: Finder, node: Node) -> Match | None:
        found = deviation(finder, node)
        squared = None if found is None else mean_square(finder, found.variance)
        if found is None or squared is None:
            return None
        x, axes = squared
        scaled = scaled_by_root(finder, found.root, x, axes)
        if scaled is None:
            return None
        y, inner_scale = scaled
        leaf, output, extra = tail(finder, x, y, axes, [] if inner_scale else ["mul"])
        instead = {} if found.guarded is None else {found.guarded: found.variance}
        return Match(output, (leaf, *inner_scale, *extra.values()), {"axes": axes, "eps": found.eps}, instead)
