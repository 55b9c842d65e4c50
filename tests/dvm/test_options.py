"""``dvm.Options``: levels, passes left out, dumps; the same from the shell; and ``prog.report()``."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner

import dvm
from dvm import pipeline
from dvm.cli import main
from dvm.graph_files import read_graph, write_graph
from dvm.options import LEVELS
from graph_kernel.evaluate import evaluate
from graph_kernel.passes import GROUPS, PASSES
from graph_kernel.text import to_text

MODEL = Path(__file__).parents[2] / "examples" / "softmax.onnx"
TABLE = np.random.default_rng(0).standard_normal((24, 8)).astype(np.float32)


def layer(x: jax.Array, w: jax.Array) -> jax.Array:
    """A norm, a product with a constant of more elements than the text spells out, and an activation; two products side by side."""
    y = x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)
    return jax.nn.silu(y @ TABLE) + jnp.transpose(jnp.transpose(y @ w))


SPECS = (dvm.spec("s, 24", jnp.float32, s=dvm.Dim(max=64)), jax.ShapeDtypeStruct((24, 8), jnp.float32))


def compiled(options: object = None, tier: str = "reference") -> dvm.CompiledProgram:
    return pipeline.from_function(layer, SPECS, {}).compile(tier, options, start=False)  # type: ignore[arg-type]


def arrays() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.standard_normal((5, 24)).astype(np.float32), rng.standard_normal((24, 8)).astype(np.float32)


def test_every_level_gives_the_same_result_and_less_work() -> None:
    want = jax.jit(layer)(*arrays())
    kernels, passes = [], []
    for level in LEVELS:
        program = compiled(dvm.Options(level))
        np.testing.assert_allclose(program(*arrays()), want, rtol=2e-6, atol=2e-6)
        kernels.append(len(program.kernels))
        assert program._made is not None
        passes.append({report.name for report in program._made.passes})
    assert kernels[0] > 2 * kernels[1] and kernels[1:] == sorted(kernels[1:], reverse=True)
    assert passes[0] == set() and passes[1] < passes[2] < passes[3] == set(PASSES)
    assert passes[1] == {"dce", "cse", "constant_folding", "inline_control"}


def test_level_zero_is_one_kernel_a_node() -> None:
    traced = pipeline.from_function(layer, SPECS, {})
    work = [n for n in traced.graph.nodes if n.op not in ("constant", "broadcast", "reshape", "transpose")]
    program = traced.compile(options=dvm.Options(level=0), start=False)
    assert max(len(kernel.ops) for kernel in program.kernels) == 1
    assert len(program.kernels) >= len(work)


@pytest.mark.parametrize("name", ["fusion", "stacking", "simplify", "axis_splitting"])
def test_what_is_disabled_does_not_happen(name: str) -> None:
    usual, without = compiled(), compiled(dvm.Options(disable=(name,)))
    np.testing.assert_allclose(without(*arrays()), usual(*arrays()), rtol=2e-6, atol=2e-6)
    if name == "fusion":
        assert len(without.kernels) > len(usual.kernels)
    elif name == "stacking":
        assert not without.program.stages or max(without.program.stages) == 1
    else:
        assert without._made is not None and name not in {r.name for r in without._made.passes}


def test_wrong_options_are_said() -> None:
    with pytest.raises(dvm.CompileError, match="no level 4; levels are 0, 1, 2, 3"):
        dvm.Options(level=4)
    with pytest.raises(dvm.CompileError, match="no pass 'cleverness'; passes are dce, cse"):
        dvm.Options(disable=("cleverness",))
    with pytest.raises(dvm.CompileError, match="unknown option 'speed'"):
        compiled({"speed": 11})
    assert len(compiled({"fusion": False}).kernels) == len(compiled(dvm.Options(disable=("fusion",))).kernels)


def test_every_pass_has_a_group_and_a_level() -> None:
    page = (Path(__file__).parents[2] / "docs" / "passes.md").read_text()
    for name, cls in PASSES.items():
        assert cls.group in GROUPS and cls.level in LEVELS
        assert f"| {cls.group} | `{name}` | {cls.level} |" in page
    assert all(f"| {level} | {text} |" in page for level, text in LEVELS.items())


def test_dumps_parse_back_and_mean_the_same(tmp_path: Path) -> None:
    program = compiled(dvm.Options(dump=tmp_path / "dump"))
    texts = sorted((tmp_path / "dump").glob("*.txt"))
    assert texts[0].name == "000-input.txt" and texts[-1].name.endswith("-instructions.txt")
    assert [int(path.name[:3]) for path in texts] == list(range(len(texts)))
    assert program._made is not None
    changed = [r.name for r in program._made.passes if r.modified]
    assert [path.stem[4:] for path in texts[1:-1]] == changed and changed
    want = evaluate(read_graph(texts[0]), list(arrays()), {"s": 5})
    for path in texts[1:-1]:
        graph = read_graph(path)
        assert to_text(graph) == path.read_text()
        for got, expected in zip(evaluate(graph, list(arrays()), {"s": 5}), want, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_a_table_that_is_no_table_is_said(tmp_path: Path) -> None:
    write_graph(tmp_path / "g.txt", pipeline.from_function(layer, SPECS, {}).graph)
    (tmp_path / "g.npz").write_bytes(b"nonsense")
    with pytest.raises(dvm.CompileError, match="not a table of arrays"):
        read_graph(tmp_path / "g.txt")


def test_jit_takes_options() -> None:
    f = dvm.jit(layer, SPECS, tier="reference", options=dvm.Options(disable=("fusion",)))
    np.testing.assert_allclose(f(*arrays()), layer(*arrays()), rtol=2e-6, atol=2e-6)
    assert len(f.programs[0].kernels) > len(compiled().kernels)


# ---- report


def test_the_report(tmp_path: Path) -> None:
    program = compiled()
    report = program.report(s=5)
    data = json.loads(report.json())
    x, w = arrays()
    assert data["bytes_least"] == x.nbytes + w.nbytes + TABLE.nbytes + 5 * 8 * 4
    assert data["bytes_least"] <= data["bytes_moved"] < data["unfused"]["bytes_moved"]
    assert data["kernels"] < data["unfused"]["kernels"] and data["memory"]["buffers"] < data["unfused"]["buffers"]
    assert data["fusion_gain"] == data["unfused"]["emulated_us"] / data["emulated_us"]
    assert data["compilation_efficiency"] == data["fusion_gain"] / (1e3 * data["compile_seconds"])
    assert {p["name"] for p in data["passes"]} == set(PASSES) and all(p["seconds"] >= 0 for p in data["passes"])
    assert data["passes"][0]["before"] > data["passes"][-1]["after"]
    assert data["host_ops"] == 0 and data["crossings"] == {"before": 0, "after": 0}
    assert "fusion gain" in str(report)
    path = tmp_path / "layer.dvm"
    program.save(path)
    loaded = dvm.load(path).report(s=5).to_dict()
    assert loaded["unfused"] is None and loaded["bytes_moved"] == data["bytes_moved"]


# ---- the shell


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    assert result.exit_code == code, f"{result.stdout}\n{result.stderr}\n{result.exception!r}"
    return result.stdout


def test_opt_prints_graphs_that_parse_back(tmp_path: Path) -> None:
    text = run("opt", MODEL, "-p", "simplify,cse,dce", "-o", tmp_path / "out")
    before, after = (tmp_path / "out" / f"{name}.txt" for name in ("before", "after"))
    assert before.read_text() in text and after.read_text() in text
    assert to_text(read_graph(before)) == before.read_text()
    data = json.loads(run("opt", before, "--json", "--level", 3))
    assert data["before"] == before.read_text() and data["nodes"][1] <= data["nodes"][0]
    run("opt", before, "-p", "cleverness", code=1)
    run("opt", before, "-p", "cse", "--level", 2, code=2)


def test_a_text_graph_is_a_model(tmp_path: Path) -> None:
    run("opt", MODEL, "--level", 0, "-o", tmp_path)
    a = json.loads(run("inspect", tmp_path / "before.txt", "--json"))
    b = json.loads(run("inspect", MODEL, "--json"))
    assert a["kernels"] == b["kernels"] and a["inputs"] == b["inputs"]


def test_memory_and_report_verbs() -> None:
    sizes = ("--dim", "batch=2", "--dim", "seq=128")
    memory = json.loads(run("memory", MODEL, *sizes, "--json"))
    assert memory["peak"] == 2 * 2 * 128 * 4 and memory["temp"] == 0
    unfused = json.loads(run("memory", MODEL, *sizes, "--level", 0, "--json"))
    assert 0 < unfused["temp"] < unfused["unshared"]
    report = json.loads(run("report", MODEL, *sizes, "--json"))
    assert report["kernels"] == 1 and report["unfused"]["kernels"] > 4
    run("memory", MODEL, "--dim", "batch=2", code=1)


def test_compare_finds_no_difference_and_says_one(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("compare", MODEL, "--at", "batch=2,seq=16", "--at", "batch=0,seq=3", "--disable", "stacking")
    data = json.loads(run(*arguments, "--json"))
    assert data["failed"] == [] and [row["error"] < 1e-5 for row in data["rows"]] == [True, True]
    from dvm.cli import compare_command

    monkeypatch.setattr(compare_command, "peer_of", lambda path, program: ("nonsense", lambda feeds: [feeds["x"]]))
    run(*arguments, code=1)


def test_bench_times_every_shape() -> None:
    data = json.loads(
        run("bench", MODEL, "--shapes", "batch=2,seq=16", "--shapes", "batch=1,seq=9", "--repeat", 2, "--json")
    )
    assert [row["shapes"] for row in data["rows"]] == ["batch=2,seq=16", "batch=1,seq=9"]
    assert all(row["first"] > 0 and row["warm"] > 0 for row in data["rows"])
