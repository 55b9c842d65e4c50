"""One core in emulated time: bound words are walked as the reference executor walks them, and every instruction gets a start and an end.

The scalar pipe takes the instructions apart in order and puts them into the queues of their pipes, at most so many ahead. A pipe takes them
in order; an instruction starts when its pipe is free, what it waits for is set, and (with a barrier) all before it on its pipe is complete.
Transfers hold their pipe while they move and complete after the latency of global memory; those of all pipes share the core's port.

Once the steps of a loop repeat (every active pipe moved on by the same cycles in several steps) those in between are skipped by
moving all clocks, so that a kernel costs time by its instructions and not by its tiles. ``exact`` walks every step.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from vm import isa, timing_costs
from vm.chip import Chip
from vm.decode import Kernel
from vm.errors import Hazard
from vm.isa import Pipe
from vm.reference_core import QUEUED, Event, Ready, ReadyLoop, Share, core_steps, inside, outermost
from vm.timing_costs import Product, Transfer, Vector
from vm.timing_memory import Port, Rates

Body = Sequence[Ready | ReadyLoop]

PATIENCE = 48  # steps without an exact period after which the mean of the last ones is taken for it
PERIODS = (1, 2, 3)
RECORDED = 2000  # intervals of a timeline


@dataclass(frozen=True)
class Interval:
    """What a pipe does from ``start`` to ``end`` (cycles); ``steps`` is 0 for an instruction, else how many loop steps are summed up."""

    pipe: Pipe
    name: str
    start: float
    end: float
    steps: int = 0


@dataclass(eq=False)
class Task:
    """An instruction as it is issued."""

    ready: Ready
    cost: Transfer | Vector | Product | float
    issued: float
    first: bool
    last: bool


@dataclass(eq=False)
class Core:
    """Clocks, queues and events of a core. All times are cycles from the kernel's start."""

    chip: Chip
    kernel: Kernel
    rates: Rates
    cube: bool
    exact: bool = False
    record: bool = False
    scalar: float = 0.0
    free: list[float] = field(default_factory=lambda: [0.0] * len(Pipe))
    done: list[float] = field(default_factory=lambda: [0.0] * len(Pipe))
    busy: list[float] = field(default_factory=lambda: [0.0] * len(Pipe))
    starts: list[deque[float]] = field(default_factory=list)
    waiting: list[deque[Task]] = field(default_factory=list)
    events: dict[Event, deque[float]] = field(default_factory=dict)
    port: Port = field(default_factory=Port)
    halves: deque[float] = field(default_factory=lambda: deque([0.0, 0.0], 2))
    steps: dict[int, int] = field(default_factory=dict)
    cores: int = 1
    intervals: list[Interval] = field(default_factory=list)

    def __post_init__(self) -> None:
        depth = self.chip.issue.queue_depth
        self.starts = [deque([], depth) for _ in Pipe]
        self.waiting = [deque() for _ in Pipe]
        # Steps after which loads wait for what earlier steps set: tiles of several places begin empty.
        self.settled = 2 + max((tile.places for tile in self.kernel.tiles.values()), default=1)
        self._costs: dict[tuple, Transfer | Vector | Product | float] = {}
        self._axes: dict[int, tuple[int, ...]] = {}

    def run(self, body: Body, cores: int, code_words: int) -> float:
        """Runs the share of core 0, which has the most to do; returns the cycles until all is complete."""
        fetch = self.chip.latency.gm_read_path_cycles + 8 * code_words / self.chip.bandwidth.core_ddr_bytes_per_cycle
        self.scalar = fetch
        self.free = [fetch] * len(Pipe)
        self.done = [fetch] * len(Pipe)
        self.cores = cores
        self.block(body, True, True, outermost(0, cores))
        self._flush()
        for queue in self.waiting:
            if queue:
                raise Hazard("deadlock", "", queue[0].ready.at, "an instruction waits for an event that nothing sets")
        return max(self.scalar, *self.done)

    # --- loops --------------------------------------------------------------------------------------------------------------------
    def block(self, body: Body, first: bool, last: bool, share: Share) -> None:
        """Issues a body; ``share`` gives what the core takes of the parallel loops."""
        for item in body:
            if isinstance(item, Ready):
                self.issue(item, first, last)
                continue
            outer = self.steps.get(item.axis)
            self.loop(item, first, last, share)
            if outer is None:
                self.steps.pop(item.axis, None)
            else:
                self.steps[item.axis] = outer

    def loop(self, item: ReadyLoop, first: bool, last: bool, share: Share) -> None:
        """Runs the core's steps of a loop; skips what repeats."""
        parallel = item.kind.shared
        steps, inner = core_steps(item, share)
        seen: list[tuple[list[float], list[float]]] = [(list(self.done), list(self.busy))]
        entry, entry_busy = list(self.done), list(self.busy)
        k = 0
        while k < len(steps):
            step, low, high = steps[k]
            self.steps[item.axis] = min(item.tile, item.extent - step * item.tile)
            self._decode(2 * self.chip.latency.scalar_alu_cycles)
            within = inside(low, high, inner, self.cores) if parallel else share
            k += 1
            self.block(item.inside(step * item.tile), first and k == 1, last and k == len(steps), within)
            if self.exact or len(steps) - k < 3:
                continue
            seen.append((list(self.done), list(self.busy)))
            if k < self.settled or any(self.waiting):
                continue
            period, cycles = self._period(seen, entry_busy)
            if period:
                again = (len(steps) - 2 - k) // period
                if again > 0:
                    self._skip(again, cycles, seen[-1 - period][1], entry, entry_busy, again * period)
                    k += again * period
                    seen = seen[-1:]

    def _period(self, seen: list[tuple[list[float], list[float]]], entry_busy: list[float]) -> tuple[int, float]:
        """After how many steps everything repeats, and the cycles of so many; (0, 0) while it does not."""
        active = [p for p in QUEUED if seen[-1][1][p] > entry_busy[p]]
        if not active:
            return 0, 0.0
        for period in PERIODS:
            if len(seen) < 2 * period + 2:
                break
            moved = [
                [seen[-1 - k][0][p] - seen[-1 - k - period][0][p] for p in active] for k in (*range(period), period)
            ]
            cycles = moved[0][0]
            if cycles > 0 and all(math.isclose(x, cycles, rel_tol=1e-9, abs_tol=1e-6) for row in moved for x in row):
                return period, cycles
        if len(seen) > PATIENCE:
            half = PATIENCE // 2
            return half, max(seen[-1][0]) - max(seen[-1 - half][0])
        return 0, 0.0

    def _skip(
        self, times: int, cycles: float, busy: list[float], entry: list[float], entry_busy: list[float], steps: int
    ) -> None:
        """Moves the clocks of the pipes that the loop uses ``times`` periods on."""
        shift = times * cycles
        active = [p for p in QUEUED if self.busy[p] > entry_busy[p]]
        self.busy[Pipe.S] += times * (self.busy[Pipe.S] - busy[Pipe.S])
        for p in active:
            if self.record:
                self.intervals.append(Interval(p, f"{steps} more steps", self.free[p], self.free[p] + shift, steps))
            self.busy[p] += times * (self.busy[p] - busy[p])
            self.free[p] += shift
            self.done[p] += shift
            self.starts[p] = deque((t + shift for t in self.starts[p]), self.starts[p].maxlen)
        for (source, _, _), tokens in self.events.items():
            if source in active and tokens:
                kept = [t + shift if t > entry[source] else t for t in tokens]
                tokens.clear()
                tokens.extend(kept)
        if Pipe.M in active:
            self.halves = deque((t + shift for t in self.halves), 2)
        if self.record:
            self.intervals.append(Interval(Pipe.S, f"{steps} more steps", self.scalar, self.scalar + shift, steps))
        self.scalar += shift
        self.port.shift(shift)

    # --- instructions -------------------------------------------------------------------------------------------------------------
    def issue(self, ready: Ready, first: bool, last: bool) -> None:
        """Decodes an instruction and puts it into its pipe's queue."""
        self._decode(timing_costs.decode_cycles(self.chip, _words(ready)), ready)
        pipe = ready.pipe
        if pipe == Pipe.S:  # a barrier over all pipes
            self._flush()
            self.scalar = max(self.scalar, *self.done)
            self.free = [max(t, self.scalar) for t in self.free]
            return
        starts = self.starts[pipe]
        if len(starts) == starts.maxlen:
            self.scalar = max(self.scalar, starts[0])
        task = Task(ready, self._cost(ready), self.scalar, first, last)
        self.waiting[pipe].append(task)
        if len(self.waiting[pipe]) == 1:
            self._flush()

    def _decode(self, cycles: float, ready: Ready | None = None) -> None:
        """The scalar unit's own work."""
        begin = self.scalar
        self.scalar += cycles
        self.busy[Pipe.S] += cycles
        if self.record and ready is not None and len(self.intervals) < RECORDED:
            self.intervals.append(Interval(Pipe.S, ready.insn.name, begin, self.scalar))

    def _flush(self) -> None:
        """Places whatever can be placed."""
        moved = True
        while moved:
            moved = False
            for queue in self.waiting:
                while queue and self._place(queue[0]):
                    queue.popleft()
                    moved = True

    def _place(self, task: Task) -> bool:
        """Gives a task its time, if all that it waits for is set."""
        ready, pipe = task.ready, task.ready.pipe
        waits = [event for event, back in ready.waits if not (back and task.first)]
        if any(len(self.events.get(event, ())) < waits.count(event) for event in waits):
            return False
        known = max([task.issued, *(self.events[event].popleft() for event in waits)])
        start = max(known, self.free[pipe], self.done[pipe] if ready.barrier else 0.0)
        self.starts[pipe].append(start)
        end = self._execute(task, start, known)
        self.done[pipe] = max(self.done[pipe], end)
        for event, back in ready.sets:
            if not (back and task.last):
                self.events.setdefault(event, deque()).append(self.done[pipe])
        return True

    def _execute(self, task: Task, start: float, known: float) -> float:
        """Advances the pipe; returns when the instruction is complete. Its operands are there from ``known`` on."""
        ready, cost, pipe = task.ready, task.cost, task.ready.pipe
        if isinstance(cost, Transfer):
            return self._transfer(ready, cost, start)
        if isinstance(cost, Product):
            return self._product(ready, cost, start, known)
        issue, delay = (cost.issue, cost.delay) if isinstance(cost, Vector) else (cost, 0.0)
        if pipe == Pipe.FIX:
            delay = float(self.chip.latency.gm_write_path_cycles)
        elif pipe == Pipe.MTE1:
            delay = float(self.chip.latency.ub_copy_cycles)
        self._use(pipe, ready, start, start + issue)
        self.free[pipe] = start + issue
        return start + issue + delay

    def _transfer(self, ready: Ready, cost: Transfer, start: float) -> float:
        if not cost.bytes:
            return start
        chip, load = self.chip, ready.pipe == Pipe.MTE2
        block = chip.block_bytes
        moved = cost.bursts * -(-cost.burst_bytes // block) * block
        per_byte = self.rates.read if load else self.rates.write
        uops = cost.bursts * -(-cost.burst_bytes // chip.issue.dma_uop_bytes)
        local = cost.bursts * math.ceil(cost.burst_bytes / cost.local_bytes_per_cycle)
        self.port.forget(min(max(self.scalar, self.free[p]) for p in (Pipe.MTE2, Pipe.MTE3)))
        end = max(self.port.take(start, moved * per_byte), start + uops, start + local)
        self.free[ready.pipe] = end
        self._use(ready.pipe, ready, start, end)
        latency = chip.latency.gm_read_path_cycles if load else chip.latency.gm_write_path_cycles
        return end + latency + (chip.latency.gm_diversity_cycles if cost.bursts > 1 else 0)

    def _product(self, ready: Ready, cost: Product, start: float, known: float) -> float:
        """L1 -> L0 and the cube in turns: a part moves into the half of L0 that the part before the last one has left, the first part
        while the cube is still at an earlier product."""
        moved, cube = max(known, self.free[Pipe.MTE1]), start
        for _ in range(cost.parts):
            begin = max(moved, self.halves[0])
            moved = begin + cost.move
            self._use(Pipe.MTE1, ready, begin, moved)
            begin = max(cube, moved)
            cube = begin + cost.multiply
            self._use(Pipe.M, ready, begin, cube)
            self.halves.append(cube)
        self.free[Pipe.MTE1] = self.done[Pipe.MTE1] = max(self.free[Pipe.MTE1], moved)
        self.free[Pipe.M] = cube
        return cube + self.chip.cube.startup_cycles

    def _use(self, pipe: Pipe, ready: Ready, start: float, end: float) -> None:
        self.busy[pipe] += end - start
        if self.record and len(self.intervals) < RECORDED and end > start:
            self.intervals.append(Interval(pipe, ready.insn.name, start, end))

    # --- costs --------------------------------------------------------------------------------------------------------------------
    def _cost(self, ready: Ready) -> Transfer | Vector | Product | float:
        """What an instruction costs at the current extents of its tiles."""
        axes = self._axes.get(ready.at)
        if axes is None:
            axes = self._axes[ready.at] = self._axes_of(ready)
        key = (ready.at, *(self.steps[a] for a in axes))
        found = self._costs.get(key)
        if found is None:
            found = self._costs[key] = self._new_cost(ready)
        return found

    def _tiles(self, ready: Ready) -> list[int]:
        return [ready.fields[f.name] for f in ready.insn.fields if f.kind == "tile" and f.name in ("dst", "x")] + (
            [ready.fields["y"]] if ready.insn.name == "mmad" else []
        )

    def _axes_of(self, ready: Ready) -> tuple[int, ...]:
        tiles = [self.kernel.tiles[t] for t in self._tiles(ready)]
        return tuple(sorted({axis for t in tiles for _, axis in t.dims if axis != isa.NO_AXIS}))

    def _new_cost(self, ready: Ready) -> Transfer | Vector | Product | float:
        chip, tiles, fields, name = self.chip, self.kernel.tiles, ready.fields, ready.insn.name
        if ready.insn.family == "sync":
            return 0.0
        if name in ("load", "store"):
            tile = tiles[fields["dst" if name == "load" else "x"]]
            return timing_costs.transfer(
                chip, tile, timing_costs.extents(tile, self.steps), ready.tail, into=name == "load"
            )
        if name == "mmad":
            return timing_costs.product(chip, tiles[fields["x"]], tiles[fields["y"]], fields, self.steps)
        shape = timing_costs.extents(tiles[fields["dst"]], self.steps)
        if ready.pipe == Pipe.M:  # clearing an accumulator is a flag of the product that follows
            return 0.0
        if ready.pipe == Pipe.FIX:
            return timing_costs.drain(chip, tiles[fields["dst"]], shape)
        if ready.pipe == Pipe.MTE1:
            n = math.prod(shape) * tiles[fields["dst"]].dtype.itemsize
            return n / chip.bandwidth.l1_write_bytes_per_cycle
        cost = timing_costs.vector(chip, ready.insn, fields, tiles, self.steps)
        if self.cube:  # the vector cores of a cube core halve the tile
            return Vector(cost.issue / chip.cores.vector_per_cube, cost.delay)
        return cost


def _words(ready: Ready) -> int:
    return ready.insn.fixed_words + len(ready.tail) * ready.insn.tail_words
