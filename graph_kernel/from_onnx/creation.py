"""Constants, ranges and shapes. What is small and known never becomes a node (see ``values``)."""

from __future__ import annotations

import numpy as np

import symbolic
from graph_kernel.from_onnx.dims import larger
from graph_kernel.from_onnx.registry import Call, Result, converter
from graph_kernel.from_onnx.tensor import Tensor, object_array
from vm.errors import CompileError

MAX_ENTRIES = 1 << 20  # of a constant that is made here; a damaged model may ask for any number


@converter("Constant")
def _constant(c: Call) -> Result:
    for name, dtype in (("value", None), ("value_int", np.int64), ("value_ints", np.int64), ("value_float", np.float32),
                        ("value_floats", np.float32)):  # fmt: skip
        value = c.attr(name)
        if value is not None:
            return Tensor.const(np.asarray(value, dtype=dtype))
    raise c.unsupported("only numeric constants are supported")


@converter("ConstantOfShape")
def _constant_of_shape(c: Call) -> Result:
    fill = np.asarray(c.attr("value", np.zeros(1, np.float32))).reshape(-1)
    return c.builder.broadcast_to(c.builder.constant(fill[0]), c.dims(0))


@converter("Range")
def _range(c: Call) -> Result:
    b = c.builder
    tensors = [c.tensor(i) for i in range(3)]
    dtype = tensors[0].dtype
    if dtype.kind not in "iu" and all(t.array is not None for t in tensors):
        first, end, by = (float(t.array.reshape(-1)[0]) for t in tensors if t.array is not None)
        if not np.isfinite([first, end, by]).all() or by == 0 or (end - first) / by > MAX_ENTRIES:
            raise CompileError(f"{c.where()}: cannot list the numbers from {first} to {end} by {by}")
        return Tensor.const(np.arange(first, end, by).astype(dtype))
    if any(t.known is None for t in tensors) or dtype.kind not in "iu":
        raise c.unsupported("the length of the range depends on data")
    (start,), (limit,), (delta,) = (c.dims(i) for i in range(3))
    if not isinstance(delta, int) or delta == 0:
        raise c.unsupported(f"the step of a range has to be a number other than 0, it is {delta}")
    count = symbolic.ceildiv(limit - start, delta) if delta > 0 else symbolic.ceildiv(start - limit, -delta)
    steps = b.iota((larger(b.scope, count, 0),), 0, dtype)
    if delta != 1:
        steps = b.mul(steps, delta)
    return steps if isinstance(start, int) and start == 0 else b.add(steps, b.dim(start, dtype))


@converter("Shape")
def _shape(c: Call) -> Result:
    """Start and end clamp as in a slice."""
    dims = list(c.tensor(0).shape)[slice(c.attr("start", 0), c.attr("end", None))]
    return Tensor.sym(object_array(dims, (len(dims),)), np.int64)


@converter("Size")
def _size(c: Call) -> Result:
    return Tensor.sym(object_array([symbolic.product(c.tensor(0).shape)], ()), np.int64)


@converter("NonZero")
def _non_zero(c: Call) -> Result:
    """A constant, or the trick ``NonZero(ones(n))`` for ``arange(n)``; otherwise a new symbol that the launch finds out."""
    tensor = c.tensor(0)
    if tensor.array is not None:
        found = np.nonzero(np.atleast_1d(tensor.array))
        return Tensor.const(np.stack(found).astype(np.int64))
    node = c.x(0).producer
    if node is not None and node.op == "broadcast" and tensor.shape and len(tensor.shape) == 1:
        source = node.inputs[0].producer
        if source is not None and source.op == "constant" and source.attrs["value"].all():
            return c.builder.iota((1, tensor.shape[0]), 1)
    x = c.x(0)
    return c.builder.nonzero(x if x.rank else c.builder.reshape(x, (1,)))


@converter("Unique")
def _unique(c: Call) -> Result:
    """Values, first indices, inverse and counts; how many there are is a new symbol that the launch finds out."""
    b, x = c.builder, c.x(0)
    given = c.attr("axis", None)
    axis = 0 if given is None else c.axis(given, x.rank)
    if given is None:
        x = b.reshape(x, (symbolic.product(x.shape),))
    found = b.ops("unique", [x], sorted=bool(c.attr("sorted", 1)), axis=axis)
    return [value if c.wants(i) else None for i, value in enumerate(found)][: len(c.node.output)]


# ---- sequences, whose length is known while converting


@converter("SequenceConstruct")
def _sequence_construct(c: Call) -> Result:
    return Tensor.sequence([c.tensor(i) for i in range(len(c.inputs))])


@converter("SequenceEmpty")
def _sequence_empty(c: Call) -> Result:
    return Tensor.sequence([])


def _items(c: Call, i: int = 0) -> list[Tensor]:
    items = c.tensor(i).items
    if items is None:
        raise CompileError(f"{c.where()}: input {i} is not a sequence")
    return items


def _position(c: Call, i: int, size: int) -> int:
    (at,) = c.ints(i)
    if not -size <= at < size:
        raise CompileError(f"{c.where()}: position {at} is outside the sequence of {size}")
    return at % size


@converter("SequenceAt")
def _sequence_at(c: Call) -> Result:
    items = _items(c)
    return items[_position(c, 1, len(items))]


@converter("SequenceInsert")
def _sequence_insert(c: Call) -> Result:
    items = list(_items(c))
    items.insert(c.ints(2)[0] if c.has(2) else len(items), c.tensor(1))
    return Tensor.sequence(items)


@converter("SequenceErase")
def _sequence_erase(c: Call) -> Result:
    items = list(_items(c))
    del items[_position(c, 1, len(items)) if c.has(1) else -1]
    return Tensor.sequence(items)


@converter("SequenceLength")
def _sequence_length(c: Call) -> Result:
    return Tensor.const(np.asarray(len(_items(c)), np.int64))


@converter("ConcatFromSequence")
def _concat_from_sequence(c: Call) -> Result:
    b = c.builder
    xs = [b.value(t) for t in _items(c)]
    if c.attr("new_axis", 0):
        axis = c.axis(c.attr("axis"), xs[0].rank + 1)
        return b.concat([b.unsqueeze(x, axis) for x in xs], axis)
    return b.concat(xs, c.axis(c.attr("axis"), xs[0].rank))


@converter("SplitToSequence")
def _split_to_sequence(c: Call) -> Result:
    b, x = c.builder, c.x(0)
    axis = c.axis(c.attr("axis", 0), x.rank)
    size = x.shape[axis]
    scalar = not c.has(1) or not c.tensor(1).shape
    sizes = c.dims(1) if c.has(1) else [1]
    if scalar:
        if not isinstance(size, int) or not isinstance(sizes[0], int) or sizes[0] < 1 or size > MAX_ENTRIES:
            raise c.unsupported(f"the length of the sequence depends on the size {size}")
        sizes = [min(sizes[0], size - at) for at in range(0, size, sizes[0])]
    outs: list[Tensor] = []
    at: symbolic.Dim = 0
    for part in sizes:
        piece = b.slice_axis(x, axis, at, at + part)
        drop = not c.has(1) and not c.attr("keepdims", 1)
        piece = b.reshape(piece, [d for i, d in enumerate(piece.shape) if i != axis]) if drop else piece
        outs.append(Tensor.of(piece, b))
        at = at + part
    return Tensor.sequence(outs)
