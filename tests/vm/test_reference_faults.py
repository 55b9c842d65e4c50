"""Faults put into programs end in named hazards: compiled programs with one thing wrong, and small ones written by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.e2e.harness import random, spec
from tests.vm import reference_mutants as mutants
from vm import assembler, isa, reference
from vm.binder import Binder
from vm.errors import Hazard


def layer_norm(x: Any, g: Any, b: Any) -> Any:
    m = x.mean(-1, keepdims=True)
    return (x - m) / jnp.sqrt(((x - m) ** 2).mean(-1, keepdims=True) + 1e-5) * g + b


def attention(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.softmax(q @ jnp.swapaxes(k, -1, -2) / 4, -1) @ v


def inputs(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    return [random(shape, seed=i) for i, shape in enumerate(shapes)]


# Sizes that are no multiples of the tiles (tails), and sizes that are (then tiles are full and overlap where they can).
TABLE: dict[str, tuple[Callable[..., Any], list[Any], list[list[np.ndarray]]]] = {
    "chain": (lambda x, y: jnp.tanh(x) * y + jnp.exp(-x * x), [spec("n, 33")] * 2, [inputs((70, 33), (70, 33))]),
    "layer_norm": (
        layer_norm,
        [spec("n, d"), spec("d"), spec("d")],
        [inputs((70, 50), (50,), (50,)), inputs((64, 32), (32,), (32,))],
    ),
    "softmax": (lambda x: jax.nn.softmax(x, -1), [spec("b, s")], [inputs((70, 50)), inputs((64, 32))]),
    "matmul": (lambda a, b: a @ b, [spec("m, k"), spec("k, n")], [inputs((70, 70), (70, 70))]),
    "epilogue": (lambda a, b: jax.nn.relu(a @ b.T) + 1, [spec("m, 64"), spec("n, 64")], [inputs((70, 64), (70, 64))]),
    "whole": (lambda x: x / x.sum(), [spec("n, d")], [inputs((20, 70))]),
    "column_sums": (lambda x: x.sum(0), [spec("n, d")], [inputs((70, 70))]),
    "arg": (lambda x: jnp.argmax(x, -1), [spec("n, d")], [inputs((70, 50))]),
    "take": (
        lambda x, i: jnp.take(x, i, axis=0) * 2,
        [spec("n, d"), spec("k", jnp.int32)],
        [[random((30, 70)), np.arange(20, dtype=np.int32)]],
    ),
    "attention": (attention, [spec("b, h, s, 16")] * 3, [inputs(*[(1, 2, 40, 16)] * 3), inputs(*[(1, 2, 64, 16)] * 3)]),
}
SLOW = ("attention",)
NAMES = [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in TABLE]


@pytest.fixture(scope="module")
def case() -> Callable[[str], mutants.Case]:
    made: dict[str, mutants.Case] = {}
    patch = pytest.MonkeyPatch()

    def get(name: str) -> mutants.Case:
        if name not in made:
            made[name] = mutants.compiled(name, *TABLE[name], patch)
        return made[name]

    return get


def found(outcomes: list[mutants.Outcome]) -> float:
    """The share of mutants that ended in a hazard."""
    return sum(o.kind not in ("harmless", "silent") for o in outcomes) / len(outcomes)


@pytest.mark.parametrize("name", NAMES)
def test_flags_and_barriers_matter(name: str, case: Callable[[str], mutants.Case]) -> None:
    """A flag removed or renumbered is a race, a deadlock, or an event left over. The few that are not: barriers and waits that only an
    empty loop makes necessary (without its instructions, nothing else orders what stands around it)."""
    outcomes = mutants.mutate(case(name), mutants.sync_mutants)
    assert not [o for o in outcomes if o.kind == "silent"], mutants.report(outcomes)
    assert {o.kind for o in outcomes} <= {"race", "deadlock", "event", "harmless", "uninitialised read", "overwritten"}
    assert found(outcomes) >= 0.95, mutants.report(outcomes)


@pytest.mark.parametrize("name", NAMES)
def test_dependencies_matter(name: str, case: Callable[[str], mutants.Case]) -> None:
    """A set and its wait removed together leave no event over: only a race can tell."""
    outcomes = mutants.edge_mutants(case(name))
    assert not [o for o in outcomes if o.kind == "silent"], mutants.report(outcomes)
    assert found(outcomes) >= 0.9, mutants.report(outcomes)


@pytest.mark.parametrize("name", ["chain", "layer_norm", "softmax", "matmul", "epilogue", "take"])
def test_addresses_that_are_shifted(name: str, case: Callable[[str], mutants.Case]) -> None:
    """A tile that is moved onto another one, or an access that is moved out of its buffer, is found. Others are other programs without
    a fault: a tile moved to where nothing is in use gives the same result, a load moved inside its buffer reads something else."""
    outcomes = mutants.mutate(case(name), mutants.address_mutants, verified=True)
    for o in outcomes:
        assert o.kind != "silent" or " load shifted" in o.what, mutants.report(outcomes)
        assert o.kind != "harmless" or " moved by " in o.what, mutants.report(outcomes)
    kinds = {o.kind for o in outcomes}
    assert "out-of-bounds" in kinds and "refused" in kinds


@pytest.mark.parametrize("name", ["chain", "layer_norm", "matmul", "epilogue"])
def test_tiles_that_are_too_small(name: str, case: Callable[[str], mutants.Case]) -> None:
    outcomes = mutants.mutate(case(name), mutants.shrink_mutants, verified=True)
    assert found(outcomes) == 1, mutants.report(outcomes)


@pytest.mark.parametrize("name", ["chain", "layer_norm", "matmul", "take"])
def test_buffers_that_are_too_small(name: str, case: Callable[[str], mutants.Case]) -> None:
    """The binder would refuse such a buffer; the executor sees it too."""
    one = case(name)
    arrays = one.inputs[0]
    for b, buffer in enumerate(one.program.buffers):
        if name == "take" and buffer.input == 0:
            continue  # the last rows of the table are not looked up
        binder = Binder(one.program)
        bound = binder.bind_sizes(binder.check_inputs(arrays))
        bound.regs.append(bound.regs[buffer.elements] - 1)
        buffers = list(one.program.buffers)
        buffers[b] = dataclasses.replace(buffer, elements=len(bound.regs) - 1)
        program = dataclasses.replace(one.program, buffers=tuple(buffers))
        with pytest.raises(Hazard, match="out-of-bounds"):
            reference.run(program, bound, arrays, one.chip, cores=1)


def test_memories_that_are_too_small(case: Callable[[str], mutants.Case]) -> None:
    for name in ("chain", "layer_norm", "softmax"):
        one = case(name)
        used = max(k["local_bytes"] for k in one.program.debug["kernels"])
        right = one.run(one.program, chip=mutants.small_chip(used))
        assert all(np.array_equal(a, b) for a, b in zip(right, one.right, strict=True))
        with pytest.raises(Hazard, match="out-of-bounds"):
            one.run(one.program, chip=mutants.small_chip(used - 32 * 4))


def test_no_kernel_has_a_barrier_over_all_pipes(case: Callable[[str], mutants.Case]) -> None:
    for name in TABLE:
        for template in case(name).program.templates:
            for at, insn in mutants.instructions(template):
                assert insn.name != "barrier" or isa.get(template.words, at, insn.fields[0]) != isa.Pipe.S


# --- written by hand ---------------------------------------------------------------------------------------------------------------
HEAD = """
symbol n min=0
input x float32 [n]
output z float32 [n]
template t params=2 buffers=2
  tile t0: float32[axis0 8] UB@0
  tile t1: float32[axis0 8] UB@{second}
  loop axis=0 kind=PARALLEL tile=8 trips={{p0}} extent={{p1}}
"""
TAIL = "  endloop axis=0\nend\nlaunch t [ceildiv(n, 8), n] x z\n"
TERM = "  | dim=0 step=1 div=1 stride=1\n"
LOAD, STORE = (
    "  load dst=t0 address=#0{offset} ; {sync}\n" + TERM,
    "  store x={tile} address=#{buffer} ; {sync}\n" + TERM,
)


def kernel(
    load: str, compute: str, store: str, second: int = 64, offset: str = "", tile: str = "t1", buffer: int = 1
) -> str:
    return (
        HEAD.format(second=second)
        + LOAD.format(offset=offset, sync=load)
        + f"  exp dst=t1 x=t0 ; {compute}\n"
        + STORE.format(tile=tile, sync=store, buffer=buffer)
        + TAIL
    )


GOOD = ("set=V:0 back_wait=V:0", "wait=MTE2:0 set=MTE3:0 back_set=MTE2:0 back_wait=MTE3:0", "wait=V:0 back_set=V:0")


def outcome(text: str, n: int = 20, cores: int = 1) -> str:
    program = assembler.assemble(text)
    binder = Binder(program)
    x = random((n,))
    bound = binder.bind_sizes(binder.check_inputs([x]))
    try:
        (got,) = reference.run(program, bound, [x], cores=cores)
    except Hazard as hazard:
        assert f"word {hazard.word}" in str(hazard) or not hazard.kernel
        return hazard.kind
    np.testing.assert_allclose(got, np.exp(x), rtol=1e-6)
    return "right"


@pytest.mark.parametrize("cores", [1, 2, 48])
def test_the_good_one(cores: int) -> None:
    assert outcome(kernel(*GOOD), cores=cores) == "right"
    assert outcome(kernel(*GOOD), n=0) == "right"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (kernel("back_wait=V:0", "set=MTE3:0 back_set=MTE2:0 back_wait=MTE3:0", GOOD[2]), "race"),  # load -> compute
        (kernel(GOOD[0], "wait=MTE2:0 back_set=MTE2:0 back_wait=MTE3:0", "back_set=V:0"), "race"),  # compute -> store
        (kernel("set=V:0", "wait=MTE2:0 set=MTE3:0 back_wait=MTE3:0", GOOD[2]), "race"),  # compute -> next load
        (kernel(GOOD[0], "wait=MTE2:0 set=MTE3:0 back_set=MTE2:0", "wait=V:0"), "race"),  # store -> next compute
        (kernel(GOOD[0], GOOD[1].replace("wait=MTE2:0", "wait=MTE2:1", 1), GOOD[2]), "deadlock"),
        (kernel(GOOD[0].replace("back_wait=V:0", "back_wait=V:3"), *GOOD[1:]), "deadlock"),
        (kernel(GOOD[0] + " wait=V:1", GOOD[1], GOOD[2]), "deadlock"),
        (kernel(*GOOD[:2], GOOD[2] + " set=MTE1:5"), "event"),
        (kernel(*GOOD, second=0), "race"),  # one tile on top of the other, without a barrier
        (kernel(*GOOD, offset=" offset=1"), "out-of-bounds"),
        (kernel(*GOOD, offset=" offset=-1"), "out-of-bounds"),
        (kernel(*GOOD, second=196608 - 512 - 16), "out-of-bounds"),
        (kernel(*GOOD, buffer=0), "read-only"),
        (kernel(*GOOD).replace("exp dst=t1 x=t0", "exp dst=t1 x=t1"), "uninitialised read"),
        (kernel(*GOOD).replace("address=#0", "address=#1"), "uninitialised read"),
        (kernel(*GOOD).replace("axis0 8] UB@64", "axis0 4] UB@64"), "mismatch"),
        (kernel(*GOOD).replace("div=1 stride=1", "div=2 stride=1"), "race"),  # one element stored twice
    ],
)  # fmt: skip
def test_a_fault_has_a_name(text: str, kind: str) -> None:
    assert outcome(text) == kind


def test_an_overwritten_tile_and_a_missing_barrier() -> None:
    tiles = "  tile t1: float32[axis0 8] UB@64\n  tile t2: float32[axis0 8] UB@{}\n"
    two = "  neg dst=t2 x=t0 ; {}\n  neg dst=t1 x=t2 ; {}\n  exp dst=t1 x=t0 ; {}\n"
    good = GOOD[1].split(" set")
    wait, rest = good[0], "set" + good[1]

    def text(address: int, *barriers: str) -> str:
        sync = [
            f"{wait} back_wait=MTE3:0 {barriers[0]}",
            barriers[1],
            f"{rest.replace('back_wait=MTE3:0', '')} {barriers[2]}",
        ]
        body = kernel(GOOD[0], GOOD[1], GOOD[2])
        body = body.replace("  tile t1: float32[axis0 8] UB@64\n", tiles.format(address))
        return body.replace(f"  exp dst=t1 x=t0 ; {GOOD[1]}\n", two.format(*sync))

    assert outcome(text(128, "barrier", "barrier", "barrier")) == "right"
    assert outcome(text(128, "barrier", "", "barrier")) == "race"
    assert outcome(text(128, "barrier", "barrier", "")) == "race"
    assert outcome(text(0, "barrier", "barrier", "barrier")) == "overwritten"


def test_cores_must_not_share_elements() -> None:
    text = kernel(*GOOD).replace(TERM + "  endloop", TERM.replace("step=1", "step=0") + "  endloop")
    assert outcome(text, n=1) == "right"
    assert (
        outcome(text.replace("tile=8", "tile=1").replace("axis0 8", "axis0 1").replace("n, 8", "n, 1"), n=2, cores=2)
        == "race"
    )


def test_a_full_queue_is_a_deadlock_too() -> None:
    """The scalar pipe cannot issue the set that would free the queue."""
    lines = "".join(f"  exp dst=t1 x=t0 ; {'wait=MTE2:0' if i == 0 else 'barrier'}\n" for i in range(40))
    text = HEAD.format(second=64) + lines + LOAD.format(offset="", sync="set=V:0") + TAIL
    assert outcome(text) == "deadlock"
