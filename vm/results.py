"""Results of a launch: views of its output arenas, or copies of what is small beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from vm.binder import BoundProgram
from vm.dtypes import dtype_of, item_size
from vm.memory import Key, Lease, OutputSet, Pool, Recycled, Region
from vm.program import LANES, Program

SMALL_RESULT = 8  # results of less than this part of their arenas are copied out,
LENT_RESULT = (
    1 << 18
)  # unless they have so many bytes, which take as long to copy as a launch, and few such results are held

_copies = Recycled()


class Output(NamedTuple):
    """Where a program stores a result, sizes left open."""

    number: int
    arena: Key
    offset: int  # register of its first lane row
    dtype: np.dtype


class Part(NamedTuple):
    """A result in its arena: from which byte, how many."""

    number: int
    arena: Key
    start: int
    nbytes: int
    shape: tuple[int, ...]
    dtype: np.dtype


class Ready:
    """What launches of a bound program through specialised code have in common."""

    def __init__(self) -> None:
        self.scalars: dict[int, np.ndarray] = {}  # of units, by their first kernel
        self.capacity: dict[Key, int] | None = None  # there was memory and code for it at these capacities
        self._parts: list[Part] | None = None

    def parts(self, bound: BoundProgram, outputs: Sequence[Output]) -> list[Part]:
        """Where the results are, all sizes known."""
        if self._parts is None:
            self._parts = []
            for number, key, offset, dtype in outputs:
                shape = bound.output_shapes[number]
                start, n = bound.regs[offset] * LANES * key[1], math.prod(shape) * dtype.itemsize
                self._parts.append(Part(number, key, start, n, shape, dtype))
        return self._parts


def outputs_of(program: Program) -> list[Output]:
    """The results of a program."""
    return [
        Output(b.output, (b.space, item_size(b.dtype)), b.offset, dtype_of(b.dtype))
        for b in program.buffers
        if b.output is not None and b.offset is not None
    ]


def hand_out(outputs: OutputSet, pool: Pool, parts: Sequence[Part]) -> list[Any]:
    """The results as views that keep their arenas away from later launches; small ones are copied out instead, so that keeping a few
    bytes never keeps a large arena, and that many results of medium size never keep many."""
    total = sum([part.nbytes for part in parts])
    small = total * SMALL_RESULT < outputs.nbytes
    lent = small and total >= LENT_RESULT and pool.lend()
    lease = Lease(outputs, pool.take_back if lent else pool.give)
    owner = None if small and not lent else lease
    regions: dict[Key, np.ndarray] = {}
    out: list[Any] = [None] * len(parts)
    for number, key, start, n, shape, dtype in parts:
        memory = regions.get(key)
        if memory is None:
            arena = outputs.arenas[key]
            memory = regions[key] = np.asarray(Region(arena.unsafe_buffer_pointer(), arena.nbytes, owner))
        view = memory[start : start + n].view(dtype).reshape(shape)
        out[number] = view if owner is not None else _copies.copy(view)
    return out
