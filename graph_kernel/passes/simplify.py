"""Algebraic simplification, exact for every value: NaN, infinities and the sign of zero included.

Rules that change a result do so by rounding only, and are marked "rounding".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from graph_kernel.ir import Node, Value
from graph_kernel.ops.base import is_float, is_int
from graph_kernel.passes.base import Rewriter, RulePass
from graph_kernel.passes.match import REDUCES, SCANS, exact_cast, made_by, splat, splat_is

COMPARES = ("eq", "ne", "lt", "le", "gt", "ge")


def filled(rw: Rewriter, like: Value, number: object) -> Value:
    """A broadcast of one number in the shape and dtype of ``like``."""
    scalar = rw.constant(np.asarray(number, dtype=like.dtype))
    return rw.add("broadcast", scalar, shape=like.shape, dims=()) if like.shape else scalar


def times_one(rw: Rewriter, node: Node) -> Value | None:
    """x * 1 -> x."""
    x, y = node.inputs
    return x if splat_is(y, 1) else y if splat_is(x, 1) else None


def times_zero(rw: Rewriter, node: Node) -> Value | None:
    """x * 0 -> 0, integers only: a float x may be NaN, infinite or negative."""
    x, y = node.inputs
    if is_int(node.output.dtype) and (splat_is(x, 0) or splat_is(y, 0)):
        return filled(rw, node.output, 0)
    return None


def self_times(rw: Rewriter, node: Node) -> Value | None:
    """x * x -> square(x)."""
    x, y = node.inputs
    return rw.add("square", x) if x is y else None


def plus_zero(rw: Rewriter, node: Node) -> Value | None:
    """x + 0 -> x for integers and for the float -0.0 (x + 0.0 would turn -0.0 into 0.0)."""
    for x, y in (node.inputs, node.inputs[::-1]):
        if splat_is(y, 0, negative_zero=True) and (is_float(y.dtype) or is_int(y.dtype)):
            return x
    return None


def plus_negated(rw: Rewriter, node: Node) -> Value | None:
    """x + (-y) -> x - y."""
    for x, y in (node.inputs, node.inputs[::-1]):
        if (neg := made_by(y, "neg")) is not None:
            return rw.add("sub", x, neg.inputs[0])
    return None


def minus_zero(rw: Rewriter, node: Node) -> Value | None:
    """x - 0 -> x (not for -0.0); x - x -> 0 for integers."""
    x, y = node.inputs
    if splat_is(y, 0):
        return x
    if x is y and is_int(x.dtype):
        return filled(rw, x, 0)
    return None


def minus_negated(rw: Rewriter, node: Node) -> Value | None:
    """x - (-y) -> x + y."""
    x, y = node.inputs
    neg = made_by(y, "neg")
    return None if neg is None else rw.add("add", x, neg.inputs[0])


def over_one(rw: Rewriter, node: Node) -> Value | None:
    """x / 1 -> x."""
    return node.inputs[0] if splat_is(node.inputs[1], 1) else None


def over_power_of_two(rw: Rewriter, node: Node) -> Value | None:
    """x / 2**k -> x * 2**-k, exact while the factor is a normal number."""
    x, y = node.inputs
    c = splat(y)
    if c is None or c.dtype not in (np.float32, np.float64):
        return None
    mantissa, exponent = np.frexp(c)
    if abs(mantissa) != 0.5 or not -100 < exponent < 100:
        return None
    return rw.add("mul", x, filled(rw, y, 1 / c))


def one_over(rw: Rewriter, node: Node) -> Value | None:
    """1 / x -> reciprocal(x), floats."""
    x, y = node.inputs
    return rw.add("reciprocal", y) if is_float(x.dtype) and splat_is(x, 1) else None


def over_sqrt(rw: Rewriter, node: Node) -> Value | None:
    """x / sqrt(y) -> x * rsqrt(y), rounding; only where nobody else reads the root."""
    x, y = node.inputs
    root = made_by(y, "sqrt")
    if root is None or not rw.single_use(y):
        return None
    return rw.add("mul", x, rw.add("rsqrt", root.inputs[0]))


def over_broadcast_sqrt(rw: Rewriter, node: Node) -> Value | None:
    """x / broadcast(sqrt(y)) -> x * broadcast(rsqrt(y)), rounding."""
    x, y = node.inputs
    spread = made_by(y, "broadcast")
    root = None if spread is None else made_by(spread.inputs[0], "sqrt")
    if spread is None or root is None or not rw.single_use(y) or not rw.single_use(spread.inputs[0]):
        return None
    return rw.add("mul", x, rw.add("broadcast", rw.add("rsqrt", root.inputs[0]), **spread.attrs))


def reciprocal_sqrt(rw: Rewriter, node: Node) -> Value | None:
    """1 / sqrt(x) -> rsqrt(x), rounding."""
    root = made_by(node.inputs[0], "sqrt")
    return None if root is None else rw.add("rsqrt", root.inputs[0])


def constant_power(rw: Rewriter, node: Node) -> Value | None:
    """pow by 1, 2, 3 and -1. Not 0.5: pow(-0.0, 0.5) is 0.0 and sqrt(-0.0) is -0.0."""
    x, y = node.inputs
    if splat_is(y, 1):
        return x
    if splat_is(y, 2):
        return rw.add("square", x)
    if splat_is(y, 3) and not is_half(x):
        return rw.add("mul", rw.add("square", x), x)
    if is_float(x.dtype) and splat_is(y, -1):
        return rw.add("reciprocal", x)
    return None


def is_half(value: Value) -> bool:
    """Whether an extra rounding to 16 bits would hurt."""
    return value.dtype.itemsize == 2


def twice(rw: Rewriter, node: Node) -> Value | None:
    """neg(neg(x)), not(not(x)) -> x."""
    inner = made_by(node.inputs[0], node.op)
    return None if inner is None else inner.inputs[0]


def idempotent_unary(rw: Rewriter, node: Node) -> Value | None:
    """abs(abs(x)), floor(floor(x)), ... -> the inner one."""
    return node.inputs[0] if made_by(node.inputs[0], node.op) is not None else None


def even(rw: Rewriter, node: Node) -> Value | None:
    """square, abs and cos of -x or (but for cos) |x| -> of x."""
    inner = made_by(node.inputs[0], "neg")
    if inner is None and node.op != "cos":
        inner = made_by(node.inputs[0], "abs")
    return None if inner is None else rw.add(node.op, inner.inputs[0])


def integer_rounding(rw: Rewriter, node: Node) -> Value | None:
    """floor, ceil, round and trunc of an integer or of a rounded value -> the value."""
    x = node.inputs[0]
    done = is_int(x.dtype) or (x.producer is not None and x.producer.op in ("floor", "ceil", "round", "trunc"))
    return x if done else None


def idempotent_binary(rw: Rewriter, node: Node) -> Value | None:
    """max, min, and, or of x with itself -> x."""
    x, y = node.inputs
    return x if x is y else None


def extreme_identity(rw: Rewriter, node: Node) -> Value | None:
    """max(x, -inf), min(x, inf) and their integer forms -> x; a NaN stays one."""
    for x, y in (node.inputs, node.inputs[::-1]):
        c = splat(y)
        if c is None or c.dtype == np.bool_:
            continue
        bound = np.inf if is_float(c.dtype) else np.iinfo(c.dtype).max if node.op == "min" else np.iinfo(c.dtype).min
        if bool(c == (-np.inf if is_float(c.dtype) and node.op == "max" else bound)):
            return x
    return None


def logic_constant(rw: Rewriter, node: Node) -> Value | None:
    """and/or with all bits set or clear."""
    for x, y in (node.inputs, node.inputs[::-1]):
        c = splat(y)
        if c is None:
            continue
        full = bool(c) if c.dtype == np.bool_ else bool(np.invert(c) == 0)
        clear = bool(c == 0)
        if full:
            return x if node.op == "and" else y
        if clear:
            return y if node.op == "and" else x
    return None


def xor_zero(rw: Rewriter, node: Node) -> Value | None:
    """x ^ 0 -> x."""
    x, y = node.inputs
    return x if splat_is(y, 0) else y if splat_is(x, 0) else None


def compare_self(rw: Rewriter, node: Node) -> Value | None:
    """x == x and so on, integers and bools only: a float x may be NaN."""
    x, y = node.inputs
    if x is not y or is_float(x.dtype) or x.dtype.kind == "c":
        return None
    return filled(rw, node.output, node.op in ("eq", "le", "ge"))


def not_compare(rw: Rewriter, node: Node) -> Value | None:
    """not(x == y) -> x != y; of an order only for integers (NaN compares false both ways)."""
    inner = node.inputs[0].producer
    if inner is None or inner.op not in COMPARES or not rw.single_use(node.inputs[0]):
        return None
    if inner.op not in ("eq", "ne") and not is_int(inner.inputs[0].dtype):
        return None
    flipped = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "le": "gt", "gt": "le"}[inner.op]
    return rw.add(flipped, *inner.inputs)


def select_known(rw: Rewriter, node: Node) -> Value | None:
    """select by a constant, or between equal values."""
    pred, x, y = node.inputs
    if x is y:
        return x
    c = splat(pred)
    return None if c is None else (x if bool(c) else y)


def select_not(rw: Rewriter, node: Node) -> Value | None:
    """select(not p, x, y) -> select(p, y, x)."""
    pred, x, y = node.inputs
    inner = made_by(pred, "not")
    return None if inner is None else rw.add("select", inner.inputs[0], y, x)


def select_bool(rw: Rewriter, node: Node) -> Value | None:
    """select(p, true, false) -> p; select(p, false, true) -> not p."""
    pred, x, y = node.inputs
    if x.dtype != np.bool_:
        return None
    cx, cy = splat(x), splat(y)
    if cx is None or cy is None or bool(cx) == bool(cy):
        return None
    return pred if bool(cx) else rw.add("not", pred)


def cast_chain(rw: Rewriter, node: Node) -> Value | None:
    """cast to the own dtype -> x; a cast after one that loses nothing -> one cast."""
    x = node.inputs[0]
    if x.dtype == node.output.dtype:
        return x
    inner = made_by(x, "cast")
    if inner is None or not exact_cast(inner.inputs[0].dtype, x.dtype):
        return None
    return rw.add("cast", inner.inputs[0], dtype=node.output.dtype)


def reduce_of_one(rw: Rewriter, node: Node) -> Value | None:
    """A reduction over axes of size 1 only is a reshape."""
    (x,) = node.inputs
    if any(x.shape[axis] != 1 for axis in node.attrs["axes"]):
        return None
    return rw.add("reshape", x, shape=node.output.shape) if node.attrs["axes"] else x


def scan_of_one(rw: Rewriter, node: Node) -> Value | None:
    """A cumulative op along an axis of size 1 is nothing."""
    (x,) = node.inputs
    return x if x.shape[node.attrs["axis"]] == 1 else None


def reduce_merge(rw: Rewriter, node: Node) -> Value | None:
    """max of max, min of min, and/or likewise over further axes -> one reduction (exact; a sum would round otherwise)."""
    (x,) = node.inputs
    inner = made_by(x, node.op)
    if inner is None or not rw.single_use(x):
        return None
    gone = set(inner.attrs["axes"])
    kept = [i for i in range(inner.inputs[0].rank) if i not in gone]
    axes = tuple(sorted(gone | {kept[a] for a in node.attrs["axes"]}))
    return rw.add(node.op, inner.inputs[0], axes=axes)


@dataclass(frozen=True)
class Simplify(RulePass):
    """Local algebra on elementwise ops, selects, casts and trivial reductions."""

    name: ClassVar[str] = "simplify"
    rules: ClassVar = {
        "mul": (times_one, times_zero, self_times),
        "add": (plus_zero, plus_negated),
        "sub": (minus_zero, minus_negated),
        "div": (over_one, one_over, over_power_of_two, over_sqrt, over_broadcast_sqrt),
        "reciprocal": (reciprocal_sqrt,),
        "pow": (constant_power,),
        "neg": (twice,),
        "not": (twice, not_compare),
        "abs": (idempotent_unary, even),
        "square": (even,),
        "cos": (even,),
        "floor": (integer_rounding,),
        "ceil": (integer_rounding,),
        "round": (integer_rounding,),
        "trunc": (integer_rounding,),
        "max": (idempotent_binary, extreme_identity),
        "min": (idempotent_binary, extreme_identity),
        "and": (idempotent_binary, logic_constant),
        "or": (idempotent_binary, logic_constant),
        "xor": (xor_zero,),
        "select": (select_known, select_not, select_bool),
        "cast": (cast_chain,),
        **dict.fromkeys(COMPARES, (compare_self,)),
        **dict.fromkeys(REDUCES - {"reduce_max", "reduce_min", "reduce_and", "reduce_or"}, (reduce_of_one,)),
        **dict.fromkeys(("reduce_max", "reduce_min", "reduce_and", "reduce_or"), (reduce_of_one, reduce_merge)),
        **dict.fromkeys(SCANS, (scan_of_one,)),
    }
