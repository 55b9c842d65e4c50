"""Stores that add, and products whose long contracted dim is divided among cores (split-K), written by hand, on every executor."""

from __future__ import annotations

import numpy as np
import pytest

from tests.e2e import harness
from vm import assembler, disassembler, interpreter_image, reference, runtime, timing, verifier
from vm.binder import Binder
from vm.chip import Chip
from vm.errors import Hazard, ProgramError

TEXT = """
symbol m min=0 max=4096
symbol k min=0 max=1048576
symbol n min=0 max=4096
input x float16 [m, k]
input y float16 [k, n]
output z float32 [m, n]
{tensors}
template zero params=4 buffers=1
  tile t0: float32[axis0 64, axis1 128] UB@0
  loop axis=0 kind=PARALLEL tile=64 trips={{p0}} extent={{p1}}
  loop axis=1 kind=PARALLEL tile=128 trips={{p2}} extent={{p3}}
  fill dst=t0 imm=0 ; set=MTE3:0 back_wait=MTE3:0
  store x=t0 address=#0 ; wait=V:0 back_set=V:0
  | dim=0 step={{p3}} div=1 stride=1
  | dim=1 step=1 div=1 stride=1
  endloop axis=1
  endloop axis=0
end
template product params=8 buffers={buffers} mix=1
  tile t0: float32[axis0 64, axis1 128] L0C@0
  tile t1: float16[axis0 64, axis2 128] L1@0
  tile t2: float16[axis2 128, axis1 128] L1@16384
  tile t3: float32[axis0 64, axis1 128] UB@0
  loop axis=0 kind=PARALLEL tile=64 trips={{p0}} extent={{p1}}
  loop axis=1 kind=PARALLEL tile=128 trips={{p2}} extent={{p3}}
  loop axis=2 kind={split} tile={{p4}} trips={{p5}} extent={{p7}}
  fill dst=t0 imm={imm} ; back_wait=FIX:0
  loop axis=2 kind={reduce} tile=128 trips={{p6}} extent={{p7}}
  load dst=t1 address=#0 ; back_wait=M:0
  | dim=0 step={{p7}} div=1 stride=1
  | dim=1 step=1 div=1 stride=1
  load dst=t2 address=#1 ; set=M:0
  | dim=0 step={{p3}} div=1 stride=1
  | dim=1 step=1 div=1 stride=1
  mmad dst=t0 x=t1 y=t2 accumulate=1 xdims=9 ydims=6 ; wait=MTE2:0 back_set=MTE2:0
  endloop axis=2
  set pipe=M other=FIX event=0
  {copy} dst=t3 x=t0 ; wait=M:0 back_wait=MTE3:0 set=MTE3:0 back_set=M:0
  {before}
  store x=t3 add={add} address=#2 ; wait=FIX:0 back_set=FIX:0
  | dim=0 step={{p3}} div=1 stride=1
  | dim=1 step=1 div=1 stride=1
  endloop axis=2
  endloop axis=1
  endloop axis=0
end
launch zero [ceildiv(m, 64), m, ceildiv(n, 128), n] z
launch product [ceildiv(m, 64), m, ceildiv(n, 128), n, {chunk}, ceildiv(k, {chunk}), ceildiv(min(k, {chunk}), 128), k] x y {z}
"""
# As many parts of k as there are cores for each tile of the result, of 128 elements at least.
PARTS = "min(max(1, 25 // max(1, ceildiv(m, 64) * ceildiv(n, 128))), max(1, ceildiv(k, 128)))"
CHUNK = f"max(1, ceildiv(ceildiv(k, {PARTS}), 128)) * 128"
DEFAULT = {
    "chunk": CHUNK, "split": "SPLIT", "reduce": "REDUCE", "add": "1", "imm": "0", "copy": "copy", "before": "", "tensors": "",
    "buffers": "3", "z": "z",
}  # fmt: skip


def text(**changes: str) -> str:
    """A product whose contracted dim is divided as the launch's sizes say; ``chunk`` elements a part."""
    return TEXT.format(**{**DEFAULT, **changes})


def referred(written: str, arrays: list[np.ndarray], cores: int | None = None, check: bool = True) -> np.ndarray:
    """What the reference executor gives."""
    program = assembler.assemble(written)
    binder = Binder(program)
    bound = binder.bind_sizes(binder.check_inputs(arrays))
    if check:
        verifier.verify(program)
        verifier.BoundCheck(program)(bound)
    return reference.run(program, bound, arrays, cores=cores)[0]


def operands(m: int, k: int, n: int) -> list[np.ndarray]:
    return [harness.random((m, k), np.float16), harness.random((k, n), np.float16, seed=1)]


@pytest.mark.parametrize(("m", "n"), [(1, 1), (65, 129), (0, 3)])
@pytest.mark.parametrize("k", [0, 1, 127, 128, 129, 300, 3300])
def test_every_executor_gives_the_product(m: int, k: int, n: int) -> None:
    arrays = operands(m, k, n)
    want = arrays[0].astype(np.float32) @ arrays[1].astype(np.float32)
    interpreter_image.compiled(interpreter_image.FIRST_CLASS, interpreter_image.SMALLEST_CLASS)
    found = [referred(text(), arrays), referred(text(), arrays, cores=3)]
    program = assembler.assemble(text())
    found += [runtime.Executable(program, tier).launch(arrays)[0] for tier in ("interpreter", "specialised")]
    for got in found:
        harness.check(np.asarray(got), want, 1e-5)


TWICE = """
symbol n min=0
input x float32 [n]
output z float32 [n]
template zero params=2 buffers=1
  tile t0: float32[axis0 1024] UB@0
  loop axis=0 kind=PARALLEL tile=1024 trips={p0} extent={p1}
  fill dst=t0 imm=0 ; set=MTE3:0 back_wait=MTE3:0
  store x=t0 address=#0 ; wait=V:0 back_set=V:0
  | dim=0 step=1 div=1 stride=1
  endloop axis=0
end
template more params=2 buffers=2
  tile t0: float32[axis0 1024] UB@0
  loop axis=0 kind=PARALLEL tile=1024 trips={p0} extent={p1}
  load dst=t0 address=#0 ; set=MTE3:0 back_wait=MTE3:0
  | dim=0 step=1 div=1 stride=1
  store x=t0 add=1 address=#1 ; wait=MTE2:0 back_set=MTE2:0
  | dim=0 step=1 div=1 stride=1
  endloop axis=0
end
launch zero [ceildiv(n, 1024), n] z
launch more [ceildiv(n, 1024), n] x z
launch more [ceildiv(n, 1024), n] x z
"""


@pytest.mark.parametrize("n", [0, 1, 1025, 231_072])
def test_blocks_that_overlap_would_add_twice(n: int) -> None:
    """The last and largest size takes a whole block and most of another one, which is shifted back where nothing is added."""
    arrays = [harness.random((n,))]
    program = assembler.assemble(TWICE)
    found = [referred(TWICE, arrays)] + [
        runtime.Executable(program, t).launch(arrays)[0] for t in ("interpreter", "specialised")
    ]
    for got in found:
        np.testing.assert_array_equal(np.asarray(got), 2 * arrays[0])


def emulated(m: int, k: int, n: int, **changes: str) -> float:
    """Emulated time of both kernels, us."""
    program = assembler.assemble(text(**changes))
    return timing.emulate(program, Binder(program).bind((m, k, n))).us


@pytest.mark.parametrize(("m", "n", "k", "gain"), [(64, 128, 16384, 8), (128, 256, 8192, 2), (16, 128, 8192, 5)])
def test_a_long_sum_is_shared_out(m: int, n: int, k: int, gain: float) -> None:
    alone = "max(128, k)"
    assert emulated(m, k, n, chunk=alone) >= gain * emulated(m, k, n)


def test_where_there_are_tiles_enough_nothing_is_divided() -> None:
    assert emulated(2048, 1024, 2048) == emulated(2048, 1024, 2048, chunk="max(128, ceildiv(k, 128) * 128)")


def test_text_and_words_are_the_same() -> None:
    for template in assembler.assemble(text()).templates:
        written = disassembler.template_text(template)
        np.testing.assert_array_equal(assembler.assemble_template(written).words, template.words)
    assert "kind=SPLIT" in written and "add=1" in written


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"add": "0"}, "a store in it must add"),
        ({"imm": "1.0"}, "not a sum"),
        ({"reduce": "PARALLEL"}, "wants loops that sum up"),
        ({"split": "PARALLEL"}, "malformed"),
        ({"split": "ORDER"}, "cannot stand in another kind"),
        ({"before": "load dst=t3 address=#2\n| dim=0 step={p3} div=1 stride=1\n| dim=1 step=1 div=1 stride=1"}, "races with the stores"),
        ({"buffers": "4", "z": "z z", "before": "store x=t3 address=#3"}, "must add"),
        ({"chunk": "64 * 3"}, None),
    ],
)  # fmt: skip
def test_what_depends_on_how_the_work_is_divided_is_refused(change: dict[str, str], what: str | None) -> None:
    arrays = operands(65, 700, 129)
    if what is None:  # parts need not be whole tiles
        want = arrays[0].astype(np.float32) @ arrays[1].astype(np.float32)
        harness.check(referred(text(**change), arrays), want, 1e-5)
        return
    with pytest.raises((ProgramError, Hazard), match=what):
        referred(text(**change), arrays)


def test_a_buffer_that_is_added_to_has_one_name() -> None:
    """The verifier sees that two of a kernel's buffers are one; a plain store through the second would race."""
    (_, template) = assembler.assemble(text()).templates
    written = text(buffers="4", z="z z").replace("  set pipe=M", "  set pipe=M", 1)
    with pytest.raises(ProgramError, match="as another one as well"):
        referred(written, operands(65, 700, 129))
    assert template.n_buffers == 3


def test_the_reference_executor_finds_what_the_verifier_refuses() -> None:
    """Plain stores of several cores race; adding to what nobody has set is an uninitialised read."""
    arrays = operands(10, 1000, 10)
    with pytest.raises(Hazard, match="race"):
        referred(text(add="0"), arrays, check=False)
    lines = [line for line in text().splitlines() if not line.startswith("launch zero")]
    with pytest.raises(Hazard, match="uninitialised read"):
        referred("\n".join(lines), arrays, check=False)
    with pytest.raises(ProgramError, match="no step before it stores"):
        referred("\n".join(lines), arrays)


def test_only_floats_are_added() -> None:
    (_, template) = assembler.assemble(
        text().replace("float32[axis0 64, axis1 128] UB@0", "int32[axis0 64, axis1 128] UB@0")
    ).templates
    with pytest.raises(ProgramError, match="adds float32 only|equal types"):
        verifier.verify_template(template, Chip.load("910B1"))
