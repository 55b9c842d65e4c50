"""The command line on exported models, from a shell: compile, run, inspect, dis, each as text and as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.must_show import exported


def dvm(*arguments: object, folder: Path, code: int = 0) -> str:
    """What ``dvm`` prints in a process of its own; stderr must be empty, because this is a pipe."""
    env = os.environ | {"PYTHONPATH": str(exported.ROOT), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "dvm", *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode == code, done.stderr
    assert bool(done.stderr) == bool(code)
    return done.stdout


def options(name: str) -> list[str]:
    """``--dim batch=1:8`` and so on."""
    return [word for k, dim in exported.DIMS[name].items() for word in ("--dim", f"{k}={dim.min}:{dim.max}")]


@pytest.mark.parametrize("name", exported.NAMES)
def test_verbs(name: str, tmp_path: Path) -> None:
    model, file = exported.MODELS / f"{name}.onnx", tmp_path / f"{name}.dvm"
    text = dvm("compile", model, "-o", file, *options(name), folder=tmp_path)
    assert f"{file}: {file.stat().st_size:,} bytes" in text and "batch" in text

    inspected = dvm("inspect", file, folder=tmp_path)
    data = json.loads(dvm("inspect", file, "--json", folder=tmp_path))
    assert {s["name"] for s in data["symbols"]} == set(exported.DIMS[name])
    assert data["steps"]["host_ops"] == 0 and data["kernels"] and data["constraints"]
    assert all(s["range"] in inspected for s in data["symbols"])
    assert all(k["name"] in inspected for k in data["kernels"])
    assert all(line in inspected for line in data["constraints"])

    listing = dvm("dis", file, folder=tmp_path)
    assert listing.count("\nkernel ") + 1 == data["steps"]["kernel_launches"] and "store" in listing
    lines = json.loads(dvm("dis", file, "--json", "--kernel", 0, folder=tmp_path))["lines"]
    assert lines[0].startswith("kernel 0: ") and "\n".join(lines) in listing

    feeds, want = exported.cases(name)["case1"]
    np.savez(tmp_path / "in.npz", **feeds)
    text = dvm("run", file, "--input", "in.npz", "--out", "out.npz", folder=tmp_path)
    got = np.load(tmp_path / "out.npz")
    for key, array in want.items():
        assert key in text
        exported.close(got[key], array)


def test_run_of_a_model_as_json(tmp_path: Path) -> None:
    data = json.loads(dvm("run", exported.MODELS / "mmoe.onnx", "--random", "x:5x32", "--json", folder=tmp_path))
    assert data["inputs"] == {"x": [5, 32]} and all(row["shape"] == [5, 1] for row in data["outputs"])


def test_failures_have_a_code_and_a_line(tmp_path: Path) -> None:
    (tmp_path / "cut.onnx").write_bytes((exported.MODELS / "bert.onnx").read_bytes()[:5000])
    assert dvm("compile", "cut.onnx", "-o", "x.dvm", folder=tmp_path, code=1) == ""
    error = json.loads(dvm("compile", "cut.onnx", "-o", "x.dvm", "--json", folder=tmp_path, code=1))["error"]
    assert error["type"] == "CompileError" and "cut.onnx" in error["message"]
    assert not (tmp_path / "x.dvm").exists()
