"""Value rules: ops on small integer tensors whose elements are known as dims, evaluated while converting.

A rule gets the call and answers with a tensor, or None where it cannot (then the op is converted to nodes). Bools are
the dims 0 and 1. Floats appear where an exporter scales a dim (``Ratio``, exact) and comes back to an integer, and as
plain constants, which are rounded in their own dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np

import symbolic
from graph_kernel.from_onnx import dims
from graph_kernel.from_onnx.registry import Call, np_dtype
from graph_kernel.from_onnx.tensor import KNOWN_LIMIT, Ratio, Tensor, object_array
from symbolic import Dim, Scope

Rule = Callable[[Call], "Tensor | list[Tensor] | None"]
RULES: dict[str, Rule] = {}


def fold(c: Call) -> list[Tensor] | None:
    """The outputs of a node whose inputs are known, or None."""
    rule = RULES.get(c.node.op_type)
    if rule is None or not c.inputs or c.node.domain not in ("", "ai.onnx"):
        return None
    if not all(t is None or t.known is not None for t in c.inputs):
        return None
    out = rule(c)
    return [out] if isinstance(out, Tensor) else out


def _rule(*op_types: str) -> Callable[[Rule], Rule]:
    def register(fn: Rule) -> Rule:
        for op_type in op_types:
            RULES[op_type] = fn
        return fn

    return register


def _known(c: Call, i: int = 0) -> np.ndarray:
    known = c.tensor(i).known
    if known is None:
        raise TypeError("fold() checks that all inputs are known")
    return known


# ---- elementwise

Scalar = Any  # int, Expr, Ratio or float


def _rational(x: Scalar) -> Ratio | None:
    """A number or dim as an exact ratio; None for infinities and NaN."""
    if isinstance(x, Ratio):
        return x
    if not isinstance(x, float):
        return Ratio(x)
    if not np.isfinite(x):
        return None
    fraction = Fraction(x)
    return Ratio(fraction.numerator, fraction.denominator)


def _ratio_add(sign: int) -> Callable[[Ratio, Ratio], Ratio]:
    return lambda x, y: Ratio(x.num * y.den + sign * (y.num * x.den), x.den * y.den)


def _ratio_mul(x: Ratio, y: Ratio) -> Ratio:
    return Ratio(x.num * y.num, x.den * y.den)


def _ratio_div(x: Ratio, y: Ratio) -> Ratio | None:
    if not isinstance(y.num, int) or y.num == 0:
        return None
    sign = 1 if y.num > 0 else -1
    return Ratio(x.num * y.den * sign, x.den * abs(y.num))


INT_OPS: dict[str, Callable[[Scope, Dim, Dim], Dim | None]] = {
    "Add": lambda s, x, y: x + y,
    "Sub": lambda s, x, y: x - y,
    "Mul": lambda s, x, y: x * y,
    "Div": dims.truncated_div,
    "Max": dims.larger,
    "Min": dims.smaller,
    "Equal": dims.is_equal,
    "Less": dims.is_less,
    "Greater": lambda s, x, y: dims.is_less(s, y, x),
    "LessOrEqual": lambda s, x, y: 1 - dims.is_less(s, y, x),
    "GreaterOrEqual": lambda s, x, y: 1 - dims.is_less(s, x, y),
    "And": lambda s, x, y: x * y,
    "Or": lambda s, x, y: dims.larger(s, x, y),
    "Xor": lambda s, x, y: 1 - dims.is_equal(s, x, y),
}
FLOAT_OPS: dict[str, Callable[[Ratio, Ratio], Ratio | None]] = {
    "Add": _ratio_add(1),
    "Sub": _ratio_add(-1),
    "Mul": _ratio_mul,
    "Div": _ratio_div,
}
COMPARISONS = ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "And", "Or", "Xor")


def _pairs(*arrays: np.ndarray) -> tuple[tuple[int, ...], Iterator[tuple[Scalar, ...]]] | None:
    """The elements of broadcast arrays side by side; None if the result is too long."""
    shape = np.broadcast_shapes(*(a.shape for a in arrays))
    if int(np.prod(shape)) > KNOWN_LIMIT:
        return None
    return shape, zip(*(np.broadcast_to(a, shape).flat for a in arrays), strict=True)


def _elementwise(c: Call, fn: Callable[..., Scalar | None], *arrays: np.ndarray, dtype: Any) -> Tensor | None:
    found = _pairs(*arrays)
    if found is None:
        return None
    shape, rows = found
    out = []
    for row in rows:
        element = fn(*row)
        if element is None:
            return None
        out.append(element)
    return Tensor.sym(object_array(out, shape), dtype)


def _scales_a_dim(*arrays: np.ndarray) -> bool:
    return any(isinstance(e, Ratio) for a in arrays for e in a.flat)


def _float_constants(c: Call) -> list[np.ndarray] | None:
    """The inputs if all are plain float constants, which NumPy rounds just as the graph would."""
    arrays = [c.tensor(i).array for i in range(len(c.inputs)) if c.has(i)]
    if not all(a is not None and a.dtype in (np.float32, np.float64) for a in arrays):
        return None
    return [a for a in arrays if a is not None]


FLOAT_UFUNCS: dict[str, Callable[..., np.ndarray]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Neg": np.negative,
    "Abs": np.abs,
    "Sqrt": np.sqrt,
}


def _on_constants(c: Call, arrays: list[np.ndarray]) -> Tensor | None:
    ufunc = FLOAT_UFUNCS.get(c.node.op_type)
    if ufunc is None:
        return None
    with np.errstate(all="ignore"):
        out = np.asarray(ufunc(*arrays), dtype=arrays[0].dtype)
    return Tensor.const(out) if out.size <= KNOWN_LIMIT else None


@_rule(*INT_OPS)
def _binary(c: Call) -> Tensor | None:
    arrays = _float_constants(c)
    if arrays is not None:
        return _on_constants(c, arrays)
    op, scope = c.node.op_type, c.builder.scope
    first = _known(c)
    dtype = c.tensor(0).dtype
    for i in range(1, len(c.inputs)):
        second = _known(c, i)
        if dtype.kind in "iub":
            int_op = INT_OPS[op]
            result_type = np.bool_ if op in COMPARISONS else dtype
            out = _elementwise(c, lambda x, y, f=int_op: f(scope, x, y), first, second, dtype=result_type)
        elif op in FLOAT_OPS and _scales_a_dim(first, second):
            out = _elementwise(c, _on_ratios(FLOAT_OPS[op]), first, second, dtype=dtype)
        else:
            return None
        if out is None or out.known is None:
            return None
        first = out.known
    return Tensor.sym(first, np.bool_ if op in COMPARISONS else dtype)


def _on_ratios(fn: Callable[[Ratio, Ratio], Ratio | None]) -> Callable[[Scalar, Scalar], Ratio | None]:
    def both(x: Scalar, y: Scalar) -> Ratio | None:
        left, right = _rational(x), _rational(y)
        return None if left is None or right is None else fn(left, right)

    return both


@_rule("Mod")
def _mod(c: Call) -> Tensor | None:
    scope, fmod = c.builder.scope, c.attr("fmod", 0)
    if c.tensor(0).dtype.kind not in "iu":
        return None

    def one(x: Dim, y: Dim) -> Dim | None:
        if not dims.at_least(scope, y, 1) or (fmod and not dims.at_least(scope, x, 0)):
            return None
        return x % y

    return _elementwise(c, one, _known(c), _known(c, 1), dtype=c.tensor(0).dtype)


@_rule("Neg", "Abs", "Not", "Floor", "Ceil", "Sign", "Sqrt")
def _unary(c: Call) -> Tensor | None:
    arrays = _float_constants(c)
    if arrays is not None:
        return _on_constants(c, arrays)
    op, scope, dtype = c.node.op_type, c.builder.scope, c.tensor(0).dtype
    x = _known(c)
    if dtype.kind == "f":
        if not _scales_a_dim(x) or op not in ("Floor", "Ceil"):
            return None
        ratios = _on_ratios(lambda r, _: Ratio(_rounded_down(r) if op == "Floor" else -_rounded_down(_negated(r))))
        return _elementwise(c, lambda e: ratios(e, 1), x, dtype=dtype)
    rules: dict[str, Callable[[Dim], Dim]] = {
        "Neg": lambda e: -e,
        "Abs": lambda e: dims.larger(scope, e, -e),
        "Not": lambda e: 1 - e,
        "Floor": lambda e: e,
        "Ceil": lambda e: e,
        "Sign": lambda e: dims.is_less(scope, 0, e) - dims.is_less(scope, e, 0),
    }
    return _elementwise(c, rules[op], x, dtype=dtype)


def _rounded_down(r: Ratio) -> Dim:
    return r.num // r.den


def _negated(r: Ratio) -> Ratio:
    return Ratio(-r.num, r.den)


@_rule("Where")
def _where(c: Call) -> Tensor | None:
    if c.tensor(1).dtype.kind not in "iub":
        return None
    return _elementwise(c, dims.choose, _known(c, 0), _known(c, 1), _known(c, 2), dtype=c.tensor(1).dtype)


@_rule("Clip")
def _clip(c: Call) -> Tensor | None:
    scope, dtype = c.builder.scope, c.tensor(0).dtype
    if dtype.kind not in "iu":
        return None
    x = _known(c)
    for i, fn in ((1, dims.larger), (2, dims.smaller)):
        if c.has(i):
            (bound,) = _known(c, i).flat
            x = object_array([fn(scope, e, bound) for e in x.flat], x.shape)
    return Tensor.sym(x, dtype)


@_rule("Cast", "CastLike")
def _cast(c: Call) -> Tensor | None:
    source = c.tensor(0).dtype
    target = np_dtype(c.attr("to"), c.where()) if c.node.op_type == "Cast" else c.tensor(1).dtype
    scope, x = c.builder.scope, _known(c)
    if target.kind not in "iubf":
        return None
    if c.tensor(0).array is not None:
        return _cast_array(c.tensor(0).array, target)

    def one(e: Scalar) -> Scalar | None:
        if source.kind in "iub" and target.kind == "f":
            return Ratio(e)
        if target == np.bool_:
            return None if source.kind == "f" else 1 - dims.is_equal(scope, e, 0)
        ratio = _rational(e)
        if target.kind == "f" or ratio is None:
            return e
        return dims.truncated_div(scope, ratio.num, ratio.den)

    return _elementwise(c, one, x, dtype=target)


def _cast_array(array: np.ndarray | None, target: np.dtype) -> Tensor | None:
    if array is None or (array.dtype.kind == "f" and target.kind in "iu" and not np.isfinite(array).all()):
        return None
    return Tensor.const(array.astype(target))


@_rule("Identity")
def _identity(c: Call) -> Tensor | None:
    return c.tensor(0)


# ---- structure: elements move, nothing is computed


def _structural(c: Call, out: np.ndarray) -> Tensor | None:
    return Tensor.sym(out, c.tensor(0).dtype) if out.size <= KNOWN_LIMIT else None


def _axes(c: Call, rank: int) -> list[int] | None:
    return c.axes(1, rank)


@_rule("Squeeze")
def _squeeze(c: Call) -> Tensor | None:
    x = _known(c)
    axes = _axes(c, x.ndim)
    kept = [i for i in range(x.ndim) if not (x.shape[i] == 1 if axes is None else i in axes)]
    return _structural(c, x.reshape([x.shape[i] for i in kept]))


@_rule("Unsqueeze")
def _unsqueeze(c: Call) -> Tensor | None:
    x = _known(c)
    count = len(c.ints(1) if c.has(1) else c.attr("axes", []))
    return _structural(c, np.expand_dims(x, tuple(_axes(c, x.ndim + count) or ())))


def _plain(elements: np.ndarray) -> list[int] | None:
    flat = list(elements.flat)
    return flat if all(isinstance(e, int) for e in flat) else None


@_rule("Reshape")
def _reshape(c: Call) -> Tensor | None:
    target = _plain(_known(c, 1))
    x = _known(c)
    if target is None or 0 in target:
        return None
    return _structural(c, x.reshape(target))


@_rule("Transpose")
def _transpose(c: Call) -> Tensor | None:
    return _structural(c, _known(c).transpose(c.attr("perm")))


@_rule("Flatten")
def _flatten(c: Call) -> Tensor | None:
    return _structural(c, _known(c).reshape(1, -1)) if c.attr("axis", 1) == 0 else None


@_rule("Concat")
def _concat(c: Call) -> Tensor | None:
    return _structural(c, np.concatenate([_known(c, i) for i in range(len(c.inputs))], axis=c.attr("axis")))


@_rule("Gather")
def _gather(c: Call) -> Tensor | None:
    idx = _plain(_known(c, 1))
    if idx is None:
        return None
    x = _known(c)
    axis = c.axis(c.attr("axis", 0), x.ndim)
    where = np.asarray(idx, dtype=np.int64).reshape(c.tensor(1).shape)
    return _structural(c, np.asarray(np.take(x, where, axis=axis), dtype=object))


@_rule("Slice")
def _slice(c: Call) -> Tensor | None:
    x = _known(c)
    given = [_plain(_known(c, i)) for i in range(1, len(c.inputs)) if c.has(i)]
    if any(g is None for g in given):
        return None
    starts, ends = c.ints(1), c.ints(2)
    axes = c.axes(3, x.ndim) or list(range(len(starts)))
    steps = c.ints(4) if c.has(4) else [1] * len(starts)
    index = [slice(None)] * x.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        low = end if step > 0 or end >= -x.shape[axis] else None
        index[axis] = slice(start, low, step)
    return _structural(c, x[tuple(index)])


@_rule("Split")
def _split(c: Call) -> list[Tensor] | None:
    x = _known(c)
    axis = c.axis(c.attr("axis", 0), x.ndim)
    count = c.attr("num_outputs") or len(c.node.output)
    sizes = c.ints(1) if c.has(1) else None
    if sizes is None:
        chunk = -(-x.shape[axis] // count)
        sizes = [chunk] * (count - 1) + [x.shape[axis] - chunk * (count - 1)]
    cuts = np.cumsum(sizes)[:-1]
    return [Tensor.sym(part, c.tensor(0).dtype) for part in np.split(x, cuts, axis=axis)]


@_rule("Expand", "Tile", "ConstantOfShape")
def _enlarge(c: Call) -> Tensor | None:
    op = c.node.op_type
    sizes = _plain(_known(c, 0 if op == "ConstantOfShape" else 1))
    if sizes is None or int(np.prod(sizes)) > KNOWN_LIMIT:
        return None
    if op == "ConstantOfShape":
        fill = np.asarray(c.attr("value", np.zeros(1, np.float32)))
        return Tensor.const(np.full(sizes, fill.reshape(-1)[0]))
    x = _known(c)
    if op == "Tile":
        return _structural(c, np.tile(x, sizes))
    return _structural(c, np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(sizes))))


@_rule("Range")
def _range(c: Call) -> Tensor | None:
    parts = [_plain(_known(c, i)) for i in range(3)]
    if any(p is None for p in parts):
        return None
    start, limit, delta = (c.ints(i)[0] for i in range(3))
    if delta == 0 or len(range(start, limit, delta)) > KNOWN_LIMIT:
        return None
    numbers = list(range(start, limit, delta))
    return Tensor.sym(object_array(numbers, (len(numbers),)), c.tensor(0).dtype)


# ---- reductions


@_rule("ReduceProd", "ReduceSum", "ReduceMax", "ReduceMin")
def _reduce(c: Call) -> Tensor | None:
    scope, dtype, x = c.builder.scope, c.tensor(0).dtype, _known(c)
    if dtype.kind not in "iu" or x.ndim > 1 or x.size == 0:
        return None
    axes = c.axes(1, x.ndim)
    if not axes and c.attr("noop_with_empty_axes", 0):
        return c.tensor(0)
    items: list[Dim] = list(x.flat)
    steps: dict[str, Callable[[Dim, Dim], Dim]] = {
        "ReduceProd": lambda a, b: a * b,
        "ReduceSum": lambda a, b: a + b,
        "ReduceMax": lambda a, b: dims.larger(scope, a, b),
        "ReduceMin": lambda a, b: dims.smaller(scope, a, b),
    }
    total = items[0]
    for item in items[1:]:
        total = steps[c.node.op_type](total, item)
    shape = (1,) * x.ndim if c.attr("keepdims", 1) else ()
    return Tensor.sym(object_array([total], shape), dtype)


@_rule("CumSum")
def _cumsum(c: Call) -> Tensor | None:
    x = _known(c)
    if c.tensor(0).dtype.kind not in "iu" or x.ndim != 1 or c.attr("exclusive", 0) or c.attr("reverse", 0):
        return None
    return Tensor.sym(
        object_array([symbolic.ssum(list(x[: i + 1])) for i in range(len(x))], x.shape), c.tensor(0).dtype
    )
