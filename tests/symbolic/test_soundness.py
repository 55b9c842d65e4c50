"""Whatever the engine says is checked by brute force on small ranges."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symbolic import Expr, Scope, divides, eq, evaluate, le, lower, lower_relation, parse, parse_relation, symbol
from tests.symbolic.strategies import NAMES, random_dim, random_relation, random_scope
from vm.errors import CompileError
from vm.intcode import Builder

seeds = st.integers(0, 2**48)


def check_answers(rng: random.Random, queries: int) -> dict[str, int]:
    """Asks ``queries`` questions in one random scope; raises AssertionError for a wrong answer. Returns how many of each kind."""
    scope, points = random_scope(rng)
    counts = {"proved": 0, "disproved": 0, "unknown": 0}
    for _ in range(queries if points else 0):
        rel = random_relation(rng, 2)
        answer = scope.prove(rel)
        where = f"{rel} in {scope.constraints}: {answer}"
        if answer.proved:
            counts["proved"] += 1
            assert all(rel.holds(p) for p in points), where
        elif answer.disproved:
            counts["disproved"] += 1
            example = answer.counterexample
            assert set(rel.symbols) <= example.keys() and not rel.holds(example), where
            assert all(scope.symbols[n].holds(v) for n, v in example.items()), where
            assert all(f.rel.holds(example) for f in scope.facts if set(f.rel.symbols) <= example.keys()), where
        else:
            counts["unknown"] += 1
        check_simplify_and_bounds(scope, rel, points[:: max(1, len(points) // 40)])
    return counts


def check_simplify_and_bounds(scope, rel, points) -> None:
    for dim in rel.args:
        if not isinstance(dim, Expr):
            continue
        simple, (low, high) = scope.simplify(dim), scope.bounds(dim)
        for point in points:
            value = dim.evaluate(point)
            assert evaluate(simple, point) == value, (dim, simple, point, scope.constraints)
            assert (low is None or low <= value) and (high is None or value <= high), (dim, low, high, point)


@settings(max_examples=400, deadline=None)
@given(seeds)
def test_rewrites_hold_for_all_integers(seed):
    """The normal form has the value of the naive evaluation of the text it was read from, negative symbols included."""
    rng = random.Random(seed)
    dim = random_dim(rng, 3)
    points = [{n: rng.randint(-40, 40) for n in NAMES} for _ in range(25)] + [dict.fromkeys(NAMES, v) for v in (0, 1)]
    for mapping in points:
        expected = evaluate(dim, mapping)
        assert type(expected) is int
        replaced = dim.subs(mapping) if isinstance(dim, Expr) else dim
        assert replaced == expected  # substitution rebuilds with all the rules and ends at a number
        swapped = dim.subs({"a": symbol("b"), "b": symbol("a") + 5}) if isinstance(dim, Expr) else dim
        assert evaluate(swapped, mapping) == evaluate(dim, {**mapping, "a": mapping["b"], "b": mapping["a"] + 5})
        half = dim.subs({"a": symbol("b") * 3 + 1}) if isinstance(dim, Expr) else dim
        assert evaluate(half, mapping) == evaluate(dim, {**mapping, "a": 3 * mapping["b"] + 1})


@settings(max_examples=200, deadline=None)
@given(seeds)
def test_printed_form_parses_to_the_same_object(seed):
    rng = random.Random(seed)
    dim, rel = random_dim(rng, 3), random_relation(rng, 2)
    assert parse(str(dim)) == dim
    again = parse_relation(str(rel))
    assert str(again) == str(rel)
    for _ in range(10):
        point = {n: rng.randint(0, 20) for n in NAMES}
        assert again.holds(point) == rel.holds(point)


@settings(max_examples=200, deadline=None)
@given(seeds)
def test_integer_code_computes_the_same(seed):
    rng = random.Random(seed)
    dim, rel = random_dim(rng, 3), random_relation(rng, 2)
    builder = Builder(len(NAMES))
    env = {n: i for i, n in enumerate(NAMES)}
    value, truth = lower(dim, builder, env), lower_relation(rel, builder, env)
    code = builder.finish()
    code.verify()
    for _ in range(20):
        point = {n: rng.randint(-20, 40) for n in NAMES}
        registers = code.run([point[n] for n in NAMES])
        assert registers[value] == evaluate(dim, point)
        assert bool(registers[truth]) == rel.holds(point)


@settings(max_examples=150, deadline=None)
@given(seeds)
def test_no_answer_is_wrong(seed):
    check_answers(random.Random(seed), 3)


@settings(max_examples=100, deadline=None)
@given(seeds)
def test_launch_checks_mean_what_was_required(seed):
    """Dropping implied checks and rewriting them plainly changes nothing: they hold exactly where the requirements do."""
    rng = random.Random(seed)
    scope, points = random_scope(rng)
    required = []
    for _ in range(3):
        rel = random_relation(rng, 1)
        still = [p for p in points if all(r.holds(p) for r in [*required, rel])]
        try:
            scope.require(rel, "an op")
        except CompileError:
            assert not still, (str(rel), scope.constraints, still[:1])
            continue
        required.append(rel)
    for point in points:
        by_checks = all(c.rel.holds(point) for c in scope.checks)
        assert by_checks == all(r.holds(point) for r in required), (point, list(map(str, required)), scope.constraints)


@pytest.mark.slow
def test_no_answer_is_wrong_in_100000_queries():
    total = {"proved": 0, "disproved": 0, "unknown": 0}
    seed = 0
    while sum(total.values()) < 100_000:
        for kind, count in check_answers(random.Random(seed), 5).items():
            total[kind] += count
        seed += 1
    print(total)
    assert total["unknown"] < 0.05 * sum(total.values())


def true_relations(rng: random.Random, count: int):
    """Linear, congruence and floor-division relations that brute force finds true on a grid."""
    grid = [dict(zip(NAMES, (x, y, z), strict=True)) for x in range(1, 14) for y in range(1, 14) for z in (1, 2, 5, 6)]
    a, b, c = map(symbol, NAMES)
    while count:
        k, m, d = rng.randint(1, 4), rng.randint(1, 4), rng.choice([2, 3, 4, 6, 8])
        x = rng.choice([a, b, k * a + m, a + k * b, k * a - m * b, a + b + c])
        candidates = [
            le(k * a + m, rng.randint(1, 6) * a + rng.randint(0, 6)),
            le(x, x + rng.randint(0, 3) * b + rng.randint(-2, 3)),
            divides(d, x * rng.randint(1, 8)),
            divides(d, (x // d) * d + rng.choice([0, 0, 1, d])),
            eq((x + rng.choice([0, d, 2 * d])) // d, x // d + rng.randint(0, 2)),
            eq(x % d, (x + rng.choice([d, 1, 2 * d])) % d),
            le((x // d) * d, x + rng.randint(-1, 2)),
            eq((x // d) // k, x // (d * k)),
            le((x + rng.randint(0, d)) // d, x // d + rng.randint(0, 2)),
            eq(sum(((x + i) // d for i in range(d)), 0), x + rng.choice([0, 0, 1])),
        ]
        rel = rng.choice(candidates)
        if isinstance(rel.args[0], int) and isinstance(rel.args[1], int):
            continue
        if all(rel.holds(p) for p in grid):
            count -= 1
            yield rel


def test_nine_in_ten_true_relations_are_proved():
    scope = Scope()
    for name in NAMES:
        scope.declare(name)
    relations = list(dict.fromkeys(true_relations(random.Random(7), 300)))
    unproved = [str(r) for r in relations if not scope.proves(r)]
    assert len(unproved) <= 0.02 * len(relations), unproved
