"""Process-wide counters behind ``dvm.stats()``."""

import threading
from collections import Counter

_lock = threading.Lock()
_values: Counter[str] = Counter()


def add(name: str, n: int = 1) -> None:
    """Adds ``n`` to the counter ``name``; thread-safe."""
    with _lock:
        _values[name] += n


def get(name: str) -> int:
    """The current value of the counter ``name`` (0 if it was never used)."""
    return _values[name]


def snapshot() -> dict[str, int]:
    """A copy of all counters, sorted by name."""
    with _lock:
        return dict(sorted(_values.items()))
