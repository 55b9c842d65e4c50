"""The range of a dim over sizes that become known later, in terms of those that are known now.

The number of entries that a mask selects is known only when the program has computed the mask, but memory is laid out before. So every
data-dependent symbol has a limit over symbols that are known earlier, and what is sized by it gets room for the most that it can need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from symbolic import relations
from symbolic.expr import BROADCAST, FLOORDIV, MAX, MIN, MOD, SYMBOL, Atom, Dim, Expr, atom_expr
from symbolic.functions import floordiv, smax, smin
from symbolic.relations import le
from symbolic.scope import Scope
from vm.errors import CompileError

Range = tuple[Dim, Dim]  # lowest, highest


def limits(scope: Scope, names: Sequence[str]) -> dict[str, Dim]:
    """For each of ``names``, in the order in which they become known, the most it can be; over other symbols only.

    Raises ``CompileError`` for a symbol of which no fact says so.
    """
    found: dict[str, Dim] = {}
    waiting = set(names)
    for name in names:
        info = scope.symbols[name]
        candidates: list[Dim] = [] if info.max is None else [info.max]
        for fact in scope.facts_about(name):
            if fact.rel.op == relations.LE and isinstance(fact.rel.args[0], Expr):
                small, large = fact.rel.args
                if small.as_symbol == name and waiting.isdisjoint(large.symbols if isinstance(large, Expr) else ()):
                    candidates.append(large)
        if not candidates:
            raise CompileError(f"the size {name} ({info.origin}) depends on data and has no upper limit")
        found[name] = highest(scope, candidates[0], found)
        waiting.discard(name)
    return found


def highest(scope: Scope, dim: Dim, tops: Mapping[str, Dim]) -> Dim:
    """The most that ``dim`` can be where each symbol of ``tops`` lies between its declared minimum and the value there.

    The result has none of these symbols. Raises ``CompileError`` where no such bound is found.
    """
    if not isinstance(dim, Expr) or dim.symbol_set.isdisjoint(tops):
        return dim
    return _Ranges(scope, tops).of(dim)[1]


class _Ranges:
    def __init__(self, scope: Scope, tops: Mapping[str, Dim]) -> None:
        self.scope, self.tops = scope, tops
        self.memo: dict[Atom, Range] = {}

    def of(self, dim: Dim) -> Range:
        if not isinstance(dim, Expr) or dim.symbol_set.isdisjoint(self.tops):
            return dim, dim
        low: Dim = 0
        high: Dim = 0
        for mono, c in dim.terms.items():
            lo, hi = self._product(mono)
            low, high = (low + c * lo, high + c * hi) if c > 0 else (low + c * hi, high + c * lo)
        return low, high

    def _product(self, mono: Sequence[Atom]) -> Range:
        result: Range = (1, 1)
        for atom in mono:
            a, b = result, self._atom(atom)
            if self._natural(a[0]) and self._natural(b[0]):
                result = (a[0] * b[0], a[1] * b[1])
            else:
                ends = [x * y for x in a for y in b]
                result = (smin(*ends), smax(*ends))
        return result

    def _natural(self, dim: Dim) -> bool:
        return dim >= 0 if isinstance(dim, int) else self.scope.proves(le(0, dim))

    def _atom(self, atom: Atom) -> Range:
        if atom not in self.memo:
            self.memo[atom] = self._atom_range(atom)
        return self.memo[atom]

    def _atom_range(self, atom: Atom) -> Range:
        if self.tops.keys().isdisjoint(atom.symbols):
            dim = atom_expr(atom)
            return dim, dim
        if atom.op == SYMBOL:
            return self.scope.symbols[atom.args[0]].min, self.tops[atom.args[0]]
        parts = [self.of(arg) for arg in atom.args]
        lows, highs = [p[0] for p in parts], [p[1] for p in parts]
        if atom.op == MAX:
            return smax(*lows), smax(*highs)
        if atom.op == MIN:
            return smin(*lows), smin(*highs)
        if atom.op == BROADCAST:  # one of the sizes, or the only one that is not 1
            return smin(*lows), smax(*highs)
        divisor = atom.args[1]
        if atom.op == FLOORDIV and isinstance(divisor, int) and divisor > 0:
            return floordiv(lows[0], divisor), floordiv(highs[0], divisor)
        if atom.op == MOD and isinstance(divisor, int) and divisor > 0:
            return 0, divisor - 1
        if atom.op == FLOORDIV and self._natural(lows[0]) and self._natural(lows[1]):
            return 0, highs[0]  # by 0 it is 0
        if atom.op == MOD and self._natural(lows[1]):
            return 0, highs[1]
        raise CompileError(f"{atom_expr(atom)} has no upper limit before {', '.join(sorted(atom.symbols))} is known")


__all__ = ["highest", "limits"]
