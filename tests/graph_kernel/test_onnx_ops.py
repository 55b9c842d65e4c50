"""Every operator that transformer exports use against ONNX Runtime: one load, sizes 1, a prime and 0 where it can run."""

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph_kernel.from_onnx import load
from tests.graph_kernel.onnx_harness import check_against_ort, close, ops_of, ort, parse, random_feeds, run
from vm.errors import ShapeError

SIZES = [{"a": 2, "b": 3}, {"a": 1, "b": 1}, {"a": 7, "b": 5}]
EMPTY = [{"a": 0, "b": 3}, {"a": 2, "b": 0}]


def unary(op, dtype="float", result="", opset=21):
    return parse(f"f ({dtype}[a, b] x) => ({result or dtype}[a, b] y) {{ y = {op}(x) }}", opset)


UNARY = [
    "Abs", "Neg", "Sign", "Floor", "Ceil", "Round", "Exp", "Sin", "Cos", "Tan", "Atan", "Sinh", "Cosh", "Tanh",
    "Asinh", "Erf", "Sigmoid", "Reciprocal", "Relu", "LeakyRelu", "Elu", "Selu", "Celu", "Mish", "Softplus",
    "Softsign", "HardSigmoid", "HardSwish", "Gelu", 'Gelu<approximate="tanh">', "LeakyRelu<alpha=0.3>",
    "Elu<alpha=0.5>", "Celu<alpha=1.5>", "HardSigmoid<alpha=0.3,beta=0.4>", "ThresholdedRelu<alpha=0.7>",
    "Shrink<lambd=0.5,bias=0.2>", "Softmax", "Softmax<axis=0>", "LogSoftmax", "LogSoftmax<axis=0>", "Identity",
    "Dropout", "LpNormalization<axis=1,p=2>", "LpNormalization<axis=0,p=1>",
    "MeanVarianceNormalization<axes=[0,1]>", "Hardmax",
]  # fmt: skip


@pytest.mark.parametrize("op", UNARY)
def test_unary(op):
    model = unary(op)
    empty = [] if op.startswith(("LogSoftmax", "Softmax", "Hardmax", "Lp", "Mean")) else EMPTY
    # the runtime divides 0 by 0 where a single element has no variance
    sizes = SIZES[::2] if op.startswith("Mean") else SIZES
    check_against_ort(model, sizes + empty)


@pytest.mark.parametrize("op", ["Sqrt", "Log", "Asin", "Acos", "Atanh", "Acosh"])
def test_unary_outside_the_domain(op):
    check_against_ort(unary(op), SIZES)


@pytest.mark.parametrize("op", ["Abs", "Neg", "Sign", "Relu"])
def test_unary_of_integers(op):
    check_against_ort(unary(op, "int32"), SIZES + EMPTY)


def test_unary_of_bools():
    check_against_ort(unary("Not", "bool"), SIZES + EMPTY)
    text = "f (float[a, b] x) => (bool[a, b] n, bool[a, b] i, bool[a, b] p)"
    check_against_ort(
        parse(text + "{ r = Round(x) y = Log(r) n = IsNaN(y) i = IsInf(y) p = IsInf<detect_negative=0>(y) }"), SIZES
    )


BROADCASTS = [
    "[a, b] x, {t}[a, b] y",
    "[a, b] x, {t}[b] y",
    "[a, b] x, {t}[1] y",
    "[a, 1] x, {t}[1, b] y",
    "[b] x, {t} y",
]


@pytest.mark.parametrize("shapes", BROADCASTS)
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Pow", "PRelu"])
def test_binary(op, shapes):
    if op == "PRelu" and shapes in (BROADCASTS[3], BROADCASTS[4]):
        pytest.skip("the slope has to broadcast to x")
    rank = "[b]" if shapes.startswith("[b]") else "[a, b]"
    first = "Abs(x)" if op == "Pow" else "Identity(x)"
    model = parse(f"f (float{shapes.format(t='float')}) => (float{rank} z) {{ u = {first} z = {op}(u, y) }}")
    check_against_ort(model, SIZES)


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Mod", "Max", "Min"])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_binary_of_integers(op, dtype):
    text = f"f ({dtype}[a, b] x, {dtype}[b] y) => ({dtype}[a, b] z)"
    # no zero may be divided by: y becomes odd
    model = parse(f"{text} <{dtype} k = {{1}}> {{ two = Add(y, y) odd = Add(two, k) z = {op}(x, odd) }}")
    check_against_ort(model, SIZES + EMPTY)


def test_mod_of_floats():
    check_against_ort(parse("f (float[a, b] x, float[b] y) => (float[a, b] z) { z = Mod<fmod=1>(x, y) }"), SIZES)


@pytest.mark.parametrize("op", ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"])
@pytest.mark.parametrize("dtype", ["float", "int64"])
def test_comparison(op, dtype):
    check_against_ort(parse(f"f ({dtype}[a, b] x, {dtype}[b] y) => (bool[a, b] z) {{ z = {op}(x, y) }}"), SIZES + EMPTY)


@pytest.mark.parametrize("op", ["And", "Or", "Xor"])
def test_logic(op):
    check_against_ort(parse(f"f (bool[a, b] x, bool[b] y) => (bool[a, b] z) {{ z = {op}(x, y) }}"), SIZES + EMPTY)


@pytest.mark.parametrize("op", ["Max", "Min", "Sum", "Mean"])
def test_variadic(op):
    check_against_ort(
        parse(f"f (float[a, b] x, float[b] y, float[a, 1] w) => (float[a, b] z) {{ z = {op}(x, y, w) }}"), SIZES
    )


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0, 3.0, -1.0, 2.5])
def test_constant_powers(power):
    text = "f (float[a, b] x) => (float[a, b] z) <float p = {POWER}> { u = Abs(x) z = Pow(u, p) }"
    check_against_ort(parse(text.replace("POWER", str(power))), SIZES)


def test_where():
    check_against_ort(
        parse("f (bool[a, 1] p, float[b] x, float[a, b] y) => (float[a, b] z) { z = Where(p, x, y) }"), SIZES
    )


@pytest.mark.parametrize("limits", ["lo, hi", ", hi", "lo", ""])
def test_clip(limits):
    check_against_ort(parse(f"f (float[a, b] x) => (float[a, b] y) <float lo = {{-1.0}}, float hi = {{0.5}}> "
                      f"{{ y = Clip(x{', ' * bool(limits)}{limits}) }}"), SIZES + EMPTY)  # fmt: skip


CASTS = [("float", 6), ("float", 7), ("float", 9), ("float", 10), ("float", 16), ("int32", 1), ("bool", 1), ("int64", 9),
         ("float16", 1), ("bool", 7), ("int64", 6)]  # fmt: skip


@pytest.mark.parametrize(("source", "to"), CASTS)
def test_cast(source, to):
    result = {1: "float", 6: "int32", 7: "int64", 9: "bool", 10: "float16", 16: "bfloat16"}[to]
    back = "y = Cast<to=1>(z)" if to == 16 else "y = Identity(z)"
    result = "float" if to == 16 else result
    check_against_ort(
        parse(f"f ({source}[a, b] x) => ({result}[a, b] y) {{ z = Cast<to={to}>(x) {back} }}"), SIZES + EMPTY
    )


# ---- reductions

REDUCTIONS = ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSumExp", "SumSquare"]


@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("axes", [[0], [1], [-1], [0, 1], []])
def test_reduce(op, keep, axes):
    result = "[a, b]" if keep else "[]" if len(axes) != 1 else "[b]" if axes == [0] else "[a]"
    given = f"<int64[{len(axes)}] axes = {{{', '.join(map(str, axes))}}}>" if axes else ""
    call = f"Reduce{op}<keepdims={keep}>(x{', axes' if axes else ''})"
    model = parse(f"f (float[a, b] x) => (float{result} y) {given} {{ y = {call} }}")
    check_against_ort(model, SIZES)
    if op not in ("Mean", "Max", "Min") and axes in ([0], [1]):
        graph = load(model)
        for size in EMPTY:
            (got,) = run(graph, random_feeds(model, size))
            assert got.size == 0 or np.isfinite(got).all() or op == "LogSumExp"


def test_reduce_by_attribute_and_not_at_all():
    check_against_ort(parse("f (float[a, b] x) => (float[a] y) { y = ReduceMax<axes=[1], keepdims=0>(x) }", 17), SIZES)
    check_against_ort(parse("f (float[a, b] x) => (float[a, b] y) { y = ReduceSum<noop_with_empty_axes=1>(x) }"), SIZES)
    check_against_ort(parse("f (int32[a, b] x) => (int32[] y) { y = ReduceSum<keepdims=0>(x) }"), SIZES)
    check_against_ort(parse("f (int64[a, b] x) => (int64[a, b] y) <int64[1] k = {1}> { y = ReduceMax(x, k) }"), SIZES)


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("axis", [0, -1])
def test_arg(op, last, axis):
    text = f"f (float[a, b] x) => (int64[a, b] y) {{ r = Round(x) y = {op}<axis={axis}, select_last_index={last}>(r) }}"
    check_against_ort(parse(text), SIZES)


@pytest.mark.parametrize("attrs", ["", "<exclusive=1>", "<reverse=1>", "<exclusive=1, reverse=1>"])
@pytest.mark.parametrize("axis", [0, -1])
def test_cumsum(attrs, axis):
    check_against_ort(
        parse(f"f (float[a, b] x) => (float[a, b] y) <int64 k = {{{axis}}}> {{ y = CumSum{attrs}(x, k) }}"), SIZES
    )


# ---- products


@pytest.mark.parametrize(
    "shapes",
    ["[a, b] x, float[b, a] y", "[a, b] x, float[b] y", "[b] x, float[b, a] y", "[b] x, float[b] y",
     "[c, a, b] x, float[b, 4] y", "[c, a, b] x, float[c, b, 4] y", "[2, c, a, b] x, float[1, 1, b, 4] y",
     "[a, b] x, float[c, b, 4] y", "[c, 1, a, b] x, float[2, b, 4] y", "[b] x, float[c, b, 4] y", "[c, a, b] x, float[b] y"],
)  # fmt: skip
def test_matmul(shapes):
    model = parse(f"f (float{shapes}) => (float z) {{ z = MatMul(x, y) }}")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    check_against_ort(model, [{**s, "c": c} for s, c in zip(SIZES, (3, 1, 2), strict=True)])


@pytest.mark.parametrize("attrs", ["", "<transA=1>", "<transB=1>", "<transA=1, transB=1>", "<alpha=0.5, beta=2.0>"])
@pytest.mark.parametrize("bias", ["", "[n]", "[m, 1]", "[1]", " "])
def test_gemm(attrs, bias):
    x = "[k, m]" if "transA" in attrs else "[m, k]"
    y = "[n, k]" if "transB" in attrs else "[k, n]"
    extra, use = (f", float{bias} c", ", c") if bias else ("", "")
    model = parse(f"f (float{x} x, float{y} y{extra}) => (float[m, n] z) {{ z = Gemm{attrs}(x, y{use}) }}")
    check_against_ort(model, [{"m": 2, "k": 3, "n": 4}, {"m": 1, "k": 7, "n": 1}])


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [("ij,jk->ik", "[a, b] x, float[b, 4] y"), ("bhid,bhjd->bhij", "[2, a, b, 4] x, float[2, a, 3, 4] y"),
     ("...ij,...jk->...ik", "[a, 2, b] x, float[a, b, 3] y"), ("ij->ji", "[a, b] x"), ("ij->i", "[a, b] x"), ("ii->i", "[a, a] x"),
     ("i,j->ij", "[a] x, float[b] y"), ("bij,bj->bi", "[2, a, b] x, float[2, b] y"), ("ij,ij->", "[a, b] x, float[a, b] y"),
     ("...d,d->...", "[a, b, 4] x, float[4] y"), ("ij,jk", "[a, b] x, float[b, 2] y"), ("ij", "[a, b] x"),
     ("ij,jk,kl->il", "[a, b] x, float[b, 3] y, float[3, a] w"), ("...ij,...jk->...ik", "[1, 2, b] x, float[a, b, 3] y")],
)  # fmt: skip
def test_einsum(equation, shapes):
    names = ", ".join(n for n in ("x", "y", "w") if f" {n}" in shapes)
    model = parse(f'f (float{shapes}) => (float z) {{ z = Einsum<equation="{equation}">({names}) }}')
    model.graph.output[0].type.tensor_type.ClearField("shape")
    graph, peer = load(model), ort(model)
    for size in SIZES:
        feeds = random_feeds(model, size)
        expected = np.einsum(equation, *feeds.values())
        close(run(graph, feeds)[0], expected.astype(np.float32))
        if equation != "ij->ji":
            close(expected.astype(np.float32), np.asarray(peer(feeds)[0]))


# ---- normalisation


@pytest.mark.parametrize("axis", [-1, 1, 0])
@pytest.mark.parametrize("bias", ["", ", bias"])
def test_layer_norm(axis, bias):
    scale = {-1: "[b]", 1: "[3, b]", 0: "[a, 3, b]"}[axis]
    text = f"f (float[a, 3, b] x, float{scale} w, float{scale} bias) => (float[a, 3, b] y)"
    check_against_ort(parse(f"{text} {{ y = LayerNormalization<axis={axis}, epsilon=0.01>(x, w{bias}) }}"), SIZES)


def test_layer_norm_statistics():
    text = "f (float[a, b] x, float[b] w) => (float[a, b] y, float[a, 1] m, float[a, 1] i)"
    check_against_ort(parse(text + "{ y, m, i = LayerNormalization<epsilon=0.01>(x, w) }"), SIZES)


def test_rms_norm():
    model = parse("f (float[a, b] x, float[b] w) => (float[a, b] y) { y = SimplifiedLayerNormalization(x, w) }")
    check_against_ort(model, SIZES)


def test_group_and_instance_and_batch_norm():
    sizes = [{"a": 2, "b": 3}, {"a": 1, "b": 5}]
    head = "f (float[a, 4, b, 3] x, float[4] w, float[4] v) => (float[a, 4, b, 3] y)"
    check_against_ort(parse(head + "{ y = GroupNormalization<num_groups=2>(x, w, v) }"), sizes)
    check_against_ort(parse(head + "{ y = InstanceNormalization(x, w, v) }"), sizes)
    model = parse(head + "{ m = Abs(w) s = Abs(v) y = BatchNormalization(x, w, v, w, s) }")
    check_against_ort(model, sizes)
    check_against_ort(parse("f (float[a, 8, b, 3] x) => (float[a, 8, b, 3] y) { y = LRN<size=3>(x) }"), sizes)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Gelu", "ReduceMean", "ReduceSum"])
def test_half_precision_is_computed_in_float32(op):
    graph = load(parse(f"f (float16[a, b] x) => (float16[a, b] y) {{ y = {op}(x) }}"))
    for node in graph.nodes:
        if node.op in ("exp", "reduce_sum", "erf", "log"):
            assert node.output.dtype == np.float32
    assert graph.outputs[0].dtype == np.float16


# ---- indexing


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather(axis):
    text = f"f (float[5, 6, 7] x, int64[a, b] i) => (float y) {{ y = Gather<axis={axis}>(x, i) }}"
    model = parse(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    check_against_ort(model, SIZES + EMPTY, low=-5, high=5)


@pytest.mark.parametrize("idx", ["int64 i = {1}", "int64 i = {-1}", "int64[1] i = {0}", "int64[3] i = {0, 2, 1}",
                                 "int64[2] i = {1, 2}", "int64[2, 2] i = {0, 1, 2, -1}", "int64[2] i = {0, 2}"])  # fmt: skip
@pytest.mark.parametrize("axis", [0, 1])
def test_gather_of_constants(idx, axis):
    model = parse(f"f (float[a, 3] x) => (float y) <{idx}> {{ y = Gather<axis={axis}>(x, i) }}")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    check_against_ort(model, [{"a": 3}, {"a": 7}])


def test_gather_of_a_range_is_a_slice():
    text = """f (float[8, 3] table, float[b, s] x) => (float[b, s, 3] y) <int64 zero = {0}, int64 one = {1}> {
        shape = Shape(x) n = Gather(shape, one) r = Range(zero, n, one) rows = Gather(table, r) k = Constant<value=int64[3] {0, 0, 3}>()
        e = Shape(x) three = Constant<value=int64[1] {3}>() t = Concat<axis=0>(e, three) y = Expand(rows, t) }"""
    graph = check_against_ort(parse(text), [{"b": 1, "s": 8}, {"b": 3, "s": 2}])
    assert "take" not in ops_of(graph) and "iota" not in ops_of(graph)
    assert [str(c.rel) for c in graph.scope.checks] == ["s <= 8"]
    with pytest.raises(ShapeError, match="s <= 8"):
        run(graph, {"table": np.zeros((8, 3), np.float32), "x": np.zeros((1, 9), np.float32)})


def test_gather_of_a_flattened_grid():
    """mask[arange(n)[:, None], arange(m)] as exporters without GatherND write it."""
    text = """f (float[n, w] mask, float[n, m] x) => (float[n, m] y) <int64 zero = {0}, int64 one = {1}, int64[1] last = {1},
        int64[1] flat = {-1}> {
        s = Shape(x) w2 = Shape(mask) n2 = Gather(s, zero) m2 = Gather(s, one) width = Gather(w2, one)
        i = Range(zero, n2, one) j = Range(zero, m2, one) i2 = Unsqueeze(i, last) r = Mul(i2, width) k = Add(r, j)
        f = Reshape(mask, flat) g = Gather(f, k) y = Mul(g, x) }"""
    graph = check_against_ort(parse(text), [{"n": 2, "w": 5, "m": 3}, {"n": 1, "w": 4, "m": 4}])
    assert sorted(ops_of(graph)) == ["mul", "reshape", "reshape", "slice"]
    assert [str(c.rel) for c in graph.scope.checks] == ["m <= w"]


def test_gather_elements():
    text = "f (float[7, 9] x, int64[a, b] i) => (float[a, b] y) { y = GatherElements<axis=1>(x, i) }"
    check_against_ort(parse(text), SIZES, low=-9, high=9)


@pytest.mark.parametrize(("data", "idx", "batch"), [("[4, 5, 6]", "[a, b, 2]", 0), ("[4, 5, 6]", "[a, 3]", 0),
                                                   ("[4, 5, 6]", "[a, b, 1]", 0), ("[a, 5, 6]", "[a, b, 1]", 1),
                                                   ("[a, b, 6]", "[a, b, 1]", 2), ("[a, 5, 6]", "[a, 2]", 1)])  # fmt: skip
def test_gather_nd(data, idx, batch):
    model = parse(f"f (float{data} x, int64{idx} i) => (float y) {{ y = GatherND<batch_dims={batch}>(x, i) }}")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    check_against_ort(model, SIZES, low=-4, high=4)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatter(reduction):
    text = "f (float[7, 9] x, int64[a, b] i, float[a, b] u) => (float[7, 9] y) "
    model = parse(text + f'{{ y = ScatterElements<axis=1, reduction="{reduction}">(x, i, u) }}')
    if reduction == "none":
        graph = load(model)
        feeds = random_feeds(model, {"a": 3, "b": 4}) | {"i": np.tile(np.arange(-2, 2), (3, 1))}
        close(run(graph, feeds)[0], ort(model)(feeds)[0])
        return
    check_against_ort(model, SIZES, low=-9, high=9)
    text = "f (float[7, 9] x, int64[a, 1] i, float[a, 9] u) => (float[7, 9] y) "
    check_against_ort(parse(text + f'{{ y = ScatterND<reduction="{reduction}">(x, i, u) }}'), SIZES, low=-7, high=7)


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_one_hot(axis):
    model = parse(f"""f (int64[a, b] i) => (float y) <int64 depth = {{6}}, float[2] values = {{-1.0, 2.0}}> {{
        y = OneHot<axis={axis}>(i, depth, values) }}""")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    check_against_ort(model, SIZES + EMPTY, low=-6, high=8)


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", ["", ", k"])
def test_trilu(upper, k):
    text = f"f (float[2, a, b] x) => (float[2, a, b] y) <int64 k = {{1}}> {{ y = Trilu<upper={upper}>(x{k}) }}"
    check_against_ort(parse(text), SIZES + EMPTY)


@pytest.mark.parametrize("largest", [0, 1])
def test_top_k(largest):
    text = f"f (float[a, b] x) => (float[a, 2] v, int64[a, 2] i) <int64[1] k = {{2}}> {{ v, i = TopK<largest={largest}>(x, k) }}"
    check_against_ort(parse(text), [{"a": 3, "b": 5}, {"a": 1, "b": 2}])


def test_reverse_sequence():
    text = "f (float[4, a, b] x, int64[a] n) => (float[4, a, b] y) { y = ReverseSequence(x, n) }"
    check_against_ort(parse(text), SIZES, low=1, high=5)


# ---- movement


SLICES = ["0, 2, 1", "1, 9223372036854775807, 1", "-2, 9223372036854775807, 1", "0, -1, 1", "-3, -1, 2", "0, 100, 2",
          "-1, -9223372036854775808, -1", "5, 0, -2", "3, 1, 1", "-100, 1000000000, 3", "2, -100, -1"]  # fmt: skip


@pytest.mark.parametrize("bounds", SLICES)
def test_slice(bounds):
    start, end, step = bounds.split(", ")
    model = parse(f"""f (float[a, b] x) => (float[n, b] y) <int64[1] s = {{{start}}}, int64[1] e = {{{end}}},
        int64[1] axes = {{0}}, int64[1] step = {{{step}}}> {{ y = Slice(x, s, e, axes, step) }}""")
    check_against_ort(model, SIZES + [{"a": 4, "b": 2}, {"a": 0, "b": 3}])


@given(st.integers(-6, 6), st.integers(-6, 6), st.sampled_from([-3, -1, 1, 2]), st.integers(0, 6))
def test_slices_as_numpy_takes_them(start, end, step, size):
    model = parse(f"""f (int64[a] x) => (int64[n] y) <int64[1] s = {{{start}}}, int64[1] e = {{{end}}}, int64[1] z = {{0}},
        int64[1] t = {{{step}}}> {{ y = Slice(x, s, e, z, t) }}""")
    x = np.arange(size)
    np.testing.assert_array_equal(run(load(model), {"x": x})[0], x[start:end:step])


def test_slice_to_a_size():
    text = """f (float[a, b] x, float[c] y) => (float[a, n] z) <int64[1] zero = {0}, int64[1] one = {1}> {
        n = Shape(y) z = Slice(x, zero, n, one) }"""
    check_against_ort(parse(text), [{"a": 2, "b": 5, "c": c} for c in (0, 3, 5, 9)])


@pytest.mark.parametrize(
    "how", ["<int64[2] s = {2, 4}> { p, q = Split<axis=1>(x, s) }", "{ p, q = Split<axis=1, num_outputs=2>(x) }"]
)
def test_split(how):
    check_against_ort(parse("f (float[a, 6] x) => (float[a, m] p, float[a, n] q) " + how), SIZES)


def test_split_of_a_symbolic_axis():
    text = "f (float[a] x) => (float[m] p, float[n] q) { p, q = Split<axis=0, num_outputs=2>(x) }"
    check_against_ort(parse(text), [{"a": n} for n in (2, 5, 8)])
    text = "f (float[a] x) => (float[m] p, float[n] q) { p, q = Split(x) }"
    graph = check_against_ort(parse(text, 17), [{"a": n} for n in (2, 8)])
    with pytest.raises(ShapeError, match="a % 2 == 0"):
        run(graph, {"x": np.zeros(3, np.float32)})


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_pad(mode):
    text = f'f (float[a, b] x) => (float[m, n] y) <int64[4] p = {{1, 0, 2, 3}}> {{ y = Pad<mode="{mode}">(x, p) }}'
    check_against_ort(parse(text), [{"a": 4, "b": 5}, {"a": 3, "b": 7}])


def test_pad_with_a_value_on_some_axes():
    text = """f (float[a, b] x) => (float[a, n] y) <int64[2] p = {1, -1}, float v = {2.5}, int64[1] axes = {-1}> {
        y = Pad(x, p, v, axes) }"""
    check_against_ort(parse(text), SIZES)


MOVES = {
    "transpose": "(float[a, 3, b] x) => (float y) { y = Transpose<perm=[2, 0, 1]>(x) }",
    "reverse": "(float[a, 3, b] x) => (float y) { y = Transpose(x) }",
    "reshape": "(float[a, b, 4] x) => (float y) <int64[3] s = {0, -1, 2}> { y = Reshape(x, s) }",
    "flatten": "(float[a, 3, b] x) => (float y) { y = Flatten<axis=2>(x) }",
    "flatten0": "(float[a, 3, b] x) => (float y) { y = Flatten<axis=0>(x) }",
    "squeeze": "(float[a, 1, b] x) => (float y) <int64[1] k = {1}> { y = Squeeze(x, k) }",
    "squeeze all": "(float[1, 3, 1] x) => (float y) { y = Squeeze(x) }",
    "unsqueeze": "(float[a, b] x) => (float y) <int64[2] k = {0, -1}> { y = Unsqueeze(x, k) }",
    "expand": "(float[a, 1, b] x) => (float y) <int64[4] s = {2, 1, 3, 1}> { y = Expand(x, s) }",
    "tile": "(float[a, b] x) => (float y) <int64[2] r = {2, 3}> { y = Tile(x, r) }",
    "concat": "(float[a, b] x) => (float y) { y = Concat<axis=-1>(x, x, x) }",
    "depth": "(float[a, 8, b, 3] x) => (float y) { y = DepthToSpace<blocksize=2>(x) }",
    "depth crd": '(float[a, 8, b, 3] x) => (float y) { y = DepthToSpace<blocksize=2, mode="CRD">(x) }',
    "space": "(float[a, 2, 4, 6] x) => (float y) { y = SpaceToDepth<blocksize=2>(x) }",
    "range": "(float[a, b] x) => (int64 y) <int64 two = {2}, int64 k = {0}> "
    "{ s = Shape(x) n = Gather(s, k) m = Mul(n, two) l = Add(m, n) y = Range(n, l, two) }",
    "falling range": "(float[a, b] x) => (int64 y) <int64 step = {-2}, int64 k = {0}, int64 e = {-1}> "
    "{ s = Shape(x) n = Gather(s, k) y = Range(n, e, step) }",
    "eye": "(float[a, b] x) => (float y) { y = EyeLike<k=1>(x) }",
    "constant of shape": "(float[a, b] x) => (float y) { s = Shape(x) y = ConstantOfShape<value=float[1] {2.5}>(s) }",
    "size": "(float[a, b] x) => (int64 y) { y = Size(x) }",
    "old arange": "(float[a, b] x) => (int64 y) <int64[1] k = {0}> "
    "{ s = Shape(x) n = Gather(s, k) o = ConstantOfShape<value=int64[1] {1}>(n) z = NonZero(o) t = Transpose(z) "
    "one = Constant<value=int64[1] {1}>() y = Squeeze(t, one) }",
}  # fmt: skip


@pytest.mark.parametrize("name", list(MOVES))
def test_movement(name):
    model = parse("f " + MOVES[name])
    model.graph.output[0].type.tensor_type.ClearField("shape")
    empty = [] if name in ("reshape", "eye") else EMPTY
    check_against_ort(model, SIZES + empty)


# ---- windows


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "AveragePool<count_include_pad=1"])
@pytest.mark.parametrize("attrs", ["kernel_shape=[2, 2], strides=[2, 2]", "kernel_shape=[3, 2]", "kernel_shape=[3, 3], pads=[1, 1, 1, 1]",
                                   "kernel_shape=[3, 3], strides=[2, 2], pads=[1, 0, 1, 1]",
                                   "kernel_shape=[2, 2], ceil_mode=1, strides=[2, 2]",
                                   'kernel_shape=[3, 3], auto_pad="SAME_UPPER", strides=[2, 2]',
                                   "kernel_shape=[2, 2], dilations=[2, 2]"])  # fmt: skip
def test_pool(op, attrs):
    name, _, extra = op.partition("<")
    model = parse(f"f (float[n, 2, h, w] x) => (float y) {{ y = {name}<{extra + ', ' if extra else ''}{attrs}>(x) }}")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    check_against_ort(model, [{"n": 1, "h": 5, "w": 6}, {"n": 2, "h": 4, "w": 3}, {"n": 3, "h": 7, "w": 8}])


def test_global_pool():
    for op in ("GlobalMaxPool", "GlobalAveragePool"):
        check_against_ort(parse(f"f (float[a, 3, b, 4] x) => (float[a, 3, 1, 1] y) {{ y = {op}(x) }}"), SIZES)


CONVS = [
    "",
    "strides=[2, 2]",
    "pads=[1, 1, 0, 1]",
    "dilations=[2, 1]",
    'auto_pad="SAME_UPPER"',
    'auto_pad="SAME_LOWER", strides=[2, 1]',
]


@pytest.mark.parametrize("attrs", CONVS)
@pytest.mark.parametrize(("group", "channels"), [(1, 4), (2, 2), (4, 1)])
def test_conv(attrs, group, channels):
    settings = ", ".join(filter(None, [f"group={group}", attrs]))
    model = parse(f"""f (float[n, 4, h, w] x, float[4, {channels}, 3, 2] k, float[4] b) => (float y) {{
        y = Conv<{settings}>(x, k, b) }}""")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    graph = check_against_ort(model, [{"n": 1, "h": 6, "w": 5}, {"n": 2, "h": 7, "w": 9}])
    assert "conv" not in ops_of(graph)


@pytest.mark.parametrize(
    "attrs", ["", "strides=[2]", "pads=[1, 1]", "strides=[3], output_padding=[1]", "dilations=[2]"]
)
def test_conv_transpose(attrs):
    model = parse(
        f"f (float[n, 3, h] x, float[3, 2, 4] k) => (float y) {{ y = ConvTranspose{f'<{attrs}>' if attrs else ''}(x, k) }}"
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    check_against_ort(model, [{"n": 1, "h": 6}, {"n": 2, "h": 3}])


RESIZES = [("nearest", "asymmetric", "floor", 2.0), ("nearest", "half_pixel", "round_prefer_floor", 3.0),
           ("linear", "half_pixel", "floor", 2.0),
           ("linear", "align_corners", "floor", 1.5), ("nearest", "asymmetric", "ceil", 1.5), ("cubic", "half_pixel", "floor", 2.0),
           ("linear", "asymmetric", "floor", 0.5), ("linear", "pytorch_half_pixel", "floor", 0.5)]  # fmt: skip


@pytest.mark.parametrize(("mode", "coordinates", "rounding", "scale"), RESIZES)
def test_resize(mode, coordinates, rounding, scale):
    model = parse(f"""f (float[1, 1, h, w] x) => (float y) <float[4] s = {{1.0, 1.0, {scale}, {scale}}}> {{
        y = Resize<mode="{mode}", coordinate_transformation_mode="{coordinates}", nearest_mode="{rounding}">(x, , s) }}""")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    # where scaled sizes are not whole, the runtime and ONNX's reference disagree about what align_corners means
    check_against_ort(model, [{"h": 4, "w": 6}, {"h": 2, "w": 8}])


def test_resize_to_the_size_of_another():
    model = parse("""f (float[n, c, h, w] x, float[n, c, p, q] y) => (float z) <int64[4] two = {1, 1, 2, 2}> {
        s = Shape(y) t = Mul(s, two)
        z = Resize<mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor">(x, , , t) }""")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    check_against_ort(
        model, [{"n": 1, "c": 2, "h": 2, "w": 3, "p": 4, "q": 3}, {"n": 1, "c": 1, "h": 4, "w": 4, "p": 4, "q": 5}]
    )


def test_resize_by_scaled_floats():
    """How exporters write interpolate(scale_factor=2): Shape, Cast to float, Mul, Floor, Cast back."""
    model = parse("""f (float[n, 2, h, w] x) => (float z) <float f = {2.0}, int64[1] zero = {0}, int64[1] two = {2}, int64[1] four = {4}> {
        s = Shape(x) head = Slice(s, zero, two) tail = Slice(s, two, four) t = Cast<to=1>(tail) u = Mul(t, f) v = Floor(u)
        w2 = Cast<to=7>(v) sizes = Concat<axis=0>(head, w2)
        z = Resize<mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor">(x, , , sizes) }""")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    graph = check_against_ort(model, [{"n": 1, "h": 2, "w": 3}, {"n": 2, "h": 5, "w": 1}])
    assert [str(d) for d in graph.outputs[0].shape] == ["n", "2", "2*h", "2*w"]
    assert set(ops_of(graph)) == {"reshape", "broadcast"}


# ---- recurrent cells


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(
    ("kind", "gates", "extra"), [("RNN", 1, ""), ("GRU", 3, ""), ("GRU", 3, ", linear_before_reset=1"), ("LSTM", 4, "")]
)
def test_recurrent(kind, gates, extra, direction):
    d = 2 if direction == "bidirectional" else 1
    cell, use, out = (f", float[{d}, b, 3] c", ", c", f", float[{d}, b, 3] yc") if kind == "LSTM" else ("", "", "")
    model = parse(f"""f (float[t, b, 2] x, float[{d}, {3 * gates}, 2] w, float[{d}, {3 * gates}, 3] r, float[{d}, {6 * gates}] s,
        int32[b] n, float[{d}, b, 3] h{cell}) => (float[t, {d}, b, 3] y, float[{d}, b, 3] yh{out}) {{
        y, yh{", yc" if out else ""} = {kind}<hidden_size=3, direction="{direction}"{extra}>(x, w, r, s, n, h{use}) }}""")
    check_against_ort(model, [{"t": 5, "b": 2}, {"t": 3, "b": 4}, {"t": 7, "b": 1}], low=1, high=4)


# ---- operators of ONNX Runtime


FUSED = {
    "gelu": "(float[a, b] x) => (float[a, b] y) { y = com.microsoft.Gelu(x) }",
    "quick gelu": "(float[a, b] x) => (float[a, b] y) { y = com.microsoft.QuickGelu(x) }",
    "bias gelu": "(float[a, b] x, float[b] c) => (float[a, b] y) { y = com.microsoft.BiasGelu(x, c) }",
    "fast gelu": "(float[a, b] x, float[b] c) => (float[a, b] y) { y = com.microsoft.FastGelu(x, c) }",
    "matmul": "(float[a, b] x, float[a, 3] w) => (float[b, 3] y) { y = com.microsoft.FusedMatMul<transA=1, alpha=0.5>(x, w) }",
    "skip norm": "(float[a, 2, b] x, float[a, 2, b] s, float[b] g, float[b] h, float[b] c) => (float[a, 2, b] y) "
    "{ y = com.microsoft.SkipLayerNormalization<epsilon=0.01>(x, s, g, h, c) }",
    "skip rms": "(float[a, 2, b] x, float[a, 2, b] s, float[b] g) => (float[a, 2, b] y, float[a, 2, b] t) "
    "{ y, m, i, t = com.microsoft.SkipSimplifiedLayerNormalization<epsilon=0.01>(x, s, g) }",
}


@pytest.mark.parametrize("name", list(FUSED))
def test_fused(name):
    text = FUSED[name].replace("y, m, i, t =", "y, , , t =")
    check_against_ort(parse("f " + text), SIZES)


# ---- broadcasting at random


@given(st.data())
def test_broadcasting_as_numpy_does(data):
    """Shapes of up to 4 axes over four names and 1; every name 0, 1 or 3."""
    names = st.sampled_from(["a", "b", "c", "d", "1", "3"])
    shapes = [data.draw(st.lists(names, max_size=4), label="shape") for _ in range(3)]
    sizes = {n: data.draw(st.sampled_from([0, 1, 3]), label=n) for n in "abcd"}
    inputs = ", ".join(f"float[{', '.join(s)}] x{i}" for i, s in enumerate(shapes))
    model = parse(f"f ({inputs}) => (float y) {{ u = Add(x0, x1) y = Mul(u, x2) }}")
    for info, shape in zip(model.graph.input, shapes, strict=True):
        info.type.tensor_type.CopyFrom(
            onnx.helper.make_tensor_type_proto(1, [int(d) if d.isdigit() else d for d in shape]).tensor_type
        )
    feeds = random_feeds(model, sizes)
    try:
        expected = (feeds["x0"] + feeds["x1"]) * feeds["x2"]
    except ValueError:
        expected = None
    try:
        graph = load(model)
    except Exception:
        # refused at load: then no assignment at all may work, in particular not this one
        assert expected is None
        raise
    if expected is None:
        with pytest.raises(ShapeError):
            run(graph, feeds)
    else:
        close(run(graph, feeds)[0], np.asarray(expected, np.float32))
