"""Slices, concats, pads, reversals and transposes that merge, cancel or read past each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from graph_kernel.ir import Node, Value
from graph_kernel.passes.base import Rewriter, RulePass
from graph_kernel.passes.match import inverse, is_identity, made_by, same_dim, same_shape, splat
from graph_kernel.passes.reshape_groups import axis_groups
from symbolic import ge, le

if TYPE_CHECKING:
    from symbolic import Dim


def at_most(rw: Rewriter, a: Dim, b: Dim) -> bool:
    """a <= b, proved."""
    return a <= b if isinstance(a, int) and isinstance(b, int) else a == b or rw.scope.proves(le(a, b))


def take_slice(rw: Rewriter, x: Value, axis: int, start: Dim, limit: Dim, stride: int = 1) -> Value:
    """A slice along one axis."""
    starts: list[Dim] = [0] * x.rank
    limits: list[Dim] = list(x.shape)
    strides = [1] * x.rank
    starts[axis], limits[axis], strides[axis] = start, limit, stride
    return rw.add("slice", x, starts=tuple(starts), limits=tuple(limits), strides=tuple(strides))


def cut_axes(rw: Rewriter, node: Node) -> list[int]:
    """The axes of a slice that are not kept whole."""
    (x,) = node.inputs
    parts = zip(node.attrs["starts"], node.attrs["limits"], node.attrs["strides"], x.shape, strict=True)
    return [i for i, (a, b, s, n) in enumerate(parts) if not (a == 0 and s == 1 and same_dim(rw.scope, b, n))]


def full_slice(rw: Rewriter, node: Node) -> Value | None:
    """A slice of everything."""
    return node.inputs[0] if not cut_axes(rw, node) else None


def slice_of_slice(rw: Rewriter, node: Node) -> Value | None:
    """Two slices in a row are one."""
    inner = made_by(node.inputs[0], "slice")
    if inner is None:
        return None
    cut = cut_axes(rw, node)
    starts, limits, strides = (list(inner.attrs[k]) for k in ("starts", "limits", "strides"))
    for axis in cut:
        a1, b1, s1 = (node.attrs[k][axis] for k in ("starts", "limits", "strides"))
        a0, s0 = starts[axis], strides[axis]
        if s0 != 1 and not (isinstance(a1, int) and isinstance(b1, int) and a1 < b1):
            return None  # where the last element lies would take a maximum
        starts[axis] = a0 + a1 * s0
        limits[axis] = a0 + b1 if s0 == 1 else a0 + (b1 - 1) * s0 + 1
        strides[axis] = s0 * s1
    return rw.add("slice", inner.inputs[0], starts=tuple(starts), limits=tuple(limits), strides=tuple(strides))


def slice_of_concat(rw: Rewriter, node: Node) -> Value | None:
    """A slice that is proved to lie inside some operands of a concat reads only these."""
    inner = made_by(node.inputs[0], "concat")
    axis = inner.attrs["axis"] if inner is not None else 0
    if inner is None or cut_axes(rw, node) != [axis] or node.attrs["strides"][axis] != 1:
        return None
    start, limit = node.attrs["starts"][axis], node.attrs["limits"][axis]
    kept: list[Value] = []
    first: Dim = 0  # where the kept operands begin
    end: Dim = 0
    for part in inner.inputs:
        begin, end = end, end + part.shape[axis]
        if not kept and at_most(rw, end, start):
            continue
        first = first if kept else begin
        kept.append(part)
        if at_most(rw, limit, end):
            break
    if not kept or len(kept) == len(inner.inputs) or len(kept) > 1 and not rw.single_use(node.inputs[0]):
        return None
    whole = kept[0] if len(kept) == 1 else rw.add("concat", *kept, axis=axis)
    return take_slice(rw, whole, axis, start - first, limit - first)


def slice_of_broadcast(rw: Rewriter, node: Node) -> Value | None:
    """slice(broadcast(x)) -> broadcast(slice(x)); nothing is sliced along new axes."""
    inner = made_by(node.inputs[0], "broadcast")
    if inner is None:
        return None
    (x,) = inner.inputs
    starts: list[Dim] = [0] * x.rank
    limits: list[Dim] = list(x.shape)
    strides: list[int] = [1] * x.rank
    cut = cut_axes(rw, node)
    for i, axis in enumerate(inner.attrs["dims"]):
        if axis not in cut or x.shape[i] == 1:
            continue
        if not same_dim(rw.scope, x.shape[i], inner.output.shape[axis]):
            return None
        starts[i], limits[i], strides[i] = (node.attrs[k][axis] for k in ("starts", "limits", "strides"))
    small = x
    if any(axis in cut and x.shape[i] != 1 for i, axis in enumerate(inner.attrs["dims"])):
        small = rw.add("slice", x, starts=tuple(starts), limits=tuple(limits), strides=tuple(strides))
    return rw.add("broadcast", small, shape=node.output.shape, dims=inner.attrs["dims"])


def slice_of_pad(rw: Rewriter, node: Node) -> Value | None:
    """A slice proved to lie inside what was padded reads the unpadded value; axes without padding may be cut freely."""
    inner = made_by(node.inputs[0], "pad")
    if inner is None:
        return None
    x = inner.inputs[0]
    starts, limits = [], []
    for axis, n in enumerate(x.shape):
        low, interior = inner.attrs["low"][axis], inner.attrs["interior"][axis]
        a, b = node.attrs["starts"][axis] - low, node.attrs["limits"][axis] - low
        if interior != 0 or not at_most(rw, 0, a) or not at_most(rw, b, n) or not at_most(rw, a, b):
            return None
        starts.append(a)
        limits.append(b)
    return rw.add("slice", x, starts=tuple(starts), limits=tuple(limits), strides=node.attrs["strides"])


def slice_of_iota(rw: Rewriter, node: Node) -> Value | None:
    """A slice of an iota that begins at 0 along its axis is a smaller iota."""
    inner = made_by(node.inputs[0], "iota")
    if inner is None:
        return None
    axis = inner.attrs["axis"]
    if axis in cut_axes(rw, node) and (node.attrs["starts"][axis] != 0 or node.attrs["strides"][axis] != 1):
        return None
    return rw.add("iota", shape=node.output.shape, axis=axis, dtype=inner.attrs["dtype"])


def slice_of_reshape(rw: Rewriter, node: Node) -> Value | None:
    """slice(reshape(x)) -> reshape(slice(x)) if the cut axes are axes of x, and the reshape adds or drops 1s only."""
    inner = made_by(node.inputs[0], "reshape")
    if inner is None or not rw.single_use(node.inputs[0]):
        return None
    (x,) = inner.inputs
    if x.producer is None:
        return None  # a reshape of an input is a renaming; axis_splitting puts it there
    groups = axis_groups(rw.scope, x.shape, inner.output.shape)
    if groups is None or any(len(ins) > 1 or len(outs) > 1 for ins, outs in groups):
        return None
    back = {outs[0]: ins[0] for ins, outs in groups if ins and outs}
    starts: list[Dim] = [0] * x.rank
    limits: list[Dim] = list(x.shape)
    strides = [1] * x.rank
    for axis in cut_axes(rw, node):
        if axis not in back:
            return None
        i = back[axis]
        starts[i], limits[i], strides[i] = (node.attrs[k][axis] for k in ("starts", "limits", "strides"))
    small = rw.add("slice", x, starts=tuple(starts), limits=tuple(limits), strides=tuple(strides))
    return rw.add("reshape", small, shape=node.output.shape)


def trivial_concat(rw: Rewriter, node: Node) -> Value | None:
    """Operands of size 0 go; a concat of one is that one."""
    axis = node.attrs["axis"]
    kept = [v for v in node.inputs if v.shape[axis] != 0]
    if len(kept) == 1 and same_shape(rw.scope, kept[0].shape, node.output.shape):
        return kept[0]
    if kept and len(kept) < len(node.inputs):
        return rw.add("concat", *kept, axis=axis)
    return node.inputs[0] if len(node.inputs) == 1 else None


def concat_of_concat(rw: Rewriter, node: Node) -> Value | None:
    """A concat inside a concat along the same axis is spelled out, if nobody else reads it; a whole chain at its last one."""
    axis = node.attrs["axis"]
    after = rw.only_reader(node.output)
    if after is not None and after.op == "concat" and after.attrs["axis"] == axis:
        return None
    flat: list[Value] = []
    work = list(reversed(node.inputs))
    while work:
        value = work.pop()
        inner = made_by(value, "concat")
        if inner is not None and inner.attrs["axis"] == axis and rw.single_use(value):
            work.extend(reversed(inner.inputs))
        else:
            flat.append(value)
    return rw.add("concat", *flat, axis=axis) if len(flat) > len(node.inputs) else None


def concat_of_slices(rw: Rewriter, node: Node) -> Value | None:
    """Neighbouring slices of one value put together again are one slice (a split that is undone)."""
    axis = node.attrs["axis"]
    merged: list[Value] = []
    for value in node.inputs:
        both = _neighbours(rw, merged[-1], value, axis) if merged else None
        if both is None:
            merged.append(value)
        else:
            merged[-1] = both
    if len(merged) == len(node.inputs):
        return None
    return merged[0] if len(merged) == 1 else rw.add("concat", *merged, axis=axis)


def _neighbours(rw: Rewriter, left: Value, right: Value, axis: int) -> Value | None:
    a, b = made_by(left, "slice"), made_by(right, "slice")
    if a is None or b is None or a.inputs[0] is not b.inputs[0]:
        return None
    if not same_dim(rw.scope, a.attrs["limits"][axis], b.attrs["starts"][axis]):
        return None
    for i in range(left.rank):
        if a.attrs["strides"][i] != b.attrs["strides"][i] or (i == axis and a.attrs["strides"][i] != 1):
            return None
        ends = [(a.attrs[k][i], b.attrs[k][i]) for k in ("starts", "limits")]
        if i != axis and not all(same_dim(rw.scope, x, y) for x, y in ends):
            return None
    limits = list(a.attrs["limits"])
    limits[axis] = b.attrs["limits"][axis]
    return rw.add("slice", a.inputs[0], **(a.attrs | {"limits": tuple(limits)}))


def no_pad(rw: Rewriter, node: Node) -> Value | None:
    """Padding by nothing."""
    attrs = node.attrs
    return node.inputs[0] if all(d == 0 for k in ("low", "high", "interior") for d in attrs[k]) else None


def pad_of_pad(rw: Rewriter, node: Node) -> Value | None:
    """Two pads by the same number that only add are one."""
    inner = made_by(node.inputs[0], "pad")
    if inner is None:
        return None
    a, b = splat(node.inputs[1]), splat(inner.inputs[1])
    if node.inputs[1] is not inner.inputs[1] and (a is None or b is None or a.tobytes() != b.tobytes()):
        return None
    sums: dict[str, Any] = {}
    for key in ("low", "high"):
        pairs = list(zip(node.attrs[key], inner.attrs[key], strict=True))
        if not all(_not_negative(rw, d) for pair in pairs for d in pair):
            return None
        sums[key] = tuple(x + y for x, y in pairs)
    if any(node.attrs["interior"]) or any(inner.attrs["interior"]):
        return None
    return rw.add("pad", inner.inputs[0], node.inputs[1], **sums, interior=node.attrs["interior"])


def _not_negative(rw: Rewriter, d: Dim) -> bool:
    return d >= 0 if isinstance(d, int) else rw.scope.proves(ge(d, 0))


def trivial_rev(rw: Rewriter, node: Node) -> Value | None:
    """Reversal along axes of size 1, or of a number that is everywhere the same."""
    (x,) = node.inputs
    return x if splat(x) is not None or all(x.shape[a] == 1 for a in node.attrs["axes"]) else None


def rev_of_rev(rw: Rewriter, node: Node) -> Value | None:
    """Two reversals: axes that occur twice cancel."""
    inner = made_by(node.inputs[0], "rev")
    if inner is None:
        return None
    axes = tuple(sorted(set(node.attrs["axes"]) ^ set(inner.attrs["axes"])))
    return rw.add("rev", inner.inputs[0], axes=axes) if axes else inner.inputs[0]


def identity_transpose(rw: Rewriter, node: Node) -> Value | None:
    """A transpose that moves nothing."""
    return node.inputs[0] if is_identity(node.attrs["perm"]) else None


def transpose_of_transpose(rw: Rewriter, node: Node) -> Value | None:
    """Two transposes in a row are one."""
    inner = made_by(node.inputs[0], "transpose")
    if inner is None:
        return None
    return rw.add("transpose", inner.inputs[0], perm=compose(inner.attrs["perm"], node.attrs["perm"]))


def compose(first: Sequence[int], then: Sequence[int]) -> tuple[int, ...]:
    """The permutation of two transposes in a row."""
    return tuple(first[p] for p in then)


def transpose_of_ones(rw: Rewriter, node: Node) -> Value | None:
    """A transpose that moves axes of size 1 only is a reshape."""
    (x,) = node.inputs
    order = [p for p in node.attrs["perm"] if x.shape[p] != 1]
    return rw.add("reshape", x, shape=node.output.shape) if order == sorted(order) else None


def transpose_of_iota(rw: Rewriter, node: Node) -> Value | None:
    """A transposed iota is an iota along another axis."""
    inner = made_by(node.inputs[0], "iota")
    if inner is None:
        return None
    axis = inverse(node.attrs["perm"])[inner.attrs["axis"]]
    return rw.add("iota", shape=node.output.shape, axis=axis, dtype=inner.attrs["dtype"])


def iota_of_one(rw: Rewriter, node: Node) -> Value | None:
    """An iota along an axis of size 1 is 0."""
    shape = node.attrs["shape"]
    if shape[node.attrs["axis"]] != 1:
        return None
    return rw.add("broadcast", rw.constant(np.zeros((), node.output.dtype)), shape=shape, dims=())


@dataclass(frozen=True)
class ViewFolding(RulePass):
    """Merges index maps; every rule makes a value depend on less, or on fewer nodes."""

    name: ClassVar[str] = "view_folding"
    rules: ClassVar = {
        "slice": (
            full_slice,
            slice_of_slice,
            slice_of_concat,
            slice_of_broadcast,
            slice_of_pad,
            slice_of_iota,
            slice_of_reshape,
        ),
        "concat": (trivial_concat, concat_of_concat, concat_of_slices),
        "pad": (no_pad, pad_of_pad),
        "rev": (trivial_rev, rev_of_rev),
        "transpose": (identity_transpose, transpose_of_transpose, transpose_of_ones, transpose_of_iota),
        "iota": (iota_of_one,),
    }
