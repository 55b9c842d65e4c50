"""Equalities solved for symbols: a triangular substitution, the affine generalisation of union-find with path compression."""

from __future__ import annotations

from collections.abc import Callable
from math import gcd

from symbolic.expr import SYMBOL, Dim, Expr, exact_div


class Substitution:
    """Maps eliminated symbols to expressions over the symbols that remain (the roots)."""

    def __init__(self, mapping: dict[str, Dim], rank: Callable[[str], int]) -> None:
        """``mapping`` is filled here; of two candidates the one with the larger ``rank`` is eliminated."""
        self.rank = rank
        self.map = mapping
        self.compressed: Callable[[str, Dim, Dim], None] | None = (
            None  # told of every value that is replaced by an equal one
        )

    def apply(self, dim: Dim) -> Dim:
        """``dim`` over root symbols."""
        if isinstance(dim, int) or not self.map or self.map.keys().isdisjoint(dim.symbol_set):
            return dim
        pending = [name for name in dim.symbols if name in self.map]
        for name in pending:
            self._compress(name)
        return dim.subs({name: self.map[name] for name in pending})

    def _compress(self, name: str) -> None:
        """Makes ``map[name]`` an expression over roots; iterative, because chains can be thousands long."""
        stack = [name]
        while stack:
            top = stack[-1]
            value = self.map[top]
            if isinstance(value, int):
                stack.pop()
                continue
            inner = [s for s in value.symbols if s in self.map]
            if not inner:
                stack.pop()
                continue
            unresolved = [s for s in inner if not self._is_resolved(s)]
            if unresolved:
                stack.extend(unresolved)
                continue
            new = value.subs({s: self.map[s] for s in inner})
            if self.compressed is not None:
                self.compressed(top, value, new)
            self.map[top] = new
            stack.pop()

    def _is_resolved(self, name: str) -> bool:
        value = self.map[name]
        return isinstance(value, int) or self.map.keys().isdisjoint(value.symbol_set)

    def candidate(self, zero: Expr) -> tuple[str, int] | None:
        """The symbol that ``zero == 0`` can be solved for (coefficient +-1, occurring nowhere else), of the largest rank."""
        best: tuple[str, int] | None = None
        for mono, c in zero.terms.items():
            if len(mono) != 1 or abs(c) != 1 or mono[0].op != SYMBOL:
                continue
            name = mono[0].args[0]
            if best is not None and self.rank(name) <= self.rank(best[0]):
                continue
            if any(name in atom.symbols for m in zero.terms if m != mono for atom in m):
                continue
            best = (name, c)
        return best

    def define(self, name: str, value: Dim) -> None:
        """Eliminates the root ``name``: it equals ``value`` (over roots, without ``name``)."""
        self.map[name] = value


def smallest_linear(zero: Expr) -> tuple[str, int] | None:
    """For a purely linear ``zero`` over symbols: the symbol with the smallest coefficient, else None."""
    best: tuple[str, int] | None = None
    for mono, c in zero.ordered():
        if not mono:
            continue
        if len(mono) != 1 or mono[0].op != SYMBOL:
            return None
        if best is None or abs(c) < abs(best[1]):
            best = (mono[0].args[0], c)
    return best


def without_content(zero: Expr) -> Dim | None:
    """``zero`` divided by the gcd of its non-constant coefficients; None where the constant makes ``zero == 0`` impossible."""
    g = 0
    for mono, c in zero.terms.items():
        if mono:
            g = gcd(g, c)
    return None if zero.constant % g else exact_div(zero, g)
