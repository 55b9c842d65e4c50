"""Global memory in emulated time: what hits the L2 cache, and how fast a core's transfers are.

The rate at a hit rate h is 1 / (h / L2 rate + (1 - h) / HBM rate), after "memory rates" of the public chip documentation. How the hit
rate falls where a kernel touches more than the cache holds is calibrated on the five points measured there (``THRASHING``).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from vm.binder import Region
from vm.chip import Chip

# What is touched again is still in the cache with probability (cache / footprint) ** THRASHING: the exponent for which the hit rates of
# the five measured products (m 2560, k 8192, n 4096 to 16384 on 192 MiB) follow from their sizes.
THRASHING = 2.5


@dataclass(frozen=True)
class Access:
    """What a kernel moves to or from a region: ``bytes`` in all, of which ``unique`` are different ones."""

    region: Region
    bytes: int
    unique: int


@dataclass(frozen=True)
class Traffic:
    """Bytes that a kernel's loads and stores move, and how many of them pass HBM."""

    read: int
    written: int
    hbm_read: float
    hbm_written: float

    @property
    def read_hit(self) -> float:
        """Share of the bytes read that come from the cache."""
        return 1 - self.hbm_read / self.read if self.read else 1.0

    @property
    def write_back(self) -> float:
        """HBM bytes per byte written."""
        return self.hbm_written / self.written if self.written else 0.0


def bandwidth(hit: float, l2: float, hbm: float) -> float:
    """The rate of reads of which a share ``hit`` comes from the cache; the unit is that of the two rates."""
    return 1 / (hit / l2 + (1 - hit) / hbm)


def kept(chip: Chip, footprint: float) -> float:
    """The share of ``footprint`` bytes that stays in the cache while a kernel touches all of them again and again."""
    return min(1.0, chip.l2_bytes / footprint) ** THRASHING if footprint else 1.0


Phase = tuple[Sequence[Access], Sequence[Access]]  # loads and stores


class Cache:
    """L2 across the kernels of a program: which regions are in it, least recently used first, and what of them is dirty."""

    def __init__(self, chip: Chip) -> None:
        self.chip = chip
        self.lines: OrderedDict[Region, tuple[float, float]] = OrderedDict()  # bytes held, of which dirty

    def phases(self, phases: Sequence[Phase]) -> Traffic:
        """What a kernel moves that goes through its memory phase by phase."""
        found = [self.kernel(reads, writes) for reads, writes in phases]
        return Traffic(
            sum(t.read for t in found),
            sum(t.written for t in found),
            sum(t.hbm_read for t in found),
            sum(t.hbm_written for t in found),
        )

    def kernel(self, reads: Sequence[Access], writes: Sequence[Access]) -> Traffic:
        """What a kernel with these accesses moves; afterwards the cache holds what it leaves there."""
        seen = {a.region: a.unique for a in (*reads, *writes)}
        share = kept(self.chip, sum(seen.values()))  # of what passes through once
        again_share = kept(self.chip, sum(self._again(reads).values()))
        hits = 0.0
        first: set[Region] = set()
        for a in reads:
            held = 0.0 if a.region in first else min(a.unique, self._held(a.region))
            again = a.bytes if a.region in first else a.bytes - a.unique
            first.add(a.region)
            hits += again * again_share + held * share
        read, written = sum(a.bytes for a in reads), sum(a.bytes for a in writes)
        out = written * (1 - share)
        for a in writes:
            self._forget(a.region)
        for a in reads:
            _, dirty = self.lines.pop(a.region, (0.0, 0.0))
            self.lines[a.region] = (a.unique * share, min(dirty, a.unique * share))
        for a in writes:
            self.lines[a.region] = (a.unique * share, a.unique * share)
        out += self._evict()
        return Traffic(read, written, read - hits, out)

    @staticmethod
    def _again(reads: Sequence[Access]) -> dict[Region, int]:
        """The regions that a kernel reads more than once. What passes only once does not push them out."""
        total: dict[Region, int] = {}
        for a in reads:
            total[a.region] = total.get(a.region, 0) + a.bytes
        return {a.region: a.unique for a in reads if total[a.region] > a.unique}

    def _held(self, region: Region) -> float:
        """Bytes of a region that the cache holds, under whatever name."""
        if region in self.lines:
            return self.lines[region][0]
        total = 0.0
        for line, (held, _) in self.lines.items():
            if line.overlaps(region):
                both = min(line.end, region.end) - max(line.start, region.start)
                total += held * both / line.bytes
        return total

    def _forget(self, region: Region) -> None:
        for line in [line for line in self.lines if line.overlaps(region)]:
            del self.lines[line]

    def _evict(self) -> float:
        """Drops what is too much; returns the dirty bytes among it."""
        total, out = sum(held for held, _ in self.lines.values()), 0.0
        while total > self.chip.l2_bytes and self.lines:
            line, (held, dirty) = next(iter(self.lines.items()))
            gone = min(held, total - self.chip.l2_bytes)
            out += dirty * gone / held if held else 0.0
            if gone >= held:
                del self.lines[line]
            else:
                self.lines[line] = (held - gone, dirty * (1 - gone / held))
            total -= gone
            if not gone:
                break
        return out


@dataclass(frozen=True)
class Rates:
    """Cycles that a byte takes on one core's way to global memory."""

    read: float
    write: float


def rates(chip: Chip, traffic: Traffic, streams: float) -> Rates:
    """For each of ``streams`` cores that move data at the same time. All together get the chip's rates, one alone at most a core's."""
    b, each = chip.bandwidth, chip.bandwidth.sustained_ratio * chip.cube_cores / streams
    hbm = min(b.core_ddr_bytes_per_cycle, b.ddr_bytes_per_cycle * each)
    l2_read = min(b.l2_read_bytes_per_cycle, b.l2_read_bytes_per_cycle * each)
    l2_write = min(b.l2_write_bytes_per_cycle, b.l2_write_bytes_per_cycle * each)
    cached = max(0.0, 1 - traffic.write_back)
    return Rates(1 / bandwidth(traffic.read_hit, l2_read, hbm), cached / l2_write + traffic.write_back / hbm)


class Port:
    """A core's way to global memory, shared by its pipes: transfers of different pipes interleave, each byte takes its time once."""

    def __init__(self) -> None:
        self.busy: list[tuple[float, float]] = []  # disjoint, ascending

    def take(self, start: float, amount: float) -> float:
        """Uses the port for ``amount`` cycles, wherever it is free from ``start`` on; returns the end."""
        if amount <= 0:
            return start
        out: list[tuple[float, float]] = []
        at, left, end = start, amount, start
        rest = iter(self.busy)
        for begin, stop in rest:
            if stop <= at:
                out.append((begin, stop))
                continue
            if begin > at:
                piece = min(left, begin - at)
                _add(out, at, at + piece)
                left -= piece
                end = at + piece
            if left <= 0:
                _add(out, begin, stop)
                break
            _add(out, begin, stop)
            at = stop
        if left > 0:
            at = max(at, start)
            _add(out, at, at + left)
            end = at + left
        for begin, stop in rest:
            _add(out, begin, stop)
        self.busy = out
        return end

    def forget(self, before: float) -> None:
        """Nothing will start before this time any more."""
        if len(self.busy) > 1 and self.busy[0][1] < before:
            self.busy = [one for one in self.busy if one[1] >= before]

    def shift(self, cycles: float) -> None:
        """Moves everything later."""
        self.busy = [(begin + cycles, end + cycles) for begin, end in self.busy]


def _add(out: list[tuple[float, float]], begin: float, end: float) -> None:
    if out and begin <= out[-1][1]:
        out[-1] = (out[-1][0], max(out[-1][1], end))
    else:
        out.append((begin, end))
