"""At shape (1, 1) each loop runs at most one block, and in general blocks follow the extent: nothing is padded to a maximum.

The counts are those that a launch hands to its kernels: ``vm.geometry`` computes them from the bound words, the XLA code only loops.
"""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import configs
import dvm
from dvm import models, pipeline
from tests.models import harness
from vm import isa
from vm.decode import Loop, decode, unordered
from vm.disassembler import kernel_steps
from vm.geometry import Blocks, Rungs, Scalars, blocks, loops_of


def bound_loops(program: dvm.CompiledProgram, dims: dict[str, int]) -> Iterator[tuple[str, Loop, int, int]]:
    """For each loop of each kernel at these sizes: the kernel's name, the loop, its extent and how many blocks it runs."""
    bound = program.bind(dims)
    for index, step in enumerate(kernel_steps(program.program.steps)):
        if index in bound.skipped:
            continue
        kernel, words = unordered(decode(program.program.templates[step.template])), bound.kernel_words(index)
        table = Scalars(kernel)
        trips = table.trips(words)
        for loop in loops_of(kernel.body):
            yield step.name, loop, table.extent(words, loop), trips.get(loop.op.at, 1)


def of_config(config: models.Config) -> dvm.CompiledProgram:
    """The program of a configuration's block, its parameters as inputs. Nothing is compiled for the executor."""
    args = (models.param_specs(config, dtype=jnp.float32), *harness.specs(config, jnp.float32))
    return pipeline.from_function(models.block(config), args, {}).compile(start=False)


@pytest.mark.parametrize("name", configs.model_names())
def test_each_loop_of_a_block_runs_once_at_1_1(name: str) -> None:
    config = models.scaled(models.load_config(name))
    dims = {symbol: 0 if symbol == "p" else 1 for symbol in harness.factors(config)}
    loops = list(bound_loops(of_config(config), dims))
    assert loops
    wrong = [f"{kernel}: axis {loop.axis}, extent {n}, {count} blocks" for kernel, loop, n, count in loops if count > 1]
    assert not wrong, "\n".join(wrong)


def test_at_full_size_only_loops_over_weights_run_more() -> None:
    config = models.load_config("qwen2.5-0.5b")
    for kernel, loop, n, count in bound_loops(of_config(config), {"b": 1, "s": 1, "p": 0}):
        assert count <= 1 or isinstance(loop.extent, int), (kernel, n, count)


def test_one_row_against_a_large_weight_reads_it_where_it_lies() -> None:
    """A product of fixed sizes is one block even where its weight has more elements than a block may compute: slices of columns would
    be copied out of the weight, which takes longer than the product."""
    specs = (jax.ShapeDtypeStruct((4864, 896), jnp.float32), dvm.spec("1, 4864"))
    program = pipeline.from_function(lambda w, x: x @ w, specs, {}).compile(start=False)
    loops = list(bound_loops(program, {}))
    assert loops
    assert all(count == 1 for *_, count in loops)


def test_a_launch_uses_these_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without blocks nothing is computed: what ``blocks`` says is what runs."""
    from vm import geometry

    program = dvm.compile(lambda x: jnp.exp(x), dvm.spec("b, s", b=dvm.Dim(max=8), s=dvm.Dim(max=512)))
    x = np.ones((2, 77), np.float32)
    np.testing.assert_allclose(program(x), np.exp(x), rtol=1e-6)
    monkeypatch.setattr(
        geometry, "blocks", lambda kind, rungs, n: [Blocks(b.size, b.masked) for b in blocks(kind, rungs, n)]
    )
    assert not np.allclose(program(np.full((2, 78), 2, np.float32)), np.exp(2))


PARALLEL = [
    Rungs((1,)),
    Rungs((8, 1)),
    Rungs((512,), (32,)),
    Rungs((256,), (128, 32, 16), True),
    Rungs((), (128, 32), True),
    Rungs((16, 1)),
]


@given(st.sampled_from(PARALLEL), st.integers(0, 10_000))
def test_parallel_blocks_cover_the_extent_without_much_more(rungs: Rungs, n: int) -> None:
    covered = np.zeros(n, bool)
    elements = 0
    for block in blocks(isa.LoopKind.PARALLEL, rungs, n):
        for t in range(block.count):
            at = block.start + t * block.size
            if not block.masked:
                at = min(at, n - block.size)
                assert at >= 0  # no block begins before the array or ends after it
            covered[at : at + block.size] = True
            elements += block.size
    assert covered.all()
    assert elements <= max(2 * n, min(rungs.masked, default=1))


@given(st.sampled_from([Rungs((128,)), Rungs((1024, 64)), Rungs((1,))]), st.integers(0, 10_000))
def test_reduce_blocks_follow_each_other(rungs: Rungs, n: int) -> None:
    at = 0
    for block in blocks(isa.LoopKind.REDUCE, rungs, n):
        if block.count:
            assert block.start == at and (block.masked or block.size == 1)
            at = min(at + block.count * block.size, n)
    assert at == n


def test_softmax_at_1_1() -> None:
    traced = pipeline.from_function(lambda x: jax.nn.softmax(x, axis=-1), (dvm.spec("b, s"),), {})
    program = traced.compile(start=False)
    assert all(count <= 1 for _, _, _, count in bound_loops(program, {"b": 1, "s": 1}))
    assert any(count > 1 for _, _, _, count in bound_loops(program, {"b": 3, "s": 5000}))  # the counts can tell
