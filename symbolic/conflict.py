"""Which of many facts clash: the smallest set that a search by leaving out one after the other finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from symbolic.expr import symbol
from symbolic.learn import Contradiction, Knowledge
from symbolic.prover import Prover
from symbolic.relations import Relation, divides, le

MAX_PARTS = 48


@dataclass(frozen=True)
class Part:
    """One thing that was said: a relation and the line that shows it."""

    rel: Relation
    text: str


def declared_parts(name: str, low: int, high: int | None, multiple: int, remainder: int, text: str) -> list[Part]:
    """What a declaration says, apart."""
    s = symbol(name)
    parts = [Part(le(low, s), f"{le(low, s)}  ({text})")]
    if high is not None:
        parts.append(Part(le(s, high), f"{le(s, high)}  ({text})"))
    if multiple > 1:
        line = f"{s} % {multiple} == {remainder}"
        parts.append(Part(divides(multiple, s - remainder), f"{line}  ({text})"))
    return parts


def smallest(parts: Sequence[Part], rel: Relation) -> list[Part] | None:
    """A subset of ``parts`` that contradicts ``rel``, none of which can be left out; None if all together are not found to."""
    kept = list(parts[:MAX_PARTS])
    if not _clash(kept, rel):
        kept = list(parts)
        if len(parts) > 4 * MAX_PARTS or not _clash(kept, rel):
            return None
    for part in list(kept):
        rest = [p for p in kept if p is not part]
        if _clash(rest, rel):
            kept = rest
    return kept


def _clash(parts: Sequence[Part], rel: Relation) -> bool:
    store = Knowledge()
    for name in dict.fromkeys(s for r in (*(p.rel for p in parts), rel) for s in r.symbols):
        store.add_symbol(name, None, None)
    store.changed()
    try:
        for part in parts:
            store.learn(part.rel, part.text)
        store.learn(rel, str(rel))
    except Contradiction:
        return True
    fresh = Knowledge()
    for name in dict.fromkeys(s for r in (*(p.rel for p in parts), rel) for s in r.symbols):
        fresh.add_symbol(name, None, None)
    for part in parts:
        fresh.learn(part.rel, part.text)
    return Prover(fresh).impossible(rel)
