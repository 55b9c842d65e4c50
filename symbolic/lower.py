"""Dims and relations as integer code for launch (``vm.intcode``), which runs without SymPy or this package."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from symbolic import relations
from symbolic.expr import BROADCAST, FLOORDIV, MAX, MIN, MOD, SYMBOL, Atom, Dim
from symbolic.relations import Relation
from vm import intcode
from vm.errors import CompileError
from vm.intcode import Builder, Reg

_BINARY = {FLOORDIV: intcode.FLOORDIV, MOD: intcode.MOD, MAX: intcode.MAX, MIN: intcode.MIN}
_COMPARE = {relations.EQ: intcode.EQ, relations.NE: intcode.NE, relations.LE: intcode.LE, relations.LT: intcode.LT}


def lower(dim: Dim, builder: Builder, env: Mapping[str, Reg]) -> Reg:
    """Emits code for ``dim``; ``env`` gives the register of each symbol. Returns the register of the value.

    Raises ``CompileError`` for a symbol that has no register.
    """
    return _lower(dim, builder, env, {})


def _lower(dim: Dim, builder: Builder, env: Mapping[str, Reg], memo: dict[Atom, Reg]) -> Reg:
    if isinstance(dim, int):
        return builder.const(dim)
    total: Reg | None = None
    for mono, c in dim.ordered():
        if not mono:
            value = builder.const(abs(c))
        else:
            value = _lower_atom(mono[0], builder, env, memo)
            for atom in mono[1:]:
                value = builder.op(intcode.MUL, value, _lower_atom(atom, builder, env, memo))
            if abs(c) != 1:
                value = builder.op(intcode.MUL, value, builder.const(abs(c)))
        if total is None:
            total = value if c > 0 else builder.op(intcode.SUB, builder.const(0), value)
        else:
            total = builder.op(intcode.ADD if c > 0 else intcode.SUB, total, value)
    assert total is not None  # an Expr has terms
    return total


def _lower_atom(atom: Atom, builder: Builder, env: Mapping[str, Reg], memo: dict[Atom, Reg]) -> Reg:
    if atom in memo:
        return memo[atom]
    if atom.op == SYMBOL:
        name = atom.args[0]
        if name not in env:
            raise CompileError(f"the dimension {name!r} is needed at launch, but no input determines it")
        reg = env[name]
    else:
        args = []
        for arg in atom.args:
            args.append(_lower(arg, builder, env, memo))
        if atom.op == BROADCAST:
            reg = reduce(lambda a, b: _lower_broadcast(a, b, builder), args)
        else:
            reg = reduce(lambda a, b: builder.op(_BINARY[atom.op], a, b), args)
    memo[atom] = reg
    return reg


def _lower_broadcast(a: Reg, b: Reg, builder: Builder) -> Reg:
    one = builder.const(1)
    larger = builder.op(intcode.MAX, a, b)
    unless_b = builder.select(builder.op(intcode.EQ, b, one), a, larger)
    return builder.select(builder.op(intcode.EQ, a, one), b, unless_b)


def lower_relation(rel: Relation, builder: Builder, env: Mapping[str, Reg]) -> Reg:
    """Emits code that gives 1 where ``rel`` holds and 0 where it does not."""
    if rel.op == relations.EITHER:
        parts = [lower_relation(r, builder, env) for r in rel.args]
        return reduce(lambda a, b: builder.op(intcode.OR, a, b), parts) if parts else builder.const(0)
    memo: dict[Atom, Reg] = {}
    a, b = (_lower(d, builder, env, memo) for d in rel.args)
    if rel.op == relations.DIVIDES:  # b == a * (b // a), which for a == 0 asks for b == 0
        multiple = builder.op(intcode.MUL, a, builder.op(intcode.FLOORDIV, b, a))
        return builder.op(intcode.EQ, b, multiple)
    return builder.op(_COMPARE[rel.op], a, b)
