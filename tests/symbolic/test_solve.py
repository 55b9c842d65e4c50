"""Inverse deduction: symbols from input sizes."""

import pytest

from symbolic import Scope, eq, evaluate, solve, symbol
from vm.errors import CompileError


def run(scope, dims, sizes, **options):
    """The symbols that ``solve``'s recipe computes from ``sizes``, and the labels of the checks that fail."""
    labelled = [(f"in{i}", 0, d) for i, d in enumerate(dims)]
    solution = solve(scope, labelled, **options)
    env = {f"@{i}": v for i, v in enumerate(sizes)}
    values = {name: evaluate(dim, env) for name, dim in solution.steps}
    failed = [labelled[i][0] for i, rel in solution.checks if not rel.holds({**env, **values})]
    return values, failed


@pytest.fixture
def scope():
    sc = Scope()
    for name in ("a", "b", "s", "past"):
        sc.declare(name)
    return sc


a, b, s, past = map(symbol, ("a", "b", "s", "past"))


def test_row_1_equal_symbols_are_both_solved(scope):
    scope.assume(eq(a, b), "user")
    assert run(scope, [2 * a, 2 * b], [6, 6]) == ({"a": 3, "b": 3}, [])
    assert run(scope, [2 * a, 2 * b], [7, 6]) == ({"a": 3, "b": 3}, ["in0"])  # an odd size is refused, by name


@pytest.mark.parametrize(
    "dims, sizes", [([2 * s, s], [8, 4]), ([s, 2 * s], [4, 8]), ([2 * s], [8]), ([s * s, s + 1], [16, 5])]
)
def test_row_12_solved_from_what_is_given(scope, dims, sizes):
    assert run(scope, dims, sizes) == ({"s": 4}, [])


def test_a_direct_size_is_preferred(scope):
    solution = solve(scope, [("x", 0, 2 * s), ("y", 1, s)])
    assert solution.steps == [("s", symbol("@1"))] and solution.sources == {"s": (1,)}


def test_sums_and_products(scope):
    assert run(scope, [past + s, s], [12, 5]) == ({"past": 7, "s": 5}, [])
    assert run(scope, [b * s, b], [12, 3]) == ({"b": 3, "s": 4}, [])
    assert run(scope, [b * s, b], [13, 3])[1] == ["in0"]
    assert run(scope, [a + b, a - b], [10, 4]) == ({"a": 7, "b": 3}, [])
    assert run(scope, [a + b + s, a + b, b], [10, 7, 2]) == ({"a": 5, "b": 2, "s": 3}, [])


def test_inputs_that_disagree(scope):
    assert run(scope, [s, s], [4, 6]) == ({"s": 4}, ["in1"])


def test_facts_help(scope):
    scope.assume(eq(past, 2 * a + 1), "user")
    assert run(scope, [a], [3], needed=["past"]) == ({"a": 3, "past": 7}, [])


def test_what_no_input_determines(scope):
    with pytest.raises(CompileError, match="no input size determines s"):
        solve(scope, [("x", 0, s // 2)])
    with pytest.raises(CompileError, match="a, b"):
        solve(scope, [("x", 0, a + b)])
    n = scope.fresh("n")
    assert solve(scope, [("x", 0, s), ("y", 0, n + 1)], data_dependent=[]).steps  # n is bound when it is known


def test_many_inputs_stay_cheap():
    sc = Scope()
    names = [sc.declare(f"n{i}") for i in range(400)]
    dims = [names[0], *[x + y for x, y in zip(names, names[1:], strict=False)]]
    values, failed = run(sc, dims, [1, *[2 * i + 3 for i in range(399)]])
    assert values["n399"] == 400 and not failed
