"""``DVM_DEBUG``, ``DVM_LOG`` and ``DVM_DUMP_DIR``: what the compiler says about its work. ``docs/environment.md`` has the table.

Output goes to stderr, one line an event, as ``dvm: passes: ...``. The variables are read at each use, so a test or a notebook may set them.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

# Topic -> the level of DVM_DEBUG that switches it on.
TOPICS = {"compile": 1, "jit": 1, "passes": 2, "fusion": 3, "symbol": 3}
DUMP_LEVEL = 4
VERIFY_LEVEL = 5


def level() -> int:
    """``DVM_DEBUG`` as a number; anything that is not one counts as 0."""
    text = os.environ.get("DVM_DEBUG", "0")
    return int(text) if text.isdigit() else 0


def wants(topic: str) -> bool:
    """Whether lines about ``topic`` are to be printed."""
    named = _named(os.environ.get("DVM_LOG", ""))
    return level() >= TOPICS[topic] or topic in named or "all" in named


@functools.lru_cache(maxsize=8)
def _named(text: str) -> frozenset[str]:
    """The topics in ``DVM_LOG``; what is none is said once."""
    named = {part.strip() for part in text.split(",")} - {""}
    unknown = sorted(named - TOPICS.keys() - {"all"})
    if unknown:
        print(f"dvm: DVM_LOG: no topic {', '.join(unknown)}; topics are {', '.join(TOPICS)}, all", file=sys.stderr)
    return frozenset(named)


def log(topic: str, text: str | Callable[[], str]) -> None:
    """Prints ``text`` (or what it returns) line by line if the topic is wanted."""
    if wants(topic):
        for line in (text if isinstance(text, str) else text()).splitlines():
            print(f"dvm: {topic}: {line}", file=sys.stderr)


def dump(title: str, number: int, stage: str, text: Callable[[], str]) -> None:
    """Writes ``text()`` to ``<dump dir>/<title>/<number>-<stage>.txt`` if dumps are switched on."""
    if level() < DUMP_LEVEL and "DVM_DUMP_DIR" not in os.environ:
        return
    folder = Path(os.environ.get("DVM_DUMP_DIR", "dvm-dump")) / (re.sub(r"[^\w.-]+", "_", title) or "program")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{number:02}-{stage}.txt").write_text(text())
