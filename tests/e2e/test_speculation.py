"""Parts of a program that are there in two forms: which one runs is decided when sizes are bound, and both are right.

``wide`` is a product whose rows are reduced: in one kernel where there are many rows, in two where there are few. ``prologue`` is the other
way round.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dvm
from codegen import choices
from tests.e2e import harness
from tests.e2e.harness import check, program_of, random, simulate
from vm import assembler, disassembler, runtime, serialise, verifier
from vm.binder import Binder
from vm.decode import decode, stored_buffers
from vm.errors import ProgramError
from vm.program import Choice, Program
from vm.program.stages import kernels_of
from vm.timing import emulate

K, N = 256, 200


def wide(x, w):
    return jax.nn.softmax(x @ w, -1)


def prologue(x, w):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) @ w


def spec(shape: str, least: int = 0, most: int | None = None) -> jax.ShapeDtypeStruct:
    return harness.spec(shape, **{k: (least, most) for k in "bs" if k in shape})


def program(fn=wide, least: int = 0, most: int | None = None, k: int = K, n: int = N) -> Program:
    return program_of(fn, spec(f"b, {k}", least, most), spec(f"{k}, {n}"))


def limit(prog: Program) -> int:
    """The largest number of rows at which the first form or, of ``wide``, the second one runs."""
    reg, top = prog.choices[0].reg, prog.symbols[0].max or 5000
    chosen = [prog.code.run((b,))[reg] for b in range(1, top + 1)]
    changes = [b for b in range(1, top) if chosen[b] != chosen[b - 1]]
    assert len(changes) == 1, "one limit"
    return changes[0]


def names(prog: Program, b: int) -> list[str]:
    """The kernels that run."""
    return [step.name for step in kernels_of(prog.steps, Binder(prog).bind((b,)).chosen)]


FORMS = [(wide, K, N, (2, 1)), (prologue, 896, 2048, (1, 2))]
IDS = ["wide", "prologue"]


@pytest.mark.parametrize("fn, k, n, counts", FORMS, ids=IDS)
def test_sizes_choose_the_form(fn, k, n, counts) -> None:
    """Below and above the limit other kernels run; both give the same, with the chip's tiles and with small ones."""
    prog = program(fn, k=k, n=n)
    verifier.verify(prog)
    last = limit(prog)
    assert len(prog.debug["kernels"]) == 1, "one fusion group"
    w = random((k, n), seed=1)
    assert [len(names(prog, b)) for b in (0, 1, last - 1, last, last + 1, 4000)] == [counts[0]] * 4 + [counts[1]] * 2
    for b in (0, 1, 5, last, last + 1) if fn is wide else (5, last + 1):
        x = random((b, k))
        for tile in (None, 3) if b == 5 else (None,):
            check(simulate(prog, x, w, tile=tile)[0], np.asarray(fn(x, w)), 2e-5)


@pytest.mark.parametrize("fn, k, n, counts", FORMS, ids=IDS)
def test_the_form_that_runs_takes_less_emulated_time(fn, k, n, counts) -> None:
    """At every number of rows (near the limit, which is found within a quarter, about as much), or at most ``patience`` times as much
    where there is one kernel instead of two."""
    prog = program(fn, k=k, n=n)
    for b in (1, 16, limit(prog), limit(prog) + 1, 300, 4096):
        bound = Binder(prog).bind((b,))
        other = replace(prog, code=forced(prog, 1 - bound.chosen[0]))
        times = [emulate(p, Binder(p).bind((b,))).us for p in (prog, other)]
        assert times[0] <= times[1] * (2.0 if bound.chosen == (0,) else 1.2), (b, times)


def forced(prog: Program, alternative: int):
    """The integer code with the choice's register set to a number."""
    code, reg = prog.code, prog.choices[0].reg
    at = reg - code.n_inputs
    from vm import intcode

    return replace(code, code=(*code.code[:at], (intcode.CONST, alternative, 0), *code.code[at + 1 :]))


def test_a_limit_outside_of_the_declared_range_leaves_one_form() -> None:
    last = limit(program())
    few, many = program(most=last // 2), program(least=2 * last)
    assert not few.choices and not many.choices
    assert len(kernels_of(few.steps)) == 2 and len(kernels_of(many.steps)) == 1
    assert len(program(most=2 * last).choices) == 1
    fixed = [program_of(wide, harness.spec(f"{b}, {K}"), spec(f"{K}, {N}")) for b in (1, 4096)]
    assert [len(kernels_of(p.steps)) for p in fixed] == [2, 1]
    assert all(len(p.debug["speculation"]) == 1 for p in (few, many, *fixed)), "and it is said why"


def test_without_speculation() -> None:
    traced = [dvm.Options(disable=("speculation",)), dvm.Options(level=2), dvm.Options()]
    counts = [(o.speculation, o.for_code()["speculation"]) for o in traced]
    assert counts == [(False, False), (False, False), (True, True)]
    plain = program_of(wide, spec(f"b, {K}"), spec(f"{K}, {N}"), speculation=False)
    assert not plain.choices and len(plain.steps) == 2


def test_what_only_the_other_form_uses_has_no_memory() -> None:
    prog = program()
    last = limit(prog)
    for b in (1, last, last + 1, 1000):
        bound = Binder(prog).bind((b,))
        temporaries = [rows for (space, _), rows in bound.arena_rows.items() if space not in (0, 2, 7)]
        assert (sum(temporaries) > 0) is (b <= last)
        assert bool(bound.idle) is (b > last)
        memory = dvm.CompiledProgram(prog, tier="reference").memory(b=b)
        assert (memory.temp > 0) is (b <= last) and memory.temp == memory.unshared and len(memory.forms) == 1


def test_reports_say_which_form_runs_and_why() -> None:
    prog = dvm.CompiledProgram(program(), tier="reference")
    last = limit(prog.program)
    (kernel,) = prog.kernels
    assert len(kernel.apart) == 2 and kernel.where == f"b <= {last}"
    assert (
        kernel.where in str(prog.explain()) and prog.explain().to_dict()["kernels"][0]["apart"]["where"] == kernel.where
    )
    for b, running in ((last, 2), (last + 1, 1)):
        profile, report = prog.profile(b=b), prog.report(b=b).to_dict()
        assert len(profile.kernels) == report["kernel_steps"] == running
        assert report["kernels"] == 1 and report["stages"] == running
        (said,) = report["forms"]
        assert profile.to_dict()["forms"] == [said] and said in " ".join(str(profile).split())
        assert kernel.where in said and "rows" in said
        assert ("instead of" in said) is (running == 2)
    assert prog.report(b=last + 1).to_dict()["bytes_moved"] < prog.report(b=last).to_dict()["bytes_moved"]
    listing = prog.disassemble()
    assert listing.count("when choice 0") == 3 and "is 1" in listing
    stripped = dvm.CompiledProgram(serialise.loads(serialise.dumps(prog.program, strip=True)), tier="reference")
    assert len(stripped.kernels) == 1 and "alternative 1 of 2" in str(stripped.profile(b=1))


def test_the_file_keeps_both_forms() -> None:
    prog = program()
    again = serialise.loads(serialise.dumps(prog))
    assert again.choices == prog.choices and again.steps == prog.steps
    assert serialise.dumps(again) == serialise.dumps(prog)
    assert disassembler.disassemble(again) == disassembler.disassemble(prog)
    last = limit(again)
    for b in (last, last + 1):
        x, w = random((b, K)), random((K, N), seed=1)
        check(simulate(again, x, w)[0], np.asarray(wide(x, w)), 2e-5)


def test_a_kernel_of_the_other_form_has_no_words() -> None:
    prog = program()
    bound = Binder(prog).bind((1,))
    assert len(bound.skipped) == 1
    with pytest.raises(ProgramError, match="alternative that does not run"):
        bound.kernel_words(next(iter(bound.skipped)))


def test_malformed_choices_are_refused() -> None:
    prog = program()
    merged, *parts = sorted(kernels_of(prog.steps), key=lambda s: s.alternative)
    others = [s for s in prog.steps if s not in (merged, *parts)]

    def refused(match: str, *steps, choices=prog.choices, check=serialise.validate) -> None:
        with pytest.raises(ProgramError, match=match):
            check(replace(prog, steps=(*others, *steps), choices=choices, stages=()))

    refused("without kernels", merged)
    refused("index 1 is not in", merged, *parts, replace(merged, choice=1))
    refused("index 1 is not in", merged, *parts, choices=(Choice(prog.choices[0].reg, 1),))
    refused("register", merged, *parts, choices=(Choice(prog.code.n_registers, 2),))
    refused("of no choice", replace(merged, choice=None, alternative=1), *parts)
    refused("does not", merged, parts[0], check=verifier.verify)  # the part that stores the result is missing
    temporary = parts[0].buffers[stored_buffers(decode(prog.templates[parts[0].template]))[0]]
    reader = replace(merged, choice=None, buffers=(temporary, *merged.buffers[1:]))
    refused(
        "stores buffer", merged, *parts, reader, check=verifier.verify
    )  # what only one form stores is read by others
    wrong = replace(prog, code=forced(prog, 2))
    with pytest.raises(ProgramError, match="choice 0 is 2"):
        Binder(wrong).bind((1,))


TEXT = """
program two_forms
symbol n min=0 max=100
input x float32 [n]
temp t float32 [n]
output y float32 [n]
choice large = min(n // 9, 1)
template twice params=2 buffers=2
  tile  t0: float32[axis0 64] UB@0
  tile  t1: float32[axis0 64] UB@256
  loop  axis=0 kind=PARALLEL tile=64 trips={p0} extent={p1}
    load  dst=t0 address=#0  ; back_wait=MTE3:0 set=V:0
    | dim=0 step=1 div=1 stride=1
    add   dst=t1 x=t0 y=t0  ; wait=MTE2:0 set=MTE3:0
    store x=t1 address=#1  ; wait=V:0 back_set=MTE2:0
    | dim=0 step=1 div=1 stride=1
  endloop axis=0
end
launch twice [ceildiv(n, 64), n] x y when large=0
launch twice [ceildiv(n, 64), n] x t when large=1
launch twice [ceildiv(n, 64), n] t y when large=1
"""


def test_text_with_a_choice() -> None:
    prog = assembler.assemble(TEXT)
    assert prog.choices == (Choice(prog.choices[0].reg, 2),)
    machine = dvm.CompiledProgram(serialise.loads(serialise.dumps(prog)), tier="reference")
    for n in (0, 1, 8, 9, 70):
        x = random((n,))
        np.testing.assert_array_equal(np.asarray(machine(x)).reshape(-1), x * (2 if n < 9 else 4))
    with pytest.raises(ProgramError, match="no choice 'small'"):
        assembler.assemble(TEXT.replace("when large=0", "when small=0"))


def test_equal_layers_share_both_forms() -> None:
    """Of twelve layers one is compared; all choose by one register, and templates do not grow."""

    def layers(x, w):
        for _ in range(12):
            x = prologue(x, w)
        return x

    found = []
    real = choices._Race.run

    def counted(self):
        found.append(self)
        return real(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choices._Race, "run", counted)
        prog = program(layers, k=896, n=896)
    assert len(found) == 1 and len(prog.choices) == 1
    assert len(prog.debug["kernels"]) == 12 and len(prog.templates) <= 3
    last = limit(prog)
    assert len(names(prog, last)) == 12 and len(names(prog, last + 1)) == 24


@pytest.mark.parametrize("where", ["scan", "cond"])
def test_choices_inside_of_control_flow(where: str) -> None:
    def scan(x, w):
        return jax.lax.scan(lambda c, _: (wide(c, w), None), x, None, length=3)[0]

    def cond(x, w):
        return jax.lax.cond(x.sum() > 0, lambda: wide(x, w), lambda: x @ w)

    fn = {"scan": scan, "cond": cond}[where]
    prog = program(fn, k=N if where == "scan" else K)
    last = limit(prog)
    for b in (1, last, last + 1):
        x, w = (
            random((b, prog.code.run((b,))[prog.inputs[0].dims[1]])),
            random((N if where == "scan" else K, N), seed=1),
        )
        check(simulate(prog, x, w)[0], np.asarray(fn(x, w)), 2e-5)


def test_rows_of_symbolic_length_are_reduced_in_the_product_s_kernel_if_they_fit() -> None:
    """Their length decides; in the text of the words the fall-back is there as well."""
    prog = program_of(wide, spec("b, 64"), spec("64, s"))
    verifier.verify(prog)
    fits = choices.FITTING
    (kernel,) = prog.debug["kernels"]
    assert kernel["apart"]["where"] == f"{fits} < s"
    for b, s in ((5, 1), (1, fits - 1), (130, fits), (7, fits + 1), (3, 2 * fits + 3), (0, fits), (2, 0)):
        bound = Binder(prog).bind_symbols(b=b, s=s)
        assert len(kernels_of(prog.steps, bound.chosen)) == (1 if s <= fits else 2)
        x, w = random((b, 64)), random((64, s), seed=1)
        check(simulate(prog, x, w, tile=3 if b == 7 else None)[0], np.asarray(wide(x, w)), 2e-5)
    other = replace(prog, code=forced(prog, 1))
    for s in (8, fits):
        merged, apart = (emulate(p, Binder(p).bind_symbols(b=512, s=s)).us for p in (prog, other))
        assert merged < apart
    short, long = (program_of(wide, spec("b, 64"), harness.spec("64, s", s=r)) for r in ((1, fits), (fits + 1, None)))
    assert not short.choices and len(short.steps) == 1 and not long.choices and len(long.steps) == 2


def test_a_comparison_is_not_computed_in_passes() -> None:
    """What a pass computes again may differ in its last bit: the largest of a row has to be equal to it."""

    def onehot(x, w):
        y = x @ w
        return jnp.where(y == jnp.max(y, -1, keepdims=True, initial=-1e9), y, 0)

    assert len(program_of(onehot, spec("b, 64"), harness.spec("64, s", s=(1, None))).steps) == 2


def rows() -> tuple[Program, list[tuple[int, int]]]:
    prog = program(most=2 * limit(program()))
    last = limit(prog)
    return prog, [(b, N) for b in (last, last + 1, 0, 1, last - 1, prog.symbols[0].max or 0)]


def lengths() -> tuple[Program, list[tuple[int, int]]]:
    prog = program_of(wide, spec("b, 64", 0, 40), spec("64, s", 0, 130))
    return prog, [(b, choices.FITTING + s) for b, s in ((3, 0), (3, 1), (40, -1), (1, 66), (7, -63))]


@pytest.mark.parametrize("case", [rows, lengths])
def test_all_executors_switch_without_a_compile(case) -> None:
    """With declared maxima everything is compiled ahead; the reference executor and the interpreter agree on both sides."""
    prog, sizes = case()
    k = K if case is rows else 64
    machines = {tier: dvm.CompiledProgram(prog, tier=tier) for tier in ("reference", "interpreter", "specialised")}
    machines["interpreter"](random((3, k)), random((k, N if case is rows else 9)))  # loads the image
    machines["specialised"].reserve()
    before = dvm.stats().xla_compiles
    assert len({Binder(prog).bind_sizes((b, k, k, n)).chosen for b, n in sizes}) == 2
    for b, n in sizes:
        x, w = random((b, k)), random((k, n), seed=1)
        scores = np.exp(x.astype(np.float64) @ w)  # NumPy: JAX would compile for every size
        want = (scores / scores.sum(-1, keepdims=True)).astype(np.float32)
        for machine in machines.values():
            check(np.asarray(machine(x, w)).reshape(want.shape), want, 2e-5)
    assert dvm.stats().xla_compiles == before


def test_without_a_maximum_only_the_form_that_runs_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one follows at the switch, or at ``reserve``."""
    prog = program(prologue, k=896, n=2048)
    last = limit(prog)
    built: list[str] = []

    def compile_unit(_: Any, unit: Any, capacity: Any = None) -> None:
        built.extend(part.step.name for part in unit.parts)

    monkeypatch.setattr(runtime.Executable, "_compile", compile_unit)
    machine = runtime.Executable(prog, "specialised")
    machine._grow(dict.fromkeys(prog.arena_rows, 1 << 16))
    for b in (1, last + 1):
        machine._compile_all(machine.binder.bind((b,)).skipped)
        assert sorted(built) == sorted(names(prog, b))
        built.clear()
    machine._compile_all()
    assert len(built) == 3
