"""``dvm.stats()``: what this process has compiled and launched so far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from vm import counters, jaxevents

# Counters that always exist, so that ``dvm.stats().launches`` is 0 before the first launch instead of an error.
KNOWN = (
    *("compiles", "kernels", "jit_specialisations", "xla_compiles", "specialised_compiles"),
    *("launches", "interpreter_launches", "interpreter_compiles", "host_ops", "arena_growths"),
)


class Stats(Mapping[str, int]):
    """A snapshot of the counters: ``stats.launches``, ``stats["launches"]``, ``dict(stats)``. ``after - before`` counts an interval."""

    def __init__(self, values: Mapping[str, int]):
        self._values = MappingProxyType(dict(sorted(values.items())))

    def __getitem__(self, name: str) -> int:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __getattr__(self, name: str) -> int:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(f"no counter {name!r}; there are {', '.join(self._values)}") from None

    def __sub__(self, before: Mapping[str, int]) -> Stats:
        return Stats({name: value - before.get(name, 0) for name, value in self.items()})

    def __repr__(self) -> str:
        return f"Stats({', '.join(f'{k}={v}' for k, v in self.items())})"


def stats() -> Stats:
    """All counters of this process, on all threads.

    ``compiles`` counts graphs that DVM compiled, ``xla_compiles`` what XLA compiled for any reason since DVM first needed JAX (JAX's
    compile events less its compilation-cache hits), ``launches`` program launches, ``host_ops`` host operators that ran.
    """
    jaxevents.install()
    values = dict.fromkeys(KNOWN, 0) | counters.snapshot()
    values["xla_compiles"] = jaxevents.xla_compiles()
    return Stats(values)
