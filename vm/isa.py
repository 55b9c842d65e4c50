"""The instruction set: one table from which encoder, decoder, disassembler, verifier, executors and the ISA page derive.

A kernel's image is a sequence of 64-bit words: two head words, then instructions, then a terminator (a zero word).

    word 0   reserved for the cross-core sync base
    word 1   entry word: type (3) @0, mix flag @3, image length in words (16) @8, block_dim (16) @32
    words    instructions: a head word, operand words, and for some a counted tail of further words
    0        terminator

Head word: id (16) @48, length in words (12) @36, tail items (8) @28, sync fields @0 (see ``SYNC``).

Operands are *tiles*. A ``TILE`` instruction declares one: memory space, byte address, dtype and dims. A dim is either a fixed number of
elements or an *axis*: the index variable of an enclosing ``LOOP``, in which case its extent is that loop's tile. So the words say which
part of a tile moves with which loop, and an executor may run many iterations of a loop as one wider tile where that is safe.

Global memory is addressed by an address word (space, item size, lane row or pinned index) plus a list of *terms*, which map the indices of
the tile's dims to positions along the source's dims (see ``TERM``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import ml_dtypes
import numpy as np

MASK64 = (1 << 64) - 1


class Pipe(IntEnum):
    """The hardware queue an instruction is issued to."""

    S = 0  # scalar
    V = 1  # vector
    M = 2  # cube
    MTE1 = 3  # L1 -> L0
    MTE2 = 4  # global -> local
    MTE3 = 5  # local -> global
    FIX = 6  # L0C -> local


class Space(IntEnum):
    """Local memories that hold tiles."""

    UB = 0
    L1 = 1
    L0C = 2


LOCAL_BLOCK = 32  # bytes: places of tiles in local memory begin at multiples of it


class LoopKind(IntEnum):
    """Iterations of a PARALLEL loop are independent; those of a REDUCE loop accumulate and run in ascending order.

    An ORDER loop stands around PARALLEL loops over its own axis and restricts them, step by step, to its step's elements: all cores walk
    its steps and share what is inside. It says in which order the cores visit tiles, never what is computed.

    A SPLIT loop stands around REDUCE loops over its own axis: its steps are shared out among cores, each sums up its step's elements, and
    what it sums up is added to memory (a store with `add`).
    """

    PARALLEL = 0
    REDUCE = 1
    ORDER = 2
    SPLIT = 3

    @property
    def shared(self) -> bool:
        """Whether the steps are shared out among cores."""
        return self in (LoopKind.PARALLEL, LoopKind.SPLIT)

    @property
    def divides(self) -> bool:
        """Whether it stands around loops over its own axis and restricts them."""
        return self in (LoopKind.ORDER, LoopKind.SPLIT)


DTYPES: tuple[np.dtype, ...] = tuple(
    np.dtype(d)
    for d in (
        np.bool_, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64,
        np.float16, ml_dtypes.bfloat16, np.float32,
    )
)  # fmt: skip
DTYPE_CODE: dict[np.dtype, int] = {d: i for i, d in enumerate(DTYPES)}

NO_AXIS = 15
MAX_AXES = 15  # axis numbers 0..14
MAX_RANK = 8


@dataclass(frozen=True)
class Field:
    """Bits ``[lo, lo+width)`` of word ``word`` of an instruction (word 0 is the head)."""

    name: str
    word: int
    lo: int
    width: int
    signed: bool = False
    kind: str = "int"  # int | tile (a tile id) | imm (raw 64 bits) | address


@dataclass(frozen=True)
class Insn:
    """One instruction: its id, issue pipe, fixed fields and, optionally, a counted tail of equal groups of words."""

    name: str
    id: int
    pipe: Pipe
    fields: tuple[Field, ...]
    doc: str
    tail: tuple[Field, ...] = ()
    tail_words: int = 0
    family: str = ""

    @property
    def fixed_words(self) -> int:
        """Head and operand words without the tail."""
        return 1 + max((f.word for f in self.fields), default=0)


HEAD_ID = Field("id", 0, 48, 16)
HEAD_LEN = Field("len", 0, 36, 12)
HEAD_TAIL = Field("tail", 0, 28, 8)
# Sync fields of the head. The instruction waits, runs on its own pipe, then sets. A pair of pipes has EVENTS events; beside the event
# stands the other pipe of the pair (0, the scalar pipe, means "none"). An event is a counter: a wait takes one set, the oldest. "back"
# events are loop-carried: they are waited for from the second execution of the instruction on (over all enclosing loops) and set in all
# but the last. `barrier`: the instruction starts when all earlier ones of its pipe are complete. Pipes run their instructions in order;
# on V they overlap, so one that touches bytes of an earlier one needs a barrier (or an event that was set after that one). Every other
# pipe completes an instruction before it starts the next.
EVENTS = 8
SYNC: tuple[Field, ...] = (
    Field("set_pipe", 0, 0, 3), Field("set_event", 0, 3, 3),
    Field("wait_pipe", 0, 6, 3), Field("wait_event", 0, 9, 3),
    Field("back_set_pipe", 0, 12, 3), Field("back_set_event", 0, 15, 3),
    Field("back_wait_pipe", 0, 18, 3), Field("back_wait_event", 0, 21, 3),
    Field("barrier", 0, 24, 1),
)  # fmt: skip

ENTRY_TYPE = Field("type", 1, 0, 3)
ENTRY_MIX = Field("mix", 1, 3, 1)
ENTRY_WORDS = Field("words", 1, 8, 16)
ENTRY_BLOCKS = Field("block_dim", 1, 32, 16)
HEAD_WORDS = 2

ADDR_ROW = (0, 40)
ADDR_ITEM = (59, 2)
ADDR_SPACE = (61, 3)

# One term of a global access. The position along one source dim is
#     pos = start + sum over chained terms of step * ((i // div) % mod)        i: index along the tile dim `dim` (mod 0: no modulo)
# and the element offset is offset + sum over source dims of pos * stride. `chain` joins a term to the next one of the same source dim.
# With `bounded`, elements with pos outside [0, hi) read `fill` instead. With `gather`, i is the value of tile `index`, whose dims are
# the destination dims in `mask`, and pos is clamped to [0, hi).
TERM: tuple[Field, ...] = (
    Field("dim", 0, 0, 5),
    Field("bounded", 0, 5, 1),
    Field("gather", 0, 6, 1),
    Field("chain", 0, 7, 1),
    Field("index", 0, 8, 10, kind="tile"),
    Field("mask", 0, 18, 8),
    Field("step", 1, 0, 64, signed=True),
    Field("div", 2, 0, 32),
    Field("mod", 2, 32, 32),
    Field("start", 3, 0, 64, signed=True),
    Field("stride", 4, 0, 64, signed=True),
    Field("hi", 5, 0, 64, signed=True),
)
TERM_WORDS = 6
NO_DIM = 31  # a term without a tile dim: only its start counts

_DST = Field("dst", 1, 0, 10, kind="tile")
_X = Field("x", 1, 10, 10, kind="tile")
_Y = Field("y", 1, 20, 10, kind="tile")
_P = Field("p", 1, 30, 10, kind="tile")

TABLE: dict[str, Insn] = {}
BY_ID: dict[int, Insn] = {}


def _insn(name: str, pipe: Pipe, fields: tuple[Field, ...], doc: str, family: str, **kw: Any) -> None:
    insn = Insn(name, len(TABLE) + 1, pipe, fields, doc, family=family, **kw)
    TABLE[name] = insn
    BY_ID[insn.id] = insn


# --- control -----------------------------------------------------------------------------------------------------------------------
_insn(
    "loop",
    Pipe.S,
    (
        Field("axis", 1, 0, 4),
        Field("kind", 1, 4, 2),
        Field("tile", 1, 8, 24),
        Field("trips", 1, 32, 32),
        Field("extent", 2, 0, 40),
    ),
    "Opens a loop over `extent` elements of axis `axis` in `trips` steps of at most `tile`; the last step is the tail. Inside an ORDER "
    "loop over the same axis it runs over that one's step.",
    "control",
)
_insn("endloop", Pipe.S, (Field("axis", 1, 0, 4),), "Closes the loop over `axis`.", "control")
_insn(
    "tile",
    Pipe.S,
    (
        Field("id", 1, 0, 10),
        Field("space", 1, 10, 2),
        Field("address", 1, 12, 20),
        Field("dtype", 1, 32, 4),
        Field("more", 1, 36, 3),
    ),
    "Declares a tile: local memory, byte address, dtype, `more` further places behind the first, one tail item a dim (outermost first).",
    "control",
    tail=(Field("size", 0, 0, 32), Field("axis", 0, 32, 4)),
    tail_words=1,
)
# --- memory ------------------------------------------------------------------------------------------------------------------------
_insn(
    "load",
    Pipe.MTE2,
    (
        _DST,
        Field("address", 2, 0, 64, kind="address"),
        Field("offset", 3, 0, 64, signed=True),
        Field("fill", 4, 0, 64, kind="imm"),
    ),
    "dst = global memory at the address, through the terms; out-of-bounds elements of bounded terms read `fill`.",
    "memory",
    tail=TERM,
    tail_words=TERM_WORDS,
)
_insn(
    "store",
    Pipe.MTE3,
    (
        _X,
        Field("add", 1, 48, 1),
        Field("address", 2, 0, 64, kind="address"),
        Field("offset", 3, 0, 64, signed=True),
    ),
    "global memory at the address, through the terms, = x; with `add` (float32), x is added to what is there, element by element at once.",
    "memory",
    tail=TERM,
    tail_words=TERM_WORDS,
)
# --- generators and movement ---------------------------------------------------------------------------------------------------------
_insn(
    "fill",
    Pipe.V,
    (_DST, Field("imm", 2, 0, 64, kind="imm")),
    "Every element of dst = imm (float64 or int64 bits, converted).",
    "move",
)
_insn(
    "iota",
    Pipe.V,
    (_DST, Field("dim", 1, 10, 5), Field("start", 2, 0, 64, signed=True), Field("step", 3, 0, 64, signed=True),
     Field("div", 4, 0, 32), Field("mod", 4, 32, 32)),
    "dst = start + step * ((i // div) % mod), i the global index along dim `dim` (mod 0: no modulo).",
    "move",
)  # fmt: skip
_insn("copy", Pipe.V, (_DST, _X), "dst = x in row-major order; the dims may be grouped differently.", "move")
_insn(
    "bcast",
    Pipe.V,
    (_DST, _X, Field("mask", 1, 40, 8)),
    "dst = x repeated; x's dims are the dims of dst in `mask`, in order.",
    "move",
)
_insn("permute", Pipe.V, (_DST, _X, Field("perm", 2, 0, 32)), "dst dim j = x dim (perm nibble j).", "move")
_insn(
    "extract",
    Pipe.V,
    (_DST, _X, Field("dim", 1, 40, 5), Field("start", 2, 0, 32, signed=True), Field("step", 2, 32, 32, signed=True)),
    "dst = x[..., start + step*i, ...] along fixed dim `dim`.",
    "move",
)
_insn(
    "join",
    Pipe.V,
    (_DST, Field("dim", 1, 40, 5)),
    "dst = the tail's tiles one after the other along fixed dim `dim`.",
    "move",
    tail=(Field("x", 0, 0, 10, kind="tile"),),
    tail_words=1,
)
_insn("cast", Pipe.V, (_DST, _X), "dst = x converted to dst's dtype (float to int truncates; to bool: not 0).", "move")
_insn(
    "lookup",
    Pipe.V,
    (_DST, _X, _Y, Field("dim", 1, 40, 5)),
    "dst = x taken along fixed dim `dim` at the clamped indices y; dims of y replace that dim where x has rank 1, else y has dst's dims.",
    "move",
)

UNARY = (
    "neg", "abs", "sign", "floor", "ceil", "round", "trunc", "exp", "exp2", "log", "log1p", "expm1", "sqrt", "rsqrt", "cbrt",
    "reciprocal", "square", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf",
    "erfc", "erf_inv", "logistic", "is_finite", "is_nan", "is_inf", "not",
)  # fmt: skip
BINARY = (
    "add", "sub", "mul", "div", "rem", "pow", "max", "min", "atan2", "and", "or", "xor", "shift_left", "shift_right_logical",
    "shift_right_arithmetic", "eq", "ne", "lt", "le", "gt", "ge",
)  # fmt: skip
REDUCE = ("sum", "max", "min", "prod", "and", "or")
CUMULATIVE = ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")

for _name in UNARY:
    _insn(_name, Pipe.V, (_DST, _X), f"dst = {_name}(x).", "unary")
for _name in BINARY:
    _insn(_name, Pipe.V, (_DST, _X, _Y), f"dst = {_name}(x, y).", "binary")
_insn("select", Pipe.V, (_DST, _X, _Y, _P), "dst = p ? x : y.", "select")
for _name in REDUCE:
    _insn(
        f"reduce_{_name}",
        Pipe.V,
        (_DST, _X, Field("mask", 1, 40, 8), Field("accumulate", 1, 48, 1)),
        f"dst = {_name} of x over the dims in `mask`; with `accumulate`, combined with the old dst.",
        "reduce",
    )
for _name in ("argmax", "argmin"):
    _insn(
        _name,
        Pipe.V,
        (_DST, _X, _Y, Field("dim", 1, 40, 5), Field("accumulate", 1, 48, 1)),
        f"dst = index of the first {_name[3:]} of x along `dim`, y = its value; with `accumulate`, against the old dst and y.",
        "argreduce",
    )
for _name in CUMULATIVE:
    _insn(
        _name,
        Pipe.V,
        (_DST, _X, _Y, Field("dim", 1, 40, 5), Field("reverse", 1, 45, 1), Field("carry", 1, 46, 1)),
        f"dst = {_name} of x along `dim`; with `carry`, continued from tile y, which takes the last value.",
        "cumulative",
    )
# --- cube ----------------------------------------------------------------------------------------------------------------------------
DOT_BATCH, DOT_FREE, DOT_CONTRACT = range(3)
_insn(
    "mmad",
    Pipe.M,
    (_DST, _X, _Y, Field("accumulate", 1, 48, 1), Field("xdims", 2, 0, 16), Field("ydims", 2, 16, 16)),
    "dst = x . y (+ dst). Two bits a dim say batch 0, free 1 or contracted 2; dst has the batch dims, then x's free, then y's free dims.",
    "cube",
)

# --- sync ----------------------------------------------------------------------------------------------------------------------------
# For what does not fit into a head: an instruction has one event of each kind, and what waits for a whole loop has no instruction.
_PIPE, _OTHER, _EVENT, _BACK = (
    Field("pipe", 1, 0, 3),
    Field("other", 1, 3, 3),
    Field("event", 1, 6, 3),
    Field("back", 1, 9, 1),
)
_insn(
    "set",
    Pipe.S,
    (_PIPE, _OTHER, _EVENT, _BACK),
    "Pipe `pipe`, all its earlier instructions complete, sets `event` for pipe `other`; `back`: as in SYNC.",
    "sync",
)
_insn(
    "wait",
    Pipe.S,
    (_PIPE, _OTHER, _EVENT, _BACK),
    "Pipe `pipe` waits for `event` of pipe `other`; `back`: as in SYNC.",
    "sync",
)
_insn(
    "barrier",
    Pipe.S,
    (_PIPE,),
    "Pipe `pipe` completes its earlier instructions; 0: all pipes do, and wait for each other.",
    "sync",
)


def issue_pipe(insn: Insn, dst: Space | None, x: Space | None) -> Pipe:
    """The pipe that an instruction with these operands' spaces issues to (sync instructions name theirs in a field).

    The cube's pipe also clears accumulators; what leaves L0C goes through FIX, what enters L1 from the unified buffer through MTE1.
    """
    if insn.pipe != Pipe.V:
        return insn.pipe
    if x == Space.L0C:
        return Pipe.FIX
    if dst == Space.L0C:
        return Pipe.M
    return Pipe.MTE1 if dst == Space.L1 else Pipe.V


def tiles_read(insn: Insn, fields: Mapping[str, Any], tail: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The tile operands whose old contents an instruction reads, as they stand in ``fields`` and ``tail``."""
    out = [fields[f.name] for f in insn.fields if f.kind == "tile" and f.name in ("x", "p")]
    has_y = any(f.name == "y" for f in insn.fields)
    if has_y and insn.family not in ("argreduce", "cumulative"):
        out.append(fields["y"])
    if fields.get("accumulate"):
        out += [fields["dst"], fields["y"]] if insn.family == "argreduce" else [fields["dst"]]
    if fields.get("carry"):
        out.append(fields["y"])
    for item in tail:
        for f in insn.tail:
            if f.kind == "tile" and (f.name != "index" or item["gather"]):
                out.append(item[f.name])
    return out


def tiles_renewed(insn: Insn, fields: Mapping[str, Any], tail: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The tile operands that an instruction writes without reading them: where one has several places, it moves on to the next."""
    read = tiles_read(insn, fields, tail)
    return [number for number in tiles_written(insn, fields) if number not in read]


def tiles_written(insn: Insn, fields: Mapping[str, Any]) -> list[Any]:
    """The tile operands that an instruction writes."""
    out = [fields["dst"]] if any(f.name == "dst" for f in insn.fields) else []
    if insn.family == "argreduce" or (insn.family == "cumulative" and fields["carry"]):
        out.append(fields["y"])
    return out


def put(words: list[int] | np.ndarray, base: int, field: Field, value: int) -> None:
    """Writes ``value`` into ``field`` of the instruction at word ``base``; ``ValueError`` if it does not fit."""
    limit = 1 << field.width
    low = -(limit >> 1) if field.signed else 0
    if not low <= value < (limit >> 1 if field.signed else limit) and not (
        field.kind in ("imm", "address") and -limit < value < limit
    ):
        raise ValueError(f"field {field.name} ({field.width} bits) cannot hold {value}")
    mask = (limit - 1) << field.lo
    old = int(words[base + field.word])
    words[base + field.word] = (old & ~mask & MASK64) | ((value & (limit - 1)) << field.lo)


def get(words: list[int] | np.ndarray, base: int, field: Field) -> int:
    """Reads ``field`` of the instruction at word ``base``."""
    value = int(words[base + field.word]) >> field.lo & ((1 << field.width) - 1)
    if field.signed and value >> (field.width - 1):
        value -= 1 << field.width
    return value


def imm_bits(value: float | int | bool, dtype: np.dtype) -> int:
    """The immediate word for ``value`` of ``dtype``: float64 bits for floating types, two's complement int64 otherwise."""
    if np.dtype(dtype).kind in "iub":
        return int(value) & MASK64
    return int(np.asarray(value, np.float64).view(np.uint64))


def imm_value(bits: int, dtype: np.dtype) -> np.ndarray:
    """The scalar of ``dtype`` that an immediate word stands for."""
    dtype = np.dtype(dtype)
    if dtype.kind in "iub":
        signed = bits - (1 << 64) if bits >> 63 else bits
        return np.asarray(bits if dtype == np.uint64 else signed).astype(dtype)
    return np.asarray(np.uint64(bits).view(np.float64)).astype(dtype)


def identity(kind: str, dtype: np.dtype) -> Any:
    """The neutral element of a reduction in ``dtype``."""
    dtype = np.dtype(dtype)
    if kind in ("sum", "or"):
        return np.zeros((), dtype)[()]
    if kind in ("prod", "and"):
        return (np.ones((), dtype) if kind == "prod" else ~np.zeros((), dtype))[()]
    if dtype == np.bool_:
        return np.bool_(kind == "min")
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return dtype.type(info.min if kind == "max" else info.max)
    return np.asarray(-np.inf if kind == "max" else np.inf).astype(dtype)[()]
