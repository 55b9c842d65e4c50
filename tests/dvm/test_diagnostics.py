"""``DVM_DEBUG``, ``DVM_LOG``, dumps, and their documentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dvm import diagnostics

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for name in ("DVM_DEBUG", "DVM_LOG", "DVM_DUMP_DIR"):
        monkeypatch.delenv(name, raising=False)


def test_silent_by_default(capsys):
    diagnostics.log("fusion", lambda: 1 / 0)
    assert capsys.readouterr().err == ""


def test_topics_and_levels(monkeypatch, capsys):
    monkeypatch.setenv("DVM_LOG", "jit, passes")
    for topic in diagnostics.TOPICS:
        diagnostics.log(topic, "one\ntwo")
    assert capsys.readouterr().err == "".join(f"dvm: {t}: {x}\n" for t in ("jit", "passes") for x in ("one", "two"))
    monkeypatch.setenv("DVM_LOG", "")
    monkeypatch.setenv("DVM_DEBUG", "2")
    assert [t for t in diagnostics.TOPICS if diagnostics.wants(t)] == ["compile", "jit", "passes"]
    monkeypatch.setenv("DVM_DEBUG", "yes")
    assert diagnostics.level() == 0


def test_dumps(monkeypatch, tmp_path):
    monkeypatch.setenv("DVM_DUMP_DIR", str(tmp_path))
    diagnostics.dump("<lambda>", 3, "optimised", lambda: "text")
    assert (tmp_path / "_lambda_" / "03-optimised.txt").read_text() == "text"


def test_every_variable_is_documented():
    """The table in docs/environment.md has every DVM_ variable that the source reads, and no other."""
    read = set()
    for package in ("vm", "symbolic", "graph_kernel", "codegen", "dvm"):
        for path in sorted((ROOT / package).rglob("*.py")):
            read |= set(re.findall(r"""environ(?:\.get\(|\[)\s*["'](DVM_\w+)""", path.read_text()))
    documented = set(re.findall(r"^\| `(DVM_\w+)`", (ROOT / "docs/environment.md").read_text(), re.M))
    assert read | {"DVM_BACKGROUND"} == documented


def test_a_topic_that_does_not_exist_is_said_once(monkeypatch, capsys):
    monkeypatch.setenv("DVM_LOG", "fusions, jit")
    assert diagnostics.wants("jit") and not diagnostics.wants("fusion")
    assert (
        capsys.readouterr().err
        == "dvm: DVM_LOG: no topic fusions; topics are compile, jit, passes, fusion, symbol, all\n"
    )
