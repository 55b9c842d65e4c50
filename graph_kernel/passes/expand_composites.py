"""Composite expansion: every composite is replaced by its body before fusion, which sees ordinary ops only."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from graph_kernel.ir import Graph, Value
from graph_kernel.passes.base import Pass
from graph_kernel.passes.composites import COMPOSITES, claim_name, expanded


@dataclass(frozen=True)
class ExpandComposites(Pass):
    """Puts the bodies of composites in their place. What two bodies have in common is merged again by ``cse``."""

    name: ClassVar[str] = "expand_composites"
    group: ClassVar[str] = "expand"

    def rewrite(self, graph: Graph, notes: Counter[str]) -> bool:
        if not any(node.op in COMPOSITES for node in graph.nodes):
            return False
        old, graph.nodes = graph.nodes, []
        names = {v.name for v in graph.inputs}
        names.update(v.name for node in old if node.op not in COMPOSITES for v in node.outputs)
        new: dict[Value, Value] = {}
        for node in old:
            node.inputs = tuple(new.get(v, v) for v in node.inputs)
            if node.op not in COMPOSITES:
                graph.nodes.append(node)
                continue
            notes[node.op] += 1
            start = len(graph.nodes)
            result = expanded(node, node.inputs, graph)
            new[node.output] = result
            if result.producer is not None and graph.nodes[start:] and result in graph.nodes[-1].outputs:
                result.name = node.output.name
            for inner in graph.nodes[start:]:
                for value in inner.outputs:
                    claim_name(value, names, graph)
        graph.outputs = [new.get(v, v) for v in graph.outputs]
        return True
