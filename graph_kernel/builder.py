"""Emits ops for front ends that speak in NumPy's terms: implicit broadcasting, numbers as operands, shared constants.

What cannot be proved about sizes becomes a launch check of the graph's scope.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import symbolic
from graph_kernel.ir import NO_ORIGIN, Graph, Origin, Shape, Value, bfloat16
from symbolic import Dim, shape_text

Operand = Value | int | float | bool


class GraphBuilder:
    """Appends nodes to ``graph``; every node gets the current ``origin``."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.origin: Origin = NO_ORIGIN
        self._scalars: dict[tuple[str, bytes], Value] = {}
        self._dims: dict[tuple[Dim, np.dtype], Value] = {}

    @property
    def scope(self) -> symbolic.Scope:
        """The scope that all dims of the graph belong to."""
        return self.graph.scope

    # ---- plain emission

    def op(self, name: str, *inputs: Value, **attrs: Any) -> Value:
        """One node with one output."""
        return self.graph.add(name, *inputs, origin=self.origin, **attrs)

    def ops(self, name: str, inputs: Sequence[Value], **attrs: Any) -> tuple[Value, ...]:
        """One node with several outputs."""
        return self.graph.add_multi(name, inputs, attrs, self.origin)

    def constant(self, array: Any, dtype: Any = None) -> Value:
        """A constant node; equal scalars share one."""
        array = np.asarray(array, dtype=dtype)
        if array.ndim:
            return self.op("constant", value=array)
        key = (array.dtype.name, array.tobytes())
        if key not in self._scalars:
            self._scalars[key] = self.op("constant", value=array)
        return self._scalars[key]

    def scalar(self, number: float, dtype: Any) -> Value:
        """A rank-0 constant."""
        return self.constant(np.asarray(number).astype(dtype))

    def dim(self, dim: Dim, dtype: Any = np.int64) -> Value:
        """A dimension as a rank-0 tensor."""
        if isinstance(dim, int):
            return self.scalar(dim, dtype)
        key = (dim, np.dtype(dtype))
        if key not in self._dims:
            self._dims[key] = self.op("dim", expr=dim, dtype=np.dtype(dtype))
        return self._dims[key]

    def full(self, shape: Sequence[Dim], number: float, dtype: Any) -> Value:
        """A tensor filled with one number."""
        return self.broadcast_to(self.scalar(number, dtype), shape)

    def iota(self, shape: Sequence[Dim], axis: int, dtype: Any = np.int64) -> Value:
        """Positions along ``axis``."""
        return self.op("iota", shape=tuple(shape), axis=axis, dtype=np.dtype(dtype))

    # ---- elementwise

    def same_dim(self, a: Dim, b: Dim) -> bool:
        """Whether two dims are proved equal."""
        return bool(a == b) or self.scope.equal(a, b)

    def broadcast_to(self, x: Value, shape: Sequence[Dim]) -> Value:
        """NumPy broadcasting to ``shape`` (not smaller in rank); nothing is emitted where nothing changes."""
        shape = tuple(shape)
        if x.shape == shape:
            return x
        lead = len(shape) - x.rank
        if not lead and all(self.same_dim(a, b) for a, b in zip(x.shape, shape, strict=True)):
            return x
        x, axes = _without_unit_axes(x)
        return self.op("broadcast", x, shape=shape, dims=tuple(lead + a for a in axes))

    def broadcast(self, *xs: Value) -> list[Value]:
        """All operands with their common NumPy-broadcast shape; what is not proved becomes a launch check."""
        target = self.broadcast_shape(*(x.shape for x in xs))
        return [self.broadcast_to(x, target) for x in xs]

    def broadcast_shape(self, *shapes: Shape) -> Shape:
        """The broadcast shape; relations that are not proved become launch checks with the current origin."""
        if all(s == shapes[0] for s in shapes):
            return shapes[0]
        return tuple(symbolic.broadcast(self.scope, list(shapes), str(self.origin)))

    def unary(self, name: str, x: Value) -> Value:
        """An elementwise op of one operand."""
        return self.op(name, x)

    def binary(self, name: str, x: Operand, y: Operand) -> Value:
        """An elementwise op with NumPy broadcasting; a Python number takes the other operand's dtype."""
        a, b = self._pair(x, y)
        return self.op(name, *self.broadcast(a, b))

    def _pair(self, x: Operand, y: Operand) -> tuple[Value, Value]:
        if isinstance(x, Value):
            return x, y if isinstance(y, Value) else self.scalar(y, x.dtype)
        if not isinstance(y, Value):
            raise TypeError("one operand has to be a value")
        return self.scalar(x, y.dtype), y

    def add(self, x: Operand, y: Operand) -> Value:
        """x + y."""
        return self.binary("add", x, y)

    def sub(self, x: Operand, y: Operand) -> Value:
        """x - y."""
        return self.binary("sub", x, y)

    def mul(self, x: Operand, y: Operand) -> Value:
        """x * y."""
        return self.binary("mul", x, y)

    def div(self, x: Operand, y: Operand) -> Value:
        """x / y (integers truncate)."""
        return self.binary("div", x, y)

    def maximum(self, x: Operand, y: Operand) -> Value:
        """The larger; NaN wins."""
        return self.binary("max", x, y)

    def minimum(self, x: Operand, y: Operand) -> Value:
        """The smaller; NaN wins."""
        return self.binary("min", x, y)

    def select(self, pred: Value, x: Operand, y: Operand) -> Value:
        """``pred ? x : y`` with NumPy broadcasting."""
        a, b = self._pair(x, y)
        return self.op("select", *self.broadcast(pred, a, b))

    def cast(self, x: Value, dtype: Any) -> Value:
        """A conversion; to bool it is ``x != 0``."""
        dtype = np.dtype(dtype)
        if x.dtype == dtype:
            return x
        if dtype == np.bool_:
            return self.binary("ne", x, 0)
        return self.op("cast", x, dtype=dtype)

    def wide(self, x: Value) -> Value:
        """float16 and bfloat16 as float32, anything else unchanged: for sums and normalisations."""
        return self.cast(x, np.float32) if x.dtype in (np.dtype(np.float16), bfloat16) else x

    # ---- shape

    def reshape(self, x: Value, shape: Sequence[Dim]) -> Value:
        """The same elements in another shape (the element count is checked by the op's shape rule)."""
        shape = tuple(shape)
        return x if x.shape == shape else self.op("reshape", x, shape=shape)

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        """Permutes axes."""
        perm = tuple(perm)
        return x if perm == tuple(range(x.rank)) else self.op("transpose", x, perm=perm)

    def unsqueeze(self, x: Value, *axes: int) -> Value:
        """Inserts axes of size 1 (positions in the result, not negative)."""
        shape = list(x.shape)
        for axis in sorted(axes):
            shape.insert(axis, 1)
        return self.reshape(x, shape)

    def slice_axis(self, x: Value, axis: int, start: Dim, limit: Dim, stride: int = 1) -> Value:
        """``x[start:limit:stride]`` along one axis, with 0 <= start <= limit <= size."""
        if _is_zero(start) and stride == 1 and self.same_dim(limit, x.shape[axis]):
            return x
        starts: list[Dim] = [0] * x.rank
        limits = list(x.shape)
        strides = [1] * x.rank
        starts[axis], limits[axis], strides[axis] = start, limit, stride
        return self.op("slice", x, starts=tuple(starts), limits=tuple(limits), strides=tuple(strides))

    def concat(self, xs: Sequence[Value], axis: int) -> Value:
        """Joins along an axis; parts that are empty for certain are left out."""
        xs = [x for x in xs if not _is_zero(x.shape[axis])] or list(xs[:1])
        return xs[0] if len(xs) == 1 else self.op("concat", *xs, axis=axis)

    def rev(self, x: Value, *axes: int) -> Value:
        """Reverses axes."""
        return self.op("rev", x, axes=tuple(axes)) if axes else x

    def pad(
        self, x: Value, low: Sequence[Dim], high: Sequence[Dim], number: Operand = 0, interior: Any = None
    ) -> Value:
        """Pads with one number (or rank-0 value)."""
        low, high, interior = tuple(low), tuple(high), tuple(interior or (0,) * x.rank)
        if all(map(_is_zero, low + high + interior)):
            return x
        fill = number if isinstance(number, Value) else self.scalar(number, x.dtype)
        return self.op("pad", x, fill, low=low, high=high, interior=interior)

    def take(self, x: Value, idx: Value, axis: int) -> Value:
        """Rows of ``x`` by non-negative indices; out of range is clamped."""
        return self.op("take", x, idx, axis=axis, mode="clip", fill=None)

    # ---- reductions and products

    def reduce(self, name: str, x: Value, axes: Sequence[int], keepdims: bool = False) -> Value:
        """``reduce_*`` over axes; with ``keepdims`` they stay as 1."""
        axes = tuple(sorted(axes))
        if not axes:
            return x
        out = self.op(name, x, axes=axes)
        return self.unsqueeze(out, *axes) if keepdims else out

    def spread(self, x: Value, axes: Sequence[int], shape: Sequence[Dim]) -> Value:
        """Undoes a reduction over ``axes``: broadcasts the reduced value back to ``shape``."""
        dims = tuple(i for i in range(len(shape)) if i not in axes)
        return self.op("broadcast", x, shape=tuple(shape), dims=dims) if axes else x

    def count(self, shape: Shape, axes: Sequence[int], dtype: Any) -> Value:
        """How many elements a reduction over ``axes`` runs over, as a rank-0 value."""
        return self.dim(symbolic.product([shape[a] for a in axes]), dtype)

    def mean(self, x: Value, axes: Sequence[int], keepdims: bool = False) -> Value:
        """The mean over axes."""
        return self.div(self.reduce("reduce_sum", x, axes, keepdims), self.count(x.shape, axes, x.dtype))

    def dot(self, a: Value, b: Value, contract: Any, batch: Any = ((), ()), dtype: Any = None) -> Value:
        """``lax.dot_general``; contracted and batch sizes that are not proved equal become launch checks."""
        for i, j in list(zip(*contract, strict=True)) + list(zip(*batch, strict=True)):
            message = f"the sizes that {shape_text(a.shape)} and {shape_text(b.shape)} have in common must agree"
            self.require_equal(a.shape[i], b.shape[j], f"{message}: {a.shape[i]} == {b.shape[j]}")
        contract, batch = (tuple(map(tuple, pair)) for pair in (contract, batch))
        return self.op("dot", a, b, contract=contract, batch=batch, dtype=np.dtype(dtype or a.dtype))

    def require_equal(self, a: Dim, b: Dim, message: str = "") -> None:
        """Two dims have to agree: proved now or checked at launch."""
        if a != b:
            self.require(symbolic.eq(a, b), message)

    def require(self, relation: symbolic.Relation, message: str = "") -> None:
        """A relation that has to hold: proved now or checked at launch, with the current origin."""
        self.scope.require(relation, str(self.origin), message)


def _is_zero(dim: Dim) -> bool:
    return isinstance(dim, int) and dim == 0


def _without_unit_axes(x: Value) -> tuple[Value, list[int]]:
    """Looks through a reshape that only inserts axes of size 1: its operand, and the axes that those have in ``x``."""
    node = x.producer
    everything = list(range(x.rank))
    if node is None or node.op != "reshape":
        return x, everything
    source = node.inputs[0]
    kept = [i for i in everything if not (isinstance(x.shape[i], int) and x.shape[i] == 1)]
    if source.shape == tuple(x.shape[i] for i in kept):
        return source, kept
    return x, everything
