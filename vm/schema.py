"""How the data classes of a program become nested lists for msgpack and back: one codec per field, one table for both ways.

A record is a list of its fields in the table's order, so that a missing or an unknown field is a wrong length. Fields marked
``Debug`` go to a list of their own, which a stripped file leaves out. Arrays are taken out into ``Context`` as raw data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgpack
import numpy as np

from vm import program as pg
from vm.dtypes import dtype_of
from vm.errors import ProgramError
from vm.host import CODES, WORDS
from vm.intcode import IntCode
from vm.validate import MAX_DEPTH, MAX_PLAIN_DEPTH

ALIGNMENT = 64  # bytes, of sections and of constants

_BIG_INT = 1  # msgpack extension type: an integer outside 64 bits, little-endian two's complement
_BIG_INT_BYTES = 64
_NAMED = ("op", "kind")  # attributes of host steps
_LIST, _TUPLE, _DICT, _COMPLEX = range(4)  # tags of composite plain data


def aligned(n: int) -> int:
    """``n`` rounded up to the alignment."""
    return -(-n // ALIGNMENT) * ALIGNMENT


@dataclass
class Context:
    """What is written beside the structure, or read beside it: raw arrays and debug texts."""

    words: list[np.ndarray] = field(default_factory=list)
    constants: list[np.ndarray] = field(default_factory=list)
    debug: list[str] = field(default_factory=list)
    stripped: bool = False
    words_in: memoryview = memoryview(b"")
    constants_in: memoryview = memoryview(b"")
    debug_in: Iterator[Any] | None = None
    words_at: int = 0
    constants_at: int = 0
    depth: int = 0


class Codec(Protocol):
    """One kind of field."""

    def pack(self, value: Any, ctx: Context) -> Any:
        """Plain msgpack data for ``value``."""
        ...

    def unpack(self, data: Any, ctx: Context) -> Any:
        """The value; ``ProgramError`` if ``data`` is not what ``pack`` makes."""
        ...


def _bad(expected: str, found: Any) -> ProgramError:
    return ProgramError(f"expected {expected}, found {type(found).__name__} {str(found)[:40]!r}")


def _list(data: Any, n: int | None = None) -> list[Any]:
    if type(data) is not list or (n is not None and len(data) != n):
        raise _bad("a list" if n is None else f"a list of {n}", data)
    return data


@dataclass(frozen=True)
class Int:
    """An integer of any size up to 64 bytes."""

    def pack(self, value: Any, ctx: Context) -> Any:
        if type(value) is not int:
            if isinstance(value, (bool, np.bool_)) or not hasattr(value, "__index__"):
                raise _bad("an integer", value)
            value = value.__index__()
        if -(1 << 63) <= value < 1 << 63:
            return value
        if value.bit_length() >= 8 * _BIG_INT_BYTES:
            raise ProgramError(f"an integer of {value.bit_length()} bits does not fit a program file")
        return msgpack.ExtType(_BIG_INT, value.to_bytes(_BIG_INT_BYTES, "little", signed=True))

    def unpack(self, data: Any, ctx: Context) -> int:
        if type(data) is int:
            return data
        if isinstance(data, msgpack.ExtType) and data.code == _BIG_INT and len(data.data) == _BIG_INT_BYTES:
            value = int.from_bytes(data.data, "little", signed=True)
            if not -(1 << 63) <= value < 1 << 63:
                return value
        raise _bad("an integer", data)


@dataclass(frozen=True)
class Exact:
    """A value of exactly one type that msgpack has itself."""

    type: type

    def pack(self, value: Any, ctx: Context) -> Any:
        if type(value) is not self.type:
            raise _bad(self.type.__name__, value)
        return value

    def unpack(self, data: Any, ctx: Context) -> Any:
        return self.pack(data, ctx)


@dataclass(frozen=True)
class Debug:
    """A text that only people read; "" in a stripped file."""

    def pack(self, value: Any, ctx: Context) -> Any:
        ctx.debug.append("" if ctx.stripped else value)

    def unpack(self, data: Any, ctx: Context) -> str:
        if ctx.debug_in is None:
            return ""
        text = next(ctx.debug_in, None)
        if type(text) is not str:
            raise _bad("a debug text", text)
        return text


@dataclass(frozen=True)
class Optional:
    """``None`` or a value."""

    item: Codec

    def pack(self, value: Any, ctx: Context) -> Any:
        return None if value is None else self.item.pack(value, ctx)

    def unpack(self, data: Any, ctx: Context) -> Any:
        return None if data is None else self.item.unpack(data, ctx)


@dataclass(frozen=True)
class Sequence:
    """A tuple of values of one kind."""

    item: Codec

    def pack(self, value: Any, ctx: Context) -> Any:
        pack = self.item.pack
        return [pack(v, ctx) for v in value]

    def unpack(self, data: Any, ctx: Context) -> Any:
        unpack = self.item.unpack
        return tuple([unpack(d, ctx) for d in _list(data)])


class Record:
    """A data class, field by field."""

    def __init__(self, cls: Callable[..., Any], **fields: Codec) -> None:
        self.cls = cls
        self.fields = tuple(fields.items())
        self.stored = sum(not isinstance(codec, Debug) for codec in fields.values())

    def pack(self, value: Any, ctx: Context) -> Any:
        packed = [(codec, codec.pack(getattr(value, name), ctx)) for name, codec in self.fields]
        return [data for codec, data in packed if not isinstance(codec, Debug)]

    def unpack(self, data: Any, ctx: Context) -> Any:
        items = iter(_list(data, self.stored))
        values = {}
        for name, codec in self.fields:
            try:
                values[name] = codec.unpack(None if isinstance(codec, Debug) else next(items), ctx)
            except ProgramError as error:
                raise ProgramError(f"{self.cls.__name__}.{name}: {error}") from None
        return self.cls(**values)


@dataclass(frozen=True)
class Code:
    """Integer code: its number of inputs and all operations in one flat list."""

    def pack(self, value: IntCode, ctx: Context) -> Any:
        return [value.n_inputs, [INT.pack(x, ctx) for triple in value.code for x in triple]]

    def unpack(self, data: Any, ctx: Context) -> IntCode:
        n_inputs, flat = _list(data, 2)
        if len(_list(flat)) % 3:
            raise ProgramError("integer code: the operations are not triples")
        values = [INT.unpack(x, ctx) for x in flat]
        return IntCode(INT.unpack(n_inputs, ctx), tuple(zip(values[::3], values[1::3], values[2::3], strict=True)))


@dataclass(frozen=True)
class Words:
    """Template words: only their number is in the structure, the words follow one another in a section of their own."""

    def pack(self, value: np.ndarray, ctx: Context) -> Any:
        ctx.words.append(np.ascontiguousarray(value, "<u8"))
        return len(value)

    def unpack(self, data: Any, ctx: Context) -> np.ndarray:
        n = INT.unpack(data, ctx)
        if not 0 <= 8 * n <= len(ctx.words_in) - ctx.words_at:
            raise ProgramError(f"{n} words do not fit the section of words")
        words = np.frombuffer(ctx.words_in[ctx.words_at : ctx.words_at + 8 * n], "<u8")
        ctx.words_at += 8 * n
        return words


@dataclass(frozen=True)
class Array:
    """A constant: element type and shape are in the structure, the elements in a section of their own, read without a copy."""

    def pack(self, value: np.ndarray, ctx: Context) -> Any:
        dtype = dtype_of(value.dtype.name)
        ctx.constants.append(np.ascontiguousarray(value, dtype))
        return [value.dtype.name, list(value.shape)]

    def unpack(self, data: Any, ctx: Context) -> np.ndarray:
        name, shape = _list(data, 2)
        dtype = dtype_of(TEXT.unpack(name, ctx))
        shape = tuple(INT.unpack(n, ctx) for n in _list(shape))
        n_bytes = math.prod(shape) * dtype.itemsize
        start = aligned(ctx.constants_at)
        if len(shape) > 32 or min(shape, default=0) < 0 or n_bytes > max(0, len(ctx.constants_in) - start):
            raise ProgramError(f"a constant {name}{list(shape)} does not fit the section of constants")
        if any(ctx.constants_in[ctx.constants_at : start]):
            raise ProgramError("a gap between constants is not zero")
        ctx.constants_at = start + n_bytes
        raw = np.frombuffer(ctx.constants_in[start : start + n_bytes], np.uint8)
        if name == "bool" and raw.size and raw.max() > 1:
            raise ProgramError("a bool constant holds values other than 0 and 1")
        return raw.view(dtype).reshape(shape)


@dataclass(frozen=True)
class Plain:
    """Nested plain data. Lists, tuples, dicts and complex numbers carry a tag; the order of a dict is kept."""

    def pack(self, value: Any, ctx: Context, depth: int = 0) -> Any:
        if depth > MAX_PLAIN_DEPTH:
            raise ProgramError(f"data nested deeper than {MAX_PLAIN_DEPTH}")
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or type(value) in (bool, float, str, bytes):
            return value
        if type(value) is int:
            return INT.pack(value, ctx)
        if isinstance(value, complex):
            return [_COMPLEX, value.real, value.imag]
        if isinstance(value, (list, tuple)):
            tag = _LIST if isinstance(value, list) else _TUPLE
            return [tag, *(self.pack(v, ctx, depth + 1) for v in value)]
        if isinstance(value, dict):
            return [_DICT, *(self.pack(x, ctx, depth + 1) for pair in value.items() for x in pair)]
        raise _bad("plain data", value)

    def unpack(self, data: Any, ctx: Context, depth: int = 0) -> Any:
        if depth > MAX_PLAIN_DEPTH:
            raise ProgramError(f"data nested deeper than {MAX_PLAIN_DEPTH}")
        if data is None or type(data) in (bool, float, str, bytes):
            return data
        if type(data) is not list:
            return INT.unpack(data, ctx)
        if not data or type(data[0]) is not int:
            raise _bad("a tagged list", data)
        tag, items = data[0], [self.unpack(d, ctx, depth + 1) for d in data[1:]]
        if tag == _LIST:
            return items
        if tag == _TUPLE:
            return tuple(items)
        if tag == _COMPLEX and len(items) == 2 and all(type(x) is float for x in items):
            return complex(*items)
        if tag == _DICT and len(items) % 2 == 0 and all(type(k) in (str, int) for k in items[::2]):
            found = dict(zip(items[::2], items[1::2], strict=True))
            if 2 * len(found) == len(items):
                return found
        raise _bad("plain data", data)


class Word:
    """One of a fixed set of words, by its number: a stripped file holds no names of operations."""

    def __init__(self, numbers: dict[str, int]) -> None:
        self.numbers = numbers
        self.words = {number: word for word, number in numbers.items()}

    def pack(self, value: Any, ctx: Context) -> Any:
        if value not in self.numbers:
            raise ProgramError(f"unknown host function or operation {value!r}")
        return self.numbers[value]

    def unpack(self, data: Any, ctx: Context) -> str:
        if type(data) is not int or data not in self.words:
            raise ProgramError(f"unknown number {data!r} of a host function or operation")
        return self.words[data]


@dataclass(frozen=True)
class HostAttrs:
    """Attributes of a host step; the values of ``op`` and ``kind`` are names of operations and are stored by number."""

    def pack(self, value: Any, ctx: Context) -> Any:
        named = {k: WORD.pack(v, ctx) for k, v in value.items() if k in _NAMED}
        return [[named.get(k) for k in _NAMED], PLAIN.pack({k: v for k, v in value.items() if k not in _NAMED}, ctx)]

    def unpack(self, data: Any, ctx: Context) -> dict[str, Any]:
        numbers, rest = _list(data, 2)
        attrs = PLAIN.unpack(rest, ctx)
        if type(attrs) is not dict or any(k in attrs for k in _NAMED):
            raise _bad("attributes", rest)
        named = zip(_NAMED, _list(numbers, len(_NAMED)))
        return {**{k: WORD.unpack(n, ctx) for k, n in named if n is not None}, **attrs}


@dataclass(frozen=True)
class AnyStep:
    """One step of the queue, with its kind in front."""

    def pack(self, value: Any, ctx: Context) -> Any:
        kind = _STEP_TYPES.get(type(value))
        if kind is None:
            raise _bad("a step", value)
        return [kind, self._nested(ctx, lambda: _STEPS[kind].pack(value, ctx))]

    def unpack(self, data: Any, ctx: Context) -> Any:
        kind, body = _list(data, 2)
        if type(kind) is not int or not 0 <= kind < len(_STEPS):
            raise _bad("a kind of step", kind)
        return self._nested(ctx, lambda: _STEPS[kind].unpack(body, ctx))

    @staticmethod
    def _nested(ctx: Context, action: Callable[[], Any]) -> Any:
        if ctx.depth > MAX_DEPTH:
            raise ProgramError(f"steps are nested deeper than {MAX_DEPTH}")
        ctx.depth += 1
        result = action()
        ctx.depth -= 1
        return result


@dataclass(frozen=True)
class Arenas:
    """The arena sizes, sorted by space and item size."""

    def pack(self, value: dict[tuple[int, int], int], ctx: Context) -> Any:
        return [[space, size, INT.pack(reg, ctx)] for (space, size), reg in sorted(value.items())]

    def unpack(self, data: Any, ctx: Context) -> dict[tuple[int, int], int]:
        rows = [tuple(INT.unpack(x, ctx) for x in _list(row, 3)) for row in _list(data)]
        if rows != sorted(rows) or len({row[:2] for row in rows}) != len(rows):
            raise ProgramError("the arenas are not sorted")
        return {(space, size): reg for space, size, reg in rows}


INT, TEXT, BOOL = Int(), Exact(str), Exact(bool)
INTS, TEXTS, MAYBE, DEBUG, PLAIN = Sequence(INT), Sequence(TEXT), Optional(INT), Debug(), Plain()
HOST, WORD = Word(CODES), Word(WORDS)
BLOCK = Sequence(AnyStep())

_SYMBOL = Record(pg.Symbol, name=TEXT, min=INT, max=MAYBE, multiple_of=INT, remainder=INT, origin=DEBUG)
_SPEC = Record(pg.TensorSpec, name=TEXT, dtype=TEXT, dims=INTS, text=TEXTS)
_DATA_SIZE = Record(pg.DataSize, buffer=INT, axis=INT, limit=INT)
_CHECK = Record(pg.Check, reg=INT, message=TEXT, origin=DEBUG)
_PATCH = Record(pg.Patch, word=INT, lo=INT, width=INT, param=INT)
_RELOC = Record(pg.Reloc, word=INT, buffer=INT)
_TEMPLATE = Record(
    pg.Template,
    words=Words(),
    patches=Sequence(_PATCH),
    relocs=Sequence(_RELOC),
    n_params=INT,
    n_buffers=INT,
    name=DEBUG,
)
_BUFFER = Record(
    pg.Buffer,
    space=INT,
    dtype=TEXT,
    elements=INT,
    offset=MAYBE,
    dims=INTS,
    constant=MAYBE,
    input=MAYBE,
    output=MAYBE,
    name=DEBUG,
    alias=MAYBE,
)
_CHOICE = Record(pg.Choice, reg=INT, count=INT)
_STEPS = (
    Record(pg.KernelStep, template=INT, params=INTS, buffers=INTS, name=DEBUG, choice=MAYBE, alternative=INT),
    Record(pg.HostStep, function=HOST, attrs=HostAttrs(), inputs=INTS, outputs=INTS),
    Record(pg.CondStep, selector=INT, branches=Sequence(BLOCK)),
    Record(pg.WhileStep, cond=BLOCK, predicate=INT, body=BLOCK),
    Record(pg.ForStep, count=INT, counter=INT, body=BLOCK, reverse=BOOL),
)
_STEP_TYPES = {record.cls: kind for kind, record in enumerate(_STEPS)}

PROGRAM = Record(
    pg.Program,
    symbols=Sequence(_SYMBOL),
    inputs=Sequence(_SPEC),
    outputs=Sequence(_SPEC),
    solve=Code(),
    solved=INTS,
    code=Code(),
    checks=Sequence(_CHECK),
    templates=Sequence(_TEMPLATE),
    buffers=Sequence(_BUFFER),
    steps=BLOCK,
    constants=Sequence(Array()),
    arena_rows=Arenas(),
    chip=TEXT,
    in_tree=PLAIN,
    out_tree=PLAIN,
    data_sizes=Sequence(_DATA_SIZE),
    stages=INTS,
    choices=Sequence(_CHOICE),
)
