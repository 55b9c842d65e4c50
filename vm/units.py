"""Units of code: kernels that follow each other share one executable, because a call of one costs as much as a small kernel.

No kernel is compiled more often for it: one that occurs several times is joined only to neighbours that it always has, so that the equal
layers of a model are equal units.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vm.decode import Kernel
from vm.geometry import Scalars
from vm.memory import Place
from vm.packing import Packing
from vm.program import KernelStep

MOST = 6  # kernels of a unit: a process that exits waits for the unit that is being compiled
LONGEST_PERIOD = 24  # kernels of a layer


@dataclass(eq=False)
class Segment:
    """A kernel step with what its code takes."""

    step: KernelStep
    index: int  # among all kernel steps
    pinned: list[int]  # buffers passed as arguments, in order
    packings: list[Packing | None]  # of each, how it is reordered
    # Per buffer: number of its arena, dtype, number of its pinned argument.
    refs: list[tuple[int | None, str, int | None]]
    arenas: list[Place]  # arenas it uses
    written: list[int]  # numbers of those that it stores into
    kernel: Kernel
    table: Scalars
    # Scalars that are the row of an input in its arena: inputs have memory of their own, and begin there.
    inputs: list[int]


class Unit:
    """Kernels that are one executable. Units with equal signatures share it."""

    def __init__(self, parts: Sequence[Segment]) -> None:
        self.parts = list(parts)
        places: dict[Place, int] = {}
        self.local = [[places.setdefault(place, len(places)) for place in part.arenas] for part in parts]
        self.places = list(places)
        written = {numbers[n] for part, numbers in zip(parts, self.local, strict=True) for n in part.written}
        self.written = sorted(written)  # donated
        self.read = [n for n in range(len(places)) if n not in written]
        self.pinned = [b for part in parts for b in part.pinned]
        self.packings = [packing for part in parts for packing in part.packings]
        self.code: Any = None
        self.arguments: list[Any] | None = None  # where the pinned ones come from, once it is known

    def singles(self) -> list[Unit]:
        """The kernels as units of their own."""
        return [Unit([part]) for part in self.parts]


def units(segments: Sequence[Segment], kinds: Sequence[Hashable], all_kinds: Mapping[Any, int]) -> list[Unit]:
    """Segments that follow each other as units. ``kinds`` says which have equal code, ``all_kinds`` how often the program has each."""
    found: list[Unit] = []
    patterns: dict[tuple[Hashable, ...], set[Hashable]] = {}
    start = 0
    for n in lengths(kinds, all_kinds):
        unit = Unit(segments[start : start + n])
        patterns.setdefault(tuple(kinds[start : start + n]), set()).add(repr((unit.local, unit.written)))
        found.append(unit)
        start += n
    out: list[Unit] = []
    start = 0
    for unit in found:
        several = (
            len(patterns[tuple(kinds[start : start + len(unit.parts)])]) > 1
        )  # its kernels share arenas in several ways
        out += unit.singles() if several and len(unit.parts) > 1 else [unit]
        start += len(unit.parts)
    return out


def lengths(kinds: Sequence[Hashable], all_kinds: Mapping[Any, int]) -> list[int]:
    """How many kernels each unit has."""
    out: list[int] = []
    i = 0
    pending = 0
    while i < len(kinds):
        period, times = _repeated(kinds, i)
        if times < 2:
            pending, i = pending + 1, i + 1
            continue
        out += _joined([all_kinds[k] == 1 for k in kinds[i - pending : i]])
        out += _joined([all_kinds[k] == times for k in kinds[i : i + period]]) * times
        i, pending = i + period * times, 0
    return out + _joined([all_kinds[k] == 1 for k in kinds[len(kinds) - pending :]])


def _repeated(kinds: Sequence[Hashable], i: int) -> tuple[int, int]:
    """The period with which the kernels from number ``i`` on repeat themselves longest, and how often they do."""
    best = (1, 1)
    for period in range(1, min(LONGEST_PERIOD, (len(kinds) - i) // 2) + 1):
        n = 0
        while i + period + n < len(kinds) and kinds[i + n] == kinds[i + period + n]:
            n += 1
        times = n // period + 1
        if times > 1 and times * period > best[0] * best[1]:
            best = (period, times)
    return best


def _joined(free: Iterable[bool]) -> list[int]:
    """Lengths of units of neighbours that are all free to be joined."""
    out: list[int] = []
    open_unit = False
    for joins in free:
        if joins and open_unit and out[-1] < MOST:
            out[-1] += 1
        else:
            out.append(1)
        open_unit = joins
    return out
