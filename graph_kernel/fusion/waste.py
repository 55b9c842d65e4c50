"""Which merges would compute something more often than once, and whether that is cheap enough to do."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from graph_kernel.fusion.axes import REDUCTIONS, Axes
from graph_kernel.fusion.layout import Layout
from graph_kernel.ir import Node, Value
from symbolic import product

EXPENSIVE = frozenset(
    ("exp", "exp2", "log", "log1p", "expm1", "logistic", "erf", "erfc", "erf_inv", "pow", "cbrt", "atan2")
    + ("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh")
)
EXPENSIVE_COST = 32  # of a function, in multiply-adds of a product
FREE_SHARE = 16  # work that is repeated may be a 16th of the products' work


def expensive(node: Node) -> bool:
    """Whether a node is worth storing rather than computing it twice."""
    return node.op in EXPENSIVE or node.op in REDUCTIONS or node.op == "dot"


def wasteful(nodes: Iterable[Node], outputs: list[Value], axes: Axes, layout: Layout) -> str:
    """Why a kernel with these axes and loops would compute one of ``nodes`` again and again; empty if it does not, or if what it repeats
    is little beside the kernel's products."""
    needed = {v: _ancestors(v, axes) for v in outputs}
    for node in nodes:
        atoms = {
            a for v in (*node.inputs, *node.outputs) if v in axes.dims for a in axes.of(v)
        }  # a table of indices has none
        missing: set[int] = set()
        for value in outputs:
            if node in needed[value]:
                missing |= _missing(node, atoms, value, axes, layout)
        if missing and not _cheap(node, atoms | missing, axes):
            sizes = ", ".join(str(axes.atoms[a].size) for a in sorted(missing))
            return f"{node.op} would be computed again for every index over {sizes}"
    return ""


def _ancestors(value: Value, axes: Axes) -> set[Node]:
    makers = {v: n for n in axes.computed for v in n.outputs}
    found: set[Node] = set()
    stack = [value]
    while stack:
        node = makers.get(stack.pop())
        if node is not None and node not in found:
            found.add(node)
            stack += node.inputs
    return found


def _missing(node: Node, atoms: set[int], value: Value, axes: Axes, layout: Layout) -> set[int]:
    """Indices of a result over which the node's code is repeated: their loops are not inside the node's innermost loop, and the node does
    not vary with them."""
    domain = set(axes.of(value)) | {a for a in layout.loop_of if layout.loops[layout.loop_of[a]].stage}
    nest = sorted({layout.loop_of[a] for a in domain | atoms if a in layout.loop_of}, key=layout.depth)
    depth = {loop: k for k, loop in enumerate(nest)}
    innermost = max(
        (depth[layout.loop_of[a]] for a in atoms if a in layout.loop_of), default=-1
    )  # where the node's code is
    return {a for a in set(axes.of(value)) - atoms if a in layout.loop_of and depth[layout.loop_of[a]] <= innermost}


def _cheap(node: Node, repeated: Collection[int], axes: Axes) -> bool:
    """Whether the node's work over all of ``repeated`` is a small share of that of the largest product."""
    if node.op == "dot":
        return False
    cost = EXPENSIVE_COST if expensive(node) else 1
    for dot in axes.computed:
        if dot.op != "dot":
            continue
        work = {a for v in dot.inputs for a in axes.of(v)}
        extra = product([axes.atoms[a].size for a in repeated if a not in work])
        spared = product([axes.atoms[a].size for a in work if a not in repeated and axes.atoms[a].static])
        if isinstance(extra, int) and isinstance(spared, int) and extra * cost * FREE_SHARE <= spared:
            return True
    return False
