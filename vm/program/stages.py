"""The parallel table and what depends on what: which kernels of a launch run side by side, and what a launch is.

``Program.stages`` is the parallel table: the sizes of the stages, in the order of the kernel steps. A stage's kernels follow one another in
one block of steps and are independent: nothing that one of them stores is loaded or stored by another. Stages of a launch follow each
other; a launch ends only where the host has to act.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from vm.dtypes import item_size
from vm.errors import ProgramError
from vm.program import MAX_CHILDREN, PINNED, Buffer, HostStep, KernelStep, Program, Reg, Step, inner_blocks

Place = tuple[int, ...]


def stages(program: Program, chosen: Sequence[int] | None = None) -> list[tuple[KernelStep, ...]]:
    """The kernels of a program, stage by stage, those of branches and loop bodies included; with the alternative of every choice, only
    those that run."""
    steps = kernels_of(program.steps)
    sizes = program.stages or (1,) * len(steps)
    out, at = [], 0
    for size in sizes:
        stage = tuple(step for step in steps[at : at + size] if chosen is None or runs(step, chosen))
        at += size
        if stage:
            out.append(stage)
    return out


def runs(step: KernelStep, chosen: Sequence[int]) -> bool:
    """Whether a kernel runs where ``chosen`` are the alternatives of all choices."""
    return step.choice is None or chosen[step.choice] == step.alternative


def run_together(a: KernelStep, b: KernelStep) -> bool:
    """Whether there is a launch that runs both kernels."""
    return a.choice is None or a.choice != b.choice or a.alternative == b.alternative


def stage_numbers(program: Program) -> list[int]:
    """The stage of every kernel step, in the order of the steps."""
    sizes = program.stages or (1,) * len(kernels_of(program.steps))
    return [stage for stage, size in enumerate(sizes) for _ in range(size)]


def check_table(program: Program) -> None:
    """``ProgramError`` unless ``program.stages`` covers the kernel steps in blocks of at most ``MAX_CHILDREN`` neighbours."""
    if not program.stages:
        return
    left = list(program.stages)
    for block in _blocks(program.steps):
        n = len(block)
        while n > 0:
            if not left or not 1 <= left[0] <= min(n, MAX_CHILDREN):
                what = f"a stage of {left[0]}" if left else "no stage"
                raise ProgramError(f"parallel table: {what} where {n} kernels follow one another")
            n -= left.pop(0)
    if left:
        raise ProgramError(f"parallel table: {len(left)} stages more than there are kernels for")


def kernels_of(steps: Sequence[Step], chosen: Sequence[int] | None = None) -> list[KernelStep]:
    """All kernel steps in the order of a walk; with the alternative of every choice, those that run."""
    return [step for block in _blocks(steps) for step in block if chosen is None or runs(step, chosen)]


def _blocks(steps: Sequence[Step]) -> Iterator[list[KernelStep]]:
    """Runs of kernel steps with no other step between them, in the order of a walk."""
    run: list[KernelStep] = []
    for step in steps:
        if isinstance(step, KernelStep):
            run.append(step)
            continue
        if run:
            yield run
        run = []
        if not isinstance(step, HostStep):
            for block in inner_blocks(step):
                yield from _blocks(block)
    if run:
        yield run


def launches(program: Program) -> int:
    """Launches of a call: runs of kernels and control flow without a host operation. A branch or a loop body with host operations
    counts once, as if it ran once."""

    def walk(steps: Sequence[Step], open_: bool) -> tuple[int, bool]:
        count = 0
        for step in steps:
            if isinstance(step, HostStep):
                open_ = False
            elif isinstance(step, KernelStep) or not _has(step, HostStep):
                if not open_ and (isinstance(step, KernelStep) or _has(step, KernelStep)):
                    count, open_ = count + 1, True
            else:
                for block in inner_blocks(step):
                    more, open_ = walk(block, open_)
                    count += more
                    open_ = False  # the host has to see where it goes on
        return count, open_

    return walk(program.steps, False)[0]


def _has(step: Step, kind: type) -> bool:
    if isinstance(step, kind):
        return True
    if isinstance(step, (KernelStep, HostStep)):
        return False
    return any(_has(inner, kind) for block in inner_blocks(step) for inner in block)


def place(buffers: Sequence[Buffer], number: int) -> Place:
    """Equal for buffers that surely share memory: the same array, the same place of an arena, or (before places are given) one buffer."""
    b = buffers[number]
    if b.space == PINNED:
        return (PINNED, 0, b.constant) if b.constant is not None else (PINNED, 1, b.input or 0)
    owner = getattr(b, "alias", None)
    if b.offset is None:
        return (-1, number if owner is None else owner)
    return (b.space, item_size(b.dtype), b.offset)


class Uses:
    """What kernel steps read and write, by place; ``stored`` gives the numbers of the buffers that a step stores into. A buffer whose
    number of elements is a register of ``nothing`` has no place: others may begin where it would."""

    def __init__(
        self,
        buffers: Sequence[Buffer],
        stored: Callable[[KernelStep], Iterable[int]],
        nothing: Collection[Reg] = frozenset(),
    ) -> None:
        self.buffers, self.stored, self.nothing = buffers, stored, nothing

    def of(self, step: KernelStep) -> tuple[set[Place], set[Place]]:
        """(all places, places that are written)."""
        return self._places(step.buffers), self._places(self.stored(step))

    def _places(self, numbers: Iterable[int]) -> set[Place]:
        return {place(self.buffers, b) for b in numbers if self.buffers[b].elements not in self.nothing}

    def depend(self, a: KernelStep, b: KernelStep) -> bool:
        """Whether one of two kernels writes what the other one uses."""
        (all_a, written_a), (all_b, written_b) = self.of(a), self.of(b)
        return bool(written_a & all_b or written_b & all_a)
