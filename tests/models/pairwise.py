"""Pairwise covering: few rows in which every value, and every pair of values of two factors, occurs."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import combinations, product


def pairwise(factors: Sequence[Sequence[Hashable]]) -> list[tuple]:
    """Rows with one value a factor, in which every pair of values of two factors occurs at least once; deterministic.

    In-parameter-order, largest factors first: all pairs of the first two; then each further factor is added to the rows by the value
    that covers most pairs still missing, and pairs left over get rows of their own.
    """
    order = sorted(range(len(factors)), key=lambda f: -len(factors[f]))
    columns = [list(factors[f]) for f in order]
    rows = [list(row) for row in product(*columns[:2])]
    for n, values in enumerate(columns[2:], start=2):
        missing = {(i, x, y): None for i in range(n) for x, y in product(columns[i], values)}  # a dict keeps its order
        for row in rows:
            best = max(values, key=lambda y: sum((i, row[i], y) in missing for i in range(n)))
            row.append(best)
            _cover(missing, row)
        while missing:
            (i, x, y), *_ = missing
            row = [next((u for (j, u, w) in missing if j == k and w == y), columns[k][0]) for k in range(n)]
            row[i] = x
            row.append(y)
            rows.append(row)
            _cover(missing, row)
    back = [order.index(f) for f in range(len(factors))]
    return [tuple(row[b] for b in back) for row in rows]


def _cover(missing: dict[tuple, None], row: list) -> None:
    for i, x in enumerate(row[:-1]):
        missing.pop((i, x, row[-1]), None)


def uncovered(factors: Sequence[Sequence[Hashable]], rows: Sequence[tuple]) -> list[tuple]:
    """The pairs ((factor, value), (factor, value)) that no row has."""
    pairs = [
        ((f, x), (g, y)) for f, g in combinations(range(len(factors)), 2) for x, y in product(factors[f], factors[g])
    ]
    return [((f, x), (g, y)) for (f, x), (g, y) in pairs if not any(r[f] == x and r[g] == y for r in rows)]
