"""Every row of the table has a test with its own input and at least three inputs more."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from tests.cases import registry

HERE = Path(__file__).parent
for path in sorted(
    HERE.glob("test_*.py")
):  # tests register when their file is imported; some may not have been asked for
    name = f"tests.cases.{path.stem}"
    if path != Path(__file__) and name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


@pytest.mark.parametrize("row", range(1, 27))
def test_every_row_has_its_value_and_three_more(row: int) -> None:
    assert registry.ROWS[row]
    assert registry.VALUES[row], f"no test has the input of row {row}"
    assert len(registry.FURTHER[row]) >= 3, registry.FURTHER[row]


def test_no_further_input_counts_for_two_rows() -> None:
    every = [case for cases in registry.FURTHER.values() for case in cases]
    assert len(every) == len(set(every)) and set(registry.FURTHER) == set(registry.ROWS) == set(range(1, 27))
