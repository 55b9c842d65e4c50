"""Random layered graphs before and after outlining: what layers read from themselves, from the layer before and from elsewhere."""

from __future__ import annotations

import numpy as np

from graph_kernel.evaluate import evaluate
from graph_kernel.ir import Graph, Value
from graph_kernel.passes.base import run_passes
from graph_kernel.passes.outline_repeats import OutlineRepeats
from graph_kernel.text import parse, to_text
from symbolic import Scope

LAYERS = 5
PASS = OutlineRepeats(nodes=0, repeats=3)


def layered(seed: int) -> Graph:
    """A graph of equal layers, of which sometimes one is another. All values are float32[n, 3] but for a mask."""
    rng = np.random.default_rng(seed)
    scope = Scope("layered")
    n = scope.declare("n", 0)
    graph = Graph(scope)
    shape = (n, 3)
    x = graph.add_input(shape, np.float32, "x")
    number = graph.add("broadcast", graph.constant(0.5, np.float32), shape=shape, dims=())
    rows, columns = (graph.add("iota", shape=shape, axis=a, dtype=np.dtype(np.int32)) for a in (0, 1))
    mask = graph.add("le", columns, rows)
    common = [graph.add("tanh", x), number, x, graph.add("reshape", graph.add("neg", x), shape=shape)]
    weights = [[graph.add_input(shape, np.float32, f"w{k}_{i}") for i in range(2)] for k in range(LAYERS)]
    wide = int(rng.integers(1, 3))  # values that pass from layer to layer
    recipe = [
        (str(rng.choice(["add", "sub", "max", "min", "select"])), rng.integers(0, 6, 2), rng.integers(0, 64, 2))
        for _ in range(int(rng.integers(2, 7)))
    ]
    odd = int(rng.integers(LAYERS)) if rng.random() < 0.3 else -1
    stream, results, older = [x] * wide, [], [x] * wide

    def pick(kind: int, which: int, local: list[Value], layer: int) -> Value:
        pools = [local or stream, local or stream, stream, common, weights[layer], older if which > 55 else stream]
        return pools[kind][which % len(pools[kind])]

    for layer in range(LAYERS):
        local: list[Value] = []
        for step, (op, kinds, which) in enumerate(recipe):
            a, b = (pick(int(k), int(w), local, layer) for k, w in zip(kinds, which, strict=True))
            if layer == odd and step == len(recipe) // 2:
                a, b = b, a
            local.append(graph.add("select", mask, a, b) if op == "select" else graph.add(op, a, b))
        older, stream = stream, local[-wide:] if len(local) >= wide else local * wide
        if rng.random() < 0.2:
            results.append(local[0])
    graph.outputs = list(dict.fromkeys([*stream, *results]))
    return graph


def test_outlined_graphs_compute_the_same() -> None:
    calls = 0
    for seed in range(60):
        graph = layered(seed)
        for dims in ({"n": 0}, {"n": 1}, {"n": 5}):
            rng = np.random.default_rng(seed)
            inputs = [rng.integers(-4, 5, (dims["n"], 3)).astype(np.float32) for _ in graph.inputs]
            want = evaluate(layered(seed), inputs, dims)
            run_passes(graph, [PASS], verify=True)
            for got, expected in zip(evaluate(graph, inputs, dims), want, strict=True):
                np.testing.assert_array_equal(got, expected)
        blobs: dict[str, np.ndarray] = {}
        assert to_text(parse(to_text(graph, blobs), blobs), {}) == to_text(graph, {})
        calls += any(node.op == "call" for node in graph.nodes)
    assert 15 < calls < 60  # both kinds
