"""Text and words: round trips, a program that no compiler has seen, and what is refused."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dvm
from tests.e2e import harness
from vm import assembler, disassembler, isa, reference, serialise, verifier
from vm.binder import Binder
from vm.errors import ProgramError
from vm.program import Patch, Program, Reloc, Template

SCALED_SUM = """
program scaled_sum
symbol n min=0 max=10000
input x float32 [n, 8]
input y float32 [n, 8]
constant c float32 [8] = 0.5 1 2 3 4 5 6 7
output z float32 [n, 8]
output s float32 [n]

template scaled_sum params=2 buffers=5
  tile  t0: float32[axis0 64, 8] UB@0
  tile  t1: float32[axis0 64, 8] UB@2048
  tile  t2: float32[axis0 64, 8] UB@4096
  tile  t3: float32[8] UB@6144
  tile  t4: float32[axis0 64, 8] UB@8192
  tile  t5: float32[axis0 64] UB@10240
  load  dst=t3 address=#2  ; set=V:2
  | dim=0 step=1 div=1 stride=1
  wait  pipe=V other=MTE2 event=2
  loop  axis=0 kind=PARALLEL tile=64 trips={p0} extent={p1}
    load  dst=t0 address=#0  ; back_wait=V:0 set=V:0
    | dim=0 step=8 div=1 stride=1
    | dim=1 step=1 div=1 stride=1
    load  dst=t1 address=#1  ; set=V:1
    | dim=0 step=8 div=1 stride=1
    | dim=1 step=1 div=1 stride=1
    bcast dst=t4 x=t3 mask=2  ; barrier
    wait  pipe=V other=MTE2 event=1
    mul   dst=t2 x=t0 y=t4  ; wait=MTE2:0 back_wait=MTE3:0 barrier
    add   dst=t4 x=t2 y=t1  ; back_set=MTE2:0 barrier
    reduce_sum dst=t5 x=t4 mask=2  ; barrier
    copy  dst=t2 x=t4  ; set=MTE3:0 barrier
    store x=t2 address=#3  ; wait=V:0
    | dim=0 step=8 div=1 stride=1
    | dim=1 step=1 div=1 stride=1
    store x=t5 address=#4  ; back_set=V:0
    | dim=0 step=1 div=1 stride=1
  endloop axis=0
end

launch scaled_sum [ceildiv(n, 64), n] x y c z s
"""


def on_reference(program: Program, *arrays: np.ndarray) -> list[np.ndarray]:
    binder = Binder(program)
    return reference.run(program, binder.bind_sizes(binder.check_inputs(arrays)), arrays, cores=2)


@pytest.fixture(scope="module")
def programs() -> list[Program]:
    """Compiled programs of many kinds of kernels."""
    spec = harness.spec
    return [
        harness.program_of(lambda x: jax.nn.softmax(x, axis=-1), spec("b, s")),
        harness.program_of(lambda a, b: jax.nn.relu(a @ b), spec("m, k"), spec("k, n")),
        harness.program_of(lambda x, i: jnp.take(x, i, axis=0) * 2, spec("n, d"), spec("k", jnp.int32)),
        harness.program_of(lambda x, y: jnp.concatenate([x, y], 0), spec("n, 4"), spec("m, 4")),
        harness.program_of(
            lambda x: (jnp.argmax(x, -1), x[:, ::2].sum(0), jnp.pad(x, 1, constant_values=2.5)), spec("n, 6")
        ),
        harness.program_of(lambda x: x + jnp.arange(x.shape[1]) * x.shape[0], spec("n, d")),
    ]


def test_compiled_templates_read_back_bit_for_bit(programs: list[Program]) -> None:
    for program in programs:
        for template in program.templates:
            text = disassembler.template_text(template)
            again = assembler.assemble_template(text)
            np.testing.assert_array_equal(again.words, template.words)
            assert (again.patches, again.relocs) == (template.patches, template.relocs)
            assert (again.n_params, again.n_buffers, again.name) == (
                template.n_params,
                template.n_buffers,
                template.name,
            )
            assert disassembler.template_text(again) == text


@st.composite
def templates(draw: st.DrawFn) -> Template:
    """Any instructions with any field values, some of them holes."""
    words, patches, relocs = [0, 0], [], []
    for _ in range(draw(st.integers(1, 6))):
        insn = draw(st.sampled_from(sorted(isa.TABLE.values(), key=lambda i: i.id)))
        base, n = len(words), draw(st.integers(0, 3)) if insn.tail else 0
        length = insn.fixed_words + n * insn.tail_words
        words += [0] * length
        for f, value in ((isa.HEAD_ID, insn.id), (isa.HEAD_LEN, length), (isa.HEAD_TAIL, n)):
            isa.put(words, base, f, value)
        for f in isa.SYNC:
            top = len(isa.Pipe) - 1 if f.name.endswith("_pipe") else (1 << f.width) - 1
            isa.put(words, base, f, draw(st.integers(0, top)))
        places = [(base, f) for f in insn.fields]
        places += [(base + insn.fixed_words + i * insn.tail_words, f) for i in range(n) for f in insn.tail]
        for at, f in places:
            if f.kind == "address" and draw(st.booleans()):
                relocs.append(Reloc(at + f.word, draw(st.integers(0, 3))))
            elif insn.name == "tile" and f.name in ("space", "dtype"):
                isa.put(words, at, f, draw(st.integers(0, 2)))
            elif insn.name == "tile" or draw(st.integers(0, 3)):
                low = -(1 << (f.width - 1)) if f.signed else 0
                isa.put(words, at, f, draw(st.integers(low, low + (1 << f.width) - 1)))
            else:
                patches.append(Patch(at + f.word, f.lo, f.width, draw(st.integers(0, 5))))
    words.append(0)
    isa.put(words, 0, isa.ENTRY_WORDS, len(words))
    isa.put(words, 0, isa.ENTRY_MIX, draw(st.integers(0, 1)))
    isa.put(words, 0, isa.ENTRY_BLOCKS, draw(st.integers(0, 40)))
    return Template(
        np.array(words, np.uint64), tuple(patches), tuple(relocs), 6, 4, draw(st.sampled_from(["", "kernel"]))
    )


@given(templates())
@settings(max_examples=150)
def test_any_words_read_back_bit_for_bit(template: Template) -> None:
    again = assembler.assemble_template(disassembler.template_text(template))
    np.testing.assert_array_equal(again.words, template.words)
    assert (again.patches, again.relocs, again.name) == (template.patches, template.relocs, template.name)


def expected(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    z = x * np.array([0.5, 1, 2, 3, 4, 5, 6, 7], np.float32) + y
    return z, z.sum(1)


def test_a_program_written_by_hand_runs_everywhere(tmp_path: Path) -> None:
    program = assembler.assemble(SCALED_SUM)
    verifier.verify(program)
    serialise.save(program, tmp_path / "hand.dvm")
    compiled = {
        tier: dvm.load(tmp_path / "hand.dvm", tier=tier) for tier in ("reference", "interpreter", "specialised")
    }
    for n in (0, 1, 63, 64, 65, 400):
        x, y = harness.random((n, 8), seed=1), harness.random((n, 8), seed=2)
        for tier, loaded in compiled.items():
            for got, want in zip(loaded(x, y), expected(x, y), strict=True):
                harness.check(got, want, label=f"{tier} {n}")


def test_another_opcode_changes_all_results_alike(tmp_path: Path) -> None:
    for old, new, fn in (("mul", "sub", np.subtract), ("mul", "max", np.maximum), ("mul", "atan2", np.arctan2)):
        program = assembler.assemble(SCALED_SUM)
        (template,) = program.templates
        words = template.words.copy()
        at = next(a for a in _places(template) if isa.get(words, a, isa.HEAD_ID) == isa.TABLE[old].id)
        isa.put(words, at, isa.HEAD_ID, isa.TABLE[new].id)
        path = tmp_path / f"{new}.dvm"
        path.write_bytes(serialise.replace_words(serialise.dumps(program), 0, words))
        x, y = harness.random((70, 8), seed=1), harness.random((70, 8), seed=2)
        want = fn(x, np.array([0.5, 1, 2, 3, 4, 5, 6, 7], np.float32)) + y
        for tier in ("reference", "interpreter", "specialised"):
            got, total = dvm.load(path, tier=tier)(x, y)
            harness.check(got, want)
            harness.check(total, want.sum(1), 1e-5)


def _places(template: Template) -> list[int]:
    at, found = isa.HEAD_WORDS, []
    while template.words[at]:
        found.append(at)
        at += isa.get(template.words, at, isa.HEAD_LEN)
    return found


def test_immediates_and_expressions() -> None:
    text = """
symbol n min=1
symbol m min=1
input x float32 [n, m]
output z float32 [n, (m + 1) // 2 * 2]
template t params=3 buffers=0
  tile t0: float32[4] UB@0
  fill dst=t0 imm=-0.75
  fill dst=t0 imm=inf
  fill dst=t0 imm={p2}
end
launch t [max(n, 3) - min(m, 2), n * m % 7, -(n - 1)]
"""
    program = assembler.assemble(text)
    bound = Binder(program).bind_symbols(n=5, m=3)
    assert bound.values(program.steps[0].params) == (3, 1, -4)  # type: ignore[union-attr]
    assert bound.output_shapes == ((5, 4),)
    words = program.templates[0].words
    fills = [
        isa.imm_value(int(words[a + 2]), np.dtype(np.float32)) for a in _places(program.templates[0]) if words[a + 2]
    ]
    assert [float(v) for v in fills[-2:]] == [-0.75, np.inf]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("  frobnicate dst=t0", "unknown instruction 'frobnicate'"),
        ("  exp dst=t0 x=t0 z=t1", "no field 'z'"),
        ("  exp dst=t0 dst=t1", "has it already"),
        ("  exp dst=t9999", "cannot hold 9999"),
        ("  tile t0: float31[4] UB@0", "no type float31"),
        ("  tile t0 float32[4]", "is not like"),
        ("  exp dst=t0 x=t0  ; wait=MTE9:0", "MTE9"),
        ("  exp dst=t0 x=t0  ; wait=V:9", "cannot hold 9"),
        ("  | dim=0", "no access"),
        ("  load dst=t0 address=#0\n  | dim=0 stop=3", "no field 'stop'"),
    ],
)
def test_what_is_refused_names_its_line(line: str, message: str) -> None:
    with pytest.raises(ProgramError, match=message) as caught:
        assembler.assemble_template(f"template t params=0 buffers=1\n{line}\nend")
    assert str(caught.value).startswith("line ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("symbol n\noutput z float32 [n]", "no input has an axis of size n"),
        ("input x float32 [k]", "'k' is no symbol"),
        ("input x float33 [4]", "float33"),
        ("constant c float32 [3] = 1 2", "reshape"),
        ("launch t []", "no such template"),
        ("template t params=0 buffers=0\n exp", "no 'end'"),
        ("nonsense", "not understood"),
    ],
)
def test_programs_that_are_refused(text: str, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        assembler.assemble(text)
