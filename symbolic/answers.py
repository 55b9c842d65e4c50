"""The three answers of a proof attempt. None has a truth value: "not proved" must never be read as "false"."""

from __future__ import annotations

from dataclasses import dataclass, field


class _Answer:
    proved = False
    disproved = False
    unknown = False

    def __bool__(self) -> bool:
        raise TypeError(f"{type(self).__name__} has no truth value: use .proved, .disproved or .unknown")


@dataclass(frozen=True)
class Proved(_Answer):
    """The relation holds for every assignment that meets the facts."""

    reason: str
    proved = True


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
