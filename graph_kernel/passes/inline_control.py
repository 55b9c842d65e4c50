"""Control flow that is decided at compile time: a conditional with a known branch is replaced by that branch's nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graph_kernel.ir import Graph, Node, Value
from graph_kernel.passes.base import Rewriter, RulePass
from graph_kernel.passes.match import splat, splat_is


def known_branch(rw: Rewriter, node: Node) -> tuple[Value, ...] | None:
    """``cond`` with a constant index (clamped to the branches there are), or with one branch only."""
    index, *operands = node.inputs
    branches: tuple[Graph, ...] = node.attrs["branches"]
    number = splat(index)
    if number is None and len(branches) > 1:
        return None
    chosen = 0 if number is None else min(max(int(number), 0), len(branches) - 1)
    return inlined(rw, branches[chosen], operands)


def inlined(rw: Rewriter, body: Graph, operands: list[Value]) -> tuple[Value, ...]:
    """The results of ``body`` on ``operands``, computed by nodes in front of the one being looked at."""
    env: dict[Value, Value] = dict(zip(body.inputs, operands, strict=True))
    for node in body.nodes:
        outs = rw.add_multi(node.op, [env[v] for v in node.inputs], dict(node.attrs), node.origin)
        env.update(zip(node.outputs, outs, strict=True))
    return tuple(env[v] for v in body.outputs)


def unused_loop(rw: Rewriter, node: Node) -> tuple[Value, ...] | None:
    """``while`` whose condition is false whatever it looks at, and ``scan`` of length 0 with nothing stacked: the carry."""
    if node.op == "scan":
        if node.attrs["length"] != 0 or len(node.outputs) != node.attrs["num_carry"]:
            return None
        first = node.attrs["num_consts"]
        return tuple(node.inputs[first : first + node.attrs["num_carry"]])
    (result,) = node.attrs["cond_graph"].outputs
    if not splat_is(result, 0):
        return None
    first = node.attrs["cond_consts"] + node.attrs["body_consts"]
    return tuple(node.inputs[first:])


@dataclass(frozen=True)
class InlineControl(RulePass):
    """Removes control flow that cannot go two ways."""

    name: ClassVar[str] = "inline_control"
    group: ClassVar[str] = "expand"
    level: ClassVar[int] = 1
    rules: ClassVar = {"cond": (known_branch,), "while": (unused_loop,), "scan": (unused_loop,)}
