"""Looks for an assignment that meets all facts and breaks a relation. Deterministic, bounded, and verified before it is returned."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from symbolic.relations import Relation

if TYPE_CHECKING:
    from symbolic.scope import Scope

_POINTS = 600


def find_counterexample(scope: Scope, rel: Relation, budget: int = _POINTS) -> dict[str, int] | None:
    """Values of the symbols connected with ``rel`` that meet every fact about them and break ``rel``, or None."""
    names, facts = scope.component(rel)
    if not names or len(names) > 12:
        return None
    infos = [scope.symbols[n] for n in names]
    choices = []
    for info in infos:
        first = info.min + (info.remainder - info.min) % info.multiple_of
        picks = [first + k * info.multiple_of for k in (0, 1, 2, 3, 5, 6, 7, 16, 40)]
        if info.max is not None:
            last = info.max - (info.max - info.remainder) % info.multiple_of
            picks = [p for p in picks if p <= last] + [last, last - info.multiple_of]
        choices.append([p for p in dict.fromkeys(picks) if info.holds(p)])
    for values in itertools.islice(_diagonal(choices), budget):
        point = dict(zip(names, values, strict=True))
        if not rel.holds(point) and all(f.rel.holds(point) for f in facts):
            return point
    return None


def _diagonal(choices: list[list[int]]):  # type: ignore[no-untyped-def]
    """Points of the grid, those with small indices first."""
    sizes = [len(c) for c in choices]
    for total in range(sum(sizes)):
        yield from _with_sum(choices, 0, total)


def _with_sum(choices: list[list[int]], at: int, total: int):  # type: ignore[no-untyped-def]
    if at == len(choices) - 1:
        if total < len(choices[at]):
            yield (choices[at][total],)
        return
    for i in range(min(total + 1, len(choices[at]))):
        for rest in _with_sum(choices, at + 1, total - i):
            yield (choices[at][i], *rest)
