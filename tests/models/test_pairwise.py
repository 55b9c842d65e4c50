import pytest

from tests.models.pairwise import pairwise, uncovered

FACTORS = [
    [[1, 2, 3]],
    [[1, 2, 3], [1, 2, 7]],
    [[1, 2, 3], [1, 2, 7, 16, 33, 128, 257], [0, 1, 5, 64]],
    [list("abcdef"), ["f32", "bf16"], [1, 2, 3], [1, 2, 7, 16, 33, 128, 257], [0, 1, 5, 64]],
]


@pytest.mark.parametrize("factors", FACTORS, ids=len)
def test_every_value_and_pair_occurs(factors):
    rows = pairwise(factors)
    assert uncovered(factors, rows) == []
    for f, values in enumerate(factors):
        assert {r[f] for r in rows} == set(values)


@pytest.mark.parametrize("factors", FACTORS[1:], ids=len)
def test_rows_are_few(factors):
    a, b = sorted(map(len, factors))[-2:]
    assert a * b <= len(pairwise(factors)) <= 1.3 * a * b


def test_uncovered_finds_what_is_missing():
    factors = [[1, 2], ["x", "y"]]
    assert uncovered(factors, [(1, "x"), (1, "y"), (2, "x")]) == [((0, 2), (1, "y"))]


def test_same_rows_every_time():
    assert pairwise(FACTORS[3]) == pairwise(FACTORS[3])
