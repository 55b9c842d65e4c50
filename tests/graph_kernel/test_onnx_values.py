"""Shape computations vanish: whatever exporters compute from sizes becomes a symbol, and has the right value."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import symbolic
from graph_kernel.from_onnx import dims, load
from tests.graph_kernel.onnx_harness import check_against_ort, close, ops_of, ort, parse, random_feeds, run

SIZES = [{"a": 2, "b": 3}, {"a": 1, "b": 1}, {"a": 7, "b": 5}, {"a": 0, "b": 4}]


def arithmetic(steps):
    """A model that computes integers from the sizes a and b, the constants 0 to 3 and earlier results."""
    names = ["a", "b", "k0", "k1", "k2", "k3"]
    nodes = ["s = Shape(x) a = Gather(s, k0) b = Gather(s, k1)"]
    for i, (op, *operands) in enumerate(steps):
        args = [names[j % len(names)] for j in operands]
        result = f"v{i}"
        if op in ("Div", "Mod"):
            # the divisor is made at least 1
            nodes.append(f"d{i} = Max({args[1]}, k1) {result} = {op}({args[0]}, d{i})")
        elif op in ("Equal", "Less", "GreaterOrEqual"):
            nodes.append(f"c{i} = {op}({args[0]}, {args[1]}) {result} = Where(c{i}, {args[2]}, {args[3]})")
        elif op == "Scaled":
            nodes.append(
                f"f{i} = Cast<to=1>({args[0]}) g{i} = Mul(f{i}, half) h{i} = Floor(g{i}) {result} = Cast<to=7>(h{i})"
            )
        elif op in ("Neg", "Abs"):
            nodes.append(f"{result} = {op}({args[0]})")
        else:
            nodes.append(f"{result} = {op}({args[0]}, {args[1]})")
        names.append(result)
    constants = ", ".join(f"int64 k{i} = {{{i}}}" for i in range(4))
    return parse(
        f"f (float[a, b] x) => (int64 y) <{constants}, float half = {{0.5}}> {{ {' '.join(nodes)} y = Identity({names[-1]}) }}"
    )


STEP = st.tuples(
    st.sampled_from(
        ["Add", "Sub", "Mul", "Div", "Mod", "Max", "Min", "Equal", "Less", "GreaterOrEqual", "Scaled", "Neg", "Abs"]
    ),
    *[st.integers(0, 11)] * 4,
)


@settings(max_examples=60)
@given(st.lists(STEP, min_size=1, max_size=5))
def test_arithmetic_on_sizes(steps):
    model = arithmetic(steps)
    graph, peer = load(model), ort(model)
    assert set(ops_of(graph)) <= {"constant", "dim", "reshape"}
    for size in SIZES:
        feeds = random_feeds(model, size)
        close(run(graph, feeds)[0], peer(feeds)[0])


CHAINS = {
    "gather, unsqueeze, concat": "s = Shape(x) n = Gather(s, k0) u = Unsqueeze(n, one) y = Concat<axis=0>(u, one, u)",
    "slice of a shape": "s = Shape(x) y = Slice(s, one, two)",
    "slice backwards": "s = Shape(x) y = Slice(s, m1, m5, zero, m1)",
    "shape with start and end": "y = Shape<start=-1, end=100>(x)",
    "product of a shape": "s = Shape(x) y = ReduceProd<keepdims=1>(s)",
    "sum, max and min": "s = Shape(x) p = ReduceSum<keepdims=1>(s) q = ReduceMax<keepdims=1>(s) "
    "r = ReduceMin(s) y = Concat<axis=0>(p, q, r)",
    "size": "n = Size(x) y = Unsqueeze(n, zero)",
    "cast there and back": "s = Shape(x) i = Cast<to=6>(s) y = Cast<to=7>(i)",
    "split": "s = Shape(x) p, q = Split<num_outputs=2>(s) y = Concat<axis=0>(q, p)",
    "expand": "s = Shape(x) p = Slice(s, zero, one) three = Constant<value=int64[1] {3}>() y = Expand(p, three)",
    "tile": "s = Shape(x) y = Tile(s, two)",
    "range of a rank": "s = Shape(x) r = Shape(s) n = Squeeze(r) "
    "z = Constant<value_int=0>() o = Constant<value_int=1>() y = Range(z, n, o)",
    "reshape": "s = Shape(x) m = Constant<value=int64[2] {1, -1}>() t = Reshape(s, m) u = Squeeze(t, zero) y = Identity(u)",
    "flags": "s = Shape(x) e = Equal(s, one) n = Not(e) o = Or(e, n) a = And(o, n) y = Cast<to=7>(a)",
    "clip": "s = Shape(x) lo = Constant<value_int=2>() hi = Constant<value_int=4>() y = Clip(s, lo, hi)",
    "cumulative": "s = Shape(x) z = Constant<value_int=0>() y = CumSum(s, z)",
    "gather several": "s = Shape(x) i = Constant<value=int64[3] {1, 0, -1}>() y = Gather(s, i)",
    "halves rounded up": "s = Shape(x) f = Cast<to=1>(s) h = Constant<value_float=0.5>() g = Mul(f, h) c = Ceil(g) y = Cast<to=7>(c)",
    "quotient of floats": "s = Shape(x) f = Cast<to=1>(s) h = Constant<value_float=3.0>() g = Div(f, h) c = Floor(g) y = Cast<to=7>(c)",
}


@pytest.mark.parametrize("name", list(CHAINS))
def test_chains(name):
    numbers = "int64 k0 = {0}, int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] m1 = {-1}, int64[1] m5 = {-5}"
    model = parse(
        f"f (float[a, b] x) => (int64 y) <{numbers}> {{ {CHAINS[name].replace('Unsqueeze(n, one)', 'Unsqueeze(n, zero)')} }}"
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    graph = check_against_ort(model, SIZES)
    # the value leaves the graph as data: only then dims become nodes
    assert set(ops_of(graph)) <= {"constant", "dim", "reshape", "concat", "ne", "cast"}


def test_a_value_that_is_data_and_shape():
    model = parse("""f (float[a, b] x) => (float[a, b] y) <int64 k = {0}> {
        s = Shape(x) n = Gather(s, k) f = Cast<to=1>(n) z = Mul(x, f) y = Reshape(z, s) }""")
    graph = check_against_ort(model, SIZES)
    assert sorted(ops_of(graph)) == ["broadcast", "dim", "mul"]


def test_plain_float_constants_are_rounded():
    """0.1 + 0.2 in float32 is not the exact sum."""
    model = parse("f (float[a] x) => (float[a] y) <float p = {0.1}, float q = {0.2}> { r = Add(p, q) y = Mul(x, r) }")
    check_against_ort(model, [{"a": 3}])


def test_long_integer_constants_are_data():
    values = ", ".join(map(str, range(100)))
    model = parse(f"f (int64[a] x) => (int64 y) <int64[100] k = {{{values}}}> {{ j = Add(k, k) y = Gather(j, x) }}")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    check_against_ort(model, [{"a": 3}], low=0, high=100)


@given(st.integers(-9, 9), st.integers(-9, 9), st.integers(0, 5), st.integers(0, 5))
def test_choices_and_rounding(x, y, a, b):
    """The 0/1 expressions and divisions that stand for conditions, at every sign."""
    scope = symbolic.Scope()
    s, t = scope.declare("s", min=0), scope.declare("t", min=0)
    values = {"s": a, "t": b}
    left, right = s * 2 + x, t + y

    def value(dim):
        return symbolic.evaluate(dim, values)

    p, q = 2 * a + x, b + y
    assert value(dims.is_less(scope, left, right)) == int(p < q)
    assert value(dims.is_equal(scope, left, right)) == int(p == q)
    assert value(dims.larger(scope, left, right)) == max(p, q)
    assert value(dims.smaller(scope, left, right)) == min(p, q)
    assert value(dims.choose(dims.is_less(scope, left, right), left, right)) == min(p, q)
    found = dims.truncated_div(scope, left, t + 1)
    assert value(found) == int(np.trunc(p / (b + 1)))
    low, high = dims.slice_bounds(scope, s, x, right, 1)
    assert list(range(a))[x:q] == list(range(value(low), value(high)))


def test_attention_of_opset_23():
    """ONNX's own function bodies fold to the ops of an attention, for every batch and length."""
    model = parse(
        """f (float[b, 4, s, 8] q, float[b, 2, s, 8] k, float[b, 2, s, 8] v, float[b, 2, past, 8] pk, float[b, 2, past, 8] pv)
        => (float[b, 4, s, 8] y, float[b, 2, n, 8] o1, float[b, 2, n, 8] o2) { y, o1, o2 = Attention<is_causal=1>(q, k, v, , pk, pv) }""",
        23,
    )
    graph = load(model)
    assert not graph.scope.checks
    assert [str(d) for d in graph.outputs[1].shape] == ["b", "2", "past + s", "8"]
    for size in ({"b": 2, "s": 3, "past": 4}, {"b": 1, "s": 1, "past": 7}, {"b": 3, "s": 5, "past": 0}):
        feeds = random_feeds(model, size)
        keys = np.concatenate([feeds["pk"], feeds["k"]], 2).repeat(2, 1)
        values = np.concatenate([feeds["pv"], feeds["v"]], 2).repeat(2, 1)
        scores = feeds["q"] @ keys.swapaxes(2, 3) / np.sqrt(np.float32(8))
        s, past = size["s"], size["past"]
        scores = np.where(np.arange(past + s) <= np.arange(s)[:, None] + past, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        expected = (weights / weights.sum(-1, keepdims=True)) @ values
        close(run(graph, feeds)[0], expected.astype(np.float32))


def test_rotary_embedding_of_opset_23():
    model = parse(
        """f (float[b, 4, s, 8] x, float[50, 4] c, float[50, 4] n, int64[b, s] p) => (float[b, 4, s, 8] y) {
        y = RotaryEmbedding(x, c, n, p) }""",
        23,
    )
    graph = load(model)
    assert not graph.scope.checks
    for size in ({"b": 2, "s": 3}, {"b": 1, "s": 1}):
        feeds = random_feeds(model, size, low=0, high=50)
        cos, sin = (feeds[k][feeds["p"]][:, None] for k in ("c", "n"))
        left, right = np.split(feeds["x"], 2, -1)
        close(run(graph, feeds)[0], np.concatenate([left * cos - right * sin, left * sin + right * cos], -1))


def test_models_do_not_depend_on_node_names():
    """The same model with other names gives the same graph."""
    text = "f (float[b, 4] x) => (float[b, 4] y) { s = Shape(x) r = Reshape(x, s) y = Softmax(r) }"
    first, second = load(parse(text)), load(parse(text.replace("r =", "z =").replace("(r)", "(z)")))
    assert ops_of(first) == ops_of(second)
