"""Launching a program: sizes are bound, inputs staged, steps run, results handed out as views.

Kernels that follow each other run in units of one XLA executable; units with equal kernels share it, so compile time does not grow with
depth. An executable takes the arenas it only loads from as they are and those it stores into donated, so that nothing is copied. Host
steps and control flow run between units.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from vm import background, cache, counters, host, packing, results, unit_code
from vm.binder import Binder, BoundProgram, NumberedStep
from vm.chip import Chip
from vm.decode import Address, Kernel, decode, stored_buffers, unordered
from vm.dtypes import dtype_of, item_size
from vm.errors import DvmError, OutOfMemory, ProgramError, ShapeError, Unfit
from vm.geometry import Scalars
from vm.memory import (
    ALIGNMENT,
    Key,
    OutputSet,
    Place,
    Pool,
    Region,
    Staging,
    array_at,
    array_type,
    capacity_class,
    copy_into,
    device_arena,
    exact_capacity,
    on_device,
)
from vm.packing import Packing
from vm.program import (
    INPUT,
    LANES,
    OUTPUT_BANKS,
    PINNED,
    TEMP_BANKS,
    CondStep,
    ForStep,
    HostStep,
    KernelStep,
    Program,
    WhileStep,
)
from vm.results import Ready
from vm.units import Segment, Unit, units

if TYPE_CHECKING:
    from vm.interpreter import Interpreter

EAGER_LIMIT = 4 << 30  # bytes of arenas that declared maxima may reserve without being asked
GRACE = 0.25  # seconds that building in the background waits for a first launch
PATIENCE = 1.0  # seconds that it waits, before each kernel, for a launch under way
IN_PLACE = 1 << 19  # bytes of an input from which on it is read where it lies
KNOWN_ARRAYS = 8  # arrays of an input whose views are kept
ONE = np.ones(1, np.int64)
APART = object()  # code of a unit whose kernels have code of their own


class Executable:
    """A program on the machine. ``launch`` takes and returns flat lists of arrays; thread-safe (launches are serialised)."""

    def __init__(self, program: Program, tier: str = "auto") -> None:
        if tier not in ("auto", "specialised", "interpreter"):
            raise DvmError(f"unknown tier {tier!r}; use 'auto', 'specialised' or 'interpreter'")
        self.tier = tier
        self.program = program
        self.binder = Binder(program)
        self.lock = threading.RLock()
        self.chip = Chip.load(program.chip)
        self.capacity: dict[Key, int] = {}
        self.code: dict[tuple[Any, ...], Any] = {}
        self.staging: dict[Place, Staging] = {}  # made where an input is first copied
        self.in_place: dict[Place, OrderedDict[int, Any]] = {}  # arrays of inputs as arenas, by address
        self.temps: dict[Place, Any] = {}
        self.pool = Pool(self._new_outputs)
        self.kernels: dict[int, tuple[Kernel, Scalars]] = {}
        self._ready: WeakKeyDictionary[BoundProgram, Ready] = WeakKeyDictionary()
        self._readers: list[Segment] | None = None  # kernels that read inputs of symbolic shape
        self._exact: WeakKeyDictionary[BoundProgram, frozenset[Place]] = WeakKeyDictionary()
        self._staged = list(
            dict.fromkeys(
                ((INPUT, item_size(b.dtype), b.input), b.input)
                for b in program.buffers
                if b.space == INPUT and b.input is not None and b.offset is not None
            )
        )  # inputs of symbolic shape and their arenas
        self._returned = results.outputs_of(program)
        self._kinds = Counter(self._kind(step) for step in kernel_steps(self.binder.steps))
        self.plan = self._units(self.binder.steps)
        self.constants: dict[tuple[int, Packing | None], Any] = {}
        self.interpreter: Interpreter | None = None
        self._job: Future[None] | None = None  # builds specialised code while the interpreter serves
        self._asked = threading.Event()  # a first launch has begun, or somebody waits for the background
        self._interprets = tier != "specialised"
        self._adopted = False  # there is memory
        self._settled: set[tuple[int, ...]] = (
            set()
        )  # outcomes of choices whose code for the present capacities is there
        self._begin()

    # --- tiers --------------------------------------------------------------------------------------------------------------------
    def _begin(self) -> None:
        """Makes ready what launches will need first. With the interpreter's image at hand nothing is compiled here."""
        if self.tier == "interpreter":
            return
        rows = self._maximal_rows()
        if rows is not None:
            capacity = self._grown(rows, exact=True)
            if not self._serves() or self._all_cached(capacity):
                self._adopt(capacity)
                self._compile_all()
            elif self._image().ready(None):
                self._build_later(capacity)
                return
            else:
                self._adopt(capacity)
                self._compile_all()
        if self._serves() and not self._image().ready(None):
            background.build_image(self._image().smallest())

    def _serves(self) -> bool:
        """Whether the interpreter may stand in while specialised code is built."""
        return self.tier == "auto" and self._interprets and background.enabled()

    def _image(self) -> Interpreter:
        from vm import interpreter

        if self.interpreter is None:
            self.interpreter = interpreter.Interpreter(self.program, self.binder)
        return self.interpreter

    def _build_later(self, capacity: dict[Key, int]) -> None:
        """Builds code for these capacities in the background, then lets the next launch use it. A launch under way goes first, above all
        the first one."""

        def job() -> None:
            self._asked.wait(GRACE)
            for unit in self._unbuilt(capacity):
                if self.lock.acquire(timeout=PATIENCE):
                    self.lock.release()
                if background.closing():
                    return
                self._compile(unit, capacity)
            with self.lock:
                self._adopt({key: max(n, self.capacity.get(key, 0)) for key, n in capacity.items()})
                self._job = self.interpreter = None

        with self.lock:  # the job ends after it is known
            self._job = background.submit(job)

    def _interpreted(self, bound: BoundProgram) -> bool:
        """Whether this launch goes through the interpreter: its specialised code is not ready, and the interpreter needs no compile."""
        if self.tier == "interpreter":
            return True
        if bound.chosen in self._settled and all(r <= self.capacity.get(k, -1) for k, r in bound.arena_rows.items()):
            return False
        if not self._serves():
            return False
        capacity = self._grown(bound.arena_rows)
        if not self._unbuilt(capacity, bound.skipped):
            if capacity == self.capacity:
                self._settled.add(bound.chosen)
            return False
        if self._job is not None and self._job.done():
            self._job = None
            return False  # it failed: this launch meets the error
        if not self._image().ready(bound.arena_rows):
            background.build_image(self._image().classes(bound.arena_rows))
            return False
        if self._job is None:
            if self._all_cached(capacity):
                return False
            self._build_later(capacity)
        return True

    def _all_cached(self, capacity: dict[Key, int]) -> bool:
        """Whether no kernel needs a compile at these capacities."""
        return all(cache.has(self._key(unit, capacity)) for unit in self._unbuilt(capacity))

    # --- capacity -----------------------------------------------------------------------------------------------------------------
    def reserve(self, symbols: Mapping[str, int]) -> None:
        """Sizes the arenas for these symbol values and compiles for them."""
        values = []
        for s in self.program.symbols[: self.binder.given]:  # no place in memory depends on the others
            value = symbols.get(s.name, s.max)
            if value is None:
                raise ShapeError(f"reserve needs a value for {s.name!r}, which has no maximum")
            values.append(value)
        rows = self._rows_at(tuple(values))
        with self.lock:
            if self.tier == "interpreter":
                self._image().prepare(rows)
                return
            total = sum(r * LANES * item for (_, item), r in rows.items())
            if total > self.chip.hbm_bytes:
                raise OutOfMemory(
                    f"reserve needs {total:,} bytes of device memory; {self.chip.name} has {self.chip.hbm_bytes:,}"
                )
            try:
                self._grow(rows, exact=True)
            except MemoryError as error:
                self.capacity = dict.fromkeys(self.capacity, 0)
                raise OutOfMemory(f"reserve needs {total:,} bytes of memory: {error}") from error
            self._compile_all()

    def _rows_at(self, symbols: tuple[int, ...]) -> dict[Key, int]:
        regs = self.program.code.run((*symbols, *[0] * len(self.program.data_sizes)))
        return {key: max(regs[reg], 0) for key, reg in self.program.arena_rows.items()}

    def _maximal_rows(self) -> dict[Key, int] | None:
        """The rows at the declared maxima; None if there are none, or if they are too large to be taken without being asked."""
        highest = [s.max for s in self.program.symbols[: self.binder.given]]
        if any(h is None for h in highest):
            return None
        rows = self._rows_at(tuple(h for h in highest if h is not None))
        too_large = sum(r * LANES * item for (_, item), r in rows.items()) > min(EAGER_LIMIT, self.chip.hbm_bytes)
        return None if too_large else rows

    def _grown(self, rows: Mapping[Key, int], exact: bool = False) -> dict[Key, int]:
        """Capacities that hold ``rows``: what there is, where it does; else capacity classes, or just so much with ``exact``: more will
        not be asked for."""
        out = dict(self.capacity)
        for key in sorted(self.program.arena_rows):
            need = rows.get(key, 0)
            if key not in out or need > out[key]:
                out[key] = max(exact_capacity(need) if exact else capacity_class(need), out.get(key, 0))
        return out

    def _grow(self, rows: Mapping[Key, int], exact: bool = False) -> None:
        """Raises capacities to hold ``rows``."""
        self._adopt(self._grown(rows, exact))

    def _adopt(self, capacity: dict[Key, int]) -> None:
        """Makes memory of these capacities, if they are new ones."""
        if capacity != self.capacity:
            self.capacity, self._settled = dict(capacity), set()
            total = sum(n * LANES * item for (_, item), n in self.capacity.items())
            if self._adopted:
                counters.add("arena_growths")
            known = {self._signature(unit, capacity) for unit in self._all_units()}
            for signature in [k for k in self.code if k not in known]:
                del self.code[signature]
            self._forget_code(self.plan)
            self.staging, self.in_place = {}, {}
            self.temps = {k: device_arena(n, k[1]) for k, n in self.capacity.items() if k[0] in TEMP_BANKS}
            self.pool = Pool(self._new_outputs)
            self._adopted = True
            counters.add("arena_bytes", total)

    def _new_outputs(self) -> OutputSet:
        return OutputSet({k: device_arena(n, k[1]) for k, n in self.capacity.items() if k[0] in OUTPUT_BANKS})

    def _check_memory(self, bound: BoundProgram) -> int:
        """The bytes of device memory that a launch needs; ``OutOfMemory`` if the chip has less."""
        total = sum(r * LANES * item for (_, item), r in bound.arena_rows.items())
        if total > self.chip.hbm_bytes:
            raise OutOfMemory(
                f"this launch ({_dims(bound)}) needs {total:,} bytes of device memory; {self.chip.name} has {self.chip.hbm_bytes:,}"
            )
        return total

    def _admit(self, bound: BoundProgram) -> None:
        total = self._check_memory(bound)
        if any(r > self.capacity.get(k, -1) for k, r in bound.arena_rows.items()):
            try:
                self._grow(bound.arena_rows)
            except MemoryError as error:
                self.capacity = dict.fromkeys(self.capacity, 0)
                raise OutOfMemory(f"this launch ({_dims(bound)}) needs {total:,} bytes of memory: {error}") from error

    # --- segments and their code -------------------------------------------------------------------------------------------------
    def _units(self, steps: Sequence[NumberedStep]) -> list[Unit | NumberedStep]:
        """Steps with kernels as units of code; all kernels of one are of the same alternative."""

        def alternative(s: NumberedStep) -> tuple[int | None, int] | None:
            return (s.step.choice, s.step.alternative) if isinstance(s.step, KernelStep) else None

        out: list[Unit | NumberedStep] = []
        for of, group in itertools.groupby(steps, alternative):
            if of is None:
                out += group
                continue
            segments = [self._kernel(s.step, s.index) for s in group if isinstance(s.step, KernelStep)]
            out += units(segments, [self._kind(s.step) for s in segments], self._kinds)
        return out

    def _kind(self, step: KernelStep) -> tuple[Any, ...]:
        """Equal for steps with equal code, whatever the sizes of arenas."""
        arenas: dict[Place, int] = {}
        pinned: dict[tuple[str, int], int] = {}
        kinds: list[Any] = []
        for b in step.buffers:
            if self.program.buffers[b].space == PINNED:
                number = pinned.setdefault(self._source(b), len(pinned))
                kinds.append((number, self._fixed_shape(b), self.program.buffers[b].dtype))
            else:
                place = self._place(b)
                kinds.append((place[1], arenas.setdefault(place, len(arenas)), self.program.buffers[b].dtype))
        return (step.template, tuple(kinds))

    def _fixed_shape(self, b: int) -> tuple[int, ...]:
        """The shape of a pinned array as it is passed (an alias passes its source's array)."""
        buffer = self.program.buffers[b]
        if buffer.constant is not None:
            return tuple(self.program.constants[buffer.constant].shape)
        assert buffer.input is not None
        return tuple(int(t) for t in self.program.inputs[buffer.input].text)

    def _kernel(self, step: KernelStep, index: int) -> Segment:
        pinned: dict[tuple[str, int], int] = {}
        first: list[int] = []
        arenas: dict[Place, int] = {}
        refs: list[tuple[int | None, str, int | None]] = []
        for b in step.buffers:
            buffer = self.program.buffers[b]
            if buffer.space == PINNED:
                source = self._source(b)
                if source not in pinned:
                    pinned[source] = len(pinned)
                    first.append(b)
                refs.append((None, buffer.dtype, pinned[source]))
            else:
                key = self._place(b)
                refs.append((arenas.setdefault(key, len(arenas)), buffer.dtype, None))
        if step.template not in self.kernels:
            decoded = unordered(decode(self.program.templates[step.template]))
            self.kernels[step.template] = (decoded, Scalars(decoded))
        kernel, table = self.kernels[step.template]
        written = sorted({n for k in stored_buffers(kernel) if (n := refs[k][0]) is not None})
        own = [
            slot
            for operand, slot in table.slots.items()
            if isinstance(operand, Address) and self.program.buffers[step.buffers[operand.buffer]].space == INPUT
        ]
        arguments = {k: ref[2] for k, ref in enumerate(refs) if ref[2] is not None}
        elements = [math.prod(self._fixed_shape(b)) for b in first]
        packed = packing.packings(kernel, table.lengths, arguments, elements)
        packings = [packed.get(n) for n in range(len(first))]
        return Segment(step, index, first, packings, refs, list(arenas), written, kernel, table, own)

    def _place(self, b: int) -> Place:
        """The arena of a buffer."""
        buffer = self.program.buffers[b]
        key = (buffer.space, item_size(buffer.dtype))
        return key if buffer.space != INPUT or buffer.input is None else (*key, buffer.input)

    def _signature(self, unit: Unit, capacity: Mapping[Key, int] | None = None) -> tuple[Any, ...]:
        """What the code of a unit depends on: templates, kinds of buffers, sizes of arenas. Not which arenas or weights they are, so that
        equal layers share code."""
        capacity = self.capacity if capacity is None else capacity
        shapes = tuple((self._fixed_shape(b), self.program.buffers[b].dtype) for b in unit.pinned)
        sizes = tuple((place[1], capacity[place[0], place[1]]) for place in unit.places)
        kernels = tuple((part.step.template, tuple(part.refs)) for part in unit.parts)
        return (kernels, repr(unit.local), shapes, sizes, tuple(unit.packings))

    def _source(self, b: int) -> tuple[str, int]:
        buffer = self.program.buffers[b]
        return ("constant", buffer.constant) if buffer.constant is not None else ("input", buffer.input or 0)

    def _key(self, unit: Unit, capacity: Mapping[Key, int]) -> str:
        """The name of a unit's code in the cache."""
        kernels, *rest = self._signature(unit, capacity)
        templates = [self.program.templates[number] for number, _ in kernels]
        kinds = [(t.patches, t.relocs, refs) for t, (_, refs) in zip(templates, kernels, strict=True)]
        return cache.key_of(*[t.words.tobytes() for t in templates], repr((kinds, rest)).encode())

    def _compile(self, unit: Unit, capacity: Mapping[Key, int] | None = None) -> Any:
        capacity = self.capacity if capacity is None else capacity
        signature = self._signature(unit, capacity)
        found = self.code.get(signature)
        if found is not None:
            return found

        def build() -> Any:
            pinned = [
                (
                    p.shape if p is not None and p.moves else self._fixed_shape(b),
                    dtype_of(self.program.buffers[b].dtype),
                )
                for b, p in zip(unit.pinned, unit.packings, strict=True)
            ]
            return unit_code.build(unit, pinned, [capacity[place[0], place[1]] for place in unit.places])

        written = [0] * len(unit.written)
        arguments = (0, [0] * len(unit.pinned), [0] * len(unit.read), written)
        try:
            code = cache.get(self._key(unit, capacity), arguments, written, build)
        except unit_code.Copied:
            for single in unit.singles():
                self._compile(single, capacity)
            code = APART
        self.code[signature] = code
        return code

    def _all_units(self) -> Iterator[Unit]:
        def visit(items: Sequence[Unit | NumberedStep]) -> Iterator[Unit]:
            for item in items:
                if isinstance(item, Unit):
                    yield item
                else:
                    for block in self._blocks(item):
                        yield from visit(block)

        return visit(self.plan)

    def _unbuilt(self, capacity: Mapping[Key, int], skipped: frozenset[int] = frozenset()) -> list[Unit]:
        """One unit for every piece of code that is missing at these capacities; not those of ``skipped`` kernels."""
        todo: dict[tuple[Any, ...], Unit] = {}
        for unit in self._all_units():
            if unit.parts[0].index in skipped:
                continue
            signature = self._signature(unit, capacity)
            if signature not in self.code:
                todo.setdefault(signature, unit)
        return list(todo.values())

    def _compile_all(self, skipped: frozenset[int] = frozenset()) -> None:
        """Builds the code of every unit that has none, those of ``skipped`` kernels aside, on as many threads as there are cores: XLA's
        passes over one run on one."""
        todo = self._unbuilt(self.capacity, skipped)
        if len(todo) < 2:
            for unit in todo:
                self._compile(unit)
            return
        with ThreadPoolExecutor(min(len(todo), os.cpu_count() or 1)) as threads:
            list(threads.map(self._compile, todo))

    def _blocks(self, step: NumberedStep) -> list[list[Unit | NumberedStep]]:
        cache = self.__dict__.setdefault("_block_plans", {})
        if step not in cache:
            cache[step] = [self._units(block) for block in step.blocks]
        return cache[step]

    def _forget_code(self, items: Sequence[Unit | NumberedStep]) -> None:
        for item in items:
            if isinstance(item, Unit):
                item.code = None
            else:
                for block in self._blocks(item):
                    self._forget_code(block)

    def wait(self) -> None:
        """Waits for background work: after it, launches that were served by the interpreter run specialised code. Raises what it met."""
        job = self._job
        self._asked.set()
        if job is not None:
            job.result()
        background.wait_for_images()

    # --- launching ----------------------------------------------------------------------------------------------------------------
    def bind(self, arrays: Sequence[Any]) -> BoundProgram:
        """The program at the sizes of flat inputs, which are checked."""
        return self.binder.bind_sizes(self.binder.check_inputs(arrays))

    def launch(self, arrays: Sequence[Any], bound: BoundProgram | None = None) -> list[Any]:
        """Runs the program on flat inputs (NumPy or JAX arrays of the declared dtypes); results are NumPy arrays or views of device
        memory. ``bound`` is what ``bind`` gave for them."""
        bound = self.bind(arrays) if bound is None else bound
        with self.lock:
            if not self._asked.is_set():
                self._asked.set()
            counters.add("launches")
            ready = self._ready.get(bound)
            if ready is not None and ready.capacity is self.capacity:  # as the last time
                return _Launch(self, bound, arrays, ready).run()
            if self._interpreted(bound):
                try:
                    return self._interpret(bound, arrays)
                except Unfit as error:
                    if self.tier == "interpreter":
                        raise DvmError(f"the interpreter cannot run this launch ({_dims(bound)}): {error}") from error
                    self._interprets = False
            self._admit(bound)
            return _Launch(self, bound, arrays, self._made_ready(bound)).run()

    def _made_ready(self, bound: BoundProgram) -> Ready:
        ready = self._ready.get(bound)
        if ready is None:
            ready = self._ready[bound] = Ready()
        return ready

    def _interpret(self, bound: BoundProgram, arrays: Sequence[Any]) -> list[Any]:
        from vm import interpreter

        self._check_memory(bound)
        counters.add("interpreter_launches")
        return interpreter.launch(self, self._image(), bound, arrays)

    def exact_inputs(self, bound: BoundProgram) -> frozenset[Place]:
        """The inputs of which no kernel reads an element that is not there: none of its blocks reaches past an extent."""
        found = self._exact.get(bound)
        if found is None:
            readers = self._readers
            if readers is None:
                readers = self._readers = [
                    part
                    for unit in self._all_units()
                    for part in unit.parts
                    if any(place[0] == INPUT for place in part.arenas)
                ]
            places = {place for segment in readers for place in segment.arenas if place[0] == INPUT}
            for segment in readers:
                if segment.index in bound.skipped:
                    continue
                if bound.unknown or segment.table.overruns(bound.kernel_words(segment.index)):
                    places.difference_update(segment.arenas)
            found = self._exact[bound] = frozenset(places)
        return found

    def array_in_place(self, place: Place, source: np.ndarray) -> Any:
        """An input's memory as an arena: an array that begins where the input does and is as long as code expects, of which only the
        input may be read. None if JAX could not read it where it is."""
        address = source.__array_interface__["data"][0]
        if address % ALIGNMENT or not source.flags.c_contiguous:
            return None
        known = self.in_place.setdefault(place, OrderedDict())
        found = known.get(address)
        if found is None:
            found = known[address] = array_at(address, self.capacity[place[0], place[1]], place[1])
            while len(known) > KNOWN_ARRAYS:
                known.popitem(last=False)
        return found

    def argument(self, b: int, order: Packing | None) -> tuple[int | None, Packing | None, int]:
        """Where an array that code takes as an argument comes from: the number of the input or None, how it is reordered, the number of
        the constant."""
        buffer = self.program.buffers[b]
        if order is not None and not order.moves:
            order = None
        if buffer.constant is not None:
            return (None, order, buffer.constant)
        assert buffer.input is not None
        return (buffer.input, order, -1)

    def constant(self, index: int, order: Packing | None = None) -> Any:
        """A constant on the device, reordered if told so, put there once."""
        found = self.constants.get((index, order))
        if found is None:
            import jax

            array = self.program.constants[index]
            with jax.enable_x64(True):
                found = (
                    jax.device_put(array, jax.devices("cpu")[0]) if order is None else packing.on_device(array, order)
                )
            self.constants[index, order] = found
        return found


def kernel_steps(steps: Sequence[NumberedStep]) -> Iterator[KernelStep]:
    """All kernel steps, those inside of control flow too."""
    for s in steps:
        if isinstance(s.step, KernelStep):
            yield s.step
        for block in s.blocks:
            yield from kernel_steps(block)


class StepWalk:
    """One launch's way through the steps. Executors say how a kernel runs and how the host sees a buffer."""

    def __init__(self, owner: Executable, bound: BoundProgram, arrays: Sequence[Any]) -> None:
        self.owner, self.bound, self.arrays, self.program = owner, bound, arrays, owner.program

    def segment(self, segment: Segment) -> None:
        """Runs a kernel, or notes that it is to run before anything is read or written."""
        raise NotImplementedError

    def rebound(self) -> None:
        """``bound`` is a new one: a size that depends on data is known."""

    def read(self, b: int) -> np.ndarray:
        """A buffer's contents."""
        raise NotImplementedError

    def write(self, b: int, value: np.ndarray) -> None:
        """Overwrites a buffer."""
        raise NotImplementedError

    def unit(self, unit: Unit) -> None:
        """Runs kernels that follow each other."""
        for segment in unit.parts:
            self.segment(segment)

    def steps(self, items: Sequence[Unit | NumberedStep]) -> None:
        for item in items:
            if isinstance(item, Unit):
                if item.parts[0].index not in self.bound.skipped:
                    self.unit(item)
                continue
            step = item.step
            if isinstance(step, HostStep):
                self.host(step, item.index)
            elif isinstance(step, CondStep):
                index = int(self.read(step.selector).reshape(())[()])
                blocks = self.owner._blocks(item)
                self.steps(blocks[min(max(index, 0), len(blocks) - 1)])
            elif isinstance(step, WhileStep):
                test, body = self.owner._blocks(item)
                self.steps(test)
                while bool(self.read(step.predicate).reshape(())[()]):
                    self.steps(body)
                    self.steps(test)
            elif isinstance(step, ForStep):
                (body,) = self.owner._blocks(item)
                count = self.bound.regs[step.count]
                for k in range(count):
                    self.write(step.counter, np.asarray(count - 1 - k if step.reverse else k, np.int32))
                    self.steps(body)

    def host(self, step: HostStep, index: int) -> None:
        inputs = [self.read(b) for b in step.inputs]
        results = host.call(step.function, inputs, self.bound.host_attrs[index])
        if self.bound.unknown:
            self.bound = self.owner.binder.after_host(self.bound, step, results)
            self.rebound()
        for b, value in zip(step.outputs, results, strict=True):
            if tuple(np.shape(value)) != self.bound.shape(b):
                raise ProgramError(
                    f"host function {step.function!r} gave shape {np.shape(value)}, expected {self.bound.shape(b)}"
                )
            self.write(b, value)


class _Launch(StepWalk):
    """A launch of specialised code: the state that its steps share."""

    def __init__(self, owner: Executable, bound: BoundProgram, arrays: Sequence[Any], ready: Ready) -> None:
        import jax

        super().__init__(owner, bound, arrays)
        self.jax, self.ready = jax, ready
        try:
            self.outputs = owner.pool.take()
        except MemoryError as error:
            raise OutOfMemory(f"this launch ({_dims(bound)}) finds no memory for its results: {error}") from error
        self.arenas: dict[Place, Any] = {**owner.temps, **self.outputs.arenas}

    def rebound(self) -> None:
        self.ready = self.owner._made_ready(self.bound)

    def run(self) -> list[Any]:
        owner = self.owner
        self._stage()
        with self.jax.enable_x64(True):
            try:
                self.steps(owner.plan)
                parts = self.ready.parts(self.bound, owner._returned)
                room = results.room(self.outputs, parts, self.ready.total)
                self._finish()
                owner.temps = {k: self.arenas[k] for k in owner.temps}
                self.outputs.arenas = {k: self.arenas[k] for k in self.outputs.arenas}
            except BaseException:
                owner.temps = {k: device_arena(n, k[1]) for k, n in owner.capacity.items() if k[0] in TEMP_BANKS}
                raise
        self.ready.capacity = owner.capacity
        return results.hand_out(self.outputs, owner.pool, parts, self.ready.total, room)

    def _finish(self) -> None:
        """Waits for all that is being computed."""
        for place, arena in self.arenas.items():
            if place[0] != INPUT:
                arena.block_until_ready()

    def _stage(self) -> None:
        """Makes arenas of the inputs of symbolic shape: large ones are read where they lie, if no block reaches past their ends; others
        are copied."""
        owner = self.owner
        for place, number in owner._staged:
            source = np.asarray(self.arrays[number])
            if source.nbytes >= IN_PLACE and place in owner.exact_inputs(self.bound):
                found = owner.array_in_place(place, source)
                if found is not None:
                    self.arenas[place] = found
                    continue
            staging = owner.staging.get(place)
            if staging is None:
                staging = owner.staging[place] = Staging(owner.capacity[place[0], place[1]], place[1])
            self.arenas[place] = staging.device
            known = self.ready.staged.get(place)
            if known is None or known[0] is not staging:  # memory has grown since
                target = np.ndarray(source.shape, source.dtype, staging.bytes)
                known = self.ready.staged[place] = staging, target
            copy_into(known[1], source)

    def unit(self, unit: Unit) -> None:
        owner = self.owner
        code = unit.code
        if code is None:
            if owner._signature(unit) not in owner.code:
                owner._compile_all(self.bound.skipped)
            code = unit.code = owner._compile(unit)
        if code is APART:
            for single in unit.singles():
                self.unit(single)
            return
        index = unit.parts[0].index
        scalars = self.ready.scalars.get(index)
        if scalars is None:
            scalars = on_device(np.concatenate([*map(self._scalars, unit.parts), ONE]))
            self.ready.scalars[index] = scalars
        pinned = self._pinned(unit)
        arenas, places = self.arenas, unit.places
        stored = code(
            scalars, pinned, [arenas[places[n]] for n in unit.read], [arenas[places[n]] for n in unit.written]
        )
        for n, arena in zip(unit.written, stored, strict=True):
            arenas[places[n]] = arena

    def _pinned(self, unit: Unit) -> list[Any]:
        """The arrays that a unit's code takes as arguments."""
        sources = unit.arguments
        if sources is None:
            sources = unit.arguments = [
                self.owner.argument(b, p) for b, p in zip(unit.pinned, unit.packings, strict=True)
            ]
        arrays, device_array = self.arrays, array_type()
        out = []
        for number, order, b in sources:
            if number is None:
                out.append(self.owner.constant(b, order))
                continue
            array = arrays[number]
            if type(array) is not device_array:
                array = self.input(array, order)
            elif order is not None:
                array = packing.packed.get(array, order)
            out.append(array)
        return out

    def _scalars(self, part: Segment) -> np.ndarray:
        out = part.table.fill(self.bound.kernel_words(part.index))
        out[part.inputs] = 0
        return out

    def pinned(self, b: int, order: Packing | None = None) -> Any:
        """An array that code takes as an argument: a constant, or an input of fixed shape."""
        number, order, constant = self.owner.argument(b, order)
        if number is None:
            return self.owner.constant(constant, order)
        array = self.arrays[number]
        if isinstance(array, self.jax.Array):
            return array if order is None else packing.packed.get(array, order)
        return self.input(array, order)

    def input(self, array: Any, order: Packing | None) -> Any:
        """An input of fixed shape that is no array on the device, put there."""
        if order is not None:
            return packing.on_device(np.asarray(array), order)
        return self.jax.device_put(np.asarray(array), self.jax.devices("cpu")[0])

    # --- buffers from the host side -----------------------------------------------------------------------------------------------
    def _memory(self, b: int) -> np.ndarray:
        """A writable view of a buffer's memory; waits for what is being computed."""
        buffer = self.program.buffers[b]
        dtype = dtype_of(buffer.dtype)
        item = min(8, dtype.itemsize)
        if buffer.offset is None:
            return np.asarray(self.pinned(b)).reshape(self.bound.shape(b))
        if buffer.space == INPUT:
            assert buffer.input is not None
            return np.asarray(self.arrays[buffer.input]).reshape(self.bound.shape(b))
        arena = self.arenas[buffer.space, item]
        arena.block_until_ready()
        region = Region(arena.unsafe_buffer_pointer(), arena.nbytes, arena)
        return region.view(self.bound.regs[buffer.offset] * LANES * item, self.bound.shape(b), dtype)

    def read(self, b: int) -> np.ndarray:
        """A buffer's contents."""
        return self._memory(b)

    def write(self, b: int, value: np.ndarray) -> None:
        """Overwrites a buffer. Kernels that still read its old contents show in no arena but their own: all are waited for."""
        self._finish()
        self._memory(b)[...] = value


def _dims(bound: BoundProgram) -> str:
    return ", ".join(f"{k}={v}" for k, v in bound.dims.items())
