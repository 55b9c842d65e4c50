"""What a program says about its sizes: who introduced a symbol, why a relation holds, what is checked, and what fusions rest on."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import dvm
from dvm import pipeline
from dvm.cli.inspect_command import _text, describe
from dvm.program import CompiledProgram

MODELS = Path(__file__).parents[1] / "data" / "models"
NAMES = sorted(path.stem for path in MODELS.glob("*.onnx"))


def block(x, w, past):
    h = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)
    keys = jnp.concatenate([past, h @ w], axis=1)
    p = jax.nn.softmax(jnp.einsum("bsd,btd->bst", h, keys), -1)
    return x + jnp.einsum("bst,btd->bsd", p, keys)


def compiled(name: str) -> CompiledProgram:
    """A model or the JAX block, without its machine."""
    if name == "block":
        p = dvm.Dim(min=0, max=512)
        specs = dvm.spec("b, s, 16", s=dvm.Dim(max=512)), dvm.spec("16, 16"), dvm.spec("b, p, 16", p=p)
        return pipeline.from_function(block, specs, {}, None, ["p + s <= 512", "s <= 4*b"]).compile(start=False)
    return pipeline.from_onnx_model(str(MODELS / f"{name}.onnx"), None, ()).compile(start=False)


@pytest.mark.parametrize("name", [*NAMES, "block"])
def test_symbols_relations_and_checks_have_their_causes(name: str) -> None:
    program = compiled(name)
    lines = program.constraints
    assert len(program.symbols) == len(set(program.symbols)) > 0
    for symbol in program.symbols.values():  # its range, and who introduced it
        (line,) = [x for x in lines if re.match(rf"-?\d+ <= {symbol.name}( <= \d+)?(, |  \(|$)", x)]
        assert symbol.origin and line.endswith(f"({symbol.origin})")
        assert re.match(r"input '.+' axis \d+|Dim\(", symbol.origin), symbol.origin
        assert f"{symbol.min} <= {symbol.name}" in line and (symbol.max is None or f"<= {symbol.max}" in line)
    assert all(re.search(r"  \(.+\)$", line) for line in lines), lines  # every line has a cause
    checks = [line for line in lines if line.startswith("at launch: ")]
    assert len(checks) == len(program.program.checks)
    for check in program.program.checks:
        assert check.origin and any(line.endswith(f"({check.origin})") for line in checks)
    said = str(program.explain())
    assert all(line in said for line in lines)
    inspected = describe(program)
    text = _text(inspected)
    assert all(line in text for line in lines)
    assert [s["origin"] for s in inspected["symbols"]] == [s.origin for s in program.symbols.values()]
    for kernel, shown in zip(program.kernels, inspected["kernels"], strict=True):
        assert kernel.ops and shown["facts"] == list(kernel.facts)
        assert all(re.fullmatch(r".+(==|<=|<|!=|%).+: .+", fact) for fact in kernel.facts), kernel.facts


def test_the_checks_of_the_block_are_the_declared_ones() -> None:
    checks = [line for line in compiled("block").constraints if line.startswith("at launch")]
    assert len(checks) == 2 and "p + s <= 512" in checks[0] and "s <= 4*b" in checks[1]
    assert all("constraint" in line for line in checks)


def test_a_fusion_names_the_facts_that_it_used() -> None:
    def fn(x, w):
        parts = x.reshape(x.shape[0], x.shape[1] // 16, 16)
        return (parts / (abs(parts).max(-1, keepdims=True) + 1)).reshape(x.shape).T @ w

    specs = dvm.spec("m, k", k=dvm.Dim(multiple_of=16)), dvm.spec("m, 3")
    program = pipeline.from_function(fn, specs, {}).compile(start=False)
    facts = [fact for kernel in program.kernels for fact in kernel.facts]
    assert facts and all("16*(k//16)" in fact and "k % 16 == 0 (declared)" in fact for fact in facts)
    assert all(f"given {fact}" in str(program.explain()) and fact in _text(describe(program)) for fact in facts)
    plain = pipeline.from_function(lambda x: jnp.exp(x) * 2, [dvm.spec("n, m")], {}).compile(start=False)
    assert not any(kernel.facts for kernel in plain.kernels)


def test_a_constraint_that_the_dims_of_the_inputs_say_is_listed_too() -> None:
    specs = dvm.spec("a, b"), dvm.spec("c")
    program = pipeline.from_function(lambda x, y: x.reshape(-1) + y, specs, {}, None, ["c == a*b"]).compile(start=False)
    assert any(line.startswith("c == a*b  (the constraint") for line in program.constraints), program.constraints
    assert program.inputs[1].text == ("a*b",)
