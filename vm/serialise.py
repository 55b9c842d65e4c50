"""The program file: ``save``, ``load`` and their in-memory forms.

Layout, all numbers little-endian, every section aligned to 64 bytes and followed by zeros up to the next one::

    header      64 bytes   magic, version, number of sections, file size, digest of header and table
    table       48 bytes a section: name, offset, length, CRC-32 of its bytes
    program     msgpack: everything with structure (vm.schema)
    words       uint64: the words of all templates, one template after the other
    constants   raw elements of all constants, each aligned to 64 bytes
    debug       msgpack: names, origins, reports; absent in a stripped file

The digest covers the table and with it every section's checksum, so that it stands for the whole file. There is no code in a file
that a loader would run: no pickle, no jaxpr, no StableHLO. Equal programs give equal bytes.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from vm.errors import ProgramError
from vm.program import Program
from vm.schema import ALIGNMENT, PLAIN, PROGRAM, Context, aligned
from vm.validate import validate

__all__ = ["dumps", "load", "loads", "mend", "replace_words", "reseal", "save", "validate"]

MAGIC = b"\x89DVM\r\n\x1a\n"  # like PNG's: damaged by text-mode copies, which are then noticed
VERSION = 3

_HEADER = struct.Struct("<8sIIQ16s24x")
_ENTRY = struct.Struct("<16sQQI12x")
_SECTIONS = (b"program", b"words", b"constants", b"debug")
_MMAP_FROM = 1 << 24  # bytes; smaller files are read, so that nobody can cut them short under a running program

Chunks = list[memoryview]


def dumps(program: Program, strip: bool = False) -> bytes:
    """The file's bytes. ``strip`` leaves the debug section out. A malformed program is a ``ProgramError``."""
    return b"".join(_file(_pack(program, strip)))


def save(program: Program, path: str | os.PathLike[str], strip: bool = False) -> None:
    """Writes the file; an existing one is replaced in one step, so that readers and programs mapped from it stay whole."""
    chunks = _file(_pack(program, strip))
    target = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:  # say the name that was asked for, not that of the temporary file
        raise type(error)(error.errno, error.strerror, str(target)) from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(chunks)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # as open() would have made it; mkstemp makes it private
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def loads(data: bytes | bytearray | memoryview | mmap.mmap) -> Program:
    """The program in ``data``. Words and constants are read-only views of it. Anything malformed is a ``ProgramError``."""
    if isinstance(data, (bytearray, memoryview)) and not memoryview(data).readonly:
        data = bytes(data)  # views of a buffer that may change would not stay verified
    sections = _split(memoryview(data))
    try:
        return _unpack(sections)
    except ProgramError:
        raise
    except (
        ValueError,
        TypeError,
        KeyError,
        OverflowError,
        RecursionError,
        MemoryError,
        msgpack.UnpackException,
    ) as error:
        raise ProgramError(f"malformed program file: {type(error).__name__}: {error}") from error


def load(path: str | os.PathLike[str]) -> Program:
    """The program in the file ``path``; the constants of a large file are mapped, not read."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < _MMAP_FROM:
            return loads(file.read())
        return loads(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def reseal(data: bytes, edit: Callable[[dict[str, bytearray]], None]) -> bytes:
    """``data`` with its sections changed by ``edit`` (name -> bytes, in place) and all checksums made right again. For tests and tools."""
    sections = {name: bytearray(section) for name, section in _split(memoryview(data)).items()}
    edit(sections)
    return b"".join(_file({name: [memoryview(section)] for name, section in sections.items()}))


def replace_words(data: bytes, template: int, words: np.ndarray) -> bytes:
    """``data`` with the words of one template replaced by ``words`` (uint64, same number) and the checksums made right again."""
    templates = loads(data).templates
    start = 8 * sum(len(t.words) for t in templates[:template])
    new = np.ascontiguousarray(words, "<u8").tobytes()
    if len(new) != 8 * len(templates[template].words):
        raise ProgramError(f"template {template} has {len(templates[template].words)} words, not {len(words)}")

    def edit(sections: dict[str, bytearray]) -> None:
        sections["words"][start : start + len(new)] = new

    return reseal(data, edit)


def mend(data: bytes) -> bytes:
    """``data``, possibly damaged anywhere, with the checksums recomputed as far as its table makes sense. For tests."""
    out = bytearray(data)
    if len(out) < _HEADER.size:
        return bytes(out)
    _, _, n, _, _ = _HEADER.unpack_from(out)
    end = min(_HEADER.size + n * _ENTRY.size, len(out))
    for at in range(_HEADER.size, end - _ENTRY.size + 1, _ENTRY.size):
        name, offset, length, _ = _ENTRY.unpack_from(out, at)
        if offset + length <= len(out):
            out[at : at + _ENTRY.size] = _ENTRY.pack(name, offset, length, zlib.crc32(out[offset : offset + length]))
    out[24:40] = _digest(memoryview(out)[:end])
    return bytes(out)


def _pack(program: Program, strip: bool) -> dict[str, Chunks]:
    validate(program)
    ctx = Context(stripped=strip)
    try:
        structure = msgpack.packb(PROGRAM.pack(program, ctx))
        debug = b"" if strip else msgpack.packb([ctx.debug, PLAIN.pack(program.debug, ctx)])
    except (TypeError, ValueError, AttributeError, OverflowError, UnicodeEncodeError) as error:
        raise ProgramError(f"this program cannot be written: {error}") from error
    constants: Chunks = []
    for i, array in enumerate(ctx.constants):
        raw = array.reshape(-1).view(np.uint8).data
        constants.append(raw)
        if i + 1 < len(ctx.constants):
            constants.append(memoryview(bytes(aligned(len(raw)) - len(raw))))
    sections = {
        "program": [memoryview(structure)],
        "words": [words.view(np.uint8).data for words in ctx.words],
        "constants": constants,
    }
    if not strip:
        sections["debug"] = [memoryview(debug)]
    return sections


def _file(sections: dict[str, Chunks]) -> Chunks:
    """Header, table, sections and padding."""
    offset = aligned(_HEADER.size + len(sections) * _ENTRY.size)
    table = []
    body: Chunks = []
    at = _HEADER.size + len(sections) * _ENTRY.size
    for name, chunks in sections.items():
        length = sum(len(chunk) for chunk in chunks)
        table.append(_ENTRY.pack(name.encode(), offset, length, _crc(chunks)))
        body += [memoryview(bytes(offset - at)), *chunks]
        at = offset + length
        offset = aligned(at)
    head = _HEADER.pack(MAGIC, VERSION, len(sections), at, bytes(16)) + b"".join(table)
    head = _HEADER.pack(MAGIC, VERSION, len(sections), at, _digest(memoryview(head))) + b"".join(table)
    return [memoryview(head), *body]


def _crc(chunks: Iterable[memoryview]) -> int:
    crc = 0
    for chunk in chunks:
        crc = zlib.crc32(chunk, crc)
    return crc


def _digest(head: memoryview) -> bytes:
    """Of header and table, the digest's own place taken as zeros."""
    state = hashlib.blake2b(head[:24], digest_size=16)
    state.update(bytes(16))
    state.update(head[40:])
    return state.digest()


def _split(data: memoryview) -> dict[str, memoryview]:
    """The sections of a file whose every byte has been accounted for: checksums match, gaps are zero, nothing overlaps or trails."""
    if len(data) < _HEADER.size or data[:8] != MAGIC:
        raise ProgramError(
            "not a DVM program file" if len(data) >= 8 else f"a program file of {len(data)} bytes is cut short"
        )
    _, version, n, size, digest = _HEADER.unpack_from(data)
    if version != VERSION:
        raise ProgramError(f"the file has format {version}, this DVM reads format {VERSION}")
    if size != len(data):
        raise ProgramError(f"the file says it has {size} bytes, it has {len(data)}")
    at = _HEADER.size + n * _ENTRY.size
    if n not in (len(_SECTIONS) - 1, len(_SECTIONS)) or at > len(data):
        raise ProgramError(f"the file says it has {n} sections")
    if _digest(data[:at]) != digest:
        raise ProgramError("the header or the section table is damaged (digest)")
    sections = {}
    for i, expected in enumerate(_SECTIONS[:n]):
        entry = bytes(data[_HEADER.size + i * _ENTRY.size :][: _ENTRY.size])
        name, offset, length, crc = _ENTRY.unpack(entry)
        name = name.rstrip(b"\0")
        if name != expected or entry != _ENTRY.pack(name, offset, length, crc):
            raise ProgramError(f"section {i} is {name!r}, expected {expected!r}")
        if offset != aligned(at) or offset + length > len(data) or any(data[at:offset]):
            raise ProgramError(f"section {name.decode()!r} is not where it must be, or overlaps another")
        sections[name.decode()] = data[offset : offset + length]
        at = offset + length
        if zlib.crc32(sections[name.decode()]) != crc:
            raise ProgramError(f"section {name.decode()!r} is damaged (checksum)")
    if at != len(data) or any(data[40 : _HEADER.size]):
        raise ProgramError("the file holds bytes that belong to no section")
    return sections


def _unpack(sections: dict[str, memoryview]) -> Program:
    ctx = Context(words_in=sections["words"], constants_in=sections["constants"])
    debug: Any = None
    if "debug" in sections:
        texts, debug = _structure(sections["debug"], 2)
        if type(texts) is not list:
            raise ProgramError("the debug texts are not a list")
        ctx.debug_in = iter(texts)
        debug = PLAIN.unpack(debug, ctx)
        if type(debug) is not dict:
            raise ProgramError("the debug data is not a dict")
    program: Program = PROGRAM.unpack(_structure(sections["program"], PROGRAM.stored), ctx)
    if ctx.debug_in is not None and next(ctx.debug_in, None) is not None:
        raise ProgramError("there are more debug texts than fields")
    if ctx.words_at != len(ctx.words_in) or ctx.constants_at != len(ctx.constants_in):
        raise ProgramError("words or constants are left over")
    program.debug = debug or {}
    validate(program)
    return program


def _structure(section: memoryview, n: int) -> list[Any]:
    limit = len(section)
    data = msgpack.unpackb(
        section,
        raw=False,
        strict_map_key=True,
        max_str_len=limit,
        max_bin_len=limit,
        max_array_len=limit,
        max_map_len=0,
        max_ext_len=limit,
    )
    if type(data) is not list or len(data) != n:
        raise ProgramError("the structure is not a list of the right length")
    return data


assert ALIGNMENT % 8 == 0  # words are read in place
