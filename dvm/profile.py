"""``prog.profile(...)``: emulated time of a call, kernel by kernel, as a table, as data and as a trace. Nothing is run or measured."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vm.isa import Pipe
from vm.timing import KernelTime, ProgramTime

LABEL = "emulated"
WIDTH = 200  # columns that a table may take where it is not printed to a terminal


@dataclass(frozen=True)
class Profile:
    """Emulated time of a call at given sizes. ``print`` it; ``.json()`` and ``.save_trace(path)`` are for other programs."""

    time: ProgramTime
    dims: Mapping[str, int]
    launches: int
    forms: tuple[str, ...] = ()  # of parts that have two, which one runs at these sizes, and why

    @property
    def kernels(self) -> tuple[KernelTime, ...]:
        """Rows in launch order: name, cycles, us, cores, bytes, intensity, bound, utilisation (all emulated)."""
        return self.time.kernels

    @property
    def total_us(self) -> float:
        """Emulated microseconds of the call."""
        return self.time.us

    @property
    def total_cycles(self) -> float:
        """Emulated cycles of the call."""
        return self.time.cycles

    def json(self) -> str:
        """``to_dict`` as JSON."""
        return json.dumps(self.to_dict(), indent=2)

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the totals and one object a kernel."""
        return {
            "time": LABEL,
            "chip": self.time.chip,
            "clock_hz": self.time.clock_hz,
            "dims": dict(self.dims),
            "total_cycles": self.total_cycles,
            "total_us": self.total_us,
            "launches": self.launches,
            "stages": [len(stage.kernels) for stage in self.time.stages],
            "host_ops": self.time.host_ops,
            "notes": list(self.time.notes),
            "forms": list(self.forms),
            "kernels": [_row(kernel) for kernel in self.kernels],
        }

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes a Chrome trace with one track a pipe; open it in Perfetto (ui.perfetto.dev) or chrome://tracing."""
        from vm.trace import chrome_trace

        with open(path, "w", encoding="utf-8") as file:
            json.dump(chrome_trace(self.time), file)

    def table(self) -> Any:
        """A ``rich`` table: bytes in MB, utilisation in percent."""
        from rich import box
        from rich.table import Table

        sizes = ", ".join(f"{name} = {size}" for name, size in self.dims.items())
        table = Table(title=f"{LABEL} time on {self.time.chip}" + (f", {sizes}" if sizes else ""), box=box.SIMPLE)
        pipes = [p.name for p in Pipe]
        table.add_column("kernel")
        for name in ("cycles", "us", "cores", "MB", "HBM MB", "op/byte"):
            table.add_column(name, justify="right")
        table.add_column("bound")
        for name in (*pipes, "L2", "HBM"):
            table.add_column(f"{name} %", justify="right")
        for kernel in self.kernels:
            busy = [f"{100 * kernel.utilisation[name]:.0f}" for name in (*pipes, "L2", "HBM")]
            times = f" x{kernel.count}" if kernel.count > 1 else ""
            table.add_row(
                kernel.name + times,
                f"{kernel.cycles:,.0f}",
                f"{kernel.us:,.2f}",
                str(kernel.cores),
                f"{kernel.moved / 1e6:,.3f}",
                f"{kernel.hbm_bytes / 1e6:,.3f}",
                f"{kernel.intensity:,.2f}",
                kernel.bound,
                *busy,
            )
        return table

    def __rich__(self) -> Any:
        from rich.console import Group
        from rich.text import Text

        return Group(self.table(), *(Text(line) for line in self._summary()))

    def _summary(self) -> list[str]:
        stages, kernels = self.time.stages, self.kernels
        lines = [
            f"{LABEL} total {self.total_us:,.2f} us ({self.total_cycles:,.0f} cycles): {len(kernels)} kernels in {len(stages)} "
            f"stages, {self.launches} launches, {self.time.host_ops} host ops"
        ]
        return lines + [f"note: {note}" for note in (*self.time.notes, *self.forms)]

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(file=io.StringIO(), width=WIDTH, color_system=None)
        console.print(self)
        text = console.file.getvalue()  # type: ignore[attr-defined]
        return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")


def _row(kernel: KernelTime) -> dict[str, Any]:
    return {
        "name": kernel.name,
        "count": kernel.count,
        "cycles": kernel.cycles,
        "us": kernel.us,
        "cores": kernel.cores,
        "bytes": dict(kernel.bytes),
        "flops": kernel.flops,
        "intensity": kernel.intensity,
        "bound": kernel.bound,
        "utilisation": dict(kernel.utilisation),
    }
