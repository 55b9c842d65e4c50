"""Dead-code elimination: nodes that no graph output depends on go."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from graph_kernel.ir import Graph
from graph_kernel.passes.base import Pass
from graph_kernel.passes.liveness import remove_dead


@dataclass(frozen=True)
class DeadCode(Pass):
    """Removes dead nodes. Passes made of rules do it to what they leave behind; this pass does it to front ends' graphs."""

    name: ClassVar[str] = "dce"
    group: ClassVar[str] = "cluster"
    level: ClassVar[int] = 1

    def rewrite(self, graph: Graph, notes: Counter[str]) -> bool:
        removed = remove_dead(graph)
        if removed:
            notes["removed"] += removed
        return bool(removed)
