"""The command line: verbs, syntax, exit codes, JSON, and the examples that ``--help`` prints."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import dvm
from dvm.cli import VERBS, main
from dvm.cli.common import parse_dims, parse_shape, parse_sizes

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "examples" / "softmax.onnx"


def run(*arguments, code=0):
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    assert result.exit_code == code, f"{result.stdout}\n{result.stderr}\n{result.exception!r}"
    return result


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "softmax.dvm"
    result = run("compile", MODEL, "-o", path, "--dim", "batch=1:64", "--dim", "seq=1:512")
    assert "1 kernel, compiled in" in result.stdout and "symbols: batch 1..64, seq 1..512" in result.stdout
    return path


# ---- syntax


def test_dims():
    assert parse_dims(["seq=1:8192", "b=8:64:8", "n=0:", "k=16"]) == {
        "seq": dvm.Dim("seq", 1, 8192),
        "b": dvm.Dim("b", 8, 64, 8),
        "n": dvm.Dim("n", 0),
        "k": dvm.Dim("k", 16, 16),
    }
    for text in ("seq", "seq=", "=3", "seq=a:b", "seq=1:2:3:4", "seq=:4", "seq=-1:4"):
        with pytest.raises(click.UsageError, match="expected NAME=MIN:MAX"):
            parse_dims([text])
    with pytest.raises(click.UsageError, match="declared twice"):
        parse_dims(["s=1:2", "s=1:2"])


def test_shapes_and_sizes():
    assert parse_shape("x:2x128", "--random") == ("x", (2, 128))
    assert parse_shape("input:0:7", "--random") == ("input:0", (7,))
    assert parse_shape("x:", "--random") == ("x", ())
    assert parse_shape("x:0x3", "--random") == ("x", (0, 3))
    for text in ("x", ":2", "x:2x", "x:axb", "x:-1"):
        with pytest.raises(click.UsageError, match="expected NAME:SIZExSIZE"):
            parse_shape(text, "--random")
    assert parse_sizes(["b=2,s=3", "n=0"], "--at") == {"b": 2, "s": 3, "n": 0}
    with pytest.raises(click.UsageError, match="expected NAME=SIZE"):
        parse_sizes(["b"], "--at")


# ---- help and failures


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_an_example(verb):
    assert f"Example: dvm {verb}" in re.sub(r"\s+", " ", run(verb, "--help").stdout)


def test_the_example_model_is_what_its_script_makes():
    spec = importlib.util.spec_from_file_location("make_softmax", ROOT / "examples" / "make_softmax.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert onnx.load(MODEL) == module.make()


def test_unknown_verbs_and_missing_files_fail_with_one_line(tmp_path):
    assert "No such command" in run("fly", code=2).stderr
    result = run("inspect", tmp_path / "no.dvm", code=1)
    assert result.stderr == f"error: {tmp_path}/no.dvm: No such file or directory\n"
    (tmp_path / "bad.dvm").write_bytes(b"\x89DVM\r\n\x1a\nrubbish")
    assert re.fullmatch(r"error: [^\n]+\n", run("inspect", tmp_path / "bad.dvm", code=1).stderr)
    (tmp_path / "bad.onnx").write_bytes(MODEL.read_bytes()[:100])
    assert re.fullmatch(r"error: [^\n]+\n", run("compile", tmp_path / "bad.onnx", code=1).stderr)
    assert not (tmp_path / "bad.dvm.dvm").exists()


def test_failures_as_json(tmp_path):
    (tmp_path / "bad.dvm").write_bytes(b"rubbish")
    result = run("inspect", tmp_path / "bad.dvm", "--json", code=1)
    assert json.loads(result.stdout)["error"]["type"] == "ProgramError"


def test_a_traceback_only_on_request(tmp_path, monkeypatch):
    (tmp_path / "bad.dvm").write_bytes(b"rubbish")
    monkeypatch.setenv("DVM_DEBUG", "1")
    result = CliRunner().invoke(main, ["inspect", str(tmp_path / "bad.dvm")])
    assert isinstance(result.exception, dvm.ProgramError)


def test_wrong_dims_are_named():
    result = run("compile", MODEL, "-o", "never.dvm", "--dim", "width=1:4", code=1)
    assert "width" in result.stderr and "batch" in result.stderr
    assert "no size from 5 to 4" in run("compile", MODEL, "-o", "never.dvm", "--dim", "seq=5:4", code=1).stderr


# ---- verbs on a real program


def test_compile_as_json_and_stripped(program, tmp_path):
    data = json.loads(run("compile", MODEL, "-o", tmp_path / "m.dvm", "--strip", "--json").stdout)
    assert data["bytes"] == (tmp_path / "m.dvm").stat().st_size < program.stat().st_size
    assert [s["name"] for s in data["symbols"]] == ["batch", "seq"]
    assert "softmax" not in str((tmp_path / "m.dvm").read_bytes()).lower()
    run("compile", program, "--strip", "-o", tmp_path / "again.dvm")  # a program can be written again
    assert "would replace the input" in run("compile", program, code=1).stderr


def test_run_with_random_inputs(program, tmp_path):
    text = run("run", program, "--random", "x:2x128", "--out", tmp_path / "r.npz").stdout
    assert re.match(r"y\s+float32\[2, 128\]\s+min \S+\s+max \S+\s+mean 0\.0078125\n", text)
    y = np.load(tmp_path / "r.npz")["y"]
    np.testing.assert_allclose(y.sum(-1), 1, rtol=1e-5)
    run("run", program, "--random", "x:2x128", "--out", tmp_path / "results", "--seed", 1)
    assert not np.array_equal(np.load(tmp_path / "results" / "y.npy"), y)


def test_run_with_files(program, tmp_path):
    x = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "all.npz", x=x, other=x)
    for source in (f"x={tmp_path}/x.npy", f"{tmp_path}/all.npz"):
        data = json.loads(run("run", program, "--input", source, "--json").stdout)
        assert data["inputs"] == {"x": [3, 5]}
        assert data["outputs"][0]["shape"] == [3, 5] and data["outputs"][0]["mean"] == pytest.approx(0.2)
    for source, message in (
        (f"{tmp_path}/x.npy", "say which input"),
        (f"y={tmp_path}/x.npy", "no input 'y'"),
        (f"y={tmp_path}/all.npz", "no array 'y'"),
        (f"x={MODEL}", "not a NumPy file"),
    ):
        assert message in run("run", program, "--input", source, code=1).stderr


def test_run_at_sizes_and_a_model_directly():
    data = json.loads(run("run", MODEL, "--at", "batch=4,seq=0", "--json").stdout)
    assert data["outputs"][0]["shape"] == [4, 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--random", "x:2"], "'x'"),
        (["--random", "x:65x3"], "batch"),
        (["--random", "z:2x3"], "no input 'z'"),
        (["--random", "x:2x3", "--random", "x:2x3"], "given twice"),
        ([], "no input 'x': --at"),
        (["--at", "batch=2"], "missing dimension seq: give its size, as seq=16"),
        (["--random", "x:2x3", "--range", "q=0:3"], "no input 'q'"),
        (["--random", "x:2x3", "--dim", "seq=1:4"], "is compiled already"),
    ],
)
def test_run_failures(program, arguments, message):
    assert message in run("run", program, *arguments, code=1).stderr


def test_a_symbol_of_one_size_need_not_be_given(tmp_path):
    path = tmp_path / "fixed.dvm"
    assert (
        "symbols: batch 4, seq 8..64 step 8"
        in run("compile", MODEL, "-o", path, "--dim", "batch=4", "--dim", "seq=8:64:8").stdout
    )
    assert "float32[4, 16]" in run("run", path, "--at", "seq=16").stdout
    assert "at batch=4, seq=16" in run("memory", path, "--dim", "seq=16").stdout
    assert "is 3, but it must be 4" in run("run", path, "--at", "seq=16,batch=3", code=1).stderr


def test_errors_name_the_file(program, tmp_path):
    damaged = tmp_path / "damaged.dvm"
    damaged.write_bytes(b"garbage")
    assert str(damaged) in run("run", damaged, code=1).stderr
    nowhere = tmp_path / "nowhere" / "x.dvm"
    assert f"error: {nowhere}: " in run("compile", MODEL, "-o", nowhere, code=1).stderr
    assert "is a compiled program, which holds no graph" in run("opt", program, code=1).stderr


def test_inspect(program):
    text = run("inspect", program).stdout
    for part in (
        "batch 1..64",
        "x  float32[batch, seq]",
        "y  float32[batch, seq]",
        "kernels: 1",
        "0 host ops",
        "sizes: code",
    ):
        assert part in text
    data = json.loads(run("inspect", program, "--json").stdout)
    assert data["inputs"] == [{"name": "x", "dtype": "float32", "dims": ["batch", "seq"]}]
    assert data["sizes"]["code_bytes"] > 0 and data["steps"]["kernel_launches"] == 1


def test_dis(program):
    text = run("dis", program).stdout
    assert text.startswith("kernel 0: ")
    for part in ("loop", "load", "store", "reduce_max", "exp", "#0 = input x: float32[batch, seq]"):
        assert part in text
    assert run("dis", program, "--kernel", "0").stdout == text
    assert "there is no kernel 7" in run("dis", program, "--kernel", "7", code=1).stderr
    assert json.loads(run("dis", program, "--json").stdout)["lines"] == text.rstrip("\n").split("\n")


def test_the_examples_work_as_printed(tmp_path):
    """In the order of the verbs, in a shell, in a folder that has the repository's examples."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    for verb in VERBS:
        text = re.sub(r"\s+", " ", run(verb, "--help").stdout)
        example = text.split("Example: ")[1].strip()
        words = shlex.split(example)
        assert words[0] == "dvm"
        env = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "JAX_PLATFORMS": "cpu", "HOME": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-m", "dvm", *words[1:]],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env=env,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout and not done.stderr  # silent in a pipe


def test_command_lines_of_the_docs_have_only_options_that_exist():
    found = 0
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for line in re.findall(r"^(?:\$ |    (?:DVM_\w+=\S+ )?)dvm (.+)$", page.read_text(), re.M):
            verb, *arguments = shlex.split(line)
            command = main.get_command(click.Context(main), verb)
            assert command is not None, f"{page.name}: {line}"
            command.make_parser(click.Context(command)).parse_args(arguments)  # NoSuchOption
            found += 1
    assert found > 12
