"""Stacking: which kernels of a launch run side by side on cores of their own, and what a launch is.

``Program.stages`` is the parallel table: the sizes of the stages, in the order of the kernel steps. A stage's kernels follow one another in
one block of steps and are independent: nothing that one of them stores is loaded or stored by another. Stages of a launch follow each
other; a launch ends only where the host has to act. How many cores each kernel of a stage gets is decided when sizes are known
(``divide``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from vm.decode import decode, stored_buffers
from vm.dtypes import item_size
from vm.errors import ProgramError
from vm.program import (
    MAX_CHILDREN,
    PINNED,
    Buffer,
    CondStep,
    ForStep,
    HostStep,
    KernelStep,
    Program,
    Step,
    Template,
    WhileStep,
    inner_blocks,
)

if TYPE_CHECKING:
    from vm.binder import NumberedStep

WINDOW = 32  # kernels: how far ahead one is looked for that can join a stage; farther, its operands would live too long
Place = tuple[int, ...]


# --- the table --------------------------------------------------------------------------------------------------------------------
def stages(program: Program) -> list[tuple[KernelStep, ...]]:
    """The kernels of a program, stage by stage, those of branches and loop bodies included."""
    steps = kernels_of(program.steps)
    sizes = program.stages or (1,) * len(steps)
    out, at = [], 0
    for size in sizes:
        out.append(tuple(steps[at : at + size]))
        at += size
    return out


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


def kernels_of(steps: Sequence[Step]) -> list[KernelStep]:
    """All kernel steps in the order of a walk."""
    return [step for block in _blocks(steps) for step in block]


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


# --- independence -----------------------------------------------------------------------------------------------------------------
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
    """What kernel steps read and write, by place; templates are decoded once."""

    def __init__(self, templates: Sequence[Template], buffers: Sequence[Buffer]) -> None:
        self.templates, self.buffers = templates, buffers
        self.stored: dict[int, set[int]] = {}

    def of(self, step: KernelStep) -> tuple[set[Place], set[Place]]:
        """(all places, places that are written)."""
        if step.template not in self.stored:
            self.stored[step.template] = set(stored_buffers(decode(self.templates[step.template])))
        every = {place(self.buffers, b) for b in step.buffers}
        return every, {place(self.buffers, step.buffers[k]) for k in self.stored[step.template]}

    def depend(self, a: KernelStep, b: KernelStep) -> bool:
        """Whether one of two kernels writes what the other one uses."""
        (all_a, written_a), (all_b, written_b) = self.of(a), self.of(b)
        return bool(written_a & all_b or written_b & all_a)


def check_independence(program: Program) -> None:
    """``ProgramError`` if two kernels of a stage surely share what one of them writes. That places do not overlap at given sizes is for
    ``vm.verifier.BoundCheck``."""
    uses = Uses(program.templates, program.buffers)
    for number, stage in enumerate(stages(program)):
        for i, a in enumerate(stage):
            for b in stage[:i]:
                if uses.depend(a, b):
                    raise ProgramError(
                        f"stage {number}: kernels {b.name or b.template} and {a.name or a.template} run side by side, but one writes what "
                        f"the other one uses"
                    )


# --- arranging (for the compiler) ---------------------------------------------------------------------------------------------------
def arrange(
    steps: Sequence[Step], templates: Sequence[Template], buffers: Sequence[Buffer]
) -> tuple[tuple[Step, ...], tuple[int, ...]]:
    """The steps with independent kernels next to each other, and the table of stages. No kernel passes one that it depends on, or a step
    that is no kernel."""
    uses = Uses(templates, buffers)
    sizes: list[int] = []

    def block(items: Sequence[Step]) -> tuple[Step, ...]:
        out: list[Step] = []
        run: list[KernelStep] = []
        for item in items:
            if isinstance(item, KernelStep):
                run.append(item)
                continue
            out += _flat(_stack(run, uses), sizes)
            run = []
            out.append(item if isinstance(item, HostStep) else _inside(item, block))
        return (*out, *_flat(_stack(run, uses), sizes))

    return block(steps), tuple(sizes)


def _inside(step: CondStep | WhileStep | ForStep, block: Callable[[Sequence[Step]], tuple[Step, ...]]) -> Step:
    if isinstance(step, CondStep):
        return CondStep(step.selector, tuple(block(branch) for branch in step.branches))
    if isinstance(step, WhileStep):
        return WhileStep(block(step.cond), step.predicate, block(step.body))
    return ForStep(step.count, step.counter, block(step.body), step.reverse)


def _flat(found: list[list[KernelStep]], sizes: list[int]) -> list[KernelStep]:
    sizes += map(len, found)
    return [step for stage in found for step in stage]


def _stack(run: Sequence[KernelStep], uses: Uses) -> list[list[KernelStep]]:
    """Greedily: the first kernel that is left opens a stage, and those of the next ones join it that depend on nothing left."""
    used = [uses.of(step) for step in run]
    left = list(range(len(run)))
    out: list[list[KernelStep]] = []
    while left:
        chosen = [left[0]]
        blocked_all, blocked_written = set(used[left[0]][0]), set(used[left[0]][1])
        for j in left[1:WINDOW]:
            if len(chosen) == MAX_CHILDREN:
                break
            every, written = used[j]
            if not (written & blocked_all or every & blocked_written):
                chosen.append(j)
            blocked_all |= every
            blocked_written |= written
        out.append([run[j] for j in chosen])
        left = [j for j in left if j not in chosen]
    return out


# --- cores ------------------------------------------------------------------------------------------------------------------------
def divide(workloads: Sequence[float], cores: int, most: Sequence[int]) -> list[int]:
    """How many of ``cores`` each kernel of a stage gets: by its workload, smallest first, at least one and at most what it can use
    (``most``); what a small one leaves goes to the larger ones. Linear after a sort: nothing is searched.

    ``ValueError`` if there are fewer cores than kernels."""
    if cores < len(workloads):
        raise ValueError(f"{len(workloads)} kernels cannot share {cores} cores")
    out = [0] * len(workloads)
    left, work = cores, sum(workloads)
    order = sorted(range(len(workloads)), key=lambda k: (workloads[k], k))
    for done, k in enumerate(order):
        others = len(order) - done - 1
        fair = round(left * workloads[k] / work) if work else left // (others + 1)
        out[k] = max(1, min(fair, most[k], left - others))
        left, work = left - out[k], work - workloads[k]
    return out


def together(steps: Sequence[NumberedStep], numbers: Sequence[int]) -> Iterator[list[NumberedStep]]:
    """The steps of a block, the kernels of a stage together; ``numbers`` are those of ``stage_numbers``."""
    group: list[NumberedStep] = []
    for step in steps:
        alone = step.index < 0 or not isinstance(step.step, KernelStep)
        if group and (alone or numbers[group[-1].index] != numbers[step.index]):
            yield group
            group = []
        if alone:
            yield [step]
        else:
            group.append(step)
    if group:
        yield group
