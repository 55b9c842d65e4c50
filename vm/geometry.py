"""Launch geometry: in which blocks the JAX executors run each loop, and the scalars that a bound kernel's code takes.

Block sizes are fixed per template (they are part of its code); how many blocks of each size run and where they start follows from the
bound words. A parallel loop's blocks cover its extent exactly: the last one of a size may be shifted back and compute some elements
again, which is harmless because iterations are independent. Fewer elements than the smallest block above 1 run as one masked block.
A reduce loop's last block may overrun; reductions mask what is outside.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from vm import isa
from vm.decode import Address, Hole, Kernel, Loop, Op, Operand, operations

# How many elements of the widest tile a block should hold: small enough for the caches in vector code, and rows enough to keep a matrix
# product busy. Measured on two cores; see docs/executor.md.
VECTOR_VOLUME = 1 << 17
CUBE_VOLUME = 1 << 22
FULL_VOLUME = 1 << 21
CUBE_ROWS = 256
LOOPED_CUBE_ROWS = 64
CUBE_REDUCE = (128,)
VECTOR_REDUCE = (1024, 128, 16)
MASKED_ROWS = 16  # the smallest block above 1 runs masked where fewer elements are left, if it is at most so large


@dataclass(frozen=True)
class Blocks:
    """Blocks of one size: ``count`` of them from element ``start`` on; ``masked`` ones may reach past the extent."""

    size: int
    masked: bool
    count: int = 0
    start: int = 0


def shapes(kind: isa.LoopKind, rungs: tuple[int, ...]) -> list[Blocks]:
    """The kinds of blocks that a loop with these block sizes has code for, in the order in which they run."""
    if kind == isa.LoopKind.REDUCE:
        return [Blocks(size, True) for size in rungs]
    out = [Blocks(size, False) for size in rungs]
    if len(rungs) > 1 and 1 < rungs[-2] <= MASKED_ROWS:
        out.insert(0, Blocks(rungs[-2], True))
    return out


def blocks(kind: isa.LoopKind, rungs: tuple[int, ...], n: int) -> list[Blocks]:
    """``shapes`` with the counts and starts for an extent of ``n`` elements."""
    out: list[Blocks] = []
    start = 0
    for block in shapes(kind, rungs):
        size, left = block.size, n - start
        if kind == isa.LoopKind.REDUCE:
            count = left // size
            # An overrun block is better than more than half of it in smaller ones; the last size takes all that is left.
            if left > count * size and (size == rungs[-1] or (left - count * size) * 2 > size):
                count += 1
        elif block.masked:
            count = int(1 < n < size)
        else:
            count = left // size
            # One shifted block is better than many small ones when more than half of it is new.
            if size > 1 and size != rungs[0] and n >= size and (left - count * size) * 2 > size:
                count += 1
        out.append(Blocks(size, block.masked, count, start))
        start = min(start + count * size, n)
    return out


def plan(kernel: Kernel) -> dict[int, tuple[int, ...]]:
    """Block sizes for every axis, largest first. A fixed extent up to the first entry runs as one block."""
    loops = list(loops_of(kernel.body))
    cube = any(op.insn.name == "mmad" for op in operations(kernel.body))
    stored_reduce = {
        loop.axis
        for loop in loops
        if loop.kind == isa.LoopKind.REDUCE and any(op.insn.name == "store" for op in operations(loop.body))
    }
    size: dict[int, int] = {}
    ladder: int | None = None
    for loop in loops:
        if isinstance(loop.extent, int):
            size[loop.axis] = max(loop.extent, 1)
        elif loop.kind == isa.LoopKind.REDUCE:
            size[loop.axis] = (CUBE_REDUCE if cube else VECTOR_REDUCE)[0]
        else:
            size[loop.axis] = 1
            ladder = loop.axis

    def volume(axis: int | None) -> int:
        """Elements of the largest tile; with an axis, of one step along it, over the tiles that move with it."""
        tiles = [t.dims for t in kernel.tiles.values() if axis is None or any(a == axis for _, a in t.dims)]
        return max(
            (math.prod(size[a] if a != isa.NO_AXIS else n for n, a in dims if a != axis) for dims in tiles), default=1
        )

    for loop in loops:  # a fixed parallel axis that makes tiles too large becomes the ladder
        large = volume(None) > (CUBE_VOLUME if cube else FULL_VOLUME)
        if isinstance(loop.extent, int) and large and loop.kind == isa.LoopKind.PARALLEL and ladder is None:
            ladder = loop.axis
            size[loop.axis] = 1
    reduces = any(loop.kind == isa.LoopKind.REDUCE and not isinstance(loop.extent, int) for loop in loops)
    out: dict[int, tuple[int, ...]] = {}
    for loop in loops:
        axis = loop.axis
        if axis == ladder:
            rows = max(1, (CUBE_VOLUME if cube else VECTOR_VOLUME) // max(volume(axis), 1))
            if cube:
                rows = min(rows, LOOPED_CUBE_ROWS if reduces else CUBE_ROWS)
            rungs = _ladder(1 << (rows.bit_length() - 1), 4 if cube else 8, 16 if cube else 8)
        elif isinstance(loop.extent, int) and (loop.kind == isa.LoopKind.PARALLEL or size[axis] <= 1 << 16):
            rungs = (size[axis],)
        elif loop.kind == isa.LoopKind.REDUCE:
            rungs = (1,) if axis in stored_reduce else CUBE_REDUCE if cube else VECTOR_REDUCE
        else:
            rungs = (1,)
        out.setdefault(axis, rungs)
    return out


def _ladder(top: int, factor: int, smallest: int) -> tuple[int, ...]:
    """Block sizes from ``top`` down by ``factor`` to about ``smallest``, then 1."""
    out = [top]
    while out[-1] > smallest:
        out.append(max(smallest, out[-1] // factor))
    return tuple(out) if out[-1] == 1 else (*out, 1)


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

    They are decoded from the bound words on the host, once per bind: XLA would compile a small kernel for every one of them.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.rungs = plan(kernel)
        self.slots: dict[Hole | Address, int] = {}
        self.loops: dict[int, int] = {}  # word of a loop instruction -> slot of its first block's count
        self._ladders: list[tuple[Loop, int, tuple[int, ...]]] = []
        for loop in loops_of(kernel.body):
            self._operand(loop.extent)
        for op in operations(kernel.body):
            for fields in (op.fields, *op.tail):
                for operand in fields.values():
                    self._operand(operand)
        self.size = len(self.slots)
        for loop in loops_of(kernel.body):
            if not self.whole(loop):
                rungs = self.rungs[loop.axis]
                self.loops[loop.op.at] = self.size
                self._ladders.append((loop, self.size, rungs))
                self.size += 2 * len(shapes(loop.kind, rungs))

    def _operand(self, operand: Operand) -> None:
        if not isinstance(operand, int):
            self.slots.setdefault(operand, len(self.slots))

    def whole(self, loop: Loop) -> bool:
        """Whether a loop of fixed extent runs as one block."""
        return isinstance(loop.extent, int) and loop.extent <= self.rungs[loop.axis][0]

    def extent(self, words: np.ndarray, loop: Loop) -> int:
        """A loop's extent in bound words."""
        return loop.extent if isinstance(loop.extent, int) else value_of(words, loop.extent)  # type: ignore[arg-type]

    def fill(self, words: np.ndarray) -> np.ndarray:
        """The vector for bound words, int64[size]."""
        out: list[int] = []
        row = (1 << isa.ADDR_ROW[1]) - 1
        for operand in self.slots:
            out.append(value_of(words, operand) if isinstance(operand, Hole) else int(words[operand.word]) & row)
        for loop, _, rungs in self._ladders:
            for block in blocks(loop.kind, rungs, self.extent(words, loop)):
                out += (block.count, block.start)
        return np.array(out, np.int64)

    def trips(self, words: np.ndarray) -> dict[int, int]:
        """How many blocks each loop (by the word of its instruction) runs in each run of the loops around it."""
        return {
            loop.op.at: sum(b.count for b in blocks(loop.kind, rungs, self.extent(words, loop)))
            for loop, _, rungs in self._ladders
        }
