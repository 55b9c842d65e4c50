"""What compiling a program did and what that is worth: the answer of ``prog.report(...)``. ``docs/passes.md`` has the formulae.

Times of kernels are emulated (``vm.timing``): what the chip would take, not what this machine takes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dvm.explain import forms
from vm.binder import BoundProgram
from vm.program import CondStep, ForStep, HostStep, KernelStep, Program, Step, WhileStep, inner_blocks, stages

if TYPE_CHECKING:
    from dvm.program import CompiledProgram

TYPICAL = 64  # the size of a symbol that is not given, as far as its range allows


class Report:
    """Print it, or take ``to_dict()`` or ``json()``."""

    def __init__(self, program: CompiledProgram, sizes: Mapping[str, int]) -> None:
        self._compiled = program
        self._sizes = {name: sizes.get(name, _typical(s)) for name, s in program.symbols.items()}
        open_ = list(program.symbols)[
            len(program.program.solved) :
        ]  # sizes that depend on data: no input determines them
        if not any(name in sizes for name in open_):
            self._sizes = {name: n for name, n in self._sizes.items() if name not in open_}
        self._bound = program.bind(self._sizes)

    @cached_property
    def _unfused(self) -> CompiledProgram | None:
        """The same model with no optional pass, no fusion and no stacking."""
        made = self._compiled._made
        if made is None or made.again is None:
            return None
        from dvm.options import Options

        return made.again().compile(options=Options(level=0, chip=made.options.chip), start=False)

    @cached_property
    def _data(self) -> dict[str, Any]:
        program, made = self._compiled.program, self._compiled._made
        memory = self._compiled.memory(self._sizes)
        data: dict[str, Any] = {
            "dims": dict(self._sizes),
            "compile_seconds": None if made is None else made.seconds,
            "passes": self._passes(),
            "kernels": len(self._compiled.kernels),
            "launches": stages.launches(program),
            "stages": len(stages.stages(program, self._bound.chosen)),
            "kernel_steps": len(stages.kernels_of(program.steps, self._bound.chosen)),
            "forms": forms(self._bound),
            "host_ops": _count(program.steps, HostStep),
            "crossings": dict(program.debug.get("crossings", {})),
            "bytes_moved": moved(self._bound),
            "bytes_least": memory.inputs + memory.constants + memory.outputs,
            "memory": {
                "peak": memory.peak,
                "temp": memory.temp,
                "unshared": memory.unshared,
                "buffers": sum(b.space.startswith("temp") for b in memory.buffers),
                "shared": dict(program.debug.get("shared", {})),
            },
            "emulated_us": _emulated(program, self._bound),
        }
        data["traffic_ratio"] = data["bytes_moved"] / data["bytes_least"] if data["bytes_least"] else None
        return data | self._compared(data)

    def _compared(self, data: Mapping[str, Any]) -> dict[str, Any]:
        unfused = self._unfused
        if unfused is None:
            return {"unfused": None, "fusion_gain": None, "compilation_efficiency": None}
        bound, memory = unfused.bind(self._sizes), unfused.memory(self._sizes)
        time = _emulated(unfused.program, bound)
        gain = time / data["emulated_us"] if data["emulated_us"] else None
        seconds = data["compile_seconds"]
        return {
            "unfused": {
                "kernels": len(unfused.kernels),
                "kernel_steps": len(stages.kernels_of(unfused.program.steps, bound.chosen)),
                "emulated_us": time,
                "bytes_moved": moved(bound),
                "buffers": sum(b.space.startswith("temp") for b in memory.buffers),
                "buffer_bytes": memory.unshared,
            },
            "fusion_gain": gain,
            "compilation_efficiency": None if gain is None or not seconds else gain / (1e3 * seconds),
        }

    def _passes(self) -> list[dict[str, Any]]:
        made = self._compiled._made
        if made is None:  # loaded: the file has no times
            return [
                {"name": p["name"], "group": p.get("group", ""), "before": p["before"], "after": p["after"], "runs": 1}
                | {"seconds": None, "did": dict(p["notes"])}
                for p in self._compiled.program.debug.get("passes", ())
            ]
        found: dict[str, dict[str, Any]] = {}
        for r in made.passes:
            entry = found.setdefault(
                r.name,
                {
                    "name": r.name,
                    "group": r.group,
                    "before": r.nodes_before,
                    "removed": 0,
                    "runs": 0,
                    "seconds": 0.0,
                    "did": {},
                },
            )
            entry["removed"] += r.nodes_before - r.nodes_after
            entry["runs"] += 1
            entry["seconds"] += r.seconds
            for what, n in r.notes.items():
                entry["did"][what] = entry["did"].get(what, 0) + n
        for entry in found.values():
            entry["after"] = entry["before"] - entry.pop("removed")
        return list(found.values())

    def to_dict(self) -> dict[str, Any]:
        """As plain data; bytes, seconds, and emulated microseconds."""
        return dict(self._data)

    def json(self) -> str:
        """``to_dict`` as JSON."""
        return json.dumps(self._data, indent=2)

    def __str__(self) -> str:
        d = self._data
        sizes = ", ".join(f"{name}={n}" for name, n in d["dims"].items())
        lines = [f"at {sizes or 'fixed sizes'}"]
        for p in d["passes"]:
            did = ", ".join(f"{what} {n}" for what, n in sorted(p["did"].items()))
            time = "" if p["seconds"] is None else f"  {1e3 * p['seconds']:8.2f} ms"
            lines.append(f"  {p['group']:<9} {p['name']:<20} {p['before']:>5} -> {p['after']:<5}{time}  {did}".rstrip())
        memory = d["memory"]
        lines += [
            f"kernels {d['kernels']}, stages {d['stages']}, launches {d['launches']}, host operations {d['host_ops']}",
            f"crossings {d['crossings'].get('before', 0)} before scheduling, {d['crossings'].get('after', 0)} after",
            f"bytes moved {d['bytes_moved']:,}, least possible {d['bytes_least']:,}",
            f"temporaries {memory['buffers']} buffers in {memory['temp']:,} bytes, unshared {memory['unshared']:,}",
            f"peak {memory['peak']:,} bytes",
            f"emulated time {d['emulated_us']:.1f} us",
            *d["forms"],
        ]
        if d["unfused"] is not None:
            u = d["unfused"]
            lines.append(
                f"unfused: {u['kernels']} kernels, {u['buffers']} temporaries of {u['buffer_bytes']:,} bytes, {u['bytes_moved']:,} bytes "
                f"moved, emulated {u['emulated_us']:.1f} us"
            )
        if d["fusion_gain"] is not None:
            lines.append(f"fusion gain {d['fusion_gain']:.2f}")
        if d["compilation_efficiency"] is not None:
            lines.append(
                f"compile time {1e3 * d['compile_seconds']:.0f} ms, compilation efficiency {d['compilation_efficiency']:.4f} a ms"
            )
        return "\n".join(lines)


def moved(bound: BoundProgram) -> int:
    """Bytes between kernels (and host operations) and device memory: for every step its operands and results once. A loop counts as
    often as it runs, a branch and a while loop once."""
    program = bound.program

    def size(b: int) -> int:
        from math import prod

        from vm.dtypes import dtype_of

        return prod(bound.shape(b)) * dtype_of(program.buffers[b].dtype).itemsize

    def walk(steps: tuple[Step, ...]) -> int:
        total = 0
        for step in steps:
            if isinstance(step, KernelStep):
                if stages.runs(step, bound.chosen):
                    total += sum(size(b) for b in dict.fromkeys(step.buffers))
            elif isinstance(step, HostStep):
                total += sum(size(b) for b in (*step.inputs, *step.outputs))
            elif isinstance(step, ForStep):
                total += bound.regs[step.count] * walk(step.body)
            elif isinstance(step, CondStep):
                total += max(map(walk, step.branches), default=0)
            elif isinstance(step, WhileStep):
                total += sum(map(walk, inner_blocks(step)))
        return total

    return walk(tuple(program.steps))


def _emulated(program: Program, bound: BoundProgram) -> float:
    from vm.timing import emulate

    return emulate(program, bound).us


def _count(steps: tuple[Step, ...], kind: type) -> int:
    found = 0
    for step in steps:
        found += isinstance(step, kind)
        if isinstance(step, CondStep | WhileStep | ForStep):
            found += sum(_count(block, kind) for block in inner_blocks(step))
    return found


def _typical(symbol: Any) -> int:
    """A size near ``TYPICAL`` that the symbol may have."""
    size = max(symbol.min, TYPICAL if symbol.max is None else min(TYPICAL, symbol.max))
    return size - (size - symbol.remainder) % symbol.multiple_of
