"""A compiled program as data: symbols, integer code, templates, buffers and the queue of steps that a launch walks.

Nothing here depends on the compiler. ``vm.serialise`` writes and reads it, ``vm.binder`` turns it plus concrete sizes into a
``BoundProgram``, ``vm.runtime`` launches that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vm.intcode import IntCode, Reg

# Memory spaces of buffers. INPUT, TEMP and OUTPUT live in arenas (one per item size), PINNED buffers are single read-only arrays of
# fixed shape: constants and inputs whose shape does not depend on a symbol (weights).
# Temporaries and outputs come in banks, which are arenas of their own: a kernel never stores into a bank that it loads from, because XLA
# updates memory in place only where nothing reads it (one arena for everything cost a copy of all of it per kernel).
INPUT, TEMP, OUTPUT, PINNED = range(4)
TEMP_BANKS = (TEMP, 4, 5, 6)
OUTPUT_BANKS = (OUTPUT, 7)
SPACE_NAMES = ("input", "temp", "output", "pinned", "temp 1", "temp 2", "temp 3", "output 1")
WRITABLE = TEMP_BANKS + OUTPUT_BANKS

MAX_CHILDREN = 8  # kernels that run side by side

LANES = 128  # elements in a lane row, the unit in which arenas are addressed


@dataclass(frozen=True)
class Symbol:
    """A symbolic dimension: its value lies in [min, max] and is ``remainder`` modulo ``multiple_of``; ``max`` None is unbounded."""

    name: str
    min: int = 0
    max: int | None = None
    multiple_of: int = 1
    remainder: int = 0
    origin: str = ""


@dataclass(frozen=True)
class TensorSpec:
    """A program input or output: ``dims`` are registers of the main code; ``text`` holds the dims as a person would write them."""

    name: str
    dtype: str
    dims: tuple[Reg, ...]
    text: tuple[str, ...]


@dataclass(frozen=True)
class Check:
    """A launch check: the register must not be 0. ``message`` tells a person what was expected; ``{b}`` and the like name symbols."""

    reg: Reg
    message: str
    origin: str = ""


@dataclass(frozen=True)
class Patch:
    """Bits ``[lo, lo + width)`` of word ``word`` take the value of parameter ``param`` (two's complement)."""

    word: int
    lo: int
    width: int
    param: int


@dataclass(frozen=True)
class Reloc:
    """The address field of word ``word`` takes space, item size and lane row (or pinned index) of the step's buffer ``buffer``."""

    word: int
    buffer: int


@dataclass(frozen=True)
class Template:
    """One kernel: words with holes. Equal templates are stored once; steps give them parameters and buffers."""

    words: np.ndarray  # uint64[n]
    patches: tuple[Patch, ...]
    relocs: tuple[Reloc, ...]
    n_params: int
    n_buffers: int
    name: str = ""  # debug


@dataclass(frozen=True)
class Buffer:
    """Global memory of one tensor. ``elements`` is the register with its element count, ``offset`` the register with its first
    lane row in the arena of its space and item size (pinned buffers have none)."""

    space: int
    dtype: str
    elements: Reg
    offset: Reg | None
    dims: tuple[Reg, ...]
    constant: int | None = None  # index into Program.constants
    input: int | None = None  # index into Program.inputs
    output: int | None = None  # index into Program.outputs
    name: str = ""  # debug
    alias: int | None = (
        None  # the buffer whose memory this is under another shape, or a part of it that a kernel writes
    )


@dataclass(frozen=True)
class Choice:
    """A part of the program that is there in several forms: register ``reg`` of the main code is the number of the one that runs, from 0 to
    ``count - 1``. It depends on sizes that the inputs have, so that it is known when they are bound. Outside, all forms look alike: they
    store the same buffers, and what else one stores is read by its own kernels only."""

    reg: Reg
    count: int


@dataclass(frozen=True)
class KernelStep:
    """Launches a template; with a ``choice`` (an index into ``Program.choices``) only where that is ``alternative``."""

    template: int
    params: tuple[Reg, ...]
    buffers: tuple[int, ...]
    name: str = ""  # debug
    choice: int | None = None
    alternative: int = 0


@dataclass(frozen=True)
class HostStep:
    """Calls the NumPy function ``vm.host.FUNCTIONS[function]``. ``attrs`` is plain data (numbers, strings, lists, dicts); a value
    ``{"reg": n}`` anywhere inside is replaced by register ``n`` before the call."""

    function: str
    attrs: dict[str, Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class DataSize:
    """Where the size comes from that a symbol stands for and no input has: axis ``axis`` of what a host step stores in ``buffer``.
    It is at most the register ``limit``, which memory is laid out for."""

    buffer: int
    axis: int
    limit: Reg


@dataclass(frozen=True)
class CondStep:
    """Reads the scalar buffer ``selector`` (bool or int, clamped) and runs that branch."""

    selector: int
    branches: tuple[tuple[Step, ...], ...]


@dataclass(frozen=True)
class WhileStep:
    """Runs ``cond``, reads the scalar bool buffer ``predicate``, and while it is true runs ``body`` and ``cond`` again."""

    cond: tuple[Step, ...]
    predicate: int
    body: tuple[Step, ...]


@dataclass(frozen=True)
class ForStep:
    """Runs ``body`` ``count`` times; before each run the int32 scalar buffer ``counter`` is set to the iteration (or, reversed,
    ``count - 1 - iteration``)."""

    count: Reg
    counter: int
    body: tuple[Step, ...]
    reverse: bool = False


Step = KernelStep | HostStep | CondStep | WhileStep | ForStep


@dataclass
class Program:
    """Everything a launch needs.

    ``solve`` maps all input sizes (inputs in order, axes in order) to the symbols, whose registers are ``solved``; ``code`` maps the
    symbols (in order) to every other integer. The last symbols may depend on data: ``data_sizes`` tells for each of them, in order,
    which host step of the queue makes it known; no place in memory depends on them.
    ``arena_rows[(space, item_size)]`` is the register with the arena's size in lane rows.
    ``stages`` is the parallel table (``vm.stacking``): how many of the kernel steps, in the order of a walk, run side by side; empty if
    every kernel runs alone.
    """

    symbols: tuple[Symbol, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    solve: IntCode
    solved: tuple[Reg, ...]
    code: IntCode
    checks: tuple[Check, ...]
    templates: tuple[Template, ...]
    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    constants: tuple[np.ndarray, ...]
    arena_rows: dict[tuple[int, int], Reg]
    data_sizes: tuple[DataSize, ...] = ()
    chip: str = "910B1"
    stages: tuple[int, ...] = ()
    choices: tuple[Choice, ...] = ()  # parts that are there in several forms
    in_tree: Any = None  # plain nested data that describes the argument and result pytrees (see dvm.trees)
    out_tree: Any = None
    debug: dict[str, Any] = field(default_factory=dict)  # strippable: op names, explanations, reports


def scalar_of(step: CondStep | WhileStep | ForStep) -> int:
    """The buffer that a control step reads or writes by itself."""
    if isinstance(step, CondStep):
        return step.selector
    return step.predicate if isinstance(step, WhileStep) else step.counter


def inner_blocks(step: CondStep | WhileStep | ForStep) -> tuple[tuple[Step, ...], ...]:
    """The blocks of a control step, in the order of a walk."""
    if isinstance(step, CondStep):
        return step.branches
    return (step.cond, step.body) if isinstance(step, WhileStep) else (step.body,)
