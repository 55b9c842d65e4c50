"""``prog.profile``: rows, table, data, the Chrome trace, and the verb."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import dvm
from dvm.cli import main
from tests.vm.emulated import compiled, layer_norm, program
from vm.errors import InputError, ShapeError
from vm.isa import Pipe

ROOT = Path(__file__).parents[2]
PIPES = [p.name for p in Pipe]


def test_sizes_or_arrays() -> None:
    prog = program("layer_norm")
    by_size = prog.profile(b=37)
    assert by_size.dims == {"b": 37}
    assert prog.profile({"b": 37}).json() == prog.profile(np.zeros((37, 1024), np.float32)).json() == by_size.json()
    with pytest.raises(InputError, match="missing dimension b"):
        prog.profile()
    with pytest.raises(ShapeError):
        prog.profile(b=0)
    with pytest.raises(InputError):
        prog.profile(np.zeros((37, 1024), np.int32))


def test_rows_and_totals() -> None:
    prog = program("layer_norm", fused=False)
    profile = prog.profile(b=100)
    assert [k.name for k in profile.kernels] == [k.name for k in prog.kernels]
    assert profile.total_us == pytest.approx(sum(k.us for k in profile.kernels))
    data = json.loads(profile.json())
    assert data["time"] == "emulated" and data["launches"] == 1
    assert sum(data["stages"]) == len(data["kernels"]) == len(profile.kernels)
    row = data["kernels"][0]
    assert set(row["utilisation"]) == {*PIPES, "HBM", "L2"} and row["bound"] in row["utilisation"]


def test_the_table_says_that_it_is_emulated() -> None:
    text = str(program("layer_norm").profile(b=100))
    lines = text.splitlines()
    assert "emulated time on 910B1, b = 100" in lines[0]
    assert lines[-1].startswith("emulated total ")
    header = next(line for line in lines if line.lstrip().startswith("kernel "))
    assert all(f"{name} %" in header for name in PIPES)
    assert program("layer_norm").kernels[0].name in text


def trace(prog: dvm.CompiledProgram, path: Path, **dims: int) -> dict[str, Any]:
    prog.profile(dims).save_trace(path)
    return json.loads(path.read_text())


@pytest.mark.parametrize(("name", "dims"), [("layer_norm", {"b": 3001}), ("matmul", {"m": 300}), ("add", {"n": 0})])
def test_trace_has_a_track_for_every_pipe(name: str, dims: dict[str, int], tmp_path: Path) -> None:
    prog = program(name)
    data, profile = trace(prog, tmp_path / "t.json", **dims), prog.profile(dims)
    events = data["traceEvents"]
    tracks = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {name for _, name in tracks.items()} == {*PIPES, "kernels"}
    assert data["otherData"]["time"] == "emulated"
    slices = [e for e in events if e["ph"] == "X"]
    by_track: dict[Any, list[Any]] = defaultdict(list)
    for e in slices:
        assert (e["pid"], e["tid"]) in tracks and e["cat"] == "emulated"
        assert e["ts"] >= 0 and e["dur"] >= 0
        by_track[e["tid"]].append(e)
    for same in by_track.values():  # what a pipe does never overlaps
        same.sort(key=lambda e: e["ts"])
        for a, b in zip(same, same[1:], strict=False):
            assert a["ts"] + a["dur"] <= b["ts"] + 1e-6
    kernels = [e for e in slices if tracks[e["pid"], e["tid"]] == "kernels"]
    assert [e["name"] for e in kernels] == [k.name for k in profile.kernels]
    assert sum(e["dur"] for e in kernels) == pytest.approx(profile.total_us)
    assert max(e["ts"] + e["dur"] for e in slices) <= profile.total_us + 1e-6
    for e in kernels:  # the busy time of a track is the pipe's utilisation
        kernel = next(k for k in profile.kernels if k.name == e["name"])
        for pipe in Pipe:
            busy = sum(s["dur"] for s in by_track[int(pipe)] if not s["args"].get("steps"))
            assert busy <= kernel.utilisation[pipe.name] * kernel.us + 1e-6


def test_trace_of_a_stage_shows_its_kernels_side_by_side(tmp_path: Path) -> None:
    from tests.vm.test_stacking import expert_program

    events = trace(expert_program(), tmp_path / "t.json", b=64)["traceEvents"]
    kernels = [e for e in events if e["ph"] == "X" and e["tid"] == len(Pipe)]
    assert len({e["pid"] for e in kernels if e["ts"] == 0}) == 4


def test_the_verb(tmp_path: Path) -> None:
    def run(*arguments: object, code: int = 0) -> str:
        result = CliRunner().invoke(main, ["profile", *map(str, arguments)])
        assert result.exit_code == code, result.output
        return result.stdout

    model, path = ROOT / "examples" / "softmax.onnx", tmp_path / "trace.json"
    sizes = ("--dim", "batch=2", "--dim", "seq=128")
    assert "emulated total" in run(model, *sizes, "--trace", path)
    assert json.loads(path.read_text())["traceEvents"]
    data = json.loads(run(model, *sizes, "--json"))
    assert data["dims"] == {"batch": 2, "seq": 128} and data["total_us"] > 0
    ranged = run(model, "--dim", "batch=1:4", "--dim", "batch=2", "--dim", "seq=128", "--json")
    assert json.loads(ranged)["dims"] == data["dims"]
    run(model, "--dim", "batch=2", code=1)
    at = ("--at", "batch=2,seq=128", "--json")
    assert json.loads(run(model, *at)) == data
    faster, slower = (json.loads(run(model, *at, "--chip", chip)) for chip in ("910B1", "910B4"))
    assert faster["chip"] == "910B1" and slower["chip"] == "910B4" and slower["total_us"] > faster["total_us"]
    run(model, "--dim", "batch=1:4", "--dim", "batch=9", "--dim", "seq=1", code=1)


def test_nothing_is_run() -> None:
    prog = compiled(layer_norm, dvm.spec("b, 8", np.float32))
    prog.profile(b=3)
    assert prog._executable is None
