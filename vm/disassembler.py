"""Programs as text: the instructions of each template, read through the instruction table, and what fills their holes.

kernel 0: layer_norm_0 (template 0: 212 words, 9 patches, 2 buffers)
  p0 = b*s
  #0 = input x: float32[b, s]
    2  tile        t0: float32[axis0 32, axis1 2048] UB@0
   12  loop        axis=0 kind=PARALLEL tile=32 trips={p1} extent={p0}
   15    load        dst=t0 address=#0 offset=0
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from vm import intcode, isa
from vm.errors import InputError
from vm.intcode import IntCode
from vm.program import SPACE_NAMES, Buffer, KernelStep, Program, Step, Template

_LONGEST = 60  # characters of an expression; a longer one is shown as its register
_INFIX = {
    intcode.ADD: "+", intcode.SUB: "-", intcode.MUL: "*", intcode.FLOORDIV: "//", intcode.MOD: "%", intcode.EQ: "==",
    intcode.NE: "!=", intcode.LE: "<=", intcode.LT: "<", intcode.AND: "and", intcode.OR: "or",
}  # fmt: skip


def disassemble(program: Program, kernel: str | int | None = None) -> str:
    """The text of one kernel (its number in launch order, or its name) or of all. An unknown kernel is an ``InputError``."""
    steps = list(kernel_steps(program.steps))
    chosen = range(len(steps)) if kernel is None else [_find(steps, program, kernel)]
    shown: dict[int, int] = {}  # template -> the kernel under which its instructions were printed
    lines: list[str] = []
    registers = Registers(program.code, [symbol.name for symbol in program.symbols])
    for number in chosen:
        step = steps[number]
        template = program.templates[step.template]
        size = f"{len(template.words)} words, {len(template.patches)} patches, {template.n_buffers} buffers"
        lines.append(f"kernel {number}: {_name(step, template)} (template {step.template}: {size})")
        if step.choice is not None:
            choice = program.choices[step.choice]
            lines.append(f"  when choice {step.choice} ({registers.text(choice.reg)}) is {step.alternative}")
        lines += [f"  p{i} = {registers.text(reg)}" for i, reg in enumerate(step.params)]
        lines += [f"  #{i} = {_buffer(program, program.buffers[b], registers)}" for i, b in enumerate(step.buffers)]
        if step.template in shown:
            lines.append(f"  instructions as in kernel {shown[step.template]}")
        else:
            shown[step.template] = number
            lines += instructions(template)
        lines.append("")
    return "\n".join(lines).rstrip() or "no kernels"


def walk(steps: Iterable[Step]) -> Iterator[Step]:
    """All steps of a program in order, those in branches and loops included."""
    for step in steps:
        yield step
        for name in ("branches", "cond", "body"):
            inner = getattr(step, name, ())
            for block in inner if name == "branches" else (inner,):
                yield from walk(block)


def kernel_steps(steps: Iterable[Step]) -> Iterator[KernelStep]:
    """All kernel launches of a program in the order of its steps."""
    return (step for step in walk(steps) if isinstance(step, KernelStep))


def _name(step: KernelStep, template: Template) -> str:
    return step.name or template.name or "unnamed"


def _find(steps: Sequence[KernelStep], program: Program, kernel: str | int) -> int:
    if isinstance(kernel, int) and 0 <= kernel < len(steps):
        return kernel
    for number, step in enumerate(steps):
        if kernel in (step.name, program.templates[step.template].name) and kernel:
            return number
    names = ", ".join(f"{i} {_name(s, program.templates[s.template])}" for i, s in enumerate(steps)) or "none"
    raise InputError(f"there is no kernel {kernel!r}; the program has {names}")


def _buffer(program: Program, buffer: Buffer, registers: Registers) -> str:
    dims = ", ".join(map(registers.text, buffer.dims))
    if buffer.constant is not None:
        what = f"constant {buffer.constant}"
    elif buffer.input is not None:
        what = f"input {program.inputs[buffer.input].name}"
    elif buffer.output is not None:
        what = f"output {program.outputs[buffer.output].name}"
    else:
        what = f"{SPACE_NAMES[buffer.space]} {buffer.name}".rstrip()
    return f"{what}: {buffer.dtype}[{dims}]"


class Registers:
    """Registers of integer code as expressions of the symbols."""

    def __init__(self, code: IntCode, symbols: Sequence[str]):
        self._code = code
        self._texts: dict[int, tuple[str, bool]] = {i: (name, True) for i, name in enumerate(symbols)}

    def text(self, register: int) -> str:
        """The expression, or ``r12`` where it would be too long."""
        for at in range(len(self._texts), register + 1):
            self._texts[at] = self._expression(at)
        return self._texts[register][0]

    def _expression(self, register: int) -> tuple[str, bool]:
        """Text, and whether it can be an operand without brackets."""
        op, a, b = self._code.code[register - self._code.n_inputs]
        if op == intcode.CONST:
            return str(a), a >= 0
        if op == intcode.SELECT:
            then, otherwise = b >> 32, b & 0xFFFFFFFF
            text, atom = f"({self._operand(then)} if {self._operand(a)} else {self._operand(otherwise)})", True
        elif op in _INFIX:
            tight = op in (intcode.MUL, intcode.FLOORDIV, intcode.MOD)
            sign = _INFIX[op] if tight else f" {_INFIX[op]} "
            text, atom = f"{self._operand(a)}{sign}{self._operand(b)}", False
        else:
            text, atom = f"{intcode.NAMES[op]}({self._texts[a][0]}, {self._texts[b][0]})", True
        return (text, atom) if len(text) <= _LONGEST else (f"r{register}", True)

    def _operand(self, register: int) -> str:
        text, atom = self._texts[register]
        return text if atom else f"({text})"


def instructions(template: Template) -> list[str]:
    """The instructions of a template, a line each, and a line more for each access term."""
    words, at, depth = template.words, isa.HEAD_WORDS, 0
    holes = {(p.word, p.lo): p.param for p in template.patches}
    relocs = {r.word: r.buffer for r in template.relocs}

    def show(base: int, field: isa.Field) -> str:
        word = base + field.word
        if field.kind == "address" and word in relocs:
            return f"#{relocs[word]}"
        if (word, field.lo) in holes:
            return f"{{p{holes[word, field.lo]}}}"
        value = isa.get(words, base, field)
        if field.kind == "tile":
            return f"t{value}"
        return f"{value:#x}" if field.kind in ("imm", "address") and value else str(value)

    lines = []
    while at < len(words) and words[at]:
        insn = isa.BY_ID.get(isa.get(words, at, isa.HEAD_ID))
        length, count = isa.get(words, at, isa.HEAD_LEN), isa.get(words, at, isa.HEAD_TAIL)
        if insn is None or length < insn.fixed_words + count * insn.tail_words or at + length > len(words):
            lines.append(f"  {at:5}  word {int(words[at]):#018x} is no instruction")
            break
        depth -= insn.name == "endloop"
        tail = [at + insn.fixed_words + i * insn.tail_words for i in range(count)]
        if insn.name == "tile":
            body = _tile(words, at, tail)
        else:
            named = [f"{f.name}={_value(insn, f, show(at, f))}" for f in insn.fields]
            joined = [f"{f.name}={show(base, f)}" for base in tail for f in insn.tail] if insn.tail_words == 1 else []
            body = " ".join(named + joined)
        sync = " ".join(_sync(words, at))
        lines.append(f"  {at:5}  {'  ' * depth}{insn.name:<11} {body}{f'  ; {sync}' if sync else ''}".rstrip())
        if insn.tail_words > 1:
            lines += [f"         {'  ' * depth}  | {_term(base, insn, show)}" for base in tail]
        depth += insn.name == "loop"
        at += length
    return lines


def template_text(template: Template) -> str:
    """A template as ``vm.assembler.assemble_template`` reads it back, bit for bit."""
    words = template.words
    head = f"template {template.name or '-'} params={template.n_params} buffers={template.n_buffers}"
    if isa.get(words, 0, isa.ENTRY_MIX):
        head += " mix=1"
    if blocks := isa.get(words, 0, isa.ENTRY_BLOCKS):
        head += f" block_dim={blocks}"
    return "\n".join([head, *instructions(template), "end", ""])


def _sync(words: np.ndarray, at: int) -> Iterator[str]:
    """The events and the barrier of an instruction's head, as ``wait=MTE2:3``."""
    fields = {f.name: isa.get(words, at, f) for f in isa.SYNC}
    for name in ("wait", "back_wait", "set", "back_set"):
        pipe, event = fields[f"{name}_pipe"], fields[f"{name}_event"]
        if pipe or event:
            yield f"{name}={_pipe(pipe)}:{event}"
    if fields["barrier"]:
        yield "barrier"


def _pipe(number: int) -> str:
    return isa.Pipe(number).name if number < len(isa.Pipe) else str(number)


def _value(insn: isa.Insn, field: isa.Field, text: str) -> str:
    if insn.family == "sync" and field.name in ("pipe", "other"):
        return _pipe(int(text)) if text.isdigit() else text
    if insn.name != "loop" or field.name != "kind" or text not in map(str, map(int, isa.LoopKind)):
        return text
    return isa.LoopKind(int(text)).name


def _tile(words: np.ndarray, at: int, tail: Sequence[int]) -> str:
    fields = {f.name: isa.get(words, at, f) for f in isa.TABLE["tile"].fields}
    size, axis = isa.TABLE["tile"].tail
    dims = []
    for base in tail:
        n, a = isa.get(words, base, size), isa.get(words, base, axis)
        dims.append(str(n) if a == isa.NO_AXIS else f"axis{a} {n}")
    dtype = isa.DTYPES[fields["dtype"]].name if fields["dtype"] < len(isa.DTYPES) else f"dtype{fields['dtype']}"
    space = isa.Space(fields["space"]).name if fields["space"] < len(isa.Space) else f"space{fields['space']}"
    places = f" x{fields['more'] + 1}" if fields["more"] else ""
    return f"t{fields['id']}: {dtype}[{', '.join(dims)}] {space}@{fields['address']}{places}"


def _term(base: int, insn: isa.Insn, show: Callable[[int, isa.Field], str]) -> str:
    """The fields of a term that say something."""
    texts = {f.name: show(base, f) for f in insn.tail}
    if texts.get("dim") == str(isa.NO_DIM):
        texts["dim"] = "none"
    quiet = {"0"} | ({"t0"} if texts.get("gather") == "0" else set())
    return " ".join(f"{name}={text}" for name, text in texts.items() if name == "dim" or text not in quiet)
