"""Launching a program: sizes are bound, inputs staged, steps run, results handed out as views.

Consecutive kernel steps form *segments*. A segment is one XLA executable that runs its kernels one after the other; runs that repeat (the
layers of a model) share one, so compile time does not grow with depth. Host steps and control flow run between segments.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vm import counters, host
from vm.binder import Binder, BoundProgram, NumberedStep
from vm.chip import Chip
from vm.dtypes import dtype_of
from vm.errors import DvmError, OutOfMemory, ProgramError, ShapeError
from vm.memory import Key, Lease, OutputSet, Pool, Region, Staging, capacity_class, device_arena
from vm.program import (
    INPUT,
    LANES,
    OUTPUT,
    PINNED,
    TEMP,
    CondStep,
    ForStep,
    HostStep,
    KernelStep,
    Program,
    WhileStep,
)

EAGER_LIMIT = 4 << 30  # bytes of arenas that declared maxima may reserve without being asked


@dataclass(eq=False)
class Segment:
    """Consecutive kernel steps that run as one executable. ``first`` numbers the first among all kernel steps."""

    steps: list[KernelStep]
    first: int
    pinned: list[int]  # buffers passed as arguments, in order
    signature: tuple[Any, ...]


class Executable:
    """A program on the machine. ``launch`` takes and returns flat lists of arrays; thread-safe (launches are serialised)."""

    def __init__(self, program: Program, tier: str = "auto") -> None:
        if tier not in ("auto", "specialised"):
            raise DvmError(f"tier {tier!r} is not built yet; use 'auto' or 'specialised'")
        self.program = program
        self.binder = Binder(program)
        self.lock = threading.RLock()
        self.chip = Chip.load(program.chip)
        self.capacity: dict[Key, int] = {}
        self.code: dict[tuple[Any, ...], Any] = {}
        self.staging: dict[Key, Staging] = {}
        self.temps: dict[Key, Any] = {}
        self.pool = Pool(self._new_outputs)
        self.plan = self._segments(self.binder.steps)
        self.constants: dict[int, Any] = {}
        self._host_seen: dict[int, tuple[Any, Any]] = {}
        self._reserve_maxima()

    # --- capacity -----------------------------------------------------------------------------------------------------------------
    def reserve(self, symbols: Mapping[str, int]) -> None:
        """Sizes the arenas for these symbol values and compiles for them."""
        values = []
        for s in self.program.symbols:
            value = symbols.get(s.name, s.max)
            if value is None:
                raise ShapeError(f"reserve needs a value for {s.name!r}, which has no maximum")
            values.append(value)
        with self.lock:
            self._grow(self._rows_at(tuple(values)))
            self._compile_all()

    def _rows_at(self, symbols: tuple[int, ...]) -> dict[Key, int]:
        regs = self.program.code.run(symbols)
        return {key: max(regs[reg], 0) for key, reg in self.program.arena_rows.items()}

    def _reserve_maxima(self) -> None:
        highest = [s.max for s in self.program.symbols]
        if any(h is None for h in highest):
            return
        rows = self._rows_at(tuple(h for h in highest if h is not None))
        if sum(r * LANES * item for (_, item), r in rows.items()) > min(EAGER_LIMIT, self.chip.hbm_bytes):
            return
        self._grow(rows)
        self._compile_all()

    def _grow(self, rows: Mapping[Key, int]) -> bool:
        """Raises capacities to hold ``rows``; True if code has to be compiled anew."""
        changed = False
        for key in sorted(self.program.arena_rows):
            need = capacity_class(rows.get(key, 0))
            if need > self.capacity.get(key, 0):
                self.capacity[key] = need
                changed = True
        if changed:
            total = sum(n * LANES * item for (_, item), n in self.capacity.items())
            if self.temps or self.code:
                counters.add("arena_growths")
            self.code.clear()
            self.staging = {k: Staging(n, k[1]) for k, n in self.capacity.items() if k[0] == INPUT}
            self.temps = {k: device_arena(n, k[1]) for k, n in self.capacity.items() if k[0] == TEMP}
            self.pool = Pool(self._new_outputs)
            counters.add("arena_bytes", total)
        return changed

    def _new_outputs(self) -> OutputSet:
        return OutputSet({k: device_arena(n, k[1]) for k, n in self.capacity.items() if k[0] == OUTPUT})

    def _admit(self, bound: BoundProgram) -> None:
        total = sum(r * LANES * item for (_, item), r in bound.arena_rows.items())
        if total > self.chip.hbm_bytes:
            raise OutOfMemory(
                f"this launch ({_dims(bound)}) needs {total:,} bytes of device memory; {self.chip.name} has {self.chip.hbm_bytes:,}"
            )
        if any(r > self.capacity.get(k, 0) for k, r in bound.arena_rows.items()):
            try:
                self._grow(bound.arena_rows)
            except MemoryError as error:
                self.capacity = {k: 0 for k in self.capacity}
                raise OutOfMemory(f"this launch ({_dims(bound)}) needs {total:,} bytes of memory: {error}") from error

    # --- segments and their code -------------------------------------------------------------------------------------------------
    def _segments(self, steps: Sequence[NumberedStep]) -> list[Segment | NumberedStep]:
        out: list[Segment | NumberedStep] = []
        run: list[NumberedStep] = []
        for step in steps:
            if isinstance(step.step, KernelStep):
                run.append(step)
                continue
            out += self._split(run)
            run = []
            out.append(step)
        return out + self._split(run)

    def _split(self, run: list[NumberedStep]) -> list[Segment | NumberedStep]:
        """Cuts a run of kernels where a part repeats, so that the part is compiled once."""
        signs = [self._sign(s.step) for s in run if isinstance(s.step, KernelStep)]
        at = 0
        bounds: list[tuple[int, int]] = []
        begin = 0
        while at < len(run):
            period, times = _repetition(signs, at)
            if times >= 2:
                if begin < at:
                    bounds.append((begin, at))
                bounds += [(at + k * period, at + (k + 1) * period) for k in range(times)]
                at += period * times
                begin = at
            else:
                at += 1
        if begin < len(run):
            bounds.append((begin, len(run)))
        return [self._segment(run[a:b]) for a, b in bounds]

    def _sign(self, step: KernelStep) -> tuple[Any, ...]:
        """What a step's code depends on besides its template: the kinds of its buffers."""
        kinds = []
        for b in step.buffers:
            buffer = self.program.buffers[b]
            kinds.append((buffer.space, buffer.dtype, self._fixed_shape(b) if buffer.space == PINNED else ()))
        return (step.template, tuple(kinds))

    def _fixed_shape(self, b: int) -> tuple[int, ...]:
        """The shape of a pinned array as it is passed (an alias passes its source's array)."""
        buffer = self.program.buffers[b]
        if buffer.constant is not None:
            return tuple(self.program.constants[buffer.constant].shape)
        assert buffer.input is not None
        return tuple(int(t) for t in self.program.inputs[buffer.input].text)

    def _segment(self, run: list[NumberedStep]) -> Segment:
        steps = [s.step for s in run if isinstance(s.step, KernelStep)]
        pinned: dict[Any, int] = {}
        places = []
        for step in steps:
            for b in step.buffers:
                if self.program.buffers[b].space == PINNED:
                    source = self._source(b)
                    places.append(pinned.setdefault(source, len(pinned)))
        first_of: dict[int, int] = {}
        for step in steps:
            for b in step.buffers:
                if self.program.buffers[b].space == PINNED:
                    first_of.setdefault(pinned[self._source(b)], b)
        signature = (tuple(self._sign(s) for s in steps), tuple(places))
        return Segment(steps, run[0].index, [first_of[i] for i in range(len(pinned))], signature)

    def _source(self, b: int) -> tuple[str, int]:
        buffer = self.program.buffers[b]
        return ("constant", buffer.constant) if buffer.constant is not None else ("input", buffer.input or 0)

    def _compile(self, segment: Segment) -> Any:
        found = self.code.get(segment.signature)
        if found is not None:
            return found
        import jax

        from vm import specialised

        program, steps = self.program, segment.steps
        place = {self._source(b): i for i, b in enumerate(segment.pinned)}
        refs = [
            [
                specialised.BufferRef(
                    program.buffers[b].space,
                    dtype_of(program.buffers[b].dtype),
                    place[self._source(b)] if program.buffers[b].space == PINNED else None,
                )
                for b in step.buffers
            ]
            for step in steps
        ]
        lengths = [len(program.templates[s.template].words) for s in steps]

        def run(words: Any, pinned: list[Any], inputs: dict, temps: dict, outputs: dict) -> tuple[dict, dict]:
            arenas = {**inputs, **temps, **outputs}
            at = 0
            for step, buffers, n in zip(steps, refs, lengths, strict=True):
                template = program.templates[step.template]
                arenas = specialised.trace(template, words[at : at + n], buffers, pinned, arenas)
                at += n
            return {k: arenas[k] for k in temps}, {k: arenas[k] for k in outputs}

        with jax.enable_x64(True):
            struct = jax.ShapeDtypeStruct
            words = struct((sum(lengths),), np.uint64)
            pinned = [struct(self._fixed_shape(b), dtype_of(program.buffers[b].dtype)) for b in segment.pinned]
            inputs, temps, outputs = (
                {k: self._arena_struct(k) for k in self.capacity if k[0] == space} for space in (INPUT, TEMP, OUTPUT)
            )
            compiled = jax.jit(run, donate_argnums=(3, 4), device=jax.devices("cpu")[0]) if False else jax.jit(run, donate_argnums=(3, 4))
            code = compiled.lower(words, pinned, inputs, temps, outputs).compile()
        counters.add("specialised_compiles")
        self.code[segment.signature] = code
        return code

    def _arena_struct(self, key: Key) -> Any:
        import jax

        from vm.specialised import ARENA_DTYPES, SLACK_ROWS

        return jax.ShapeDtypeStruct((self.capacity[key] + SLACK_ROWS, LANES), ARENA_DTYPES[key[1]])

    def _compile_all(self) -> None:
        def visit(items: Sequence[Segment | NumberedStep]) -> None:
            for item in items:
                if isinstance(item, Segment):
                    self._compile(item)
                else:
                    for block in self._blocks(item):
                        visit(block)

        visit(self.plan)

    def _blocks(self, step: NumberedStep) -> list[list[Segment | NumberedStep]]:
        cache = self.__dict__.setdefault("_block_plans", {})
        if step not in cache:
            cache[step] = [self._segments(block) for block in step.blocks]
        return cache[step]

    def wait(self) -> None:
        """Waits for background work (there is none in this tier)."""

    # --- launching ----------------------------------------------------------------------------------------------------------------
    def launch(self, arrays: Sequence[Any]) -> list[Any]:
        """Runs the program on flat inputs (NumPy or JAX arrays of the declared dtypes); results are NumPy views of device memory."""
        bound = self.binder.bind_sizes(self.binder.check_inputs(arrays))
        with self.lock:
            counters.add("launches")
            return _Launch(self, bound, arrays).run()

    def constant(self, index: int) -> Any:
        """A constant on the device, put there once."""
        found = self.constants.get(index)
        if found is None:
            import jax

            with jax.enable_x64(True):
                found = self.constants[index] = jax.device_put(self.program.constants[index], jax.devices("cpu")[0])
        return found


class _Launch:
    """One launch: the state that its steps share."""

    def __init__(self, owner: Executable, bound: BoundProgram, arrays: Sequence[Any]) -> None:
        import jax

        self.jax, self.owner, self.bound, self.arrays, self.program = jax, owner, bound, arrays, owner.program
        owner._admit(bound)
        self.outputs = owner.pool.take()
        self.inputs = {k: s.device for k, s in owner.staging.items()}

    def run(self) -> list[Any]:
        owner = self.owner
        self._stage()
        with self.jax.enable_x64(True):
            try:
                self.steps(owner.plan)
                self.jax.block_until_ready((list(owner.temps.values()), list(self.outputs.arenas.values())))
            except BaseException:
                owner.temps = {k: device_arena(n, k[1]) for k, n in owner.capacity.items() if k[0] == TEMP}
                raise
        return self._results()

    def _stage(self) -> None:
        """Copies inputs of symbolic shape into the input arenas."""
        for b in self.program.buffers:
            if b.space != INPUT or b.input is None or b.offset is None:
                continue
            dtype = dtype_of(b.dtype)
            item = min(8, dtype.itemsize)
            staging = self.owner.staging[INPUT, item]
            source = np.asarray(self.arrays[b.input])
            start = self.bound.regs[b.offset] * LANES * item
            n = source.size * dtype.itemsize
            if n:
                staging.bytes[start : start + n].view(dtype).reshape(source.shape)[...] = source

    def steps(self, items: Sequence[Segment | NumberedStep]) -> None:
        for item in items:
            if isinstance(item, Segment):
                self.segment(item)
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

    def segment(self, segment: Segment) -> None:
        owner = self.owner
        code = owner._compile(segment)
        starts = self.bound.starts
        words = self.bound.words[starts[segment.first] : starts[segment.first + len(segment.steps)]]
        pinned = [self.pinned(b) for b in segment.pinned]
        owner.temps, self.outputs.arenas = code(words, pinned, self.inputs, owner.temps, self.outputs.arenas)

    def pinned(self, b: int) -> Any:
        buffer = self.program.buffers[b]
        if buffer.constant is not None:
            return self.owner.constant(buffer.constant)
        assert buffer.input is not None
        array = self.arrays[buffer.input]
        if isinstance(array, self.jax.Array):
            return array
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
            memory: Any = self.owner.staging[INPUT, item].bytes
            start = self.bound.regs[buffer.offset] * LANES * item
            shape = self.bound.shape(b)
            n = int(np.prod(shape)) * dtype.itemsize
            return memory[start : start + n].view(dtype).reshape(shape)
        arena = (self.owner.temps if buffer.space == TEMP else self.outputs.arenas)[buffer.space, item]
        arena.block_until_ready()
        region = Region(arena.unsafe_buffer_pointer(), arena.nbytes, arena)
        return region.view(self.bound.regs[buffer.offset] * LANES * item, self.bound.shape(b), dtype)

    def read(self, b: int) -> np.ndarray:
        """A buffer's contents."""
        return self._memory(b)

    def write(self, b: int, value: np.ndarray) -> None:
        """Overwrites a buffer."""
        self._memory(b)[...] = value

    def host(self, step: HostStep, index: int) -> None:
        inputs = [self.read(b) for b in step.inputs]
        results = host.call(step.function, inputs, self.bound.host_attrs[index])
        for b, value in zip(step.outputs, results, strict=True):
            if tuple(np.shape(value)) != self.bound.shape(b):
                raise ProgramError(f"host function {step.function!r} gave shape {np.shape(value)}, expected {self.bound.shape(b)}")
            self.write(b, value)

    # --- results ------------------------------------------------------------------------------------------------------------------
    def _results(self) -> list[Any]:
        lease = Lease(self.outputs, self.owner.pool.give)
        out: list[Any] = [None] * len(self.program.outputs)
        regions: dict[int, Region] = {}
        for b, buffer in enumerate(self.program.buffers):
            if buffer.output is None:
                continue
            assert buffer.offset is not None
            dtype = dtype_of(buffer.dtype)
            item = min(8, dtype.itemsize)
            shape = self.bound.output_shapes[buffer.output]
            if item not in regions:
                arena = self.outputs.arenas[OUTPUT, item]
                regions[item] = Region(arena.unsafe_buffer_pointer(), arena.nbytes, lease)
            out[buffer.output] = regions[item].view(self.bound.regs[buffer.offset] * LANES * item, shape, dtype)
        return out


def _repetition(signs: Sequence[Any], at: int) -> tuple[int, int]:
    """The shortest period with which ``signs`` repeats from ``at`` on, and how many times (1: not at all)."""
    left = len(signs) - at
    for period in range(1, min(left // 2, 64) + 1):
        times = 1
        while at + (times + 1) * period <= len(signs) and signs[at : at + period] == signs[at + times * period : at + (times + 1) * period]:
            times += 1
        if times >= 2 and period * times >= 6:
            return period, times
    return 1, 1


def _dims(bound: BoundProgram) -> str:
    return ", ".join(f"{k}={v}" for k, v in bound.dims.items())
