"""Stacking in the compiler: independent kernels are put next to each other and run side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vm.program import MAX_CHILDREN, CondStep, ForStep, HostStep, KernelStep, Step, WhileStep
from vm.program.stages import Uses

WINDOW = 32  # kernels: how far ahead one is looked for that can join a stage; farther, its operands would live too long


def arrange(steps: Sequence[Step], uses: Uses) -> tuple[tuple[Step, ...], tuple[int, ...]]:
    """The steps with independent kernels next to each other, and the table of stages. No kernel passes one that it depends on, or a step
    that is no kernel."""
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
