"""Reshape folding: chains of reshapes merge, identities vanish, and added axes of size 1 move towards where they are absorbed.

``axis_splitting`` does the moves that change a whole region; the rules here look at one node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from graph_kernel.ir import Node, Value
from graph_kernel.passes.base import Rewriter, RulePass
from graph_kernel.passes.match import ELEMENTWISE, is_identity, made_by, same_shape, splat
from graph_kernel.passes.reshape_groups import axis_groups

if TYPE_CHECKING:
    from symbolic import Dim


def identity_reshape(rw: Rewriter, node: Node) -> Value | None:
    """A reshape to the same shape."""
    (x,) = node.inputs
    return x if same_shape(rw.scope, x.shape, node.output.shape) else None


def reshape_of_reshape(rw: Rewriter, node: Node) -> Value | None:
    """Two reshapes in a row are one."""
    inner = made_by(node.inputs[0], "reshape")
    return None if inner is None else rw.add("reshape", inner.inputs[0], shape=node.attrs["shape"])


def reshape_of_iota(rw: Rewriter, node: Node) -> Value | None:
    """A reshape of an iota that only adds or drops axes of size 1 is an iota."""
    inner = made_by(node.inputs[0], "iota")
    if inner is None:
        return None
    groups = axis_groups(rw.scope, inner.output.shape, node.output.shape)
    axis = inner.attrs["axis"]
    for ins, outs in groups or ():
        if axis in ins and len(ins) == len(outs) == 1:
            return rw.add("iota", shape=node.attrs["shape"], axis=outs[0], dtype=inner.attrs["dtype"])
    return None


def adds_ones(rw: Rewriter, before: Sequence[Dim], after: Sequence[Dim]) -> bool:
    """Whether ``reshape(before -> after)`` only adds axes of size 1."""
    groups = axis_groups(rw.scope, before, after)
    return groups is not None and all(len(outs) == 1 and len(ins) <= 1 for ins, outs in groups)


def sink_added_ones(rw: Rewriter, node: Node) -> Value | None:
    """op(reshape(a), reshape(b), scalars) -> reshape(op(a, b, scalars)) if the reshapes add axes of size 1 only.

    One axis form of a value is kept that way until a broadcast, a reduction or a reshape absorbs the axes.
    """
    base: Value | None = None
    operands: list[Value | None] = []
    for value in node.inputs:
        inner = made_by(value, "reshape")
        if inner is not None and adds_ones(rw, inner.inputs[0].shape, value.shape):
            if base is not None and not same_shape(rw.scope, base.shape, inner.inputs[0].shape):
                return None
            base = base or inner.inputs[0]
            operands.append(inner.inputs[0])
        elif splat(value) is not None:
            operands.append(None)
        else:
            return None
    if base is None or not any(rw.single_use(v) for v in node.inputs if splat(v) is None):
        return None
    small = [_scalar_like(rw, v, base) if x is None else x for v, x in zip(node.inputs, operands, strict=True)]
    return rw.add("reshape", rw.add(node.op, *small, **node.attrs), shape=node.output.shape)


def _scalar_like(rw: Rewriter, value: Value, like: Value) -> Value:
    number = splat(value)
    assert number is not None
    scalar = rw.constant(number)
    return rw.add("broadcast", scalar, shape=like.shape, dims=()) if like.shape else scalar


def reshape_of_transpose(rw: Rewriter, node: Node) -> Value | None:
    """reshape(transpose(x)) -> transpose(reshape(x)) if every group of axes that changes is contiguous in x too.

    Transposes go after reshapes, so that reshapes meet and cancel: ``[b*h, s, d] -> transpose -> [b, h, d, s]``.
    """
    (mid,) = node.inputs
    inner = made_by(mid, "transpose")
    if inner is None or not rw.single_use(mid):
        return None
    (x,) = inner.inputs
    perm = inner.attrs["perm"]
    groups = axis_groups(rw.scope, mid.shape, node.output.shape)
    if groups is None or all(len(ins) <= 1 and len(outs) == 1 for ins, outs in groups):
        return None  # added 1s stay last, where a broadcast finds them
    anchor = 0
    keyed: list[tuple[int, int, tuple[int, ...]]] = []  # (place in x, order of appearance, output axes)
    for ins, outs in groups:
        old = [perm[i] for i in ins]
        if any(b != a + 1 for a, b in zip(old, old[1:], strict=False)):
            return None
        anchor = old[0] if old else anchor
        keyed.append((anchor, len(keyed), outs))
    order = [k for _, _, outs in sorted(keyed) for k in outs]
    shape = tuple(node.output.shape[k] for k in order)
    place = {k: i for i, k in enumerate(order)}
    new_perm = tuple(place[k] for k in range(node.output.rank))
    flat = rw.add("reshape", x, shape=shape)
    return flat if is_identity(new_perm) else rw.add("transpose", flat, perm=new_perm)


@dataclass(frozen=True)
class ReshapeFolding(RulePass):
    """Merges and cancels reshapes; moves added axes of size 1 and transposes after them."""

    name: ClassVar[str] = "reshape_folding"
    rules: ClassVar = {
        "reshape": (identity_reshape, reshape_of_reshape, reshape_of_iota, reshape_of_transpose),
        **dict.fromkeys(ELEMENTWISE, (sink_added_ones,)),
    }
