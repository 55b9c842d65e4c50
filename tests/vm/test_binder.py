"""Binding: symbols from sizes, the errors a user meets, and every bit that a bind puts into the words."""

from __future__ import annotations

import dataclasses
import threading

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.vm.sample_programs import layer, programs, rows, sample
from vm import program as pg
from vm.binder import Binder, BoundProgram
from vm.errors import InputError, OutOfMemory, ProgramError, ShapeError
from vm.intcode import ADD, FLOORDIV, MUL, SUB, Builder
from vm.program import INPUT, OUTPUT, TEMP
from vm.validate import validate


def arrays(n: int, m: int | None = None) -> list[np.ndarray]:
    return [np.zeros((n, 4), np.float32), np.zeros(n if m is None else m, np.float32)]


def launch(binder: Binder, inputs: list) -> BoundProgram:
    return binder.bind_sizes(binder.check_inputs(inputs))


def test_bound_values() -> None:
    binder = Binder(sample())
    bound = launch(binder, arrays(300))
    assert bound.symbols == (300,) and bound.dims == {"n": 300}
    assert bound.input_shapes == ((300, 4), (300,)) and bound.output_shapes == ((300, 4),)
    assert bound.arena_rows == {(INPUT, 4): 10 + 3, (TEMP, 4): 10, (TEMP, 1): 1, (OUTPUT, 4): 10}
    assert bound.host_attrs == ({"shape": [300, 4], "mode": ("a", 1.5)},) * 2
    assert bound.shape(2) == (300, 4) and bound.values(binder.kernels[0].params) == (300, 1200)
    assert bound.starts == (0, 8, 16) and not bound.words.flags.writeable
    words = bound.kernel_words(0).tolist()
    assert words[1] & 0xFFFF == 300 and words[1] >> 16 & 0xFFFF == 1200 and words[1] >> 32 == 2 << 8
    assert words[2] == 1200 | 3 << 40
    assert words[3] == 0 | 4 << 40 | 2 << 59 | TEMP << 61  # row 0, own bits, 4-byte items
    assert words[4] == 0 | 5 << 40 | 2 << 59 | INPUT << 61
    assert bound.kernel_words(1).tolist() == words
    assert [s.index for s in binder.steps] == [0, 0, -1]
    assert [[s.index for s in block] for block in binder.steps[2].blocks] == [[1], [1]]


def test_row_of_a_second_buffer_and_pinned_index() -> None:
    p = sample()
    steps = (dataclasses.replace(p.steps[0], buffers=(1, 4)),)
    binder = Binder(dataclasses.replace(p, steps=steps))
    assert binder.pinned == (4,)
    words = launch(binder, arrays(300)).words.tolist()
    assert words[3] == 10 | 4 << 40 | 2 << 59 | INPUT << 61  # y lies behind x
    assert words[4] == 0 | 5 << 40 | 1 << 59 | 3 << 61  # pinned 0, 2-byte items


@pytest.mark.parametrize("n", [0, 2, 600])
def test_edge_sizes(n: int) -> None:
    assert launch(Binder(sample()), arrays(n)).output_shapes == ((n, 4),)


def test_jax_arrays_are_inputs() -> None:
    inputs = [jnp.zeros((2, 4)), jnp.zeros(2)]
    assert launch(Binder(sample()), inputs).symbols == (2,)


def test_input_errors() -> None:
    binder = Binder(sample())
    x, y = arrays(4)
    for inputs, match in (
        ([x], r"2 inputs expected \('x', 'y'\), 1 given"),
        ([x, y, y], "3 given"),
        ([x, 1.0], r"input 1 \('y'\) is a float, expected an array float32\[n\]"),
        ([[1, 2], y], r"input 0 \('x'\) is a list"),
        ([y, y], r"input 0 \('x'\) has rank 1 \(shape \(4,\)\), expected float32\[n, 4\]"),
        ([x, y.astype(np.float64)], r"input 1 \('y'\) is float64, expected float32\[n\]"),
        ([x.astype(">f4"), y], "expected float32"),
        ([x, None], "NoneType"),
    ):
        with pytest.raises(InputError, match=match) as caught:
            binder.check_inputs(inputs)
        assert not isinstance(caught.value, ShapeError)
    assert launch(binder, [x, y]).symbols == (4,)  # still works afterwards


def test_hint_about_x64() -> None:
    p = sample()
    buffers = tuple(dataclasses.replace(b, dtype="int64") if b.input == 1 else b for b in p.buffers)
    p = dataclasses.replace(
        p,
        inputs=(p.inputs[0], dataclasses.replace(p.inputs[1], dtype="int64")),
        buffers=buffers,
        arena_rows={**p.arena_rows, (0, 8): 0},
    )
    validate(p)
    with pytest.raises(InputError, match="jax_enable_x64"):
        Binder(p).check_inputs([np.zeros((2, 4), np.float32), jnp.zeros(2, jnp.int32)])


def test_shape_errors() -> None:
    binder = Binder(sample())
    for inputs, message in (
        (arrays(4, 6), "input 'x' axis 0 (n) is 4 but input 'y' axis 0 (n) is 6: they must be equal"),
        (
            arrays(1002),
            "dimension 'n' is 1002, but it must be at least 0, at most 1000 (dvm.spec): input 'x' axis 0 (n) is 1002",
        ),
        (arrays(3), "dimension 'n' is 3, but it must be a multiple of 2 (dvm.spec): input 'x' axis 0 (n) is 3"),
        (arrays(602), "n = 602 is above 600 (layer_norm at model.py:3): input 'x' axis 0 (n) is 602"),
        ([np.zeros((4, 5), np.float32), np.zeros(4, np.float32)], "input 'x' axis 1 is 5, but it must be 4"),
    ):
        with pytest.raises(ShapeError) as caught:
            launch(binder, inputs)
        assert str(caught.value) == message
    assert launch(binder, arrays(4)).symbols == (4,)


def two_symbols() -> pg.Program:
    """x: [8*b], y: [b + s], z: [2*s]; out: [s - b]."""
    solve = Builder(3)
    b = solve.op(FLOORDIV, 0, solve.const(8))
    s = solve.op(SUB, 1, b)
    code = Builder(2)
    dims = [code.op(MUL, 0, code.const(8)), code.op(ADD, 0, 1), code.op(MUL, 1, code.const(2))]
    out, holds = code.op(SUB, 1, 0), code.const(1)
    texts = ("8*b", "b + s", "2*s")
    return pg.Program(
        symbols=(pg.Symbol("b", 1), pg.Symbol("s", 0, 100, 5, 2)),
        inputs=tuple(pg.TensorSpec(n, "int8", (d,), (t,)) for n, d, t in zip("xyz", dims, texts)),
        outputs=(pg.TensorSpec("out", "int8", (out,), ("s - b",)),),
        solve=solve.finish(),
        solved=(b, s),
        code=code.finish(),
        checks=(pg.Check(holds, "never"),),
        templates=(),
        buffers=(pg.Buffer(OUTPUT, "int8", out, 0, (out,), output=0),),
        steps=(),
        constants=(),
        arena_rows={(OUTPUT, 1): dims[0]},
    )


def test_errors_of_derived_dims() -> None:
    program = two_symbols()
    validate(program)
    binder = Binder(program)

    def at(x: int, y: int, z: int) -> tuple[int, ...]:
        return binder.check_inputs([np.zeros(n, np.int8) for n in (x, y, z)])

    for sizes, message in (
        (at(12, 8, 14), "input 'x' axis 0 is 12, but 8*b is 8 with b = 1"),
        (
            at(8, 8, 15),
            "input 'z' axis 0 is 15, but 2*s is 14 with s = 7: input 'x' axis 0 (8*b) is 8, input 'y' axis 0 (b + s) is 8",
        ),
        (at(0, 7, 14), "dimension 'b' is 0, but it must be at least 1: input 'x' axis 0 (8*b) is 0"),
        (
            at(8, 7, 12),
            "dimension 's' is 6, but it must be a multiple of 5 plus 2: input 'x' axis 0 (8*b) is 8, input 'y' axis 0 (b + s) is 7",
        ),
        (at(24, 5, 4), "output 'out' axis 0: s - b is -1 with b = 3, s = 2"),
    ):
        with pytest.raises(ShapeError) as caught:
            binder.bind_sizes(sizes)
        assert str(caught.value) == message


def test_check_messages_are_no_format_strings() -> None:
    text = "{n.__class__} {0} {n:>1000000} {} {m} {n}"
    binder = Binder(dataclasses.replace(sample(), checks=(pg.Check(2, text),)))
    with pytest.raises(ShapeError) as caught:
        binder.bind((0,))
    assert str(caught.value) == "{n.__class__} {0} {n:>1000000} {} {m} 0: n = 0"


def test_bind_by_name() -> None:
    binder = Binder(sample())
    assert binder.bind_symbols(n=4).input_shapes == ((4, 4), (4,))
    assert binder.bind_symbols({"n": np.int32(4)}).symbols == (4,)
    for dims, match in (
        ({}, "missing: n. This program has: n"),
        ({"n": 4, "q": 1}, "unknown: q"),
        ({"n": 4.0}, "must be an integer"),
        ({"n": True}, "must be an integer"),
    ):
        with pytest.raises(InputError, match=match):
            binder.bind_symbols(**dims)
    with pytest.raises(ShapeError, match="multiple of 2"):
        binder.bind_symbols(n=3)


def one_field(width: int, lo: int, value: int) -> np.ndarray:
    code = Builder(0)
    reg = code.const(value)
    template = pg.Template(np.full(1, (1 << 64) - 1, np.uint64), (pg.Patch(0, lo, width, 0),), (), 1, 0, "t")
    program = pg.Program(
        (),
        (),
        (),
        Builder(0).finish(),
        (),
        code.finish(),
        (),
        (template,),
        (),
        (pg.KernelStep(0, (reg,), (), "k"),),
        (),
        {},
    )
    validate(program)
    return Binder(program).bind(()).words


@given(st.integers(1, 64), st.data())
def test_any_value_in_any_field(width: int, data: st.DataObject) -> None:
    lo = data.draw(st.integers(0, 64 - width))
    value = data.draw(st.integers(-(1 << 65), 1 << 65) | st.integers(-(1 << width), 1 << width))
    top = min(1 << width, 1 << 63)  # a 64-bit field takes int64 values
    if -(1 << (width - 1)) <= value < top:
        word = int(one_field(width, lo, value)[0])
        mask = ((1 << width) - 1) << lo
        assert word & mask == (value << lo) & mask  # the hole, whatever the template had there
        assert word | mask == (1 << 64) - 1  # and nothing else
    else:
        with pytest.raises(
            ProgramError, match=f"kernel 0 \\(k\\), word 0: the value {value} does not fit the {width} bits"
        ):
            one_field(width, lo, value)


def test_rows_up_to_forty_bits() -> None:
    p = sample()
    for row, fits in (
        ((1 << 40) - 2, True),
        ((1 << 40) - 1, False),
        (-1, False),
        (1 << 80, False),
        (-(1 << 80), False),
    ):
        code = Builder(1)
        reg, one = code.const(row), code.const(1)
        end = code.op(ADD, reg, one)
        program = pg.Program(
            p.symbols, (), (), Builder(0).finish(), (), code.finish(), (), p.templates,
            (pg.Buffer(TEMP, "float32", one, reg, ()),) * 2, (pg.KernelStep(0, (one, one), (0, 1)),), (), {(TEMP, 4): end},
        )  # fmt: skip
        if fits:
            word = int(Binder(program).bind((0,)).words[3])
            assert word & ((1 << 40) - 1) == row
        else:
            error, match = (ProgramError, "not inside the temp arena") if row < 0 else (OutOfMemory, "temp memory of")
            with pytest.raises(error, match=match):
                Binder(program).bind((0,))


def test_a_buffer_outside_its_arena() -> None:
    p = sample()
    for i, change, match in (
        (1, {"offset": 1}, "buffer 1: .* not inside the input arena"),
        (2, {"elements": 0}, r"buffer 2 has 300 elements, shape \[300, 4\] is to fit it"),
        (3, {"elements": 0, "dims": (0,)}, r"buffer 3 has 300 elements, shape \[300, 4\]"),
    ):
        if i == 1:
            change = {"offset": p.arena_rows[(INPUT, 4)]}
        buffers = tuple(dataclasses.replace(b, **change) if j == i else b for j, b in enumerate(p.buffers))
        with pytest.raises(ProgramError, match=match):
            launch(Binder(dataclasses.replace(p, buffers=buffers)), arrays(300))


def test_sizes_beyond_any_memory() -> None:
    binder = Binder(layer())
    assert binder.bind_symbols(b=1, s=1).arena_rows[(INPUT, 4)] == 1
    with pytest.raises(OutOfMemory, match=r"b = 1\d+, s = 4096: input memory of"):
        binder.bind_symbols(b=10**12, s=4096)
    with pytest.raises(ShapeError, match="at most 9223372036854775807"):
        binder.bind_symbols(b=10**30, s=1)


def test_cache_is_least_recently_used_and_bounded() -> None:
    binder = Binder(sample(), cache_entries=3)
    a = launch(binder, arrays(2))
    for n in (4, 6):
        launch(binder, arrays(n))
    assert launch(binder, arrays(2)) is a
    launch(binder, arrays(8))  # drops 4
    assert launch(binder, arrays(2)) is a and len(binder._cache) == 3
    assert (4, 4, 4) not in binder._cache
    small = Binder(sample(), cache_bytes=300)
    for n in range(0, 100, 2):
        launch(small, arrays(n))
    assert sum(b.words.nbytes for b in small._cache.values()) == small._cached <= 300
    with pytest.raises(ShapeError):
        launch(binder, arrays(3))
    assert len(binder._cache) == 3


def test_threads() -> None:
    binder = Binder(sample(), cache_entries=5)
    failures: list[object] = []

    def work(seed: int) -> None:
        for i in range(200):
            n = (i * 7 + seed) % 20 * 2
            bound = launch(binder, arrays(n))
            if bound.symbols != (n,) or int(bound.words[1]) & 0xFFFF != n:
                failures.append(bound)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


@settings(max_examples=80, suppress_health_check=list(HealthCheck))
@given(programs(bindable=True), st.lists(st.integers(0, 4), min_size=3, max_size=3))
def test_any_sound_program_binds_or_says_why(program: pg.Program, sizes: list[int]) -> None:
    """Against a plain evaluation, one hole at a time."""
    validate(program)
    binder = Binder(program)
    symbols = tuple(s.multiple_of * size + s.remainder for s, size in zip(program.symbols, sizes))
    try:
        bound = binder.bind(symbols)
    except ProgramError as error:
        assert "does not fit" in str(error), str(error)
        assume(False)
    regs = program.code.run(symbols)
    for k, step in enumerate(binder.kernels):
        template = program.templates[step.template]
        words = template.words.tolist()
        for p in template.patches:
            mask = (1 << p.width) - 1
            words[p.word] = words[p.word] & ~(mask << p.lo) | (regs[step.params[p.param]] & mask) << p.lo
        for r in template.relocs:
            b = program.buffers[step.buffers[r.buffer]]
            row = binder.pinned.index(step.buffers[r.buffer]) if b.offset is None else regs[b.offset]
            size = {"float32": 2, "bfloat16": 1, "int8": 0, "int64": 3, "bool": 0, "int32": 2}[b.dtype]
            words[r.word] = words[r.word] & (((1 << 19) - 1) << 40) | row | size << 59 | b.space << 61
        assert bound.kernel_words(k).tolist() == words


def test_rows_helper() -> None:
    code = Builder(1)
    reg = rows(code, 0)
    assert [code.finish().run([n])[reg] for n in (0, 1, 128, 129)] == [0, 1, 1, 2]
