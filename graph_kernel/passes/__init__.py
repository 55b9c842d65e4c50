"""Graph passes: ``optimise`` runs the default pipeline to a fixpoint, ``PASSES`` finds a pass by name.

Every pass is sound at every size that the scope allows, 0 and 1 included: a rewrite needs equal forms or a proof.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from graph_kernel.ir import Graph
from graph_kernel.passes.axis_splitting import AxisSplitting
from graph_kernel.passes.base import GROUPS, Pass, PassReport, RulePass, all_values, count_nodes, run_passes
from graph_kernel.passes.broadcast_folding import BroadcastFolding
from graph_kernel.passes.composites import Composite, composites
from graph_kernel.passes.constant_folding import ConstantFolding
from graph_kernel.passes.cse import CommonSubexpressions
from graph_kernel.passes.dce import DeadCode
from graph_kernel.passes.dot_folding import DotFolding
from graph_kernel.passes.expand_composites import ExpandComposites
from graph_kernel.passes.index_folding import IndexFolding
from graph_kernel.passes.inline_control import InlineControl
from graph_kernel.passes.outline_repeats import OutlineRepeats
from graph_kernel.passes.recognise import RECOGNISERS
from graph_kernel.passes.reshape_folding import ReshapeFolding
from graph_kernel.passes.simplify import Simplify
from graph_kernel.passes.transpose_sinking import TransposeSinking
from graph_kernel.passes.view_folding import ViewFolding
from vm.errors import CompileError

__all__ = [
    "GROUPS",
    "HIGHEST_LEVEL",
    "PASSES",
    "Composite",
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
HIGHEST_LEVEL = 3
Watch = Callable[[PassReport], None]

_ALL: tuple[type[Pass], ...] = (
    DeadCode,
    CommonSubexpressions,
    OutlineRepeats,
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
    *RECOGNISERS,
    ExpandComposites,
)
PASSES: dict[str, type[Pass]] = {cls.name: cls for cls in _ALL}
LAST = frozenset((*(cls.name for cls in RECOGNISERS), ExpandComposites.name))  # run once, after the fixpoint


def find(name: str) -> Pass:
    """A pass with default options; ``CompileError`` lists the names there are."""
    if name not in PASSES:
        raise CompileError(f"there is no pass {name!r}; passes are {', '.join(PASSES)}")
    return PASSES[name]()


def default_pipeline(disable: Collection[str] = (), level: int = HIGHEST_LEVEL) -> list[Pass]:
    """One round: cheap clean-up first, the moves of whole regions last. Composites come after all rounds (``expand_again``)."""
    for name in disable:
        find(name)
    return [cls() for name, cls in PASSES.items() if name not in disable and name not in LAST and cls.level <= level]


def optimise(
    graph: Graph,
    disable: Collection[str] = (),
    verify: bool = False,
    level: int = HIGHEST_LEVEL,
    watch: Watch | None = None,
) -> list[PassReport]:
    """Runs the pipeline until nothing changes, at most ``MAX_ROUNDS`` times, then recognises composites and expands them in their best
    form. Returns a report for every run of a pass; ``watch`` gets each of them at once, while the graph is what that pass left.

    A pass that changed nothing runs again only after another one has changed something.
    """
    passes = default_pipeline(disable, level)
    names = [v.name for v in graph.outputs]
    reports: list[PassReport] = []
    idle = 0
    for turn in range(MAX_ROUNDS):
        for item in passes:
            reports.extend(run_passes(graph, [item], verify, turn))
            if watch is not None:
                watch(reports[-1])
            idle = 0 if reports[-1].modified else idle + 1
            if idle >= len(passes):
                break
        if idle >= len(passes):
            break
    if level >= ExpandComposites.level:
        reports += recognise(graph, disable, verify, watch)
    if level >= ExpandComposites.level or composites(graph):  # there is no code for a composite
        reports += expand_again(graph, disable, verify, watch)
    _restore_names(graph, names)
    return reports


def recognise(
    graph: Graph, disable: Collection[str] = (), verify: bool = False, watch: Watch | None = None
) -> list[PassReport]:
    """Turns what was decomposed into composite nodes. Nothing is recognised that could not be expanded again."""
    if ExpandComposites.name in disable:
        return []
    return _run_each(graph, [cls() for cls in RECOGNISERS if cls.name not in disable], verify, watch)


def expand_again(
    graph: Graph, disable: Collection[str] = (), verify: bool = False, watch: Watch | None = None
) -> list[PassReport]:
    """Expands all composites; the first report lists them. What their bodies have in common is merged."""
    if ExpandComposites.name in disable:
        return []
    found = tuple(composites(graph))
    (report,) = _run_each(graph, [ExpandComposites()], verify, watch)
    after = [CommonSubexpressions(), DeadCode()] if report.modified else []
    return [replace(report, composites=found), *_run_each(graph, after, verify, watch)]


def _run_each(graph: Graph, passes: Sequence[Pass], verify: bool, watch: Watch | None) -> list[PassReport]:
    reports = []
    for item in passes:
        reports += run_passes(graph, [item], verify)
        if watch is not None:
            watch(reports[-1])
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
