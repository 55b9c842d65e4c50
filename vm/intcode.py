"""Integer code: shape expressions as a straight-line register program, evaluated at launch without SymPy.

A program is a list of ``(op, a, b)`` triples. Registers ``0 .. n_inputs-1`` hold the inputs; every triple defines the next
register. ``a`` and ``b`` are register numbers, except in ``CONST`` where ``a`` is the value. Arithmetic is on Python integers,
so nothing wraps. Division and modulo are floor division; a zero divisor gives 0, because an expression that divides by a size
that is 0 is only ever used where its launch check fails or nothing is computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from vm.errors import ProgramError

CONST, ADD, SUB, MUL, FLOORDIV, MOD, MAX, MIN, EQ, NE, LE, LT, AND, OR, SELECT = range(15)
NAMES = ("const", "add", "sub", "mul", "floordiv", "mod", "max", "min", "eq", "ne", "le", "lt", "and", "or", "select")
_COMMUTATIVE = frozenset((ADD, MUL, MAX, MIN, EQ, NE, AND, OR))

Reg = int


def apply(op: int, a: int, b: int) -> int:
    """The meaning of one binary operation on two integers (``SELECT`` is handled by the evaluator: it has three operands)."""
    if op == ADD:
        return a + b
    if op == MUL:
        return a * b
    if op == SUB:
        return a - b
    if op == FLOORDIV:
        return a // b if b else 0
    if op == MOD:
        return a % b if b else 0
    if op == MAX:
        return a if a > b else b
    if op == MIN:
        return a if a < b else b
    if op == EQ:
        return int(a == b)
    if op == NE:
        return int(a != b)
    if op == LE:
        return int(a <= b)
    if op == LT:
        return int(a < b)
    if op == AND:
        return int(bool(a) and bool(b))
    if op == OR:
        return int(bool(a) or bool(b))
    raise ProgramError(f"integer code: unknown operation {op}")


@dataclass(frozen=True)
class IntCode:
    """A finished integer program: ``run`` maps input values to the values of all registers."""

    n_inputs: int
    code: tuple[tuple[int, int, int], ...]

    def zeros(self) -> frozenset[Reg]:
        """The registers that hold the constant 0."""
        return frozenset(self.n_inputs + n for n, (op, a, _) in enumerate(self.code) if op == CONST and a == 0)

    @property
    def n_registers(self) -> int:
        """Inputs plus one register per operation."""
        return self.n_inputs + len(self.code)

    def run(self, inputs: Sequence[int]) -> list[int]:
        """All register values for ``inputs`` (length ``n_inputs``)."""
        regs = list(inputs)
        if len(regs) != self.n_inputs:
            raise ProgramError(f"integer code takes {self.n_inputs} inputs, got {len(regs)}")
        push = regs.append
        for op, a, b in self.code:
            if op == CONST:
                push(a)
            elif op == ADD:
                push(regs[a] + regs[b])
            elif op == MUL:
                push(regs[a] * regs[b])
            elif op == SUB:
                push(regs[a] - regs[b])
            elif op == FLOORDIV:
                push(regs[a] // regs[b] if regs[b] else 0)
            elif op == MIN:
                push(regs[a] if regs[a] < regs[b] else regs[b])
            elif op == MAX:
                push(regs[a] if regs[a] > regs[b] else regs[b])
            elif op == SELECT:  # b packs the two alternatives; see Builder.select
                push(regs[b >> 32] if regs[a] else regs[b & 0xFFFFFFFF])
            else:
                push(apply(op, regs[a], regs[b]))
        return regs

    def verify(self) -> None:
        """Raises ``ProgramError`` unless every operand is an earlier register and every operation is known."""
        for i, (op, a, b) in enumerate(self.code):
            here = self.n_inputs + i
            if op == CONST:
                ok = True
            elif op == SELECT:
                ok = 0 <= a < here and 0 <= (b >> 32) < here and 0 <= (b & 0xFFFFFFFF) < here
            else:
                ok = ADD <= op < SELECT and 0 <= a < here and 0 <= b < here
            if not ok:
                raise ProgramError(f"integer code: operation {i} ({op}, {a}, {b}) is malformed")


@dataclass
class Builder:
    """Emits integer code with common sub-expressions shared and constants folded."""

    n_inputs: int
    _code: list[tuple[int, int, int]] = field(default_factory=list)
    _seen: dict[tuple[int, int, int], Reg] = field(default_factory=dict)
    _constants: dict[Reg, int] = field(default_factory=dict)

    def _emit(self, op: int, a: int, b: int) -> Reg:
        key = (op, a, b)
        reg = self._seen.get(key)
        if reg is None:
            reg = self._seen[key] = self.n_inputs + len(self._code)
            self._code.append(key)
        return reg

    def const(self, value: int) -> Reg:
        """A register that holds ``value``."""
        reg = self._emit(CONST, int(value), 0)
        self._constants[reg] = int(value)
        return reg

    def op(self, op: int, a: Reg, b: Reg) -> Reg:
        """A register that holds ``op(a, b)``."""
        if a in self._constants and b in self._constants:
            return self.const(apply(op, self._constants[a], self._constants[b]))
        if op in _COMMUTATIVE and a > b:
            a, b = b, a
        return self._emit(op, a, b)

    def select(self, cond: Reg, then: Reg, otherwise: Reg) -> Reg:
        """A register that holds ``then`` where ``cond`` is not 0, else ``otherwise``."""
        return self._emit(SELECT, cond, then << 32 | otherwise)

    def constant_of(self, reg: Reg) -> int | None:
        """The value of ``reg`` if it is known while building."""
        return self._constants.get(reg)

    def finish(self) -> IntCode:
        """The program built so far."""
        return IntCode(self.n_inputs, tuple(self._code))
