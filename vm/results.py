"""Results of a launch: views of its output arenas, or copies of what is small beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from vm.binder import BoundProgram
from vm.dtypes import dtype_of, item_size
from vm.memory import Key, Lease, OutputSet, Place, Pool, Region, Staging, copies, copy_into
from vm.program import LANES, Program

SMALL_RESULT = 8  # results of less than this part of their arenas are copied out,
LENT_RESULT = (
    1 << 18
)  # unless they have so many bytes, which take as long to copy as a launch, and few such results are held


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
        self.scalars: dict[int, Any] = {}  # of units, on the device, by their first kernel
        self.staged: dict[Place, tuple[Staging, np.ndarray]] = {}  # where inputs are copied to
        self.capacity: dict[Key, int] | None = None  # there was memory and code for it at these capacities
        self._parts: list[Part] | None = None
        self.total = 0  # bytes of all results

    def parts(self, bound: BoundProgram, outputs: Sequence[Output]) -> list[Part]:
        """Where the results are, all sizes known."""
        if self._parts is None:
            self._parts = []
            for number, key, offset, dtype in outputs:
                shape = bound.output_shapes[number]
                start, n = bound.regs[offset] * LANES * key[1], math.prod(shape) * dtype.itemsize
                self._parts.append(Part(number, key, start, n, shape, dtype))
            self.total = sum([part.nbytes for part in self._parts])
        return self._parts


def outputs_of(program: Program) -> list[Output]:
    """The results of a program."""
    return [
        Output(b.output, (b.space, item_size(b.dtype)), b.offset, dtype_of(b.dtype))
        for b in program.buffers
        if b.output is not None and b.offset is not None
    ]


def room(outputs: OutputSet, parts: Sequence[Part], total: int) -> list[np.ndarray] | None:
    """Memory for results that will be copied out, None if it is not known that they will: to be made while they are computed."""
    if total * SMALL_RESULT < outputs.nbytes and total < LENT_RESULT:
        return [copies.empty(part.nbytes, part.shape, part.dtype) for part in parts]
    return None


def hand_out(
    outputs: OutputSet, pool: Pool, parts: Sequence[Part], total: int, made: list[np.ndarray] | None
) -> list[Any]:
    """The results as views that keep their arenas away from later launches; small ones are copied out instead, so that keeping a few
    bytes never keeps a large arena, and that many results of medium size never keep many. ``made`` is what ``room`` gave."""
    out: list[Any] = [None] * len(parts)
    small = total * SMALL_RESULT < outputs.nbytes
    lent = small and made is None and total >= LENT_RESULT and pool.lend()
    if small and not lent:
        try:
            if made is None:
                made = [copies.empty(part.nbytes, part.shape, part.dtype) for part in parts]
            for copy, (number, key, start, _, shape, dtype) in zip(made, parts, strict=True):
                copy_into(copy, np.ndarray(shape, dtype, outputs.memory(key), start))
                out[number] = copy
        finally:
            pool.give(outputs)
        return out
    owner = Lease(outputs, pool.take_back if lent else pool.give)
    regions: dict[Key, np.ndarray] = {}
    for number, key, start, _, shape, dtype in parts:
        memory = regions.get(key)
        if memory is None:
            arena = outputs.arenas[key]
            memory = regions[key] = np.asarray(Region(arena.unsafe_buffer_pointer(), arena.nbytes, owner))
        out[number] = np.ndarray(shape, dtype, memory, start)
    return out
