"""Every answer in the slow lane is put to Z3 as well; ``python -m tests.symbolic.test_z3 [QUERIES]`` prints the report."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter

import pytest

from tests.symbolic.strategies import random_relation, random_scope
from tests.symbolic.test_soundness import true_relations

z3_oracle = pytest.importorskip("tests.symbolic.z3_oracle", reason="needs z3-solver", exc_type=ImportError)


def ask(seed: int, queries: int, counts: Counter[str], milliseconds: int) -> None:
    """Some queries of one random scope; raises AssertionError for a wrong answer."""
    rng = random.Random(seed)
    scope, points = random_scope(rng)
    relations = [random_relation(rng, rng.choice([1, 1, 2])) for _ in range(queries)]
    relations += list(true_relations(rng, 2))
    for rel in relations if points else ():
        answer = scope.prove(rel)
        counts["queries"] += 1
        counts["proved" if answer.proved else "disproved" if answer.disproved else "unknown"] += 1
        where = f"seed {seed}: {rel} in {scope.constraints}: {answer}"
        if answer.disproved:
            assert not rel.holds(answer.counterexample), where
            assert all(scope.symbols[n].holds(v) for n, v in answer.counterexample.items()), where
            assert all(
                f.rel.holds(answer.counterexample)
                for f in scope.facts
                if set(f.rel.symbols) <= answer.counterexample.keys()
            ), where
            continue
        assert answer.unknown or all(rel.holds(p) for p in points[:: max(1, len(points) // 200)]), where
        if answer.proved:
            verdict = z3_oracle.refutes(scope, rel, milliseconds)
            counts["z3 agrees" if verdict is False else "z3 does not know"] += 1
            assert verdict is not True, where


def report(queries: int, milliseconds: int = 1000, progress: bool = False) -> Counter[str]:
    """Asks at least so many queries; how many of each answer, and what Z3 said of the proved ones."""
    counts: Counter[str] = Counter()
    seed, begun = 10_000_000, time.monotonic()
    while counts["queries"] < queries:
        ask(seed, 8, counts, milliseconds)
        seed += 1
        if progress and seed % 500 == 0:
            print(f"{time.monotonic() - begun:.0f} s", dict(counts), flush=True)
    return counts


def test_z3_agrees_with_a_sample() -> None:
    counts = report(300, 100)
    assert counts["z3 agrees"] > 50


@pytest.mark.slow
def test_z3_agrees_with_100000_queries() -> None:
    counts = report(100_000)
    print(dict(counts))
    assert counts["unknown"] < 0.05 * counts["queries"]


if __name__ == "__main__":
    print(dict(report(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000, 1000, True)))
