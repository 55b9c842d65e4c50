"""The explain verb: symbols, causes, checks, kernels, and answers with proofs."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from dvm.cli import main

MODEL = Path(__file__).parents[1] / "data" / "models" / "llama.onnx"


def run(*args: str) -> str:
    result = CliRunner().invoke(main, ["explain", str(MODEL), *args])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def data():
    return json.loads(
        run("--json", "--constraint", "past + seq == total", "--prove", "seq <= total", "--prove", "seq <= past")
    )


def test_symbols_and_checks(data):
    assert {s["name"] for s in data["symbols"]} >= {"batch", "seq", "past", "total"}
    assert all(s["origin"] for s in data["symbols"])
    assert any("past + seq == total" in c["message"] for c in data["checks"])
    assert data["kernels"] and all("facts" in k for k in data["kernels"])


def test_questions_are_answered_with_steps_or_sizes(data):
    proved, refuted = data["answers"]
    assert proved["answer"] == "proved" and proved["why"][-1].startswith("(")
    assert refuted["answer"] == "refuted" and "seq = " in refuted["why"][0]


def test_text():
    text = run("--prove", "seq + 1 >= 1")
    assert "launch checks: 1" in text and "seq + 1 >= 1: proved" in text and "[declared]" in text


def test_errors():
    result = CliRunner().invoke(main, ["explain", str(MODEL), "--prove", "seq <="])
    assert result.exit_code != 0
    result = CliRunner().invoke(main, ["explain", str(MODEL), "--constraint", "nobody <= 3"])
    assert result.exit_code != 0
