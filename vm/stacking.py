"""Stacking on the machine: the kernels of a stage run side by side on cores of their own (``vm.program.stages`` is the table).

How many cores each of them gets is decided when sizes are known (``divide``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from vm.decode import decode, stored_buffers
from vm.errors import ProgramError
from vm.program import KernelStep, Program
from vm.program.stages import Uses, run_together, stages

if TYPE_CHECKING:
    from vm.binder import NumberedStep


def check_independence(program: Program) -> None:
    """``ProgramError`` if two kernels of a stage surely share what one of them writes. That places do not overlap at given sizes is for
    ``vm.verifier.BoundCheck``."""
    stored: dict[int, list[int]] = {}

    def stored_by(step: KernelStep) -> list[int]:
        if step.template not in stored:
            stored[step.template] = stored_buffers(decode(program.templates[step.template]))
        return [step.buffers[k] for k in stored[step.template]]

    uses = Uses(program.buffers, stored_by, program.code.zeros())
    for number, stage in enumerate(stages(program)):
        for i, a in enumerate(stage):
            for b in stage[:i]:
                if uses.depend(a, b) and run_together(a, b):
                    raise ProgramError(
                        f"stage {number}: kernels {b.name or b.template} and {a.name or a.template} run side by side, but one writes what "
                        f"the other one uses"
                    )


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
