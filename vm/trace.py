"""Emulated time as a Chrome trace, which Perfetto and ``chrome://tracing`` open: one track a pipe.

Kernels that run side by side are processes of their own, each with its seven pipes: those of its busiest core. Times are microseconds of
emulated time. Where a loop's steps repeat, one slice stands for all of them and says how many.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vm.isa import Pipe
from vm.timing import KernelTime, ProgramTime

LABEL = "emulated"
KERNELS = len(Pipe)  # number of the track that shows whole kernels


def chrome_trace(result: ProgramTime) -> dict[str, Any]:
    """The trace of a call; ``json.dump`` writes it. Needs a ``ProgramTime`` with timelines for more than whole kernels."""
    events = list(_slices(result))
    slots = 1 + max((e["pid"] for e in events), default=0)
    return {
        "traceEvents": [*_tracks(result, slots), *events],
        "displayTimeUnit": "ns",
        "otherData": {
            "time": LABEL,
            "chip": result.chip,
            "clock_hz": result.clock_hz,
            "cycles": result.cycles,
            "notes": list(result.notes),
        },
    }


def _tracks(result: ProgramTime, slots: int) -> Iterator[dict[str, Any]]:
    """Names of processes and threads."""
    for slot in range(slots):
        side = f", side by side {slot}" if slot else ""
        yield _meta("process_name", slot, 0, {"name": f"{result.chip} ({LABEL}){side}"})
        for order, (tid, name) in enumerate([(KERNELS, "kernels"), *((int(p), p.name) for p in Pipe)]):
            yield _meta("thread_name", slot, tid, {"name": name})
            yield _meta("thread_sort_index", slot, tid, {"sort_index": order})


def _meta(name: str, pid: int, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args}


def _slices(result: ProgramTime) -> Iterator[dict[str, Any]]:
    scale = 1e6 / result.clock_hz
    at = 0.0
    for stage in result.stages:
        for slot, (begin, kernel) in enumerate(zip(stage.starts, stage.kernels, strict=True)):
            pid = slot if stage.side_by_side else 0
            yield from _kernel(kernel, at + begin, scale, pid, stage.count)
        at += stage.cycles * stage.count


def _kernel(kernel: KernelTime, at: float, scale: float, pid: int, count: int) -> Iterator[dict[str, Any]]:
    args = {
        "time": LABEL,
        "cycles": kernel.cycles,
        "cores": kernel.cores,
        "bytes": kernel.moved,
        "bound": kernel.bound,
        **({"times": count} if count > 1 else {}),
    }
    yield _slice(kernel.name, pid, KERNELS, at * scale, kernel.cycles * count * scale, args)
    for one in kernel.timeline:
        yield _slice(
            one.name,
            pid,
            int(one.pipe),
            (at + one.start) * scale,
            (one.end - one.start) * scale,
            {"cycles": one.end - one.start, "kernel": kernel.name, **({"steps": one.steps} if one.steps else {})},
        )


def _slice(name: str, pid: int, tid: int, start: float, length: float, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "X", "cat": LABEL, "name": name, "pid": pid, "tid": tid, "ts": start, "dur": length, "args": args}
