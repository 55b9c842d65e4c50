"""Whole shapes, index maps, missing facts and contradictions: three answers, each one checked."""

import itertools
import random

import numpy as np
import pytest

from symbolic import (
    Scope,
    broadcastable,
    divides,
    eq,
    equal_shapes,
    evaluate,
    injective,
    le,
    parse_relation,
    reshapable,
    smax,
    symbol,
)
from vm.errors import CompileError

b, s, t, z, c, i, j, k = map(symbol, "bstzcijk")


@pytest.fixture
def scope():
    sc = Scope()
    for name in "bst":
        sc.declare(name)
    sc.declare("z", min=0)
    sc.declare("c", multiple_of=8)
    return sc


# --- shapes -----------------------------------------------------------------------------------------------------------


def test_equal_shapes(scope):
    assert equal_shapes(scope, (b * s, 4), (s * b, 4)).proved
    answer = equal_shapes(scope, (b, s), (s, b))
    assert answer.disproved and answer.counterexample["b"] != answer.counterexample["s"]
    assert equal_shapes(scope, (b,), (b, 1)).disproved
    scope.assume(eq(b, s), "add")
    assert equal_shapes(scope, (b, s), (s, b)).proved


def test_broadcastable_with_which_result(scope):
    found = broadcastable(scope, (b, 1, 4), (s, 4), (1,))
    assert found.answer.proved and found.shape == (b, s, 4)
    found = broadcastable(scope, (b,), (s,))
    assert found.answer.disproved and found.shape is None
    sizes = found.answer.counterexample
    with pytest.raises(ValueError, match="broadcast"):
        np.broadcast_shapes((sizes["b"],), (sizes["s"],))
    scope.assume(parse_relation("b == s or b == 1 or s == 1"), "add")
    found = broadcastable(scope, (b,), (s,))
    assert found.answer.proved and [evaluate(d, {"b": 1, "s": 7}) for d in found.shape or ()] == [7]
    assert not scope.checks  # asking adds nothing


def test_reshape_with_which_grouping(scope):
    found = reshapable(scope, (b, s, 32), (b * s, 32))
    assert found.answer.proved and found.groups == [((0, 1), (0,)), ((2,), (1,))]
    assert reshapable(scope, (c, s), (c // 8, 8 * s)).answer.proved
    assert reshapable(scope, (b, s), (s + 1, b)).answer.disproved
    found = reshapable(scope, (z, 4), (2, 2, z))
    assert found.answer.proved and found.groups == [((0, 1), (0, 1, 2))]


# --- index maps -------------------------------------------------------------------------------------------------------

INJECTIVE = [
    ({"i": b, "j": s}, [i * s + j]),
    ({"i": b, "j": s}, [i, j]),
    ({"i": b, "j": s}, [3 * i * s + 2 * j]),
    ({"i": b, "j": s, "k": t}, [k, j * b + i]),
    ({"i": b, "j": s, "k": z}, [(i * s + j) * z + k]),  # where z is 0 there is no index
    ({"i": b * 8}, [i // 8, i % 8]),
    ({"i": c // 8, "j": 8}, [8 * i + j]),
    ({"i": b, "j": s}, [b - 1 - i, s - 1 - j]),
    ({"i": 4, "j": 1}, [i]),
    ({"i": 4, "j": 3}, [j + 3 * i]),
    ({"i": b, "j": s}, [i + j, j]),
    ({"i": 0}, [7]),
]
NOT_INJECTIVE = [
    ({"i": b, "j": s}, [i * s + 2 * j]),
    ({"i": b, "j": s}, [i * t + j]),
    ({"i": b * 8}, [i // 8]),
    ({"i": b, "j": s}, [i + j]),
    ({"i": b * s}, [i % s]),
    ({"i": 4, "j": 4}, [j + 3 * i]),
    ({"i": b}, [s]),
]


@pytest.mark.parametrize(("extents", "images"), INJECTIVE)
def test_injective(scope, extents, images):
    answer = injective(scope, extents, images)
    assert answer.proved, answer
    for sizes in itertools.islice(scope.examples("bstzc"), 5):
        points = list(itertools.product(*(range(min(evaluate(e, sizes), 60)) for e in extents.values())))
        seen = {
            tuple(evaluate(m, {**sizes, **dict(zip(extents, p, strict=True))}) for m in images) for p in points[:4000]
        }
        assert len(seen) == len(points[:4000])


@pytest.mark.parametrize(("extents", "images"), NOT_INJECTIVE)
def test_not_injective(scope, extents, images):
    answer = injective(scope, extents, images)
    assert answer.disproved, answer
    at = answer.counterexample
    first, second = {n: at[n] for n in extents}, {n: at[f"{n}'"] for n in extents}
    sizes = {n: v for n, v in at.items() if n in scope.symbols}
    assert first != second
    assert all(0 <= point[n] < evaluate(e, sizes) for point in (first, second) for n, e in extents.items())
    images_at = [[evaluate(m, {**sizes, **point}) for m in images] for point in (first, second)]
    assert images_at[0] == images_at[1]


def test_what_is_missing_for_injectivity(scope):
    scope.declare("w", min=100, max=1000)
    scope.declare("v", min=100, max=1000)
    w, v = symbol("w"), symbol("v")
    answer = injective(scope, {"i": w, "j": v}, [i * w + j * w * w])
    assert answer.proved
    answer = injective(scope, {"i": w * w, "j": w * w}, [i * v + j])
    assert answer.unknown and "v" in answer.missing


# --- missing facts and contradictions ---------------------------------------------------------------------------------


def test_the_missing_fact_is_the_weakest_that_is_found(scope):
    assert scope.missing(eq(c // 16 * 16, c)) == "c % 16 == 0"
    assert scope.missing(eq(smax(b, s), s)) == "b <= s"
    assert scope.missing(eq(b * z // z, b)) == "1 <= z"
    assert scope.missing(eq(2 * b * t, 2 * s * t)) == "b == s"
    assert scope.missing(le(b, s)) == "b <= s"
    for text in ("c//16*16 == c", "max(b, s) == s", "b*z//z == b", "b*t == s*t"):
        rel = parse_relation(text)
        assert not scope.proves(rel)
        helped = scope.restricted("bstzc")
        helped.assume(parse_relation(scope.missing(rel)), "what was missing")
        assert helped.proves(rel), text


def test_a_contradiction_names_the_smallest_set(scope):
    scope.assume(le(s, 4 * b), "first rule")
    scope.assume(le(t, 100), "about something else")
    scope.assume(le(b, 8), "second rule")
    scope.assume(le(b, s + 900), "true but beside the point")
    scope.assume(eq(z, t + 1), "beside the point too")
    with pytest.raises(CompileError) as info:
        scope.assume(le(40, s), "third rule")
    lines = str(info.value).splitlines()
    assert "40 <= s can never hold (third rule)" in lines[0]
    assert lines[1:] == ["  s <= 4*b  (first rule)", "  b <= 8  (second rule)"]
    with pytest.raises(CompileError) as info:
        scope.assume(divides(16, c + 4), "odd")
    assert str(info.value).splitlines()[1:] == ["  c % 8 == 0  (declared)"]


def test_no_part_of_a_contradiction_can_be_left_out():
    rng = random.Random(3)
    found = 0
    for _ in range(120):
        sc = Scope()
        names = [sc.declare(n, min=rng.randint(0, 3), max=rng.choice([None, 9])) for n in "xyz"]
        try:
            for n in range(6):
                left, right = rng.choice(names), rng.choice(names)
                sc.assume(le(left + rng.randint(0, 4), right * rng.randint(1, 2) + rng.randint(-2, 4)), f"rule {n}")
        except CompileError as error:
            found += 1
            cited = [line.strip() for line in str(error).splitlines()[1:]]
            assert len(cited) == len(set(cited)) and (cited or "whatever the sizes" in str(error))
            refused = parse_relation(str(error).split(" can never")[0])
            rules = [parse_relation(line.split("  (")[0]) for line in cited]
            grid = [dict(zip("xyz", p, strict=True)) for p in itertools.product(range(-3, 24), repeat=3)]
            for left_out in rules:
                rest = [r for r in rules if r is not left_out]
                assert any(refused.holds(p) and all(r.holds(p) for r in rest) for p in grid), str(error)
    assert found > 30
