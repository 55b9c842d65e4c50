"""The op table: meanings against NumPy and JAX, shape rules at symbolic sizes, value rules."""

import ml_dtypes
import numpy as np
import pytest

from graph_kernel.evaluate import evaluate
from graph_kernel.ir import Graph
from graph_kernel.ops import OPS, Pattern, literal_value, on_chip, propagate
from symbolic import Scope, eq, le, parse
from vm.errors import CompileError, InputError, ShapeError

bfloat16 = np.dtype(ml_dtypes.bfloat16)


def graph_of(**dims):
    scope = Scope()
    symbols = {n: scope.declare(n, **k) for n, k in dims.items()}
    return Graph(scope), symbols


def apply(op, *arrays, **attrs):
    """One op on concrete arrays, through the shape rule."""
    graph = Graph(Scope())
    inputs = [graph.add_input(a.shape, a.dtype) for a in arrays]
    graph.outputs = list(graph.add_multi(op, inputs, attrs))
    return evaluate(graph, arrays, {})


def test_every_op_is_declared_completely():
    for name, op in OPS.items():
        assert op.name == name and op.doc
        assert op.chip != bool(op.host), name
        assert (op.pattern is Pattern.HOST) == (not op.chip), name


def test_float64_and_complex_belong_to_the_host():
    assert on_chip("add", [np.dtype(np.float32)])
    assert not on_chip("add", [np.dtype(np.float64)])
    assert not on_chip("add", [np.dtype(np.complex64)])
    assert not on_chip("sort", [np.dtype(np.float32)])


@pytest.mark.parametrize("dtype", [np.float16, bfloat16])
def test_half_precision_is_rounded_once_per_op(dtype):
    x = np.array([1.0, 3.0, 0.1, 300.0], dtype)
    (out,) = apply("exp2", x)
    assert out.dtype == np.dtype(dtype)
    assert out.tolist()[:2] == [2.0, 8.0]
    big = np.full(4096, 1.0, dtype)
    (total,) = apply("reduce_sum", big, axes=(0,))  # would stop at 256 or 2048 if summed in 16 bits
    assert float(total) == 4096.0


def test_integer_division_truncates_and_remainder_follows_the_dividend():
    x = np.array([7, -7, 7, -7, 5, np.iinfo(np.int32).min], np.int32)
    y = np.array([2, 2, -2, -2, 0, -1], np.int32)
    assert apply("div", x, y)[0].tolist() == [3, -3, -3, 3, -1, np.iinfo(np.int32).min]
    assert apply("rem", x, y)[0].tolist() == [1, -1, 1, -1, 5, 0]


def test_float_to_integer_saturates():
    x = np.array([1e20, -1e20, np.nan, 2.9, -2.9], np.float32)
    (out,) = apply("cast", x, dtype=np.dtype(np.int32))
    assert out.tolist() == [2**31 - 1, -(2**31), 0, 2, -2]


def test_nan_wins():
    x, y = np.array([np.nan, 1.0], np.float32), np.array([0.0, np.nan], np.float32)
    for op in ("max", "min"):
        assert np.isnan(apply(op, x, y)[0]).all()
    assert apply("argmax", np.array([1, np.nan, 3], np.float32), axis=0, dtype=np.dtype(np.int32))[0] == 1


def test_shifts_outside_the_width():
    x = np.array([-8, -8, 5], np.int32)
    n = np.array([1, 40, -1], np.int32)
    assert apply("shift_right_arithmetic", x, n)[0].tolist() == [-4, -1, 0]
    assert apply("shift_right_logical", x, n)[0].tolist() == [2**31 - 4, 0, 0]
    assert apply("shift_left", x, n)[0].tolist() == [-16, 0, 0]


def test_empty_reductions():
    x = np.zeros((0, 3), np.float32)
    assert apply("reduce_sum", x, axes=(0,))[0].tolist() == [0, 0, 0]
    assert apply("reduce_max", x, axes=(0,))[0].tolist() == [-np.inf] * 3
    assert apply("reduce_min", x, axes=(0,))[0].tolist() == [np.inf] * 3
    assert apply("reduce_prod", x, axes=(0,))[0].tolist() == [1, 1, 1]
    assert apply("reduce_max", x.astype(np.int32), axes=(0,))[0].tolist() == [-(2**31)] * 3


@pytest.mark.parametrize("low,high,interior", [(1, 2, 0), (-1, 0, 0), (0, -2, 1), (2, 1, 2)])
@pytest.mark.parametrize("n", [0, 1, 5])
def test_pad_agrees_with_lax(low, high, interior, n):
    from jax import lax

    x = np.arange(n, dtype=np.float32)
    size = max(n + interior * (n - 1), 0) + low + high
    if size < 0:
        with pytest.raises(CompileError):
            apply("pad", x, np.float32(9) * np.ones(()), low=(low,), high=(high,), interior=(interior,))
        return
    got = apply("pad", x, np.array(9, np.float32), low=(low,), high=(high,), interior=(interior,))[0]
    np.testing.assert_array_equal(got, lax.pad(x, np.float32(9), [(low, high, interior)]))


def test_take_modes():
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    i = np.array([[0, 5], [-1, 2]], np.int32)
    clipped = apply("take", x, i, axis=0, mode="clip")[0]
    assert (
        clipped.shape == (2, 2, 4)
        and clipped[0, 1].tolist() == x[2].tolist()
        and clipped[1, 0].tolist() == x[0].tolist()
    )
    filled = apply("take", x, i, axis=1, mode="fill", fill=np.nan)[0]
    assert filled.shape == (3, 2, 2) and np.isnan(filled[:, 0, 1]).all() and np.isnan(filled[:, 1, 0]).all()
    assert apply("take", x[:0], i, axis=0, mode="clip")[0].shape == (2, 2, 4)


def test_windows_are_clamped():
    x = np.arange(5, dtype=np.int32)
    at = np.array(4, np.int32)
    assert apply("dynamic_slice", x, at, sizes=(3,))[0].tolist() == [2, 3, 4]
    u = np.array([9, 9], np.int32)
    assert apply("dynamic_update_slice", x, u, at)[0].tolist() == [0, 1, 2, 9, 9]


def test_top_k_prefers_the_first_of_equals():
    values, order = apply("top_k", np.array([1, 3, 3, 2], np.float32), k=3, axis=0, dtype=np.dtype(np.int32))
    assert values.tolist() == [3, 3, 2] and order.tolist() == [1, 2, 3]


# ---- shape rules


def test_broadcast_and_concat_at_symbolic_sizes():
    graph, d = graph_of(b={"min": 0}, s={})
    x = graph.add_input((d["b"], 1), np.float32, "x")
    y = graph.add("broadcast", x, shape=(d["b"], d["s"]), dims=(0, 1))
    z = graph.add("concat", y, x, axis=1)
    graph.outputs = [z]
    assert z.shape == (d["b"], d["s"] + 1) and not graph.scope.checks
    for b in (0, 1, 5):
        for s in (1, 7):
            (out,) = evaluate(graph, [np.ones((b, 1), np.float32)], {"b": b, "s": s})
            assert out.shape == (b, s + 1)


def test_unproved_sizes_become_launch_checks_and_then_facts():
    graph, d = graph_of(a={}, b={})
    x, y = graph.add_input((d["a"],), np.float32), graph.add_input((d["b"],), np.float32)
    graph.add("add", x, y)
    graph.add("mul", x, y)
    assert [c.rel for c in graph.scope.checks] == [eq(d["a"], d["b"])]
    assert graph.scope.proves(eq(d["a"], d["b"]))


def test_broadcast_of_an_unknown_size_is_decided_at_launch():
    graph, d = graph_of(a={}, b={})
    x = graph.add_input((d["a"],), np.float32)
    graph.outputs = [graph.add("broadcast", x, shape=(d["b"],), dims=(0,))]
    (check,) = graph.scope.checks
    assert (
        check.rel.holds({"a": 1, "b": 5})
        and check.rel.holds({"a": 5, "b": 5})
        and not check.rel.holds({"a": 2, "b": 5})
    )
    assert evaluate(graph, [np.ones(1, np.float32)], {"a": 1, "b": 4})[0].shape == (4,)


def test_reshape_checks_the_element_count():
    graph, d = graph_of(n={})
    x = graph.add_input((d["n"],), np.float32)
    y = graph.add("reshape", x, shape=(d["n"] // 8, 8))
    assert y.shape == (d["n"] // 8, 8)
    assert not graph.scope.holds({"n": 12}) and graph.scope.holds({"n": 16})
    with pytest.raises(CompileError, match="12 elements, not 10"):
        apply("reshape", np.zeros((3, 4), np.float32), shape=(2, 5))


def test_slice_limits_are_required():
    graph, d = graph_of(n={"min": 0})
    x = graph.add_input((d["n"],), np.float32)
    y = graph.add("slice", x, starts=(1,), limits=(d["n"],), strides=(2,))
    assert graph.scope.checks[0].rel == le(1, d["n"])
    graph.outputs = [y]
    for n in (1, 2, 3, 8):
        assert evaluate(graph, [np.arange(n, dtype=np.float32)], {"n": n})[0].tolist() == list(range(1, n, 2))


@pytest.mark.parametrize(
    "op,arrays,attrs,message",
    [
        ("add", [np.zeros(2, np.float32), np.zeros(2, np.int32)], {}, "one dtype"),
        ("add", [np.zeros(2, np.float32), np.zeros((2, 2), np.float32)], {}, "rank"),
        ("add", [np.zeros(2, np.float32), np.zeros(3, np.float32)], {}, "2 and 3"),
        ("exp", [np.zeros(2, np.int32)], {}, "not defined on int32"),
        ("select", [np.zeros(2, np.int32)] * 3, {}, "must be bool"),
        ("reduce_sum", [np.zeros(2, np.float32)], {"axes": (1,)}, "axis 1"),
        ("transpose", [np.zeros((2, 3), np.float32)], {"perm": (0, 0)}, "permutation"),
        ("broadcast", [np.zeros(3, np.float32)], {"shape": (4,), "dims": (0,)}, "neither 4 nor 1"),
        ("concat", [np.zeros(3, np.float32), np.zeros((3, 1), np.float32)], {"axis": 0}, "concatenate"),
    ],
)
def test_bad_types_are_compile_errors(op, arrays, attrs, message):
    with pytest.raises(CompileError, match=message):
        apply(op, *arrays, **attrs)


def test_evaluator_checks_its_inputs():
    graph, d = graph_of(n={})
    x = graph.add_input((d["n"],), np.float32, "x")
    graph.outputs = [graph.add("neg", x)]
    with pytest.raises(ShapeError, match="input x"):
        evaluate(graph, [np.zeros(3, np.float32)], {"n": 4})
    with pytest.raises(InputError, match="float64"):
        evaluate(graph, [np.zeros(4)], {"n": 4})
    with pytest.raises(InputError, match="takes 1 inputs"):
        evaluate(graph, [], {"n": 4})


def test_data_dependent_sizes_are_bound_by_the_op_that_makes_them():
    graph, d = graph_of(n={"min": 0})
    x = graph.add_input((d["n"],), np.float32)
    where = graph.add("nonzero", x)
    graph.outputs = [graph.add("reduce_sum", where, axes=(0, 1))]
    assert evaluate(graph, [np.array([0, 1, 0, 2], np.float32)], {"n": 4})[0] == 4


# ---- value rules


def test_shape_chain_folds_to_dims():
    """Shape -> Gather -> arithmetic -> Concat, as ONNX exporters write it."""
    graph, d = graph_of(b={}, s={})
    b, s = (graph.add("dim", expr=d[n], dtype=np.dtype(np.int64)) for n in "bs")
    shape = graph.add("concat", *(graph.add("reshape", v, shape=(1,)) for v in (b, s)), axis=0)
    first = graph.add("take", shape, graph.constant(0, np.int64), axis=0, mode="clip")
    half = graph.add("div", graph.add("mul", s, graph.constant(4, np.int64)), graph.constant(2, np.int64))
    target = graph.add("concat", *(graph.add("reshape", v, shape=(1,)) for v in (first, half)), axis=0)
    known = propagate(graph)
    assert literal_value(known, target) == [d["b"], 2 * d["s"]]


def test_comparisons_are_decided_where_they_can_be():
    graph, d = graph_of(b={"min": 0}, s={})
    b, s = (graph.add("dim", expr=d[n], dtype=np.dtype(np.int64)) for n in "bs")
    minus_one = graph.constant(-1, np.int64)
    never = graph.add("eq", b, minus_one)
    maybe = graph.add("eq", b, s)
    picked = graph.add("select", never, minus_one, b)
    unknown = graph.add("select", maybe, minus_one, b)
    known = propagate(graph)
    assert known[never][()] == 0 and maybe not in known
    assert literal_value(known, picked) == [d["b"]] and literal_value(known, unknown) is None


def test_partly_known_tensors():
    graph, d = graph_of(b={})
    x = graph.add_input((1,), np.int64)
    b = graph.add("reshape", graph.add("dim", expr=d["b"], dtype=np.dtype(np.int64)), shape=(1,))
    both = graph.add("concat", b, x, axis=0)
    head = graph.add("slice", both, starts=(0,), limits=(1,), strides=(1,))
    known = propagate(graph)
    assert known[both].tolist() == [d["b"], None] and literal_value(known, head) == [d["b"]]
    assert literal_value(known, both) is None


def test_values_that_overflow_are_unknown():
    graph, _ = graph_of()
    big = graph.constant(2**30, np.int32)
    product = graph.add("mul", big, big)
    assert product not in propagate(graph)


def test_product_of_a_shape():
    graph, d = graph_of(b={}, s={})
    parts = [graph.add("reshape", graph.add("dim", expr=d[n], dtype=np.dtype(np.int64)), shape=(1,)) for n in "bs"]
    total = graph.add("reduce_prod", graph.add("concat", *parts, axis=0), axes=(0,))
    assert propagate(graph)[total][()] == parse("b*s")
