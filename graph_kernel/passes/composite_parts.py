"""The parts that composites are made of: numbers, means, values spread along axes, casts around a computation in float32."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from graph_kernel.ir import Graph, Node, Value
from graph_kernel.ops.base import is_float
from graph_kernel.passes.composites import Finder
from graph_kernel.passes.match import exact_cast, made_by, same_dim, same_shape, splat

if TYPE_CHECKING:
    from symbolic import Dim, Scope

Axes = tuple[int, ...]


def number(value: Value) -> float | None:
    """The one real number that ``value`` holds everywhere."""
    found = splat(value)
    return None if found is None or found.dtype.kind == "c" or found.dtype == np.bool_ else float(found)


def close(a: float, b: float, value: Value, slack: float = 2) -> bool:
    """Whether two numbers are the same as far as the dtype of ``value`` can tell, ``slack`` roundings allowed."""
    from ml_dtypes import finfo

    return abs(a - b) <= slack * float(finfo(value.dtype).eps) * abs(b) if is_float(value.dtype) else a == b


def pairs(node: Node) -> Iterable[tuple[Value, Value]]:
    """The two operands of a commutative node in either order."""
    x, y = node.inputs
    return ((x, y), (y, x))


def under_cast(value: Value) -> Value:
    """What ``value`` is a cast of, or itself."""
    node = made_by(value, "cast")
    return value if node is None else node.inputs[0]


def reduction(value: Value, op: str) -> tuple[Value, Axes] | None:
    """(x, axes) if ``value`` is that reduction of x."""
    node = made_by(value, op)
    return None if node is None else (node.inputs[0], tuple(sorted(node.attrs["axes"])))


def spread(scope: Scope, value: Value, like: Value) -> tuple[Value, Axes] | None:
    """(source, axes) if ``value`` repeats source along axes and has the shape of ``like``; the other axes keep their sizes."""
    node = made_by(value, "broadcast")
    if node is None or not same_shape(scope, value.shape, like.shape):
        return None
    source, dims = node.inputs[0], node.attrs["dims"]
    if not all(same_dim(scope, d, value.shape[k]) for d, k in zip(source.shape, dims, strict=True)):
        return None
    return source, tuple(k for k in range(value.rank) if k not in dims)


def varies_along(value: Value, axes: Axes) -> bool:
    """Whether ``value`` is a broadcast that changes along ``axes`` only: a scale, a bias, or one number."""
    node = made_by(value, "broadcast")
    if node is None:
        return False
    grown = zip(node.inputs[0].shape, node.attrs["dims"], strict=True)
    return all(k in axes or d == 1 for d, k in grown)


def mean(scope: Scope, value: Value) -> tuple[Value, Axes] | None:
    """(x, axes) if ``value`` is the sum of x over axes times 1 over their size, which may be symbolic."""
    node = value.producer
    if node is None or node.op not in ("mul", "div"):
        return None
    for total, factor in pairs(node) if node.op == "mul" else (node.inputs,):
        found = reduction(total, "reduce_sum")
        if found is not None and _is_size(scope, factor, _size(*found), inverted=node.op == "mul"):
            return found
    return None


def _size(x: Value, axes: Axes) -> Dim:
    return prod((x.shape[a] for a in axes), start=1)


def _is_size(scope: Scope, value: Value, size: Dim, inverted: bool) -> bool:
    """Whether ``value`` is ``size`` (or 1 / size) everywhere."""
    given = number(value)
    if given is not None:
        if not isinstance(size, int) or size < 1:
            return False
        return close(given, 1 / size if inverted else float(size), value)
    node = value.producer
    while node is not None and node.op in ("broadcast", "cast", "reciprocal"):
        inverted ^= node.op == "reciprocal"
        node = node.inputs[0].producer
    return node is not None and node.op == "dim" and not inverted and same_dim(scope, node.attrs["expr"], size)


def narrowed(finder: Finder, x: Value, output: Value) -> tuple[Value, Value]:
    """(x, output) with the casts around them, where 16-bit floats were widened for what lies between and go back to what they were."""
    inner, reader = made_by(x, "cast"), finder.only_reader(output)
    if inner is None or reader is None or reader.op != "cast":
        return x, output
    narrow = inner.inputs[0]
    if reader.output.dtype != narrow.dtype or not exact_cast(narrow.dtype, x.dtype):
        return x, output
    return narrow, reader.output


def factored(value: Value) -> tuple[Value, float]:
    """(base, factor) if ``value`` is base times constants; a value without constants is itself times 1."""
    factor = 1.0
    while (node := value.producer) is not None and node.op in ("mul", "div", "neg"):
        if node.op == "neg":
            value, factor = node.inputs[0], -factor
            continue
        options = pairs(node) if node.op == "mul" else (node.inputs,)
        base, given = next(((a, number(b)) for a, b in options if number(b) is not None), (None, None))
        if base is None or given is None or (node.op == "div" and given == 0):
            break
        value, factor = base, factor * given if node.op == "mul" else factor / given
    return value, factor


def filled(graph: Graph, like: Value, value: float) -> Value:
    """A broadcast of one number in the shape and dtype of ``like``, appended to ``graph``."""
    scalar = graph.constant(value, like.dtype)
    return graph.add("broadcast", scalar, shape=like.shape, dims=()) if like.shape else scalar
