"""What ``recognise_layer_norm`` and ``recognise_rms_norm`` share: x * rsqrt(mean square + eps), and what follows it."""

from __future__ import annotations

from dataclasses import dataclass

from graph_kernel.ir import Node, Value
from graph_kernel.passes.composite_parts import Axes, mean, number, pairs, spread, varies_along
from graph_kernel.passes.composites import Finder
from graph_kernel.passes.match import exact_cast, made_by
from symbolic import gt

ANCHORS = frozenset(("rsqrt", "sqrt"))


@dataclass(frozen=True)
class Deviation:
    """The heart of a norm: ``root`` is (the inverse of) the root of ``variance`` + eps over ``axes``.

    ``guarded`` is variance under select(size > 0, variance, NaN), where the size is provably positive.
    """

    root: Value
    variance: Value
    eps: float
    guarded: Value | None = None


def deviation(finder: Finder, node: Node) -> Deviation | None:
    """``node`` as the root of something plus a constant."""
    total = made_by(node.inputs[0], "add")
    if total is None:
        return None
    for variance, other in pairs(total):
        eps = number(other)
        if eps is not None and number(variance) is None:
            inner = _without_guard(finder, variance)
            return Deviation(node.output, inner, eps, variance if inner is not variance else None)
    return None


def _without_guard(finder: Finder, value: Value) -> Value:
    """jnp.var gives NaN where nothing is left to average; it is never so where the size is proved to be at least 1."""
    node = made_by(value, "select")
    if node is None:
        return value
    pred, inner, other = node.inputs
    fill = number(other)
    while pred.producer is not None and pred.producer.op == "broadcast":
        pred = pred.producer.inputs[0]
    compare = made_by(pred, "gt")
    if fill is None or fill == fill or compare is None or number(compare.inputs[1]) != 0:
        return value
    size = compare.inputs[0]
    while size.producer is not None and size.producer.op == "cast":
        size = size.producer.inputs[0]
    dim = made_by(size, "dim")
    return inner if dim is not None and finder.scope.proves(gt(dim.attrs["expr"], 0)) else value


def mean_square(finder: Finder, value: Value) -> tuple[Value, Axes] | None:
    """(d, axes) if ``value`` is the mean of d * d over axes."""
    found = mean(finder.scope, value)
    square = None if found is None else found[0].producer
    if found is None or square is None:
        return None
    if square.op == "square" or (square.op == "mul" and square.inputs[0] is square.inputs[1]):
        return square.inputs[0], found[1]
    return None


def scaled_by_root(finder: Finder, root: Value, d: Value, axes: Axes) -> tuple[Value, tuple[Value, ...]] | None:
    """(d / sqrt(variance + eps), what else it reads), found from the users of the root.

    The root may be multiplied by a scale first. ``d`` has to be what the variance is of.
    """
    for repeated in finder.readers(root):
        if repeated.op != "broadcast" or spread(finder.scope, repeated.output, d) != (root, axes):
            continue
        for user in finder.readers(repeated.output):
            if _applies(user, root, repeated.output, d):
                return user.output, ()
            other = next((b for a, b in pairs(user) if a is repeated.output), None) if user.op == "mul" else None
            if other is None or not varies_along(other, axes):
                continue
            for last in finder.readers(user.output):
                if last.op == "mul" and d in last.inputs:
                    return last.output, (source(other),)
    return None


def _applies(user: Node, root: Value, repeated: Value, d: Value) -> bool:
    inverse = root.producer is not None and root.producer.op == "rsqrt"
    if inverse:
        return user.op == "mul" and user.inputs in ((d, repeated), (repeated, d))
    return user.op == "div" and user.inputs == (d, repeated)


def source(value: Value) -> Value:
    """What a broadcast repeats, before it was widened."""
    node = made_by(value, "broadcast")
    inner = value if node is None else node.inputs[0]
    cast = made_by(inner, "cast")
    return cast.inputs[0] if cast is not None and exact_cast(cast.inputs[0].dtype, inner.dtype) else inner


def tail(finder: Finder, x: Value, y: Value, axes: Axes, steps: list[str]) -> tuple[Value, Value, dict[str, Value]]:
    """(x, the end of the norm, what it reads by "mul" and "add"): what follows ``y`` = x normalised.

    That is a scale, a bias (``steps``, in this order), and the cast back to x's own dtype. Each is taken if nothing else reads the value
    before it and it varies along the normalised axes only.
    """
    wide = made_by(x, "cast")
    narrow = wide.inputs[0] if wide is not None and exact_cast(wide.inputs[0].dtype, x.dtype) else None
    leaf, extra = x, {}
    while True:
        reader = finder.only_reader(y)
        if reader is None:
            break
        if reader.op == "cast" and leaf is x and narrow is not None and reader.output.dtype == narrow.dtype:
            leaf, y = narrow, reader.output
            continue
        while steps and steps[0] != reader.op:
            steps.pop(0)
        other = next((b for a, b in pairs(reader) if a is y), None) if steps else None
        if other is None or other is y or not varies_along(other, axes):
            break
        extra[steps.pop(0)] = source(other)
        y = reader.output
    return leaf, y, extra
