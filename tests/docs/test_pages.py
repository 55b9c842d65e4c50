"""Pages that are made from the code are not stale, what they name exists, and what the README says works.

``--update-golden`` writes the made pages again; read the difference.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import make_isa_page, make_ops_page, make_tour

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])


@pytest.mark.parametrize("module", [make_isa_page, make_ops_page], ids=["isa", "ops"])
def test_pages_of_tables(module, update_golden: bool) -> None:
    if update_golden:
        module.PAGE.write_text(module.page())
    assert module.PAGE.read_text() == module.page(), f"run python -m {module.__name__}"


def test_the_tour_shows_real_outputs(update_golden: bool) -> None:
    text = make_tour.PAGE.read_text()
    if update_golden:
        text = make_tour.page(text)
        make_tour.PAGE.write_text(text)
    shown = dict(re.findall(r"<!-- output: (\w+) -->\n```\w*\n(.*?)\n```", text, re.DOTALL))
    assert set(shown) == set(make_tour.OUTPUTS)
    for name, stage in make_tour.OUTPUTS.items():
        assert shown[name] == stage(), f"{name}: run python -m scripts.make_tour"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_and_files_exist(page: Path) -> None:
    text = page.read_text()
    wrong = [
        link
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text)
        if "://" not in link and not (page.parent / link).exists()
    ]
    named = re.findall(
        r"`((?:vm|symbolic|graph_kernel|codegen|dvm|configs|tests|scripts|benchmarks|examples|docs)/[\w/.-]+)`", text
    )
    wrong += [name for name in named if not (ROOT / name).exists()]
    assert not wrong


def test_every_page_can_be_found() -> None:
    """From the README, which is where readers start."""
    text = (ROOT / "README.md").read_text()
    assert [p.name for p in (ROOT / "docs").glob("*.md") if f"docs/{p.name}" not in text] == []


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a page in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def run(command: list[str], folder: Path) -> str:
    """What a command prints in a folder that has the repository's examples."""
    if not (folder / "examples").exists():
        shutil.copytree(ROOT / "examples", folder / "examples")
    env = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_python_of_the_readme_works(tmp_path: Path) -> None:
    """All blocks, one after the other, as a reader would paste them."""
    (tmp_path / "readme.py").write_text("\n".join(blocks(ROOT / "README.md", "python")))
    printed = run([sys.executable, "readme.py"], tmp_path)
    assert "kernels" in printed and "kernel 0:" in printed


def test_the_shell_lines_of_the_readme_work(tmp_path: Path) -> None:
    lines = [
        line[2:]
        for block in blocks(ROOT / "README.md", "console")
        for line in block.splitlines()
        if line.startswith("$ ")
    ]
    verbs = [shlex.split(line, comments=True) for line in lines]
    targets = (ROOT / "Makefile").read_text()
    assert all(f"\n{words[1]}: " in targets for words in verbs if words[0] == "make")
    for words in verbs:
        if words[0] == "dvm":
            assert run([sys.executable, "-m", *words], tmp_path)


@pytest.mark.parametrize("name", ["layer", "one_program", "make_softmax"])
def test_examples_run(name: str, tmp_path: Path) -> None:
    printed = run([sys.executable, f"examples/{name}.py"], tmp_path)
    assert "False" not in printed
