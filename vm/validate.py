"""Structural checks of a ``Program``: every index in range, every count consistent, every integer bounded.

``validate`` runs when a file is read and after a compile. It knows nothing of instructions: the words of a template are the business
of ``vm.isa``. What passes can be bound; what fails is a ``ProgramError`` before anything of the program is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from vm import intcode, isa
from vm.dtypes import DTYPES, INTEGERS, dtype_of, item_size
from vm.errors import ProgramError
from vm.host import CODES
from vm.intcode import IntCode, Reg
from vm.program import (
    INPUT,
    PINNED,
    SPACE_NAMES,
    WRITABLE,
    Buffer,
    CondStep,
    ForStep,
    HostStep,
    KernelStep,
    Program,
    Step,
    Template,
    WhileStep,
)
from vm.program.stages import check_table, kernels_of

MAX_DEPTH = 16  # nesting of control steps
MAX_PLAIN_DEPTH = 64  # nesting of attributes, argument trees and debug data
MAX_ALTERNATIVES = 8  # forms of one part
MAX_WORDS = 1 << 24  # of all kernel steps, which a bind lays out one after the other
MAX_BITS = 1 << 16  # of any register, so that mutated integer code cannot square itself into a hang
# The bits of a word that a relocation fills: lane row, log2 of the item size, space.
RELOC_MASK = sum(((1 << width) - 1) << lo for lo, width in (isa.ADDR_ROW, isa.ADDR_ITEM, isa.ADDR_SPACE))

_CHIP_NAME = re.compile(r"\w[\w.-]{0,63}(?<!\.toml)", re.ASCII)
_SIZE_LIMIT = (1 << 63) - 1  # no array axis is longer


def validate(program: Program) -> None:
    """Raises ``ProgramError`` unless ``program`` is structurally sound. Takes time linear in its size, constants excepted."""
    try:
        _validate(program)
    except (TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        raise ProgramError(f"malformed program: {type(error).__name__}: {error}") from error


def _validate(program: Program) -> None:
    _symbols(program)
    known = _integer_code(program.code, [_symbol_bound(s.min, s.max) for s in program.symbols], "code")
    rank_total = sum(len(spec.dims) for spec in program.inputs)
    _expect(
        program.solve.n_inputs == rank_total,
        f"solve takes {program.solve.n_inputs} sizes, the inputs have {rank_total}",
    )
    _integer_code(program.solve, [_SIZE_LIMIT] * rank_total, "solve")
    n_data = len(program.data_sizes)
    _expect(len(program.solved) + n_data == len(program.symbols), "one solved register per symbol is needed")
    _registers(program.solved, program.solve, "solved")
    for kind, specs in (("input", program.inputs), ("output", program.outputs)):
        for i, spec in enumerate(specs):
            dtype_of(spec.dtype)
            _registers(spec.dims, program.code, f"{kind} {i}")
            _expect(
                len(spec.dims) == len(spec.text), f"{kind} {i} has {len(spec.dims)} dims but {len(spec.text)} texts"
            )
            _expect(
                isinstance(spec.name, str) and all(isinstance(t, str) for t in spec.text),
                f"{kind} {i}: texts are strings",
            )
    for i, check in enumerate(program.checks):
        _registers([check.reg], program.code, f"check {i}")
        _expect(isinstance(check.message, str), f"check {i}: the message is text")
    for (space, size), reg in program.arena_rows.items():
        _expect(space in (INPUT, *WRITABLE) and size in (1, 2, 4, 8), f"no arena ({space}, {size}) exists")
        _registers([reg], program.code, f"arena ({SPACE_NAMES[space]}, {size})")
    for i, template in enumerate(program.templates):
        _template(template, i)
    for i, constant in enumerate(program.constants):
        _expect(
            isinstance(constant, np.ndarray) and constant.dtype.name in DTYPES,
            f"constant {i} has no known element type",
        )
    _buffers(program, known)
    if n_data:
        _data_sizes(program)
    words = _steps(program, program.steps, 0)
    _expect(words <= MAX_WORDS, f"the steps launch {words} words, more than {MAX_WORDS}")
    _choices(program)
    _stages(program)
    plain_name = isinstance(program.chip, str) and _CHIP_NAME.fullmatch(program.chip)
    _expect(bool(plain_name), f"{program.chip!r} is not the name of a chip")  # Chip.load also takes paths
    for tree in (program.in_tree, program.out_tree, program.debug):
        _plain(tree, program, regs=False)


def _choices(program: Program) -> None:
    """Every alternative has kernels, and which one runs does not depend on data."""
    used = {(step.choice, step.alternative) for step in kernels_of(program.steps)}
    late = dependents(program.code, len(program.solved), len(program.symbols)) if program.choices else set()
    for k, choice in enumerate(program.choices):
        _registers([choice.reg], program.code, f"choice {k}")
        _expect(_is_int(choice.count) and 2 <= choice.count <= MAX_ALTERNATIVES, f"choice {k}: {choice.count} forms")
        _expect(choice.reg not in late, f"choice {k} depends on data")
        _expect({(k, n) for n in range(choice.count)} <= used, f"choice {k}: an alternative without kernels")


def _stages(program: Program) -> None:
    _expect(all(map(_is_int, program.stages)), "the parallel table holds integers")
    check_table(program)


def _expect(ok: bool, message: str) -> None:
    if not ok:
        raise ProgramError(message)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _in_range(values: Iterable[int], n: int, what: str) -> None:
    for value in values:
        if not (_is_int(value) and 0 <= value < n):
            raise ProgramError(f"{what}: index {value!r} is not in [0, {n})")


def _registers(regs: Iterable[int], code: IntCode, what: str) -> None:
    _in_range(regs, code.n_registers, f"{what}, register")


def _symbol_bound(low: int, high: int | None) -> int:
    return max(abs(low), _SIZE_LIMIT if high is None else abs(high))


def _symbols(program: Program) -> None:
    names = [s.name for s in program.symbols]
    _expect(len(set(names)) == len(names), f"two symbols have the same name: {names}")
    _expect(
        program.code.n_inputs == len(names), f"code takes {program.code.n_inputs} symbols, the program has {len(names)}"
    )
    for s in program.symbols:
        ok = isinstance(s.name, str) and _is_int(s.min) and (s.max is None or (_is_int(s.max) and s.min <= s.max))
        _expect(ok, f"symbol {s.name!r}: the range [{s.min}, {s.max}] is empty or not of integers")
        _expect(
            _is_int(s.multiple_of) and s.multiple_of >= 1, f"symbol {s.name!r}: multiple_of {s.multiple_of} is below 1"
        )
        _expect(
            _is_int(s.remainder) and 0 <= s.remainder < s.multiple_of, f"symbol {s.name!r}: remainder {s.remainder}"
        )


def _integer_code(code: IntCode, bounds: Sequence[int], what: str) -> dict[int, int]:
    """Verifies ``code``, bounds the size of every register for inputs of at most ``bounds``, and returns the registers whose
    value does not depend on the inputs."""
    _expect(_is_int(code.n_inputs) and code.n_inputs >= 0, f"{what}: bad number of inputs")
    for triple in code.code:
        _expect(len(triple) == 3 and all(map(_is_int, triple)), f"{what}: an operation is not three integers")
    code.verify()
    limit = 1 << MAX_BITS
    known: dict[int, int] = {}
    size = list(bounds)  # of the absolute value
    for here, (op, a, b) in enumerate(code.code, code.n_inputs):
        if op == intcode.CONST:
            known[here] = a
            bound = abs(a)
        elif op == intcode.SELECT:
            then, other = b >> 32, b & 0xFFFFFFFF
            bound = max(size[then], size[other])
            if a in known:
                chosen = then if known[a] else other
                if chosen in known:
                    known[here] = known[chosen]
        else:
            bound = _magnitude(op, size[a], size[b])
            if a in known and b in known:
                known[here] = intcode.apply(op, known[a], known[b])
        if bound >= limit:
            raise ProgramError(f"{what}: register {here} may need more than {MAX_BITS} bits")
        size.append(bound)
    return known


def _magnitude(op: int, a: int, b: int) -> int:
    """An upper bound of ``|op(x, y)|`` for ``|x| <= a`` and ``|y| <= b``."""
    if op in (intcode.ADD, intcode.SUB):
        return a + b
    if op == intcode.MUL:
        return a * b
    if op == intcode.FLOORDIV:
        return a + 1
    if op == intcode.MOD:
        return b
    if op in (intcode.MAX, intcode.MIN):
        return max(a, b)
    return 1


def _template(template: Template, index: int) -> None:
    what = f"template {index}"
    words = template.words
    ok = isinstance(words, np.ndarray) and words.dtype == np.uint64 and words.ndim == 1
    _expect(ok, f"{what}: the words are not a vector of uint64")
    _expect(_is_int(template.n_params) and template.n_params >= 0, f"{what}: bad number of parameters")
    _expect(_is_int(template.n_buffers) and template.n_buffers >= 0, f"{what}: bad number of buffers")
    taken: dict[int, int] = {}

    def take(word: int, mask: int) -> None:
        _expect(not taken.get(word, 0) & mask, f"{what}: two holes overlap in word {word}")
        taken[word] = taken.get(word, 0) | mask

    _in_range((p.word for p in template.patches), len(words), f"{what}, patched word")
    _in_range((p.param for p in template.patches), template.n_params, f"{what}, parameter")
    for p in template.patches:
        ok = _is_int(p.lo) and _is_int(p.width) and p.lo >= 0 and p.width >= 1 and p.lo + p.width <= 64
        _expect(ok, f"{what}: bits [{p.lo}, {p.lo} + {p.width}) are not inside a word")
        take(p.word, ((1 << p.width) - 1) << p.lo)
    _in_range((r.word for r in template.relocs), len(words), f"{what}, relocated word")
    _in_range((r.buffer for r in template.relocs), template.n_buffers, f"{what}, buffer")
    for r in template.relocs:
        take(r.word, RELOC_MASK)


def _buffers(program: Program, known: dict[int, int]) -> None:
    produced: set[int] = set()
    for i, buffer in enumerate(program.buffers):
        what = f"buffer {i}"
        _expect(
            _is_int(buffer.space) and 0 <= buffer.space < len(SPACE_NAMES), f"{what}: no space {buffer.space!r} exists"
        )
        size = item_size(buffer.dtype)
        _registers([buffer.elements, *buffer.dims], program.code, what)
        if buffer.space == PINNED:
            _expect(buffer.offset is None, f"{what}: a pinned buffer has no offset")
            _expect((buffer.constant is None) != (buffer.input is None), f"{what}: pinned is a constant or an input")
            _fixed(program, buffer, known, what)
        else:
            _expect(
                buffer.offset is not None and buffer.constant is None,
                f"{what}: has no offset, or is an unpinned constant",
            )
            _registers([buffer.offset or 0], program.code, what)
            _expect(
                (buffer.space, size) in program.arena_rows,
                f"{what}: no arena ({SPACE_NAMES[buffer.space]}, {size}) is declared",
            )
            _expect(buffer.space != INPUT or buffer.input is not None, f"{what}: in input space but no input")
        if buffer.input is not None:
            _in_range([buffer.input], len(program.inputs), f"{what}, input")
            spec = program.inputs[buffer.input]
            _expect(spec.dtype == buffer.dtype, f"{what}: {buffer.dtype}, but input {spec.name!r} is {spec.dtype}")
            _expect(buffer.space in (INPUT, PINNED), f"{what}: an input lives in input or pinned space")
        if buffer.alias is not None:
            _in_range([buffer.alias], len(program.buffers), f"{what}, alias")
            owner = program.buffers[buffer.alias]
            same = (owner.space, item_size(owner.dtype), owner.offset, owner.alias) == (
                buffer.space,
                size,
                buffer.offset,
                None,
            )
            _expect(same and buffer.output is None, f"{what}: does not lie where buffer {buffer.alias} lies")
        if buffer.output is not None:
            _in_range([buffer.output], len(program.outputs), f"{what}, output")
            spec = program.outputs[buffer.output]
            _expect(spec.dtype == buffer.dtype, f"{what}: {buffer.dtype}, but output {spec.name!r} is {spec.dtype}")
            _expect(buffer.output not in produced, f"{what}: output {buffer.output} has two buffers")
            produced.add(buffer.output)
    missing = [i for i in range(len(program.outputs)) if i not in produced]
    _expect(not missing, f"outputs {missing} have no buffer")


def _data_sizes(program: Program) -> None:
    """Each is made by one host step of the main queue, and no place in memory depends on one."""
    writers: dict[int, int] = {}
    for step in program.steps:
        if isinstance(step, HostStep):
            _in_range(step.outputs, len(program.buffers), f"host {step.function}, buffer")
            for b in step.outputs:
                writers[b] = writers.get(b, 0) + 1
    late = dependents(program.code, len(program.solved), len(program.symbols))
    for k, size in enumerate(program.data_sizes):
        what = f"data-dependent size {program.symbols[len(program.solved) + k].name!r}"
        _in_range([size.buffer], len(program.buffers), f"{what}, buffer")
        _in_range([size.axis], len(program.buffers[size.buffer].dims), f"{what}, axis")
        _registers([size.limit], program.code, what)
        _expect(writers.get(size.buffer) == 1, f"{what}: not one host step of the queue makes it known")
        _expect(size.limit not in late, f"{what}: its limit depends on data")
    for spec in program.inputs:
        _expect(late.isdisjoint(spec.dims), f"input {spec.name!r}: a dimension depends on data")
    places = [*program.arena_rows.values(), *(b.offset for b in program.buffers if b.offset is not None)]
    _expect(late.isdisjoint(places), "a place in memory depends on data")


def dependents(code: IntCode, first: int, end: int) -> set[Reg]:
    """The inputs ``first`` to ``end`` (not included) of ``code``, and all registers that are computed from them."""
    found = set(range(first, end))
    for here, (op, a, b) in enumerate(code.code, code.n_inputs):
        if op == intcode.CONST:
            continue
        operands = (a, b >> 32, b & 0xFFFFFFFF) if op == intcode.SELECT else (a, b)
        if not found.isdisjoint(operands):
            found.add(here)
    return found


def _fixed(program: Program, buffer: Buffer, known: dict[int, int], what: str) -> None:
    """A pinned buffer's dims are numbers, and those of its constant."""
    dims = tuple(known.get(reg) for reg in buffer.dims)
    _expect(None not in dims, f"{what}: pinned, but a dimension depends on a symbol")
    if buffer.constant is None:
        return
    _in_range([buffer.constant], len(program.constants), f"{what}, constant")
    constant = program.constants[buffer.constant]
    _expect(constant.dtype.name == buffer.dtype, f"{what}: {buffer.dtype}, but its constant is {constant.dtype}")
    _expect(constant.shape == dims, f"{what}: shape {dims}, but its constant has {constant.shape}")
    _expect(known.get(buffer.elements) == constant.size, f"{what}: element count is not {constant.size}")


def _steps(program: Program, steps: Sequence[Step], depth: int) -> int:
    """Checks steps and what is nested in them. Returns the words of their kernels."""
    _expect(depth <= MAX_DEPTH, f"steps are nested deeper than {MAX_DEPTH}")
    words = 0
    for step in steps:
        if isinstance(step, KernelStep):
            _kernel(program, step)
            words += len(program.templates[step.template].words)
        elif isinstance(step, HostStep):
            _host(program, step)
        elif isinstance(step, CondStep):
            _scalar(program, step.selector, ("bool", *INTEGERS), "selector")
            _expect(len(step.branches) > 0, "a conditional without branches")
            for branch in step.branches:
                words += _steps(program, branch, depth + 1)
        elif isinstance(step, WhileStep):
            _scalar(program, step.predicate, ("bool",), "predicate")
            words += _steps(program, step.cond, depth + 1)
            words += _steps(program, step.body, depth + 1)
        elif isinstance(step, ForStep):
            _scalar(program, step.counter, ("int32",), "counter")
            _expect(program.buffers[step.counter].space in WRITABLE, "a loop counter must be writable")
            _registers([step.count], program.code, "loop count")
            _expect(isinstance(step.reverse, bool), "reverse is a bool")
            words += _steps(program, step.body, depth + 1)
        else:
            raise ProgramError(f"{type(step).__name__} is no step")
    return words


def _scalar(program: Program, index: int, dtypes: Sequence[str], what: str) -> None:
    _in_range([index], len(program.buffers), f"{what}, buffer")
    buffer = program.buffers[index]
    _expect(not buffer.dims and buffer.dtype in dtypes, f"{what}: buffer {index} is not a scalar of a fitting type")


def _kernel(program: Program, step: KernelStep) -> None:
    _in_range([step.template], len(program.templates), "kernel, template")
    template = program.templates[step.template]
    _expect(len(step.params) == template.n_params, f"template {step.template} takes {template.n_params} parameters")
    _expect(len(step.buffers) == template.n_buffers, f"template {step.template} takes {template.n_buffers} buffers")
    _registers(step.params, program.code, "kernel parameter")
    _in_range(step.buffers, len(program.buffers), "kernel, buffer")
    if step.choice is None:
        _expect(step.alternative == 0, "a kernel of an alternative, but of no choice")
        return
    _in_range([step.choice], len(program.choices), "kernel, choice")
    _in_range([step.alternative], program.choices[step.choice].count, "kernel, alternative")


def _host(program: Program, step: HostStep) -> None:
    _expect(step.function in CODES, f"unknown host function {step.function!r}")
    _in_range(step.inputs, len(program.buffers), f"host {step.function}, buffer")
    _in_range(step.outputs, len(program.buffers), f"host {step.function}, buffer")
    for out in step.outputs:
        _expect(
            program.buffers[out].space in WRITABLE,
            f"host {step.function} writes buffer {out}, which is read-only",
        )
    _expect(isinstance(step.attrs, dict), "attributes are a dict")
    op = step.attrs.get("op")
    _expect(op is None or op in CODES, f"host {step.function}: unknown operation {op!r}")
    _plain(step.attrs, program, regs=True)


def _plain(value: Any, program: Program, regs: bool, depth: int = 0) -> None:
    """Attributes and trees are nested plain data; with ``regs``, ``{"reg": n}`` names a register of the main code."""
    _expect(depth <= MAX_PLAIN_DEPTH, f"data nested deeper than {MAX_PLAIN_DEPTH}")
    if isinstance(value, dict):
        if regs and "reg" in value:
            _expect(len(value) == 1, "a register reference holds nothing else")
            _registers([value["reg"]], program.code, "attribute")
        for key, item in value.items():
            _expect(isinstance(key, (str, int)), f"a key of type {type(key).__name__} in plain data")
            _plain(item, program, regs, depth + 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _plain(item, program, regs, depth + 1)
    elif value is not None and not isinstance(value, (bool, int, float, complex, str, bytes)):
        raise ProgramError(f"{type(value).__name__} is not plain data")
