"""What device memory a program needs at given sizes, buffer by buffer: the answer of ``prog.memory(...)``.

Everything comes from the program itself, so that a loaded (and stripped) program answers as well.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from dvm.explain import forms
from vm.binder import BoundProgram
from vm.dtypes import dtype_of, item_size
from vm.program import INPUT, LANES, OUTPUT_BANKS, PINNED, SPACE_NAMES, TEMP_BANKS
from vm.program.lifetimes import Lifetimes, lifetimes


@dataclass(frozen=True)
class BufferLife:
    """One tensor in device memory. ``first`` and ``last`` are the positions of the first and the last step that access it
    (``vm.program.Lifetimes``), ``offset`` the byte in its arena at which it begins (None: it is an array of its own)."""

    name: str
    space: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    first: int
    last: int
    offset: int | None


class Memory:
    """Bytes at one set of sizes. ``peak`` is inputs, constants, temporaries and outputs together; ``temp`` are the arenas of the
    temporaries, ``unshared`` what these would take if no two of them shared memory, ``saved`` the difference. Arenas are counted in whole
    lane rows of 128 items; capacity classes and slack, which belong to an executor, are not."""

    def __init__(self, bound: BoundProgram) -> None:
        program = bound.program
        self.dims = bound.dims
        self.inputs = _total(bound.input_shapes, [spec.dtype for spec in program.inputs])
        self.outputs = _total(bound.output_shapes, [spec.dtype for spec in program.outputs])
        self.constants = sum(array.nbytes for array in program.constants)
        arenas = {key: rows * LANES * key[1] for key, rows in bound.arena_rows.items()}
        self.temp = sum(n for (space, _), n in arenas.items() if space in TEMP_BANKS)
        self.arenas = {f"{SPACE_NAMES[space]} ({item}-byte items)": n for (space, item), n in sorted(arenas.items())}
        life = lifetimes(program.steps, program.buffers, program.stages)
        self.buffers = tuple(
            _life(bound, i, life)
            for i, buffer in enumerate(program.buffers)
            if buffer.alias is None and (buffer.space not in TEMP_BANKS or i in life.spans) and i not in bound.idle
        )
        temporary = [b for b in self.buffers if b.space.startswith("temp")]
        self.unshared = sum(_whole_rows(b) for b in temporary)
        self.steps = life.length
        self.forms = forms(bound)

    @property
    def peak(self) -> int:
        """Bytes of device memory: inputs, constants, temporaries, outputs."""
        return self.inputs + self.constants + self.temp + self.outputs

    @property
    def saved(self) -> int:
        """Bytes that sharing saves."""
        return self.unshared - self.temp

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "dims": self.dims,
            "peak": self.peak,
            "inputs": self.inputs,
            "constants": self.constants,
            "temp": self.temp,
            "outputs": self.outputs,
            "unshared": self.unshared,
            "saved": self.saved,
            "arenas": self.arenas,
            "forms": self.forms,
            "buffers": [asdict(b) | {"shape": list(b.shape)} for b in self.buffers],
        }

    def __str__(self) -> str:
        sizes = ", ".join(f"{name}={value}" for name, value in self.dims.items())
        lines = [f"device memory at {sizes or 'fixed sizes'}: {self.peak:,} bytes"]
        lines += [f"  {what:<10} {getattr(self, what):>15,}" for what in ("inputs", "constants", "temp", "outputs")]
        lines.append(f"temporaries without sharing {self.unshared:,}, saved {self.saved:,}")
        rows = [["buffer", "space", "offset", "bytes", "steps"]]
        for b in sorted(self.buffers, key=lambda b: (b.first, b.last)):
            where = "" if b.offset is None else f"{b.offset:,}"
            rows.append([b.name or "-", b.space, where, f"{b.bytes:,}", f"{b.first}-{b.last}"])
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        for name, space, *numbers in rows:
            cells = [name.ljust(widths[0]), space.ljust(widths[1])]
            cells += [text.rjust(width) for text, width in zip(numbers, widths[2:], strict=True)]
            lines.append("  " + "  ".join(cells).rstrip())
        return "\n".join([*lines, *self.forms])


def _total(shapes: Any, dtypes: list[str]) -> int:
    return sum(math.prod(shape) * dtype_of(dtype).itemsize for shape, dtype in zip(shapes, dtypes, strict=True))


def _life(bound: BoundProgram, i: int, life: Lifetimes) -> BufferLife:
    buffer = bound.program.buffers[i]
    shape = bound.shape(i)
    first, last = life.of(i)
    if buffer.space in (INPUT, PINNED):  # there before the first step and after the last
        first, last = 0, max(life.length - 1, 0)
    if buffer.space in OUTPUT_BANKS:
        last = max(life.length - 1, 0)
    space = "constant" if buffer.constant is not None else SPACE_NAMES[INPUT] if buffer.space == PINNED else None
    item = item_size(buffer.dtype)
    offset = None if buffer.offset is None else bound.regs[buffer.offset] * LANES * item
    n = math.prod(shape) * dtype_of(buffer.dtype).itemsize
    return BufferLife(buffer.name, space or SPACE_NAMES[buffer.space], buffer.dtype, shape, n, first, last, offset)


def _whole_rows(b: BufferLife) -> int:
    row = LANES * item_size(b.dtype)
    return -(-b.bytes // row) * row
