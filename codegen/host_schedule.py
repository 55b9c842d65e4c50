"""The order of steps with the fewest crossings between device and host.

A crossing is a change from kernels to host operations or back: the device has to be waited for, or has to wait. Of all orders that keep
dependences, one that does everything on one side that can be done before it changes sides has the fewest changes for a given first side
(whatever another order has done by its n-th change, this one has done too); the better of the two first sides is taken.
"""

from __future__ import annotations

from collections.abc import Sequence

from vm.program import CondStep, ForStep, HostStep, KernelStep, Step, WhileStep, inner_blocks
from vm.program.stages import Place, Uses, place

DEVICE, HOST = "device", "host"


def crossings(steps: Sequence[Step]) -> int:
    """Changes of side in a block, and in the blocks inside it (each counted as if it ran once)."""
    sides = [side_of(step) for step in steps]
    inside = sum(crossings(block) for step in steps for block in _blocks(step))
    return inside + sum(a != b for a, b in zip(sides, sides[1:], strict=False))


def side_of(step: Step) -> str:
    """Where a step runs; a control step with a host operation inside counts as the host's."""
    if isinstance(step, HostStep):
        return HOST
    if isinstance(step, KernelStep):
        return DEVICE
    inner = [side_of(item) for block in _blocks(step) for item in block]
    return HOST if HOST in inner else DEVICE


def arrange(steps: Sequence[Step], uses: Uses, movable: bool = True) -> tuple[tuple[Step, ...], dict[str, int]]:
    """The steps in an order with the fewest crossings, and how many there were before and are after. The given order stays where another
    one saves nothing, or where steps are not ``movable`` because sizes come from the host."""
    before = crossings(steps)
    order = _block(tuple(steps), uses) if movable and before > 1 else tuple(steps)
    return order, {"before": before, "after": crossings(order)}


def _blocks(step: Step) -> tuple[tuple[Step, ...], ...]:
    return () if isinstance(step, KernelStep | HostStep) else inner_blocks(step)


def _block(steps: tuple[Step, ...], uses: Uses) -> tuple[Step, ...]:
    steps = tuple(_inside(step, uses) for step in steps)
    sides = [side_of(step) for step in steps]
    if sum(a != b for a, b in zip(sides, sides[1:], strict=False)) < 2:
        return steps
    after = _dependences(steps, uses)
    found = [_exhaust(sides, after, first) for first in (DEVICE, HOST)]
    best = min(found, key=lambda order: sum(sides[a] != sides[b] for a, b in zip(order, order[1:], strict=False)))
    return tuple(steps[i] for i in best)


def _inside(step: Step, uses: Uses) -> Step:
    if isinstance(step, CondStep):
        return CondStep(step.selector, tuple(_block(branch, uses) for branch in step.branches))
    if isinstance(step, WhileStep):
        return WhileStep(_block(step.cond, uses), step.predicate, _block(step.body, uses))
    if isinstance(step, ForStep):
        return ForStep(step.count, step.counter, _block(step.body, uses), step.reverse)
    return step


def _exhaust(sides: Sequence[str], after: Sequence[set[int]], side: str) -> list[int]:
    """All that can be done on one side, then on the other, and so on; in the given order within a side."""
    order: list[int] = []
    left = list(range(len(sides)))
    done: set[int] = set()
    while left:
        rest = []
        for i in left:
            if sides[i] == side and after[i] <= done:
                order.append(i)
                done.add(i)
            else:
                rest.append(i)
        left, side = rest, HOST if side == DEVICE else DEVICE
    return order


def _dependences(steps: Sequence[Step], uses: Uses) -> list[set[int]]:
    """For every step the earlier ones that it has to follow: those that write what it uses, and those that use what it writes."""
    after: list[set[int]] = []
    writer: dict[Place, int] = {}
    users: dict[Place, list[int]] = {}
    for i, step in enumerate(steps):
        every, written = _accessed(step, uses)
        found = {writer[p] for p in every if p in writer}
        for p in written:
            found.update(users.get(p, ()))
        after.append(found - {i})
        for p in every:
            users.setdefault(p, []).append(i)
        for p in written:
            writer[p], users[p] = i, [i]
    return after


def _accessed(step: Step, uses: Uses) -> tuple[set[Place], set[Place]]:
    """(all places, places that are written) of a step and of what is inside it."""
    if isinstance(step, KernelStep):
        return uses.of(step)
    if isinstance(step, HostStep):
        written = {place(uses.buffers, b) for b in step.outputs}
        return written | {place(uses.buffers, b) for b in step.inputs}, written
    every: set[Place] = set()
    wrote: set[Place] = set()
    scalar = (
        step.selector if isinstance(step, CondStep) else step.predicate if isinstance(step, WhileStep) else step.counter
    )
    every.add(place(uses.buffers, scalar))
    if isinstance(step, ForStep):
        wrote |= every
    for block in inner_blocks(step):
        for item in block:
            more, written = _accessed(item, uses)
            every |= more
            wrote |= written
    return every, wrote
