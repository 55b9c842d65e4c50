"""The three answers of a proof attempt. None has a truth value: "not proved" must never be read as "false"."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from symbolic.proof import Proof


class _Answer:
    proved = False
    disproved = False
    unknown = False

    def __bool__(self) -> bool:
        raise TypeError(f"{type(self).__name__} has no truth value: use .proved, .disproved or .unknown")


@dataclass(frozen=True)
class Proved(_Answer):
    """The relation holds for every assignment that meets the facts. ``reason`` is one line; ``proof()`` gives every step."""

    reason: str
    _record: Callable[[], Proof] | None = field(default=None, repr=False, compare=False)
    proved = True

    def proof(self) -> Proof:
        """The proof as data: prints as numbered steps, and ``symbolic.checker.check`` accepts it. Made when it is asked for."""
        if self._record is None:
            raise ValueError("this answer was made without a way to write its proof down")
        return self._record()


@dataclass(frozen=True)
class Disproved(_Answer):
    """The relation fails at ``counterexample``, which meets every fact."""

    counterexample: dict[str, int] = field(default_factory=dict)
    disproved = True


@dataclass(frozen=True)
class Unknown(_Answer):
    """Neither; ``missing`` is a fact that would decide it."""

    missing: str
    unknown = True


Answer = Proved | Disproved | Unknown
