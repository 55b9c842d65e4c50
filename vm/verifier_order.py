"""A dry run of a kernel's events: no data, full tiles, few steps of every loop, the reference executor's pipes and shadows.

What it refuses could race, deadlock or leave an event over at some sizes. A few steps of every loop stand for all larger numbers: what an
instruction depends on is in the same iteration or in the one before; where tiles have several places, so many iterations back.
"""

from __future__ import annotations

import numpy as np

from vm import isa
from vm.chip import Chip
from vm.decode import Hole, Kernel, Loop, Tile
from vm.errors import Hazard
from vm.geometry import loops_of
from vm.program import Template
from vm.reference_core import Pipes, Placed, Places, Ready, ReadyLoop, Task, prepare
from vm.reference_memory import Access, Local

STEPS = (1, 2)
BLOCK = isa.LOCAL_BLOCK


def check(kernel: Kernel, template: Template, chip: Chip) -> None:
    """Raises ``Hazard`` if the kernel's events do not order what it does in local memory."""
    body = prepare(kernel, template.words, [None] * template.n_buffers, bound=False)
    patched = {loop.op.at for loop in loops_of(kernel.body) if not _fixed(loop)}
    most = max((tile.places for tile in kernel.tiles.values()), default=1)
    for steps in (*STEPS, most + 1) if most > 1 else STEPS:
        try:
            _DryRun(kernel, chip, patched, steps).run(body)
        except Placed as placed:
            ready, fault = placed.task.ready, placed.fault
            raise Hazard(fault.kind, template.name or "?", ready.at, f"{ready.insn.name}: {fault.what}") from None


def _fixed(loop: Loop) -> bool:
    return not any(isinstance(loop.op.fields[name], Hole) for name in ("extent", "tile", "trips"))


class _DryRun:
    def __init__(self, kernel: Kernel, chip: Chip, patched: set[int], steps: int) -> None:
        self.patched, self.steps = patched, steps
        # Tiles begin at multiples of a block: a byte here stands for a block there.
        byte = np.dtype(np.uint8)
        self.tiles = {
            (t.id, k): Tile(t.id, t.space, t.at(k).address // BLOCK, byte, ())
            for t in kernel.tiles.values()
            for k in range(t.places)
        }
        self.zeros = {t.id: np.zeros(t.stride // BLOCK, np.uint8) for t in kernel.tiles.values()}
        ends = dict.fromkeys(isa.Space, 0)
        for tile in self.tiles.values():
            ends[tile.space] = max(ends[tile.space], tile.address + len(self.zeros[tile.id]))
        self.places = Places(kernel.tiles.values())
        self.memory = {space: Local(space, ends[space], ends[space]) for space in isa.Space}
        self.pipes = Pipes(self.touch, chip.issue.queue_depth)

    def run(self, body: list[Ready | ReadyLoop]) -> None:
        self._block(body, True, True)
        self.pipes.finish()

    def _block(self, body: list[Ready | ReadyLoop], first: bool, last: bool) -> None:
        for item in body:
            if isinstance(item, Ready):
                self.pipes.issue(Task(item, {}, first, last, True, self.places.issue(item)))
                continue
            steps = self.steps if self._rotates(item.body) else min(self.steps, max(STEPS))
            if item.at not in self.patched:
                steps = min(steps, item.trips)
            for step in range(steps):
                self._block(item.body, first and step == 0, last and step == steps - 1)

    def _rotates(self, body: list[Ready | ReadyLoop]) -> bool:
        """Whether an instruction of the body itself moves a tile on to another place."""
        found = [isa.tiles_renewed(x.insn, x.fields, x.tail) for x in body if isinstance(x, Ready)]
        return any(number in self.places.many for numbers in found for number in numbers)

    def touch(self, task: Task, access: Access) -> None:
        ready = task.ready
        for number in isa.tiles_read(ready.insn, ready.fields, ready.tail):
            tile = self.tiles[number, task.places.get(number, 0)]
            self.memory[tile.space].touch(tile, len(self.zeros[number]), access)
        for number in isa.tiles_written(ready.insn, ready.fields):
            tile = self.tiles[number, task.places.get(number, 0)]
            self.memory[tile.space].write(tile, self.zeros[number], len(self.zeros[number]), access)
