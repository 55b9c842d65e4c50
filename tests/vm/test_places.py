"""Tiles of several places: what a program written by hand does on every executor, and which faults the reference executor finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.e2e import harness
from tests.vm import reference_mutants as mutants
from vm import assembler, disassembler, interpreter_image, reference, runtime, verifier
from vm.binder import Binder
from vm.chip import Chip
from vm.errors import Hazard, ProgramError
from vm.program import Program

# exp of x, 8 elements a step: a load fills one place while the vector unit is at another one.
TEXT = """
symbol n min=0
input x float32 [n]
output z float32 [n]
template t params=2 buffers=2
  tile t0: float32[axis0 8] UB@0 x{places}
  tile t1: float32[axis0 8] UB@{second}
{begin}
  loop axis=0 kind=PARALLEL tile=8 trips={{p0}} extent={{p1}}
  load dst=t0 address=#0 ; {load}
  | dim=0 step=1 div=1 stride=1
  exp dst=t1 x=t0 ; wait=MTE2:0 back_wait=MTE3:0 set=MTE3:0
  set pipe=V other=MTE2 event=0
  store x=t1 address=#1 ; wait=V:0 back_set=V:0
  | dim=0 step=1 div=1 stride=1
  endloop axis=0
{end}
end
launch t [ceildiv(n, 8), n] x z
"""


def text(places: int = 3, ahead: int = 3, left: int = 3, second: int = 96, load: str = "set=V:0 wait=V:0") -> str:
    """The kernel with so many places, sets before it and waits behind it."""
    return TEXT.format(
        places=places,
        second=second,
        begin="\n".join(["  set pipe=V other=MTE2 event=0"] * ahead),
        end="\n".join(["  wait pipe=MTE2 other=V event=0"] * left),
        load=load,
    )


def outcome(written: str, n: int, cores: int = 1) -> str:
    """The hazard that a run ends in, or whether the result is right."""
    program = assembler.assemble(written)
    x = harness.random((n,))
    binder = Binder(program)
    try:
        (got,) = reference.run(program, binder.bind_sizes(binder.check_inputs([x])), [x], cores=cores)
    except Hazard as hazard:
        return hazard.kind
    np.testing.assert_allclose(got, np.exp(x), rtol=1e-6)
    return "right"


@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 24, 25, 100])
def test_every_executor_gives_the_same(n: int, cores: int) -> None:
    assert outcome(text(), n, cores) == "right"
    interpreter_image.compiled(interpreter_image.FIRST_CLASS, interpreter_image.SMALLEST_CLASS)
    x = harness.random((n,))
    program = assembler.assemble(text())
    verifier.verify(program)
    for tier in ("interpreter", "specialised"):
        (got,) = runtime.Executable(program, tier).launch([x])
        np.testing.assert_allclose(np.asarray(got), np.exp(x), rtol=1e-6)


def test_text_and_words_are_the_same() -> None:
    (template,) = assembler.assemble(text()).templates
    written = disassembler.template_text(template)
    assert "UB@0 x3" in written
    again = assembler.assemble_template(written)
    np.testing.assert_array_equal(again.words, template.words)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"ahead": 4, "left": 4}, "race"),  # one load too many is let go
        ({"places": 2}, "race"),
        ({"ahead": 2}, "deadlock"),
        ({"left": 2}, "event"),
        ({"load": "set=V:0"}, "race"),
        ({"load": "wait=V:0"}, "deadlock"),
        ({"load": "set=V:0", "ahead": 0, "left": 0}, "race"),
    ],
)
def test_a_fault_is_found_by_a_run_and_by_the_verifier(change: dict[str, Any], kind: str) -> None:
    assert outcome(text(**change), 100) == kind
    (template,) = assembler.assemble(text(**change)).templates
    with pytest.raises(Hazard, match="race|deadlock|event"):  # whichever shows in fewer steps
        verifier.verify_template(template, Chip.load("910B1"))


def test_fewer_tokens_than_places_are_no_fault() -> None:
    assert outcome(text(places=4, second=128), 100) == "right"
    assert outcome(text(ahead=1, left=1), 100) == "right"


@pytest.mark.parametrize("second", [32, 64])
def test_all_places_are_the_tile_s_own(second: int) -> None:
    """Another tile over the second or third place is found where a later step reads what it has overwritten."""
    assert outcome(text(second=second), 100) in ("race", "overwritten")
    (template,) = assembler.assemble(text(second=second)).templates
    with pytest.raises((ProgramError, Hazard)):
        verifier.verify_template(template, Chip.load("910B1"))


def test_places_beyond_the_memory_are_refused() -> None:
    chip = Chip.load("910B1")
    last = chip.ub_bytes - chip.ub_reserved_bytes - 64
    written = text().replace("UB@0 x3", f"UB@{last} x3")
    with pytest.raises(ProgramError, match="covers bytes"):
        verifier.verify_template(assembler.assemble(written).templates[0], chip)
    assert outcome(written, 100) == "out-of-bounds"


# --- compiled products --------------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def product() -> mutants.Case:
    specs = [harness.spec("m, k"), harness.spec("k, n")]
    arrays = [[harness.random((70, 70), seed=i) for i in range(2)]]
    return mutants.compiled("product", lambda a, b: a @ b, specs, arrays, pytest.MonkeyPatch())


def test_a_product_s_operands_have_several_places(product: mutants.Case) -> None:
    (template,) = product.program.templates
    found = [line.split() for line in disassembler.instructions(template) if " L1@" in line]
    assert [words[-1] for words in found] == ["x4", "x4"]
    sets = [line for line in disassembler.instructions(template) if " set " in line and "other=MTE2" in line]
    assert len(sets) == 4


def test_more_tokens_than_places_race(product: mutants.Case) -> None:
    """One place fewer, with all events as they were: a load reaches what the cube still reads."""

    def edits(template: Any) -> Any:
        for at, insn in mutants.instructions(template):
            if insn.name == "tile":
                (field,) = (f for f in insn.fields if f.name == "more")
                if template.words[at + 1] >> np.uint64(field.lo) & np.uint64(7):
                    yield f"{at} three places", mutants._put(at, field, 2)

    outcomes = mutants.mutate(product, edits)
    assert [o.kind for o in outcomes] == ["race", "race"], mutants.report(outcomes)


SIZES = [1, 127, 128, 129, 511, 513]


@pytest.fixture(scope="module")
def large() -> Program:
    m, k, n = {"m": (0, 600)}, {"k": (0, 600)}, {"n": (0, 300)}
    return harness.program_of(lambda a, b: a @ b, harness.spec("m, k", **m, **k), harness.spec("k, n", **k, **n))


@pytest.mark.parametrize(("m", "k", "n"), [(3, k, 5) for k in (0, *SIZES)] + [(m, 65, 257) for m in (0, 1, 127, 129)])
def test_products_at_the_edges_of_tiles(large: Program, m: int, k: int, n: int) -> None:
    a, b = harness.random((m, k)), harness.random((k, n), seed=1)
    want = (a.astype(np.float64) @ b).astype(np.float32)
    binder = Binder(large)
    (got,) = reference.run(large, binder.bind_sizes(binder.check_inputs([a, b])), [a, b], cores=2)
    harness.check(got, want)
    interpreter_image.compiled(interpreter_image.FIRST_CLASS, interpreter_image.SMALLEST_CLASS)
    for tier in ("interpreter", "specialised"):
        (other,) = runtime.Executable(large, tier).launch([a, b])
        harness.check(np.asarray(other), want, label=tier)
