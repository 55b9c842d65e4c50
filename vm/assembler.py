"""Text to words: the inverse of the disassembler, and whole programs written by hand.

A *template* is what ``vm.disassembler.template_text`` prints, from ``template NAME params=P buffers=B`` to ``end``; word numbers at the
beginning of a line may be left out. One instruction a line::

    tile  t0: float32[axis0 32, 8] UB@0          dims are sizes, or an axis and the most that a step of its loop covers
    tile  t1: float32[axis0 32] UB@1024 x2       two places, one behind the other, in turn
    loop  axis=0 kind=PARALLEL tile=32 trips={p0} extent={p1}
    load  dst=t0 address=#0  ; set=V:0           #0 is buffer 0, {p0} parameter 0; after ";" come events and barrier
    | dim=0 step=8 div=1 stride=1                the terms of the access before
    fill  dst=t1 imm=0.5                         floating immediates may be written as such

Fields that are left out are 0. A *program* is a list of such templates and of these lines::

    program NAME            chip 910B1
    symbol n min=0 max=1000
    input x float32 [n, 8]      output y float32 [n, 8]      temp t float32 [n]      constant c float32 [2] = 1.5 2
    launch NAME [ceildiv(n, 32), n] x y          parameters, then buffers; one line a kernel, in order
    choice big = min(n // 100, 1)                the number of the form of a part of the program that runs
    launch NAME [n] x y when big=1               a kernel of that form

Dims and parameters are expressions of symbols: ``+ - * // % max(a, b) min(a, b) ceildiv(a, b)`` and brackets. ``#`` at the beginning of a
line starts a comment. Anything else is a ``ProgramError`` that names the line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import numpy as np

from vm import intcode, isa
from vm.dtypes import dtype_of, item_size
from vm.errors import ProgramError
from vm.intcode import Builder, Reg
from vm.program import (
    INPUT,
    LANES,
    OUTPUT,
    PINNED,
    TEMP,
    Buffer,
    Choice,
    KernelStep,
    Patch,
    Program,
    Reloc,
    Symbol,
    Template,
    TensorSpec,
)

_DTYPES = {d.name: code for d, code in isa.DTYPE_CODE.items()}
_TILE = re.compile(r"t(\d+): (\w+)\[([^\]]*)\] (\w+)@(\d+)(?: x(\d+))?")
_HOLE = re.compile(r"\{p(\d+)\}")
_SYNC_NAMES = ("wait", "back_wait", "set", "back_set")


def assemble_template(text: str) -> Template:
    """The template written in ``text``."""
    lines = list(_lines(text))
    template, rest = _template(lines, 0)
    if rest != len(lines):
        raise ProgramError(f"line {lines[rest][0]}: nothing may follow the template")
    return template


def assemble(text: str) -> Program:
    """The program written in ``text``; it is not verified here (``vm.verifier``)."""
    lines = list(_lines(text))
    out = _Program()
    at = 0
    while at < len(lines):
        number, line = lines[at]
        if line.startswith("template "):
            template, at = _template(lines, at)
            out.templates[template.name] = template
            continue
        try:
            out.line(line)
        except (ValueError, KeyError, IndexError) as error:
            raise ProgramError(f"line {number}: {line!r} is not understood ({error})") from error
        except ProgramError as error:
            raise ProgramError(f"line {number}: {error}") from error
        at += 1
    try:
        return out.finish()
    except ValueError as error:
        raise ProgramError(f"a tensor is malformed: {error}") from error


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """(number, text) of every line that says something."""
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if line and not line.startswith("#"):
            yield number, line


# --- templates ---------------------------------------------------------------------------------------------------------------------
@dataclass(eq=False)
class _Insn:
    """An instruction as written: field texts, tail items' texts, sync texts."""

    insn: isa.Insn
    fields: dict[str, str] = field(default_factory=dict)
    tail: list[dict[str, str]] = field(default_factory=list)
    sync: dict[str, int] = field(default_factory=dict)
    line: int = 0


def _template(lines: list[tuple[int, str]], at: int) -> tuple[Template, int]:
    """The template that begins at ``lines[at]``, and where the lines go on."""
    number, line = lines[at]
    head = line.split()
    try:
        if head[0] != "template":
            raise ValueError("expected 'template'")
        options = {k: int(v) for k, v in (word.split("=") for word in head[2:])}
        name = "" if head[1] == "-" else head[1]
        unknown = set(options) - {"params", "buffers", "mix", "block_dim"}
        if unknown:
            raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
    except (ValueError, IndexError) as error:
        raise ProgramError(f"line {number}: {line!r} is no head of a template ({error})") from error
    out = _Words()
    read: list[_Insn] = []
    for k in range(at + 1, len(lines)):
        number, line = lines[k]
        if line == "end":
            for insn in read:
                _at_line(insn.line, partial(out.insn, insn))
            return out.finish(name, options), k + 1
        if line.startswith("|"):
            if not read or not read[-1].insn.tail:
                raise ProgramError(f"line {number}: no access that this term could belong to")
            read[-1].tail.append(_at_line(number, partial(_pairs, line[1:].split())))
        else:
            insn = _at_line(number, partial(_parse, line))
            insn.line = number
            read.append(insn)
    raise ProgramError("the last template has no 'end'")


T = TypeVar("T")


def _at_line(number: int, work: Callable[[], T]) -> T:
    try:
        return work()
    except (ValueError, KeyError, IndexError) as error:
        raise ProgramError(f"line {number}: {error}") from error


def _parse(line: str) -> _Insn:
    line, _, sync = line.partition(";")
    words = line.split()
    if words and words[0].isdigit():
        words = words[1:]
    name = words[0] if words else ""
    if name not in isa.TABLE:
        raise ValueError(f"unknown instruction {name!r}")
    out = _Insn(isa.TABLE[name], sync=_parse_sync(sync.split()))
    if name == "tile":
        return _parse_tile(out, " ".join(words[1:]))
    known = {f.name for f in out.insn.fields}
    tail = {f.name for f in out.insn.tail} if out.insn.tail_words == 1 else set()
    for word in words[1:]:
        ((key, value),) = _pairs([word]).items()
        if key in known and key not in out.fields:
            out.fields[key] = value
        elif key in tail:
            out.tail.append({key: value})
        else:
            raise ValueError(f"{name} has no field {key!r} (or has it already)")
    return out


def _pairs(words: list[str]) -> dict[str, str]:
    out: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not value or key in out:
            raise ValueError(f"{word!r} is not field=value, or is there twice")
        out[key] = value
    return out


def _parse_tile(out: _Insn, text: str) -> _Insn:
    match = _TILE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not like 't0: float32[axis0 32, 8] UB@0'")
    number, dtype, dims, space, address, places = match.groups()
    if dtype not in _DTYPES or space not in isa.Space.__members__:
        raise ValueError(f"no type {dtype} or no memory {space} exists")
    out.fields = {"id": number, "space": str(int(isa.Space[space])), "address": address, "dtype": str(_DTYPES[dtype])}
    out.fields["more"] = str(int(places or 1) - 1)
    for dim in dims.split(",") if dims.strip() else []:
        parts = dim.split()
        axis = str(isa.NO_AXIS) if len(parts) == 1 else parts[0].removeprefix("axis")
        out.tail.append({"size": parts[-1], "axis": axis})
    return out


def _parse_sync(words: list[str]) -> dict[str, int]:
    out: dict[str, int] = {}
    for word in words:
        if word == "barrier":
            out["barrier"] = 1
            continue
        name, _, event = word.partition("=")
        pipe, colon, number = event.partition(":")
        if name not in _SYNC_NAMES or not colon or f"{name}_pipe" in out:
            raise ValueError(f"{word!r} is not like wait=MTE2:0, or is there twice")
        out[f"{name}_pipe"], out[f"{name}_event"] = _pipe(pipe), int(number)
    return out


def _pipe(text: str) -> int:
    return int(text) if text.isdigit() else int(isa.Pipe[text])


class _Words:
    """Words with their holes, as ``codegen`` makes them: fields in the order of the table."""

    def __init__(self) -> None:
        self.words: list[int] = [0, 0]
        self.patches: list[Patch] = []
        self.relocs: list[Reloc] = []

    def insn(self, item: _Insn) -> None:
        insn, base = item.insn, len(self.words)
        length = insn.fixed_words + len(item.tail) * insn.tail_words
        self.words += [0] * length
        isa.put(self.words, base, isa.HEAD_ID, insn.id)
        isa.put(self.words, base, isa.HEAD_LEN, length)
        isa.put(self.words, base, isa.HEAD_TAIL, len(item.tail))
        for f in isa.SYNC:
            isa.put(self.words, base, f, item.sync.get(f.name, 0))
        for f in insn.fields:
            self.field(insn, base, f, item.fields.get(f.name, "0"))
        for i, texts in enumerate(item.tail):
            unknown = set(texts) - {f.name for f in insn.tail}
            if unknown:
                raise ValueError(f"a term has no field {sorted(unknown)[0]!r}")
            for f in insn.tail:
                self.field(insn, base + insn.fixed_words + i * insn.tail_words, f, texts.get(f.name, "0"))

    def field(self, insn: isa.Insn, base: int, f: isa.Field, text: str) -> None:
        word = base + f.word
        hole = _HOLE.fullmatch(text)
        if hole is not None:
            self.patches.append(Patch(word, f.lo, f.width, int(hole[1])))
        elif f.kind == "address" and text.startswith("#"):
            self.relocs.append(Reloc(word, int(text[1:])))
        else:
            isa.put(self.words, base, f, _number(insn, f, text))

    def finish(self, name: str, options: dict[str, int]) -> Template:
        self.words.append(0)
        isa.put(self.words, 0, isa.ENTRY_WORDS, len(self.words))
        isa.put(self.words, 0, isa.ENTRY_MIX, options.get("mix", 0))
        isa.put(self.words, 0, isa.ENTRY_BLOCKS, options.get("block_dim", 0))
        words = np.array(self.words, np.uint64)
        patches, relocs = tuple(self.patches), tuple(self.relocs)
        return Template(words, patches, relocs, options.get("params", 0), options.get("buffers", 0), name)


def _number(insn: isa.Insn, f: isa.Field, text: str) -> int:
    if insn.name == "loop" and f.name == "kind" and text in isa.LoopKind.__members__:
        return int(isa.LoopKind[text])
    if insn.family == "sync" and f.name in ("pipe", "other"):
        return _pipe(text)
    if f.name == "dim" and text == "none":
        return isa.NO_DIM
    if f.kind == "tile" and text.startswith("t"):
        return int(text[1:])
    if f.kind == "imm" and any(c in text for c in ".in") and not text.startswith("0x"):
        return isa.imm_bits(float(text), np.dtype(np.float32))
    return int(text, 0)


# --- programs ----------------------------------------------------------------------------------------------------------------------
class _Program:
    """A program being read."""

    def __init__(self) -> None:
        self.name, self.chip = "", "910B1"
        self.symbols: list[Symbol] = []
        self.templates: dict[str, Template] = {}
        self.tensors: list[tuple[str, str, str, list[str], list[str]]] = []  # kind, name, dtype, dims, values
        self.launches: list[tuple[str, list[str], list[str], str, int]] = []  # template, parameters, tensors, when
        self.choices: dict[str, str] = {}

    def line(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == "program":
            self.name = rest.strip()
        elif word == "chip":
            self.chip = rest.strip()
        elif word == "symbol":
            name, *options = rest.split()
            given = {k: int(v) for k, v in _pairs(options).items()}
            self.symbols.append(Symbol(name, **given))  # type: ignore[arg-type]
        elif word in ("input", "output", "temp", "constant"):
            match = re.fullmatch(r"(\S+) (\w+) \[([^\]]*)\](?: = (.*))?", rest.strip())
            if match is None or (match[4] is None) == (word == "constant"):
                raise ValueError("expected NAME TYPE [DIMS], and values for a constant")
            dtype_of(match[2])
            self.tensors.append((word, match[1], match[2], _split(match[3]), (match[4] or "").split()))
        elif word == "launch":
            match = re.fullmatch(r"(\S+) \[(.*)\](.*?)(?: when (\w+)=(\d+))?", rest.strip())
            if match is None:
                raise ValueError("expected launch TEMPLATE [PARAMETERS] BUFFERS, and perhaps when CHOICE=NUMBER")
            form = int(match[5] or 0)
            self.launches.append((match[1], _split(match[2]), match[3].split(), match[4] or "", form))
        elif word == "choice":
            name, _, text = rest.partition("=")
            if not name.strip() or not text.strip():
                raise ValueError("expected choice NAME = EXPRESSION")
            self.choices[name.strip()] = text.strip()
        else:
            raise ValueError(f"unknown word {word!r}")

    def finish(self) -> Program:
        names = [s.name for s in self.symbols]
        code = Builder(len(names))
        regs: dict[str, Reg] = {name: i for i, name in enumerate(names)}
        top: dict[tuple[int, int], Reg] = {}
        buffers: dict[str, Buffer] = {}
        inputs: list[TensorSpec] = []
        outputs: list[TensorSpec] = []
        constants: list[np.ndarray] = []
        for kind, name, dtype, texts, values in self.tensors:
            dims = tuple(_Expression(text, code, regs).value for text in texts)
            elements = code.const(1)
            for dim in dims:
                elements = code.op(intcode.MUL, elements, dim)
            known = [code.constant_of(d) for d in dims]
            if name in buffers:
                raise ProgramError(f"two tensors are called {name!r}")
            if kind == "constant":
                array = np.array([float(v) for v in values]).astype(dtype_of(dtype)).reshape([k or 0 for k in known])
                buffers[name] = Buffer(PINNED, dtype, elements, None, dims, constant=len(constants), name=name)
                constants.append(array)
                continue
            if kind == "input" and None not in known:
                buffers[name] = Buffer(PINNED, dtype, elements, None, dims, input=len(inputs), name=name)
            else:
                space = {"input": INPUT, "output": OUTPUT, "temp": TEMP}[kind]
                key = (space, item_size(dtype))
                offset = top.get(key, code.const(0))
                lanes = code.op(
                    intcode.FLOORDIV, code.op(intcode.ADD, elements, code.const(LANES - 1)), code.const(LANES)
                )
                top[key] = code.op(intcode.ADD, offset, lanes)
                links = {kind: len(inputs) if kind == "input" else len(outputs)} if kind != "temp" else {}
                buffers[name] = Buffer(space, dtype, elements, offset, dims, name=name, **links)
            if kind != "temp":
                (inputs if kind == "input" else outputs).append(TensorSpec(name, dtype, dims, tuple(texts)))
        numbers = {name: i for i, name in enumerate(buffers)}
        order = {name: i for i, name in enumerate(self.templates)}
        steps = []
        numbered = {name: i for i, name in enumerate(self.choices)}
        for k, (template, params, used, when, form) in enumerate(self.launches):
            if when and when not in numbered:
                raise ProgramError(f"launch {template}: there is no choice {when!r}")
            for name in used:
                if name not in numbers:
                    raise ProgramError(f"launch {template}: there is no tensor {name!r}")
            if template not in order:
                raise ProgramError(f"launch {template}: there is no such template")
            given = tuple(_Expression(text, code, regs).value for text in params)
            step = KernelStep(order[template], given, tuple(numbers[name] for name in used), f"{template}_{k}")
            steps.append(replace(step, choice=numbered[when], alternative=form) if when else step)
        choices = tuple(
            Choice(
                _Expression(text, code, regs).value,
                1 + max((form for *_, when, form in self.launches if when == name), default=0),
            )
            for name, text in self.choices.items()
        )
        solve, solved = self._solve(names)
        return Program(
            symbols=tuple(self.symbols),
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            solve=solve,
            solved=solved,
            code=code.finish(),
            checks=(),
            templates=tuple(self.templates.values()),
            buffers=tuple(buffers.values()),
            steps=tuple(steps),
            constants=tuple(constants),
            arena_rows=dict(sorted(top.items())),
            chip=self.chip,
            choices=choices,
            debug={"title": self.name} if self.name else {},
        )

    def _solve(self, names: list[str]) -> tuple[intcode.IntCode, tuple[Reg, ...]]:
        """Every symbol is the size of an axis of an input."""
        sizes = [text for kind, _, _, texts, _ in self.tensors if kind == "input" for text in texts]
        missing = [name for name in names if name not in sizes]
        if missing:
            raise ProgramError(f"no input has an axis of size {missing[0]}")
        return Builder(len(sizes)).finish(), tuple(sizes.index(name) for name in names)


def _split(text: str) -> list[str]:
    """At commas outside of brackets."""
    out, depth, begin = [], 0, 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if c == "," and depth == 0:
            out.append(text[begin:i].strip())
            begin = i + 1
    out.append(text[begin:].strip())
    return [part for part in out if part]


class _Expression:
    """An expression of symbols, compiled by recursive descent; ``value`` is its register."""

    _BINARY = ({"+": intcode.ADD, "-": intcode.SUB}, {"*": intcode.MUL, "//": intcode.FLOORDIV, "%": intcode.MOD})

    def __init__(self, text: str, code: Builder, symbols: dict[str, Reg]) -> None:
        self.text, self.code, self.symbols = text, code, symbols
        self.tokens = re.findall(r"//|\w+|\S", text)[::-1]
        self.value = self._binary(0)
        if self.tokens:
            raise ProgramError(f"{text!r}: {self.tokens[-1]!r} is unexpected")

    def _binary(self, level: int) -> Reg:
        if level == len(self._BINARY):
            return self._atom()
        left = self._binary(level + 1)
        while self.tokens and self.tokens[-1] in self._BINARY[level]:
            op = self._BINARY[level][self.tokens.pop()]
            left = self.code.op(op, left, self._binary(level + 1))
        return left

    def _take(self, expected: str) -> None:
        if not self.tokens or self.tokens.pop() != expected:
            raise ProgramError(f"{self.text!r}: expected {expected!r}")

    def _atom(self) -> Reg:
        token = self.tokens.pop() if self.tokens else ""
        if token.isdigit():
            return self.code.const(int(token))
        if token == "-":
            return self.code.op(intcode.SUB, self.code.const(0), self._atom())
        if token == "(":
            value = self._binary(0)
            self._take(")")
            return value
        if token in ("max", "min", "ceildiv"):
            self._take("(")
            a = self._binary(0)
            self._take(",")
            b = self._binary(0)
            self._take(")")
            if token == "ceildiv":
                return self.code.op(
                    intcode.FLOORDIV, self.code.op(intcode.SUB, self.code.op(intcode.ADD, a, b), self.code.const(1)), b
                )
            return self.code.op(intcode.MAX if token == "max" else intcode.MIN, a, b)
        if token not in self.symbols:
            raise ProgramError(f"{self.text!r}: {token!r} is no symbol")
        return self.symbols[token]
