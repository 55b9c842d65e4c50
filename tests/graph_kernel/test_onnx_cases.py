"""Small ONNX models on which comparable systems fail: one load, the right value at every size that is legal."""

import numpy as np
import pytest

import symbolic
from graph_kernel.from_onnx import load
from symbolic import eq, le, parse
from tests.graph_kernel.onnx_harness import check_against_ort, close, ops_of, random_feeds, run
from tests.graph_kernel.onnx_harness import parse as model_of
from vm.errors import CompileError, ShapeError


def sizes(**named):
    """Every combination of sizes, as dicts."""
    out = [{}]
    for name, values in named.items():
        out = [{**d, name: v} for d in out for v in values]
    return out


def checks(graph):
    return [str(c.rel) for c in graph.scope.checks]


def shapes(graph):
    return ["[" + ", ".join(map(str, v.shape)) + "]" for v in graph.outputs]


# ---- empty inputs


def test_empty_inputs():
    model = model_of("""f (float[b, 3] x) => (float[b, 3] y, float[3] s, float[c, 3] z, float[3] m) {
        y = Add(x, x)  axes = Constant<value = int64[1] {0}>()
        s = ReduceSum<keepdims = 0>(x, axes)  z = Concat<axis = 0>(x, y)  m = ReduceMax<keepdims = 0>(x, axes) }""")
    graph = load(model)
    for b in (0, 1, 7):
        y, s, z, m = run(graph, random_feeds(model, {"b": b}))
        assert y.shape == (b, 3) and z.shape == (2 * b, 3)
        if b == 0:
            np.testing.assert_array_equal(s, np.zeros(3))
            np.testing.assert_array_equal(m, np.full(3, -np.inf))
    assert not graph.scope.checks


# ---- growing key/value caches


def test_past_and_new_keys():
    model = model_of("""f (float[b, past, 4] k, float[b, s, 4] x) => (float[b, t, 4] y, int64[1] n) {
        y = Concat<axis = 1>(k, x)  n = Shape<start = 1, end = 2>(y) }""")
    graph = check_against_ort(model, sizes(b=(1, 3), past=(0, 1, 7), s=(1, 5)))
    assert shapes(graph)[0] == "[b, past + s, 4]"


# ---- broadcasting


def test_symbolic_against_a_number():
    model = model_of("f (float[B, 16] x, float[4, 16] y) => (float[B, 16] z) { z = Add(x, y) }")
    graph = check_against_ort(model, sizes(B=(1, 4)))
    assert checks(graph) == ["B == 4 or B == 1"]
    assert shapes(graph) == ["[4, 16]"]
    for bad in (0, 3, 5):
        with pytest.raises(ShapeError, match="B == 4"):
            run(graph, random_feeds(model, {"B": bad}))


def test_three_operands_of_every_size():
    model = model_of("""f (float[a, 2] x, float[b, 2] y, float[c, 2] z) => (float[d, 2] w) {
        u = Add(x, y)  w = Mul(u, z) }""")
    graph = load(model)
    for size in sizes(a=(0, 1, 5), b=(0, 1, 5), c=(0, 1, 5)):
        feeds = random_feeds(model, size)
        try:
            expected = (feeds["x"] + feeds["y"]) * feeds["z"]
        except ValueError:
            with pytest.raises(ShapeError):
                run(graph, feeds)
            continue
        close(run(graph, feeds)[0], expected)


def test_broadcast_of_one_element_to_a_matrix():
    model = model_of("""f (float[1] v, float[1, 5] w, float[4] u) => (float[4, 5] y, float[4, 4] z)
        <int64[2] s = {4, 5}, int64[2] t = {4, 4}> { e = Expand(v, s)  y = Add(e, w)  z = Expand(u, t) }""")
    graph = check_against_ort(model, [{}])
    assert shapes(graph) == ["[4, 5]", "[4, 4]"]


def test_grouped_queries_with_a_mask():
    model = model_of("""f (float[B, 2, 3, L, L] q, float[B, 1, L, L] mask) => (float[X, 2, 3, L, L] y) {
        y = Add(q, mask) }""")
    graph = load(model)
    for size in sizes(B=(1, 2, 3), L=(0, 1, 4)):
        feeds = random_feeds(model, size)
        # [B, 1, L, L] meets axes 1 to 4, so B stands against 2: only 1 and 2 can work
        if size["B"] in (1, 2):
            close(run(graph, feeds)[0], feeds["q"] + feeds["mask"])
        else:
            with pytest.raises(ShapeError, match="B"):
                run(graph, feeds)


# ---- pooling and enlarging


UNET = """f (float[n, c, H, W] x) => (float[n, c, H, W] y) <float[4] scales = {1.0, 1.0, 2.0, 2.0}> {
    p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x)
    u = Resize<mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">(p, , scales)
    y = Add(u, x) }"""


def test_pool_enlarge_and_add():
    model = model_of(UNET)
    graph = check_against_ort(model, sizes(n=(1, 2), c=(1, 3), H=(2, 4, 16), W=(2, 6)))
    assert not {"reduce_window", "gather"} & set(ops_of(graph))
    for bad in (3, 5, 17):
        with pytest.raises(ShapeError, match="H"):
            run(graph, random_feeds(model, {"n": 1, "c": 2, "H": bad, "W": 4}))
    assert len(graph.scope.checks) == 2


# ---- names


def test_two_inputs_share_a_name():
    model = model_of("f (float[n] x, float[n] y) => (float[n] z) { z = Add(x, y) }")
    graph = load(model)
    assert not graph.scope.checks
    with pytest.raises(ShapeError, match="y"):
        run(graph, random_feeds(model, {"n": 4}) | {"y": np.zeros(6, np.float32)})


def test_unnamed_dims_are_different():
    model = model_of("f (float[a, 3] x, float[b, 3] y) => (float[c, 3] z) { z = Add(x, y) }")
    for info in model.graph.input:
        info.type.tensor_type.shape.dim[0].ClearField("dim_param")
    graph = load(model)
    first, second = (v.shape[0] for v in graph.inputs)
    assert first != second
    assert not graph.scope.equal(first, second)
    assert len(graph.scope.checks) == 1


@pytest.mark.parametrize(
    "name",
    ["batch size", "past_key_values.0", "unk__214", "1st", "a-b", "größe", "x y+", "(", "None", "?", "a`b", "max"],
)
def test_odd_names(name):
    model = model_of("f (float[n, 2] x) => (float[n, 2] y) { y = Add(x, x) }")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = name
    graph = load(model)
    assert list(graph.scope.symbols) == [name]
    assert run(graph, {"x": np.ones((3, 2), np.float32)})[0].shape == (3, 2)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("past + seq", "past + seq"),
        ("past+seq", "past + seq"),
        ("4*past", "4*past"),
        ("2*floor(past/2)", "2*(past//2)"),
        ("Max(1, past)", "max(1, past)"),
        ("(past + 7)//8", "(past + 7)//8"),
    ],
)
def test_expressions_as_dims(text, meaning):
    model = model_of("f (float[past] a, float[seq] b, float[n] c) => (float[n] d) { d = Add(c, c) }")
    model.graph.input[2].type.tensor_type.shape.dim[0].dim_param = text
    graph = load(model)
    assert graph.inputs[2].shape == (parse(meaning),)
    assert set(graph.scope.symbols) == {"past", "seq"}
    feeds = {"a": np.ones(4, np.float32), "b": np.ones(3, np.float32)}
    right = symbolic.evaluate(parse(meaning), {"past": 4, "seq": 3})
    assert run(graph, feeds | {"c": np.ones(right, np.float32)})[0].shape == (right,)
    with pytest.raises(ShapeError, match="c axis 0"):
        run(graph, feeds | {"c": np.ones(right + 1, np.float32)})


def test_a_symbol_that_only_an_expression_names():
    model = model_of("f (float[n] x) => (float[n] y) { y = Add(x, x) }")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "2*s"
    graph = load(model)
    assert run(graph, {"x": np.ones(6, np.float32)})[0].shape == (6,)
    with pytest.raises(ShapeError):
        run(graph, {"x": np.ones(5, np.float32)})


# ---- baked numbers


BAKED = """f (float[B, 48, 3] x) => (float[5, n, 144] y) <int64[3] s = {5, -1, 144}> { y = Reshape(x, s) }"""


def test_baked_reshape():
    model = model_of(BAKED)
    graph = load(model)
    (check,) = graph.scope.checks
    assert "Reshape" in check.origin
    assert shapes(graph) == ["[5, B//5, 144]"]
    for b in (0, 5, 10, 35):
        assert run(graph, random_feeds(model, {"B": b}))[0].shape == (5, b // 5, 144)
    for bad in (1, 4, 7):
        with pytest.raises(ShapeError, match="Reshape"):
            run(graph, random_feeds(model, {"B": bad}))


def test_baked_reshape_without_a_hole():
    model = model_of("f (float[B, 6] x) => (float[4, 9] y) <int64[2] s = {4, 9}> { y = Reshape(x, s) }")
    graph = load(model)
    assert checks(graph) == ["B == 6"]
    assert run(graph, random_feeds(model, {"B": 6}))[0].shape == (4, 9)


def test_baked_reshape_that_can_never_work():
    model = model_of("f (float[B, 6] x) => (float[5, 5] y) <int64[2] s = {5, 5}> { y = Reshape(x, s) }")
    with pytest.raises(CompileError, match="Reshape"):
        load(model)


# ---- dims as expressions


def test_dims_of_results():
    model = model_of("""f (float[N, 2] a, float[5, 2] b, float[B, S, 32] c, float[n, 2] d, float[m, 2] e, float[1, 1, H, 2] h)
        => (float[p, 2] o1, float[q, 32] o2, float[r, 2] o3, float[1, 1, t, 2] o4)
        <int64[2] s = {-1, 32}, float[4] scales = {1.0, 1.0, 2.0, 1.0}> {
        o1 = Concat<axis = 0>(b, a)  o2 = Reshape(c, s)  o3 = Concat<axis = 0>(d, e)
        pooled = MaxPool<kernel_shape = [2, 1], strides = [2, 1]>(h)
        o4 = Resize<coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">(pooled, , scales) }""")
    graph = check_against_ort(model, sizes(N=(1, 3), B=(2,), S=(3,), n=(4,), m=(1, 5), H=(2, 5)))
    assert shapes(graph) == ["[N + 5, 2]", "[B*S, 32]", "[m + n, 2]", "[1, 1, 2*(H//2), 2]"]


# ---- shape computations vanish


def test_shape_gather_concat_reshape():
    model = model_of("""f (float[batch, seq, 32] x) => (float[batch, seq, 4, 8] y) <int64 zero = {0}, int64 one = {1},
        int64[1] front = {0}, int64[2] tail = {4, 8}> {
        shape = Shape(x)  b = Gather(shape, zero)  s = Gather(shape, one)  b1 = Unsqueeze(b, front)  s1 = Unsqueeze(s, front)
        target = Concat<axis = 0>(b1, s1, tail)  y = Reshape(x, target) }""")
    graph = check_against_ort(model, sizes(batch=(1, 3), seq=(1, 7)))
    assert ops_of(graph) == ["reshape"]
    assert not graph.scope.checks
    assert run(graph, random_feeds(model, {"batch": 0, "seq": 5}))[0].shape == (0, 5, 4, 8)


def test_transposed_and_reshaped():
    model = model_of("""f (float[u, 4, 20] x) => (float[u, 80] y) <int64[2] s = {-1, 80}> {
        t = Transpose<perm = [2, 0, 1]>(x)  y = Reshape(t, s) }""")
    graph = check_against_ort(model, sizes(u=(1, 2, 7)))
    assert shapes(graph) == ["[u, 80]"] and not graph.scope.checks


def test_expand_as_exporters_write_it():
    model = model_of("""f (float[b, 1, s] x, int64[t] y) => (float[b, 4, s] z) <int64[3] want = {-1, 4, -1},
        int64 m1 = {-1}> {
        three = Shape(want)  ones = ConstantOfShape<value = int64[1] {1}>(three)  is = Equal(want, m1)
        target = Where(is, ones, want)  z = Expand(x, target) }""")
    graph = check_against_ort(model, sizes(b=(1, 2), s=(1, 5), t=(1,)))
    assert ops_of(graph) == ["broadcast"] and not graph.scope.checks


def test_a_condition_on_a_dim_that_is_not_decided():
    """max(s, 16) written with Where: decided at launch by arithmetic, still one program."""
    model = model_of("""f (float[s] x) => (float[t] y) <int64[1] limit = {16}, int64[1] zero = {0}> {
        n = Shape(x)  short = Less(n, limit)  target = Where(short, limit, n)  more = Sub(target, n)
        pads = Concat<axis = 0>(zero, more)  y = Pad(x, pads) }""")
    graph = check_against_ort(model, sizes(s=(1, 15, 16, 17, 40)))
    assert not graph.scope.checks


# ---- declared dims


class Spec:
    def __init__(self, name=None, min=1, max=None, multiple_of=1):
        self.name, self.min, self.max, self.multiple_of = name, min, max, multiple_of


MULTIPLE = "f (float[b] x) => (float[n, 8] y) <int64[2] s = {-1, 8}> { y = Reshape(x, s) }"


def test_a_declared_multiple_is_proved():
    graph = load(model_of(MULTIPLE), dims={"b": Spec(multiple_of=8)})
    assert not graph.scope.checks
    with pytest.raises(ShapeError):
        run(graph, {"x": np.ones(12, np.float32)})
    assert checks(load(model_of(MULTIPLE))) == ["b % 8 == 0"]


def test_dims_that_the_model_does_not_have():
    with pytest.raises(CompileError, match=r"'seq'.*'b'"):
        load(model_of(MULTIPLE), dims={"seq": Spec()})
    with pytest.raises(CompileError, match="another name"):
        load(model_of(MULTIPLE), dims={"b": Spec(name="c")})


def test_a_number_fixes_a_dim():
    graph = load(model_of(MULTIPLE), dims={"b": 16})
    assert shapes(graph) == ["[2, 8]"] and not graph.scope.symbols


def test_constraints():
    model = model_of("f (float[a] x, float[b] y) => (float[a] z) { z = Add(x, y) }")
    graph = load(model, constraints=["a == b", "a <= 9"])
    assert graph.scope.proves(eq(symbolic.symbol("a"), symbolic.symbol("b")))
    assert graph.scope.proves(le(symbolic.symbol("b"), 9))
    assert len(graph.scope.checks) == 2
    with pytest.raises(ShapeError):
        run(graph, random_feeds(model, {"a": 1, "b": 4}))
    with pytest.raises(CompileError, match="c"):
        load(model, constraints=["a == c"])


def test_initializers_that_are_inputs_too():
    model = model_of("f (float[b, 2] x) => (float[b, 2] y) <float[2] w = {1.0, 2.0}> { y = Add(x, w) }")
    extra = model.graph.input.add()
    extra.CopyFrom(model.graph.input[0])
    extra.name = "w"
    graph = load(model)
    assert [v.name for v in graph.inputs] == ["x"]


def test_outputs_keep_their_names():
    model = model_of("""f (float[b] x) => (float[b] y, float[b] z, float[b] x2, float[2] k) <float[2] w = {1.0, 2.0}> {
        y = Neg(x)  z = Identity(y)  x2 = Identity(x)  k = Identity(w) }""")
    graph = check_against_ort(model, sizes(b=(1, 3)))
    assert [v.name for v in graph.outputs] == ["y", "z", "x2", "k"]
    assert len({id(v) for v in graph.outputs}) == 4


def test_numbers_as_names():
    """Exporters number their values as the graph does."""
    model = model_of("f (float[a, b] x) => (float[a, b] y) { s = Softmax(x) y = Neg(s) }")
    names = {"x": "1", "s": "2", "y": "3"}
    for info in (*model.graph.input, *model.graph.output):
        info.name = names[info.name]
    for node in model.graph.node:
        node.input[:], node.output[:] = [names[n] for n in node.input], [names[n] for n in node.output]
    graph = check_against_ort(model, sizes(a=(1, 3), b=(2,)))
    assert [v.name for v in (*graph.inputs, *graph.outputs)] == ["1", "3"]


def test_many_layers_load():
    layer = " ".join(f"s{i} = Shape(h{i})  r{i} = Reshape(h{i}, s{i})  h{i + 1} = Add(r{i}, x)" for i in range(400))
    model = model_of(f"f (float[b, s, 8] x) => (float[b, s, 8] h400) {{ h0 = Neg(x) {layer} }}")
    graph = load(model)
    assert ops_of(graph).count("add") == 400 and not graph.scope.checks
