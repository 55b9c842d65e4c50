"""Repeated structure is compiled once: what a program holds does not grow with the number of equal layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dvm
from benchmarks.layers import stack
from codegen import compile_graph
from codegen.build import ProgramBuilder
from codegen.structure import Structure
from codegen.tileir import Imm, VInsn, VTile
from dvm import pipeline
from graph_kernel import passes
from graph_kernel.fusion import fuse
from graph_kernel.fusion.fuse import Fuser
from graph_kernel.passes import base
from graph_kernel.passes.outline_repeats import OutlineRepeats
from symbolic.prover import Prover
from tests.counting import count_calls
from tests.must_show.exported import MODELS
from vm import serialise
from vm.program import Program


def test_equal_layers_share_templates_and_integer_code() -> None:
    few, many = (stack(n).compile(start=False) for n in (3, 6))
    assert len(many.kernels) > 1.8 * len(few.kernels)
    assert len(many.program.templates) == len(few.program.templates)
    assert len(many.program.code.code) == len(few.program.code.code)  # offsets of equal layers are equal expressions
    sizes = {"b": 2, "s": 33}
    assert many.memory(sizes).temp == few.memory(sizes).temp < 0.25 * many.memory(sizes).unshared


class Forgetful(dict):
    """Remembers nothing."""

    def __setitem__(self, key: object, value: object) -> None:
        pass


class Counting(dict):
    """Counts what is found."""

    found = 0

    def get(self, key: object, default: object = None) -> object:
        value = super().get(key, default)
        Counting.found += value is not None
        return value


def bert() -> pipeline.Traced:
    return pipeline.from_onnx_model(MODELS / "bert.onnx", {})


@pytest.mark.parametrize("make", [lambda: stack(2), bert], ids=["blocks", "bert"])
def test_code_of_equal_structure_is_what_would_be_made_anew(
    make: Callable[[], pipeline.Traced], monkeypatch: pytest.MonkeyPatch
) -> None:
    builder, fuser = ProgramBuilder.__init__, Fuser.__init__

    def programs(kind: type[dict]) -> bytes:
        def init_builder(self: ProgramBuilder, *args: object, **kwargs: object) -> None:
            builder(self, *args, **kwargs)  # type: ignore[arg-type]
            self.finished = kind()

        def init_fuser(self: Fuser, *args: object, **kwargs: object) -> None:
            fuser(self, *args, **kwargs)  # type: ignore[arg-type]
            self.completed, self.verdicts = kind(), kind()

        monkeypatch.setattr(ProgramBuilder, "__init__", init_builder)
        monkeypatch.setattr(Fuser, "__init__", init_fuser)
        return serialise.dumps(make().compile(start=False).program)

    Counting.found = 0
    assert programs(Forgetful) == programs(Counting)
    assert Counting.found > 50


def test_signed_zeros_are_different_code() -> None:
    def body(zero: float) -> Structure:
        tile = VTile((), np.dtype(np.float32))
        return Structure([VInsn("fill", {"dst": tile, "imm": Imm(zero, np.dtype(np.float32))})], [], "k")

    assert body(0.0).key == body(0.0).key != body(-0.0).key
    assert body(float("nan")).key == body(float("nan")).key


def small_outlines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets graphs of any size be outlined."""
    made = passes.default_pipeline

    def pipeline(*args: Any) -> list[passes.Pass]:
        return [replace(p, nodes=0, repeats=3) if isinstance(p, OutlineRepeats) else p for p in made(*args)]

    monkeypatch.setattr(passes, "default_pipeline", pipeline)


def residual_layers(params: list[dict[str, jax.Array]], x: jax.Array, past: list[jax.Array]) -> Any:
    """Layers with a norm, causal attention over a cache, and a residual stream; every layer has a cache of its own."""
    scale = jnp.cos(jnp.arange(x.shape[1])[:, None] * jnp.asarray([0.5, 0.25, 2.0, 1.0]))
    caches = []
    for p, old in zip(params, past, strict=True):
        h = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * p["norm"]
        q, k = (h @ p["q"]) * scale, jnp.concatenate([old, h @ p["k"]], axis=1)
        scores = jnp.einsum("bqd,bkd->bqk", q, k)
        seen = jnp.arange(k.shape[1]) <= jnp.arange(x.shape[1])[:, None] + old.shape[1]
        x = x + jax.nn.softmax(jnp.where(seen, scores, -1e9), axis=-1) @ k
        caches.append(k)
    return x * 2, caches


@pytest.mark.parametrize("sizes", [(1, 1, 0), (2, 5, 3), (0, 2, 1), (3, 17, 16)], ids=str)
def test_layers_as_calls_give_what_the_function_gives(
    sizes: tuple[int, int, int], outlined: dvm.CompiledProgram
) -> None:
    b, s, p = sizes
    rng = np.random.default_rng(0)
    x, *past = (rng.standard_normal(shape).astype(np.float32) for shape in ((b, s, 4), *[(b, p, 4)] * LAYERS))
    got, want = outlined(WEIGHTS, x, past), jax.jit(residual_layers)(WEIGHTS, x, past)
    for a, e in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-5)


LAYERS = 5
_rng = np.random.default_rng(1)
WEIGHTS = [
    {
        name: _rng.standard_normal(shape).astype(np.float32)
        for name, shape in (("norm", 4), ("q", (4, 4)), ("k", (4, 4)))
    }
    for _ in range(LAYERS)
]


@pytest.fixture(scope="module")
def outlined() -> Iterator[dvm.CompiledProgram]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        small_outlines(monkeypatch)
        b, p = dvm.Dim("b", min=0), dvm.Dim("p", min=0)
        x, *past = dvm.spec("b, s, 4", b=b), *[dvm.spec("b, p, 4", b=b, p=p) for _ in range(LAYERS)]
        program = dvm.compile(residual_layers, WEIGHTS, x, past, tier="reference")
        (report,) = (r for r in program.program.debug["passes"] if r["name"] == "outline_repeats")
        assert report["notes"]["calls"] >= LAYERS - 1
        assert program.launches == 1
        yield program


def work(n: int) -> tuple[Counter[str], Program]:
    """How often passes and fusion look at something in a stack of n layers."""
    count: Counter[str] = Counter()

    graph = stack(n).graph
    with pytest.MonkeyPatch.context() as monkeypatch:
        count_calls(monkeypatch, count, fuse, "find_axes")
        count_calls(monkeypatch, count, Fuser, "_refuse", "_cycle", "complete")
        count_calls(monkeypatch, count, base.Rewriter, "_place")
        count_calls(monkeypatch, count, Prover, "reason")
        count_calls(monkeypatch, count, ProgramBuilder, "lower_group")
        passes.optimise(graph)
        program = compile_graph(graph, {})
    return count, program


def test_a_deep_stack_is_optimised_and_fused_as_one_layer() -> None:
    (few, short), (many, long) = work(12), work(16)
    for name in ("find_axes", "_refuse", "_cycle", "complete", "lower_group"):
        assert many[name] == few[name] > 0, name
    assert many["reason"] == few["reason"]  # proofs
    assert many["_place"] - few["_place"] < 4 * 120  # the pass before the layers are found looks at all of them
    assert len(long.debug["kernels"]) - len(short.debug["kernels"]) == 4 * 5
    assert len(long.templates) == len(short.templates)
    assert len(long.code.code) == len(short.code.code)
