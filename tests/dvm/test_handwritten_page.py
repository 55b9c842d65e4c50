"""The Python of docs/kernels.md runs as printed, block after block."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from tests.docs.test_pages import blocks, run

PAGE = Path(__file__).parents[2] / "docs" / "kernels.md"


def test_every_block_runs(tmp_path: Path) -> None:
    found = blocks(PAGE, "python")
    assert len(found) == PAGE.read_text().count("```") // 2
    (tmp_path / "page.py").write_text("\n".join(found))
    printed = run([sys.executable, "page.py"], tmp_path)
    assert printed.startswith("graph pool {") and "kernel 0:" in printed


def test_the_page_names_every_word() -> None:
    from dvm.handwritten.vocabulary import BINARY, UNARY, plain_name

    words = {
        plain_name(word) for word in PAGE.read_text().replace("`", " ").replace("/", " ").replace(".", " ").split()
    }
    assert set(UNARY) | set(BINARY) <= words


def test_every_block_checks_something() -> None:
    for block in blocks(PAGE, "python"):
        assert any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(block)))
