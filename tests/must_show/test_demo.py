"""The demo at a size that a test can afford: the same program and the same promises."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from benchmarks import demo
from dvm import models

SHAPES = [(1, 1), (2, 7), (1, 33), (4, 16), (3, 64)]


def test_small_demo(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    config = models.scaled(models.load_config("qwen2.5-0.5b"))
    monkeypatch.setattr(models, "load_config", lambda name: config)
    arguments = ["--rounds", "1", "--shapes", ",".join(f"{b}x{s}" for b, s in SHAPES)]
    result = CliRunner().invoke(demo.main, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert sorted((row["batch"], row["sequence"]) for row in data["rows"]) == sorted(SHAPES)
    assert [(row["batch"], row["sequence"]) for row in data["rows"]] != SHAPES  # in random order
    totals = data["totals"]
    assert (totals["graph_compiles"], totals["xla_compiles"], totals["host_ops"]) == (1, 0, 0)
    assert totals["largest_error"] <= demo.TOLERANCE
    assert 0 < totals["program_bytes"]["total"] < totals["jit_bytes"]
    lines = demo.summary(demo.Totals(**totals), len(SHAPES))
    assert "graph compiles 1, XLA compiles during the launches 0, host ops 0" in lines
    demo.show("the title", iter([demo.Row(**row) for row in data["rows"]]), len(SHAPES))
    text = capsys.readouterr().out
    assert "the title" in text and all(f"{b}x{s}" in text for b, s in SHAPES)


def test_the_demo_covers_twelve_shapes_and_fails_if_something_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(set(demo.SHAPES)) >= 12
    totals = demo.Totals(1, 1, 1, 1, 1, 1, 1e-7, 1, 0, 0, {}, 1)
    assert totals.good
    for field, value in (
        ("xla_compiles", 1),
        ("graph_compiles", 2),
        ("largest_error", 1e-3),
        ("largest_error", float("nan")),
    ):
        assert not demo.Totals(**(vars(totals) | {field: value})).good
