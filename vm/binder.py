"""From concrete sizes to a ``BoundProgram``: symbols solved and checked, integer code run once, words patched and relocated.

Everything that depends on the program alone is prepared in ``Binder.__init__`` as flat arrays, so that a bind is one run of the
integer code plus a few vectorised operations over all patches of all kernels.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from vm import intcode, isa
from vm.dtypes import dtype_of, item_size
from vm.errors import InputError, OutOfMemory, ProgramError, ShapeError
from vm.intcode import IntCode
from vm.program import (
    LANES,
    PINNED,
    SPACE_NAMES,
    TEMP_BANKS,
    CondStep,
    ForStep,
    HostStep,
    KernelStep,
    Program,
    Step,
    Symbol,
    WhileStep,
    scalar_of,
)
from vm.validate import RELOC_MASK, dependents

_ROW_LO, _ROW_BITS = isa.ADDR_ROW
_LARGEST_SIZE = (1 << 63) - 1  # of an array axis
_CACHE_ENTRIES = 128  # a bound program is some 30 KB: its registers, words and scalars
_CACHE_BYTES = 32 << 20  # of words over all cached programs
_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")


@dataclass(frozen=True, eq=False)
class NumberedStep:
    """A step with its ordinal among the kernel steps (``BoundProgram.kernel_words``) or the host steps (``BoundProgram.host_attrs``)
    of the program, in the order of a walk; -1 for control steps. ``blocks`` holds the branches of a conditional, the condition and
    the body of a while loop, the body of a for loop."""

    step: Step
    index: int
    blocks: tuple[tuple[NumberedStep, ...], ...] = ()


@dataclass(frozen=True)
class Region:
    """Bytes ``[start, end)`` of an arena, or of a read-only array; the memory is named by ``memory``."""

    memory: tuple[int, int]
    start: int
    end: int

    @property
    def bytes(self) -> int:
        """Its size."""
        return self.end - self.start

    def overlaps(self, other: Region) -> bool:
        """Whether a byte is in both."""
        return self.memory == other.memory and self.start < other.end and other.start < self.end


@dataclass(frozen=True, eq=False)
class Route:
    """What runs for one outcome of all choices: the kernels that do not, the buffers that nothing then uses, and the holes of the others
    as parallel arrays."""

    chosen: tuple[int, ...]
    skipped: frozenset[int]
    idle: frozenset[int]
    in_use: np.ndarray  # of all buffers
    holes: list[tuple[int, int, int, int, int]]  # word, lo, width, register, kernel; sorted by word
    reg: np.ndarray
    shift: np.ndarray
    mask: np.ndarray
    low: np.ndarray
    high: np.ndarray
    words: np.ndarray  # those with holes
    group: np.ndarray


@dataclass(eq=False)
class BoundProgram:
    """A program at concrete sizes. Treat as read-only: it is shared by all launches of these sizes.

    ``regs`` are all registers of the main code. ``words`` (uint64, read-only) are the patched words of all kernel steps, those of
    kernel ``k`` are ``words[starts[k] : starts[k + 1]]``. ``arena_rows`` gives lane rows by (space, item size). ``unknown`` are the
    symbols that depend on data and are not known yet (they are 0 in ``symbols``), ``waiting`` the kernels that need them. ``chosen``
    is the alternative of every choice; kernels of the others are ``skipped``, and what only they use is ``idle``: it has no memory.
    """

    program: Program
    symbols: tuple[int, ...]
    regs: list[int]
    words: np.ndarray
    starts: tuple[int, ...]
    input_shapes: tuple[tuple[int, ...], ...]
    output_shapes: tuple[tuple[int, ...], ...]
    arena_rows: dict[tuple[int, int], int]
    host_attrs: tuple[dict[str, Any], ...] = field(default=())
    unknown: frozenset[int] = frozenset()
    waiting: frozenset[int] = frozenset()
    sizes: tuple[int, ...] | None = None  # of all input axes, where they are known
    chosen: tuple[int, ...] = ()
    skipped: frozenset[int] = frozenset()
    idle: frozenset[int] = frozenset()

    @property
    def unbound(self) -> frozenset[int]:
        """The kernels that have no words: they are ``skipped``, or still ``waiting``."""
        return self.skipped | self.waiting

    def kernel_words(self, index: int) -> np.ndarray:
        """The words of the kernel step with this ordinal, a view."""
        if index in self.skipped:
            raise ProgramError(f"kernel {index} is of an alternative that does not run at these sizes")
        if index in self.waiting:
            names = ", ".join(self.program.symbols[k].name for k in sorted(self.unknown))
            raise ProgramError(f"kernel {index} needs a size that is not known yet ({names})")
        return self.words[self.starts[index] : self.starts[index + 1]]

    def values(self, regs: Sequence[int]) -> tuple[int, ...]:
        """The values of some registers, such as a step's ``params``."""
        return tuple([self.regs[r] for r in regs])

    def shape(self, buffer: int) -> tuple[int, ...]:
        """The shape of a buffer."""
        return self.values(self.program.buffers[buffer].dims)

    def region(self, buffer: int) -> Region:
        """The bytes of a buffer."""
        b = self.program.buffers[buffer]
        item = dtype_of(b.dtype).itemsize
        n = self.regs[b.elements] * item
        if b.space == PINNED or b.offset is None:
            return Region((PINNED, b.input or 0 if b.constant is None else -1 - b.constant), 0, n)
        start = self.regs[b.offset] * LANES * item_size(b.dtype)
        return Region((b.space, item_size(b.dtype)), start, start + n)

    @property
    def dims(self) -> dict[str, int]:
        """The symbols by name, without those that are not known yet."""
        named = zip(self.program.symbols, self.symbols, strict=True)
        return {s.name: value for k, (s, value) in enumerate(named) if k not in self.unknown}


class Binder:
    """Binds one program; thread-safe. The program must be sound (``vm.validate``): it is not checked again here."""

    def __init__(self, program: Program, cache_entries: int = _CACHE_ENTRIES, cache_bytes: int = _CACHE_BYTES) -> None:
        self.program = program
        self.kernels: list[KernelStep] = []
        self.hosts: list[HostStep] = []
        self._control: set[int] = set()  # buffers that control steps read or write
        self.steps = self._number(program.steps)
        self.pinned = tuple(i for i, b in enumerate(program.buffers) if b.space == PINNED)
        self._cache: OrderedDict[tuple[int, ...], BoundProgram] = OrderedDict()
        self._cache_entries, self._cache_bytes, self._cached = cache_entries, cache_bytes, 0
        self._lock = threading.Lock()
        self.check: Callable[[BoundProgram], None] | None = None  # of new sizes, before their first launch
        self._expected = [(len(spec.dims), dtype_of(spec.dtype)) for spec in program.inputs]
        self._input_dims = [reg for spec in program.inputs for reg in spec.dims]
        self._limits = [(s.min, _top(s), s.multiple_of, s.remainder) for s in program.symbols]
        self.given = len(program.solved)  # symbols that the inputs determine; the others depend on data
        self._check_regs = [check.reg for check in program.checks]
        self._arenas = sorted(program.arena_rows.items())
        self._host_regs = [_has_reg(step.attrs) for step in self.hosts]
        self._prepare_buffers()
        self._prepare_words()
        self._prepare_data_sizes()
        self._choices = tuple((choice.reg, choice.count) for choice in program.choices)
        self._routes: dict[tuple[int, ...], Route] = {}
        if not self._choices:
            self._route(())

    # -- inputs ---------------------------------------------------------------------------------------------------------------

    def check_inputs(self, arrays: Sequence[Any]) -> tuple[int, ...]:
        """The sizes of all axes of all inputs, in order. ``InputError`` if the number of arrays, a rank or a dtype is wrong.
        Arrays are anything with a ``shape`` and a NumPy ``dtype``."""
        if len(arrays) != len(self._expected):
            names = ", ".join(repr(spec.name) for spec in self.program.inputs)
            raise InputError(f"{len(self._expected)} inputs expected ({names}), {len(arrays)} given")
        sizes: list[int] = []
        for array, (rank, dtype) in zip(arrays, self._expected, strict=True):
            try:
                shape = array.shape
                ok = array.dtype == dtype and len(shape) == rank
            except AttributeError:
                ok = False
            if not ok:
                raise self._input_error(arrays)
            sizes += shape
        return tuple(sizes)

    def _input_error(self, arrays: Sequence[Any]) -> InputError:
        for i, (array, spec) in enumerate(zip(arrays, self.program.inputs, strict=True)):
            what = f"input {i} ({spec.name!r})"
            expected = f"{spec.dtype}[{', '.join(spec.text)}]"
            dtype, shape = getattr(array, "dtype", None), getattr(array, "shape", None)
            if dtype is None or shape is None:
                return InputError(f"{what} is a {type(array).__name__}, expected an array {expected}")
            if len(shape) != len(spec.dims):
                return InputError(f"{what} has rank {len(shape)} (shape {tuple(shape)}), expected {expected}")
            if dtype != dtype_of(spec.dtype):
                hint = ""
                if spec.dtype in ("int64", "uint64", "float64") and str(dtype) == spec.dtype.replace("64", "32"):
                    hint = "; JAX makes 64-bit arrays only with jax_enable_x64, a NumPy array works without it"
                return InputError(f"{what} is {dtype}, expected {expected}{hint}")
        return InputError("the inputs do not match the program")

    # -- symbols --------------------------------------------------------------------------------------------------------------

    def solve(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """The symbols' values from the sizes of all input axes. They are not checked here; ``bind`` does that."""
        regs = self.program.solve.run(sizes)
        return tuple([regs[r] for r in self.program.solved])

    def bind_sizes(self, sizes: tuple[int, ...]) -> BoundProgram:
        """``bind`` for the sizes that ``check_inputs`` returned, cached by them (least recently used ones are dropped)."""
        return self._cached_bind(sizes, lambda: self.bind(self.solve(sizes), sizes))

    def after_host(self, bound: BoundProgram, step: HostStep, results: Sequence[Any]) -> BoundProgram:
        """``bound`` with the sizes that the results of a host step make known; the same object where they are none."""
        values = list(bound.symbols)
        unknown = bound.unknown
        for b, result in zip(step.outputs, results, strict=True):
            for symbol, axis in self._made.get(b, ()):
                values[symbol] = int(np.shape(result)[axis])
                unknown -= {symbol}
        if unknown == bound.unknown and tuple(values) == bound.symbols:
            return bound
        key = (-1, *values, *sorted(unknown))  # no size is negative: no clash with ``bind_sizes``
        return self._cached_bind(key, lambda: self.bind(tuple(values), bound.sizes, unknown))

    def _cached_bind(self, sizes: tuple[int, ...], make: Callable[[], BoundProgram]) -> BoundProgram:
        with self._lock:
            bound = self._cache.get(sizes)
            if bound is not None:
                self._cache.move_to_end(sizes)
                return bound
        bound = make()
        if self.check is not None:
            self.check(bound)
        with self._lock:
            if sizes not in self._cache:
                self._cache[sizes] = bound
                self._cached += bound.words.nbytes
            while len(self._cache) > self._cache_entries or (self._cached > self._cache_bytes and len(self._cache) > 1):
                self._cached -= self._cache.popitem(last=False)[1].words.nbytes
        return bound

    def bind_symbols(self, dims: Mapping[str, int] | None = None, /, **named: int) -> BoundProgram:
        """``bind`` with symbols by name. ``InputError`` for unknown or missing names and values that are no integers."""
        given = {**(dims or {}), **named}
        names = [s.name for s in self.program.symbols]
        data = names[self.given :]
        if not any(name in given for name in data):
            names = names[: self.given]
        unknown = [name for name in given if name not in names]
        missing = [name for name in names if name not in given]
        if unknown or missing:
            parts = [f"unknown: {', '.join(map(str, unknown))}"] * bool(unknown) + [
                f"missing: {', '.join(missing)}"
            ] * bool(missing)
            raise InputError(f"dimensions {'; '.join(parts)}. This program has: {', '.join(names) or 'none'}")
        for name in names:
            if isinstance(given[name], bool) or not hasattr(given[name], "__index__"):
                raise InputError(f"dimension {name!r} must be an integer, got {given[name]!r}")
        return self.bind(tuple(given[name].__index__() for name in names))

    def bind(
        self, symbols: tuple[int, ...], sizes: tuple[int, ...] | None = None, unknown: frozenset[int] | None = None
    ) -> BoundProgram:
        """The program at these symbol values. ``ShapeError`` if a symbol is out of its range, if ``sizes`` (of all input axes, when
        known) are not what the symbols give, or if a launch check fails; ``OutOfMemory`` if an arena is larger than an address can
        name; ``ProgramError`` if a value does not fit its field or a buffer its arena.

        Symbols that depend on data may be left out, or be ``unknown``: what needs them is left open and is not checked.
        """
        if unknown is None:
            unknown = frozenset(range(len(symbols), len(self._limits)))
        symbols = (*symbols, *[0] * (len(self._limits) - len(symbols)))
        for k, (value, (low, high, multiple, remainder)) in enumerate(zip(symbols, self._limits, strict=True)):
            if (value < low or value > high or (value - remainder) % multiple) and k not in unknown:
                raise self._symbol_error(symbols, sizes)
        regs = self.program.code.run(symbols)
        hidden = self._hidden(unknown)
        self._check_data_sizes(symbols, regs, unknown)
        dims = tuple([regs[r] for r in self._input_dims])
        if sizes is not None and dims != sizes:
            raise self._size_error(symbols, sizes, dims)
        for i, reg in enumerate(self._check_regs):
            if not regs[reg] and reg not in hidden:
                raise self._check_error(i, symbols, sizes)
        numbers, inexact = _int64(regs if not hidden else [0 if r in hidden else v for r, v in enumerate(regs)])
        arenas = {key: regs[reg] for key, reg in self._arenas}
        for (space, size), rows in arenas.items():
            if rows >= 1 << _ROW_BITS:
                raise OutOfMemory(
                    f"{self._at(symbols)}: {SPACE_NAMES[space]} memory of {rows:,} rows of {LANES} {size}-byte items is beyond what "
                    f"addresses can name"
                )
        route = self._route(tuple([regs[reg] for reg, _ in self._choices]))
        self._check_buffers(regs, numbers, inexact, symbols, hidden, route)
        words = self._patched(regs, numbers, inexact, route)
        return BoundProgram(
            self.program,
            symbols,
            regs,
            words,
            self._starts,
            tuple([tuple([regs[r] for r in spec.dims]) for spec in self.program.inputs]),
            tuple([tuple([regs[r] for r in spec.dims]) for spec in self.program.outputs]),
            arenas,
            tuple(
                [_fill(s.attrs, regs) if has else s.attrs for s, has in zip(self.hosts, self._host_regs, strict=True)]
            ),
            unknown,
            self._waiting(hidden),
            sizes,
            route.chosen,
            route.skipped,
            route.idle,
        )

    # -- sizes that depend on data --------------------------------------------------------------------------------------------

    def _prepare_data_sizes(self) -> None:
        self._made: dict[int, list[tuple[int, int]]] = {}  # buffer -> (symbol, axis)
        for k, size in enumerate(self.program.data_sizes, self.given):
            self._made.setdefault(size.buffer, []).append((k, size.axis))
        self._hidden_by: dict[frozenset[int], frozenset[int]] = {frozenset(): frozenset()}

    def _hidden(self, unknown: frozenset[int]) -> frozenset[int]:
        """The registers that have no value while these symbols are unknown."""
        found = self._hidden_by.get(unknown)
        if found is None:
            found = self._hidden_by[unknown] = frozenset(
                r for k in unknown for r in dependents(self.program.code, k, k + 1)
            )
        return found

    def _waiting(self, hidden: frozenset[int]) -> frozenset[int]:
        """The kernels that need one of these registers."""
        if not hidden:
            return hidden
        found = {kernel for _, _, _, reg, kernel in self._holes if reg in hidden}
        for k, step in enumerate(self.kernels):
            if any(self.program.buffers[b].elements in hidden for b in step.buffers):
                found.add(k)
        return frozenset(found)

    def _check_data_sizes(self, symbols: tuple[int, ...], regs: list[int], unknown: frozenset[int]) -> None:
        for k, size in enumerate(self.program.data_sizes, self.given):
            if k not in unknown and symbols[k] > regs[size.limit]:
                name = self.program.symbols[k].name
                raise ShapeError(
                    f"dimension {name!r} is {symbols[k]}, which is more than the {regs[size.limit]} there are"
                )

    # -- errors ---------------------------------------------------------------------------------------------------------------

    @cached_property
    def _axes(self) -> list[tuple[str, int, str]]:
        """(input label, axis, text) of every size, in the order of ``solve``'s inputs."""
        return [(spec.name, axis, text) for spec in self.program.inputs for axis, text in enumerate(spec.text)]

    def _axis(self, i: int) -> str:
        name, axis, text = self._axes[i]
        return f"input {name!r} axis {axis}" + ("" if _is_number(text) else f" ({text})")

    def _sources(self, symbol: int) -> list[int]:
        """The sizes that a symbol is computed from."""
        return _dependencies(self.program.solve, self.program.solved[symbol]) if symbol < self.given else []

    def _symbol_error(self, symbols: tuple[int, ...], sizes: tuple[int, ...] | None) -> ShapeError:
        for i, (value, s) in enumerate(zip(symbols, self.program.symbols, strict=True)):
            top = "" if s.max is None and value < s.min else f", at most {_top(s)}"
            if value < s.min or value > _top(s):
                wanted = f"it must be {s.min}" if s.min == s.max else f"it must be at least {s.min}{top}"
            elif (value - s.remainder) % s.multiple_of:
                rest = f" plus {s.remainder}" if s.remainder else ""
                wanted = f"it must be a multiple of {s.multiple_of}{rest}"
            else:
                continue
            given = [f"{self._axis(j)} is {sizes[j]}" for j in self._sources(i)] if sizes is not None else []
            return ShapeError(f"dimension {s.name!r} is {value}, but {wanted}{_origin(s.origin)}{_because(given)}")
        return ShapeError("a dimension is out of range")

    def _size_error(self, symbols: tuple[int, ...], sizes: tuple[int, ...], dims: tuple[int, ...]) -> ShapeError:
        i = next(i for i, (size, dim) in enumerate(zip(sizes, dims, strict=True)) if size != dim)
        name, axis, text = self._axes[i]
        if _is_number(text):
            return ShapeError(f"input {name!r} axis {axis} is {sizes[i]}, but it must be {dims[i]}")
        for j, (_, _, other) in enumerate(self._axes):
            if other == text and sizes[j] == dims[j]:
                return ShapeError(
                    f"{self._axis(j)} is {sizes[j]} but {self._axis(i)} is {sizes[i]}: they must be equal"
                )
        used = _dependencies(self.program.code, self._input_dims[i])
        values = [f"{self.program.symbols[k].name} = {symbols[k]}" for k in used]
        sources = sorted({j for k in used for j in self._sources(k)} - {i})
        given = [f"{self._axis(j)} is {sizes[j]}" for j in sources]
        where = f" with {', '.join(values)}" if values else ""
        return ShapeError(f"input {name!r} axis {axis} is {sizes[i]}, but {text} is {dims[i]}{where}{_because(given)}")

    def _check_error(self, i: int, symbols: tuple[int, ...], sizes: tuple[int, ...] | None) -> ShapeError:
        """The check's own words, the op that needs it, and the sizes that it was computed from."""
        check = self.program.checks[i]
        values = {s.name: value for s, value in zip(self.program.symbols, symbols, strict=True)}
        text = _PLACEHOLDER.sub(lambda m: str(values.get(m[1], m[0])), check.message)
        used = _dependencies(self.program.code, check.reg)
        if sizes is None:
            given = [f"{self.program.symbols[k].name} = {symbols[k]}" for k in used]
        else:
            given = [f"{self._axis(j)} is {sizes[j]}" for j in sorted({j for k in used for j in self._sources(k)})]
            given += [f"{self.program.symbols[k].name} = {symbols[k]} in this data" for k in used if k >= self.given]
        return ShapeError(text + _origin(check.origin) + _because(given))

    # -- buffers --------------------------------------------------------------------------------------------------------------

    def _prepare_buffers(self) -> None:
        buffers = self.program.buffers
        # What must fit each buffer: its own shape, and that of the input or output it holds.
        claims = [(i, b.dims) for i, b in enumerate(buffers)]
        claims += [(i, self.program.inputs[b.input].dims) for i, b in enumerate(buffers) if b.input is not None]
        claims += [(i, self.program.outputs[b.output].dims) for i, b in enumerate(buffers) if b.output is not None]
        rank = max((len(dims) for _, dims in claims), default=0)
        # Axes beyond a buffer's rank read register -1, where _int64 puts a 1.
        self._claim_dims = np.array([[*d, *[-1] * (rank - len(d))] for _, d in claims], np.intp).reshape(
            len(claims), rank
        )
        self._claim_buffer = np.array([i for i, _ in claims], np.intp)
        self._buffer_elements = np.array([b.elements for b in buffers], np.intp)
        self._in_arena = np.array([b.offset is not None for b in buffers], bool)
        rows = [
            self.program.arena_rows.get((b.space, item_size(b.dtype)), 0) if b.offset is not None else 0
            for b in buffers
        ]
        self._buffer_arena = np.array(rows, np.intp)[self._in_arena]
        self._buffer_offset = np.array([b.offset for b in buffers if b.offset is not None], np.intp)
        self._lanes = np.array([LANES * item_size(b.dtype) // dtype_of(b.dtype).itemsize for b in buffers], np.int64)

    def _check_buffers(
        self,
        regs: list[int],
        numbers: np.ndarray,
        inexact: np.ndarray | None,
        symbols: tuple[int, ...],
        hidden: frozenset[int],
        route: Route,
    ) -> None:
        """No size is negative, every buffer holds its elements, which are those of its input or output, and lies inside its arena."""
        if not len(self._buffer_elements):
            return
        dims = numbers[self._claim_dims]
        elements = numbers[self._buffer_elements]
        if dims.size and dims.min() < 0:
            self._negative(regs, symbols)
        sizes = dims.prod(axis=1, dtype=np.float64)  # floats: the product must not wrap
        bad = (elements[self._claim_buffer] < sizes) | (sizes != sizes[self._claim_buffer])
        if hidden:
            bad &= ~np.isin(self._buffer_elements, list(hidden))[self._claim_buffer]
        offset, top = numbers[self._buffer_offset], numbers[self._buffer_arena]
        rows = -(-elements // self._lanes)[self._in_arena]
        outside = (offset < 0) | (offset > top) | (rows > top - offset)
        outside &= route.in_use[self._in_arena]
        if inexact is not None:  # saturated values would make the sums above wrong
            bad |= inexact[self._buffer_elements][self._claim_buffer] | inexact[self._claim_dims].any(axis=1)
            outside |= inexact[self._buffer_offset] | inexact[self._buffer_arena]
        if bad.any():
            claim = int(bad.argmax())
            i = int(self._claim_buffer[claim])
            shape = [regs[r] for r in self._claim_dims[claim] if r >= 0]
            raise ProgramError(
                f"buffer {i} has {regs[self.program.buffers[i].elements]} elements, shape {shape} is to fit it"
            )
        if outside.any():
            i = int(np.flatnonzero(self._in_arena)[outside.argmax()])
            b = self.program.buffers[i]
            size = item_size(b.dtype)
            raise ProgramError(
                f"buffer {i}: {regs[b.elements]} elements from row {regs[b.offset or 0]} are not inside the "
                f"{SPACE_NAMES[b.space]} arena of {regs[self.program.arena_rows[b.space, size]]} rows of {size}-byte items"
            )

    def _negative(self, regs: list[int], symbols: tuple[int, ...]) -> None:
        """An output of negative size is the caller's business, any other buffer's the compiler's."""
        at = self._at(symbols)
        for spec in self.program.outputs:
            for axis, reg in enumerate(spec.dims):
                if regs[reg] < 0:
                    raise ShapeError(f"output {spec.name!r} axis {axis}: {spec.text[axis]} is {regs[reg]} with {at}")
        i = next(i for i, b in enumerate(self.program.buffers) if any(regs[r] < 0 for r in b.dims))
        raise ShapeError(
            f"a tensor inside the program (buffer {i}) has a negative size {self._shape_of(i, regs)} with {at}"
        )

    def _at(self, symbols: tuple[int, ...]) -> str:
        return ", ".join(f"{s.name} = {v}" for s, v in zip(self.program.symbols, symbols, strict=True))

    def _shape_of(self, buffer: int, regs: list[int]) -> list[int]:
        return [regs[r] for r in self.program.buffers[buffer].dims]

    # -- words ----------------------------------------------------------------------------------------------------------------

    def _prepare_words(self) -> None:
        """All holes of all kernel steps as parallel arrays, sorted by word. An address's row is a hole like any other (of a pinned
        buffer it is fixed: the buffer's place in ``pinned``); its item size and space are put into the base words here."""
        holes: list[tuple[int, int, int, int, int]] = []  # word, lo, width, register, kernel
        place = {buffer: i for i, buffer in enumerate(self.pinned)}
        base: list[np.ndarray] = []
        starts = [0]
        for k, step in enumerate(self.kernels):
            template = self.program.templates[step.template]
            words = template.words.astype(np.uint64)
            at = starts[-1]
            for p in template.patches:
                holes.append((at + p.word, p.lo, p.width, step.params[p.param], k))
                words[p.word] &= _clear(((1 << p.width) - 1) << p.lo)
            for r in template.relocs:
                buffer = self.program.buffers[step.buffers[r.buffer]]
                fixed = (item_size(buffer.dtype).bit_length() - 1) << isa.ADDR_ITEM[0] | buffer.space << isa.ADDR_SPACE[
                    0
                ]
                words[r.word] &= _clear(RELOC_MASK)
                if buffer.offset is None:
                    words[r.word] |= np.uint64(fixed | place[step.buffers[r.buffer]] << _ROW_LO)
                else:
                    words[r.word] |= np.uint64(fixed)
                    holes.append((at + r.word, _ROW_LO, _ROW_BITS, buffer.offset, k))
            base.append(words)
            starts.append(at + len(words))
        self._starts = tuple(starts)
        self._base = np.concatenate(base) if base else np.zeros(0, np.uint64)
        holes.sort(key=lambda hole: hole[:2])
        self._holes = holes

    def _route(self, chosen: tuple[int, ...]) -> Route:
        """What runs for this outcome of the choices."""
        found = self._routes.get(chosen)
        if found is not None:
            return found
        for k, (value, (_, count)) in enumerate(zip(chosen, self._choices, strict=True)):
            if not 0 <= value < count:
                raise ProgramError(f"choice {k} is {value}, but it has {count} alternatives")
        skipped = frozenset(
            k for k, s in enumerate(self.kernels) if s.choice is not None and chosen[s.choice] != s.alternative
        )
        idle = self._only_used_by(skipped)
        in_use = np.array([b not in idle for b in range(len(self.program.buffers))], bool)
        holes = [hole for hole in self._holes if hole[4] not in skipped] if skipped else self._holes
        word, lo, width, reg, _ = (
            np.array(column, np.int64) for column in (zip(*holes, strict=True) if holes else [()] * 5)
        )
        mask = np.array([(1 << w) - 1 for w in width.tolist()], np.uint64)
        # A field takes signed or unsigned values; one of 64 bits takes every int64.
        low = np.array([-(1 << (w - 1)) for w in width.tolist()], np.int64)
        high = np.array([min((1 << w) - 1, (1 << 63) - 1) for w in width.tolist()], np.int64)
        shift, words = lo.astype(np.uint64), np.unique(word, return_index=True)
        route = Route(chosen, skipped, idle, in_use, holes, reg.astype(np.intp), shift, mask, low, high, *words)
        self._routes[chosen] = route
        return route

    def _only_used_by(self, skipped: frozenset[int]) -> frozenset[int]:
        """Temporaries that no other kernel and no other step uses."""
        if not skipped:
            return frozenset()
        buffers = self.program.buffers
        own: set[int] = set()
        others: set[int] = set()
        for k, step in enumerate(self.kernels):
            (own if k in skipped else others).update(step.buffers)
        own.update(i for i, b in enumerate(buffers) if b.alias in own)
        own.update(b.alias for b in map(buffers.__getitem__, tuple(own)) if b.alias is not None)
        others.update(b for host in self.hosts for b in (*host.inputs, *host.outputs))
        others.update(i for i in own if buffers[i].space not in TEMP_BANKS)
        used = {i if buffers[i].alias is None else buffers[i].alias for i in others | self._control}
        return frozenset(i for i in own if (i if buffers[i].alias is None else buffers[i].alias) not in used)

    def _patched(self, regs: list[int], numbers: np.ndarray, inexact: np.ndarray | None, route: Route) -> np.ndarray:
        words = self._base.copy()
        if len(route.reg):
            values = numbers[route.reg]
            bad = (values < route.low) | (values > route.high)
            if inexact is not None:
                bad |= inexact[route.reg]
            if bad.any():
                self._raise_misfit(route.holes[int(bad.argmax())], regs)
            bits = (values.view(np.uint64) & route.mask) << route.shift
            words[route.words] |= np.bitwise_or.reduceat(bits, route.group)
        words.flags.writeable = False
        return words

    def _raise_misfit(self, hole: tuple[int, int, int, int, int], regs: list[int]) -> None:
        word, lo, width, reg, k = hole
        raise ProgramError(
            f"kernel {k}{_origin(self.kernels[k].name)}, word {word - self._starts[k]}: the value {regs[reg]} does not fit "
            f"the {width} bits from bit {lo}"
        )

    def _number(self, steps: Sequence[Step]) -> tuple[NumberedStep, ...]:
        return tuple([self._number_one(step) for step in steps])

    def _number_one(self, step: Step) -> NumberedStep:
        if isinstance(step, KernelStep):
            self.kernels.append(step)
            return NumberedStep(step, len(self.kernels) - 1)
        if isinstance(step, HostStep):
            self.hosts.append(step)
            return NumberedStep(step, len(self.hosts) - 1)
        self._control.add(scalar_of(step))
        return NumberedStep(step, -1, tuple([self._number(block) for block in _blocks(step)]))


def _blocks(step: CondStep | WhileStep | ForStep) -> Iterator[tuple[Step, ...]]:
    if isinstance(step, CondStep):
        yield from step.branches
        return
    if isinstance(step, WhileStep):
        yield step.cond
    yield step.body


def _top(symbol: Symbol) -> int:
    return _LARGEST_SIZE if symbol.max is None else symbol.max


def _clear(mask: int) -> np.uint64:
    return np.uint64(~mask & (1 << 64) - 1)


def _int64(regs: list[int]) -> tuple[np.ndarray, np.ndarray | None]:
    """The registers and a 1 after them (for index -1) as int64; larger ones are saturated and marked in the second array."""
    try:
        return np.array([*regs, 1], np.int64), None
    except OverflowError:
        low, high = -(1 << 63), (1 << 63) - 1
        clamped = [min(max(r, low), high) for r in regs]
        marks = [a != b for a, b in zip(regs, clamped, strict=True)]
        return np.array([*clamped, 1], np.int64), np.array([*marks, False])


def _has_reg(value: Any) -> bool:
    if isinstance(value, dict):
        return "reg" in value or any(_has_reg(v) for v in value.values())
    return isinstance(value, (list, tuple)) and any(_has_reg(v) for v in value)


def _fill(value: Any, regs: list[int]) -> Any:
    """``value`` with every ``{"reg": n}`` replaced by register ``n``."""
    if isinstance(value, dict):
        return regs[value["reg"]] if "reg" in value else {k: _fill(v, regs) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([_fill(v, regs) for v in value])
    return value


def _dependencies(code: IntCode, reg: int) -> list[int]:
    """The inputs that a register of ``code`` is computed from, in order."""
    needed = {reg}
    for here in range(code.n_registers - 1, code.n_inputs - 1, -1):
        if here not in needed:
            continue
        op, a, b = code.code[here - code.n_inputs]
        if op == intcode.SELECT:
            needed.update((a, b >> 32, b & 0xFFFFFFFF))
        elif op != intcode.CONST:
            needed.update((a, b))
    return sorted(r for r in needed if r < code.n_inputs)


def _is_number(text: str) -> bool:
    return text.lstrip("-").isdigit()


def _origin(origin: str) -> str:
    return f" ({origin})" if origin else ""


def _because(given: list[str]) -> str:
    return f": {', '.join(given)}" if given else ""
