"""Launch geometry: in which blocks the JAX executors run each loop, and the scalars that a bound kernel's code takes.

Block sizes are fixed per template (they are part of its code); how many blocks of each size run and where they start follows from the
bound words. Every size is code that XLA must compile, so there are few of them: a parallel loop has one or two *exact* sizes, whose last
block may be shifted back and compute some elements again (harmless, because iterations are independent), a small *masked* size for what
is left, which stores only what lies inside the extent, and, where a matrix product has a faster form for one row, size 1. A reduce loop's
last block may overrun; reductions mask what is outside.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from vm import isa, widening
from vm.decode import Address, Hole, Kernel, Loop, Op, Operand, operations

# How many elements of the widest tile a block should hold: small enough for the caches in vector code, and rows enough to keep a matrix
# product busy. Measured on two cores; see docs/executor.md.
VECTOR_VOLUME = 1 << 15  # from twice that on XLA divides a pass among cores, and waits for them longer than it saves
NESTED_VOLUME = 1 << 14  # where two loops over dynamic extents share a tile
CUBE_VOLUME = 1 << 22
FULL_VOLUME = 1 << 21
CUBE_ROWS = 256
LOOPED_CUBE_ROWS = 128
CUBE_MASKED = (128, 32, 16)  # rows of the masked blocks of a matrix product
CUBE_OVERHEAD = 33  # rows whose time a block takes beside its own, at most: packing.py says what for
SINGLE_ROW = 19  # rows whose time a block of one row takes
NESTED_ROWS = 16
LOOPED_MASKED = (32,)
CUBE_REDUCE = (128, 32)
VECTOR_REDUCE = (1024, 64)
SPREAD = 16  # exact size of vector code over its masked size


@dataclass(frozen=True)
class Rungs:
    """Block sizes of one axis: exact ones, then masked ones (both largest first), and whether single elements have code."""

    exact: tuple[int, ...]
    masked: tuple[int, ...] = ()
    single: bool = False

    @property
    def top(self) -> int:
        """The largest size."""
        return max((*self.exact, *self.masked))


@dataclass(frozen=True)
class Blocks:
    """Blocks of one size: ``count`` of them from element ``start`` on; ``masked`` ones may reach past the extent."""

    size: int
    masked: bool
    count: int = 0
    start: int = 0


def shapes(kind: isa.LoopKind, rungs: Rungs) -> list[Blocks]:
    """The kinds of blocks that a loop with these block sizes has code for, in the order in which they run."""
    if kind == isa.LoopKind.REDUCE:
        return [Blocks(size, size > 1) for size in (*rungs.exact, *rungs.masked)]
    out = [Blocks(size, False) for size in rungs.exact] + [Blocks(size, size > 1) for size in rungs.masked]
    if rungs.single and 1 not in rungs.exact:
        out.append(Blocks(1, False))
    return out


@lru_cache(maxsize=4096)
def blocks(kind: isa.LoopKind, rungs: Rungs, n: int) -> tuple[Blocks, ...]:
    """``shapes`` with the counts and starts for an extent of ``n`` elements."""
    kinds = shapes(kind, rungs)
    counts = _cheapest(kinds, n, 0, n)[1] if rungs.single else _greedy(kind, kinds, n)
    out: list[Blocks] = []
    start = 0
    for block, count in zip(kinds, counts, strict=True):
        out.append(Blocks(block.size, block.masked, count, start))
        start = min(start + count * block.size, n)
    return tuple(out)


def _greedy(kind: isa.LoopKind, kinds: list[Blocks], n: int) -> list[int]:
    """Counts where an element costs the same in every block."""
    counts = []
    left = n
    for k, block in enumerate(kinds):
        size, last = block.size, k == len(kinds) - 1
        count, rest = divmod(left, size)
        if rest and (kind == isa.LoopKind.REDUCE or block.masked):
            # An overrun block is better than more than half of it in smaller ones; the last size takes all that is left.
            count += last or rest * 2 > size
        elif rest and n >= size > 1:
            # One shifted block is better than many small ones when more than half of it is new (or nothing smaller follows).
            count += rest * 2 > size or last
        counts.append(count)
        left = max(left - count * size, 0)
    return counts


def _cheapest(kinds: list[Blocks], left: int, k: int, n: int) -> tuple[int, list[int]]:
    """The cheapest counts for ``left`` rows of a matrix product in the sizes from number ``k`` on, and their cost in rows."""
    if k == len(kinds):
        return 0, []
    block = kinds[k]
    size, last = block.size, k == len(kinds) - 1
    full, rest = divmod(left, size)
    cost = size + min(size, CUBE_OVERHEAD) if size > 1 else SINGLE_ROW
    smallest = all(b.size >= size or b.size == 1 for b in kinds)
    fits = block.masked or n >= size  # an exact block may be shifted back, but not to before the first row
    # A block may reach over its rows by at most as many again, except for the smallest one.
    counts = (
        [full + 1]
        if last and rest
        else [full, full + 1]
        if rest and fits and (rest * 2 >= size or smallest)
        else [full]
    )
    found = []
    for count in counts:
        more, others = _cheapest(kinds, max(left - count * size, 0), k + 1, n)
        found.append((count * cost + more, [count, *others]))
    return min(found)


def plan(kernel: Kernel) -> dict[int, Rungs]:
    """Block sizes for every axis. A fixed extent up to the largest exact size runs as one block."""
    loops = list(loops_of(kernel.body))
    cube = any(op.insn.name == "mmad" for op in operations(kernel.body))
    fixed = {loop.axis: max(loop.extent, 1) for loop in loops if isinstance(loop.extent, int)}
    parallel = list(dict.fromkeys(x.axis for x in loops if x.kind == isa.LoopKind.PARALLEL and x.axis not in fixed))
    reduced = list(dict.fromkeys(x.axis for x in loops if x.kind == isa.LoopKind.REDUCE and x.axis not in fixed))
    size = dict(fixed)
    size.update(dict.fromkeys(parallel, 1))
    size.update(dict.fromkeys(reduced, (CUBE_REDUCE if cube else VECTOR_REDUCE)[0]))

    # A product reads an operand where it lies, a row or the whole of it: only what is computed has to be held.
    loaded = {op.fixed("dst") for op in operations(kernel.body) if op.insn.name == "load"} if cube else set()

    def volume(axis: int | None) -> int:
        """Elements of the largest tile; with an axis, of one step along it, over the tiles that move with it."""
        tiles = [
            t.dims
            for number, t in kernel.tiles.items()
            if (number not in loaded if axis is None else any(a == axis for _, a in t.dims))
        ]
        return max(
            (math.prod(size[a] if a != isa.NO_AXIS else n for n, a in dims if a != axis) for dims in tiles), default=1
        )

    ladder = parallel[-1:]
    if not ladder:  # a fixed parallel axis that makes tiles too large becomes the ladder
        large = volume(None) > (CUBE_VOLUME if cube else FULL_VOLUME)
        ladder = [x.axis for x in loops if x.kind == isa.LoopKind.PARALLEL][:1] if large else []
    out: dict[int, Rungs] = {axis: Rungs((n,)) for axis, n in fixed.items()}
    for axis in reduced:
        out[axis] = Rungs(CUBE_REDUCE if cube else VECTOR_REDUCE)
    for axis in parallel:
        out[axis] = Rungs((1,))
    for axis in ladder:
        size[axis] = 1
        out[axis] = (
            _cube(volume(axis), bool(reduced))
            if cube
            else _vector(volume(axis), VECTOR_VOLUME if len(parallel) == 1 else NESTED_VOLUME)
        )
    rows = parallel[-2:-1]
    if rows and not cube:
        out[rows[0]] = Rungs((NESTED_ROWS, 1))
    stored = {
        x.axis
        for x in loops
        if x.kind == isa.LoopKind.REDUCE and any(op.insn.name == "store" for op in operations(x.body))
    }
    for axis in stored:  # such a loop's blocks must not overrun
        out[axis] = Rungs((1,))
    for loop in loops:
        if loop.kind == isa.LoopKind.REDUCE and not widening.may_widen(kernel, loop):
            out[loop.axis] = Rungs((loop.op.fixed("tile"),))  # the words' own steps
    return out


def _cube(inner: int, looped: bool) -> Rungs:
    rows = max(1, min(CUBE_VOLUME // max(inner, 1), LOOPED_CUBE_ROWS if looped else CUBE_ROWS))
    top = 1 << (rows.bit_length() - 1)
    if top <= CUBE_MASKED[-1]:
        return Rungs((top, 1)) if top > 1 else Rungs((1,))
    if top <= LOOPED_CUBE_ROWS:
        return Rungs((), (top, *LOOPED_MASKED), True)
    return Rungs((top,), tuple(n for n in CUBE_MASKED if n < top), True)


def _vector(inner: int, limit: int) -> Rungs:
    rows = max(1, limit // max(inner, 1))
    top = 1 << (rows.bit_length() - 1)
    return Rungs((top,), (max(1, top // SPREAD),)) if top > 1 else Rungs((1,))


def loops_of(body: Iterable[Op | Loop]) -> Iterable[Loop]:
    """All loops of a loop tree, outer ones first."""
    for item in body:
        if isinstance(item, Loop):
            yield item
            yield from loops_of(item.body)


def value_of(words: np.ndarray, hole: Hole) -> int:
    """A hole's value in bound words."""
    value = int(words[hole.word]) >> hole.lo & ((1 << hole.width) - 1)
    if hole.signed and value >> (hole.width - 1):
        value -= 1 << hole.width
    return value


class Scalars:
    """The run-time scalars of a kernel's code, as one int64 vector: values of holes, rows of addresses, and the blocks of its loops.

    They are decoded from the bound words on the host, once per bind: XLA would compile a small kernel for every one of them. The blocks
    of a loop are numbered through all kinds; a kind has two scalars: the number at which it ends, and where its block 0 would start.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.rungs = plan(kernel)
        # What is added must be added once: no block is shifted back over elements that another one has.
        self.adds = any(op.insn.name == "store" and op.fixed("add") for op in operations(kernel.body))
        self.slots: dict[Hole | Address, int] = {}
        self.loops: dict[int, int] = {}  # word of a loop instruction -> slot of its first kind of block
        self._ladders: list[tuple[Loop, int, Rungs]] = []
        for loop in loops_of(kernel.body):
            self._operand(loop.extent)
        for op in operations(kernel.body):
            for fields in (op.fields, *op.tail):
                for operand in fields.values():
                    self._operand(operand)
        # Where each of them is in the words: word, lowest bit, mask, and the bit of its sign (0 if it has none).
        self._fields: list[tuple[int, int, int, int]] = []
        for operand in self.slots:
            if isinstance(operand, Hole):
                sign = 1 << (operand.width - 1) if operand.signed else 0
                self._fields.append((operand.word, operand.lo, (1 << operand.width) - 1, sign))
            else:
                self._fields.append((operand.word, 0, (1 << isa.ADDR_ROW[1]) - 1, 0))
        self.size = len(self.slots)
        for loop in loops_of(kernel.body):
            if not self.whole(loop):
                rungs = self.rungs[loop.axis]
                self.loops[loop.op.at] = self.size
                self._ladders.append((loop, self.size, rungs))
                self.size += 2 * len(shapes(loop.kind, rungs))
        # Axes that always move as one block, and its size.
        self.lengths: dict[int, int] = {x.axis: x.extent for x in loops_of(kernel.body) if self.whole(x)}  # type: ignore[misc]

    def _operand(self, operand: Operand) -> None:
        if not isinstance(operand, int):
            self.slots.setdefault(operand, len(self.slots))

    def whole(self, loop: Loop) -> bool:
        """Whether a loop of fixed extent runs as one block."""
        return isinstance(loop.extent, int) and loop.extent <= self.rungs[loop.axis].top

    def extent(self, words: np.ndarray, loop: Loop) -> int:
        """A loop's extent in bound words."""
        return loop.extent if isinstance(loop.extent, int) else value_of(words, loop.extent)  # type: ignore[arg-type]

    def fill(self, words: np.ndarray) -> np.ndarray:
        """The vector for bound words, int64[size]."""
        at = words.tolist()
        out = []
        for word, lo, mask, sign in self._fields:
            value = at[word] >> lo & mask
            out.append(value - mask - 1 if value & sign else value)
        for loop, _, rungs in self._ladders:
            end = 0
            n = loop.extent if isinstance(loop.extent, int) else out[self.slots[loop.extent]]
            for block in blocks(loop.kind, rungs, n):
                out += (end + block.count, block.start - end * block.size)
                end += block.count
        return np.array(out, np.int64)

    def overruns(self, words: np.ndarray) -> bool:
        """Whether some block of a bound kernel reaches past its loop's extent. If none does, only elements of its buffers are read."""
        for loop, _, rungs in self._ladders:
            n = self.extent(words, loop)
            for block in blocks(loop.kind, rungs, n):
                if block.count and (block.masked or self.adds):
                    shifted = loop.kind == isa.LoopKind.PARALLEL and not self.adds
                    if n < block.size if shifted else block.start + block.count * block.size > n:
                        return True
        return False

    def trips(self, words: np.ndarray) -> dict[int, int]:
        """How many blocks each loop (by the word of its instruction) runs in each run of the loops around it."""
        return {
            loop.op.at: sum(b.count for b in blocks(loop.kind, rungs, self.extent(words, loop)))
            for loop, _, rungs in self._ladders
        }
