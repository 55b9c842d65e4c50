"""The reference executor: NumPy, a tile and a core at a time, local memories as bytes, real pipes and events.

It is slow and it is the definition of the instruction set. Whatever a chip would get wrong only sometimes ends in a ``Hazard`` here: an
access that is not ordered after one that it depends on, a wait for an event that nobody sets, an access outside a buffer or a memory, a
read of what nobody has written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vm import counters, host, stacking
from vm.binder import Binder, BoundProgram, NumberedStep
from vm.chip import Chip
from vm.decode import Kernel, decode
from vm.dtypes import dtype_of, item_size
from vm.errors import Hazard, OutOfMemory, ProgramError
from vm.program import (
    INPUT,
    LANES,
    PINNED,
    TEMP_BANKS,
    WRITABLE,
    CondStep,
    ForStep,
    HostStep,
    KernelStep,
    Program,
    WhileStep,
)
from vm.program.lifetimes import lifetimes
from vm.program.stages import stage_numbers
from vm.reference_core import Cores, Region, run_stage
from vm.reference_memory import NOBODY, Arena

Key = tuple[int, int]  # (space, item size)


def run(
    program: Program, bound: BoundProgram, arrays: Sequence[Any], chip: Chip | None = None, cores: int | None = None
) -> list[np.ndarray]:
    """The program's outputs for these inputs. ``chip`` and the number of ``cores`` default to the program's. ``Hazard`` for faults."""
    return Reference(program, chip, cores).launch(bound, arrays)


class Reference:
    """A program on the reference executor."""

    def __init__(
        self, program: Program, chip: Chip | None = None, cores: int | None = None, binder: Binder | None = None
    ) -> None:
        self.program, self.chip, self.cores = program, chip or Chip.load(program.chip), cores
        self.binder = binder or Binder(program)
        self.steps = self.binder.steps
        self.kernels: dict[int, Kernel] = {}
        self.stages = stage_numbers(program)
        self.dead_after = self._dead_after()

    def launch(self, bound: BoundProgram, arrays: Sequence[Any]) -> list[np.ndarray]:
        """One launch with flat inputs; every result is an array of its own."""
        return _Launch(self, bound, arrays).run()

    def kernel(self, template: int) -> Kernel:
        """A template, decoded once."""
        if template not in self.kernels:
            self.kernels[template] = decode(self.program.templates[template])
        return self.kernels[template]

    def _dead_after(self) -> dict[NumberedStep, list[int]]:
        """The temporaries whose lifetimes end with a step (of a stage, its last kernel). The steps alone say so: where the compiler put
        the buffers plays no part."""
        program = self.program
        ends: dict[int, list[int]] = {}
        for b, (_, last) in lifetimes(program.steps, program.buffers, program.stages).spans.items():
            if program.buffers[b].space in TEMP_BANKS:
                ends.setdefault(last, []).append(b)
        found: dict[NumberedStep, list[int]] = {}

        def walk(block: Sequence[NumberedStep], position: int) -> int:
            for stage in stacking.together(block, self.stages):
                if stage[0].blocks:
                    position += 1
                    for inner in stage[0].blocks:
                        position = walk(inner, position)
                found[stage[-1]] = ends.get(position, [])
                position += 1
            return position

        walk(self.steps, 0)
        return found


class Executable:
    """The reference executor behind the interface of ``vm.runtime.Executable``."""

    def __init__(self, program: Program) -> None:
        self.program, self.binder = program, Binder(program)
        self.machine = Reference(program, binder=self.binder)

    def bind(self, arrays: Sequence[Any]) -> BoundProgram:
        """The program at the sizes of flat inputs, which are checked."""
        return self.binder.bind_sizes(self.binder.check_inputs(arrays))

    def launch(self, arrays: Sequence[Any], bound: BoundProgram | None = None) -> list[np.ndarray]:
        """Runs the program on flat inputs; ``bound`` is what ``bind`` gave for them."""
        bound = self.bind(arrays) if bound is None else bound
        total = sum(rows * LANES * item for (_, item), rows in bound.arena_rows.items())
        chip = self.machine.chip
        if total > chip.hbm_bytes:
            raise OutOfMemory(f"this launch needs {total:,} bytes of device memory; {chip.name} has {chip.hbm_bytes:,}")
        counters.add("launches")
        try:
            return self.machine.launch(bound, arrays)
        except MemoryError as error:
            raise OutOfMemory(f"this launch needs {total:,} bytes of memory: {error}") from error

    def reserve(self, symbols: Mapping[str, int]) -> None:
        """Memory is allocated for each launch."""

    def wait(self) -> None:
        """Nothing happens in the background."""


class _Launch:
    def __init__(self, owner: Reference, bound: BoundProgram, arrays: Sequence[Any]) -> None:
        self.owner, self.program, self.bound = owner, owner.program, bound
        self.arrays = [np.asarray(a) for a in arrays]
        self.arenas: dict[Key, Arena] = {
            key: Arena(rows * LANES, key[1]) for key, rows in sorted(bound.arena_rows.items())
        }
        self.pinned: dict[int, Arena] = {}

    def run(self) -> list[np.ndarray]:
        for b, buffer in enumerate(self.program.buffers):
            if buffer.space == INPUT and buffer.input is not None:
                self.write(b, self.arrays[buffer.input])
        self.walk(self.owner.steps)
        out: list[Any] = [None] * len(self.program.outputs)
        for b, buffer in enumerate(self.program.buffers):
            if buffer.output is not None:
                out[buffer.output] = self.read(b).reshape(self.bound.output_shapes[buffer.output]).copy()
        return out

    def walk(self, steps: Sequence[NumberedStep]) -> None:
        for stage in stacking.together(steps, self.owner.stages):
            numbered, step = stage[0], stage[0].step
            if isinstance(step, KernelStep):
                run_stage([self.prepared(one) for one in stage if one.index not in self.bound.skipped])
            elif isinstance(step, HostStep):
                self.host(step, numbered.index)
            elif isinstance(step, CondStep):
                index = int(self.read(step.selector).reshape(())[()])
                self.walk(numbered.blocks[min(max(index, 0), len(numbered.blocks) - 1)])
            elif isinstance(step, WhileStep):
                test, body = numbered.blocks
                self.walk(test)
                while bool(self.read(step.predicate).reshape(())[()]):
                    self.walk(body)
                    self.walk(test)
            elif isinstance(step, ForStep):
                count = self.bound.regs[step.count]
                for k in range(count):
                    self.write(step.counter, np.asarray(count - 1 - k if step.reverse else k, np.int32))
                    self.walk(numbered.blocks[0])
            for b in [b for b in self.owner.dead_after[stage[-1]] if b not in self.bound.idle]:
                arena, items, _ = self._bytes(b)
                arena.free(items)

    def prepared(self, numbered: NumberedStep) -> tuple[Cores, np.ndarray, list[Region]]:
        """A kernel with its bound words and buffers."""
        step, index = numbered.step, numbered.index
        assert isinstance(step, KernelStep)
        kernel = self.owner.kernel(step.template)
        name = step.name or self.program.templates[step.template].name or str(index)
        cores = Cores(name, kernel, self.owner.chip, self.owner.cores)
        return cores, self.bound.kernel_words(index), [self.region(b) for b in step.buffers]

    def host(self, step: HostStep, index: int) -> None:
        results = host.call(step.function, [self.read(b) for b in step.inputs], self.bound.host_attrs[index])
        if self.bound.unknown:
            self.bound = self.owner.binder.after_host(self.bound, step, results)
        for b, value in zip(step.outputs, results, strict=True):
            if tuple(np.shape(value)) != self.bound.shape(b):
                raise ProgramError(
                    f"host function {step.function!r} gave shape {np.shape(value)}, expected {self.bound.shape(b)}"
                )
            self.write(b, np.asarray(value))

    # --- buffers ------------------------------------------------------------------------------------------------------------------
    def region(self, b: int) -> Region:
        """Where a buffer lies."""
        buffer = self.program.buffers[b]
        elements, dtype = self.bound.regs[buffer.elements], dtype_of(buffer.dtype)
        name = f"buffer {b}{f' ({buffer.name})' if buffer.name else ''}"
        if buffer.space == PINNED or buffer.offset is None:
            return Region(self._read_only(b), 0, elements, dtype, False, name)
        arena, writable = self.arenas[buffer.space, item_size(buffer.dtype)], buffer.space in WRITABLE
        start = self.bound.regs[buffer.offset] * LANES
        return Region(arena, start, elements, dtype, writable, name, self._owner(b) if writable else NOBODY)

    def _owner(self, b: int) -> int:
        alias = self.program.buffers[b].alias
        return b if alias is None else alias

    def _read_only(self, b: int) -> Arena:
        if b not in self.pinned:
            buffer = self.program.buffers[b]
            source = (
                self.arrays[buffer.input or 0] if buffer.constant is None else self.program.constants[buffer.constant]
            )
            data = np.ascontiguousarray(source).reshape(-1)
            arena = self.pinned[b] = Arena(0, min(8, data.dtype.itemsize))
            arena.data = data.view(np.uint8)
            arena.written = np.ones(data.nbytes // arena.item, bool)
        return self.pinned[b]

    def _bytes(self, b: int) -> tuple[Arena, slice, slice]:
        region = self.region(b)
        items = math.prod(self.bound.shape(b)) * region.dtype.itemsize // region.arena.item
        place = slice(region.start, region.start + items)
        return region.arena, place, slice(place.start * region.arena.item, place.stop * region.arena.item)

    def read(self, b: int) -> np.ndarray:
        """A buffer's contents, for the host."""
        arena, items, place = self._bytes(b)
        owner = self._owner(b) if self.program.buffers[b].space in WRITABLE else NOBODY
        if not arena.defined(items, owner).all():
            what = f"buffer {b} ({self.program.buffers[b].name}) is read by the host and has elements that nothing has written"
            raise Hazard("uninitialised read", "", 0, what)
        return arena.data[place].copy().view(dtype_of(self.program.buffers[b].dtype)).reshape(self.bound.shape(b))

    def write(self, b: int, value: np.ndarray) -> None:
        """Overwrites a buffer from the host."""
        arena, items, _ = self._bytes(b)
        arena.put(items, np.ascontiguousarray(value).reshape(-1), self._owner(b))
