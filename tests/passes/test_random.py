"""Random graphs: every pass alone and the whole pipeline leave the meaning alone, at sizes 0 and 1 too."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graph_kernel.passes import MAX_ROUNDS, PASSES, find, optimise
from graph_kernel.passes.base import run_passes
from graph_kernel.text import parse, to_text
from graph_kernel.verifier import verify
from tests.passes.random_graphs import SIZES, assert_same, random_graph, run

seeds = st.integers(0, 2**32 - 1)


@given(seeds, st.integers(4, 30))
@settings(max_examples=150)
def test_pipeline(seed: int, nodes: int) -> None:
    graph = random_graph(seed, nodes)
    want = [run(graph, dims) for dims in SIZES]
    reports = optimise(graph, verify=True)
    assert reports[-1].round < MAX_ROUNDS, "no fixpoint"
    for dims, results in zip(SIZES, want, strict=True):
        assert_same(run(graph, dims), results)


@pytest.mark.parametrize("name", PASSES)
@given(seeds)
@settings(max_examples=25)
def test_each_pass_alone(name: str, seed: int) -> None:
    graph = random_graph(seed, 16)
    want = [run(graph, dims) for dims in SIZES]
    for _ in range(3):
        run_passes(graph, [find(name)], verify=True)
    for dims, results in zip(SIZES, want, strict=True):
        assert_same(run(graph, dims), results)


@given(seeds)
@settings(max_examples=50)
def test_the_text_parses_back(seed: int) -> None:
    graph = random_graph(seed, 16)
    blobs: dict = {}
    text = to_text(graph, blobs)
    again = parse(text, blobs)
    verify(again)
    assert to_text(again) == text
    assert_same(run(again, SIZES[-1]), run(graph, SIZES[-1]), tol=0)


def test_the_result_does_not_depend_on_the_run() -> None:
    texts = []
    for _ in range(2):
        graph = random_graph(7, 30)
        optimise(graph)
        texts.append(to_text(graph))
    assert texts[0] == texts[1]


@pytest.mark.slow
def test_many_graphs() -> None:
    for seed in range(20_000):
        graph = random_graph(seed, 8 + seed % 24)
        want = [run(graph, dims) for dims in SIZES]
        optimise(graph)
        for dims, results in zip(SIZES, want, strict=True):
            assert_same(run(graph, dims), results)
