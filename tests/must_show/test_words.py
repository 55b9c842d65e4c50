"""What runs is the words: change them and the result changes. A program file holds nothing else that could run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgpack
import numpy as np
import pytest

import dvm
from graph_kernel.ops import OPS
from tests.must_show import exported
from vm import isa, serialise
from vm.program import Program, Template

rng = np.random.default_rng(0)


def places(template: Template, name: str) -> list[int]:
    """Where in the words the instructions of this name begin."""
    at, found = isa.HEAD_WORDS, []
    while template.words[at]:
        if isa.get(template.words, at, isa.HEAD_ID) == isa.TABLE[name].id:
            found.append(at)
        at += isa.get(template.words, at, isa.HEAD_LEN)
    return found


def replaced(program: Program, old: str, new: str) -> bytes:
    """The program's file with its only instruction ``old`` turned into ``new``, checksums mended."""
    found = [(i, at) for i, template in enumerate(program.templates) for at in places(template, old)]
    assert len(found) == 1
    template, at = found[0]
    words = program.templates[template].words.copy()
    isa.put(words, at, isa.HEAD_ID, isa.TABLE[new].id)
    return serialise.replace_words(serialise.dumps(program), template, words)


def loaded(data: bytes, path: Path) -> dvm.CompiledProgram:
    path.write_bytes(data)
    return dvm.load(path)


def test_an_add_turned_into_a_subtract_subtracts(tmp_path: Path) -> None:
    program = dvm.compile(lambda x, y: x + y, dvm.spec("n, 8"), dvm.spec("n, 8"))
    changed = loaded(replaced(program.program, "add", "sub"), tmp_path / "sub.dvm")
    for n in (1, 5, 300):
        x, y = (rng.standard_normal((n, 8)).astype(np.float32) for _ in range(2))
        np.testing.assert_array_equal(program(x, y), x + y)
        np.testing.assert_array_equal(changed(x, y), x - y)


def test_inside_a_fused_kernel_too(tmp_path: Path) -> None:
    program = dvm.compile(lambda x: jnp.tanh(jnp.max(x, axis=-1)) * 3, dvm.spec("n, s", s=dvm.Dim(max=256)))
    assert len(program.kernels) == 1
    changed = loaded(replaced(program.program, "tanh", "sin"), tmp_path / "sin.dvm")
    for n, s in ((1, 1), (7, 33), (2, 256)):
        x = rng.standard_normal((n, s)).astype(np.float32)
        np.testing.assert_allclose(program(x), np.tanh(x.max(-1)) * 3, rtol=1e-5)
        np.testing.assert_allclose(changed(x), np.sin(x.max(-1)) * 3, rtol=1e-5)


def texts(data: Any) -> Iterator[str]:
    """All strings in nested plain data."""
    if isinstance(data, str):
        yield data
    elif isinstance(data, bytes):
        yield data.decode("latin-1")
    elif isinstance(data, dict):
        for key, value in data.items():
            yield from texts(key)
            yield from texts(value)
    elif isinstance(data, (list, tuple)):
        for item in data:
            yield from texts(item)


def sections(data: bytes) -> dict[str, bytes]:
    found: dict[str, bytes] = {}

    def look(parts: dict[str, bytearray]) -> None:
        found.update((name, bytes(part)) for name, part in parts.items())

    serialise.reseal(data, look)
    return found


# How these would begin or what they always contain: MLIR's bytecode, its text, jaxprs, pickles, Python code.
FOREIGN = (
    b"ML\xefR",
    b"stablehlo",
    b"mhlo",
    b"func.func",
    b"module @",
    b"jaxpr",
    b"lambda",
    b"pjit",
    b"\x80\x04\x95",
    b"HloModule",
)


def named_function(params: dict[str, Any], x: jax.Array) -> jax.Array:
    return jax.nn.softmax(jax.nn.gelu(x @ params["w"]) + jnp.cumsum(x, axis=-1), axis=-1)


@pytest.mark.parametrize("name", [*exported.NAMES, "function"])
def test_a_file_holds_no_other_code_and_stripped_no_names_of_operations(name: str) -> None:
    if name == "function":
        program = dvm.compile(named_function, {"w": dvm.spec("8, 8")}, dvm.spec("n, 8"))
    else:
        program = exported.compiled(name)
    whole, stripped = (serialise.dumps(program.program, strip=strip) for strip in (False, True))
    for data in (whole, stripped):
        parts = sections(data)
        for mark in FOREIGN:
            assert not any(mark in part for part in parts.values()), mark
    parts = sections(stripped)
    assert set(parts) == {"program", "words", "constants"}
    words = {
        word.lower() for text in texts(msgpack.unpackb(parts["program"])) for word in re.findall(r"[A-Za-z_]\w*", text)
    }
    interface = {word for spec in (*program.inputs, *program.outputs) for word in re.findall(r"\w+", spec.name.lower())}
    assert not (words - interface) & (
        set(OPS) | {"softmax", "gelu", "matmul", "gemm", "layernormalization", "gather", "fusion"}
    )
    assert not [k.name for k in program.kernels if k.name.encode() in stripped]
