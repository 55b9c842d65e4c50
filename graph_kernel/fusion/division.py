"""Products whose sum is shared out among cores: the kernels that a product of few results over a long contracted dim may be instead.

One kernel sets the result to zero, one multiplies and adds the sums of its parts to it, and what the product's kernel did besides (a
rounding to 16 bits, an epilogue) is a third one. ``codegen.division`` says where this can be faster, and how many parts there are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from graph_kernel.fusion.axes import Refusal
from graph_kernel.fusion.layout import Sharing
from graph_kernel.fusion.prepare import FREE_OPS
from graph_kernel.fusion.rules import Group, Rule
from graph_kernel.ir import Node
from graph_kernel.ops.base import HALF

if TYPE_CHECKING:
    from graph_kernel.fusion.fuse import Fuser

SUM = np.dtype(np.float32)  # what memory can add to
DIVIDED = Rule(
    "divided product", lambda *_: False, patience=1.25
)  # merges nothing; ``patience``: for a kernel or two more


def product_of(group: Group) -> Node | None:
    """The product whose sum can be divided: the only one of its kernel, of floats, over operands that lie in memory."""
    dots = [n for n in group.nodes if n.op == "dot"]
    if len(dots) != 1 or (dots[0].output.dtype != SUM and dots[0].output.dtype not in HALF):
        return None
    below = list(dots[0].inputs)
    while below:
        node = below.pop().producer
        if node in group.nodes:
            return None
        below += node.inputs if node is not None and node.op in FREE_OPS else ()
    return dots[0]


def parts_of(group: Group, fuser: Fuser) -> tuple[Group, ...]:
    """The kernels, in order, each complete; none if one of them has no kernel form."""
    dot = product_of(group)
    rest = [n for n in group.nodes if n is not dot]
    if dot is None:
        return ()
    total, product = dot.output, dot
    if total.dtype != SUM:
        total = fuser.graph.new_value(total.shape, SUM, total.name)
        rounded = Node("cast", (total,), dot.outputs, {"dtype": dot.output.dtype}, dot.origin)
        product = Node("dot", dot.inputs, (total,), {**dot.attrs, "dtype": SUM}, dot.origin)
        total.producer = product
        _adopt(fuser, product, dot, rounded)
        _adopt(fuser, rounded, dot)
        rest = [rounded, *rest]
    zero = fuser.graph.make_node("constant", [], {"value": np.zeros((), SUM)}, dot.origin)
    zeros = fuser.graph.make_node("broadcast", [zero.output], {"shape": total.shape, "dims": ()}, dot.origin)
    fuser.free.add(zero)
    _adopt(fuser, zero, dot, zeros)
    _adopt(fuser, zeros, dot, product)
    nodes = [([zeros], Sharing.ROWS), ([product], Sharing.SUM), *([(rest, Sharing.ROWS)] if rest else [])]
    parts = [Group(-1, members, sharing=sharing) for members, sharing in nodes]
    try:
        for part in parts:
            fuser.complete(part)
    except Refusal:
        return ()
    if parts[1].stores != [total]:
        return ()  # its place is in a larger result
    fuser.aliases[zeros.output] = total  # one memory
    return tuple(parts)


def _adopt(fuser: Fuser, node: Node, like: Node, *users: Node) -> None:
    """Makes a node known that is in no graph; it stands where ``like`` does, and ``users`` read its result."""
    fuser.position[node] = fuser.position[like]
    for value in node.outputs:
        fuser.users.setdefault(value, []).extend(users)
