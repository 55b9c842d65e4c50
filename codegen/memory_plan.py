"""Global memory: the arenas' layout, valid at every shape.

Buffers are planned when all steps are known. Two temporaries may share memory if their lifetimes (``vm.program.lifetimes``) are disjoint.
*Which* ones share is decided by a layout at a sample of sizes; what is written into the program is only the order that this layout
gives: of two buffers that are alive at the same time, one lies below the other. The offsets then are integer code,

    offset(i) = max(offset(j) + rows(j) for every j that is alive with i and lies below it),

so the plan is sound at every shape, whatever the sizes turn out to be, and as good as the layout near the sample. Where the prover shows
that one of these ends is never above another, its term is left out; a buffer of one term has a proved place, the others are placed when
the sizes are bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from symbolic import Dim, Expr, Proved, Scope, le
from vm import intcode
from vm.intcode import Builder, Reg
from vm.program import (
    OUTPUT_BANKS,
    TEMP_BANKS,
    Buffer,
    Step,
)
from vm.program.lifetimes import Lifetimes, lifetimes

SAMPLES = (
    512,
    64,
    3,
)  # every symbol has about this size: the layout is made for the first, the others decide between equals
BANKS = (TEMP_BANKS, OUTPUT_BANKS)
Arena = tuple[int, int]  # (space, item size)


@dataclass
class Room:
    """What a buffer asks for: lane rows as an expression, as a register, and at the samples."""

    item: int
    size: Dim | None  # None: only where what uses it runs, so that no relation to others is known
    rows: Reg
    at: tuple[int, ...] = ()


@dataclass
class Place:
    """Where a buffer lies: the register of its offset and, where the prover left one term, the expression."""

    offset: Reg
    expr: Dim | None
    top: Reg
    top_expr: Dim | None


@dataclass
class MemoryPlan:
    """Collects what the buffers of a program need; ``finish`` gives them banks and offsets."""

    scope: Scope
    code: Builder
    symbols: Sequence[str]
    rooms: dict[int, Room] = field(default_factory=dict)  # by buffer
    stores: dict[str, tuple[int, ...]] = field(default_factory=dict)  # by kernel name: the buffers that it stores into
    loads: dict[str, tuple[int, ...]] = field(default_factory=dict)
    shared: dict[str, int] = field(default_factory=lambda: {"proved": 0, "bound": 0})
    _buffers: Sequence[Buffer] = ()
    _proofs: dict[tuple[Dim, Dim], bool] = field(default_factory=dict)

    def need(self, buffer: int, item: int, size: Dim | None, rows: Reg) -> None:
        """Buffer ``buffer`` needs ``rows`` lane rows of ``item``-byte items; ``size`` says the same."""
        self.rooms[buffer] = Room(item, size, rows)

    def kernel(self, name: str, buffers: Sequence[int], stored: Sequence[int]) -> None:
        """A kernel stores into ``stored`` and loads from the others of ``buffers``."""
        self.stores[name] = tuple(dict.fromkeys(stored))
        self.loads[name] = tuple(b for b in dict.fromkeys(buffers) if b not in stored)

    def finish(
        self, buffers: Sequence[Buffer], steps: Sequence[Step], stages: Sequence[int] = ()
    ) -> tuple[list[Buffer], dict[Arena, Reg]]:
        """The buffers with spaces and offsets, and the arenas' sizes."""
        self._buffers = buffers
        self._sample()
        life = lifetimes(steps, buffers, stages)
        spaces = self._banks(buffers, life)
        places: dict[int, Place] = {}
        arenas: dict[Arena, Reg] = {}
        groups: dict[Arena, list[int]] = {}
        for b, room in self.rooms.items():
            groups.setdefault((spaces[b], room.item), []).append(b)
        for key, members in sorted(groups.items()):
            if key[0] in TEMP_BANKS:
                arenas[key] = self._arrange(members, life, places)
            else:
                arenas[key] = self._stack(members, places)
        out = []
        for i, buffer in enumerate(buffers):
            root = i if buffer.alias is None else buffer.alias
            if root in places:
                buffer = replace(buffer, space=spaces[root], offset=places[root].offset)
            out.append(buffer)
        return out, arenas

    # --- sizes at the samples -----------------------------------------------------------------------------------------------------
    def _sample(self) -> None:
        code = self.code.finish()
        runs = [code.run([self._size_of(name, n) for name in self.symbols]) for n in SAMPLES]
        for room in self.rooms.values():
            room.at = tuple(max(regs[room.rows], 0) for regs in runs)

    def _size_of(self, name: str, wanted: int) -> int:
        """A size near ``wanted`` that the symbol may have."""
        info = self.scope.symbols[name]
        size = max(info.min, wanted if info.max is None else min(wanted, info.max))
        return size - (size - info.remainder) % info.multiple_of

    # --- banks --------------------------------------------------------------------------------------------------------------------
    def _banks(self, buffers: Sequence[Buffer], life: Lifetimes) -> dict[int, int]:
        """A space for every buffer: the best of two orders in which to choose."""
        fixed = {b: buffers[b].space for b in self.rooms}
        free = [b for b in self.rooms if fixed[b] in (*TEMP_BANKS, *OUTPUT_BANKS)]
        must, better = self._apart()
        by_birth = sorted(free, key=lambda b: (life.of(b)[0], b))
        by_size = sorted(free, key=lambda b: (-self.rooms[b].at[0], life.of(b)[0], b))
        found = [self._choose(order, fixed, must, better, life) for order in (by_birth, by_size)]
        return fixed | min(found, key=lambda item: item[0])[1]

    def _apart(self) -> tuple[dict[int, set[int]], dict[int, set[int]]]:
        """Buffers that must not share a bank (what a kernel stores and what it loads), and those that better do not (what it stores)."""
        must: dict[int, set[int]] = {b: set() for b in self.rooms}
        better: dict[int, set[int]] = {b: set() for b in self.rooms}
        for name, stored in self.stores.items():
            results = [b for b in map(self._root, stored) if b in must]
            loaded = [b for b in map(self._root, self.loads[name]) if b in must and b not in results]
            for a in results:
                better[a].update(b for b in results if b != a)
                must[a].update(loaded)
                for b in loaded:
                    must[b].add(a)
        return must, better

    def _choose(
        self,
        order: Sequence[int],
        fixed: Mapping[int, int],
        must: Mapping[int, set[int]],
        better: Mapping[int, set[int]],
        life: Lifetimes,
    ) -> tuple[tuple[int, int], dict[int, int]]:
        """How many buffers found no bank of their own and the bytes at the sample, and spaces: each buffer takes the allowed bank whose
        peak it raises least."""
        readers = self._readers()
        live: dict[Arena, np.ndarray] = {}
        peak: dict[Arena, int] = {}
        chosen: dict[int, int] = {}
        failures = 0
        for b in order:
            room, (first, last) = self.rooms[b], life.of(b)
            banks = TEMP_BANKS if fixed[b] in TEMP_BANKS else OUTPUT_BANKS
            taken = {chosen[other] for other in must[b] if other in chosen}
            failures += taken.issuperset(banks)
            allowed = [k for k in banks if k not in taken] or banks
            allowed = [k for k in allowed if self._leaves_room(b, k, readers, chosen)] or allowed
            beside = {chosen[other] for other in better[b] if other in chosen}
            best: tuple[int, int] | None = None
            for bank in [k for k in allowed if k not in beside] or allowed:
                key = (bank, room.item)
                if key not in live:
                    live[key], peak[key] = np.zeros(life.length, np.int64), 0
                here = live[key]
                end = int(here[first : last + 1].max(initial=0)) if bank in TEMP_BANKS else peak[key]
                growth = max(0, end + room.at[0] - peak[key])
                if best is None or growth < best[0]:
                    best = growth, bank
            assert best is not None
            key = (best[1], room.item)
            chosen[b] = best[1]
            live[key][first : last + 1] += room.at[0]
            peak[key] += best[0]
        return (failures, sum(rows * key[1] for key, rows in peak.items())), chosen

    def _readers(self) -> dict[int, list[str]]:
        """The kernels that load from a buffer."""
        readers: dict[int, list[str]] = {}
        for name, loaded in self.loads.items():
            for b in dict.fromkeys(map(self._root, loaded)):
                readers.setdefault(b, []).append(name)
        return readers

    def _leaves_room(self, b: int, bank: int, readers: Mapping[int, Sequence[str]], chosen: Mapping[int, int]) -> bool:
        """Whether every kernel that loads ``b`` still finds banks for its results if ``b`` lies in ``bank``."""
        for name in readers.get(b, ()):
            used = {chosen[r] for r in map(self._root, self.loads[name]) if r in chosen} | {bank}
            for banks in BANKS:
                stores = any(self._buffers[r].space in banks for r in self.stores[name])
                if stores and used.issuperset(banks):
                    return False
        return True

    def _root(self, b: int) -> int:
        alias = self._buffers[b].alias
        return b if alias is None else alias

    # --- offsets ------------------------------------------------------------------------------------------------------------------
    def _stack(self, members: Sequence[int], places: dict[int, Place]) -> Reg:
        """Buffers that share nothing, one after the other; returns the end."""
        top = self.code.const(0)
        for b in members:
            end = self.code.op(intcode.ADD, top, self.rooms[b].rows)
            places[b] = Place(top, None, end, None)
            top = end
        return top

    def _arrange(self, members: Sequence[int], life: Lifetimes, places: dict[int, Place]) -> Reg:
        """Offsets of one arena's temporaries; returns its size."""
        conflicts = _conflicts(members, life)
        at = self._layout(members, life, conflicts)
        rank = {b: (at[b], i) for i, b in enumerate(members)}
        covered: set[int] = set()
        for b in sorted(members, key=lambda b: rank[b]):
            below = [j for j in conflicts[b] if rank[j] < rank[b]]
            direct = _reduced(below, conflicts, rank)
            covered.update(direct)
            offset, expr = self._highest([places[j] for j in direct])
            room = self.rooms[b]
            top_expr = None if expr is None or room.size is None else expr + room.size
            places[b] = Place(offset, expr, self.code.op(intcode.ADD, offset, room.rows), top_expr)
        self._count(members, life, at, places)
        return self._highest([places[b] for b in members if b not in covered])[0]

    def _highest(self, below: Sequence[Place]) -> tuple[Reg, Dim | None]:
        """The largest end of ``below``; the expression is known if one end is proved to be it."""
        ends: dict[Reg, Dim | None] = {place.top: place.top_expr for place in below}
        kept = list(ends.items())
        for item in list(kept):
            if any(item is not other and other in kept and self._at_most(item[1], other[1]) for other in kept):
                kept.remove(item)
        if not kept:
            return self.code.const(0), 0
        top, expr = kept[0]
        for other, _ in kept[1:]:
            top, expr = self.code.op(intcode.MAX, top, other), None
        return top, expr

    def _at_most(self, a: Dim | None, b: Dim | None) -> bool:
        if a is None or b is None:
            return False
        if isinstance(a, int) and isinstance(b, int):
            return a <= b
        key = (a, b)
        if key not in self._proofs:
            self._proofs[key] = self._plausible(a, b) and isinstance(self.scope.prove(le(a, b)), Proved)
        return self._proofs[key]

    def _plausible(self, a: Dim, b: Dim) -> bool:
        """Whether ``a <= b`` at the samples: what fails there needs no search for a proof."""
        for n in (*SAMPLES, 1):
            sizes = {name: self._size_of(name, n) for name in self.symbols}
            values = [d if isinstance(d, int) else _evaluated(d, sizes) for d in (a, b)]
            if None not in values and values[0] > values[1]:  # type: ignore[operator]
                return False
        return True

    def _layout(
        self, members: Sequence[int], life: Lifetimes, conflicts: Mapping[int, Sequence[int]]
    ) -> dict[int, int]:
        """Offsets at the first sample: the better of first fit by birth and first fit by size."""
        orders = (
            sorted(members, key=lambda b: (life.of(b)[0], -self.rooms[b].at[0], b)),
            sorted(members, key=lambda b: (-self.rooms[b].at[0], life.of(b)[0], b)),
        )
        found = []
        for order in orders:
            at: dict[int, int] = {}
            for b in order:
                at[b] = self._first_fit(b, at, conflicts[b])
            found.append((max((at[b] + self.rooms[b].at[0] for b in order), default=0), at))
        return min(found, key=lambda item: item[0])[1]

    def _first_fit(self, b: int, at: Mapping[int, int], conflicts: Sequence[int]) -> int:
        taken = sorted((at[j], at[j] + self.rooms[j].at[0]) for j in conflicts if j in at)
        size, offset = self.rooms[b].at[0], 0
        for start, end in taken:
            if start >= offset + size:
                break
            offset = max(offset, end)
        return offset

    def _count(
        self, members: Sequence[int], life: Lifetimes, at: Mapping[int, int], places: Mapping[int, Place]
    ) -> None:
        """How many buffers have the memory of a dead one at a proved place, and how many have a place that is a maximum of several."""
        born = sorted(members, key=lambda b: life.of(b)[0])
        end = 0
        for b in born:
            if places[b].expr is None:
                self.shared["bound"] += 1
            elif end > at[b]:
                self.shared["proved"] += 1
            end = max(end, at[b] + self.rooms[b].at[0])


def _conflicts(members: Sequence[int], life: Lifetimes) -> dict[int, list[int]]:
    """For every buffer those that are alive at the same time, by a sweep over their births."""
    found: dict[int, list[int]] = {b: [] for b in members}
    alive: list[int] = []
    for b in sorted(members, key=lambda b: (life.of(b)[0], b)):
        first = life.of(b)[0]
        alive = [j for j in alive if life.of(j)[1] >= first]
        for j in alive:
            found[b].append(j)
            found[j].append(b)
        alive.append(b)
    return found


def _reduced(
    below: Sequence[int], conflicts: Mapping[int, Sequence[int]], rank: Mapping[int, tuple[int, int]]
) -> list[int]:
    """Without those that lie below another one of them and are ordered against it already."""
    kept: list[int] = []
    for j in sorted(below, key=lambda b: rank[b], reverse=True):
        near = set(conflicts[j])
        if not any(k in near for k in kept):
            kept.append(j)
    return kept


def _evaluated(dim: Expr, sizes: Mapping[str, int]) -> int | None:
    try:
        return dim.evaluate(sizes)
    except (KeyError, ZeroDivisionError):
        return None
