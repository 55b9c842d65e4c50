"""Which nodes the outputs of a graph depend on, by value or by a data-dependent size."""

from __future__ import annotations

from typing import Any

from graph_kernel.ir import Graph, Node, Value


def remove_dead(graph: Graph) -> int:
    """Removes nodes that no graph output depends on, in one backward sweep; returns how many.

    Ops have no side effects, so a node lives only through its outputs, or because it determines a data-dependent
    size that something else needs.
    """
    data = {name for name, info in graph.scope.symbols.items() if info.data_dependent}
    live: set[Value] = set(graph.outputs)
    sizes = symbols_in([v.shape for v in graph.outputs], data)
    kept = []
    for node in reversed(graph.nodes):
        if live.isdisjoint(node.outputs) and not (data and sizes & defined_symbols(node, data)):
            continue
        kept.append(node)
        live.update(node.inputs)
        if data:
            sizes |= symbols_in([*node.attrs.values(), *(v.shape for v in node.inputs)], data)
    removed = len(graph.nodes) - len(kept)
    if removed:
        graph.nodes = kept[::-1]
    return removed


def symbols_in(value: Any, data: set[str]) -> set[str]:
    """The symbols of ``data`` that dimensions in an attribute use, in sub-graphs too."""
    if isinstance(value, Graph):
        return symbols_in([[n.attrs, [v.shape for v in n.outputs]] for n in value.nodes], data) if data else set()
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, tuple | list):
        return set().union(*(symbols_in(v, data) for v in value))
    return data.intersection(getattr(value, "symbols", ()))


def defined_symbols(node: Node, data: set[str]) -> set[str]:
    """The data-dependent symbols that a node gives a value: those of its results that its operands do not have."""
    return symbols_in([v.shape for v in node.outputs], data) - symbols_in([v.shape for v in node.inputs], data)
