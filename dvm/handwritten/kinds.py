"""Kinds of kernels, and what each may hold.

A kernel of kind ``sequence`` or ``parallel`` has *children*, a ``Section`` each; any other kernel is one section.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from dvm import explain
from graph_kernel.fusion.fuse import Group
from graph_kernel.ir import Graph, Value
from vm.disassembler import kernel_steps, walk
from vm.errors import CompileError
from vm.program import HostStep, Program

KINDS = ("vector", "cube", "mix", "parallel", "sequence", "split", "eager")
CHILDREN = {"parallel": ("vector", "cube", "mix"), "sequence": ("vector", "cube", "mix", "parallel")}

_SHOWN = 5  # refused merges in a message
_VIEWS = frozenset(("permute", "reshape", "slice", "concat", "onehot", "split", "sum", "max", "min"))


@dataclass(eq=False)
class Section:
    """A kernel, or a child of one. ``stage`` and ``lane``: its place among children in order and among independent ones.

    ``ops`` holds what was said in it, with the tensor that each word made.
    """

    kind: str
    stage: int = 0
    lane: int = 0
    name: str = ""
    marks: int = 0  # places where it may be cut
    ops: list[tuple[str, Any]] = field(default_factory=list)


def one_kernel(sections: list[Section]) -> Callable[[Group, Group], bool]:
    """For code generation: two groups are to be one kernel where both belong to the same section, and that is to be one."""
    marks = {f", {s.name}" if s.name else "" for s in sections if s.kind in ("vector", "mix")}

    def wanted(first: Group, second: Group) -> bool:
        places = [str(n.origin) for group in (first, second) for n in group.nodes]
        return any(all(place.endswith(mark) for place in places) for mark in marks)

    return wanted


def checked_kind(kind: str, among: Iterable[str] = KINDS) -> str:
    """``kind`` in lower case; ``CompileError`` if there is none of that name."""
    lower = str(kind).lower()
    if lower not in among:
        raise CompileError(f"unknown kind of kernel {kind!r}; possible here: {', '.join(among)}")
    return lower


def check_contents(section: Section, graph: Graph, name: str) -> None:
    """Raises ``CompileError`` if a section holds what its kind forbids."""
    if section.kind not in ("vector", "cube", "mix"):
        return
    who = f"kernel {name!r}{', ' + section.name + ',' if section.name else ''} is of kind {section.kind}"
    live = live_values(graph)
    ops = [(op, made) for op, made in section.ops if made.node in live]
    products = [made for op, made in ops if op == "matmul"]
    others = [op for op, _ in ops if op != "matmul"]
    if section.kind == "vector":
        if products:
            raise CompileError(f"{who}, which has no matrix product: use cube, mix or split ({_place(products[0])})")
        return
    if len(products) != 1:
        raise CompileError(f"{who}, which has exactly one matrix product, not {len(products)}")
    if section.kind == "cube":
        if others:
            raise CompileError(
                f"{who}, which holds a matrix product and nothing else, not {others[0]}: use mix or split"
            )
        return
    moved = [op for op in others if op in _VIEWS]
    if moved:
        raise CompileError(f"{who}: what follows its matrix product is elementwise, {moved[0]} is not: use split")
    before = live_values(graph, _operands_of(products[0].node))
    early = [op for op, made in ops if op != "matmul" and made.node in before]
    if early:
        raise CompileError(f"{who}: its matrix product takes loaded values, {early[0]} comes before it: use split")


def _place(tensor: Any) -> str:
    return str(tensor.node.producer.origin)


def _operands_of(product: Value) -> list[Value]:
    """What the ``dot`` behind a product (and its bias and cast) reads."""
    node = product.producer
    while node is not None and node.op != "dot":
        node = node.inputs[0].producer
    return list(node.inputs) if node is not None else []


def live_values(graph: Graph, roots: list[Value] | None = None) -> set[Value]:
    """Values that the results, or ``roots``, depend on."""
    found: set[Value] = set()
    stack = list(graph.outputs if roots is None else roots)
    while stack:
        value = stack.pop()
        if value not in found:
            found.add(value)
            stack += value.producer.inputs if value.producer is not None else ()
    return found


def check_program(sections: list[Section], program: Program, name: str) -> None:
    """Raises ``CompileError`` if a section that is to be one kernel needs several, and says why fusion cut it."""
    for section in sections:
        if section.kind not in ("vector", "cube", "mix"):
            continue
        who = f"kernel {name!r}{', ' + section.name + ',' if section.name else ''} is of kind {section.kind}"
        hosted = [s.function for s in walk(program.steps) if isinstance(s, HostStep)]
        if hosted and len(sections) == 1:
            raise CompileError(f"{who}, but {hosted[0]} runs on the host: use split")
        kernels = _kernels_of(section, program)
        allowed = 1 + section.marks
        if len(kernels) > allowed:
            raise CompileError(
                f"{who}, which is {allowed} kernel{'s' * (allowed > 1)}, but needs {len(kernels)}: {', '.join(kernels)}\n"
                f"{_reasons(program, kernels)}\n"
                "Use kind 'split', allow a cut with k.spec_next(), or give sizes that are equal the same name: k.load(['n', 64], ...)"
            )


def _kernels_of(section: Section, program: Program) -> list[str]:
    """Names of the launched kernels that hold something of the section."""
    if not section.name:
        return [step.name for step in kernel_steps(program.steps)]
    mark = f", {section.name}"
    listed = program.debug.get("kernels", ())
    return [str(k["name"]) for k in listed if any(str(o).endswith(mark) for o in k.get("origin", ()))]


def _reasons(program: Program, kernels: list[str]) -> str:
    lines = [
        f"  {cut['from']} | {cut['to']} (%{cut['value']}): {cut['reason']}"
        for cut in explain.cuts(program)
        if cut["from"] in kernels and cut["to"] in kernels
    ]
    refused = program.debug.get("cuts", ())
    lines = lines or [f"  {cut['from']} | {cut['to']}: {cut['reason']}" for cut in refused][:_SHOWN]
    return "\n".join(lines or ["  they store results that no one loop can make"])
