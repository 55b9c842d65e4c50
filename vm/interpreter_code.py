"""From bound words to the interpreter's table: loops in blocks, instructions as rows.

The words say which tile dims move with which loop, so that a loop's step can be widened (see ``vm.geometry``). Here sizes are known, so
every loop runs whole blocks and then, as rows of its own, one block of what is left: no tile is ever masked. Instructions whose operands do
not change in a loop run once, before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from vm import geometry, isa, specialised, widening
from vm import interpreter_ops as io
from vm.decode import Hole, Kernel, Loop, Op, Operand, Tile, operations, stored_buffers
from vm.errors import ProgramError, Unfit
from vm.interpreter_image import CODE_ROWS, LOCAL_WIDE_WORDS, LOCAL_WORDS, TABLE_WORDS
from vm.interpreter_ops import CHUNK, FIELDS

VECTOR_VOLUME = 1 << 17  # elements of the widest tile of a block
CUBE_VOLUME = 1 << 18
REDUCE_BLOCK = 1 << 12
_NEVER = -(1 << 62)
_SPARE_AXIS = io.AXES - 1


@dataclass(frozen=True)
class Place:
    """Where a step's buffer lies in the interpreter's device memory: its first word, in the 64-bit memory or the 32-bit one."""

    start: int
    wide: bool
    dtype: np.dtype


@dataclass(frozen=True, eq=False)
class Code:
    """A kernel as rows (int64[n, FIELDS]) and the table memory that they use (int64), whose first word is 0. ``addressed`` are the rows
    whose scalar is an address, each with the number of the buffer; ``first`` is the code that this one is ``moved`` from."""

    rows: np.ndarray
    table: np.ndarray
    addressed: tuple[tuple[int, int], ...] = ()
    first: Code | None = None

    def moved(self, old: Sequence[Place], new: Sequence[Place]) -> Code:
        """The same code, made for buffers at ``old``, for buffers of the same kinds at ``new``."""
        rows = self.rows.copy()
        for row, buffer in self.addressed:
            rows[row, io.A] += new[buffer].start - old[buffer].start
        return Code(rows, self.table, self.addressed, self.first or self)


@dataclass
class Axis:
    """A loop's block: ``size`` elements from ``base``, which is None where only the running image knows it."""

    size: int
    base: int | None
    extent: int


@dataclass
class Local:
    """A tile in a block: where its first word is, its sizes."""

    at: int
    sizes: list[int]
    tile: Tile

    @property
    def n(self) -> int:
        """Elements."""
        return math.prod(self.sizes)

    @property
    def wide(self) -> bool:
        """Whether it lives in the 64-bit memory."""
        return self.tile.dtype.itemsize == 8


def class_of(dtype: np.dtype) -> str:
    """The class in which a dtype is computed."""
    if dtype == np.bool_:
        return "b"
    if dtype.kind not in "iu":
        return "f"
    if dtype.itemsize == 8:
        return "I" if dtype.kind == "i" else "U"
    return "u" if dtype == np.uint32 else "i"


def plan(kernel: Kernel, words: np.ndarray, places: Sequence[Place]) -> Code:
    """The table for a kernel at bound words. ``Unfit`` if it cannot be made small enough."""
    cube = any(op.insn.name == "mmad" for op in operations(kernel.body))
    volume = CUBE_VOLUME if cube else VECTOR_VOLUME
    while True:
        try:
            return _Planner(kernel, words, places, volume).run()
        except Unfit:
            if volume == 1:
                raise
            volume = max(1, volume // 8)


@dataclass
class _Table:
    parts: list[np.ndarray] = field(default_factory=lambda: [np.zeros(1, np.int64)])
    known: dict[bytes, int] = field(default_factory=lambda: {bytes(8): 0})
    size: int = 1

    def put(self, values: np.ndarray) -> int:
        """The place of these values, which may be shared."""
        values = np.ascontiguousarray(values, np.int64).reshape(-1)
        key = values.tobytes()
        if key not in self.known:
            if self.size + len(values) > TABLE_WORDS:
                raise Unfit("too many positions")
            self.known[key] = self.size
            self.parts.append(values)
            self.size += len(values)
        return self.known[key]


class _Planner:
    def __init__(self, kernel: Kernel, words: np.ndarray, places: Sequence[Place], volume: int) -> None:
        self.kernel, self.words, self.places = kernel, words, places
        self.rows: list[list[int]] = []
        self.addressed: list[tuple[int, int]] = []  # rows with the address of a buffer
        self.table = _Table()
        self.axes: dict[int, Axis] = {}
        ops = io_numbers()
        self.numbers32, self.numbers64 = ops
        self.extents = {loop.op.at: self.value(loop.extent) for loop in geometry.loops_of(kernel.body)}
        self.blocks = self._blocks(volume)
        self.stored = set(stored_buffers(kernel))
        self.hoisted: set[int] = set()
        self.before: dict[int, set[int]] = {}
        self._find_invariant(kernel.body, [])
        self._allocate()

    # --- words ------------------------------------------------------------------------------------------------------------------
    def value(self, operand: Operand) -> int:
        """A field's number."""
        if isinstance(operand, int):
            return operand
        if isinstance(operand, Hole):
            return geometry.value_of(self.words, operand)
        raise ProgramError("an address where a number is expected")

    # --- blocks -----------------------------------------------------------------------------------------------------------------
    def _blocks(self, volume: int) -> dict[int, int]:
        """Elements that a step of each loop (by its word) covers."""
        loops = list(geometry.loops_of(self.kernel.body))
        extents: dict[int, int] = {}
        for loop in loops:
            extents[loop.axis] = max(extents.get(loop.axis, 1), self.extents[loop.op.at])
        size = dict.fromkeys(extents, 1)
        kinds = {loop.axis: loop.kind for loop in loops}
        own: dict[int, int] = {}  # of loops whose steps must stay as they are in the words
        for loop in loops:
            if loop.kind == isa.LoopKind.REDUCE and not widening.may_widen(self.kernel, loop):
                own[loop.axis] = loop.op.fixed("tile")
                size[loop.axis] = min(own[loop.axis], max(extents[loop.axis], 1))
        order = [a for a in reversed(size) if kinds[a] == isa.LoopKind.REDUCE]
        order += [a for a in reversed(size) if kinds[a] != isa.LoopKind.REDUCE]
        order = [a for a in order if a not in own]
        for axis in order:
            inner = max(
                (
                    math.prod(size[a] if a != isa.NO_AXIS else n for n, a in t.dims if a != axis)
                    for t in self.kernel.tiles.values()
                    if any(a == axis for _, a in t.dims)
                ),
                default=1,
            )
            most = volume // max(inner, 1)
            if kinds[axis] == isa.LoopKind.REDUCE:
                most = min(most, REDUCE_BLOCK)
            size[axis] = max(1, min(extents[axis], most))
        return {loop.op.at: min(size[loop.axis], max(self.extents[loop.op.at], 1)) for loop in loops}

    # --- what does not change in a loop --------------------------------------------------------------------------------------------
    def _find_invariant(self, body: Sequence[Op | Loop], loops: list[Loop]) -> None:
        writers: dict[int, int] = {}
        for op in operations(self.kernel.body):
            for number in specialised.writes(op):
                writers[number] = writers.get(number, 0) + 1

        def visit(body: Sequence[Op | Loop]) -> None:
            for item in body:
                if not isinstance(item, Loop):
                    continue
                visit(item.body)
                changed = {n for op in operations(item.body) for n in specialised.writes(op)}
                found: set[int] = set()
                for op in item.body:
                    if isinstance(op, Loop) or not self._pure(op, item.axis):
                        continue
                    written = specialised.writes(op)
                    if any(writers[n] != 1 for n in written) or any(n in changed for n in specialised.reads(op)):
                        continue
                    found.add(op.at)
                    changed.difference_update(written)
                    self.hoisted.update(written)
                self.before[item.op.at] = found

        visit(body)

    def _pure(self, op: Op, axis: int) -> bool:
        """Whether an instruction gives the same in every step of the loop over ``axis`` as long as its operands do."""
        if op.insn.name == "store" or op.insn.family in ("sync", "argreduce", "cumulative", "cube"):
            return False
        if op.fields.get("accumulate"):
            return False
        dims = self.kernel.tiles[op.fixed("dst")].dims
        if op.insn.name == "load":
            address = op.fields["address"]
            used = [t["dim"] for t in op.tail if not t["gather"] and t["dim"] != isa.NO_DIM]
            return address.buffer not in self.stored and all(dims[d][1] != axis for d in used)  # type: ignore[union-attr,index]
        return op.insn.name != "iota" or dims[op.fixed("dim")][1] != axis

    # --- local memory -------------------------------------------------------------------------------------------------------------
    def _key(self, tile: Tile) -> tuple[object, ...]:
        return ("own", tile.id) if tile.id in self.hoisted else (tile.space, tile.address, tile.dtype.itemsize == 8)

    def _allocate(self) -> None:
        """A place for every local address that a tile has; tiles that are made before their loop have their own."""
        largest: dict[int, int] = {}
        for loop in geometry.loops_of(self.kernel.body):
            largest[loop.axis] = max(largest.get(loop.axis, 0), self.blocks[loop.op.at])
        need: dict[tuple[object, ...], int] = {}
        for tile in self.kernel.tiles.values():
            n = math.prod(largest.get(a, 0) if a != isa.NO_AXIS else size for size, a in tile.dims)
            key = self._key(tile)
            need[key] = max(need.get(key, 0), n)
        self.base: dict[tuple[object, ...], int] = {}
        self.top = {False: 0, True: 0}
        for key, n in need.items():
            wide = self._is_wide(key)
            self.base[key] = self.top[wide]
            self.top[wide] += _padded(n)
        self.temp = dict(self.top)
        self._fits()

    def _is_wide(self, key: tuple[object, ...]) -> bool:
        return self.kernel.tiles[key[1]].dtype.itemsize == 8 if key[0] == "own" else bool(key[2])  # type: ignore[index]

    def _fits(self) -> None:
        if self.temp[False] > LOCAL_WORDS - 2 * CHUNK or self.temp[True] > LOCAL_WIDE_WORDS - 2 * CHUNK:
            raise Unfit("too much local memory")

    def scratch(self, n: int, wide: bool) -> int:
        """Local memory for one instruction."""
        at = self.temp[wide]
        self.temp[wide] += _padded(n)
        self._fits()
        return at

    def local(self, number: int) -> Local:
        """A tile in the current block."""
        tile = self.kernel.tiles[number]
        sizes = [size if a == isa.NO_AXIS else self.axes[a].size for size, a in tile.dims]
        return Local(self.base[self._key(tile)], sizes, tile)

    # --- rows ---------------------------------------------------------------------------------------------------------------------
    def row(self, kind: int, **fields: int) -> list[int]:
        """Adds a row; its control fields mean "go on"."""
        out = [0] * FIELDS
        out[io.KIND], out[io.N0], out[io.N1] = kind, 1, 1
        out[io.AX], out[io.END] = _SPARE_AXIS, _NEVER
        for name, value in fields.items():
            out[_FIELD[name]] = value
        self.rows.append(out)
        if len(self.rows) >= CODE_ROWS:
            raise Unfit("too many rows")
        return out

    def operation(self, name: str, wide: bool, n: int, **fields: int) -> list[int]:
        """A row that computes ``n`` lanes of one run: every operand chunk by chunk."""
        number = (self.numbers64 if wide else self.numbers32)[name]
        chunks = dict.fromkeys(("D0", "X0", "Y0", "Z0"), CHUNK)
        return self.row(
            io.INTO64 if wide else io.INTO32, OP=number, **{**chunks, "N0": -(-n // CHUNK), "LEN": n, **fields}
        )

    # --- the walk -----------------------------------------------------------------------------------------------------------------
    def run(self) -> Code:
        from vm.interpreter_lower import Lowering

        self.lowering = Lowering(self)
        self.body(self.kernel.body)
        rows = np.array(self.rows, np.int64).reshape(-1, FIELDS)
        return Code(rows, np.concatenate(self.table.parts), tuple(self.addressed))

    def body(self, body: Iterable[Op | Loop]) -> None:
        """Rows for a list of instructions and loops."""
        for item in body:
            if isinstance(item, Loop):
                self.loop(item)
            else:
                self.temp = dict(self.top)
                self.lowering.execute(item)

    def loop(self, loop: Loop) -> None:
        """Whole blocks, then what is left."""
        extent, block = self.extents[loop.op.at], self.blocks[loop.op.at]
        count, rest = divmod(extent, block)
        early = self.before.get(loop.op.at, set())
        for size, start, times in ((block, 0, count), (rest, count * block, 1)):
            if not size or not times:
                continue
            self.axes[loop.axis] = Axis(size, start if times == 1 else None, extent)
            first = [op for op in loop.body if not isinstance(op, Loop) and op.at in early]
            self.body(first)
            self.row(io.NONE, AX=loop.axis, AFTER=start)
            target = len(self.rows)
            self.body([op for op in loop.body if isinstance(op, Loop) or op.at not in early])
            if times > 1:
                end = start + times * size
                self.row(io.NONE, AX=loop.axis, ADD=size, END=end, AFTER=end, TARGET=target)
            del self.axes[loop.axis]


def _padded(n: int) -> int:
    """Room for ``n`` words and a chunk that begins at the last of them."""
    return (n + CHUNK + 15) // 16 * 16


_FIELD = {
    name: getattr(io, name)
    for name in (
        *("OP", "N0", "N1", "DST", "D0", "D1", "X", "X0", "X1", "Y", "Y0", "Y1", "Z", "Z0", "Z1", "A", "T", "LEN"),
        *("P0", "P1", "P2", "P3", "AX", "ADD", "END", "AFTER", "TARGET"),
    )
}

_numbers: list[dict[str, int]] = []


def io_numbers() -> list[dict[str, int]]:
    """Operation numbers by name, of the 32-bit and the 64-bit results."""
    if not _numbers:
        from vm.interpreter_image import operations as image_operations

        ops = image_operations()
        _numbers.extend({name: i for i, name in enumerate(table)} for table in (ops.into32, ops.into64))
    return _numbers
