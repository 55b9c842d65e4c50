"""Counts XLA compiles the way JAX reports them: ``backend_compile_duration`` events less compilation-cache hits, on all threads.

JAX sends the duration event for every executable that it builds or takes from its disk cache, and a cache-hit event for the latter,
so the difference is what was really compiled. Both go into ``vm.counters``; ``xla_compiles()`` is the difference.
"""

import threading

from vm import counters

_COMPILE = "/jax/core/compile/backend_compile_duration"
_CACHE_HIT = "/jax/compilation_cache/cache_hits"

EVENTS = "xla_compile_events"
CACHE_HITS = "xla_cache_hits"

_lock = threading.Lock()
_installed = False


def install() -> None:
    """Registers the listeners once per process. Call it where JAX is first needed: what JAX compiled earlier is not counted."""
    global _installed
    with _lock:
        if _installed:
            return
        from jax import monitoring

        monitoring.register_event_duration_secs_listener(_on_duration)
        monitoring.register_event_listener(_on_event)
        _installed = True


def xla_compiles() -> int:
    """XLA compiles of this process since ``install`` was first called."""
    return max(0, counters.get(EVENTS) - counters.get(CACHE_HITS))


def _on_duration(event: str, duration_secs: float, **_: str | int) -> None:
    if event == _COMPILE:
        counters.add(EVENTS)


def _on_event(event: str, **_: str | int) -> None:
    if event == _CACHE_HIT:
        counters.add(CACHE_HITS)
