"""When buffers are alive: what a memory plan and a report of it rest on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vm.program import Buffer, CondStep, ForStep, HostStep, KernelStep, Step, WhileStep, inner_blocks


@dataclass(frozen=True)
class Lifetimes:
    """When buffers are alive, in positions: a step takes one when it begins, a control step another one when it ends. Kernels that run side
    by side have the same one.

    ``spans`` gives the first and the last position at which a buffer is accessed, both included; what lives across the border of a loop
    lives in all of it, because the loop comes round. An alias counts as its buffer.
    """

    spans: dict[int, tuple[int, int]]
    length: int

    def of(self, buffer: int) -> tuple[int, int]:
        """The span of a buffer that is no alias; one that no step accesses has the shortest one."""
        return self.spans.get(buffer, (0, 0))


def lifetimes(steps: Sequence[Step], buffers: Sequence[Buffer], stages: Sequence[int] = ()) -> Lifetimes:
    """The lifetimes of all buffers that the steps access; ``stages`` as in ``Program``. Takes time linear in the number of steps and
    operands."""
    walk = _Walk(buffers, stages)
    walk.block(steps)
    spans = {b: (first, last) for b, (first, last) in walk.spans.items()}
    for start, end in walk.loops:  # the inner ones come first
        for b, (first, last) in spans.items():
            if first < start <= last < end:
                spans[b] = (first, end)
            elif start <= first <= end < last:
                spans[b] = (start, last)
    return Lifetimes(spans, walk.position)


class _Walk:
    def __init__(self, buffers: Sequence[Buffer], stages: Sequence[int]) -> None:
        self.buffers = buffers
        self.stages = iter(stages)
        self.left = 0  # kernels of the stage that are still to come
        self.position = 0
        self.spans: dict[int, list[int]] = {}
        self.loops: list[tuple[int, int]] = []

    def touch(self, *buffers: int) -> None:
        for b in buffers:
            alias = self.buffers[b].alias
            self.spans.setdefault(b if alias is None else alias, [self.position, 0])[1] = self.position

    def block(self, steps: Sequence[Step]) -> None:
        for step in steps:
            start = self.position
            if isinstance(step, KernelStep):
                self.touch(*step.buffers)
                self.left = (self.left or next(self.stages, 1)) - 1
                if self.left:
                    continue
            elif isinstance(step, HostStep):
                self.touch(*step.inputs, *step.outputs)
            else:
                self.control(step, start)
            self.position += 1

    def control(self, step: CondStep | WhileStep | ForStep, start: int) -> None:
        if isinstance(step, CondStep):
            self.touch(step.selector)
        elif isinstance(step, ForStep):
            self.touch(step.counter)
        self.position += 1
        for inner in inner_blocks(step):
            self.block(inner)
        if isinstance(step, WhileStep):
            self.touch(step.predicate)
        if not isinstance(step, CondStep):
            self.loops.append((start, self.position))
