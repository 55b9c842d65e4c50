"""Pages that are made from the code are not stale, what they name exists, and what the README says works.

``--update-golden`` writes the made pages again; read the difference.
"""

from __future__ import annotations

import re
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
