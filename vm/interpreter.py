"""Launching a program through the interpreter's image: no XLA compile, whatever the program and its sizes.

The interpreter has device memory of its own: two flat arenas of carrier words (``vm.interpreter_ops``), 32-bit and 64-bit ones. A program's
pinned arrays stand first, then its arenas one after the other. Kernels that follow each other without host work between them run as one
table in one call.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from vm import counters, interpreter_image
from vm import interpreter_code as ic
from vm import interpreter_ops as io
from vm.binder import BoundProgram
from vm.dtypes import dtype_of
from vm.errors import OutOfMemory
from vm.interpreter_code import Code, Place
from vm.memory import Key, Region, copies, copy_into
from vm.program import INPUT, LANES, PINNED, Program

if TYPE_CHECKING:
    from vm.binder import Binder
    from vm.runtime import Executable
    from vm.units import Segment


class Interpreter:
    """One program's memory in front of the image. Not thread-safe: the owner serialises launches."""

    def __init__(self, program: Program, binder: Binder) -> None:
        self.program, self.binder = program, binder
        self.sizes = (0, 0)
        self.image: Any = None
        self.memory: list[Any] = []  # code, table, gm, gm64, lm, lm64
        self.loaded: Any = None  # the table that stands in code and table memory
        self.held: dict[int, Any] = {}  # pinned input -> the jax.Array that stands in memory
        self.constants_ready = False
        self.codes: WeakKeyDictionary[BoundProgram, dict[tuple[int, ...], list[Code]]] = WeakKeyDictionary()
        self.planned: WeakKeyDictionary[BoundProgram, dict[Hashable, tuple[Code, list[Place]]]] = WeakKeyDictionary()
        self._pinned_starts, self._pinned_words = self._lay_out_pinned()

    # --- memory -------------------------------------------------------------------------------------------------------------------
    def _lay_out_pinned(self) -> tuple[dict[tuple[str, int], int], tuple[int, int]]:
        """First words of pinned arrays by source, and how many words they take in each memory."""
        starts: dict[tuple[str, int], int] = {}
        used = [0, 0]
        for buffer in self.program.buffers:
            if buffer.space != PINNED:
                continue
            source = source_of(buffer)
            if source not in starts:
                dtype = dtype_of(buffer.dtype)
                wide = dtype.itemsize >= 8
                starts[source] = used[wide]
                n = math.prod(self._pinned_shape(buffer)) * (dtype.itemsize // 8 if wide else 1)
                used[wide] += -(-n // LANES) * LANES
        return starts, (used[0], used[1])

    def _pinned_shape(self, buffer: Any) -> tuple[int, ...]:
        if buffer.constant is not None:
            return tuple(self.program.constants[buffer.constant].shape)
        return tuple(int(t) for t in self.program.inputs[buffer.input].text)

    def bases(self, rows: Mapping[Key, int]) -> tuple[dict[Key, int], tuple[int, int]]:
        """First words of the program's arenas, and the words of each memory, for arenas of so many lane rows."""
        used = list(self._pinned_words)
        starts: dict[Key, int] = {}
        for key in sorted(self.program.arena_rows):
            wide = key[1] == 8
            starts[key] = used[wide]
            used[wide] += rows.get(key, 0) * LANES
        return starts, (used[0], used[1])

    def classes(self, rows: Mapping[Key, int]) -> tuple[int, int]:
        """The image's classes for these arenas: what memory has, or more."""
        _, words = self.bases(rows)
        a, b = (max(have, interpreter_image.capacity(n)) for have, n in zip(self.sizes, words, strict=True))
        return max(a, interpreter_image.FIRST_CLASS), b

    def smallest(self) -> tuple[int, int]:
        """The classes that every launch needs at least."""
        return interpreter_image.classes(*self._pinned_words)

    def ready(self, rows: Mapping[Key, int] | None) -> bool:
        """Whether a launch with these arenas (None: with the least ones) needs no compile."""
        sizes = self.smallest() if rows is None else self.classes(rows)
        return (sizes == self.sizes and self.image is not None) or interpreter_image.cached(*sizes)

    def prepare(self, rows: Mapping[Key, int]) -> None:
        """Memory and image for these arenas."""
        sizes = self.classes(rows)
        if self.image is None or sizes != self.sizes:
            self.image = interpreter_image.compiled(*sizes)
            self.sizes = sizes
            self._allocate()
            counters.add("interpreter_bytes", sizes[0] * 4 + sizes[1] * 8)

    def _allocate(self) -> None:
        import jax

        self.memory, self.loaded, self.held, self.constants_ready = [], None, {}, False
        try:
            with jax.enable_x64(True):
                device = jax.devices("cpu")[0]
                self.memory = [
                    jax.device_put(np.zeros(shape, dtype), device, may_alias=False)
                    for shape, dtype in interpreter_image.shapes(*self.sizes)
                ]
                jax.block_until_ready(self.memory)
        except (MemoryError, RuntimeError) as error:
            raise OutOfMemory(f"the interpreter finds no memory for {self.sizes} words: {error}") from error

    def words(self, which: int) -> np.ndarray:
        """A writable view of one of the image's memories; nothing may be running."""
        array = self.memory[which]
        return (
            np.asarray(Region(array.unsafe_buffer_pointer(), array.nbytes, array))
            .view(array.dtype)
            .reshape(array.shape)
        )

    def buffer_words(self, b: int, bound: BoundProgram, starts: Mapping[Key, int]) -> np.ndarray:
        """A buffer's words, flat."""
        place, n = self.place(b, bound, starts), math.prod(bound.shape(b))
        n *= place.dtype.itemsize // 8 if place.wide else 1
        return self.words(3 if place.wide else 2)[place.start : place.start + n]

    def place(self, b: int, bound: BoundProgram, starts: Mapping[Key, int]) -> Place:
        """Where a buffer lies."""
        buffer = self.program.buffers[b]
        dtype = dtype_of(buffer.dtype)
        wide = dtype.itemsize >= 8
        if buffer.offset is None:
            return Place(self._pinned_starts[source_of(buffer)], wide, dtype)
        return Place(starts[buffer.space, min(8, dtype.itemsize)] + bound.regs[buffer.offset] * LANES, wide, dtype)

    # --- code ---------------------------------------------------------------------------------------------------------------------
    def code(self, segments: Sequence[Segment], bound: BoundProgram, starts: Mapping[Key, int]) -> list[Code]:
        """Tables for kernels that follow each other, as few as fit the image."""
        known = self.codes.setdefault(bound, {})
        key = tuple(s.index for s in segments)
        if key not in known:
            known[key] = _joined([self._planned(s, bound, starts) for s in segments])
        return known[key]

    def _planned(self, segment: Segment, bound: BoundProgram, starts: Mapping[Key, int]) -> Code:
        """A kernel's table. Of kernels that differ only in where their buffers lie, as in equal layers, one is planned."""
        step = segment.step
        places = [self.place(b, bound, starts) for b in step.buffers]
        planned = self.planned.setdefault(bound, {})
        key = (step.template, bound.values(step.params), tuple((p.wide, p.dtype) for p in places))
        if key not in planned:
            counters.add("interpreter_plans")
            planned[key] = (ic.plan(segment.kernel, bound.kernel_words(segment.index), places), places)
        code, first = planned[key]
        return code if first is places else code.moved(first, places)

    def run(self, codes: Sequence[Code]) -> None:
        """Runs tables one after the other."""
        import jax

        for code in codes:
            if self.loaded is not code:
                n = len(code.rows)
                self.words(0)[:n] = code.rows
                self.words(0)[n] = 0
                self.words(1)[: len(code.table)] = code.table
                self.loaded = code
            counters.add("interpreter_calls")
            self.memory[2:] = self.image(*self.memory)
            jax.block_until_ready(self.memory[2:])


def _joined(parts: Sequence[Code]) -> list[Code]:
    """Tables one after the other, split where they exceed the image's memories. Codes that are moved share their table memory."""
    out: list[list[Code]] = []
    rows = words = 0
    tables: set[Code] = set()
    for part in parts:
        more = 0 if (part.first or part) in tables else len(part.table)
        fits = rows + len(part.rows) < interpreter_image.CODE_ROWS and words + more <= interpreter_image.TABLE_WORDS
        if not out or not fits:
            out.append([])
            rows, words, more = 0, 0, len(part.table)
            tables.clear()
        out[-1].append(part)
        tables.add(part.first or part)
        rows += len(part.rows)
        words += more
    return [_join(group) for group in out]


def _join(group: Sequence[Code]) -> Code:
    if len(group) == 1:
        return group[0]
    rows, at, table = [], 0, 0
    starts: dict[Code, int] = {}
    for code in group:
        first = code.first or code
        if first not in starts:
            starts[first] = table
            table += len(code.table)
        moved = code.rows.copy()
        moved[:, io.T] += starts[first]
        moved[:, io.TARGET] += at
        rows.append(moved)
        at += len(moved)
    return Code(np.concatenate(rows), np.concatenate([code.table for code in starts]))


def source_of(buffer: Any) -> tuple[str, int]:
    """What a pinned buffer shows: buffers of one source are one array."""
    return ("constant", buffer.constant) if buffer.constant is not None else ("input", buffer.input or 0)


def to_words(array: np.ndarray, out: np.ndarray) -> None:
    """Writes an array as carrier words."""
    dtype = array.dtype
    if dtype.itemsize >= 8:
        out[...] = np.ascontiguousarray(array).reshape(-1).view(np.int64)
    elif dtype.itemsize == 2 and dtype.kind not in "iu":
        np.copyto(out.view(np.float32).reshape(array.shape), array.astype(np.float32))
    elif dtype.itemsize == 4:
        np.copyto(out.view(dtype).reshape(array.shape), array)
    elif dtype.kind in "iub":
        np.copyto(out.reshape(array.shape), array, casting="unsafe")
    else:
        np.copyto(out.reshape(array.shape), np.ascontiguousarray(array).view(np.uint8), casting="unsafe")


def from_words(words: np.ndarray, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """An array of its own from carrier words."""
    if dtype.itemsize >= 8 or dtype.itemsize == 4:
        source = words.view(dtype).reshape(shape)
        out = copies.empty(source.nbytes, shape, dtype)
        copy_into(out, source)
        return out
    if dtype == np.bool_:
        return (words != 0).reshape(shape)
    if dtype.itemsize == 2 and dtype.kind not in "iu":
        return words.view(np.float32).astype(dtype).reshape(shape)
    if dtype.kind in "iu":
        return words.astype(dtype).reshape(shape)
    return words.astype(np.uint8).view(dtype).reshape(shape)


def launch(owner: Executable, interpreter: Interpreter, bound: BoundProgram, arrays: Sequence[Any]) -> list[Any]:
    """One launch of a program through the interpreter."""
    from vm.runtime import StepWalk

    class Walk(StepWalk):
        """A launch: kernels are gathered until the host wants to see their results."""

        def __init__(self) -> None:
            super().__init__(owner, bound, arrays)
            self.pending: list[Segment] = []
            self.starts, _ = interpreter.bases(bound.arena_rows)

        def segment(self, segment: Segment) -> None:
            self.pending.append(segment)

        def flush(self) -> None:
            if self.pending:
                segments, self.pending = self.pending, []
                interpreter.run(interpreter.code(segments, self.bound, self.starts))

        def read(self, b: int) -> np.ndarray:
            self.flush()
            dtype = dtype_of(self.program.buffers[b].dtype)
            return from_words(interpreter.buffer_words(b, self.bound, self.starts), dtype, self.bound.shape(b))

        def write(self, b: int, value: np.ndarray) -> None:
            self.flush()
            dtype = dtype_of(self.program.buffers[b].dtype)
            to_words(np.asarray(value, dtype), interpreter.buffer_words(b, self.bound, self.starts))

        def stage(self) -> None:
            done: set[tuple[str, int]] = set()
            for b, buffer in enumerate(self.program.buffers):
                if buffer.space == INPUT and buffer.input is not None:
                    to_words(np.asarray(arrays[buffer.input]), interpreter.buffer_words(b, self.bound, self.starts))
                elif buffer.space == PINNED and (source := source_of(buffer)) not in done:
                    done.add(source)
                    self.pin(b, buffer)
            interpreter.constants_ready = True

        def pin(self, b: int, buffer: Any) -> None:
            """A pinned array is copied once; a NumPy input at every launch, since nobody can tell whether it has changed."""
            if buffer.constant is not None:
                if interpreter.constants_ready:
                    return
                array: Any = self.program.constants[buffer.constant]
            else:
                array = arrays[buffer.input]
                if interpreter.held.get(buffer.input) is array:
                    return
                interpreter.held.pop(buffer.input, None)
            to_words(np.asarray(array), interpreter.buffer_words(b, self.bound, self.starts))
            if buffer.input is not None and not isinstance(array, np.ndarray):
                interpreter.held[buffer.input] = array

        def results(self) -> list[Any]:
            self.flush()
            out: list[Any] = [None] * len(self.program.outputs)
            for b, buffer in enumerate(self.program.buffers):
                if buffer.output is not None:
                    shape = self.bound.output_shapes[buffer.output]
                    out[buffer.output] = self.read(b).reshape(shape)
            return out

    import jax

    with jax.enable_x64(True):
        try:
            interpreter.prepare(bound.arena_rows)
            walk = Walk()
            walk.stage()
            walk.steps(owner.plan)
            return walk.results()
        except BaseException:
            interpreter.image = None  # memory may have been donated: it is made anew
            raise
