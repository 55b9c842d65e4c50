"""Index tensors that count evenly, ``base + step * position``: how JAX writes strided and reversed slices of symbolic axes."""

from __future__ import annotations

from graph_kernel.from_jaxpr.lowering import Lowering
from graph_kernel.ir import Value
from symbolic import Dim, ceildiv, eq, ge, le

Line = tuple[Dim, int]  # base and step


def affine(low: Lowering, index: Value) -> Line | None:
    """Base and step of a rank-1 integer tensor, if it is seen to count evenly."""
    node = index.producer
    if node is None or index.rank != 1 or index.dtype.kind not in "iu":
        return None
    if node.op == "iota":
        return 0, 1
    if node.op == "broadcast" and not node.inputs[0].shape:
        known = low.scalar_dim(node.inputs[0])
        return None if known is None else (known, 0)
    if node.op == "cast":
        return affine(low, node.inputs[0])
    if node.op == "rev":
        line = affine(low, node.inputs[0])
        return None if line is None else (last_of(line, index.shape[0]), -line[1])
    if node.op in ("add", "sub", "mul"):
        a, b = (affine(low, x) for x in node.inputs)
        return None if a is None or b is None else _combine(node.op, a, b)
    return _wrapped(low, index) if node.op == "select" else None


def last_of(line: Line, count: Dim) -> Dim:
    """The last of ``count`` entries."""
    return line[0] + line[1] * (count - 1)


def _combine(op: str, a: Line, b: Line) -> Line | None:
    if op == "add":
        return a[0] + b[0], a[1] + b[1]
    if op == "sub":
        return a[0] - b[0], a[1] - b[1]
    for scale, line in ((a, b), (b, a)):
        if scale[1] == 0 and isinstance(scale[0], int):
            return scale[0] * line[0], scale[0] * line[1]
    return None


def _wrapped(low: Lowering, index: Value) -> Line | None:
    """``select(i < 0, i + n, i)`` where i is never negative."""
    assert index.producer is not None
    negative, _, plain = index.producer.inputs
    line, test = affine(low, plain), negative.producer
    if line is None or test is None or test.op != "lt" or test.inputs[0] is not plain:
        return None
    zero = affine(low, test.inputs[1])
    least = line[0] if line[1] >= 0 else last_of(line, index.shape[0])
    return line if zero == (0, 0) and low.scope.proves(ge(least, 0)) else None


def as_slice(low: Lowering, x: Value, index: Value, axis: int) -> Value | None:
    """``take(x, index, axis)`` as a slice, if ``index`` counts up evenly and stays inside."""
    line = affine(low, index)
    if line is None or line[1] < 1:
        return None
    (start, step), n, count = line, x.shape[axis], index.shape[0]
    scope = low.scope
    # Any of these limits gives ``count`` entries; which one stays inside depends on the sizes.
    limits = [n] if scope.proves(eq(count, ceildiv(n - start, step))) else []
    limits += [scope.simplify(start + step * count), scope.simplify(last_of(line, count) + 1)]
    fitting = [m for m in limits if scope.proves(le(start, m)) and scope.proves(le(m, n))]
    if not fitting or not scope.proves(ge(start, 0)):
        return None
    limit = fitting[0]
    if start == 0 and limit == n and step == 1:
        return x
    out = low.add(
        "slice",
        x,
        starts=tuple(start if a == axis else 0 for a in range(x.rank)),
        limits=tuple(limit if a == axis else m for a, m in enumerate(x.shape)),
        strides=tuple(step if a == axis else 1 for a in range(x.rank)),
    )
    return out if scope.equal(out.shape[axis], count) else None
