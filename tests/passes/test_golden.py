"""Each pass on small graphs: ``golden/PASS.txt`` holds cases of a title, the graph before and the graph after.

``pytest tests/passes --update-golden`` writes the graphs after again; read the difference. Every case is also run before and after,
at several sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from graph_kernel.ir import Graph
from graph_kernel.passes import PASSES, find, optimise
from graph_kernel.passes.base import run_passes
from graph_kernel.passes.outline_repeats import OutlineRepeats
from graph_kernel.text import parse, to_text
from graph_kernel.verifier import verify
from tests.passes.random_graphs import assert_same, run

GOLDEN = Path(__file__).parent / "golden"
SIZES = (0, 1, 2, 5)


@dataclass
class Case:
    """One case of a golden file."""

    pass_name: str
    title: str
    before: str
    after: str


def read(path: Path) -> list[Case]:
    """The cases of a file."""
    cases = []
    for block in path.read_text().split("=== ")[1:]:
        title, _, rest = block.partition("\n")
        before, _, after = rest.partition("--- after\n")
        cases.append(Case(path.stem, title.strip(), before, after))
    return cases


CASES = [case for path in sorted(GOLDEN.glob("*.txt")) for case in read(path)]


def transformed(case: Case) -> Graph:
    """The graph after the pass and dead-code elimination, verified in between."""
    graph = parse(case.before)
    if case.pass_name == "pipeline":
        optimise(graph, verify=True)
        return graph
    item = find(case.pass_name)
    if isinstance(item, OutlineRepeats):  # which leaves small graphs alone
        item = OutlineRepeats(nodes=0, repeats=3)
    for _ in range(3):
        run_passes(graph, [item, find("dce")], verify=True)
    return graph


def sizes(graph: Graph) -> list[dict[str, int]]:
    """Sizes to run at: every symbol alike, and all different, where the scope allows."""
    names = [name for name, info in graph.scope.symbols.items() if not info.data_dependent]
    found = [dict.fromkeys(names, n) for n in SIZES]
    found += [{name: 2 + i for i, name in enumerate(names)}, {name: 2**i for i, name in enumerate(names)}]
    data = dict.fromkeys(graph.scope.symbols, 1)  # bound when the node has run; here only for the ranges
    return [dims for dims in found if graph.scope.holds(data | dims)] if names else [{}]


@pytest.fixture(scope="module")
def expected(request: pytest.FixtureRequest) -> dict[tuple[str, str], str]:
    """The graphs after, by pass and title; written anew first where that is asked for."""
    cases = CASES
    if request.config.getoption("--update-golden"):
        for path in sorted(GOLDEN.glob("*.txt")):
            texts = [
                f"=== {c.title}\n{to_text(parse(c.before))}--- after\n{to_text(transformed(c))}" for c in read(path)
            ]
            path.write_text("\n".join(texts))
        cases = [case for path in sorted(GOLDEN.glob("*.txt")) for case in read(path)]
    return {(case.pass_name, case.title): case.after for case in cases}


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.pass_name}: {c.title}")
def test_golden(case: Case, expected: dict[tuple[str, str], str]) -> None:
    before, after = parse(case.before), transformed(case)
    assert to_text(after).strip() == expected[case.pass_name, case.title].strip()
    verify(before)
    tried = sizes(before)
    assert tried
    for dims in tried:
        assert_same(run(after, dims), run(before, dims))


def test_every_pass_has_cases() -> None:
    assert {case.pass_name for case in CASES} == {*PASSES, "pipeline"}


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.pass_name}: {c.title}")
def test_names_and_types_of_the_outside_stay(case: Case) -> None:
    before, after = parse(case.before), transformed(case)
    assert [(v.name, v.shape, v.dtype) for v in before.inputs] == [(v.name, v.shape, v.dtype) for v in after.inputs]
    for old, new in zip(before.outputs, after.outputs, strict=True):
        assert old.dtype == new.dtype and old.rank == new.rank
        assert all(a == b or after.scope.equal(a, b) for a, b in zip(old.shape, new.shape, strict=True))


def test_special_values_survive_simplification() -> None:
    """NaN, infinities and signed zeros through every float rule of the simplifier."""
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -2.0, 3e38], np.float32)
    from graph_kernel.evaluate import evaluate

    for case in CASES:
        before = parse(case.before)
        if case.pass_name != "simplify" or any(v.dtype != np.float32 or v.shape != (8,) for v in before.inputs):
            continue
        arrays = [np.roll(special, 3 * i) for i in range(len(before.inputs))]
        after = transformed(case)
        for got, want in zip(evaluate(after, arrays, {}), evaluate(before, arrays, {}), strict=True):
            if "(rounding)" in case.title:
                np.testing.assert_allclose(got, want, rtol=1e-6)
            else:
                np.testing.assert_array_equal(got, want)
            if got.dtype == np.float32:
                number = ~np.isnan(want)
                np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(want)[number])
