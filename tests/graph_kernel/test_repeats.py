"""Equal groups of nodes are analysed once: what makes them equal, and how much less is done for it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from benchmarks.layers import stack
from graph_kernel import passes
from graph_kernel.fusion import fuse
from graph_kernel.fusion.repeats import Structure, Structures
from graph_kernel.ir import Graph, Value
from symbolic import Scope
from tests.counting import count_calls


def scaled_sum(graph: Graph, x: Value, factor: Any, op: str = "add") -> list[Value]:
    """``x * factor (op) x`` and the values on the way."""
    number = graph.constant(factor, np.float32)
    spread = graph.add("broadcast", number, shape=x.shape, dims=tuple(range(number.rank)))
    product = graph.add("mul", x, spread)
    return [number, spread, product, graph.add(op, product, x)]


def structure(structures: Structures, values: list[Value], **how: Any) -> Structure:
    nodes = [v.producer for v in values if v.producer is not None]
    how = {"marks": {}, "outputs": values[-1:], "loaded": (), **how}
    return structures.of(nodes, **how)


def test_structures_differ_in_all_that_an_analysis_sees() -> None:
    graph = Graph(Scope())
    n = graph.scope.declare("n", 1, None)
    x, y, z = (graph.add_input((d, 4), np.float32) for d in (n, n, 7))
    structures = Structures()
    first = structure(structures, scaled_sum(graph, x, 2.0))
    assert structure(structures, scaled_sum(graph, y, 2.0)).key == first.key
    longer = scaled_sum(graph, y, 2.0)
    others = [
        structure(structures, scaled_sum(graph, y, -2.0)),
        structure(structures, scaled_sum(graph, y, 2.0, "sub")),
        structure(structures, scaled_sum(graph, z, 2.0)),
        structure(structures, longer, outputs=longer[-2:]),
        structure(structures, longer, loaded={longer[0]}),
        structure(structures, longer, marks={longer[2].producer: 1}),
        structure(structures, longer, tied=[(longer[2], longer[3])]),
        structure(structures, longer[1:]),  # the number comes from outside
        structure(structures, longer[2:]),
        structure(structures, [longer[2], graph.add("add", longer[2], x)]),  # another operand
    ]
    keys = [s.key for s in (first, *others)]
    assert len(set(keys)) == len(keys)


def test_zeros_differ_by_sign_and_arrays_in_memory_do_not_differ() -> None:
    graph = Graph(Scope())
    x = graph.add_input((2,), np.float32)
    structures = Structures()
    plus, minus = (structure(structures, scaled_sum(graph, x, zero)) for zero in (0.0, -0.0))
    assert plus.key != minus.key
    one, other = (structure(structures, scaled_sum(graph, x, np.array(row))) for row in ([1.0, 2.0], [3.0, 4.0]))
    assert one.key == other.key


def test_messages_are_kept_with_numbers_for_names() -> None:
    graph = Graph(Scope())
    x, y = (graph.add_input((2,), np.float32, name) for name in ("p", "p1['w']"))
    structures = Structures()
    of_x, of_y = (structure(structures, scaled_sum(graph, v, 2.0)) for v in (x, y))
    assert of_y.read(of_x.written("a row of %p (8 bytes) is 100% too long")) == (
        "a row of %p1['w'] (8 bytes) is 100% too long"
    )


def work(n: int, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often fusion looks at the axes and the code of a group, and how often it tries a merge, for n equal layers."""
    count: Counter[str] = Counter()

    graph = stack(n).graph
    passes.optimise(graph)
    with monkeypatch.context() as monkeypatch:
        count_calls(monkeypatch, count, fuse, "find_axes")
        count_calls(monkeypatch, count, fuse.Fuser, "_refuse", "_cycle", "closure", "groups")
        fuse.fuse(graph)
    return count


def test_layers_are_analysed_once_and_merged_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many, more = (work(n, monkeypatch) for n in (2, 4, 6))
    assert few["find_axes"] == many["find_axes"] == more["find_axes"] > 10
    for name in ("_refuse", "_cycle", "closure"):
        assert more[name] - many[name] == many[name] - few[name] > 0, name
    assert more["groups"] == few["groups"]  # looks at all groups: a number of rules, not of layers
