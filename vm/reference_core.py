"""The reference executor's cores: bound words run tile by tile on pipes with events, every access checked.

The scalar pipe walks the loops and issues instructions, in order, to the queues of their pipes. A pipe runs its queue in order; an
instruction that waits for an event holds it up. A kernel's cores take contiguous ranges of the steps of its outermost parallel loops, and
where these are fewer than the cores, several cores share each step's inner parallel loops. What stands outside of a loop that is shared
out runs on every core that shares it, except that only the first of them stores there.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from vm import isa, semantics
from vm.chip import Chip
from vm.decode import Address, Kernel, Loop, Op, Tile, operations
from vm.errors import Hazard, ProgramError
from vm.isa import Pipe
from vm.reference_memory import NOBODY, PIPES, Access, Arena, Fault, Local

Event = tuple[Pipe, Pipe, int]  # from, to, number
QUEUED = tuple(p for p in Pipe if p != Pipe.S)


@dataclass(frozen=True)
class Region:
    """A step's buffer: ``elements`` from item ``start`` of an arena, or of a read-only array. ``owner`` is its number if it is writable."""

    arena: Arena
    start: int
    elements: int
    dtype: np.dtype
    writable: bool
    name: str
    owner: int = NOBODY


@dataclass(eq=False)
class Ready:
    """An instruction of bound words, every field a number."""

    insn: isa.Insn
    at: int
    pipe: Pipe
    fields: dict[str, int]
    tail: list[dict[str, int]]
    waits: list[tuple[Event, bool]]  # with "back"
    sets: list[tuple[Event, bool]]
    barrier: bool
    region: Any = None


@dataclass(eq=False)
class ReadyLoop:
    """A loop of bound words."""

    at: int
    axis: int
    kind: isa.LoopKind
    tile: int
    trips: int
    extent: int
    body: list[Ready | ReadyLoop]
    parts: dict[int, list[Ready | ReadyLoop]] = field(
        default_factory=dict
    )  # of an ORDER loop: its body at steps of so many elements

    def inside(self, base: int) -> list[Ready | ReadyLoop]:
        """The body at the step that begins at element ``base``: what an ORDER or SPLIT loop holds runs over that step's elements."""
        if not self.kind.divides:
            return self.body
        n = min(self.tile, self.extent - base)
        if n not in self.parts:
            self.parts[n] = restricted(self.body, self.axis, n)
        return self.parts[n]


def restricted(body: Sequence[Ready | ReadyLoop], axis: int, n: int) -> list[Ready | ReadyLoop]:
    """A body whose loops over ``axis`` have ``n`` elements."""
    out: list[Ready | ReadyLoop] = []
    for item in body:
        if isinstance(item, Ready):
            out.append(item)
        elif item.axis == axis:
            out.append(replace(item, trips=-(-n // item.tile), extent=n, parts={}))
        else:
            out.append(replace(item, body=restricted(item.body, axis, n), parts={}))
    return out


@dataclass(eq=False)
class Task:
    """An issued instruction: the loops' state is that of its issue."""

    ready: Ready
    axes: dict[int, tuple[int, int]]  # axis -> first index, steps
    first: bool  # execution of the instruction on this core
    last: bool
    stores: bool  # whether this core stores here
    places: Mapping[int, int] = field(default_factory=dict)  # the places of tiles that have several


class Places:
    """Where the tiles of several places are, instruction by instruction in the order of issue."""

    def __init__(self, tiles: Iterable[Tile]) -> None:
        self.many = {tile.id: tile.places for tile in tiles if tile.places > 1}
        self.now: Mapping[int, int] = {}

    def issue(self, ready: Ready) -> Mapping[int, int]:
        """The places for an instruction: tiles that it writes without reading them are at the next one."""
        if self.many:
            renewed = [t for t in isa.tiles_renewed(ready.insn, ready.fields, ready.tail) if t in self.many]
            if renewed:
                self.now = {**self.now, **{t: (self.now.get(t, -1) + 1) % self.many[t] for t in renewed}}
        return self.now


def prepare(kernel: Kernel, words: np.ndarray, regions: Sequence[Any], bound: bool = True) -> list[Ready | ReadyLoop]:
    """The kernel's loop tree with the numbers of bound words; ``regions`` are what its buffers are to the caller. ``ProgramError`` where
    a loop's numbers disagree (not looked at in words that are not ``bound``)."""
    divided: dict[int, ReadyLoop] = {}  # open ORDER and SPLIT loops by axis

    def pipe_at(op: Op) -> Pipe:
        if op.insn.family == "sync":
            return _pipe(op.at, isa.get(words, op.at, op.insn.fields[0]))
        spaces = [kernel.tiles[op.fixed(k)].space if k in op.fields else None for k in ("dst", "x")]
        return isa.issue_pipe(op.insn, *spaces)

    def ready(op: Op) -> Ready:
        fields = {f.name: isa.get(words, op.at, f) for f in op.insn.fields}
        tail = []
        for i in range(len(op.tail)):
            base = op.at + op.insn.fixed_words + i * op.insn.tail_words
            tail.append({f.name: isa.get(words, base, f) for f in op.insn.tail})
        address = op.fields.get("address")
        region = regions[address.buffer] if isinstance(address, Address) else None
        pipe = pipe_at(op)
        sync = {f.name: isa.get(words, op.at, f) for f in isa.SYNC}
        waits, sets = [], []
        for prefix, back in (("", False), ("back_", True)):
            if sync[f"{prefix}wait_pipe"]:
                waits.append(((_pipe(op.at, sync[f"{prefix}wait_pipe"]), pipe, sync[f"{prefix}wait_event"]), back))
            if sync[f"{prefix}set_pipe"]:
                sets.append(((pipe, _pipe(op.at, sync[f"{prefix}set_pipe"]), sync[f"{prefix}set_event"]), back))
        barrier = bool(sync["barrier"]) or op.insn.name == "barrier"
        if op.insn.name in ("set", "wait"):
            other, back = _pipe(op.at, fields["other"]), bool(fields["back"])
            if op.insn.name == "set":
                sets.append(((pipe, other, fields["event"]), back))
            else:
                waits.append(((other, pipe, fields["event"]), back))
        return Ready(op.insn, op.at, pipe, fields, tail, waits, sets, barrier, region)

    def loop(item: Loop) -> ReadyLoop:
        fields = {f.name: isa.get(words, item.op.at, f) for f in item.op.insn.fields}
        tile, trips, extent = fields["tile"], fields["trips"], fields["extent"]
        out = ReadyLoop(item.op.at, item.axis, item.kind, tile, trips, extent, [])
        outer = divided.get(item.axis)
        if bound:
            n = extent if outer is None else min(extent, outer.tile)
            if tile < 1 or trips != -(-n // tile) or (outer is not None and outer.extent != extent):
                raise ProgramError(f"word {item.op.at}: {trips} steps of {tile} do not make a loop of {n} elements")
        if item.kind.divides:
            divided[item.axis] = out
        out.body = walk(item.body)
        if item.kind.divides:
            del divided[item.axis]
        return out

    def walk(body: Sequence[Op | Loop]) -> list[Ready | ReadyLoop]:
        return [loop(item) if isinstance(item, Loop) else ready(item) for item in body]

    return walk(kernel.body)


def _pipe(at: int, number: int) -> Pipe:
    if number >= PIPES:
        raise ProgramError(f"word {at}: there is no pipe {number}")
    return Pipe(number)


def nested(loop: ReadyLoop, cores: int) -> int:
    """Steps of the parallel loops inside one step of a parallel loop that are shared out with it: those of the longest where several
    follow each other. 1 where a step has other loops that every core would repeat and there are steps enough without."""
    within = [item for item in loop.body if isinstance(item, ReadyLoop)]
    parallel = [item for item in within if item.kind.shared]
    if len(within) > len(parallel) and loop.trips >= cores:
        return 1
    return max([1, *(item.trips * nested(item, cores) for item in parallel)])


def core_count(body: Sequence[Ready | ReadyLoop], limit: int) -> int:
    """How many of ``limit`` cores have something to do: steps of the outermost parallel loop, those of the loops inside them counted."""
    most = 1
    for item in body:
        if isinstance(item, ReadyLoop):
            parallel = item.kind.shared
            most = max(most, item.trips * nested(item, limit) if parallel else core_count(item.body, limit))
    return min(limit, most)


def core_range(steps: int, core: int, cores: int) -> tuple[int, int]:
    """The contiguous range of ``steps`` that a core takes: the first cores take one more where they do not divide."""
    each, more = divmod(steps, cores)
    begin = core * each + min(core, more)
    return begin, begin + each + (core < more)


def steps_inside(begin: int, end: int, inner: int) -> Iterator[tuple[int, int, int]]:
    """Of a range of combined steps: each step of the outer loop, and the range of its ``inner`` steps."""
    for step in range(begin // inner, -(-end // inner)) if begin < end else ():
        yield step, max(begin - step * inner, 0), min(end - step * inner, inner)


@dataclass(eq=False)
class Pipes:
    """Queues, clocks and events of a core. ``run`` executes an instruction and returns nothing; it may raise ``Fault``."""

    run: Callable[[Task, Access], None]
    depth: int
    core: int = 0
    queues: dict[Pipe, deque[Task]] = field(default_factory=lambda: {p: deque() for p in QUEUED})
    clocks: list[list[int]] = field(default_factory=lambda: [[0] * PIPES for _ in range(PIPES)])
    done: list[int] = field(default_factory=lambda: [0] * PIPES)
    events: dict[Event, deque[tuple[list[int], Task]]] = field(default_factory=dict)

    def issue(self, task: Task) -> None:
        """Puts an instruction into its pipe's queue and lets every pipe run as far as it can."""
        if task.ready.pipe == Pipe.S:
            self._everything(task)
            return
        queue = self.queues[task.ready.pipe]
        if len(queue) >= self.depth:
            raise self.stuck()
        queue.append(task)
        self.progress()

    def progress(self) -> None:
        """Runs whatever is ready."""
        moved = True
        while moved:
            moved = False
            for queue in self.queues.values():
                while queue and self._ready(queue[0]):
                    self._execute(queue.popleft())
                    moved = True

    def _waits(self, task: Task) -> list[Event]:
        return [event for event, back in task.ready.waits if not (back and task.first)]

    def _ready(self, task: Task) -> bool:
        waits = self._waits(task)
        return all(len(self.events.get(event, ())) >= waits.count(event) for event in waits)

    def _execute(self, task: Task) -> None:
        pipe = task.ready.pipe
        clock = self.clocks[pipe]
        for event in self._waits(task):
            message, _ = self.events[event].popleft()
            clock[:] = map(max, clock, message)
        if pipe != Pipe.V or task.ready.barrier:
            clock[pipe] = self.done[pipe]
        if task.ready.insn.family != "sync":
            try:
                self.run(task, Access(pipe, self.done[pipe], clock, self.core))
            except Fault as fault:
                raise Placed(task, fault) from fault
        self.done[pipe] += 1
        for event, back in task.ready.sets:
            if not (back and task.last):
                message = list(clock)
                message[pipe] = self.done[pipe]
                self.events.setdefault(event, deque()).append((message, task))

    def _everything(self, task: Task) -> None:
        """A barrier over all pipes."""
        if any(self.queues.values()):
            raise self.stuck()
        for clock in self.clocks:
            clock[:] = self.done

    def stuck(self) -> Placed:
        """The deadlock that the queues are in."""
        for queue in self.queues.values():
            if queue:
                task = queue[0]
                waits = self._waits(task)
                event = next(e for e in waits if len(self.events.get(e, ())) < waits.count(e))
                what = f"{task.ready.insn.name} waits for event {event[2]} from {event[0].name} to {event[1].name}, which nothing sets"
                return Placed(task, Fault("deadlock", what))
        raise AssertionError("no pipe is stuck")

    def finish(self) -> None:
        """The end of the kernel: every queue must be empty and every set waited for."""
        if any(self.queues.values()):
            raise self.stuck()
        for (source, target, number), tokens in self.events.items():
            if tokens:
                what = f"event {number} from {source.name} to {target.name} is set and nothing waits for it"
                raise Placed(tokens[0][1], Fault("event", what))


class Placed(Exception):
    """A fault with the instruction that it happened at."""

    def __init__(self, task: Task, fault: Fault) -> None:
        super().__init__(fault.what)
        self.task, self.fault = task, fault


Share = Callable[[ReadyLoop], tuple[int, int, int]]


def outermost(core: int, cores: int) -> Share:
    """What one of ``cores`` cores takes of a parallel loop that stands in no other one: the first and the last of its steps combined with
    those of the loops inside it, and how many of these make a step of the loop itself."""

    def share(loop: ReadyLoop) -> tuple[int, int, int]:
        inner = nested(loop, cores)
        return *core_range(loop.trips * inner, core, cores), inner

    return share


def inside(low: int, high: int, inner: int, cores: int) -> Share:
    """The same for the parallel loops inside a step of which a core takes the steps ``low`` to ``high`` of ``inner``, which the longest
    of those loops has; of a shorter one it takes the same part."""

    def share(loop: ReadyLoop) -> tuple[int, int, int]:
        if inner == 1:
            return 0, loop.trips, 1
        each = nested(loop, cores)
        steps = loop.trips * each
        return -(-low * steps // inner), -(-high * steps // inner), each

    return share


def core_steps(loop: ReadyLoop, share: Share) -> tuple[list[tuple[int, int, int]], int]:
    """The steps of a loop that a core takes, each with the range of its ``inner`` steps, and ``inner``. Of an ORDER loop those in which the
    core has something to do, so that its first and last step are those of what is inside."""
    if loop.kind == isa.LoopKind.ORDER:
        busy = (k for k in range(loop.trips) if any(_busy(x, share) for x in loop.inside(k * loop.tile)))
        return [(k, 0, 1) for k in busy], 1
    begin, end, inner = share(loop) if loop.kind.shared else (0, loop.trips, 1)
    return list(steps_inside(begin, end, inner)), inner


def _busy(item: Ready | ReadyLoop, share: Share) -> bool:
    return isinstance(item, ReadyLoop) and bool(core_steps(item, share)[0])


class Cores:
    """Runs one kernel on all its cores, one after the other."""

    def __init__(self, name: str, kernel: Kernel, chip: Chip, limit: int | None = None) -> None:
        self.name, self.kernel, self.chip = name, kernel, chip
        self.limit = limit or (chip.cube_cores if kernel.mix else chip.vector_cores)
        capacity = {
            isa.Space.UB: chip.ub_bytes - chip.ub_reserved_bytes,
            isa.Space.L1: chip.l1_bytes,
            isa.Space.L0C: chip.l0c_bytes,
        }
        ends = dict.fromkeys(isa.Space, 0)
        for tile in kernel.tiles.values():
            ends[tile.space] = max(ends[tile.space], tile.end)
        self.memory = {space: Local(space, capacity[space], ends[space]) for space in isa.Space}
        self.ns = semantics.NumpyNamespace()
        self.axes: dict[int, tuple[int, int]] = {}
        self.axis_tiles: dict[int, int] = {}

    def run(self, words: np.ndarray, regions: Sequence[Region]) -> None:
        """Runs the kernel. ``Hazard`` for what must not happen."""
        run_stage([(self, words, regions)])

    def begin(self, words: np.ndarray, regions: Sequence[Region], first: int) -> int:
        """Prepares a run whose cores are numbered from ``first`` on; returns how many there are."""
        self.body, self.first = prepare(self.kernel, words, regions), first
        self.cores = core_count(self.body, self.limit)
        return self.cores

    def run_core(self, core: int) -> None:
        """Runs one core's share, to its end."""
        for memory in self.memory.values():
            memory.reset()
        try:
            self._core(self.body, core, self.cores)
        except Placed as placed:
            ready, fault = placed.task.ready, placed.fault
            where = f" [core {core}]" if self.cores > 1 else ""
            raise Hazard(fault.kind, self.name, ready.at, f"{ready.insn.name}: {fault.what}{where}") from None

    def stored(self, regions: Sequence[Region]) -> dict[int, Arena]:
        """The arenas that the kernel stores into."""
        return {id(r.arena): r.arena for r in (self._region(op, regions) for op in self._stores()) if r is not None}

    def _stores(self) -> list[Op]:
        return [op for op in operations(self.kernel.body) if op.insn.name == "store"]

    def _region(self, op: Op, regions: Sequence[Region]) -> Region | None:
        address = op.fields["address"]
        return regions[address.buffer] if isinstance(address, Address) else None

    def _core(self, body: list[Ready | ReadyLoop], core: int, cores: int) -> None:
        self.pipes = Pipes(self.execute, self.chip.issue.queue_depth, self.first + core)
        self.places = Places(self.kernel.tiles.values())
        self._block(body, True, True, outermost(core, cores), core == 0)
        self.pipes.finish()

    def _block(self, body: list[Ready | ReadyLoop], first: bool, last: bool, share: Share, stores: bool) -> None:
        """``share`` gives what this core takes of the parallel loops, ``stores`` is whether it stores outside of them."""
        for item in body:
            if isinstance(item, Ready):
                self.pipes.issue(Task(item, dict(self.axes), first, last, stores, self.places.issue(item)))
                continue
            parallel = item.kind.shared
            steps, inner = core_steps(item, share)
            outer = self.axes.get(item.axis)
            origin = outer[0] if outer is not None else 0
            for step, low, high in steps:
                base = step * item.tile
                self.axes[item.axis] = (origin + base, min(item.tile, item.extent - base))
                within = inside(low, high, inner, self.cores) if parallel else share
                at_first, at_last = step == steps[0][0], step == steps[-1][0]
                body = item.inside(base)
                self._block(body, first and at_first, last and at_last, within, low == 0 if parallel else stores)
            if outer is None:
                self.axes.pop(item.axis, None)
            else:
                self.axes[item.axis] = outer

    # --- operands ---------------------------------------------------------------------------------------------------------------
    def execute(self, task: Task, access: Access) -> None:
        """The work of one instruction."""
        from vm import reference_ops

        with np.errstate(all="ignore"):
            reference_ops.execute(Execution(self, task, access))


def run_stage(kernels: Sequence[tuple[Cores, np.ndarray, Sequence[Region]]]) -> None:
    """Runs kernels side by side: their cores take turns, and no order between cores of different kernels counts. ``Hazard`` for what must
    not happen, such as a store of one kernel where another one loads."""
    arenas: dict[int, Arena] = {}
    waiting: list[list[tuple[Cores, int]]] = []
    first = 0
    for cores, words, regions in kernels:
        count = cores.begin(words, regions, first)
        arenas |= cores.stored(regions)
        waiting.append([(cores, core) for core in range(count)])
        first += count
    for arena in arenas.values():
        arena.begin()
    try:
        for turn in itertools.zip_longest(*waiting):
            for one in turn:
                if one is not None:
                    cores, core = one
                    cores.run_core(core)
    finally:
        for arena in arenas.values():
            arena.end()


@dataclass(eq=False)
class Execution:
    """One instruction being executed: its operands and where it may write."""

    cores: Cores
    task: Task
    access: Access

    @property
    def ready(self) -> Ready:
        return self.task.ready

    @property
    def ns(self) -> semantics.NumpyNamespace:
        return self.cores.ns

    def field(self, name: str) -> int:
        return self.task.ready.fields[name]

    def tile(self, number: int) -> Tile:
        tile = self.cores.kernel.tiles[number]
        return tile if tile.places == 1 else tile.at(self.task.places.get(number, 0))

    def shape(self, tile: Tile) -> list[int]:
        """The tile's extent in this step of the loops."""
        out = []
        for size, axis in tile.dims:
            n = size if axis == isa.NO_AXIS else self.task.axes[axis][1]
            if n > size:
                raise Fault("mismatch", f"a step of axis {axis} has {n} elements, tile {tile.id} holds {size}")
            out.append(n)
        return out

    def index(self, tile: Tile, d: int) -> np.ndarray:
        """Global indices along dim ``d``, shaped to broadcast over the tile."""
        size, axis = tile.dims[d]
        base, n = (0, size) if axis == isa.NO_AXIS else self.task.axes[axis]
        return (base + np.arange(n, dtype=np.int64)).reshape([-1 if i == d else 1 for i in range(len(tile.dims))])

    def read(self, operand: str | int) -> np.ndarray:
        """The contents of the tile in field ``operand`` (or of the tile with that number), all of which must be defined."""
        value, undefined = self.peek(operand)
        if undefined is not None:
            tile = self.field(operand) if isinstance(operand, str) else operand
            raise Fault("uninitialised read", f"tile {tile} has elements from global memory that nothing has written")
        return value

    def peek(self, operand: str | int) -> tuple[np.ndarray, np.ndarray | None]:
        """Like ``read``, and which elements are undefined (None if none is): for instructions that only move elements."""
        tile = self.tile(self.field(operand) if isinstance(operand, str) else operand)
        memory, shape = self.cores.memory[tile.space], self.shape(tile)
        value = memory.read(tile, shape, self.access)
        return value, memory.undefined_in(tile, shape)

    def move(self, operands: list[str] | list[int], function: Callable[..., np.ndarray]) -> None:
        """dst = ``function`` of the operands' contents, which only moves elements; undefined ones may be among them."""
        found = [self.peek(operand) for operand in operands]
        undefined = None
        if any(mask is not None for _, mask in found):
            undefined = function(*(np.zeros(v.shape, bool) if mask is None else mask for v, mask in found))
        self.write("dst", function(*(value for value, _ in found)), undefined)

    def write(self, operand: str, value: np.ndarray, undefined: np.ndarray | None = None) -> None:
        """Writes the tile in field ``operand``."""
        tile = self.tile(self.field(operand))
        shape = self.shape(tile)
        value = np.asarray(value)
        if list(value.shape) != shape or value.dtype != tile.dtype:
            raise Fault("mismatch", f"tile {tile.id} is {tile.dtype}{shape} and gets {value.dtype}{list(value.shape)}")
        self.cores.memory[tile.space].write(tile, value, tile.bytes, self.access, undefined)
