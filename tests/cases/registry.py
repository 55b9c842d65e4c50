"""The table of small inputs on which comparable systems fail, and the two decorators by which tests say which row they are for.

``value`` marks the test of a row's own input. ``further`` runs a test once for each of several more inputs of the row's kind (another
operation, axis, element type, front end or relation); ``test_table.py`` checks that every row has a value test and at least three more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import pytest

ROWS = {
    1: "x[2a] + y[2b] where a == b is declared",
    2: "a size that may be 0: add, reduce, concat",
    3: "x[b] reshaped to (-1, 8), b a multiple of 8; c%4, (2c)%16, a//2 + (a+1)//2",
    4: "one elementwise and reduce function at 200 lengths",
    5: "causal attention at every length, the mask one wider",
    6: "concat of past and new keys, past in 0, 1, 7",
    7: "x[B,16] + y[4,16]",
    8: "three inputs whose sizes are each 0, 1 or 5",
    9: "a length padded to max(s, 16)",
    10: "RMSNorm over [s, 256] with s == 256 among the shapes",
    11: "[u,4,20] transposed, then reshaped to (-1, 80)",
    12: "inputs [2*s] and [s]",
    13: "pool by 2, enlarge by 2, add to the input",
    14: "one program at s = 32, 1, 64, 32",
    15: "two inputs that name the same dim, fed 4 and 6",
    16: "a reshape to sizes that an exporter baked",
    17: "the dims of results are expressions of the inputs'",
    18: "Shape, Gather, Concat, Reshape leave no node",
    19: "a value that is a shape feeds two branches",
    20: "block scaling",
    21: "broadcasts that must keep their shape",
    22: "a mask that fits one batch only",
    23: "Mod(8*Mod(x//64, 4), 64) at 148",
    24: "((24*a + 672)*(b*c//2016) + 21)//22 is an integer",
    25: "unnamed dims are different symbols",
    26: "a branch that depends on the data, at any shape",
}
VALUES: dict[int, list[str]] = defaultdict(list)
FURTHER: dict[int, dict[str, None]] = defaultdict(dict)

Test = Callable[..., Any]


def value(*rows: int) -> Callable[[Test], Test]:
    """The test has the input of these rows, with its right value."""

    def register(test: Test) -> Test:
        for row in rows:
            VALUES[row].append(test.__name__)
        return test

    return register


def further(row: int, names: str, cases: Sequence[Any]) -> Callable[[Test], Test]:
    """``pytest.mark.parametrize(names, cases)`` whose cases count as inputs of this row's kind."""

    def register(test: Test) -> Test:
        for number, _ in enumerate(cases):
            FURTHER[row][f"{test.__name__}[{number}]"] = None
        return pytest.mark.parametrize(names, cases)(test)

    return register
