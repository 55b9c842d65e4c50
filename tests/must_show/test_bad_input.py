"""Bad input: an error of the right class that names what is wrong, and the program works afterwards as before."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import dvm
import dvm.pipeline
from tests.must_show import exported
from vm import serialise

rng = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


@pytest.fixture(scope="module")
def program() -> dvm.CompiledProgram:
    """Takes x and y of ``b, s, 4``; s is a multiple of 8 up to 64."""
    b, s = dvm.Dim(max=16), dvm.Dim(max=64, multiple_of=8)
    specs = [dvm.spec("b, s, 4", jnp.float32, b=b, s=s) for _ in range(2)]
    return dvm.compile(lambda x, y: jnp.tanh(x) * y, *specs)


X = normal(2, 8, 4)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        pytest.param((X[0], X), dvm.InputError, r"\(x\): expected 3 dimensions \[b, s, 4\], got 2", id="rank"),
        pytest.param(
            (X, X.astype(np.float16)), dvm.InputError, r"\(y\): expected dtype float32, got float16", id="dtype"
        ),
        pytest.param(
            (X, X.astype(np.int32)), dvm.InputError, r"\(y\): expected dtype float32, got int32", id="integers"
        ),
        pytest.param((X,), dvm.InputError, "missing y", id="too few"),
        pytest.param((X, X, X), dvm.InputError, "2", id="too many"),
        pytest.param((normal(17, 8, 4),) * 2, dvm.ShapeError, "b.*17.*16", id="above its range"),
        pytest.param((normal(0, 8, 4),) * 2, dvm.ShapeError, "b.*0", id="below its range"),
        pytest.param((normal(2, 72, 4),) * 2, dvm.ShapeError, "s.*72.*64", id="above, a multiple"),
        pytest.param((normal(2, 12, 4),) * 2, dvm.ShapeError, "s.*multiple of 8", id="no multiple"),
        pytest.param((normal(2, 8, 5),) * 2, dvm.ShapeError, "x.*axis 2 is 5.*4", id="a fixed size"),
        pytest.param((X, normal(3, 8, 4)), dvm.ShapeError, "(?s)x.*y|y.*x", id="two inputs disagree"),
        pytest.param((X, "text"), dvm.InputError, "y", id="no array"),
    ],
)
def test_a_wrong_call(program: dvm.CompiledProgram, arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        program(*arguments)
    assert type(raised.value) is error
    before = dvm.stats()
    np.testing.assert_allclose(program(X, X), np.tanh(X) * X, rtol=1e-6)
    assert (dvm.stats() - before).xla_compiles == 0


def feeds_of(name: str) -> dict[str, np.ndarray]:
    return dict(list(exported.cases(name).values())[2][0])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda f: f.pop("attention_mask"), dvm.InputError, "missing 'attention_mask'"),
        (lambda f: f.update(extra=X), dvm.InputError, "unknown 'extra'"),
        (lambda f: f.update(input_ids=f["input_ids"][0]), dvm.InputError, "'input_ids': expected 2 dimensions"),
        (lambda f: f.update(input_ids=f["input_ids"].astype(np.float32)), dvm.InputError, "int64, got float32"),
        (
            lambda f: f.update(attention_mask=f["attention_mask"][:, 1:]),
            dvm.ShapeError,
            "(?s)input_ids.*attention_mask",
        ),
        (lambda f: f.update({k: np.tile(v, (5, 1)) for k, v in f.items()}), dvm.ShapeError, "batch.*10.*8"),
    ],
)
def test_a_wrong_call_of_a_model(change: Callable[[dict], object], error: type[Exception], message: str) -> None:
    program, feeds = exported.compiled("bert"), feeds_of("bert")
    good = program.run(None, feeds)
    bad = dict(feeds)
    change(bad)
    with pytest.raises(error, match=message):
        program.run(None, bad)
    for again, want in zip(program.run(None, feeds), good, strict=True):
        np.testing.assert_array_equal(again, want)


def test_unsupported_operations_are_listed_together() -> None:
    nodes = [
        helper.make_node(op, ["x"], [f"y{i}"]) for i, op in enumerate(["NoSuchOp", "NorThisOne", "NoSuchOp", "Exp"])
    ]
    types = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n"]) for n in ("x", "y0", "y1", "y2", "y3")]
    model = helper.make_model(
        helper.make_graph(nodes, "g", types[:1], types[1:]), opset_imports=[helper.make_opsetid("", 18)]
    )
    with pytest.raises(dvm.UnsupportedOp, match="(?s)NoSuchOp.*NorThisOne|NorThisOne.*NoSuchOp") as raised:
        dvm.compile(model)
    assert "2" in str(raised.value)  # how often

    def fn(x: jax.Array) -> jax.Array:
        return jax.lax.linalg.cholesky(x) + jax.pure_callback(np.sin, x, x)

    with pytest.raises(dvm.UnsupportedOp, match="(?s)cholesky.*pure_callback|pure_callback.*cholesky") as raised:
        dvm.compile(fn, dvm.spec("4, 4"))
    assert "test_bad_input.py" in str(raised.value)


# ---- damaged models


@pytest.mark.parametrize("name", ["bert", "mmoe"])
def test_truncated_models(name: str, tmp_path: Path) -> None:
    data = (exported.MODELS / f"{name}.onnx").read_bytes()
    for cut in (0, 1, 10, 1000, len(data) // 3, len(data) // 2, len(data) - 1):
        path = tmp_path / "cut.onnx"
        path.write_bytes(data[:cut])
        with pytest.raises(dvm.DvmError) as raised:
            dvm.compile(path)
        assert "cut.onnx" in str(raised.value)


def test_corrupted_models_give_an_error_or_a_program(tmp_path: Path) -> None:
    """Never another exception. A flip in a weight or a name may leave a valid model; structure is at the file's end here."""
    small = (exported.ROOT / "examples" / "softmax.onnx").read_bytes()
    choose, refused = random.Random(0), 0
    for i in range(150):
        data = bytearray(small)
        for _ in range(choose.randint(1, 4)):
            data[choose.randrange(len(data))] = choose.randrange(256)
        path = tmp_path / f"{i}.onnx"
        path.write_bytes(data)
        try:
            dvm.pipeline.from_onnx_model(path).compile(start=False)
        except dvm.DvmError:
            refused += 1
    assert 30 < refused < 150


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(dvm.CompileError, match="missing.onnx"):
        dvm.compile(tmp_path / "missing.onnx")
    (tmp_path / "text.onnx").write_text("not a model")
    with pytest.raises(dvm.CompileError, match="text.onnx"):
        dvm.compile(tmp_path / "text.onnx")
    with pytest.raises(dvm.DvmError):
        dvm.compile(onnx.ModelProto())


# ---- damaged programs


def test_truncated_programs(program: dvm.CompiledProgram, tmp_path: Path) -> None:
    data = serialise.dumps(program.program)
    path = tmp_path / "cut.dvm"
    for cut in sorted({*range(0, 128, 7), *range(0, len(data), max(1, len(data) // 60)), len(data) - 1}):
        path.write_bytes(data[:cut])
        with pytest.raises(dvm.ProgramError):
            dvm.load(path)
    path.write_bytes(data + b"\0")
    with pytest.raises(dvm.ProgramError):
        dvm.load(path)


@pytest.mark.parametrize("strip", [False, True], ids=["whole", "stripped"])
def test_200_flipped_bits_give_an_error_or_the_same_result(
    program: dvm.CompiledProgram, tmp_path: Path, strip: bool
) -> None:
    data = serialise.dumps(program.program, strip=strip)
    want, path = np.asarray(program(X, X)), tmp_path / "flipped.dvm"
    choose, refused = random.Random(0), 0
    for _ in range(200):
        flipped = bytearray(data)
        flipped[choose.randrange(len(data))] ^= 1 << choose.randrange(8)
        path.write_bytes(flipped)
        try:
            loaded = dvm.load(path)
        except dvm.ProgramError:
            refused += 1
            continue
        np.testing.assert_array_equal(loaded(X, X), want)
    assert refused == 200  # every byte is under a checksum or must be zero


def test_not_a_program(tmp_path: Path) -> None:
    for content in (
        b"",
        b"\x89DVM\r\n\x1a\n",
        b"PK\x03\x04" + bytes(100),
        exported.MODELS.joinpath("mmoe.onnx").read_bytes(),
    ):
        path = tmp_path / "x.dvm"
        path.write_bytes(content)
        with pytest.raises(dvm.ProgramError):
            dvm.load(path)
