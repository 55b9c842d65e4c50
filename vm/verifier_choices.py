"""Parts of a program that are there in several forms: outside, it makes no difference which of them runs.

Every form of a part stores the same buffers. What else one stores are temporaries that only its own kernels use, so that what they hold
is nobody's business where another form runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vm.decode import Kernel, stored_buffers
from vm.errors import ProgramError
from vm.program import TEMP_BANKS, HostStep, KernelStep, Program, Step, inner_blocks, scalar_of

Form = tuple[int, int]  # a choice and an alternative of it


def check(program: Program, kernels: Mapping[int, Kernel]) -> None:
    """``ProgramError`` unless that holds; ``kernels`` are the decoded templates."""
    if not program.choices:
        return
    stored: dict[Form, dict[int, None]] = {}
    users: dict[int, dict[Form | None, None]] = {}

    def root(buffer: int) -> int:
        alias = program.buffers[buffer].alias
        return buffer if alias is None else alias

    def use(buffers: Sequence[int], form: Form | None) -> None:
        for b in buffers:
            users.setdefault(root(b), {})[form] = None

    def walk(steps: Sequence[Step]) -> None:
        for step in steps:
            if isinstance(step, KernelStep):
                form = None if step.choice is None else (step.choice, step.alternative)
                use(step.buffers, form)
                if form is not None:
                    written = stored.setdefault(form, {})
                    written.update((root(step.buffers[k]), None) for k in stored_buffers(kernels[step.template]))
            elif isinstance(step, HostStep):
                use((*step.inputs, *step.outputs), None)
            else:
                use((scalar_of(step),), None)
                for block in inner_blocks(step):
                    walk(block)

    walk(program.steps)
    for k, choice in enumerate(program.choices):
        forms = [(k, n) for n in range(choice.count)]
        for form in forms:
            for b in stored[form]:
                own = program.buffers[b].space in TEMP_BANKS and set(users[b]) == {form}
                missing = [n for _, n in forms if b not in stored[k, n]]
                if missing and not own:
                    raise ProgramError(
                        f"choice {k}: alternative {form[1]} stores buffer {b}, alternative {missing[0]} does not"
                    )
