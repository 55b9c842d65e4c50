"""Reduce loops run in wider steps only where that changes nothing: compiled ones do, and a hand-written one of another kind does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dvm
from tests.e2e import harness
from vm import assembler, serialise, verifier, widening
from vm.decode import decode
from vm.errors import ProgramError
from vm.geometry import Rungs, loops_of, plan
from vm.isa import LoopKind

STEP = 4
SUM = """
program weighted
symbol n min=0 max=1000
input x float32 [n]
output y float32 [1]

template weighted params=2 buffers=2
  tile  t0: float32[axis0 4] UB@0
  tile  t1: float32[] UB@32
  tile  t2: float32[] UB@64
  tile  t3: float32[1] UB@96
  tile  t4: float32[] UB@128
  fill  dst=t1 imm=0
  fill  dst=t2 imm={factor}
  barrier pipe=0
  loop  axis=0 kind=REDUCE tile=4 trips={{p0}} extent={{p1}}
    load  dst=t0 address=#0
    | dim=0 step=1 div=1 stride=1
    barrier pipe=0
{body}
    barrier pipe=0
  endloop axis=0
  bcast dst=t3 x=t1 mask=0
  barrier pipe=0
  store x=t3 address=#1
  | dim=0 step=1 div=1 stride=1
end

launch weighted [ceildiv(n, 4), n] x y
"""
ADD = "    reduce_sum dst=t1 x=t0 mask=1 accumulate=1"
SCALE = "    mul dst=t1 x=t1 y=t2\n    barrier pipe=0\n" + ADD
LOCAL = "    reduce_sum dst=t4 x=t0 mask=1\n    barrier pipe=0\n    mul dst=t4 x=t4 y=t4\n    barrier pipe=0\n    add dst=t1 x=t1 y=t4"
LAST = "    reduce_sum dst=t1 x=t0 mask=1"


def scaled(x: np.ndarray) -> float:
    total = 0.0
    for i in range(0, len(x), STEP):
        total = total * 2 + x[i : i + STEP].sum()
    return total


BODIES = {
    "sum": (ADD, True, lambda x: x.sum()),
    "scaled in every step": (SCALE, False, scaled),
    "squares of sums of a step": (
        LOCAL,
        False,
        lambda x: sum(x[i : i + STEP].sum() ** 2 for i in range(0, len(x), STEP)),
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_steps_that_matter_are_kept(name: str, tmp_path: Path) -> None:
    body, wide, fn = BODIES[name]
    program = assembler.assemble(SUM.format(factor="0x4000000000000000", body=body))
    verifier.verify(program)
    kernel = decode(program.templates[0])
    (loop,) = loops_of(kernel.body)
    assert loop.kind == LoopKind.REDUCE and widening.may_widen(kernel, loop) == wide
    assert (plan(kernel)[loop.axis] == Rungs((STEP,))) == (not wide)
    serialise.save(program, tmp_path / "hand.dvm")
    for tier in ("reference", "specialised"):
        loaded = dvm.load(tmp_path / "hand.dvm", tier=tier)
        for n in (1, 4, 5, 23):
            x = harness.random((n,), seed=n)
            (got,) = loaded(x)
            harness.check(np.asarray(got), np.asarray([fn(x.astype(np.float64))], np.float32), 1e-5, f"{tier} {n}")


def test_what_the_last_step_leaves_cannot_be_read() -> None:
    program = assembler.assemble(SUM.format(factor="0", body="    reduce_sum dst=t1 x=t0 mask=1"))
    with pytest.raises(ProgramError, match="reads tile 1, which nothing has written"):
        verifier.verify(program)
