"""Index tensors that are affine in their own positions (``arange`` spread, shifted or scaled).

A gather by such an index is a slice: no data moves by address. Exporters write masks this way
(``mask[arange(batch)[:, None], arange(total)]``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from graph_kernel.ir import Node, Value
from symbolic import Dim


@dataclass(frozen=True)
class Affine:
    """``index[i0, i1, ...] = offset + sum(steps[k] * ik)``; an axis of size 1 has step 0."""

    offset: Dim
    steps: tuple[Dim, ...]

    @property
    def moving(self) -> list[int]:
        """Axes along which the index changes."""
        return [i for i, step in enumerate(self.steps) if not _zero(step)]


def affine(value: Value) -> Affine | None:
    """The affine form of an integer tensor, found from the nodes that make it; None if there is none."""
    node = value.producer
    if node is None or value.dtype.kind not in "iu":
        return None
    rule = _RULES.get(node.op)
    found = rule(node) if rule else None
    if found is None:
        return None
    steps = tuple(0 if _one(size) else step for step, size in zip(found.steps, value.shape, strict=True))
    return Affine(found.offset, steps)


def _zero(dim: Dim) -> bool:
    return isinstance(dim, int) and dim == 0


def _one(dim: Dim) -> bool:
    return isinstance(dim, int) and dim == 1


def _constant(node: Node) -> Affine | None:
    return affine_array(node.attrs["value"])


def affine_array(array: np.ndarray) -> Affine | None:
    """The affine form of a constant index array."""
    if array.size == 0 or array.dtype.kind not in "iu":
        return None
    origin = int(array[(0,) * array.ndim])
    steps = tuple(
        int(array[tuple(int(i == axis) for i in range(array.ndim))]) - origin if array.shape[axis] > 1 else 0
        for axis in range(array.ndim)
    )
    expected = np.full(array.shape, origin, dtype=np.int64)
    for axis, step in enumerate(steps):
        places = np.arange(array.shape[axis], dtype=np.int64) * step
        expected += places.reshape([-1 if i == axis else 1 for i in range(array.ndim)])
    return Affine(origin, steps) if np.array_equal(expected, array) else None


def _dim(node: Node) -> Affine:
    return Affine(node.attrs["expr"], ())


def _iota(node: Node) -> Affine:
    return Affine(0, tuple(int(i == node.attrs["axis"]) for i in range(node.output.rank)))


def _broadcast(node: Node) -> Affine | None:
    (source,) = node.inputs
    inner = affine(source)
    if inner is None:
        return None
    steps: list[Dim] = [0] * node.output.rank
    for i, axis in enumerate(node.attrs["dims"]):
        if not _zero(inner.steps[i]) and source.shape[i] != node.output.shape[axis]:
            return None
        steps[axis] = inner.steps[i]
    return Affine(inner.offset, tuple(steps))


def _reshape(node: Node) -> Affine | None:
    """Only reshapes that insert or drop axes of size 1."""
    (source,) = node.inputs
    inner = affine(source)
    if inner is None:
        return None
    if not inner.moving:
        return Affine(inner.offset, (0,) * node.output.rank)
    before = [(size, step) for size, step in zip(source.shape, inner.steps, strict=True) if not _one(size)]
    steps: list[Dim] = []
    for size in node.output.shape:
        if _one(size):
            steps.append(0)
            continue
        if not before or before[0][0] != size:
            return None
        steps.append(before.pop(0)[1])
    return None if before else Affine(inner.offset, tuple(steps))


def _transpose(node: Node) -> Affine | None:
    inner = affine(node.inputs[0])
    return inner and Affine(inner.offset, tuple(inner.steps[p] for p in node.attrs["perm"]))


def _slice(node: Node) -> Affine | None:
    inner = affine(node.inputs[0])
    if inner is None:
        return None
    offset = inner.offset
    for step, start in zip(inner.steps, node.attrs["starts"], strict=True):
        offset = offset + step * start
    return Affine(offset, tuple(s * t for s, t in zip(inner.steps, node.attrs["strides"], strict=True)))


def _cast(node: Node) -> Affine | None:
    return affine(node.inputs[0])


def _neg(node: Node) -> Affine | None:
    inner = affine(node.inputs[0])
    return inner and Affine(-inner.offset, tuple(-s for s in inner.steps))


def _sum(sign: int) -> Callable[[Node], Affine | None]:
    def rule(node: Node) -> Affine | None:
        x, y = (affine(v) for v in node.inputs)
        if x is None or y is None:
            return None
        steps = tuple(s + sign * t for s, t in zip(x.steps, y.steps, strict=True))
        return Affine(x.offset + sign * y.offset, steps)

    return rule


def _product(node: Node) -> Affine | None:
    x, y = (affine(v) for v in node.inputs)
    if x is None or y is None:
        return None
    if x.moving:
        x, y = y, x
    return None if x.moving else Affine(x.offset * y.offset, tuple(x.offset * s for s in y.steps))


_RULES: dict[str, Callable[[Node], Affine | None]] = {
    "constant": _constant, "dim": _dim, "iota": _iota, "broadcast": _broadcast, "reshape": _reshape, "cast": _cast,
    "transpose": _transpose, "slice": _slice, "neg": _neg, "add": _sum(1), "sub": _sum(-1), "mul": _product,
}  # fmt: skip
