"""Near-linear growth at small sizes, bounded questions, and documentation that is in step."""

import time
from pathlib import Path

import pytest

from benchmarks import symbols_scale
from benchmarks.symbols_share import CONFIGS, MODELS, of_block, of_model

DOCS = Path(__file__).parents[2] / "docs" / "symbols.md"


@pytest.mark.slow  # ratios of times, which a busy machine can spoil
@pytest.mark.parametrize("name", symbols_scale.CASES)
def test_four_times_the_size_takes_at_most_eight_times_as_long(name):
    run, sizes = symbols_scale.CASES[name]
    small, large = sizes[0] // 4, sizes[0]
    run(small)

    def best(n: int) -> float:
        times = []
        for _ in range(3):
            begun = time.process_time()
            run(n)
            times.append(time.process_time() - begun)
        return min(times)

    assert best(large) < 8 * best(small) + 0.1


@pytest.mark.slow
def test_no_question_takes_longer_than_its_budget_allows():
    for n in (20, 60, 120):
        begun = time.process_time()
        symbols_scale.one_hard_question(n)
        assert time.process_time() - begun < 5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "llama", "mmoe", "qwen2"])
def test_proving_is_a_small_part_of_compiling_a_model(name):
    share = of_model(MODELS / f"{name}.onnx")
    assert share.share < 0.25 and share.proving < 0.5


@pytest.mark.parametrize("name", ["bert", "llama", "mmoe", "qwen2"])
def test_no_node_computes_shapes_and_checks_are_few(name):
    share = of_model(MODELS / f"{name}.onnx")
    assert share.shape_nodes == 0 and len(share.checks) <= 2


@pytest.mark.slow
def test_proving_is_a_small_part_of_compiling_a_block():
    share = of_block("qwen2.5-0.5b")
    assert share.share < 0.25 and share.proving < 0.5


@pytest.mark.parametrize("name", CONFIGS)
def test_no_node_of_a_block_computes_shapes_and_it_needs_no_check(name):
    share = of_block(name)
    assert share.checks == [] and share.shape_nodes == 0


def test_the_documentation_has_every_case():
    text = DOCS.read_text()
    assert all(f"| {name} |" in text for name in symbols_scale.CASES)
    for section in ("strength", "scale", "share"):
        assert f"<!-- generated: {section} -->\n|" in text
