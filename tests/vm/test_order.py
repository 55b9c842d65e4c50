"""ORDER loops: tiles visited in groups that fit L2. What is computed does not change, what is read from HBM does."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import dvm
from codegen import order
from tests.e2e import harness
from tests.vm import reference_mutants as mutants
from tests.vm.emulated import compiled, time_of
from vm import assembler, disassembler, interpreter_image, reference, runtime, serialise, verifier
from vm.binder import Binder
from vm.chip import Chip
from vm.errors import Hazard, ProgramError
from vm.timing import emulate

TEXT = """
symbol m min=0
symbol n min=0
input x float32 [m]
input y float32 [n]
output z float32 [m, n]
template t params=6 buffers=3
  tile t0: float32[axis0 8] UB@0
  tile t1: float32[axis1 8] UB@32
  tile t2: float32[axis0 8, axis1 8] UB@64
  tile t3: float32[axis0 8, axis1 8] UB@320
  tile t4: float32[axis0 8, axis1 8] UB@576
  loop axis=1 kind=ORDER tile={group} trips={gtrips} extent={{p3}}
  {before}
  loop axis=0 kind=PARALLEL tile=8 trips={{p0}} extent={{p1}}
  {between}
  loop axis=1 kind={kind} tile={tile} trips={trips} extent={{p3}}
  load dst=t0 address=#0 ; set=V:0 back_wait=V:0
  | dim=0 step=1 div=1 stride=1
  load dst=t1 address=#1 ; set=V:1
  | dim=0 step=1 div=1 stride=1
  bcast dst=t2 x=t0 mask=1 ; wait=MTE2:0 barrier
  bcast dst=t3 x=t1 mask=2 ; wait=MTE2:1 back_set=MTE2:0
  add dst=t4 x=t2 y=t3 ; barrier back_wait=MTE3:0 set=MTE3:0
  store x=t4 address=#2 ; wait=V:0 back_set=V:0
  | dim=0 step={{p3}} div=1 stride=1
  | dim=1 step=1 div=1 stride=1
  endloop axis=1
  endloop axis=0
  endloop axis=1
end
launch t [ceildiv(m, 8), m, ceildiv(min(n, {bound}), {inner}), n, {bound}, ceildiv(n, {bound})] x y z
"""


def text(group: int = 24, inner: int = 8, **changes: str) -> str:
    """Outer sums in groups of columns; the group and the column tile are chosen at bind time."""
    fields = {
        "group": "{p4}",
        "gtrips": "{p5}",
        "tile": "8",
        "trips": "{p2}",
        "before": "",
        "between": "",
        "kind": "PARALLEL",
    }
    return TEXT.format(**{**fields, **changes}, bound=group, inner=inner)


def results(written: str, m: int, n: int, cores: int = 3) -> list[np.ndarray]:
    """What the three executors give."""
    program = assembler.assemble(written)
    verifier.verify(program)
    arrays = [harness.random((m,)), harness.random((n,), seed=1)]
    binder = Binder(program)
    bound = binder.bind_sizes(binder.check_inputs(arrays))
    verifier.BoundCheck(program)(bound)
    interpreter_image.compiled(interpreter_image.FIRST_CLASS, interpreter_image.SMALLEST_CLASS)
    out = reference.run(program, bound, arrays, cores=cores)
    want = arrays[0][:, None] + arrays[1]
    out += [np.asarray(runtime.Executable(program, tier).launch(arrays)[0]) for tier in ("interpreter", "specialised")]
    for got in out:
        np.testing.assert_array_equal(got, want)
    return out


@pytest.mark.parametrize("cores", [1, 3, 7])
def test_groups_of_any_size_give_the_same(cores: int) -> None:
    for m, n in ((0, 5), (1, 1), (9, 23), (9, 24), (9, 25), (30, 100)):
        results(text(), m, n, cores)
    results(text(group=8), 17, 50, cores)
    results(text(group=20), 17, 50, cores)  # groups need not be whole tiles


@pytest.mark.parametrize("inner", [1, 3, 8])
def test_the_step_of_a_parallel_loop_may_be_bound(inner: int) -> None:
    program = text(inner=inner, tile="{p6}").replace("params=6", "params=7").replace("] x y z", f", {inner}] x y z")
    results(program, 9, 50)


def test_a_bound_step_must_fit_its_tiles() -> None:
    program = text(inner=9, tile="{p6}").replace("params=6", "params=7").replace("] x y z", ", 9] x y z")
    with pytest.raises(ProgramError, match="steps of 9"):
        results(program, 9, 50)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"between": "fill dst=t2 imm=0"}, "uses axis 1 outside its loop"),
        ({"between": "load dst=t0 address=#0\n| dim=0 step=1 div=1 stride=1"}, "stands in no loop over axis 1"),
        ({"before": "barrier pipe=V"}, "one loop inside"),
        ({"kind": "REDUCE"}, "cannot stand in the ORDER loop"),
        ({"kind": "ORDER"}, "is malformed"),
        ({"gtrips": "2"}, "do not make a loop"),
        ({"trips": "4"}, "do not make a loop"),
        ({"group": "0"}, "do not make a loop"),
    ],
)
def test_what_would_not_be_an_order_is_refused(change: dict[str, str], what: str) -> None:
    with pytest.raises((ProgramError, Hazard), match=what):
        results(text(**change), 9, 50)


def test_an_order_loop_stands_outside_of_all_others() -> None:
    lines = text().splitlines()
    order, rows = (
        next(i for i, line in enumerate(lines) if kind in line) for kind in ("ORDER", "axis=0 kind=PARALLEL")
    )
    lines[order], lines[rows] = lines[rows], lines[order]
    ends = [i for i, line in enumerate(lines) if "endloop" in line]
    lines[ends[1]], lines[ends[2]] = lines[ends[2]], lines[ends[1]]
    with pytest.raises(ProgramError, match="ORDER loop cannot stand in another"):
        results("\n".join(lines), 9, 50)


def test_text_and_words_are_the_same() -> None:
    (template,) = assembler.assemble(text()).templates
    again = assembler.assemble_template(disassembler.template_text(template))
    np.testing.assert_array_equal(again.words, template.words)
    assert "kind=ORDER" in disassembler.template_text(template)


# --- compiled products --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("m", "n", "k"), [(70, 70, 70), (70, 20, 70), (33, 200, 40), (200, 33, 40), (1, 70, 129)])
def test_a_product_in_groups(m: int, n: int, k: int) -> None:
    specs = [harness.spec("m, k"), harness.spec("k, n")]
    arrays = [harness.random((m, k)), harness.random((k, n), seed=1)]
    case = mutants.compiled("order", lambda a, b: a @ b, specs, [arrays], pytest.MonkeyPatch(), l2=30_000)
    (template,) = case.program.templates
    assert sum("kind=ORDER" in line for line in disassembler.instructions(template)) == 2
    harness.check(case.right[0], (arrays[0].astype(np.float64) @ arrays[1]).astype(np.float32))
    verifier.verify_template(template, case.chip)
    binder = Binder(case.program)
    bound = binder.bind_sizes(binder.check_inputs(arrays))
    verifier.BoundCheck(case.program)(bound)
    for cores in (3, 4, 25):
        (got,) = reference.run(case.program, bound, arrays, case.chip, cores=cores)
        np.testing.assert_array_equal(got, case.right[0])
    if m == n == k:
        outcomes = mutants.mutate(case, mutants.sync_mutants) + mutants.edge_mutants(case)
        assert {o.kind for o in outcomes} <= {"race", "deadlock", "event"}, mutants.report(outcomes)


def product(n: int, k: int, **options: Any) -> Any:
    m = dvm.Dim("m", max=8192)
    return compiled(jnp.dot, dvm.spec(f"m, {k}", jnp.float16, m=m), dvm.spec(f"{k}, {n}", jnp.float16), **options)


@pytest.mark.parametrize("chip", ["910B1", "910B4"])
@pytest.mark.parametrize(("n", "k"), [(28672, 8192), (8192, 28672), (5120, 13696)])
def test_operands_larger_than_l2_are_read_hardly_more_than_once(n: int, k: int, chip: str) -> None:
    """In one order all would be read again for every tile that needs it: a third of the peak, or less."""
    found = Chip.load(chip)
    (kernel,) = time_of(product(n, k, chip=chip), m=8192).kernels
    once = 2 * (8192 * k + k * n)
    assert once <= kernel.bytes["hbm_read"] <= 8 * once
    peak = found.cube_cores * found.cube.m * found.cube.n * found.cube_k(2)
    least = (
        0.7 if (chip, k) == ("910B4", 28672) else 0.8
    )  # 20 tiles' operands, one a core, are 102 MB; its L2 holds 96 MiB
    assert kernel.flops / 2 / kernel.cycles >= least * peak, kernel.utilisation


def test_products_that_fit_are_not_divided() -> None:
    assert "ORDER" not in product(4096, 4096).disassemble(0)
    (kernel,) = time_of(product(28672, 8192), m=100).kernels
    assert kernel.bytes["hbm_read"] == 2 * (100 * 8192 + 8192 * 28672)


@pytest.mark.parametrize(
    ("n", "k", "m", "cores"), [(896, 896, 64, 14), (128, 896, 512, 16), (512, 512, 128, 24), (4096, 4096, 4096, 25)]
)
def test_few_tiles_are_smaller_so_that_more_cores_have_one(n: int, k: int, m: int, cores: int) -> None:
    bounded, full = (time_of(product(n, k), m=m).kernels[0], -(-m // 128) * -(-n // 256))
    assert bounded.cores == cores >= min(full, 25)


@pytest.mark.parametrize("m", [1, 3, 64, 300])
def test_steps_that_are_known_when_compiling_are_what_the_tiles_hold(m: int) -> None:
    """A file with a product of fixed shape can be read again."""
    program = harness.program_of(jnp.dot, harness.spec(f"{m}, 300"), harness.spec("300, 512"))
    again = serialise.loads(serialise.dumps(program))
    verifier.verify(again)
    x, w = harness.random((m, 300)), harness.random((300, 512), seed=1)
    harness.check(reference.run(again, Binder(again).bind(()), [x, w])[0], x @ w, 1e-5)
    assert emulate(again, Binder(again).bind(())).kernels[0].cores >= 8, "of 512 columns in steps of 64"


def test_products_that_may_be_larger_than_l2_have_small_tiles_where_they_are_few() -> None:
    """In ORDER loops, whose groups are all there is at few rows."""
    prog = product(512, 16384, disable=("speculation",))
    assert "ORDER" in prog.disassemble(0)
    assert [time_of(prog, m=m).kernels[0].cores for m in (1, 64)] == [8, 16]


def test_balanced_products_take_less_time(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [
        (n, k, m) for n, k in ((896, 896), (128, 896), (512, 512), (4096, 4096)) for m in (1, 64, 128, 200, 1000, 2560)
    ]
    after = [time_of(product(n, k, disable=("speculation",)), m=m).cycles for n, k, m in sizes]
    monkeypatch.setattr(order, "_balanced", lambda rows, columns, cores: (rows.tile, columns.tile if columns else 1))
    before = [time_of(product(n, k, disable=("speculation",)), m=m).cycles for n, k, m in sizes]
    gains = [a / b for a, b in zip(before, after, strict=True)]
    assert min(gains) >= 0.96
    assert sum(gain >= 1.5 for gain in gains) >= 8


def test_skipping_repeated_steps_changes_nothing() -> None:
    prog = product(28672, 8192)
    skipped, walked = (time_of(prog, exact=exact, m=1000).kernels[0] for exact in (False, True))
    assert skipped.cycles == pytest.approx(walked.cycles, rel=1e-9)
