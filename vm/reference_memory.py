"""Memories of the reference executor: bytes with a shadow that knows who wrote and read them, and whether that was ordered.

Every pipe counts the instructions it has run. A *clock* is one number a pipe: how many of its instructions are known to be complete. An
access is ordered after an earlier one if the clock of the accessing pipe covers it; otherwise the two race.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vm import isa
from vm.decode import Tile
from vm.isa import Pipe

PIPES = len(Pipe)
_CODE_BITS = 3  # an access is coded as index << 3 | pipe


class Fault(Exception):
    """A hazard without its place: the executor knows kernel and word."""

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(what)
        self.kind, self.what = kind, what


@dataclass(frozen=True)
class Access:
    """Who accesses: the pipe, the number of the instruction on it, and what the pipe knows to be complete."""

    pipe: Pipe
    index: int
    clock: list[int]
    core: int = 0

    @property
    def code(self) -> int:
        """The access as one number."""
        return self.index << _CODE_BITS | self.pipe


def name_of(code: int) -> str:
    """How messages name a coded access."""
    return f"instruction {code >> _CODE_BITS} of pipe {Pipe(code & 7).name}"


def _first_unordered(codes: np.ndarray, access: Access) -> int | None:
    """A coded access among ``codes`` (-1: none) that is not ordered before ``access``."""
    first = int(codes[0])
    found = [first] if (codes == first).all() else np.unique(codes).tolist()
    for code in found:
        if code >= 0 and access.clock[code & 7] <= code >> _CODE_BITS and code != access.code:
            return code
    return None


class Local:
    """One local memory of a core. A tile is a variable: what it holds is gone when another one is written over any of its bytes."""

    def __init__(self, space: isa.Space, capacity: int, used: int) -> None:
        self.space, self.capacity = space, capacity
        used = min(used, capacity)
        self.data = np.zeros(used, np.uint8)
        self.owner = np.full(used, -1, np.int16)  # the tile through which a byte was written
        self.undefined = np.zeros(used, bool)  # bytes that came from global memory which nothing has written
        self.writer = np.full(used, -1, np.int64)
        self.readers: dict[Pipe, np.ndarray] = {}
        self.used = used

    def reset(self) -> None:
        """Another core: nothing is written yet."""
        self.owner.fill(-1)
        self.undefined.fill(False)
        self.writer.fill(-1)
        self.readers.clear()

    def _range(self, tile: Tile, n: int) -> slice:
        if tile.address + n > self.capacity:
            raise Fault(
                "out-of-bounds",
                f"tile {tile.id} covers bytes {tile.address} to {tile.address + n} of {self.space.name}, which has {self.capacity}",
            )
        return slice(tile.address, tile.address + n)

    def touch(self, tile: Tile, n: int, access: Access) -> slice:
        """The checks of a read of the tile's first ``n`` bytes, and its trace."""
        place = self._range(tile, n)
        if n:
            self._check_owner(tile, self.owner[place])
            other = _first_unordered(self.writer[place], access)
            if other is not None:
                raise Fault(
                    "race", f"{access.pipe.name} reads tile {tile.id} while {name_of(other)} may still write it"
                )
            readers = self.readers.get(access.pipe)
            if readers is None:
                readers = self.readers[access.pipe] = np.full(self.used, -1, np.int64)
            readers[place] = access.index
        return place

    def read(self, tile: Tile, shape: list[int], access: Access) -> np.ndarray:
        """The tile's elements, a copy."""
        place = self.touch(tile, int(np.prod(shape, dtype=np.int64)) * tile.dtype.itemsize, access)
        return self.data[place].copy().view(tile.dtype).reshape(shape)

    def undefined_in(self, tile: Tile, shape: list[int]) -> np.ndarray | None:
        """Which of a tile's elements are undefined; None if none is."""
        n = int(np.prod(shape, dtype=np.int64)) * tile.dtype.itemsize
        found = self.undefined[tile.address : tile.address + n]
        return found[:: tile.dtype.itemsize].reshape(shape).copy() if found.any() else None

    def _check_owner(self, tile: Tile, owner: np.ndarray) -> None:
        if (owner == tile.id).all():
            return
        for number in np.unique(owner).tolist():
            if number < 0:
                raise Fault("uninitialised read", f"tile {tile.id} has bytes that nothing has written")
            if number != tile.id:
                raise Fault("overwritten", f"tile {tile.id} has been overwritten by tile {number}")

    def write(
        self, tile: Tile, value: np.ndarray, full: int, access: Access, undefined: np.ndarray | None = None
    ) -> None:
        """Stores a tile; ``full`` are the bytes of its largest extent. What it held beyond ``value`` is gone."""
        place = self._range(tile, value.nbytes)
        if value.nbytes:
            other = _first_unordered(self.writer[place], access)
            if other is not None:
                raise Fault(
                    "race", f"{access.pipe.name} writes tile {tile.id} while {name_of(other)} may still write there"
                )
            for pipe, readers in self.readers.items():
                last = readers[place]
                last = last[last != access.index] if pipe == access.pipe else last
                if len(last) and int(last.max()) >= access.clock[pipe]:
                    code = int(last.max()) << _CODE_BITS | pipe
                    raise Fault(
                        "race", f"{access.pipe.name} writes tile {tile.id} while {name_of(code)} may still read there"
                    )
            self.data[place] = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
            self.owner[place] = tile.id
            self.undefined[place] = (
                False if undefined is None else np.repeat(undefined.reshape(-1), tile.dtype.itemsize)
            )
            self.writer[place] = access.code
        rest = self.owner[place.stop : min(tile.address + full, self.used)]
        rest[rest == tile.id] = -1


NOBODY = -1
POISON = 0xFF  # a byte of freed memory: NaN in every float type, -1 in every integer type


class Arena:
    """Global memory of one space and item size. ``written`` marks items that hold something, ``owner`` says through which buffer they
    were written: what another buffer has put over a buffer's items is not that buffer's contents."""

    def __init__(self, items: int, item: int) -> None:
        self.data, self.item = np.zeros(items * item, np.uint8), item
        self.written = np.zeros(items, bool)
        self.owner = np.full(items, NOBODY, np.int32)
        self.writer = self.reader = np.zeros(0, np.int64)
        self.writer_core = self.reader_core = np.zeros(0, np.int16)
        self.added = np.zeros(
            0, bool
        )  # items that have been added to since: other cores may add as well, and nothing else

    def begin(self) -> None:
        """A kernel that stores here starts: who accesses what is watched."""
        n = len(self.written)
        self.writer, self.reader = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
        self.writer_core, self.reader_core = np.full(n, -1, np.int16), np.full(n, -1, np.int16)
        self.added = np.zeros(n, bool)

    def end(self) -> None:
        """The kernel is done."""
        self.writer = self.reader = np.zeros(0, np.int64)
        self.writer_core = self.reader_core = np.zeros(0, np.int16)

    def defined(self, at: np.ndarray | slice, owner: int) -> np.ndarray:
        """Which of the items at ``at`` hold something that was written through buffer ``owner`` (``NOBODY``: through any)."""
        return self.written[at] if owner == NOBODY else self.written[at] & (self.owner[at] == owner)

    def put(self, items: slice, value: np.ndarray, owner: int) -> None:
        """Overwrites a range of items from the host."""
        self.data[items.start * self.item : items.stop * self.item] = value.view(np.uint8)
        self.written[items] = True
        self.owner[items] = owner

    def free(self, items: slice) -> None:
        """Nobody reads these items any more: whoever does gets nonsense, and an undefined read."""
        self.data[items.start * self.item : items.stop * self.item] = POISON
        self.written[items] = False
        self.owner[items] = NOBODY

    def load(self, at: np.ndarray, dtype: np.dtype, access: Access, what: str) -> np.ndarray:
        """The items at the indices ``at``, whether or not they are written."""
        if len(self.writer):
            self._ordered(at, access, self.writer, self.writer_core, f"loads from {what}", "store")
            core = self.reader_core[at]
            self.reader_core[at] = np.where((core == -1) | (core == access.core), access.core, -2)
            self.reader[at] = access.code
        return self.data.view(dtype)[at] if dtype != np.bool_ else self.data[at] != 0

    def store(
        self,
        at: np.ndarray,
        value: np.ndarray,
        access: Access,
        what: str,
        written: np.ndarray | bool = True,
        owner: int = NOBODY,
    ) -> None:
        """Puts items at the indices ``at`` for buffer ``owner``; where not ``written`` they are undefined."""
        for codes, cores, kind in ((self.writer, self.writer_core, "store"), (self.reader, self.reader_core, "load")):
            self._ordered(at, access, codes, cores, f"stores into {what}", kind)
        if len(at) > 1 and len(np.unique(at)) != len(at):
            raise Fault("race", f"one store writes an element of {what} twice")
        self.data.view(value.dtype)[at] = value
        self.written[at] = written
        self.owner[at] = owner
        self.writer[at], self.writer_core[at] = access.code, access.core
        self.added[at] = False

    def add(self, at: np.ndarray, value: np.ndarray, access: Access, what: str) -> None:
        """Adds to items, each at once: additions of several cores do not race with each other, in whatever order they come."""
        plain = at[~self.added[at]]
        for codes, cores, kind in ((self.writer, self.writer_core, "store"), (self.reader, self.reader_core, "load")):
            self._ordered(plain if kind == "store" else at, access, codes, cores, f"adds to {what}", kind)
        if len(at) > 1 and len(np.unique(at)) != len(at):
            raise Fault("race", f"one store adds to an element of {what} twice")
        self.data.view(value.dtype)[at] += value
        several = self.added[at] & (self.writer_core[at] != access.core)
        self.writer[at], self.writer_core[at] = access.code, np.where(several, -2, access.core)
        self.added[at] = True

    def _ordered(
        self, at: np.ndarray, access: Access, codes: np.ndarray, cores: np.ndarray, does: str, kind: str
    ) -> None:
        core = cores[at]
        if ((core != -1) & (core != access.core)).any():
            raise Fault("race", f"core {access.core} {does}, where another core's {kind} is not ordered")
        if len(at):
            other = _first_unordered(codes[at], access)
            if other is not None:
                raise Fault("race", f"{access.pipe.name} {does}, where the {kind} of {name_of(other)} may be under way")
