"""Stores that add, and SPLIT loops: what makes them mean the same however many cores share the work, and in however many steps.

An executor may take a SPLIT loop's steps as one. That gives the same (up to the order of additions) if every step sums up its elements from
zero and adds the sums to memory, if each element is added to once a step, and if nothing else touches that memory meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from vm import isa, widening
from vm.decode import Address, Kernel, Loop, Op, operations, stored_buffers
from vm.errors import ProgramError
from vm.program import HostStep, KernelStep, Program, Step, inner_blocks

_SUMS = ("mmad", "reduce_sum")


def check(kernel: Kernel) -> None:
    """Raises ``ProgramError`` for SPLIT loops and stores that add whose result would depend on how the work is divided."""
    for op, around in _within(kernel.body, ()):
        if op.insn.name == "store":
            _store(kernel, op, around)
    for loop in _loops(kernel.body):
        if loop.kind == isa.LoopKind.SPLIT:
            _split(kernel, loop)


def added(kernel: Kernel) -> list[int]:
    """The step's buffers that the kernel adds to. ``ProgramError`` if it also loads them or stores into them without adding."""
    adds: dict[int, None] = {}
    other: dict[int, Op] = {}
    for op in operations(kernel.body):
        address = op.fields.get("address")
        if not isinstance(address, Address):
            continue
        if op.insn.name == "store" and op.fixed("add"):
            adds[address.buffer] = None
        else:
            other.setdefault(address.buffer, op)
    for buffer in adds:
        if buffer in other:
            op = other[buffer]
            raise ProgramError(f"word {op.at}: {op.insn.name} races with the stores that add to the same buffer")
    return list(adds)


def check_begun(program: Program, kernels: Mapping[int, Kernel]) -> None:
    """Raises ``ProgramError`` where a kernel adds to a buffer into which no earlier step has stored anything: one that runs whenever it
    does, so none of another alternative or choice."""

    def root(buffer: int) -> int:
        alias = program.buffers[buffer].alias
        return buffer if alias is None else alias

    def walk(steps: Sequence[Step], stored: set[int]) -> None:
        forms: dict[tuple[int, int], set[int]] = {}  # what only the kernels of one alternative have stored
        for step in steps:
            if isinstance(step, KernelStep):
                kernel = kernels[step.template]
                mine = stored if step.choice is None else forms.setdefault((step.choice, step.alternative), set())
                for k in added(kernel):
                    if root(step.buffers[k]) not in stored | mine:
                        name = step.name or program.templates[step.template].name
                        raise ProgramError(
                            f"kernel {name} adds to buffer {step.buffers[k]}, into which no step before it stores"
                        )
                mine |= {root(step.buffers[k]) for k in stored_buffers(kernel)}
            elif isinstance(step, HostStep):
                stored |= {root(b) for b in step.outputs}
            else:
                for block in inner_blocks(step):
                    walk(block, set(stored))

    walk(program.steps, set())


def _within(body: Sequence[Op | Loop], around: tuple[Loop, ...]) -> Iterator[tuple[Op, tuple[Loop, ...]]]:
    for item in body:
        if isinstance(item, Loop):
            yield from _within(item.body, (*around, item))
        else:
            yield item, around


def _loops(body: Sequence[Op | Loop]) -> Iterator[Loop]:
    for item in body:
        if isinstance(item, Loop):
            yield item
            yield from _loops(item.body)


def _store(kernel: Kernel, op: Op, around: tuple[Loop, ...]) -> None:
    """A store in a SPLIT loop adds; one that adds does so once for every element (and step of the SPLIT loop right around it)."""
    splits = [loop for loop in around if loop.kind == isa.LoopKind.SPLIT]
    if splits and not op.fixed("add"):
        raise ProgramError(f"word {op.at}: the steps of a SPLIT loop race: a store in it must add")
    if not op.fixed("add"):
        return
    moves = {axis for _, axis in kernel.tiles[op.fixed("x")].dims}
    for loop in around:
        if loop.kind == isa.LoopKind.REDUCE or (loop.kind == isa.LoopKind.PARALLEL and loop.axis not in moves):
            raise ProgramError(f"word {op.at}: a store in the loop over axis {loop.axis} would add again in every step")


def _split(kernel: Kernel, loop: Loop) -> None:
    """Inside: tiles set to zero, REDUCE loops over the axis that sum up into them, copies of them, stores."""
    inner = [item for item in loop.body if isinstance(item, Loop)]
    sums = [item for item in inner if item.axis == loop.axis and item.kind == isa.LoopKind.REDUCE]
    plain = all(not isinstance(x, Loop) for item in inner for x in item.body)
    if not sums or len(sums) != len(inner) or not plain or not all(widening.may_widen(kernel, item) for item in sums):
        raise ProgramError(
            f"word {loop.op.at}: a SPLIT loop over axis {loop.axis} wants loops that sum up over that axis"
        )
    ops = list(operations(kernel.body))
    own = [item for item in loop.body if not isinstance(item, Loop)]
    for op in own:
        if op.insn.name == "store" and not _is_sum(ops, own, sums, op.fixed("x")):
            raise ProgramError(f"word {op.at}: what is added is not a sum over axis {loop.axis} alone")


def _is_sum(ops: Sequence[Op], own: Sequence[Op], sums: Sequence[Loop], tile: int) -> bool:
    """Whether a tile is written in the SPLIT loop only: as a copy of a sum, or to zero and then by what sums up."""
    writers = [op for op in ops if tile in isa.tiles_written(op.insn, op.fields)]
    if len(writers) == 1 and writers[0].insn.name == "copy" and writers[0] in own:
        return _is_sum(ops, own, sums, writers[0].fixed("x"))
    summing = [op for loop in sums for op in operations(loop.body)]
    zeros = [op for op in writers if op in own and op.insn.name == "fill" and op.fields["imm"] == 0]
    adding = [op for op in writers if op in summing and op.insn.name in _SUMS and op.fixed("accumulate")]
    return len(zeros) == 1 and bool(adding) and len(writers) == len(zeros) + len(adding)
