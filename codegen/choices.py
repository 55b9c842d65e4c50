"""Which form of a part of a program takes less emulated time, and from which sizes on.

A speculative merge (``graph_kernel.fusion.rules``) leaves two forms: one kernel, or the kernels that it was made of. The timing model says
what both take at a few numbers of rows. If one of them is the better one at all sizes that there can be, only that one becomes part of the
program; else the program has both, and integer code compares the rows of a launch with a limit when its sizes are bound.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from codegen.assemble import Assembled
from graph_kernel.ir import Value
from symbolic import Dim, Expr, Relation, Scope, either, evaluate, ge, gt, le, numel, product, smax
from vm.chip import Chip
from vm.errors import ProgramError
from vm.program import Template

MOST_ROWS = 4096  # where both forms are compared first: what is not better there is not better anywhere below
FITTING = 64  # elements of a row of symbolic length that fits: passes over longer ones compute products again that a CPU takes long for
LONGEST_SUM = 16384  # summands of a product: longer sums are compared as if they had so many
GRID = 4  # how much farther each number is at which the two forms of a product are compared first
LEVELS = 4  # numbers of rows for which the least length of sums is found
NOT_COMPARED = "there are no sizes at which both could be compared"
TYPICAL = 64  # size of a symbol that has nothing to do with the rows


class Clock(Protocol):
    """The timing model, which the caller of the compiler brings along."""

    def cycles(self, kernels: Sequence[tuple[Template, np.ndarray, Sequence[tuple[int, int]]]]) -> float:
        """Emulated cycles of kernels that run one after the other: template, bound words, and number and bytes of each buffer's tensor."""


@dataclass(frozen=True)
class Decision:
    """Where the parts are run instead of the merged kernel: everywhere (True), nowhere (False), or where a relation between sizes holds;
    and why."""

    apart: Relation | bool
    reason: str
    where: str = ""  # the relation in words, if they are clearer than it is
    gain: float = 1.0  # what the parts save at most: the merged kernel's emulated time over theirs


@dataclass
class Speculation:
    """Decides about merges of one program; equal ones once."""

    scope: Scope
    chip: Chip
    symbols: Sequence[str]
    clock: Clock
    known: dict[object, Decision] = field(default_factory=dict)

    def decide(
        self,
        rows: Dim,
        merged: Assembled,
        apart: Sequence[Assembled],
        patience: float,
        open_: Sequence[str] = (),
        length: Dim = 1,
    ) -> Decision:
        """For a merged kernel over so many ``rows`` and its parts. Sizes that depend on data (``open_``) decide nothing. If the ``length``
        of the rows is symbolic, they are to fit."""
        used = {name for code in (merged, *apart) for dim in (rows, length, *code.params) for name in _symbols(dim)}
        if used & set(open_):
            return Decision(False, "sizes depend on data")
        key = (rows, length, patience, *(_key(code) for code in (merged, *apart)))
        if key not in self.known:
            fits = isinstance(length, Expr)
            self.known[key] = _Race(self, length if fits else rows, merged, apart, patience, fits).run()
        return self.known[key]

    def divide(
        self,
        rows: Dim,
        summands: Dim,
        whole: Assembled,
        apart: Sequence[Assembled],
        patience: float,
        open_: Sequence[str] = (),
    ) -> Decision:
        """For a product of so many ``rows`` of sums of so many ``summands`` and the kernels that divide the sums."""
        used = {name for code in (whole, *apart) for dim in (rows, summands, *code.params) for name in _symbols(dim)}
        if used & set(open_):
            return Decision(False, "sizes depend on data")
        if _symbols(rows) & _symbols(summands):
            return Decision(False, "rows and summands depend on one size")
        key = (rows, summands, patience, *(_key(code) for code in (whole, *apart)))
        if key not in self.known:
            try:
                self.known[key] = _Division(self, rows, summands, whole, apart, patience).decide()
            except _NoSizes:
                self.known[key] = Decision(False, NOT_COMPARED)
        return self.known[key]


def _symbols(dim: Dim) -> frozenset[str]:
    return dim.symbol_set if isinstance(dim, Expr) else frozenset()


def _key(code: Assembled) -> object:
    sizes = tuple((v.shape, v.dtype) for v in code.buffers)
    return (code.template.words.tobytes(), code.template.patches, tuple(code.params), sizes)


class _NoSizes(Exception):
    """The sizes that were made up break a relation between symbols."""


class _Race:
    """Both forms at several numbers of rows, or lengths of rows."""

    def __init__(
        self,
        owner: Speculation,
        rows: Dim,
        merged: Assembled,
        apart: Sequence[Assembled],
        patience: float,
        fits: bool = False,
        most: int = MOST_ROWS,
        given: tuple[Dim, int] = (1, 1),
    ) -> None:
        self.scope, self.chip, self.symbols = owner.scope, owner.chip, owner.symbols
        self.rows, self.forms, self.patience = rows, ([merged], list(apart)), patience
        self.most, self.unit = (FITTING, "elements a row") if fits else (most, "rows")
        self.fits, self.given = fits, given
        self.watch = owner.clock
        self.times: dict[int, tuple[float, float]] = {}

    def run(self) -> Decision:
        """The faster form at the ends, and, where these differ, the number of rows from which on it is the other one."""
        try:
            return self.compared()
        except _NoSizes:
            return Decision(False, NOT_COMPARED)

    def compared(self) -> Decision:
        low, high = self.scope.bounds(self.rows)
        longer = self.fits and (high is None or high > self.most)
        low = max(low or 0, 1)
        if self.fits and low > self.most:
            return Decision(True, f"rows have more than {self.most} elements")
        high = max(low, self.most if high is None else min(high, self.most))
        few, many = self.merged_at(low), self.merged_at(high)
        gain = max(merged / apart for merged, apart in self.times.values())
        if longer and many:
            reason = f"{self.said(high)}, and longer rows do not fit"
            return Decision(gt(self.rows, self.most) if few else True, reason, gain=gain)
        if few == many:
            return Decision(not few, ", ".join(dict.fromkeys((self.said(low), self.said(high)))), gain=gain)
        low, high = self.narrowed(low, high)
        limit = low if few else high - 1
        rel = gt(self.rows, limit) if few else le(self.rows, limit)
        other = le(self.rows, limit) if few else gt(self.rows, limit)
        reason = f"{self.said(low)}, {self.said(high)}"
        if self.scope.proves(rel) or self.scope.proves(other):
            return Decision(self.scope.proves(rel), reason, gain=gain)
        return Decision(rel, reason, gain=gain)

    def narrowed(self, low: int, high: int) -> tuple[int, int]:
        """Two neighbouring numbers of rows, or numbers within a quarter, between which the faster form changes."""
        first = self.merged_at(low)
        while 4 * high > 5 * low and high > low + 1:
            middle = math.isqrt(low * high) if high > 2 * low else (low + high) // 2
            low, high = (middle, high) if self.merged_at(middle) == first else (low, middle)
        return low, high

    def band(self) -> tuple[int, int, bool] | None:
        """The least and the largest number at which the parts were faster, and whether they may be beyond the largest as well; None if
        they were nowhere. Of several bands the one with the largest gain."""
        low, high = self.scope.bounds(self.rows)
        low = max(low or 0, 1)
        open_ = high is None or high > self.most
        high = max(low, self.most if high is None else min(high, self.most))
        grid = [low]
        while grid[-1] < high:
            grid.append(min(grid[-1] * GRID, high))
        fast = [n for n in grid if not self.merged_at(n)]
        if not fast:
            return None
        best = grid.index(max(fast, key=lambda n: self.times[n][0] / self.times[n][1]))
        first = last = best
        while first and grid[first - 1] in fast:
            first -= 1
        while last + 1 < len(grid) and grid[last + 1] in fast:
            last += 1
        least, most = grid[first], grid[last]
        if first:
            least = self.narrowed(grid[first - 1], least)[1]
        if last + 1 < len(grid):
            most = self.narrowed(most, grid[last + 1])[0]
        return least, most, open_ and last + 1 == len(grid)

    def merged_at(self, rows: int) -> bool:
        """Whether the merged kernel is fast enough at so many rows."""
        merged, apart = self.time(rows)
        return merged <= self.patience * apart

    def said(self, rows: int) -> str:
        """How the forms compare, in words."""
        merged, apart = self.time(rows)
        where = f"{rows} {self.unit}" if isinstance(self.rows, Expr) else "its sizes"
        return f"{merged / apart:.2f} of the parts' emulated time at {where}"

    def time(self, rows: int) -> tuple[float, float]:
        """Emulated cycles of both forms."""
        if rows not in self.times:
            sizes = self.sizes(rows)
            try:
                merged, apart = (self.watch.cycles(self.bound(form, sizes)) for form in self.forms)
            except ProgramError as error:  # they are no sizes of a launch: some loop has a negative number of steps
                raise _NoSizes from error
            self.times[rows] = merged, apart
        return self.times[rows]

    def sizes(self, rows: int) -> dict[str, int]:
        """Sizes of all symbols that give about so many rows."""
        of, wanted = self.given
        mine = _symbols(self.rows) | _symbols(of)
        sizes = {name: self.near(name, 1 if name in mine else TYPICAL) for name in self.symbols}
        for dim, n in ((of, wanted), (self.rows, rows)):
            self.raise_to(sizes, dim, n)
        return sizes

    def raise_to(self, sizes: dict[str, int], dim: Dim, wanted: int) -> None:
        """Raises the size with which ``dim`` grows slowest, so that it is about ``wanted``."""
        at = evaluate(dim, sizes)
        steps = {name: evaluate(dim, sizes | {name: sizes[name] + 1}) - at for name in sorted(_symbols(dim))}
        rising = [name for name in steps if steps[name] > 0]
        if rising:
            name = min(rising, key=lambda name: steps[name])
            sizes[name] = self.near(name, sizes[name] + max(wanted - at, 0) // steps[name], bounded=False)

    def near(self, name: str, wanted: int, bounded: bool = True) -> int:
        """A size near ``wanted`` that the symbol may have, not ``bounded``: that it might have if it had no maximum."""
        info = self.scope.symbols[name]
        size = max(info.min, wanted if info.max is None or not bounded else min(wanted, info.max))
        return size - (size - info.remainder) % info.multiple_of

    def bound(
        self, form: Sequence[Assembled], sizes: Mapping[str, int]
    ) -> list[tuple[Template, np.ndarray, list[tuple[int, int]]]]:
        """The kernels of a form at these sizes; every tensor is a memory of its own."""
        places: dict[Value, int] = {}
        out = []
        for code in form:
            buffers = []
            for value in code.buffers:
                if any(evaluate(d, sizes) < 0 for d in value.shape):
                    raise _NoSizes
                n = evaluate(numel(value.shape), sizes) * value.dtype.itemsize
                buffers.append((places.setdefault(value, len(places)), n))
            out.append((code.template, patched(code, sizes), buffers))
        return out


class _Division:
    """A product of rows of sums as one kernel, and with its sums divided, at several numbers of rows and lengths of sums. Few rows and long
    sums gain; the more rows there are, the longer the sums have to be."""

    def __init__(
        self,
        owner: Speculation,
        rows: Dim,
        summands: Dim,
        whole: Assembled,
        apart: Sequence[Assembled],
        patience: float,
    ) -> None:
        self.owner, self.rows, self.summands = owner, rows, summands
        self.forms = whole, list(apart), patience
        bound = owner.scope.bounds(summands)[1]
        self.longest = LONGEST_SUM if bound is None else max(1, min(bound, LONGEST_SUM))

    def race(self, rows: int) -> _Race:
        """Over lengths of sums, at so many rows."""
        return _Race(self.owner, self.summands, *self.forms, most=self.longest, given=(self.rows, rows))

    def decide(self) -> Decision:
        """At the longest sums the numbers of rows that gain; and how long sums have to be for some of these."""
        across = _Race(self.owner, self.rows, *self.forms, given=(self.summands, self.longest))
        band = across.band()
        gain = max(merged / apart for merged, apart in across.times.values())
        if band is None:
            best = max(across.times, key=lambda n: across.times[n][0] / across.times[n][1])
            return Decision(False, self.said(across, best))
        least, most, open_ = band
        reason = ", ".join(dict.fromkeys((self.said(across, least), self.said(across, most))))
        lower = [] if least <= max(self.owner.scope.bounds(self.rows)[0] or 0, 1) else [ge(self.rows, least)]
        levels = self.levels(least, most, len(lower)) if _symbols(self.summands) else {0: most}
        if not levels:
            return Decision(False, reason)
        cases = []
        for shortest, n in levels.items():
            bounds = [*lower, *([] if open_ and n == most else [le(self.rows, n)]), gt(self.summands, shortest)]
            cases.append([one for one in bounds if not self.owner.scope.proves(one)])
        found = either(*(_all(case) for case in cases if case))
        where = " or ".join(" and ".join(map(str, case)) for case in cases)
        return Decision(found if all(cases) else True, reason, where, gain)

    def said(self, across: _Race, rows: int) -> str:
        """How the forms compare with the longest sums, in words."""
        merged, apart = across.time(rows)
        sizes = [f"{rows} rows"] if _symbols(self.rows) else []
        sizes += [f"sums of {self.longest}"] if _symbols(self.summands) else []
        return f"{merged / apart:.2f} of the parts' emulated time at {' and '.join(sizes) or 'its sizes'}"

    def levels(self, least: int, most: int, first: int) -> dict[int, int]:
        """The most rows for sums that are longer than that; from ``least`` rows on (``first`` 0) or above it."""
        found: dict[int, int] = {}
        steps = max(1, min(LEVELS, math.ceil(math.log(most / least, GRID))))
        for k in range(first, steps + 1):
            n = round(least * (most / least) ** (k / steps))
            band = self.race(n).band()
            if band is not None:
                found[band[0] - 1] = n
        return found


def _all(relations: Sequence[Relation]) -> Relation:
    """One relation that holds where all of these (``<`` and ``<=``) do."""
    if len(relations) == 1:
        return relations[0]
    return le(functools.reduce(smax, [r.args[0] - r.args[1] + (r.op == "lt") for r in relations]), 0)


def patched(code: Assembled, sizes: Mapping[str, int]) -> np.ndarray:
    """The words of a kernel at these sizes, without addresses."""
    words = code.template.words.copy()
    values = [evaluate(dim, sizes) for dim in code.params]
    for patch in code.template.patches:
        mask = (1 << patch.width) - 1
        old = int(words[patch.word]) & ~(mask << patch.lo)
        words[patch.word] = np.uint64(old | (values[patch.param] & mask) << patch.lo)
    return words


def rows_of(extents: Sequence[Dim]) -> Dim:
    """The rows of a kernel: all indices of its loops over sizes that are not fixed."""
    return product([n for n in extents if isinstance(n, Expr)])
