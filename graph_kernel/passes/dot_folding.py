"""Matrix products absorb what surrounds them: transposes, broadcasts and scale factors of their operands, biases of zeros."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from graph_kernel.ir import Node, Value
from graph_kernel.passes.base import Rewriter, RulePass
from graph_kernel.passes.match import is_identity, made_by, splat

Axes = tuple[int, ...]


@dataclass(frozen=True)
class Dims:
    """Dimension numbers of one operand."""

    contract: Axes
    batch: Axes
    rank: int

    @property
    def free(self) -> Axes:
        """The other axes, in order."""
        used = {*self.contract, *self.batch}
        return tuple(i for i in range(self.rank) if i not in used)

    def through(self, place: Sequence[int], rank: int) -> Dims:
        """The numbers after axis i has become axis place[i] of a tensor of ``rank`` axes."""
        return Dims(tuple(place[i] for i in self.contract), tuple(place[i] for i in self.batch), rank)


def operand_dims(node: Node, which: int) -> Dims:
    """Dimension numbers of operand 0 or 1 of a ``dot``."""
    return Dims(tuple(node.attrs["contract"][which]), tuple(node.attrs["batch"][which]), node.inputs[which].rank)


def make_dot(rw: Rewriter, node: Node, operands: Sequence[Value], dims: Sequence[Dims]) -> Value:
    """The product with other operands and dimension numbers."""
    attrs: dict[str, Any] = dict(node.attrs)
    attrs["contract"] = (dims[0].contract, dims[1].contract)
    attrs["batch"] = (dims[0].batch, dims[1].batch)
    return rw.add("dot", *operands, **attrs)


def dot_of_transpose(rw: Rewriter, node: Node) -> Value | None:
    """A transposed operand is read untransposed, if its free axes keep their order."""
    operands = list(node.inputs)
    dims = [operand_dims(node, 0), operand_dims(node, 1)]
    found = False
    for i in (0, 1):
        inner = made_by(operands[i], "transpose")
        if inner is None:
            continue
        perm = inner.attrs["perm"]
        moved = dims[i].through(perm, dims[i].rank)
        if tuple(perm[k] for k in dims[i].free) != moved.free:
            continue
        operands[i], dims[i], found = inner.inputs[0], moved, True
    return make_dot(rw, node, operands, dims) if found else None


def transpose_of_dot(rw: Rewriter, node: Node) -> Value | None:
    """transpose(dot(a, b)) that swaps the free axes of a and b, or reorders batch axes, is another dot."""
    (value,) = node.inputs
    inner = made_by(value, "dot")
    if inner is None or not rw.single_use(value):
        return None
    a, b = operand_dims(inner, 0), operand_dims(inner, 1)
    n, perm = len(a.batch), node.attrs["perm"]
    free_a = tuple(range(n, n + len(a.free)))
    free_b = tuple(range(n + len(a.free), value.rank))
    order = tuple(perm[n:])
    if order not in (free_a + free_b, free_b + free_a):
        return None
    new = [Dims(d.contract, tuple(d.batch[i] for i in perm[:n]), d.rank) for d in (a, b)]
    operands = list(inner.inputs)
    if order != free_a + free_b:
        if _weight_first(operands[::-1], new[::-1]):
            return None
        new.reverse()
        operands.reverse()
    return make_dot(rw, inner, operands, new)


def _weight_first(operands: Sequence[Value], dims: Sequence[Dims]) -> bool:
    """Whether the left operand is of fixed shape and the right one has rows of which the launch decides how many."""
    (a, b), free = operands, [[v.shape[i] for i in d.free] for v, d in zip(operands, dims, strict=True)]
    fixed = all(isinstance(n, int) for n in a.shape)
    return fixed and bool(free[0]) and not all(isinstance(n, int) for n in free[1]) and b is not a


def weight_second(rw: Rewriter, node: Node) -> Value | None:
    """dot(w, x) -> transpose(dot(x, w)): with the rows of x last in memory, a block of them would be stored in as many pieces as w has
    columns. The transpose goes where the result is read."""
    dims = [operand_dims(node, 0), operand_dims(node, 1)]
    if node.output in rw.graph.outputs or not _weight_first(node.inputs, dims):
        return None
    product = make_dot(rw, node, node.inputs[::-1], dims[::-1])
    n, x, w = len(dims[0].batch), len(dims[1].free), len(dims[0].free)
    return rw.add("transpose", product, perm=(*range(n), *range(n + x, n + x + w), *range(n, n + x)))


def dot_of_broadcast(rw: Rewriter, node: Node) -> Value | None:
    """A batch axis along which one operand is a broadcast is a free axis of the other (grouped-query attention)."""
    for mine in (1, 0):
        inner = made_by(node.inputs[mine], "broadcast")
        if inner is None:
            continue
        dims = [operand_dims(node, 0), operand_dims(node, 1)]
        drop = [k for k, axis in enumerate(dims[mine].batch) if axis not in inner.attrs["dims"]]
        if drop:
            return _drop_batch(rw, node, inner, mine, dims, drop)
    return None


def _drop_batch(rw: Rewriter, node: Node, inner: Node, mine: int, dims: list[Dims], drop: list[int]) -> Value:
    """The product without batch axes ``drop`` of operand ``mine``, transposed if its axes come in another order."""
    gone = {dims[mine].batch[k] for k in drop}
    kept = [axis for axis in range(dims[mine].rank) if axis not in gone]
    place = {axis: k for k, axis in enumerate(kept)}
    shape = tuple(inner.output.shape[axis] for axis in kept)
    source = rw.add("broadcast", inner.inputs[0], shape=shape, dims=tuple(place[axis] for axis in inner.attrs["dims"]))
    batches = [k for k in range(len(dims[0].batch)) if k not in drop]
    new = [Dims(d.contract, tuple(d.batch[k] for k in batches), d.rank) for d in dims]
    own = new[mine]
    new[mine] = Dims(tuple(place[c] for c in own.contract), tuple(place[c] for c in own.batch), len(kept))
    operands = list(node.inputs)
    operands[mine] = source
    product = make_dot(rw, node, operands, new)
    # name every axis of the result by where it comes from, to see how the two results differ
    other = dims[1 - mine]
    free = [[(i, axis) for axis in new[i].free] for i in (0, 1)]
    free[mine] = [(mine, kept[axis]) for _, axis in free[mine]]
    after = [(2, k) for k in batches] + free[0] + free[1]
    from_batch = {(1 - mine, other.batch[k]): (2, k) for k in drop}
    after = [from_batch.get(label, label) for label in after]
    before = [(2, k) for k in range(len(dims[0].batch))] + [(i, axis) for i in (0, 1) for axis in dims[i].free]
    perm = tuple(after.index(label) for label in before)
    return product if is_identity(perm) else rw.add("transpose", product, perm=perm)


def bias_of_zeros(rw: Rewriter, node: Node) -> Value | None:
    """dot(a, b) + 0 -> dot(a, b). Of a sum of products that is zero, the sign is not defined: it depends on the order of the sum."""
    for x, y in (node.inputs, node.inputs[::-1]):
        zero = splat(y)
        if made_by(x, "dot") is not None and zero is not None and zero == 0:
            return x
    return None


def merge_scales(rw: Rewriter, node: Node) -> Value | None:
    """dot(a * c, b * d) -> dot(a * (c * d), b): rounding, and exact for powers of two.

    Exporters split the 1 / sqrt(d) of attention over queries and keys; scaling a key cache anew at every step is
    waste. Only factors between 2**-24 and 1 and products above 2**-24 in float32: no value that was finite
    overflows, and only numbers next to the denormal ones lose bits.
    """
    if node.inputs[0].dtype != np.float32 or node.inputs[1].dtype != np.float32:
        return None
    left, right = (_scaled(rw, v) for v in node.inputs)
    if left is None or right is None:
        return None
    (a, c), (b, d) = left, right
    factor = np.float32(c * d)
    if not all(2.0**-24 <= abs(float(f)) <= 1 for f in (c, d, factor)):
        return None
    scalar = rw.constant(np.asarray(factor, dtype=np.float32))
    scaled = rw.add("mul", a, rw.add("broadcast", scalar, shape=a.shape, dims=()))
    return rw.add("dot", scaled, b, **node.attrs)


def _scaled(rw: Rewriter, value: Value) -> tuple[Value, np.float32] | None:
    """(x, c) if ``value`` is x * c for one number c and nobody else reads it."""
    inner = made_by(value, "mul")
    if inner is None or not rw.single_use(value):
        return None
    for x, y in (inner.inputs, inner.inputs[::-1]):
        c = splat(y)
        if c is not None:
            return x, np.float32(c)
    return None


@dataclass(frozen=True)
class DotFolding(RulePass):
    """Moves index maps into the dimension numbers of products and merges scale factors of operands."""

    name: ClassVar[str] = "dot_folding"
    rules: ClassVar = {
        "dot": (dot_of_broadcast, dot_of_transpose, merge_scales, weight_second),
        "transpose": (transpose_of_dot,),
        "add": (bias_of_zeros,),
    }
