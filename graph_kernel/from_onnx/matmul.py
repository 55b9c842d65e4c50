"""Matrix products: MatMul, Gemm, Einsum and the integer ones, all onto ``dot``."""

from __future__ import annotations

import numpy as np

from graph_kernel.from_onnx.builder import Builder
from graph_kernel.from_onnx.registry import MICROSOFT, Call, Result, converter
from graph_kernel.ir import Value


def matmul(b: Builder, x: Value, y: Value, dtype: np.dtype | None = None) -> Value:
    """``numpy.matmul``: [..., m, k] @ [..., k, n]; rank-1 operands are a row or a column."""
    if y.rank <= 2 and x.rank >= 1:
        return b.dot(x, y, ((x.rank - 1,), (0,)), dtype=dtype)
    if x.rank == 1:
        return b.reshape(out := matmul(b, b.unsqueeze(x, 0), y, dtype), out.shape[:-2] + out.shape[-1:])
    batch = b.broadcast_shape(x.shape[:-2], y.shape[:-2])
    x, y = b.broadcast_to(x, batch + x.shape[-2:]), b.broadcast_to(y, batch + y.shape[-2:])
    axes = tuple(range(len(batch)))
    return b.dot(x, y, ((x.rank - 1,), (y.rank - 2,)), (axes, axes), dtype)


@converter("MatMul")
def _matmul(c: Call) -> Result:
    return matmul(c.builder, c.x(0), c.x(1))


@converter("FusedMatMul", domain=MICROSOFT)
def _fused_matmul(c: Call) -> Result:
    b = c.builder
    x, y = (
        b.transpose(v, [*range(v.rank - 2), v.rank - 1, v.rank - 2]) if c.attr(name, 0) else v
        for v, name in ((c.x(0), "transA"), (c.x(1), "transB"))
    )
    return _scaled(b, matmul(b, x, y), c.attr("alpha", 1.0))


def _scaled(b: Builder, x: Value, factor: float) -> Value:
    return x if factor == 1 else b.mul(x, factor)


@converter("Gemm")
def _gemm(c: Call) -> Result:
    """alpha * op(A) @ op(B) + beta * C, C broadcast to [m, n]."""
    b, x, y = c.builder, c.x(0), c.x(1)
    out = b.dot(x, y, ((0 if c.attr("transA", 0) else 1,), (1 if c.attr("transB", 0) else 0,)))
    out = _scaled(b, out, c.attr("alpha", 1.0))
    return b.add(out, _scaled(b, c.x(2), c.attr("beta", 1.0))) if c.has(2) else out


@converter("MatMulInteger")
def _matmul_integer(c: Call) -> Result:
    b = c.builder
    x, y = (b.cast(c.x(i), np.int32) for i in (0, 1))
    if c.has(2):
        x = b.sub(x, _rows(b, b.cast(c.x(2), np.int32)))
    if c.has(3):
        y = b.sub(y, b.cast(c.x(3), np.int32))
    return matmul(b, x, y)


def _rows(b: Builder, zero: Value) -> Value:
    """A zero point per row of [m, k] is a column."""
    return b.unsqueeze(zero, 1) if zero.rank == 1 and zero.shape != (1,) else zero


@converter("Einsum")
def _einsum(c: Call) -> Result:
    equation = c.attr("equation", "").replace(" ", "")
    left, arrow, result = equation.partition("->")
    xs = c.xs()
    terms = [_labels(term, x.rank) for term, x in zip(left.split(","), xs, strict=True)]
    wide = max((sum(len(label) > 1 for label in term) for term in terms), default=0)
    if arrow:
        target = _labels(result, len(result.replace("...", "")) + (wide if "..." in result else 0))
    else:
        flat = [label for term in terms for label in term]
        target = [f"...{i}" for i in reversed(range(wide))]
        target += sorted(label for label in dict.fromkeys(flat) if len(label) == 1 and flat.count(label) == 1)
    return einsum(c.builder, xs, terms, target)


def _labels(term: str, rank: int) -> list[str]:
    """Axis labels of one operand; the axes of ``...`` are called ``...n`` counted from its end."""
    head, dots, tail = term.partition("...")
    if not dots:
        return list(head)
    wide = rank - len(head) - len(tail)
    return [*head, *(f"...{i}" for i in reversed(range(wide))), *tail]


def einsum(b: Builder, xs: list[Value], terms: list[list[str]], target: list[str]) -> Value:
    """Sum of products: operands are joined from left to right, each pair by one ``dot``."""
    x, labels = _diagonals(b, xs[0], terms[0])
    for i, (other, other_term) in enumerate(zip(xs[1:], terms[1:], strict=True), start=1):
        y, y_labels = _diagonals(b, other, other_term)
        later = set(target).union(*terms[i + 1 :])
        x, labels = _drop(b, x, labels, later | set(y_labels))
        y, y_labels = _drop(b, y, y_labels, later | set(labels))
        x, labels = _join(b, x, labels, y, y_labels, later)
    x, labels = _drop(b, x, labels, set(target))
    return b.transpose(x, [labels.index(label) for label in target])


def _diagonals(b: Builder, x: Value, term: list[str]) -> tuple[Value, list[str]]:
    """Each repeated label reduced to its diagonal."""
    labels = list(term)
    for label in dict.fromkeys(term):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            b.require_equal(x.shape[first], x.shape[second])
            same = b.op("eq", b.iota(x.shape, first), b.iota(x.shape, second))
            x = b.reduce("reduce_sum", b.select(same, x, 0), (second,))
            del labels[second]
    return x, labels


def _drop(b: Builder, x: Value, labels: list[str], keep: set[str]) -> tuple[Value, list[str]]:
    """Sums out the labels that nobody else reads."""
    axes = [i for i, label in enumerate(labels) if label not in keep]
    return b.reduce("reduce_sum", x, axes), [label for label in labels if label in keep]


def _join(
    b: Builder, x: Value, x_labels: list[str], y: Value, y_labels: list[str], later: set[str]
) -> tuple[Value, list[str]]:
    both = [label for label in x_labels if label in y_labels]
    # `...` axes broadcast: a size of 1 on one side only has to be spread first
    for label in both:
        i, j = x_labels.index(label), y_labels.index(label)
        if len(label) > 1 and x.shape[i] != y.shape[j]:
            (size,) = b.broadcast_shape((x.shape[i],), (y.shape[j],))
            x = b.broadcast_to(x, (*x.shape[:i], size, *x.shape[i + 1 :]))
            y = b.broadcast_to(y, (*y.shape[:j], size, *y.shape[j + 1 :]))
    batch = [label for label in both if label in later]
    contract = [label for label in both if label not in later]
    axes = [[labels.index(label) for label in group] for group in (contract, batch) for labels in (x_labels, y_labels)]
    out = b.dot(x, y, (axes[0], axes[1]), (axes[2], axes[3]))
    return out, batch + [a for a in x_labels if a not in both] + [a for a in y_labels if a not in both]
