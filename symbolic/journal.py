"""Dictionaries that can be put back to an earlier state at a cost proportional to what changed since."""

from __future__ import annotations

from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")
_ABSENT = object()


class Journal:
    """The log that several ``JournalDict`` share; empty while no mark is set."""

    def __init__(self) -> None:
        self.log: list[tuple[dict[Any, Any], Any, Any]] = []
        self.marks = 0

    def mark(self) -> int:
        """Starts recording; returns what ``undo`` needs."""
        self.marks += 1
        return len(self.log)

    def undo(self, mark: int) -> None:
        """Takes back all changes since ``mark``."""
        while len(self.log) > mark:
            target, key, old = self.log.pop()
            if old is _ABSENT:
                dict.pop(target, key, None)
            else:
                dict.__setitem__(target, key, old)
        self.marks -= 1


class JournalDict(dict[K, V]):
    """A dict whose item assignment and ``pop`` are recorded while the journal has a mark; other mutators are not for use."""

    __slots__ = ("journal",)

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self.journal = journal

    def __setitem__(self, key: K, value: V) -> None:
        if self.journal.marks:
            self.journal.log.append((self, key, self.get(key, _ABSENT)))
        super().__setitem__(key, value)

    def pop(self, key: K, *default: Any) -> Any:
        """As ``dict.pop``, recorded."""
        if self.journal.marks and key in self:
            self.journal.log.append((self, key, self[key]))
        return super().pop(key, *default)
