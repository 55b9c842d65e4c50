"""SymPy's view of a dim, for printing and polynomial help. Division and friends are our own functions: SymPy's ``Mod`` simplifies
nested cases wrongly, and its ``floor`` lets rationals out."""

from __future__ import annotations

from typing import Any

import sympy

from symbolic import functions
from symbolic.expr import BROADCAST, FLOORDIV, MAX, MIN, MOD, SYMBOL, Dim, Expr, make, symbol, to_dim
from vm.errors import CompileError


class _IntegerFunction(sympy.Function):
    """A function of integers that is an integer; it folds numbers and nothing else."""

    is_integer = True
    op = ""

    @classmethod
    def eval(cls, *args: Any) -> Any:
        """The value where all arguments are integers, else None (stays an application)."""
        if all(isinstance(a, sympy.Integer) for a in args):
            return sympy.Integer(functions.apply_ints(cls.op, [int(a) for a in args]))
        return None


class FloorDiv(_IntegerFunction):
    """``a // b``, rounding down; 0 where b is 0."""

    op, nargs = FLOORDIV, 2


class Mod(_IntegerFunction):
    """``a % b`` with the sign of b; 0 where b is 0. Not ``sympy.Mod``."""

    op, nargs = MOD, 2


class Max(_IntegerFunction):
    """The largest argument."""

    op = MAX


class Min(_IntegerFunction):
    """The smallest argument."""

    op = MIN


class Broadcast(_IntegerFunction):
    """The largest argument that is not 1, or 1."""

    op = BROADCAST


_CLASSES = {cls.op: cls for cls in (FloorDiv, Mod, Max, Min, Broadcast)}


def to_sympy(dim: Dim) -> sympy.Expr:
    """The SymPy form of ``dim``."""
    if isinstance(dim, int):
        return sympy.Integer(dim)
    terms = []
    for mono, c in dim.ordered():
        factors = [
            sympy.Symbol(a.args[0], integer=True) if a.op == SYMBOL else _CLASSES[a.op](*map(to_sympy, a.args))
            for a in mono
        ]
        terms.append(sympy.Mul(sympy.Integer(c), *factors))
    return sympy.Add(*terms)


def from_sympy(expr: sympy.Expr) -> Dim:
    """The dim of a SymPy expression made of integers, integer symbols, + * ** and our functions."""
    if isinstance(expr, sympy.Integer):
        return int(expr)
    if isinstance(expr, sympy.Symbol):
        return symbol(expr.name)
    if isinstance(expr, sympy.Add | sympy.Mul):
        result: Dim = 0 if isinstance(expr, sympy.Add) else 1
        for arg in expr.args:
            value = from_sympy(arg)
            result = result + value if isinstance(expr, sympy.Add) else result * value
        return result
    if isinstance(expr, sympy.Pow) and isinstance(expr.exp, sympy.Integer) and expr.exp >= 0:
        return to_dim(from_sympy(expr.base)) ** int(expr.exp)
    if isinstance(expr, _IntegerFunction):
        return functions.apply(expr.op, [from_sympy(a) for a in expr.args])
    raise CompileError(f"{expr} is not an integer expression of dimensions")


__all__ = ["Broadcast", "Expr", "FloorDiv", "Max", "Min", "Mod", "from_sympy", "make", "to_sympy"]
