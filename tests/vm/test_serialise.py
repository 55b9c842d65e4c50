"""The program file: round trips, determinism, and the refusal of everything malformed."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import struct
import subprocess
import sys
import zlib

import msgpack
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from tests.vm.sample_programs import programs, sample
from vm import program as pg
from vm import serialise
from vm.binder import Binder
from vm.dtypes import DTYPES
from vm.errors import DvmError, ProgramError
from vm.intcode import MUL, Builder, IntCode
from vm.program import PINNED, Program
from vm.serialise import dumps, load, loads, mend, replace_words, reseal, save, validate


def same(a: Program, b: Program) -> bool:
    """Field by field, arrays by value and type."""

    def key(p: Program) -> object:
        templates = [(t.words.tolist(), dataclasses.replace(t, words=None)) for t in p.templates]
        constants = [(c.dtype, c.shape, c.tobytes()) for c in p.constants]
        rest = {f.name: getattr(p, f.name) for f in dataclasses.fields(p) if f.name not in ("templates", "constants")}
        return templates, constants, rest

    return key(a) == key(b)


def test_round_trip() -> None:
    program = sample()
    back = loads(dumps(program))
    assert same(program, back)
    assert type(back.in_tree) is tuple and list(back.in_tree[1][0]) == ["b", "a"]
    assert not back.constants[0].flags.writeable and not back.templates[0].words.flags.writeable


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs())
def test_round_trip_of_any_program(program: Program) -> None:
    data = dumps(program)
    back = loads(data)
    assert same(program, back)
    assert dumps(back) == data
    stripped = loads(dumps(program, strip=True))
    assert dumps(stripped, strip=True) == dumps(program, strip=True)


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_constants_of_every_type_and_shape(name: str) -> None:
    for shape in ((), (0,), (1,), (3, 5), (2, 0, 4)):
        value = (np.arange(np.prod(shape, dtype=int)) % 2).reshape(shape).astype(DTYPES[name])
        program = dataclasses.replace(sample(), constants=(*sample().constants, value))
        back = loads(dumps(program)).constants[1]
        assert back.dtype == value.dtype and back.shape == shape and back.tobytes() == value.tobytes()


def test_big_endian_and_strided_constants_are_stored_little_endian() -> None:
    value = np.arange(12, dtype=">i4").reshape(3, 4).T
    back = loads(dumps(dataclasses.replace(sample(), constants=(*sample().constants, value)))).constants[1]
    np.testing.assert_array_equal(back, value)
    assert back.dtype == np.dtype("<i4")


def test_same_bytes_in_another_process() -> None:
    script = "import sys; from tests.vm.sample_programs import sample; from vm.serialise import dumps; "
    script += "sys.stdout.buffer.write(dumps(sample()))"
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": "."}
        assert subprocess.run(
            [sys.executable, "-c", script], env=env, stdout=subprocess.PIPE, check=True
        ).stdout == dumps(sample())


def test_stripped_file_has_no_names_of_operations() -> None:
    program = sample()
    stripped = dumps(program, strip=True)
    assert b"layer_norm" in dumps(program)
    for word in (b"layer_norm", b"copy", b"origin", b"model.py"):
        assert word not in stripped
    back = loads(stripped)
    assert back.debug == {} and back.templates[0].name == "" and back.checks[0].origin == ""
    assert back.checks[0].message == program.checks[0].message
    assert back.steps[1] == program.steps[1]  # host functions are stored by number


def test_save_and_load(tmp_path) -> None:
    path = tmp_path / "m.dvm"
    save(sample(), path)
    first = path.stat()
    save(sample(), path)
    assert path.stat().st_ino != first.st_ino and os.listdir(tmp_path) == ["m.dvm"]
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()
    assert same(load(path), sample()) and path.read_bytes() == dumps(sample())
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "absent.dvm")
    with pytest.raises(FileNotFoundError):
        save(sample(), tmp_path / "absent" / "m.dvm")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_large_constants_are_mapped(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(serialise, "_MMAP_FROM", 1000)
    weights = np.arange(10000, dtype=np.float32)
    save(dataclasses.replace(sample(), constants=(*sample().constants, weights)), tmp_path / "m.dvm")
    back = load(tmp_path / "m.dvm").constants[1]
    np.testing.assert_array_equal(back, weights)
    assert back.ctypes.data % 64 == 0 and not back.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        back[0] = 1
    (tmp_path / "empty.dvm").write_bytes(b"")
    with pytest.raises(ProgramError):
        load(tmp_path / "empty.dvm")


def test_not_a_program_file() -> None:
    for data in (b"", b"x", b"\x89DVM\r\n\x1a\n", bytes(64), bytes(10000), b"PK\x03\x04" * 100):
        with pytest.raises(ProgramError):
            loads(data)
    with pytest.raises(ProgramError, match="format 7"):
        data = bytearray(dumps(sample()))
        data[8] = 7
        loads(mend(data))


def test_every_single_truncation_is_noticed() -> None:
    data = dumps(sample())
    for n in range(len(data)):
        with pytest.raises(ProgramError):
            loads(data[:n])
    with pytest.raises(ProgramError):
        loads(data + b"\0")


def test_bit_flips_are_noticed() -> None:
    data = dumps(sample())
    rng = random.Random(1)
    for _ in range(500):
        damaged = bytearray(data)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        if damaged != data:
            with pytest.raises(ProgramError):
                loads(bytes(damaged))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs())
def test_bit_flips_with_mended_checksums(program: Program) -> None:
    """What gets through is a sound program, which can be written and read again."""
    data = dumps(program)
    rng = random.Random(len(data))
    for _ in range(25):
        damaged = bytearray(data)
        for _ in range(rng.randint(1, 2)):
            damaged[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        try:
            back = loads(mend(bytes(damaged)))
        except ProgramError:
            continue
        validate(back)
        assert same(loads(dumps(back)), back) or "nan" in repr(back)
        with contextlib.suppress(DvmError):  # it binds, or says why not
            Binder(back).bind(tuple(s.multiple_of * 3 + s.remainder for s in back.symbols))


def test_swapped_and_overlapping_sections() -> None:
    data = dumps(sample())
    entries = [slice(64 + 48 * i, 64 + 48 * (i + 1)) for i in range(4)]
    for i in range(4):
        for j in range(i):
            swapped = bytearray(data)
            swapped[entries[i]], swapped[entries[j]] = data[entries[j]], data[entries[i]]
            with pytest.raises(ProgramError):
                loads(mend(swapped))
    for field, value in ((16, 0), (16, 64), (16, 1 << 63), (24, 0), (24, 1 << 40), (24, (1 << 64) - 1)):
        for i in range(4):
            damaged = bytearray(data)
            struct.pack_into("<Q", damaged, 64 + 48 * i + field, value)
            if damaged != data:
                with pytest.raises(ProgramError):
                    loads(mend(damaged))
    for n in (0, 2, 3, 5, (1 << 32) - 1):
        damaged = bytearray(data)
        struct.pack_into("<I", damaged, 12, n)
        with pytest.raises(ProgramError):
            loads(mend(damaged))


def test_mend_restores_an_undamaged_file() -> None:
    data = dumps(sample())
    assert mend(data) == data
    broken = bytearray(data)
    broken[24] ^= 1
    broken[64 + 32] ^= 1
    assert mend(broken) == data


def test_replace_words() -> None:
    data = dumps(sample())
    words = loads(data).templates[0].words.copy()
    words[7] = 99
    changed = loads(replace_words(data, 0, words))
    assert changed.templates[0].words.tolist() == words.tolist()
    assert replace_words(replace_words(data, 0, words), 0, sample().templates[0].words) == data
    with pytest.raises(ProgramError, match="8 words, not 3"):
        replace_words(data, 0, words[:3])


def _with_structure(edit) -> bytes:
    """The sample's file with its msgpack structure changed and the checksums made right."""

    def change(sections: dict[str, bytearray]) -> None:
        structure = msgpack.unpackb(sections["program"], strict_map_key=False)
        structure = edit(structure) or structure
        sections["program"][:] = msgpack.packb(structure)

    return reseal(dumps(sample()), change)


def _mutations(node, path=()):
    """Every place in the structure, with values of the wrong type or out of range to put there."""
    if isinstance(node, list):
        for i, item in enumerate(node):
            yield from _mutations(item, (*path, i))
        yield path, [*node, 0]
        if node:
            yield path, node[:-1]
    for value in (None, True, "x", b"x", -1, 1 << 40, (1 << 64) - 1, 1.5, [], [[]], {}):
        if value != node or type(value) is not type(node):
            yield path, value


def test_every_structural_mutation_is_refused_or_sound() -> None:
    reference = msgpack.unpackb(_section("program"))
    for path, value in _mutations(reference):
        if not path:
            continue

        def edit(structure, path=path, value=value):
            place = structure
            for i in path[:-1]:
                place = place[i]
            place[path[-1]] = value

        try:
            back = loads(_with_structure(edit))
        except ProgramError:
            continue
        validate(back)
        assert same(loads(dumps(back)), back)


def _section(name: str) -> bytes:
    found = {}
    reseal(dumps(sample()), lambda sections: found.update(sections))
    return bytes(found[name])


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\xc1",
        b"\xdd\xff\xff\xff\xff",  # a list of 2**32 - 1 items
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\x91" * 100000 + b"\x90",
        b"\x9f" + b"\xc0" * 15,
        b"\x9f" + b"\x90" * 15,
        b"\xdc\xff\xff" * 5000,
        b"\xdd\x00\x0f\x00\x00" * 200000,  # a million items in each of many nested lists
        b"\x9f\xa1\xff" + b"\xc0" * 14,  # not UTF-8
    ],
)
def test_hostile_msgpack(packed: bytes) -> None:
    def change(sections: dict[str, bytearray]) -> None:
        sections["program"][:] = packed

    def change_debug(sections: dict[str, bytearray]) -> None:
        sections["debug"][:] = packed

    for edit in (change, change_debug):
        with pytest.raises(ProgramError):
            loads(reseal(dumps(sample()), edit))


def test_deep_plain_data_and_deep_steps() -> None:
    tree: list = []
    for _ in range(100):
        tree = [tree]
    with pytest.raises(ProgramError, match="nested"):
        dumps(dataclasses.replace(sample(), in_tree=tree))
    steps: tuple = ()
    for _ in range(30):
        steps = (pg.CondStep(5, (steps,)),)
    with pytest.raises(ProgramError, match="nested"):
        dumps(dataclasses.replace(sample(), steps=steps))
    packed: list = [0]
    for _ in range(100):
        packed = [0, packed]
    with pytest.raises(ProgramError, match="nested"):
        loads(_with_structure(lambda s: s.__setitem__(13, packed)))


def test_huge_declared_constant_allocates_nothing() -> None:
    for shape in ([1 << 60], [1 << 40, 1 << 40], [3], [0, 1 << 62, -1]):
        with pytest.raises(ProgramError):
            loads(_with_structure(lambda s, shape=shape: s[10].__setitem__(0, ["bfloat16", shape])))


def _refused(match: str, **changes) -> None:
    with pytest.raises(ProgramError, match=match):
        validate(dataclasses.replace(sample(), **changes))


def test_validate_refuses() -> None:
    p = sample()
    replace = dataclasses.replace
    t, b, kernel, host = p.templates[0], p.buffers, p.steps[0], p.steps[1]
    n = p.code.n_registers
    validate(p)
    _refused("same name", symbols=p.symbols * 2)
    _refused("range", symbols=(replace(p.symbols[0], min=2000),))
    _refused("multiple_of", symbols=(replace(p.symbols[0], multiple_of=0),))
    _refused("remainder", symbols=(replace(p.symbols[0], remainder=2),))
    _refused("solved", solved=(3,))
    _refused("solve takes", solve=IntCode(2, ()))
    _refused("operation 0", code=IntCode(1, ((99, 0, 0), *p.code.code[1:])))
    _refused("input 0, register", inputs=(replace(p.inputs[0], dims=(0, n)), p.inputs[1]))
    _refused("element type", outputs=(replace(p.outputs[0], dtype="complex7"),))
    _refused("check 0", checks=(pg.Check(n, ""),))
    _refused("arena", arena_rows={(PINNED, 4): 0})
    _refused("no arena", arena_rows={})
    _refused("patched word", templates=(replace(t, patches=(pg.Patch(8, 0, 1, 0),)),))
    _refused("parameter", templates=(replace(t, patches=(pg.Patch(0, 0, 1, 2),)),))
    for lo, width in ((-1, 4), (0, 0), (60, 5), (0, 65)):
        _refused("inside a word", templates=(replace(t, patches=(pg.Patch(0, lo, width, 0),)),))
    _refused("overlap", templates=(replace(t, patches=(pg.Patch(0, 0, 4, 0), pg.Patch(0, 3, 4, 0))),))
    _refused("overlap", templates=(replace(t, patches=(pg.Patch(3, 39, 1, 0),)),))
    _refused("relocated word", templates=(replace(t, relocs=(pg.Reloc(8, 0),)),))
    _refused("buffer: index 2", templates=(replace(t, relocs=(pg.Reloc(0, 2),)),))
    _refused("uint64", templates=(replace(t, words=t.words.astype(np.int64)),))
    _refused("template", steps=(replace(kernel, template=1),))
    _refused("2 parameters", steps=(replace(kernel, params=(0,)),))
    _refused("2 buffers", steps=(replace(kernel, buffers=(0,)),))
    _refused("buffer: index 6", steps=(replace(kernel, buffers=(0, 6)),))
    _refused("kernel parameter", steps=(replace(kernel, params=(0, n)),))
    _refused("host function", steps=(replace(host, function="os.system"),))
    _refused("unknown operation", steps=(replace(host, attrs={"op": "os.system"}),))
    _refused("read-only", steps=(replace(host, outputs=(0,)),))
    _refused("attribute, register", steps=(replace(host, attrs={"a": [{"reg": n}]}),))
    _refused("nothing else", steps=(replace(host, attrs={"a": {"reg": 0, "b": 1}}),))
    _refused("plain data", steps=(replace(host, attrs={"a": object()}),))
    _refused("without branches", steps=(pg.CondStep(5, ()),))
    _refused("selector", steps=(pg.CondStep(0, ((),)),))
    _refused("predicate", steps=(pg.WhileStep((), 0, ()),))
    _refused("counter", steps=(pg.ForStep(0, 5, ()),))
    _refused("no step", steps=(None,))
    _refused("outputs \\[0\\]", buffers=(*b[:3], replace(b[3], output=None), *b[4:]))
    _refused("two buffers", buffers=(*b, b[3]))
    _refused("no space", buffers=(*b, replace(b[2], space=8)))
    _refused("no offset", buffers=(*b, replace(b[2], offset=None)))
    _refused("no input", buffers=(*b, replace(b[0], input=None)))
    _refused("input 'x' is float32", buffers=(*b, replace(b[0], dtype="int32")))
    _refused("depends on a symbol", buffers=(*b[:4], replace(b[4], dims=(0, b[4].dims[1])), b[5]))
    _refused("its constant has", buffers=(*b[:4], replace(b[4], dims=b[4].dims[::-1]), b[5]))
    _refused("element count", buffers=(*b[:4], replace(b[4], elements=0), b[5]))
    _refused("its constant is", buffers=(*b[:4], replace(b[4], dtype="float16"), b[5]))
    _refused("malformed", symbols=None)
    long = (replace(t, words=np.zeros(1 << 20, np.uint64)),)
    _refused("words, more than", templates=long, steps=(kernel,) * 17)
    for chip in ("/etc/x", "x.toml", "", "a" * 100, 3, "../x"):
        _refused("name of a chip", chip=chip)


def test_runaway_integer_code_is_refused() -> None:
    builder = Builder(1)
    reg = 0
    for _ in range(60):
        reg = builder.op(MUL, reg, reg)
    with pytest.raises(ProgramError, match="bits"):
        validate(dataclasses.replace(sample(), code=builder.finish(), steps=()))


def test_section_checksums_are_crc32() -> None:
    data = dumps(sample())
    name, offset, length, crc = struct.unpack_from("<16sQQI", data, 64 + 48)
    assert name.rstrip(b"\0") == b"words" and length == 64 and offset % 64 == 0
    assert zlib.crc32(data[offset : offset + length]) == crc
