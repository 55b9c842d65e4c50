"""The memory plan: sound at every size, small, and a wrong share is found by the reference executor."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dvm
from dvm import models, pipeline
from tests.must_show.exported import DIMS, MODELS
from vm.decode import decode, stored_buffers
from vm.dtypes import dtype_of, item_size
from vm.errors import Hazard
from vm.program import LANES, TEMP_BANKS, CondStep, ForStep, KernelStep, Program, WhileStep, inner_blocks
from vm.program.lifetimes import lifetimes

SIZES = st.sampled_from([0, 1, 2, 3, 7, 31, 64, 65, 127, 128, 129, 500])


def loops(x: jax.Array, n: jax.Array) -> jax.Array:
    """Control flow three deep, with temporaries in every block and values that live across the loops."""

    def outer(carry: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        def inner(carry: jax.Array, item: jax.Array) -> tuple[jax.Array, jax.Array]:
            return jnp.tanh(carry + item), jnp.sort(carry)[::-1] * 0.5 + item

        last, seen = jax.lax.scan(inner, carry, jnp.stack([row, carry * 0.25, row - carry]))
        total = jax.lax.cond(row[0] > 0, lambda: jnp.cumsum(seen[1]), lambda: jnp.sort(seen[2]) + last)
        return total * 0.125 + row, seen.sum(0)

    carry, rows = jax.lax.scan(outer, x[0], x)
    state = (jnp.int32(0), carry)
    _, carry = jax.lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, jnp.sin(jnp.sort(s[1])) + carry), state)
    return rows + carry + x


def loop_program(tier: str = "auto") -> dvm.CompiledProgram:
    specs = dvm.spec("r, c", jnp.float32, r=dvm.Dim(max=64), c=dvm.Dim(max=64)), jax.ShapeDtypeStruct((), jnp.int32)
    return pipeline.from_function(loops, specs, {}).compile(tier, start=False)


@cache
def program(name: str) -> dvm.CompiledProgram:
    """A compiled program that no executable is made for."""
    if name == "loops":
        return loop_program()
    if name in DIMS:
        return pipeline.from_onnx_model(MODELS / f"{name}.onnx", {k: dvm.Dim(k, min=0) for k in DIMS[name]}).compile(
            start=False
        )
    config = models.as_decoder(models.scaled(models.load_config(name)))
    x = dvm.spec(f"b, s, {config.hidden_size}", jnp.bfloat16, b=dvm.Dim(min=0), s=dvm.Dim(min=0))
    arguments = (models.param_specs(config, dtype=jnp.bfloat16), x)
    return pipeline.from_function(models.prefill_block(config), arguments, {}).compile(start=False)


NAMES = (*DIMS, "qwen2.5-0.5b", "loops")


def overlapping(prog: Program, regs: list[int]) -> list[tuple[str, str]]:
    """Pairs of temporaries that are alive at the same time and whose memory overlaps."""
    life = lifetimes(prog.steps, prog.buffers, prog.stages)
    alive: dict[tuple[int, int], list[tuple[int, int, int, int, str]]] = {}
    for i, (first, last) in life.spans.items():
        b = prog.buffers[i]
        if b.space in TEMP_BANKS and b.offset is not None:
            items = regs[b.elements] * (dtype_of(b.dtype).itemsize // item_size(b.dtype))
            start = regs[b.offset] * LANES
            alive.setdefault((b.space, item_size(b.dtype)), []).append((start, start + items, first, last, str(i)))
    return [
        (a[4], b[4])
        for group in alive.values()
        for a, b in combinations(group, 2)
        if a[0] < b[1] and b[0] < a[1] and a[2] <= b[3] and b[2] <= a[3]
    ]


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25)
@given(data=st.data())
def test_buffers_that_live_together_lie_apart_at_every_size(name: str, data: st.DataObject) -> None:
    prog = program(name).program
    symbols = [min(max(data.draw(SIZES), s.min), s.max if s.max is not None else 512) for s in prog.symbols]
    assert overlapping(prog, prog.code.run(symbols)) == []


def test_the_check_above_sees_an_overlap() -> None:
    prog = program("bert").program
    _, wrong = wrong_share(prog)
    assert overlapping(wrong, wrong.code.run([4] * len(wrong.symbols)))


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_stores_into_no_bank_that_it_loads_from(name: str) -> None:
    prog = program(name).program
    stored = [stored_buffers(decode(t)) for t in prog.templates]

    def walk(steps: object) -> None:
        for step in steps:  # type: ignore[attr-defined]
            if isinstance(step, KernelStep):
                results = {step.buffers[k] for k in stored[step.template]}
                written = {(prog.buffers[b].space, item_size(prog.buffers[b].dtype)) for b in results}
                for b in step.buffers:
                    key = (prog.buffers[b].space, item_size(prog.buffers[b].dtype))
                    assert b in results or key not in written, step.name
            elif isinstance(step, CondStep | WhileStep | ForStep):
                for block in inner_blocks(step):
                    walk(block)

    walk(prog.steps)


@pytest.mark.parametrize("name", ["bert", "llama", "qwen2"])
def test_sharing_saves_more_than_half(name: str) -> None:
    memory = program(name).memory({k: {"total": 96, "past": 64}.get(k, 32) for k in program(name).symbols})
    assert 0 < memory.temp <= memory.unshared / 2
    assert memory.saved == memory.unshared - memory.temp


def wrong_share(prog: Program) -> tuple[str, Program]:
    """The program with one temporary moved to where another one lies that is alive at the same time and read later."""
    life = lifetimes(prog.steps, prog.buffers, prog.stages)
    temps = [i for i in life.spans if prog.buffers[i].space in TEMP_BANKS]
    for a, b in combinations(sorted(temps, key=lambda i: life.of(i)), 2):
        x, y = prog.buffers[a], prog.buffers[b]
        same = (x.dtype, x.elements, x.space) == (y.dtype, y.elements, y.space) and x.offset != y.offset
        if same and life.of(a)[0] < life.of(b)[0] < life.of(a)[1]:
            buffers = list(prog.buffers)
            for i, other in enumerate(buffers):
                if i == b or other.alias == b:
                    buffers[i] = replace(other, offset=x.offset)
            return f"{y.name} over {x.name}", replace(prog, buffers=tuple(buffers))
    raise AssertionError("no two temporaries of equal size live together in one bank")


def keeps_three(x: jax.Array) -> jax.Array:
    """Sums that are all needed at the end."""
    kept = []
    for _ in range(5):
        x = jnp.sin(x - x.max(-1, keepdims=True)) + jnp.flip(x, 0)
        kept.append(jnp.flip(x, 1))
        x = jnp.sort(x)
    return sum(kept, x)


def test_the_reference_executor_finds_a_wrong_share() -> None:
    specs = (dvm.spec("r, c", jnp.float32, r=dvm.Dim(max=64), c=dvm.Dim(max=64)),)
    compiled = pipeline.from_function(keeps_three, specs, {}).compile("reference", start=False)
    x = np.random.default_rng(0).standard_normal((5, 37)).astype(np.float32)
    np.testing.assert_allclose(compiled(x), jax.jit(keeps_three)(x), rtol=1e-5, atol=1e-5)
    what, wrong = wrong_share(compiled.program)
    with pytest.raises(Hazard, match="uninitialised read"):
        dvm.CompiledProgram(wrong, tier="reference").run(None, {"x": x})
        pytest.fail(what)


def test_freed_memory_is_poisoned() -> None:
    """A buffer whose lifetime is over is nonsense at once, whether or not anybody else gets its memory."""
    from vm.reference import Reference, _Launch

    specs = (dvm.spec("n", jnp.float32, n=dvm.Dim(max=64)),)
    prog = pipeline.from_function(lambda x: jnp.sort(jnp.sort(-x)[::-1])[::-1], specs, {}).compile(start=False).program
    machine = Reference(prog)
    assert any(machine.dead_after.values())
    from vm.binder import Binder

    launch = _Launch(machine, Binder(prog).bind((9,)), [np.arange(9, dtype=np.float32)])
    launch.run()
    arenas = [arena for (space, _), arena in launch.arenas.items() if space in TEMP_BANKS]
    assert arenas and all(not arena.written.any() for arena in arenas)
    assert any(np.isnan(arena.data.view(np.float32)).any() for arena in arenas if arena.item == 4)


@pytest.mark.parametrize("shape", [(3, 5), (1, 1), (4, 33)])
def test_loops_share_memory_and_stay_right(shape: tuple[int, int]) -> None:
    compiled = loop_program("reference")
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    for n in (0, 1, 3):
        np.testing.assert_allclose(compiled(x, np.int32(n)), jax.jit(loops)(x, n), rtol=2e-5, atol=2e-5)


def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """[b, heads, s, d] each."""
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / np.sqrt(q.shape[-1])
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, -1), v)


def test_attention_has_no_buffer_that_grows_with_the_square() -> None:
    spec = dvm.spec("b, 4, s, 32", jnp.float32, s=dvm.Dim(max=4096), b=dvm.Dim(max=4))
    compiled = pipeline.from_function(attention, (spec, spec, spec), {}).compile(start=False)
    peaks = [compiled.memory(b=1, s=s).peak for s in (512, 1024, 2048, 4096)]
    assert [b / a for a, b in zip(peaks, peaks[1:], strict=False)] == [2, 2, 2]
    for s in (512, 4096):
        assert max(b.bytes for b in compiled.memory(b=1, s=s).buffers) <= 4 * 32 * 4 * s


def test_equal_constants_are_stored_once() -> None:
    table = np.arange(64, dtype=np.float32).reshape(8, 8)

    def twice(x: jax.Array) -> jax.Array:
        return jnp.sin(x @ table) @ table.copy() + x @ jnp.asarray(table)

    spec = dvm.spec("n, 8", jnp.float32, n=dvm.Dim(max=64))
    memory = pipeline.from_function(twice, (spec,), {}).compile(start=False).memory(n=3)
    assert memory.constants == table.nbytes


def test_the_report_adds_up(tmp_path: Path) -> None:
    compiled = program("qwen2.5-0.5b")
    memory = compiled.memory(b=2, s=17)
    hidden = compiled.outputs[0].text[-1]
    assert memory.outputs == 2 * 17 * int(hidden) * 2
    assert memory.peak == memory.inputs + memory.constants + memory.temp + memory.outputs
    assert sum(b.bytes for b in memory.buffers if b.space == "input") == memory.inputs
    assert sum(b.bytes for b in memory.buffers if b.space.startswith("output")) == memory.outputs
    path = tmp_path / "block.dvm"
    compiled.save(path, strip=True)
    again = dvm.load(path).memory(b=2, s=17)
    assert (again.peak, again.temp, again.unshared) == (memory.peak, memory.temp, memory.unshared)
    assert f"{memory.peak:,} bytes" in str(memory) and memory.to_dict()["peak"] == memory.peak
