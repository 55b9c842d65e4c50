"""Z3's view of dims, relations and scopes: an oracle that shares no code with the engine."""

from __future__ import annotations

import z3

from symbolic import Dim, Relation, Scope
from symbolic.expr import BROADCAST, FLOORDIV, MAX, SYMBOL


def dim_to_z3(dim: Dim) -> z3.ArithRef:
    """The integer term of ``dim``; division rounds down, by zero it gives zero."""
    if isinstance(dim, int):
        return z3.IntVal(dim)
    total = z3.IntVal(0)
    for mono, c in dim.terms.items():
        term = z3.IntVal(c)
        for atom in mono:
            term = term * _atom(atom)
        total = total + term
    return total


def _atom(atom):
    if atom.op == SYMBOL:
        return z3.Int(atom.args[0])
    args = [dim_to_z3(a) for a in atom.args]
    if atom.op == BROADCAST:
        result = args[0]
        for other in args[1:]:
            larger = z3.If(result >= other, result, other)
            result = z3.If(result == 1, other, z3.If(other == 1, result, larger))
        return result
    if atom.op not in (FLOORDIV, "mod"):
        result = args[0]
        for other in args[1:]:
            keep = result >= other if atom.op == MAX else result <= other
            result = z3.If(keep, result, other)
        return result
    x, d = args
    # Z3 divides as Euclid did, which is floor division for a positive divisor; x // d == (-x) // (-d).
    if atom.op == FLOORDIV:
        whole = z3.If(d > 0, x / d, (-x) / (-d))
    else:
        whole = z3.If(d > 0, x % d, -((-x) % (-d)))
    return z3.If(d == 0, z3.IntVal(0), whole)


def relation_to_z3(rel: Relation) -> z3.BoolRef:
    """The formula of ``rel``."""
    if rel.op == "either":
        return z3.Or([relation_to_z3(r) for r in rel.args])
    a, b = (dim_to_z3(d) for d in rel.args)
    if rel.op == "divides":
        return z3.If(a == 0, b == 0, b % z3.If(a > 0, a, -a) == 0)
    return {"eq": a == b, "ne": a != b, "le": a <= b, "lt": a < b}[rel.op]


def known(scope: Scope) -> list[z3.BoolRef]:
    """Declarations and facts."""
    out = []
    for info in scope.symbols.values():
        s = z3.Int(info.name)
        out.append(s >= info.min)
        if info.max is not None:
            out.append(s <= info.max)
        if info.multiple_of > 1:
            out.append(s % info.multiple_of == info.remainder)
    return out + [relation_to_z3(f.rel) for f in scope.facts]


def refutes(scope: Scope, rel: Relation, milliseconds: int = 1000) -> bool | None:
    """Whether some assignment meets the scope and breaks ``rel``; None where Z3 does not know in time."""
    solver = z3.Solver()
    solver.set("timeout", milliseconds)
    solver.set("random_seed", 1)
    solver.add(*known(scope), z3.Not(relation_to_z3(rel)))
    answer = solver.check()
    return None if answer == z3.unknown else answer == z3.sat
