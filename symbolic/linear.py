"""Linear arithmetic with a certificate: is ``goal >= 0`` a non-negative combination of known inequalities?

Monomials count as variables. ``certificate`` looks for rational multipliers ``m_i >= 0`` such that

    goal - sum(m_i * fact_i)  =  non-negative monomials + c      with c > -1

which proves ``goal > -1``, so ``goal >= 0`` because it is an integer (Farkas' lemma plus one rounding). The multipliers are found
by the simplex method with Bland's rule on an integer tableau (fraction-free pivoting), within a budget of pivots.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from symbolic.expr import Dim, Expr, Mono

MAX_PIVOTS = 120
MAX_CELLS = 12_000


@dataclass(frozen=True)
class Certificate:
    """``denominator * goal - sum(weight * facts[i]) >= 0``: weights are positive integers."""

    denominator: int
    weights: tuple[tuple[int, int], ...]


def certificate(goal: Expr, facts: Sequence[Expr], free: Collection[Mono]) -> Certificate | None:
    """Multipliers that prove ``goal >= 0`` from ``facts[i] >= 0`` and from every monomial that is not ``free`` being >= 0."""
    rows: list[Mono] = list(dict.fromkeys(m for e in (goal, *facts) for m in e.terms if m))
    n = len(facts)
    if len(rows) * (n + 2 * len(rows)) > MAX_CELLS:
        return None
    # Row of monomial y: sum_i m_i * fact_i[y] (+ slack, unless free) == goal[y]. Signs make the right side non-negative.
    slack_of = {m: n + k for k, m in enumerate(m for m in rows if m not in free)}
    width = n + len(slack_of)
    table: list[list[int]] = []
    basis: list[int] = []
    artificial = width
    lacking: list[int] = []
    for index, mono in enumerate(rows):
        rhs = goal.terms.get(mono, 0)
        sign = -1 if rhs < 0 else 1
        row = [sign * f.terms.get(mono, 0) for f in facts] + [0] * len(slack_of) + [sign * rhs]
        if mono in slack_of:
            row[slack_of[mono]] = sign
        if mono in slack_of and sign > 0:
            basis.append(slack_of[mono])
        else:
            basis.append(artificial)
            artificial += 1
            lacking.append(index)
        table.append(row)
    # Objective rows as reduced costs to be maximised: phase 1 drives the artificial variables out, phase 2 raises the constant.
    phase1 = [sum(table[i][j] for i in lacking) for j in range(width + 1)]
    phase2 = [-f.constant for f in facts] + [0] * len(slack_of) + [-goal.constant]
    simplex = _Simplex(table, basis, phase1, phase2, width)
    if lacking and not simplex.run(0, lambda s: s.phase1[width] == 0):
        return None
    if not simplex.drop_artificial() or not simplex.run(1, lambda s: s.phase2[width] < s.d):
        return None
    weights = tuple((col, simplex.table[r][width]) for r, col in enumerate(simplex.basis) if col < n)
    weights = tuple((col, w) for col, w in weights if w)
    return Certificate(simplex.d, tuple(sorted(weights)))


class _Simplex:
    """An integer tableau with common denominator ``d``; column ``width`` is the right side."""

    def __init__(
        self, table: list[list[int]], basis: list[int], phase1: list[int], phase2: list[int], width: int
    ) -> None:
        self.table, self.basis, self.phase1, self.phase2, self.width = table, basis, phase1, phase2, width
        self.d = 1
        self.pivots = 0

    def run(self, phase: int, done) -> bool:  # type: ignore[no-untyped-def]
        """Pivots until ``done``; False where the optimum falls short of it or the budget is used up."""
        while not done(self):
            costs = self.phase2 if phase else self.phase1
            column = next((j for j in range(self.width) if costs[j] > 0), None)
            if column is None or self.pivots >= MAX_PIVOTS:
                return False
            row = self._leaving(column)
            if row is None:  # unbounded: the facts contradict each other, so everything follows
                return self._take_ray(column) if phase else False
            self._pivot(row, column)
        return True

    def _leaving(self, column: int) -> int | None:
        best: int | None = None
        for i, row in enumerate(self.table):
            if row[column] <= 0:
                continue
            if best is None:
                best = i
                continue
            here, there = row[self.width] * self.table[best][column], self.table[best][self.width] * row[column]
            if here < there or (here == there and self.basis[i] < self.basis[best]):
                best = i
        return best

    def _take_ray(self, column: int) -> bool:
        """Moves along an unbounded ray as far as the goal needs, by entering the column with that much weight."""
        need = self.phase2[self.width] - self.d + 1
        steps = -(-need // self.phase2[column]) if need > 0 else 0
        for row in self.table:
            row[self.width] -= steps * row[column]
        self.phase2[self.width] -= steps * self.phase2[column]
        extra = [0] * (self.width + 1)
        extra[column], extra[self.width] = self.d, steps * self.d
        self.table.append(extra)
        self.basis.append(column)
        return True

    def _pivot(self, r: int, c: int) -> None:
        self.pivots += 1
        pivot_row = self.table[r]
        pivot = pivot_row[c]
        for i, row in enumerate(self.table):
            if i != r:
                self.table[i] = self._combine(row, pivot_row, pivot, row[c])
        self.phase1 = self._combine(self.phase1, pivot_row, pivot, self.phase1[c])
        self.phase2 = self._combine(self.phase2, pivot_row, pivot, self.phase2[c])
        self.d = pivot
        self.basis[r] = c

    def _combine(self, row: list[int], pivot_row: list[int], pivot: int, factor: int) -> list[int]:
        d = self.d
        if factor == 0:
            return row if pivot == d else [v * pivot // d for v in row]
        return [(v * pivot - factor * p) // d for v, p in zip(row, pivot_row, strict=True)]

    def drop_artificial(self) -> bool:
        """Pivots artificial variables that are still basic (at value 0) out, or drops their redundant rows."""
        for r in range(len(self.table) - 1, -1, -1):
            if self.basis[r] < self.width:
                continue
            column = next((j for j in range(self.width) if self.table[r][j] != 0), None)
            if column is None:
                del self.table[r], self.basis[r]
                continue
            if self.table[r][column] < 0:
                self.table[r] = [-v for v in self.table[r]]
            self._pivot(r, column)
        return self.pivots < MAX_PIVOTS


def verify(found: Certificate, goal: Expr, facts: Sequence[Expr], free: Collection[Mono]) -> bool:
    """Checks a certificate by plain arithmetic, independently of how it was found."""
    rest: Dim = goal * found.denominator
    for index, weight in found.weights:
        if weight < 0:
            return False
        rest = rest - facts[index] * weight
    if isinstance(rest, int):
        return rest > -found.denominator
    if any(c < 0 or m in free for m, c in rest.terms.items() if m):
        return False
    return found.denominator > 0 and rest.constant > -found.denominator
