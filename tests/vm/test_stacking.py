"""Stacking: the parallel table, what a launch is, the division of cores, and that a wrong table is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dvm
from codegen.stacking import _stack
from dvm.program import CompiledProgram
from tests.vm.emulated import compiled
from vm import reference, serialise, stacking, timing, validate, verifier
from vm.binder import Binder
from vm.decode import decode, stored_buffers
from vm.errors import Hazard, ProgramError
from vm.program import CondStep, HostStep, KernelStep, Program, stages

B = dvm.Dim("b", max=64)


def experts(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Layers side by side, each on an input of its own (products of one input would be one kernel)."""
    n = len(arrays) // 2
    return tuple(jax.nn.relu(x @ w) for x, w in zip(arrays[:n], arrays[n:], strict=True))


def expert_program(n: int = 4) -> CompiledProgram:
    return compiled(experts, *[dvm.spec("b, 32", jnp.float32, b=B)] * n, *[dvm.spec("32, 32", jnp.float32)] * n)


def chain_of_two() -> Program:
    """One kernel that another one depends on."""

    def fn(x: jax.Array, v: jax.Array, w: jax.Array) -> jax.Array:
        return jax.nn.relu(x @ v) @ w

    program = compiled(fn, dvm.spec("b, 32", jnp.float32, b=B), *[dvm.spec("32, 32", jnp.float32)] * 2).program
    assert len(stages.kernels_of(program.steps)) == 2
    return program


def test_experts_run_side_by_side() -> None:
    prog = expert_program()
    assert [len(stage) for stage in prog.stages] == [4]
    assert prog.launches == 1
    assert [k.name for k in prog.kernels] == [name for stage in prog.stages for name in stage]
    stage = prog.profile(b=64).time.stages[0]
    assert stage.side_by_side and len(stage.kernels) == 4
    chip = timing.Chip.load(prog.program.chip)
    assert sum(kernel.cores for kernel in stage.kernels) <= chip.cube_cores


def test_the_layers_of_a_mixture_are_stages() -> None:
    """Experts of two layers, given one after the other: memory is planned after stacking, so it does not tie them to an order."""

    def mixture(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        layers = zip(arrays[:4], arrays[4::2], arrays[5::2], strict=True)
        return tuple(jax.nn.softmax(jax.nn.softmax(x @ v) @ w) for x, v, w in layers)

    prog = compiled(mixture, *[dvm.spec("b, 32", jnp.float32, b=B)] * 4, *[dvm.spec("32, 32", jnp.float32)] * 8)
    assert all(len(stage) == 4 for stage in prog.stages)
    assert prog.launches == 1 and len(prog.stages) * 4 == len(prog.kernels)


def test_no_more_than_eight_side_by_side() -> None:
    assert [len(stage) for stage in expert_program(10).stages] == [8, 2]


def test_a_stage_takes_less_time_than_its_kernels_one_after_the_other() -> None:
    prog = expert_program()
    alone = replace(prog.program, stages=())
    bound = prog.bind(b=64)
    stacked, plain = timing.emulate(prog.program, bound), timing.emulate(alone, bound)
    assert stacked.cycles < 0.7 * plain.cycles
    assert len(plain.stages) == len(plain.kernels) == len(stacked.kernels)


def test_the_table_is_in_the_file() -> None:
    program = expert_program().program
    again = serialise.loads(serialise.dumps(program))
    assert again.stages == program.stages != ()
    assert stages.stages(again) == stages.stages(program)


def feeds(program: Program, b: int = 5) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    shapes = Binder(program).bind((b,)).input_shapes
    return [generator.standard_normal(shape, np.float32) for shape in shapes]


def test_the_reference_executor_runs_a_stage_side_by_side() -> None:
    program = expert_program().program
    arrays = feeds(program)
    got = reference.run(program, Binder(program).bind((5,)), arrays)
    for one, want in zip(got, experts(*arrays), strict=True):
        np.testing.assert_allclose(one, want, rtol=1e-5, atol=1e-5)


def test_dependent_kernels_in_one_stage_are_refused() -> None:
    program = chain_of_two()
    assert program.stages == (1, 1)
    verifier.verify(program)
    wrong = replace(program, stages=(2,))
    validate.validate(wrong)  # the table as such is well formed
    with pytest.raises(ProgramError, match="side by side, but one writes what the other one uses"):
        verifier.verify(wrong)
    with pytest.raises(Hazard, match="race|uninitialised"):
        reference.run(wrong, Binder(wrong).bind((64,)), feeds(wrong, 64))


def test_a_stage_whose_memory_overlaps_at_these_sizes_is_refused() -> None:
    """The second kernel's buffer is moved by a register of its own that happens to give the place of the first one's."""
    program = expert_program(2).program
    first, second = stages.stages(program)[0]
    verifier.BoundCheck(program)(Binder(program).bind((5,)))
    moved = dict(zip(written(program, second), written(program, first), strict=True))
    buffers = list(program.buffers)
    code = program.code
    for out, other in moved.items():
        offset = buffers[other].offset
        assert offset is not None
        zero = next(n for n, (op, a, _) in enumerate(code.code, code.n_inputs) if op == 0 and a == 0)
        code = replace(code, code=(*code.code, (1, offset, zero)))
        buffers[out] = replace(buffers[out], offset=code.n_registers - 1, space=buffers[other].space)
    wrong = replace(program, buffers=tuple(buffers), code=code)
    bound = Binder(wrong).bind((5,))
    verifier.verify(wrong)  # not for every size
    with pytest.raises(ProgramError, match="whose memory overlaps"):
        verifier.BoundCheck(wrong)(bound)


def written(program: Program, step: KernelStep) -> list[int]:
    kernel = decode(program.templates[step.template])
    return [step.buffers[k] for k in stored_buffers(kernel)]


@pytest.mark.parametrize("stages", [(1,), (1, 1, 1), (0, 2), (3,), (-1, 3), (2, 0)])
def test_tables_that_do_not_fit_the_steps_are_refused(stages: tuple[int, ...]) -> None:
    with pytest.raises(ProgramError, match="parallel table"):
        validate.validate(replace(chain_of_two(), stages=stages))


def test_host_operations_cut_launches() -> None:
    prog = compiled(lambda x: jnp.sort(x * 2.0) + 1.0, dvm.spec("b", jnp.float32, b=B))
    hosts = sum(isinstance(step, HostStep) for step in prog.steps)
    kernels = sum(isinstance(step, KernelStep) for step in prog.steps)
    assert (hosts, kernels, prog.launches) == (1, 2, 2)


def test_device_predicates_do_not_cut_launches() -> None:
    def fn(x: jax.Array) -> jax.Array:
        y = jax.lax.cond(x.sum() > 0, lambda v: v @ v.T, lambda v: (v - 1.0) @ v.T, x)
        return y * 2.0

    prog = compiled(fn, dvm.spec("b, 8", jnp.float32, b=B))
    assert any(isinstance(step, CondStep) for step in prog.steps)
    assert prog.launches == 1
    assert "most expensive branch" in prog.profile(b=7).time.notes[0]


@given(
    work=st.lists(st.floats(0, 1e9), min_size=1, max_size=8),
    cores=st.integers(8, 50),
    most=st.lists(st.integers(1, 50), min_size=8, max_size=8),
)
def test_division_of_cores(work: list[float], cores: int, most: list[int]) -> None:
    got = stacking.divide(work, cores, most)
    assert sum(got) <= cores and all(1 <= n <= m for n, m in zip(got, most, strict=False))


def test_division_follows_the_work() -> None:
    assert stacking.divide([10.0, 30.0], 40, [50, 50]) == [10, 30]
    assert stacking.divide([10.0, 30.0], 40, [2, 50]) == [2, 38]
    with pytest.raises(ValueError, match="3 kernels cannot share 2 cores"):
        stacking.divide([1.0] * 3, 2, [1] * 3)


def kernel(written: int, *read: int) -> Any:
    return KernelStep(written, (), (written, *read))


class FakeUses:
    """Kernels of which the first buffer is written."""

    def of(self, step: KernelStep) -> tuple[set[Any], set[Any]]:
        return {(b,) for b in step.buffers}, {(step.buffers[0],)}


@given(st.lists(st.tuples(st.integers(0, 6), st.lists(st.integers(0, 6), max_size=3)), max_size=40))
def test_no_kernel_passes_one_that_it_depends_on(steps: list[tuple[int, list[int]]]) -> None:
    run = [KernelStep(i, (), (w, *r)) for i, (w, r) in enumerate(steps)]
    found = _stack(run, FakeUses())  # type: ignore[arg-type]
    place = {step.template: k for k, stage in enumerate(found) for step in stage}
    assert sorted(place) == list(range(len(run)))
    for i, a in enumerate(run):
        for j in range(i):
            b = run[j]
            if a.buffers[0] in b.buffers or b.buffers[0] in a.buffers:
                assert place[j] < place[i]
