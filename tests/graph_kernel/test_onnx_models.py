"""Models as exporters write them: one load each, every case, the launch checks a person would write."""

import numpy as np
import pytest

from graph_kernel.from_onnx import load
from tests.graph_kernel.onnx_harness import MODELS, close, ops_of, ort, run
from vm.errors import ShapeError

CHECKS = {
    "bert": ["seq <= 256", "1 <= seq"],
    "llama": ["past + seq <= total"],
    "mmoe": [],
    "qwen2": [],
    "standard_v3_3": [],
}
OUTPUTS = {
    "bert": "[batch, seq, 64] [batch, 64]",
    "llama": "[batch, seq, 256]" + " [batch, 2, past + seq, 16]" * 4,
    "mmoe": "[batch, 1] [batch, 1]",
    "qwen2": "[batch, seq, 256]",
    "standard_v3_3": "[unk__214, 214]",
}


@pytest.fixture(scope="module", params=sorted(CHECKS))
def loaded(request):
    return request.param, load(MODELS / f"{request.param}.onnx")


def test_cases(loaded):
    name, graph = loaded
    cases = np.load(MODELS / f"{name}.cases.npz")
    for case in sorted({key.split("/")[0] for key in cases.files}):
        got = run(graph, {v.name: cases[f"{case}/in/{v.name}"] for v in graph.inputs})
        for value, array in zip(graph.outputs, got, strict=True):
            exact = f"{case}/ort/{value.name}"
            expected = cases[exact if exact in cases.files else f"{case}/out/{value.name}"]
            # the real model takes a variance as a difference of sums over a middle axis, which NumPy adds one by one
            close(array, expected, rtol=1e-2 if name == "standard_v3_3" else 1e-4, atol=1e-4)


def test_launch_checks_and_shapes(loaded):
    name, graph = loaded
    assert [str(c.rel) for c in graph.scope.checks] == CHECKS[name]
    shapes = ("[" + ", ".join(map(str, v.shape)) + "]" for v in graph.outputs)
    assert " ".join(shapes) == OUTPUTS[name]


def test_no_node_computes_shapes(loaded):
    """What is left of integers is data: token ids, positions and the sizes that masks compare with."""
    name, graph = loaded
    users = graph.users()
    for node in graph.nodes:
        assert node.op not in ("gather", "scatter")
        small = all(v.dtype.kind in "iu" and all(isinstance(d, int) for d in v.shape) for v in node.outputs)
        if small:
            # a constant or dim that is spread over data at once, never one that is computed with
            assert node.op in ("constant", "dim")
            assert {n.op for v in node.outputs for n in users.get(v, [])} <= {"broadcast"}
    assert not {"cond", "while", "scan", "conv"} & set(ops_of(graph))


def test_every_launch_check_is_needed():
    graph = load(MODELS / "llama.onnx")
    cases = np.load(MODELS / "llama.cases.npz")
    feeds = {v.name: cases[f"case1/in/{v.name}"] for v in graph.inputs}
    feeds["attention_mask"] = feeds["attention_mask"][:, :-1]
    with pytest.raises(ShapeError, match="past \\+ seq <= total"):
        run(graph, feeds)


def test_bert_refuses_what_its_position_table_cannot_hold():
    graph = load(MODELS / "bert.onnx")
    ids = np.zeros((1, 257), np.int64)
    with pytest.raises(ShapeError, match="seq <= 256"):
        run(graph, {v.name: ids for v in graph.inputs})


@pytest.mark.parametrize(("name", "check"), [("gpt2", "Gather"), ("deberta", "Add")])
def test_the_older_exporter(name, check):
    """Other shape computations for the same kind of models: a flattened mask index, buckets of relative positions."""
    path = MODELS / f"{name}.onnx"
    graph, peer = load(path), ort(str(path))
    assert [str(c.rel) for c in graph.scope.checks] == ["seq <= 64"]
    assert check in graph.scope.checks[0].origin
    assert ops_of(graph).count("take") == 1  # the embedding; the mask is a slice
    rng = np.random.default_rng(0)
    for batch, seq in ((2, 7), (1, 1), (3, 64), (1, 13)):
        mask = np.ones((batch, seq), np.int64)
        mask[1:, seq // 2 :] = 0
        feeds = {"ids": rng.integers(0, 64, (batch, seq)), "mask": mask}
        close(run(graph, feeds)[0], peer(feeds)[0])
