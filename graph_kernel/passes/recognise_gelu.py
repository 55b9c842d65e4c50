"""x * P(N(0, 1) < x), exact by erf or erfc or approximated by tanh, becomes one ``gelu``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from graph_kernel.ir import Graph, Node, Value
from graph_kernel.passes.composite_parts import close, factored, filled, number, pairs
from graph_kernel.passes.composites import Finder, Match, Recogniser

Polynomial = dict[int, float]
MAX_DEGREE = 3
TANH = {1: math.sqrt(2 / math.pi), 3: math.sqrt(2 / math.pi) * 0.044715}  # Hendrycks and Gimpel, 2016
ROOT_HALF = math.sqrt(0.5)


@dataclass(frozen=True)
class RecogniseGelu(Recogniser):
    """The inner argument has to be the right function of the same x that is multiplied in the end, and all constant factors together 1/2.

    In float32 the body is written with the fewest ops: (1 + tanh u) / 2 is logistic(2 u), and x/2 is computed once.
    """

    name: ClassVar[str] = "recognise_gelu"
    op: ClassVar[str] = "gelu"
    anchors: ClassVar[frozenset[str]] = frozenset(("erf", "erfc", "tanh"))

    def match(self, finder: Finder, node: Node) -> Match | None:
        start = node.output if node.op == "erfc" else _plus_one(finder, node.output)
        product = None if start is None else _product(finder, start)
        if product is None:
            return None
        x, output = product
        if not _is_argument(node, x):
            return None
        build = BUILD[node.op] if x.dtype == np.float32 else None  # 16-bit floats round where the author let them
        return Match(output, (x,), {"form": node.op}, build=build)


def _plus_one(finder: Finder, value: Value) -> Value | None:
    reader = finder.only_reader(value)
    if reader is None or reader.op != "add":
        return None
    return reader.output if any(a is value and number(b) == 1 for a, b in pairs(reader)) else None


def _product(finder: Finder, value: Value) -> tuple[Value, Value] | None:
    """(x, the product of value, x and 1/2), the factors in any order."""
    x, factor = None, 1.0
    while x is None or not close(factor, 0.5, value):
        reader = finder.only_reader(value)
        if reader is None or reader.op not in ("mul", "div"):
            return None
        other = next((b for a, b in pairs(reader) if a is value), value)
        given = number(other)
        if reader.op == "div" and (given in (None, 0) or reader.inputs[0] is not value):
            return None
        if given is not None:
            factor = factor / given if reader.op == "div" else factor * given
        elif x is not None or other is value:
            return None
        else:
            x, scale = factored(other)
            factor *= scale
        value = reader.output
    return x, value


def _is_argument(node: Node, x: Value) -> bool:
    """Whether the input of erf, erfc or tanh is what GELU wants of x."""
    (u,) = node.inputs
    if node.op == "tanh":
        found = polynomial(u, x)
        return (
            found is not None
            and found.keys() == TANH.keys()
            and all(close(found[k], TANH[k], u, slack=8) for k in TANH)
        )
    base, factor = factored(u)
    return base is x and close(factor, ROOT_HALF if node.op == "erf" else -ROOT_HALF, u)


def polynomial(value: Value, x: Value, depth: int = 12) -> Polynomial | None:
    """``value`` as a polynomial in ``x`` of degree at most 3: degree -> coefficient."""
    if value is x:
        return {1: 1.0}
    given = number(value)
    if given is not None:
        return {0: given} if given else {}
    node = value.producer
    if node is None or not depth or node.op not in ("add", "sub", "mul", "square", "neg", "div", "pow"):
        return None
    parts = [polynomial(v, x, depth - 1) for v in node.inputs]
    first, last = parts[0], parts[-1]
    if first is None or last is None:
        return None
    if node.op in ("add", "sub"):
        sign = 1 if node.op == "add" else -1
        return {k: first.get(k, 0) + sign * last.get(k, 0) for k in sorted(first.keys() | last.keys())}
    if node.op == "neg":
        return {k: -c for k, c in first.items()}
    if node.op == "div":
        return {k: c / last[0] for k, c in first.items()} if last.keys() == {0} else None
    if node.op == "pow":
        power = last.get(0) if last.keys() == {0} else None
        return _times(_times(first, first), first) if power == 3 else _times(first, first) if power == 2 else None
    return _times(first, last)  # mul, and square, whose first part is its last


def _times(a: Polynomial | None, b: Polynomial) -> Polynomial | None:
    out: Polynomial = {}
    for i, p in (a or {}).items():
        for j, q in b.items():
            out[i + j] = out.get(i + j, 0) + p * q
    return None if a is None or max(out, default=0) > MAX_DEGREE else out


def _erf(graph: Graph, inputs: Sequence[Value]) -> Value:
    """h + h * erf(x * sqrt(1/2)), h = x / 2."""
    (x,) = inputs
    half = graph.add("mul", x, filled(graph, x, 0.5))
    error = graph.add("erf", graph.add("mul", x, filled(graph, x, ROOT_HALF)))
    return graph.add("add", half, graph.add("mul", half, error))


def _erfc(graph: Graph, inputs: Sequence[Value]) -> Value:
    """x / 2 * erfc(-x * sqrt(1/2))."""
    (x,) = inputs
    half = graph.add("mul", x, filled(graph, x, 0.5))
    return graph.add("mul", half, graph.add("erfc", graph.add("mul", x, filled(graph, x, -ROOT_HALF))))


def _tanh(graph: Graph, inputs: Sequence[Value]) -> Value:
    """x * logistic(x * (2 c1 + 2 c3 x^2))."""
    (x,) = inputs
    cubed = graph.add("mul", graph.add("square", x), filled(graph, x, 2 * TANH[3]))
    slope = graph.add("add", cubed, filled(graph, x, 2 * TANH[1]))
    return graph.add("mul", x, graph.add("logistic", graph.add("mul", x, slope)))


BUILD: dict[str, Callable[[Graph, Sequence[Value]], Value]] = {"erf": _erf, "erfc": _erfc, "tanh": _tanh}
