"""Broadcast folding: broadcasts merge with each other and move past elementwise ops, so that work is done before data grows.

A scalar constant stays ``broadcast(constant)``: one number and an index map, whatever the shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from graph_kernel.ir import Node, Value
from graph_kernel.passes.base import Rewriter, RulePass
from graph_kernel.passes.match import (
    ELEMENTWISE,
    REDUCES,
    array_of,
    inverse,
    is_identity,
    made_by,
    same_dim,
    same_shape,
    splat,
)
from graph_kernel.passes.reshape_groups import axis_groups

if TYPE_CHECKING:
    from symbolic import Dim

_SPLAT_LIMIT = 1 << 16


def spread(rw: Rewriter, x: Value, shape: Sequence[Dim], dims: Sequence[int]) -> Value:
    """``broadcast`` of x, or x itself where that is the identity."""
    return rw.add("broadcast", x, shape=tuple(shape), dims=tuple(dims))


def expanded(rw: Rewriter, node: Node) -> list[bool]:
    """For each input axis of a broadcast, whether it grows from size 1 (or may: its sizes are not proved equal)."""
    shape = node.attrs["shape"]
    return [not same_dim(rw.scope, d, shape[k]) for d, k in zip(node.inputs[0].shape, node.attrs["dims"], strict=True)]


def uniform_constant(rw: Rewriter, node: Node) -> Value | None:
    """A constant that holds one number everywhere -> broadcast of the scalar."""
    array = np.asarray(node.attrs["value"])
    if array.ndim == 0 or not 0 < array.size <= _SPLAT_LIMIT:
        return None
    flat = np.ascontiguousarray(array).reshape(-1)
    raw = flat.view(np.uint8).reshape(flat.size, -1)
    if not (raw[0] == raw[-1]).all() or not (raw == raw[0]).all():
        return None
    return spread(rw, rw.constant(flat[0].reshape(())), array.shape, ())


def identity_broadcast(rw: Rewriter, node: Node) -> Value | None:
    """A broadcast that changes nothing."""
    (x,) = node.inputs
    return x if x.rank == node.output.rank and same_shape(rw.scope, x.shape, node.output.shape) else None


def broadcast_of_broadcast(rw: Rewriter, node: Node) -> Value | None:
    """Two broadcasts in a row are one."""
    inner = made_by(node.inputs[0], "broadcast")
    if inner is None:
        return None
    dims = node.attrs["dims"]
    return spread(rw, inner.inputs[0], node.attrs["shape"], [dims[k] for k in inner.attrs["dims"]])


def broadcast_of_reshape(rw: Rewriter, node: Node) -> Value | None:
    """broadcast(reshape(x)) -> broadcast(x) if the reshape only adds axes of size 1."""
    inner = made_by(node.inputs[0], "reshape")
    if inner is None:
        return None
    (x,) = inner.inputs
    groups = axis_groups(rw.scope, x.shape, inner.output.shape)
    if groups is None:
        return None
    dims: list[int | None] = [None] * x.rank
    for ins, outs in groups:
        if len(ins) == 1 and len(outs) == 1:
            dims[ins[0]] = node.attrs["dims"][outs[0]]
        elif ins and outs:
            return None
    found = [d for d in dims if d is not None]
    if len(found) < len(dims):  # an axis of size 1 that the reshape dropped has no output axis to go to
        return None
    return spread(rw, x, node.attrs["shape"], found)


def broadcast_scalar_constant(rw: Rewriter, node: Node) -> Value | None:
    """A broadcast constant of one element is a broadcast rank-0 constant."""
    array = array_of(node.inputs[0])
    if array is None or array.size != 1 or array.ndim == 0:
        return None
    return spread(rw, rw.constant(array.reshape(())), node.attrs["shape"], ())


def broadcast_of_ones(rw: Rewriter, node: Node) -> Value | None:
    """A constant's axes of size 1 that grow are dropped: broadcast([1, n] -> [b, n]) is broadcast([n] -> [b, n])."""
    (x,) = node.inputs
    array = array_of(x)
    if array is None or array.ndim == 0:
        return None
    kept = [i for i, d in enumerate(array.shape) if d != 1 or node.attrs["shape"][node.attrs["dims"][i]] == 1]
    if len(kept) == array.ndim:
        return None
    small = rw.constant(array.reshape([array.shape[i] for i in kept]))
    return spread(rw, small, node.attrs["shape"], [node.attrs["dims"][i] for i in kept])


def broadcast_to_reshape(rw: Rewriter, node: Node) -> Value | None:
    """A broadcast that only adds axes of size 1 is a reshape."""
    (x,) = node.inputs
    shape, dims = node.attrs["shape"], node.attrs["dims"]
    if any(shape[k] != 1 for k in range(len(shape)) if k not in dims) or any(expanded(rw, node)):
        return None
    if splat(x) is not None:
        return None
    return rw.add("reshape", x, shape=shape)


def reshape_of_broadcast(rw: Rewriter, node: Node) -> Value | None:
    """reshape(broadcast(x)) -> broadcast(reshape(x)) if every group of axes is all old or all new."""
    inner = made_by(node.inputs[0], "broadcast")
    if inner is None:
        return None
    (x,) = inner.inputs
    groups = axis_groups(rw.scope, inner.output.shape, node.output.shape)
    if groups is None:
        return None
    grows = expanded(rw, inner)
    source = {k: i for i, k in enumerate(inner.attrs["dims"])}
    shape: list[Dim] = []
    dims: list[int] = []
    for ins, outs in groups:
        old = [source[k] for k in ins if k in source]
        if not old:
            continue
        if len(ins) == len(outs) == 1:
            shape.append(x.shape[old[0]])
            dims.append(outs[0])
        elif len(old) == len(ins) and not any(grows[i] for i in old):
            shape.extend(node.output.shape[k] for k in outs)
            dims.extend(outs)
        elif not all(x.shape[i] == 1 for i in old):
            return None
    order = sorted(range(len(dims)), key=dims.__getitem__)
    if not is_identity(order):
        return None
    small = x if len(shape) == x.rank and all(a == b for a, b in zip(shape, x.shape, strict=True)) else None
    if small is None:
        small = rw.add("reshape", x, shape=tuple(shape))
    return spread(rw, small, node.output.shape, dims)


def transpose_of_broadcast(rw: Rewriter, node: Node) -> Value | None:
    """transpose(broadcast(x)) -> broadcast(transpose(x)); no transpose is left where x keeps the order of its axes."""
    inner = made_by(node.inputs[0], "broadcast")
    if inner is None:
        return None
    (x,) = inner.inputs
    place = inverse(node.attrs["perm"])
    dims = [place[k] for k in inner.attrs["dims"]]
    order = tuple(sorted(range(len(dims)), key=dims.__getitem__))
    small = x if is_identity(order) else rw.add("transpose", x, perm=order)
    return spread(rw, small, node.output.shape, sorted(dims))


def sink_broadcast(rw: Rewriter, node: Node) -> Value | None:
    """op(broadcast(a), broadcast(b)) -> broadcast(op(a, b)) if one operand's axes include those of all others.

    Not where launch decides whether an axis is repeated: a load can do either, a computed value cannot.
    """
    if not node.output.rank or not all(made_by(v, "broadcast") for v in node.inputs):
        return None
    inners = [v.producer for v in node.inputs]
    wide = max((n for n in inners if n is not None), key=lambda n: len(n.attrs["dims"]))
    base, dims = wide.inputs[0], wide.attrs["dims"]
    if any(grows and d != 1 for grows, d in zip(expanded(rw, wide), base.shape, strict=True)):
        return None
    place = {k: i for i, k in enumerate(dims)}
    operands: list[tuple[Value, list[int]]] = []
    for inner in inners:
        assert inner is not None
        (x,) = inner.inputs
        if any(k not in place for k in inner.attrs["dims"]):
            return None
        axes = [place[k] for k in inner.attrs["dims"]]
        if not all(same_dim(rw.scope, d, base.shape[i]) for d, i in zip(x.shape, axes, strict=True)):
            return None
        operands.append((x, axes))
    small = [x if x.rank == base.rank else spread(rw, x, base.shape, axes) for x, axes in operands]
    return spread(rw, rw.add(node.op, *small, **node.attrs), node.output.shape, dims)


def reduce_of_broadcast(rw: Rewriter, node: Node) -> Value | None:
    """A reduction over old axes moves before the broadcast; max, min, and, or over new axes of size >= 1 vanish."""
    inner = made_by(node.inputs[0], "broadcast")
    if inner is None or node.op in ("reduce_prod",):
        return None
    (x,) = inner.inputs
    grows = expanded(rw, inner)
    source = {k: i for i, k in enumerate(inner.attrs["dims"])}
    inside: list[int] = []
    new: list[int] = []
    for axis in node.attrs["axes"]:
        old = source.get(axis)
        (inside if old is not None and not grows[old] else new).append(axis)
    if new:
        if node.op == "reduce_sum" or any(axis in source for axis in new):
            return None
        if not all(_at_least_one(rw, inner.output.shape[axis]) for axis in new):
            return None
    gone = set(node.attrs["axes"])
    kept = [k for k in range(inner.output.rank) if k not in gone]
    small = rw.add(node.op, x, axes=tuple(source[a] for a in inside)) if inside else x
    return spread(rw, small, node.output.shape, [kept.index(k) for k in inner.attrs["dims"] if k not in gone])


def _at_least_one(rw: Rewriter, dim: Dim) -> bool:
    from symbolic import ge

    return dim >= 1 if isinstance(dim, int) else rw.scope.proves(ge(dim, 1))


def concat_of_broadcasts(rw: Rewriter, node: Node) -> Value | None:
    """concat(broadcast(a), broadcast(b)) along an old axis -> broadcast(concat(a, b)) if the other axes agree."""
    inners = [made_by(v, "broadcast") for v in node.inputs]
    first = inners[0]
    axis = node.attrs["axis"]
    if first is None or axis not in first.attrs["dims"]:
        return None
    at = first.attrs["dims"].index(axis)
    for inner in inners:
        if inner is None or inner.attrs["dims"] != first.attrs["dims"] or expanded(rw, inner)[at]:
            return None
        pairs = zip(inner.inputs[0].shape, first.inputs[0].shape, strict=True)
        if not all(i == at or same_dim(rw.scope, a, b) for i, (a, b) in enumerate(pairs)):
            return None
    small = rw.add("concat", *(inner.inputs[0] for inner in inners if inner is not None), axis=at)
    return spread(rw, small, node.output.shape, first.attrs["dims"])


@dataclass(frozen=True)
class BroadcastFolding(RulePass):
    """Merges broadcasts and moves them towards the outputs."""

    name: ClassVar[str] = "broadcast_folding"
    rules: ClassVar = {
        "constant": (uniform_constant,),
        "broadcast": (
            identity_broadcast,
            broadcast_of_broadcast,
            broadcast_of_reshape,
            broadcast_scalar_constant,
            broadcast_of_ones,
            broadcast_to_reshape,
        ),
        "reshape": (reshape_of_broadcast,),
        "transpose": (transpose_of_broadcast,),
        "concat": (concat_of_broadcasts,),
        **dict.fromkeys(ELEMENTWISE, (sink_broadcast,)),
        **dict.fromkeys(REDUCES, (reduce_of_broadcast,)),
    }
