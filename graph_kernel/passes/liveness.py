"""Which nodes the outputs of a graph depend on, by value or by a data-dependent size."""

from __future__ import annotations

from typing import Any

from graph_kernel.ir import Graph, Node, Value
from symbolic import Expr
from vm.errors import UnsupportedOp


def remove_dead(graph: Graph) -> int:
    """Removes nodes that no graph output depends on, in one backward sweep; returns how many.

    Ops have no side effects, so a node lives only through its outputs, or because it determines a data-dependent
    size that something else needs.
    """
    data = data_symbols(graph)
    live: set[Value] = set(graph.outputs)
    sizes = symbols_in([v.shape for v in graph.outputs], data)
    if data:  # what is checked at launch has to become known
        sizes |= data & {name for c in graph.scope.checks for name in c.rel.symbols}
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
    """The data-dependent symbols that a node gives a value: those of its results that neither its operands nor its attributes have,
    and those that nodes of its sub-graphs define."""
    plain = [v for v in node.attrs.values() if not _graphs(v)]
    known = symbols_in([*plain, *(v.shape for v in node.inputs)], data)
    inner = [defined_symbols(n, data) for a in node.attrs.values() for g in _graphs(a) for n in g.nodes]
    if inner:
        return set().union(*inner) - known
    return symbols_in([v.shape for v in node.outputs], data) - known


def used_symbols(node: Node, data: set[str]) -> set[str]:
    """The data-dependent symbols that have to be known before a node can run."""
    shapes = [v.shape for v in (*node.inputs, *node.outputs)]
    return symbols_in([*node.attrs.values(), *shapes], data) - defined_symbols(node, data)


def _graphs(attr: Any) -> list[Graph]:
    return [item for item in (attr if isinstance(attr, tuple | list) else (attr,)) if isinstance(item, Graph)]


def data_symbols(graph: Graph) -> set[str]:
    """All symbols of the graph's scope that depend on data."""
    return {name for name, info in graph.scope.symbols.items() if info.data_dependent}


def defined_in_order(graph: Graph) -> dict[str, tuple[Value, int]]:
    """For each data-dependent symbol that a node of ``graph`` defines, in node order, the value and the axis that have its size.

    Raises ``UnsupportedOp`` for one that is defined in a branch or a loop body.
    """
    data = data_symbols(graph)
    found: dict[str, tuple[Value, int]] = {}
    for node in graph.nodes if data else ():
        new = defined_symbols(node, data)
        if new and any(_graphs(a) for a in node.attrs.values()):
            raise UnsupportedOp(
                f"{node.origin or node.op}: a size that depends on data ({', '.join(sorted(new))}) inside a branch or a loop body is "
                "not supported; move the operation that makes it out of the body"
            )
        for value in node.outputs:
            for axis, dim in enumerate(value.shape):
                name = dim.as_symbol if isinstance(dim, Expr) else None
                if name in new:
                    found.setdefault(name, (value, axis))
    return found


def after_sizes(graph: Graph) -> None:
    """Reorders nodes, as little as possible, so that each comes after those that define the data-dependent sizes that it uses."""
    data = data_symbols(graph)
    if not data:
        return
    makers = {name: value.producer for name, (value, _) in defined_in_order(graph).items()}
    done: dict[Node, None] = {}
    for root in graph.nodes:
        stack = [(root, False)]
        while stack:
            node, ready = stack.pop()
            if ready:
                done[node] = None
            elif node not in done:
                stack.append((node, True))
                before = [v.producer for v in node.inputs] + [makers.get(n) for n in sorted(used_symbols(node, data))]
                stack += [(p, False) for p in before if p is not None and p not in done]
    graph.nodes[:] = done
