"""Graph passes: ``optimise`` runs the default pipeline to a fixpoint, ``PASSES`` finds a pass by name.

Every pass is sound at every size that the scope allows, 0 and 1 included: a rewrite needs equal forms or a proof.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from graph_kernel.ir import Graph
from graph_kernel.passes.axis_splitting import AxisSplitting
from graph_kernel.passes.base import Pass, PassReport, RulePass, all_values, count_nodes, run_passes
from graph_kernel.passes.broadcast_folding import BroadcastFolding
from graph_kernel.passes.constant_folding import ConstantFolding
from graph_kernel.passes.cse import CommonSubexpressions
from graph_kernel.passes.dce import DeadCode
from graph_kernel.passes.dot_folding import DotFolding
from graph_kernel.passes.index_folding import IndexFolding
from graph_kernel.passes.inline_control import InlineControl
from graph_kernel.passes.reshape_folding import ReshapeFolding
from graph_kernel.passes.simplify import Simplify
from graph_kernel.passes.transpose_sinking import TransposeSinking
from graph_kernel.passes.view_folding import ViewFolding
from vm.errors import CompileError

__all__ = [
    "PASSES",
    "Pass",
    "PassReport",
    "RulePass",
    "count_nodes",
    "default_pipeline",
    "find",
    "optimise",
    "run_passes",
]

MAX_ROUNDS = 12

PASSES: dict[str, type[Pass]] = {
    cls.name: cls
    for cls in (
        DeadCode,
        CommonSubexpressions,
        ConstantFolding,
        InlineControl,
        Simplify,
        IndexFolding,
        BroadcastFolding,
        ReshapeFolding,
        ViewFolding,
        DotFolding,
        AxisSplitting,
        TransposeSinking,
    )
}


def find(name: str) -> Pass:
    """A pass with default options; ``CompileError`` lists the names there are."""
    if name not in PASSES:
        raise CompileError(f"there is no pass {name!r}; passes are {', '.join(PASSES)}")
    return PASSES[name]()


def default_pipeline(disable: Collection[str] = ()) -> list[Pass]:
    """One round: cheap clean-up first, the moves of whole regions last."""
    for name in disable:
        find(name)
    return [cls() for name, cls in PASSES.items() if name not in disable]


def optimise(graph: Graph, disable: Collection[str] = (), verify: bool = False) -> list[PassReport]:
    """Runs the pipeline until nothing changes, at most ``MAX_ROUNDS`` times. Returns a report for every run of a pass.

    A pass that changed nothing runs again only after another one has changed something.
    """
    passes = default_pipeline(disable)
    names = [v.name for v in graph.outputs]
    reports: list[PassReport] = []
    idle = 0
    for turn in range(MAX_ROUNDS):
        for item in passes:
            reports.extend(run_passes(graph, [item], verify, turn))
            idle = 0 if reports[-1].modified else idle + 1
            if idle >= len(passes):
                break
        if idle >= len(passes):
            break
    _restore_names(graph, names)
    return reports


def _restore_names(graph: Graph, names: Sequence[str]) -> None:
    """Gives outputs the names they had, where the value is not an input and the name is free.

    Two outputs that have become one value share the name of the first; callers that need all names keep their own list.
    """
    taken = {v.name for v in all_values(graph)}
    renamed = set(graph.inputs)
    for value, name in zip(graph.outputs, names, strict=True):
        if value not in renamed and value.name != name and name not in taken:
            taken.discard(value.name)
            value.name = name
            taken.add(name)
        renamed.add(value)
