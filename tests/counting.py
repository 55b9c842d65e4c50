"""Counting what the compiler does: work is counted in tests, times belong in benchmarks."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest


def count_calls(monkeypatch: pytest.MonkeyPatch, count: Counter[str], owner: Any, *names: str) -> None:
    """From here on, calls of these functions or methods of ``owner`` are counted under their names."""
    for name in names:
        monkeypatch.setattr(owner, name, _counting(getattr(owner, name), count, name))


def _counting(call: Any, count: Counter[str], name: str) -> Any:
    def counting(*args: Any, **kwargs: Any) -> Any:
        count[name] += 1
        return call(*args, **kwargs)

    return counting
