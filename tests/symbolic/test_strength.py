"""The questions of the strength table: true where they say so, none a renaming of another, and proved as often as the table says."""

import itertools
import re
from collections import Counter

import pytest

from benchmarks.symbols_queries import FAMILIES, queries
from benchmarks.symbols_strength import OPEN, PROVED, REFUTED, SYSTEMS, ours, scope_of
from symbolic import parse_relation

QUERIES = queries()
NOT_PROVED = {
    "a*a != 2*b*b",
}


def test_there_are_enough_of_each_kind():
    counts = Counter(q.family for q in QUERIES)
    assert len(QUERIES) >= 150 and len(FAMILIES) >= 10 and min(counts.values()) >= 12


def renamed(text: str) -> str:
    """The text with its names replaced in the order of their first occurrence."""
    names: dict[str, str] = {}
    words = ("max", "min", "ceildiv", "broadcast", "or", "given")
    return re.sub(r"[a-z]+", lambda m: m[0] if m[0] in words else names.setdefault(m[0], f"x{len(names)}"), text)


def test_none_is_a_renaming_of_another():
    seen = Counter(renamed(q.text) for q in QUERIES)
    assert [text for text, n in seen.items() if n > 1] == []
    assert len({(str(parse_relation(q.relation)), q.text) for q in QUERIES}) == len(QUERIES)


@pytest.mark.parametrize("query", QUERIES, ids=lambda q: q.relation)
def test_the_question_is_true_and_answered(query):
    relation, facts = parse_relation(query.relation), [parse_relation(f) for f in query.facts]
    span = {1: 60, 2: 16, 3: 9, 4: 6}.get(len(query.declared), 4)
    values = [
        [
            v
            for v in range(d.min, d.min + span * d.multiple_of)
            if v % d.multiple_of == 0 and (d.max is None or v <= d.max)
        ]
        for d in query.declared
    ]
    points = [dict(zip((d.name for d in query.declared), p, strict=True)) for p in itertools.product(*values)]
    points = [p for p in points if all(f.holds(p) for f in facts)]
    answer = ours(query)
    if query.family == "false":
        found = scope_of(query).prove(relation)
        assert answer == REFUTED and not relation.holds(found.counterexample)
        return
    assert points and all(relation.holds(p) for p in points)
    assert answer == (OPEN if query.relation in NOT_PROVED else PROVED)


@pytest.mark.parametrize("key, module", [("jax", "jax"), ("torch", "torch"), ("tvm", "tvm"), ("tvm_z3", "tvm")])
def test_whatever_a_peer_proves_is_proved(key, module):
    pytest.importorskip(module)
    _, ask = SYSTEMS[key]
    decided = [q for q in QUERIES if ask(q) == PROVED and q.family != "false"]
    assert decided and [q.text for q in decided if q.relation in NOT_PROVED] == []
