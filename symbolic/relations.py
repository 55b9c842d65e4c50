"""Relations between dims: what a scope is told, asked to prove, or leaves to be checked at launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from symbolic.expr import FLOORDIV, MOD, Dim, Expr, evaluate, substitute, to_dim

EQ, NE, LE, LT, DIVIDES, EITHER = "eq", "ne", "le", "lt", "divides", "either"
_SIGNS = {EQ: "==", NE: "!=", LE: "<=", LT: "<"}


@dataclass(frozen=True)
class Relation:
    """``op`` over ``args``: two dims, or for ``either`` any number of relations. ``divides`` holds (divisor, dividend).

    Build it with ``eq``, ``ne``, ``le``, ``lt``, ``ge``, ``gt``, ``divides`` and ``either``. It has no truth value.
    """

    op: str
    args: tuple[Any, ...]

    def __bool__(self) -> bool:
        raise TypeError(f"the relation {self} has no truth value: ask Scope.prove, or use holds() with values")

    def holds(self, mapping: Mapping[str, int]) -> bool:
        """Whether the relation is true where every symbol has the given value."""
        if self.op == EITHER:
            return any(r.holds(mapping) for r in self.args)
        a, b = (evaluate(d, mapping) for d in self.args)
        if self.op == EQ:
            return a == b
        if self.op == NE:
            return a != b
        if self.op == LE:
            return a <= b
        if self.op == LT:
            return a < b
        return b % a == 0 if a else b == 0

    @property
    def symbol_set(self) -> frozenset[str]:
        """The names of all symbols in the relation."""
        return frozenset().union(*(a.symbol_set for a in self.args if isinstance(a, Expr | Relation)))

    @property
    def symbols(self) -> tuple[str, ...]:
        """The names of all symbols in the relation, sorted."""
        return tuple(sorted(self.symbol_set))

    def subs(self, mapping: Mapping[str, Dim]) -> Relation:
        """The relation with symbols replaced."""
        if self.op == EITHER:
            return either(*(r.subs(mapping) for r in self.args))
        return Relation(self.op, tuple(substitute(a, mapping) for a in self.args))

    def __str__(self) -> str:
        if self.op == EITHER:
            return " or ".join(map(str, self.args)) or "false"
        a, b = self.args
        if self.op == DIVIDES and isinstance(a, int) and a == 0:
            return f"{b} == 0"  # 0 divides only 0
        if self.op == DIVIDES:
            return f"{_operand(b)} % {_operand(a)} == 0"
        return f"{a} {_SIGNS[self.op]} {b}"


def _operand(dim: Dim) -> str:
    """``dim`` in parentheses unless it is a name, a call or a non-negative number."""
    if isinstance(dim, int):
        return str(dim) if dim >= 0 else f"({dim})"
    atom = dim.as_atom
    return str(dim) if atom is not None and atom.op not in (FLOORDIV, MOD) else f"({dim})"


def eq(a: Any, b: Any) -> Relation:
    """``a == b``."""
    return Relation(EQ, (to_dim(a), to_dim(b)))


def ne(a: Any, b: Any) -> Relation:
    """``a != b``."""
    return Relation(NE, (to_dim(a), to_dim(b)))


def le(a: Any, b: Any) -> Relation:
    """``a <= b``."""
    return Relation(LE, (to_dim(a), to_dim(b)))


def lt(a: Any, b: Any) -> Relation:
    """``a < b``."""
    return Relation(LT, (to_dim(a), to_dim(b)))


def ge(a: Any, b: Any) -> Relation:
    """``a >= b``, kept as ``b <= a``."""
    return le(b, a)


def gt(a: Any, b: Any) -> Relation:
    """``a > b``, kept as ``b < a``."""
    return lt(b, a)


def divides(divisor: Any, dividend: Any) -> Relation:
    """``dividend`` is a multiple of ``divisor`` (0 divides only 0)."""
    return Relation(DIVIDES, (to_dim(divisor), to_dim(dividend)))


def either(*relations: Relation) -> Relation:
    """At least one of ``relations`` holds; nested alternatives are flattened and repeated ones dropped."""
    flat: list[Relation] = []
    for r in relations:
        flat.extend(r.args if r.op == EITHER else (r,))
    unique = tuple(dict.fromkeys(flat))
    return unique[0] if len(unique) == 1 else Relation(EITHER, unique)


def negation(rel: Relation) -> tuple[Relation, ...]:
    """Relations that all hold exactly where ``rel`` does not; empty for ``divides``, which has no such form here."""
    if rel.op == EITHER:
        parts = [negation(r) for r in rel.args]
        return tuple(p for ps in parts for p in ps) if all(parts) else ()
    if rel.op == DIVIDES:
        return ()
    a, b = rel.args
    return ({EQ: ne, NE: eq}[rel.op](a, b),) if rel.op in (EQ, NE) else ((lt if rel.op == LE else le)(b, a),)
