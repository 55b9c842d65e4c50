"""What the passes do to whole models: how many nodes stay, that no pure data movement is left, and that results are the same."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from jax.export import SymbolicScope, symbolic_shape

from dvm import models
from dvm.model_config import load_config, scaled
from graph_kernel.evaluate import evaluate
from graph_kernel.from_jaxpr import trace
from graph_kernel.from_onnx import load
from graph_kernel.ir import Graph
from graph_kernel.passes import count_nodes, optimise
from tests.passes.random_graphs import assert_same

DATA = Path(__file__).parents[1] / "data" / "models"
IMPLICIT = (
    "constant",
    "broadcast",
)  # what an ONNX file does not count: initializers, and broadcasting inside its operators

# nodes of the file, most nodes left without the implicit ones, most with broadcasts; views that stay
LIMITS = {
    "bert": (128, 115, 143, {"slice": 2, "reshape": 1}),
    "llama": (212, 131, 161, {"slice": 9, "transpose": 4, "concat": 9}),
    "mmoe": (39, 57, 78, {"concat": 1, "reshape": 4}),
    "qwen2": (193, 120, 148, {"slice": 8, "concat": 5}),
}
VIEWS = ("reshape", "transpose", "slice", "concat", "pad", "rev", "take_along")


def file_nodes_left(graph: Graph) -> int:
    """Nodes of the file that still have a node: a decomposed LayerNormalization counts once, as it does in the file."""
    return len({str(n.origin) or str(i) for i, n in enumerate(graph.nodes) if n.op not in IMPLICIT})


@pytest.mark.parametrize("name", LIMITS)
def test_onnx_models(name: str) -> None:
    in_file, most, most_with_broadcasts, views = LIMITS[name]
    path = DATA / f"{name}.onnx"
    assert len(onnx.load(path).graph.node) == in_file
    graph = load(path)
    cases = np.load(DATA / f"{name}.cases.npz")
    runs = []
    for case in sorted({key.split("/")[0] for key in cases.files}):
        arrays = [cases[f"{case}/in/{v.name}"] for v in graph.inputs]
        dims: dict[str, int] = {}
        for value, array in zip(graph.inputs, arrays, strict=True):
            dims.update((str(d), n) for d, n in zip(value.shape, array.shape, strict=True) if not isinstance(d, int))
        runs.append((arrays, dims, evaluate(graph, arrays, dims)))
    optimise(graph, verify=True)
    for arrays, dims, want in runs:
        assert_same(evaluate(graph, arrays, dims), want, tol=2e-5)
    assert count_nodes(graph, IMPLICIT) <= most and count_nodes(graph, ("constant",)) <= most_with_broadcasts
    if name in (
        "qwen2",
        "llama",
    ):  # broadcasts and all, composites expanded again: a fifth less than the file all the same
        assert count_nodes(graph, ("constant",)) <= 0.78 * in_file
    found = Counter(n.op for n in graph.nodes if n.op in VIEWS)
    assert all(found[op] <= views.get(op, 0) for op in VIEWS), found
    if name != "mmoe":  # 39 nodes of which 14 are Gemms with a bias: there is nothing to remove
        assert file_nodes_left(graph) <= 0.78 * in_file


def block_graph(config: models.Config, dtype: object) -> Graph:
    """The block of a configuration, parameters as inputs."""
    scope = SymbolicScope()

    def spec(text: str, of: object) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(symbolic_shape(text, scope=scope), of)

    if isinstance(config, models.MMoEConfig):
        args = [spec(f"b, {config.num_features}", dtype)]
    elif isinstance(config, models.BertConfig):
        args = [spec(f"b, s, {config.hidden_size}", dtype), spec("b, s", jnp.int32)]
    else:
        cache = f"b, {config.num_key_value_heads}, p, {config.head_dim}"
        args = [spec(f"b, s, {config.hidden_size}", dtype), spec(cache, dtype), spec(cache, dtype)]
    return trace(models.block(config), [models.param_specs(config, dtype=dtype), *args]).graph


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["bert-base", "llama-3.1-8b", "mmoe", "qwen2.5-0.5b", "qwen3-0.6b"])
def test_jax_blocks(name: str, dtype: object) -> None:
    config = scaled(load_config(name))
    graph = block_graph(config, dtype)
    rng = np.random.default_rng(0)
    runs = []
    for b, s, p in ((1, 1, 0), (2, 3, 2)):
        dims = {k: n for k, n in (("b", b), ("s", s), ("p", p)) if k in graph.scope.symbols}
        shapes = [[d if isinstance(d, int) else d.evaluate(dims) for d in v.shape] for v in graph.inputs]
        arrays = [(rng.standard_normal(n) * 0.1).astype(v.dtype) for v, n in zip(graph.inputs, shapes, strict=True)]
        runs.append((arrays, dims, evaluate(graph, arrays, dims)))
    before = count_nodes(graph, ("constant",))
    optimise(graph, verify=True)
    for arrays, dims, want in runs:
        assert_same(evaluate(graph, arrays, dims), want, tol=1e-5 if dtype is jnp.float32 else 2e-2)
    assert count_nodes(graph, ("constant",)) < 0.85 * before
    # reshapes of parameters are renamings; a transpose is left for each cache that is an output in the other layout
    assert all(n.inputs[0].producer is None for n in graph.nodes if n.op == "reshape")
    assert sum(n.op == "transpose" for n in graph.nodes) <= 2
