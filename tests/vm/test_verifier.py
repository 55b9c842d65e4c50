"""Programs that the executors could not run safely are refused before they run."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dvm
from tests.e2e import harness
from tests.vm.test_assembler import SCALED_SUM
from vm import assembler, isa, serialise, verifier
from vm.binder import Binder
from vm.errors import ProgramError
from vm.program import Program

PLAIN = """
symbol n min=0 max=1000000
input x float32 [n, 8]
output z float32 [n, 8]
template t params=2 buffers=2
  tile t0: float32[axis0 64, 8] UB@0
  tile t1: float32[axis0 64, 8] UB@2048
  tile t2: bool[axis0 64, 8] UB@4096
  tile t3: float32[axis0 64] UB@8192
  tile t4: int32[axis0 64, 8] UB@12288
  loop axis=0 kind=PARALLEL tile=64 trips={p0} extent={p1}
    load dst=t0 address=#0 ; set=V:0 back_wait=V:0
    | dim=0 step=8 div=1 stride=1
    | dim=1 step=1 div=1 stride=1
    exp dst=t1 x=t0 ; wait=MTE2:0 set=MTE3:0 back_set=MTE2:0 back_wait=MTE3:0
    store x=t1 address=#1 ; wait=V:0 back_set=V:0
    | dim=0 step=8 div=1 stride=1
    | dim=1 step=1 div=1 stride=1
  endloop axis=0
end
launch t [ceildiv(n, 64), n] x z
"""


def refused(text: str) -> str:
    with pytest.raises(ProgramError) as caught:
        verifier.verify(assembler.assemble(text))
    return str(caught.value)


def test_the_plain_ones_pass() -> None:
    verifier.verify(assembler.assemble(PLAIN))
    verifier.verify(assembler.assemble(SCALED_SUM))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("exp dst=t1 x=t0", "exp dst=t1 x=t9", "tile 9, which is not declared"),
        ("exp dst=t1 x=t0", "exp dst=t2 x=t0", "equal types"),
        ("exp dst=t1 x=t0", "exp dst=t3 x=t0", "equal dims"),
        ("exp dst=t1 x=t0", "lt dst=t1 x=t0 y=t0", "equal types|gives bool"),
        ("exp dst=t1 x=t0", "and dst=t1 x=t0 y=t0", "no meaning for float32"),
        ("exp dst=t1 x=t0", "shift_left dst=t1 x=t0 y=t0", "no meaning for float32"),
        ("exp dst=t1 x=t0", "select dst=t1 x=t0 y=t0 p=t0", "bool p"),
        ("exp dst=t1 x=t0", "exp dst=t1 x=t1", "reads tile 1 from another one"),
        ("exp dst=t1 x=t0", "fill dst=t1\n reduce_sum dst=t3 x=t0 mask=1", "x's other dims"),
        ("exp dst=t1 x=t0", "fill dst=t1\n reduce_sum dst=t3 x=t0 mask=6", "beyond rank 2"),
        ("exp dst=t1 x=t0", "fill dst=t1\n argmax dst=t3 x=t0 y=t3 dim=1", "indices and values"),
        ("exp dst=t1 x=t0", "fill dst=t1\n bcast dst=t1 x=t0 mask=1", "masked dims"),
        ("exp dst=t1 x=t0", "permute dst=t1 x=t0 perm=17", "a permutation"),
        ("exp dst=t1 x=t0", "permute dst=t1 x=t0 perm=1", "x permuted"),
        ("exp dst=t1 x=t0", "extract dst=t1 x=t0 dim=0", "dim 0 to be fixed"),
        ("exp dst=t1 x=t0", "extract dst=t1 x=t0 dim=1 start=1 step=1", "reaches beyond x"),
        ("exp dst=t1 x=t0", "join dst=t1 x=t0 x=t0 dim=1", "joins 16 elements into 8"),
        ("exp dst=t1 x=t0", "copy dst=t3 x=t0\n fill dst=t1", "equally many elements"),
        ("exp dst=t1 x=t0", "cumsum dst=t1 x=t0 dim=0", "dim 0 to be fixed"),
        ("exp dst=t1 x=t0", "mmad dst=t1 x=t0 y=t0 xdims=9 ydims=6", "operands in L1"),
        ("exp dst=t1 x=t0", "lookup dst=t1 x=t0 y=t0 dim=1", "integer indices"),
        ("wait=MTE2:0 set", "wait=7:0 set", "no pipe 7"),
        ("tile=64 trips", "tile=32 trips", "does not hold a step of 32"),
        ("tile=64 trips", "tile=0 trips", "steps of 0"),
        ("UB@2048", "UB@2056", "multiples of 32"),
        ("UB@12288", "UB@196608", "of UB, which has"),
        ("UB@2048\n", "UB@1024\n", "reads tile 0, which nothing has written or another tile has overwritten"),
        ("    | dim=1 step=1 div=1 stride=1\n    exp", "    | dim=2 step=1 div=1 stride=1\n    exp", "names dim 2 of a tile of rank 2"),
        ("    | dim=1 step=1 div=1 stride=1\n    exp", "    | dim=1 chain=1\n    exp", "ends with a chained term"),
        ("    | dim=1 step=1 div=1 stride=1\n    exp", "    | gather=1 index=t0 mask=3\n    exp", "integer indices"),
        ("    | dim=1 step=1 div=1 stride=1\n  endloop", "    | dim=1 bounded=1 hi=3\n  endloop", "no bounded terms"),
        ("dim=0 step=8 div=1 stride=1", "dim=0 step=8 div=1 stride=4611686018427387905", "beyond what addresses can name"),
        ("dim=0 step=8 div=1 stride=1", "dim=0 step=8 start=4611686018427387905 div=1 stride=1", "beyond what addresses can name"),
        ("address=#0 ;", "address=#0 offset=4611686018427387905 ;", "beyond what addresses can name"),
        ("store x=t1", "store x=t3", "names dim 1 of a tile of rank 1|which nothing"),
        ("float32[axis0 64, 8] UB@0", "int32[axis0 64, 8] UB@0", "no meaning for int32|equal types|load of int32"),
        ("x z\n", "x x\n", "a store to read-only"),
        ("x z\n", "x y\n", "no tensor 'y'"),
        ("  endloop axis=0\n", "", "open loop"),
        ("  endloop axis=0\n", "  endloop axis=1\n", "does not match"),
    ],
)  # fmt: skip
def test_malformed_templates(old: str, new: str, message: str) -> None:
    text = PLAIN.replace(old, new, 1)
    assert text != PLAIN
    if "overwritten" in message:
        text = text.replace("exp dst=t1 x=t0", "exp dst=t1 x=t0\n exp dst=t1 x=t0")
    found = refused(text)
    assert re.search(message, found), found


def test_an_iteration_that_needs_another_one() -> None:
    text = PLAIN.replace("  loop axis=0", "  fill dst=t3\n  loop axis=0").replace(
        "float32[axis0 64] UB", "float32[8] UB"
    )
    text = text.replace("exp dst=t1 x=t0", "exp dst=t1 x=t0\n reduce_sum dst=t3 x=t0 mask=1 accumulate=1")
    assert "from another one" in refused(text)
    text = text.replace("kind=PARALLEL", "kind=REDUCE").replace("accumulate=1 ; wait=MTE2:0", "accumulate=1 ; barrier")
    text = text.replace("back_wait=MTE3:0\n", "\n").replace(
        "exp dst=t1 x=t0", "exp dst=t1 x=t0 ; wait=MTE2:0 back_wait=MTE3:0"
    )
    verifier.verify(assembler.assemble(text))


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("wait=MTE2:0 set", "set", "race"),
        ("set=V:0 back_wait=V:0", "set=V:0", "race"),
        ("wait=V:0 back_set=V:0", "wait=V:0", "deadlock"),
        ("wait=V:0 back_set=V:0", "back_set=V:0", "race"),
        ("; set=V:0", "; set=V:1", "deadlock"),
        ("x=t1 address=#1 ; wait=V:0", "x=t1 address=#1 ; wait=V:0 set=V:4", "event"),
    ],
)
def test_events_that_do_not_order(old: str, new: str, kind: str) -> None:
    assert PLAIN.replace(old, new, 1) != PLAIN
    assert refused(PLAIN.replace(old, new, 1)).startswith(kind)


def test_a_tile_that_the_second_iteration_misses() -> None:
    text = PLAIN.replace("float32[axis0 64] UB@8192", "float32[axis0 64, 8] UB@12288")
    text = text.replace("exp dst=t1 x=t0", "add dst=t1 x=t0 y=t3\n fill dst=t4")
    assert "reads tile 3" in refused(text)


def test_bits_that_mean_nothing() -> None:
    program = assembler.assemble(PLAIN)
    (template,) = program.templates
    for word, bit in ((0, 3), (1, 30), (1, 60), (2, 25), (3, 40), (len(template.words) - 3, 20)):
        words = template.words.copy()
        words[word] |= np.uint64(1 << bit)
        changed = dataclasses.replace(program, templates=(dataclasses.replace(template, words=words),))
        with pytest.raises(ProgramError):
            verifier.verify(changed)


def check(program: Program, **symbols: int) -> None:
    verifier.BoundCheck(program)(Binder(program).bind_symbols(symbols))


def test_bindings() -> None:
    for n in (0, 1, 63, 64, 1000):
        check(assembler.assemble(PLAIN), n=n)
        check(assembler.assemble(SCALED_SUM), n=min(n, 1000))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[ceildiv(n, 64), n]", "[n, n]", "do not make a loop"),
        ("[ceildiv(n, 64), n]", "[ceildiv(n + 1, 64), n + 1]", "accesses elements 0 to 647 of a buffer of 640"),
        ("address=#0 ;", "address=#0 offset=1 ;", "accesses elements 1 to 640"),
        ("address=#1 ;", "address=#1 offset=-1 ;", "accesses elements -1 to 638"),
        ("step=8 div=1 stride=1\n    | dim=1", "step=-8 div=1 stride=1\n    | dim=1", "accesses elements -632 to 7"),
        ("step=8 div=1 stride=1\n    | dim=1", "step=8 div=1 stride=17592186044416\n    | dim=1", "accesses elements"),
        ("input x float32 [n, 8]", "input x float32 [n, 7]", "accesses elements 0 to 639 of a buffer of 560"),
    ],
)  # fmt: skip
def test_accesses_that_leave_their_buffers(old: str, new: str, message: str) -> None:
    text = PLAIN.replace(old, new, 1)
    assert text != PLAIN
    program = assembler.assemble(text)
    verifier.verify(program)
    with pytest.raises(ProgramError, match=message):
        check(program, n=80)


def test_terms_that_share_a_dim_are_counted_exactly() -> None:
    """x[i // 8, i % 8] of a tile of one dim: the terms' ranges added would be too large for a last row that is not full."""
    text = """
symbol n min=0
input x float32 [n]
output z float32 [n]
template t params=2 buffers=2
  tile t0: float32[axis0 64] UB@0
  loop axis=0 kind=PARALLEL tile=64 trips={p0} extent={p1}
    load dst=t0 address=#0
    | dim=0 step=8 div=8 stride=1
    | dim=0 step=1 div=1 mod=8 stride=1
    store x=t0 address=#1
    | dim=0 step=1 div=1 stride=1
  endloop axis=0
end
launch t [ceildiv(n, 64), n] x z
"""
    for n in (1, 7, 8, 9, 1000, 1001):
        check(assembler.assemble(text), n=n)
    with pytest.raises(ProgramError, match="accesses elements 0 to 1000"):
        check(
            assembler.assemble(text.replace("step=8 div=8", "step=9 div=8").replace("n, 64), n]", "n, 64), 890]")),
            n=890,
        )


def test_loops_without_end() -> None:
    inner = "    loop axis=1 kind=REDUCE tile=1 trips=4000000 extent=4000000\n    endloop axis=1\n  endloop axis=0"
    program = assembler.assemble(PLAIN.replace("  endloop axis=0", inner))
    verifier.verify(program)
    check(program, n=64)
    with pytest.raises(ProgramError, match="steps, more than"):
        check(program, n=64 * 100)


def test_compiled_programs_pass_and_files_are_checked(tmp_path: Path) -> None:
    spec = harness.spec
    program = dvm.compile(
        lambda x, i: jnp.take(jax.nn.softmax(x @ x.T, -1), i, axis=0), spec("n, d"), spec("k", jnp.int32)
    )
    verifier.verify(program.program)
    for n, d, k in ((1, 1, 1), (70, 33, 5)):
        check(program.program, n=n, d=d, k=k)
    path = tmp_path / "bad.dvm"
    text = PLAIN.replace("address=#0 ;", "address=#0 offset=8 ;", 1)
    serialise.save(assembler.assemble(text), path)
    for tier in ("reference", "specialised"):
        loaded = dvm.load(path, tier=tier)
        with pytest.raises(ProgramError, match="accesses elements"):
            loaded(np.zeros((80, 8), np.float32))
    serialise.save(assembler.assemble(PLAIN.replace("exp dst=t1", "exp dst=t2")), path)
    with pytest.raises(ProgramError, match="equal types"):
        dvm.load(path)


def test_every_instruction_has_rules() -> None:
    from vm import verifier_types

    for insn in isa.TABLE.values():
        if insn.family != "control":
            assert insn.name in verifier_types._BY_NAME or insn.family in verifier_types._BY_FAMILY
