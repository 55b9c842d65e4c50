"""Emulated time: what a bound program would take on the chip that its words are for. Nothing here is measured on this machine.

``emulate`` walks the program's steps and, for every kernel, its bound words on one core (``vm.timing_core``), with the rates of global
memory that the kernel's own traffic gives (``vm.timing_memory``). Host operations take no emulated time; they are counted.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from vm import isa, stacking, timing_costs
from vm.binder import Binder, BoundProgram, NumberedStep, Region
from vm.chip import Chip
from vm.decode import Kernel, decode, operations
from vm.isa import Pipe
from vm.program import CondStep, ForStep, HostStep, KernelStep, Program, Template, WhileStep
from vm.program.stages import stage_numbers
from vm.reference_core import Ready, ReadyLoop, core_count, core_range, nested, prepare, steps_inside
from vm.timing_core import Core, Interval
from vm.timing_memory import Access, Cache, Phase, Traffic, rates

READ, WRITTEN, HBM_READ, HBM_WRITTEN = "read", "written", "hbm_read", "hbm_written"


@dataclass(frozen=True)
class KernelTime:
    """One kernel step in emulated time, all cores together.

    ``cycles`` from its first instruction to the last completion; ``count`` is how often the launch runs it; ``bytes`` by what they pass
    (``read``, ``written`` over the cores' ports; ``hbm_read``, ``hbm_written`` of these not served by L2); ``flops`` a multiply-add as
    two; ``utilisation`` per pipe: the share of ``cycles`` in which the busiest core's pipe works; ``hbm`` and ``l2`` that of the
    chip's bandwidth; ``bound``: the resource with the largest share.
    """

    name: str
    index: int
    cycles: float
    us: float
    cores: int
    bytes: Mapping[str, float]
    flops: int
    utilisation: Mapping[str, float]
    bound: str
    count: int = 1
    timeline: tuple[Interval, ...] = ()

    @property
    def moved(self) -> float:
        """Bytes read and written by all cores."""
        return self.bytes[READ] + self.bytes[WRITTEN]

    @property
    def hbm_bytes(self) -> float:
        """Bytes that pass HBM."""
        return self.bytes[HBM_READ] + self.bytes[HBM_WRITTEN]

    @property
    def intensity(self) -> float:
        """Arithmetic intensity: operations per byte moved."""
        return self.flops / self.moved if self.moved else 0.0


@dataclass(frozen=True)
class StageTime:
    """Independent kernels: side by side on cores of their own, or, where that takes less time, one after the other. ``starts`` are the
    kernels' first cycles within the stage, ``count`` is how often a call runs it."""

    kernels: tuple[KernelTime, ...]
    starts: tuple[float, ...]
    cycles: float
    count: int = 1

    @property
    def side_by_side(self) -> bool:
        """Whether the kernels run at the same time."""
        return len(self.kernels) > 1 and not any(self.starts)


@dataclass(frozen=True)
class ProgramTime:
    """A call in emulated time. A conditional counts as its most expensive branch, a while loop as one iteration."""

    chip: str
    clock_hz: int
    stages: tuple[StageTime, ...]
    host_ops: int
    notes: tuple[str, ...] = ()

    @cached_property
    def kernels(self) -> tuple[KernelTime, ...]:
        """The kernels in launch order."""
        return tuple(kernel for stage in self.stages for kernel in stage.kernels)

    @property
    def cycles(self) -> float:
        """Cycles of all stages."""
        return sum(stage.cycles * stage.count for stage in self.stages)

    @property
    def us(self) -> float:
        """Emulated microseconds."""
        return self.cycles / self.clock_hz * 1e6


def emulate(program: Program, bound: BoundProgram, *, timeline: bool = False, exact: bool = False) -> ProgramTime:
    """The emulated time of one call at the sizes of ``bound``. ``timeline`` keeps what every pipe does when; ``exact`` walks every step
    of every loop instead of skipping those that repeat (slow)."""
    return Machine(program, timeline=timeline, exact=exact).time(bound)


class Machine:
    """Emulates bound programs of one program; templates are decoded once."""

    def __init__(
        self, program: Program, binder: Binder | None = None, *, timeline: bool = False, exact: bool = False
    ) -> None:
        self.program, self.chip = program, Chip.load(program.chip)
        self.binder = binder or Binder(program)
        self.steps = self.binder.steps
        self.timeline, self.exact = timeline, exact
        self.kernels: dict[int, Kernel] = {}
        self.stages = stage_numbers(program)

    def time(self, bound: BoundProgram) -> ProgramTime:
        """One call."""
        run = _Run(self, self._at_most(bound))
        if bound.unknown:
            run.notes.append("sizes that depend on data count as the most that they can be")
        stages = tuple(run.walk(self.steps, 1))
        return ProgramTime(self.chip.name, self.chip.clock_hz, stages, run.host_ops, tuple(dict.fromkeys(run.notes)))

    def _at_most(self, bound: BoundProgram) -> BoundProgram:
        """``bound`` with the sizes that depend on data at their limits, which may depend on those before them."""
        values, first = list(bound.symbols), self.binder.given
        for k, size in enumerate(self.program.data_sizes, first):
            if k in bound.unknown:
                values[k] = self.program.code.run(tuple(values))[size.limit]
        return self.binder.bind(tuple(values), bound.sizes) if bound.unknown else bound

    def kernel(self, template: int) -> Kernel:
        """A template, decoded once."""
        if template not in self.kernels:
            self.kernels[template] = decode(self.program.templates[template])
        return self.kernels[template]


@dataclass(eq=False)
class Work:
    """A bound kernel before it runs: its loop tree, its accesses, and how many cores it can use."""

    name: str
    index: int
    kernel: Kernel
    body: list[Ready | ReadyLoop]
    phases: list[Phase]
    flops: int
    cube: bool
    words: int

    def cores(self, limit: int) -> int:
        """The fewest of ``limit`` cores that finish as early as all of them would."""
        n = core_count(self.body, limit)
        most = core_count(self.body, sys.maxsize)  # all steps that can be shared out
        return -(-most // -(-most // n))


def is_cube(kernel: Kernel) -> bool:
    """Whether a kernel runs on cube cores (and the vector cores that belong to them)."""
    return kernel.mix or any(op.insn.name == "mmad" for op in operations(kernel.body))


class _Clock:
    """A chip that runs kernels, with what they leave in L2."""

    def __init__(self, chip: Chip, exact: bool = False, timeline: bool = False) -> None:
        self.chip, self.exact, self.timeline = chip, exact, timeline
        self.cache = Cache(chip)

    def most(self, work: Work) -> int:
        """Cores of the kernel's kind."""
        return self.chip.cube_cores if work.cube else self.chip.vector_cores

    def ready(self, name: str, index: int, kernel: Kernel, words: np.ndarray, regions: Sequence[Region]) -> Work:
        """A bound kernel, ready to run; its buffers are in ``regions``."""
        body = prepare(kernel, words, regions)
        cube = is_cube(kernel)
        limit = self.chip.cube_cores if cube else self.chip.vector_cores
        totals = _Totals(self.chip, kernel)
        cores = core_count(body, limit)
        totals.walk(body, cores, float(cores), {}, {})
        return Work(name, index, kernel, body, totals.phases(), totals.flops, cube, len(words))

    def place(self, work: Work, cores: int, traffic: Traffic, others: int, count: int) -> KernelTime:
        """Times a kernel on ``cores`` cores of its kind, while ``others`` vector cores' worth of other kernels use global memory."""
        chip, clock = self.chip, self.chip.clock_hz
        core = Core(
            chip,
            work.kernel,
            rates(chip, traffic, cores + (others / chip.cores.vector_per_cube if work.cube else others)),
            work.cube,
            exact=self.exact,
            record=self.timeline,
        )
        cycles = core.run(work.body, cores, work.words)
        b = chip.bandwidth
        share = {p.name: core.busy[p] / cycles for p in Pipe}
        all_cores = b.sustained_ratio * chip.cube_cores * cycles
        share["HBM"] = (traffic.hbm_read + traffic.hbm_written) / (b.ddr_bytes_per_cycle * all_cores)
        share["L2"] = (traffic.read / b.l2_read_bytes_per_cycle + traffic.written / b.l2_write_bytes_per_cycle) / (
            all_cores
        )
        moved = {
            READ: traffic.read,
            WRITTEN: traffic.written,
            HBM_READ: traffic.hbm_read,
            HBM_WRITTEN: traffic.hbm_written,
        }
        return KernelTime(
            work.name,
            work.index,
            cycles,
            cycles / clock * 1e6,
            cores,
            moved,
            work.flops,
            share,
            _bound(share),
            count,
            tuple(core.intervals),
        )


class Stopwatch:
    """Emulated time of bound kernels for a compiler that has no program yet."""

    def __init__(self, chip: Chip) -> None:
        self.chip = chip
        self.kernels: dict[tuple[Any, ...], Kernel] = {}

    def cycles(self, kernels: Iterable[tuple[Template, np.ndarray, Sequence[tuple[int, int]]]]) -> float:
        """Cycles of kernels that run one after the other, beginning with a cold cache: each a template, its bound words, and for every
        buffer the number of its tensor (a memory of its own) and the bytes of it."""
        clock = _Clock(self.chip)
        total = 0.0
        for index, (template, words, buffers) in enumerate(kernels):
            key = (
                template.words.tobytes(),
                tuple(template.patches),
                tuple(template.relocs),
            )  # all that decoding looks at
            if key not in self.kernels:
                self.kernels[key] = decode(template)
            regions = [Region((number, 0), 0, size) for number, size in buffers]
            work = clock.ready("", index, self.kernels[key], words, regions)
            traffic = clock.cache.phases(work.phases)
            total += clock.place(work, work.cores(clock.most(work)), traffic, 0, 1).cycles
        return total


class _Run(_Clock):
    def __init__(self, machine: Machine, bound: BoundProgram) -> None:
        super().__init__(machine.chip, machine.exact, machine.timeline)
        self.machine, self.bound = machine, bound
        self.host_ops = 0
        self.notes: list[str] = []

    # --- steps --------------------------------------------------------------------------------------------------------------------
    def walk(self, steps: Sequence[NumberedStep], count: int) -> Iterator[StageTime]:
        for stage in stacking.together(steps, self.machine.stages):
            numbered, step = stage[0], stage[0].step
            if isinstance(step, KernelStep):
                running = [one for one in stage if one.index not in self.bound.skipped]
                if running:
                    yield self.stage(running, count)
            elif isinstance(step, HostStep):
                self.host_ops += count
            elif isinstance(step, CondStep):
                branches = [list(self.walk(block, count)) for block in numbered.blocks]
                self.notes.append("a conditional counts as its most expensive branch")
                yield from max(branches, key=lambda stages: sum(s.cycles * s.count for s in stages))
            elif isinstance(step, WhileStep):
                self.notes.append("a while loop counts as one iteration")
                for block in numbered.blocks:
                    yield from self.walk(block, count)
            elif isinstance(step, ForStep):
                times = self.bound.regs[step.count]
                if times > 0:
                    yield from self.walk(numbered.blocks[0], count * times)

    def stage(self, steps: Sequence[NumberedStep], count: int) -> StageTime:
        """Independent kernels: side by side, or one after the other where that takes no longer."""
        works = [self.work(numbered) for numbered in steps]
        traffics = [self.cache.phases(work.phases) for work in works]
        alone = [
            self.place(work, work.cores(self.most(work)), traffic, 0, count)
            for work, traffic in zip(works, traffics, strict=True)
        ]
        ends = list(itertools.accumulate((t.cycles for t in alone), initial=0.0))
        sequence = StageTime(tuple(alone), tuple(ends[:-1]), ends[-1], count)
        if len(works) == 1:
            return sequence
        shares = self.shares(works, alone)
        streams = sum(shares)
        beside = [
            self.place(work, work.cores(self.in_cores(work, share)), traffic, streams - share, count)
            for work, traffic, share in zip(works, traffics, shares, strict=True)
        ]
        longest = max(t.cycles for t in beside)
        if longest >= sequence.cycles:
            return sequence
        return StageTime(tuple(beside), (0.0,) * len(beside), longest, count)

    def shares(self, works: Sequence[Work], alone: Sequence[KernelTime]) -> list[int]:
        """Vector cores that each kernel of a stage gets; a cube core comes with its vector cores and counts as so many."""
        each = self.chip.cores.vector_per_cube
        width = [each if work.cube else 1 for work in works]
        used = [time.cores * w for time, w in zip(alone, width, strict=True)]
        found = stacking.divide(
            [time.cycles * n for time, n in zip(alone, used, strict=True)], self.chip.vector_cores, used
        )
        left = self.chip.vector_cores - sum(found)
        for k, w in enumerate(width):  # whole cube cores
            missing = -found[k] % w
            found[k] += missing if missing <= left else -(found[k] % w) or missing
            left = self.chip.vector_cores - sum(found)
        return found

    def in_cores(self, work: Work, share: int) -> int:
        """A share in cores of the kernel's kind."""
        return max(1, share // self.chip.cores.vector_per_cube) if work.cube else share

    # --- kernels ------------------------------------------------------------------------------------------------------------------
    def work(self, numbered: NumberedStep) -> Work:
        """A kernel step, ready to run."""
        step = numbered.step
        assert isinstance(step, KernelStep)
        kernel = self.machine.kernel(step.template)
        words = self.bound.kernel_words(numbered.index)
        regions = [self.bound.region(b) for b in step.buffers]
        template = self.machine.program.templates[step.template]
        name = step.name or template.name or f"kernel {numbered.index}"
        return self.ready(name, numbered.index, kernel, words, regions)


def _bound(share: Mapping[str, float]) -> str:
    """The resource with the largest share of the time; a memory rather than a pipe that is as busy because it waits for it. The scalar
    pipe is busy while it takes instructions apart."""
    order = ("HBM", "L2", *(p.name for p in reversed(Pipe)))
    busiest = max(share.values())
    return next(k for k in order if share[k] >= 0.95 * busiest)


class _Totals:
    """What all cores move and compute, from the loops' extents: no step is walked but those of ORDER loops, each of which is a phase."""

    def __init__(self, chip: Chip, kernel: Kernel) -> None:
        self.chip, self.kernel = chip, kernel
        self.done: list[Phase] = []
        self.reads: list[Access] = []
        self.writes: list[Access] = []
        self.part: dict[
            int, tuple[int, int, int]
        ] = {}  # of ORDER loops' axes: first element, the one behind the last, extent
        self.flops = 0

    def phases(self) -> list[Phase]:
        """What is moved, in order."""
        self._next()
        return self.done or [([], [])]

    def _next(self) -> None:
        if self.reads or self.writes:
            self.done.append((self.reads, self.writes))
        self.reads, self.writes = [], []

    def walk(
        self,
        body: Sequence[Ready | ReadyLoop],
        cores: int,
        again: float,
        trips: dict[int, int],
        extents: dict[int, int],
        share: int = 0,
    ) -> None:
        """``again``: how often the cores together run the body per combined step of the loops around it; ``share`` how many steps of a
        parallel loop make one of what is shared out, 0 outside of all."""
        for item in body:
            if isinstance(item, ReadyLoop) and item.kind == isa.LoopKind.ORDER:
                for base in range(0, item.extent, item.tile):
                    self._next()
                    self.part[item.axis] = (base, min(base + item.tile, item.extent), item.extent)
                    self.walk(item.inside(base), cores, again, trips, extents, share)
                self._next()
                self.part.pop(item.axis, None)
            elif isinstance(item, ReadyLoop):
                parallel = item.kind.shared
                inner, repeat = 1, again
                if parallel and share != 1:
                    inner, repeat = nested(item, cores), 1.0
                    if not share and inner > 1 and item.trips:
                        ranges = (core_range(item.trips * inner, core, cores) for core in range(cores))
                        repeat = sum(len(list(steps_inside(*one, inner))) for one in ranges) / item.trips
                held = {**trips, item.axis: item.trips}, {**extents, item.axis: item.extent}
                self.walk(item.body, cores, repeat, *held, inner if parallel else share)
            elif item.insn.family != "sync":
                self.add(item, again, trips, extents)

    def elements(self, tile: int, trips: Mapping[int, int], extents: Mapping[int, int]) -> int:
        """Elements of a tile over all steps of the loops around it."""
        dims = self.kernel.tiles[tile].dims
        own = {axis for _, axis in dims if axis != isa.NO_AXIS}
        n = math.prod(size if axis == isa.NO_AXIS else extents[axis] for size, axis in dims)
        return n * math.prod(t for axis, t in trips.items() if axis not in own)

    def _part_of(self, region: Any, tile: int) -> Any:
        """The share of a region that the current steps of ORDER loops leave of it: its size is right, its place a stand-in."""
        for _, axis in self.kernel.tiles[tile].dims:
            if axis in self.part:
                first, end, extent = self.part[axis]
                begin, size = region.start, region.bytes
                region = replace(region, start=begin + size * first // extent, end=begin + size * end // extent)
        return region

    def add(self, ready: Ready, again: float, trips: Mapping[int, int], extents: Mapping[int, int]) -> None:
        fields, name = ready.fields, ready.insn.name
        if name in ("load", "store"):
            tile = fields["dst" if name == "load" else "x"]
            n = self.elements(tile, trips, extents) * self.kernel.tiles[tile].dtype.itemsize
            where = self._part_of(ready.region, tile)
            if name == "load":
                n = round(n * again)
            (self.reads if name == "load" else self.writes).append(Access(where, n, min(n, where.bytes)))
        elif name == "mmad":
            x, y = self.kernel.tiles[fields["x"]], self.kernel.tiles[fields["y"]]
            own = {axis for _, axis in (*x.dims, *y.dims) if axis != isa.NO_AXIS}
            times = math.prod(t for axis, t in trips.items() if axis not in own)
            self.flops += round(timing_costs.product(self.chip, x, y, fields, extents).flops * times * again)
        elif ready.pipe == Pipe.V and "dst" in fields:
            operand = "x" if ready.insn.family in ("reduce", "argreduce") else "dst"
            if ready.insn.family in ("unary", "binary", "reduce", "argreduce", "select", "cumulative"):
                self.flops += round(self.elements(fields[operand], trips, extents) * again)
