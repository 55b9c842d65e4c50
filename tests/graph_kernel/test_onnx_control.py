"""If, Loop and Scan."""

import pytest

from graph_kernel.from_onnx import load
from tests.graph_kernel.onnx_harness import check_against_ort, close, ops_of, parse, random_feeds, run
from vm.errors import UnsupportedOp

SIZES = [{"a": 2, "b": 3}, {"a": 1, "b": 1}, {"a": 7, "b": 5}]


def test_if_on_data():
    graph = check_against_ort(parse("""f (float[a, b] x, float[a, b] y) => (float[a, b] z) <float zero = {0.0}> {
        m = ReduceMean<keepdims=0>(x) p = Greater(m, zero)
        z = If(p) <then_branch = t () => (float[a, b] u) { u = Add(x, y) },
                   else_branch = e () => (float[a, b] v) { w = Sub(x, y) v = Mul(w, m) }> }"""), SIZES)  # fmt: skip
    assert ops_of(graph).count("cond") == 1
    (node,) = [n for n in graph.nodes if n.op == "cond"]
    # both branches take the same operands, in the same order
    assert all(len(g.inputs) == len(node.inputs) - 1 for g in node.attrs["branches"])


def test_if_on_a_size_that_is_known():
    graph = check_against_ort(parse("""f (float[a, b, 4] x) => (float[n, 4] z) <int64 four = {4}, int64 last = {2}, int64[2] s = {-1, 4}> {
        shape = Shape(x) n = Gather(shape, last) p = Equal(n, four)
        z = If(p) <then_branch = t () => (float[n, 4] u) { u = Reshape(x, s) },
                   else_branch = e () => (float[n, 4] v) { v = Identity(x) }> }"""), SIZES)  # fmt: skip
    assert ops_of(graph) == ["reshape"]


def test_if_with_constants_and_nested():
    check_against_ort(parse("""f (float[a, b] x, bool[1] p, bool[1] q) => (float[2] z) {
        z = If(p) <then_branch = t () => (float[2] u) {
                     u = If(q) <then_branch = t2 () => (float[2] k) { k = Constant<value = float[2] {1.0, 2.0}>() },
                                else_branch = e2 () => (float[2] r) { s = ReduceSum<keepdims=0>(x) two = Constant<value=int64[1] {2}>()
                                                                      r = Expand(s, two) }> },
                   else_branch = e () => (float[2] v) { v = Constant<value = float[2] {3.0, 4.0}>() }> }"""), SIZES)  # fmt: skip


def test_if_whose_branches_differ_in_shape():
    model = parse("""f (float[a, b] x, bool p) => (float[n, b] z) {
        z = If(p) <then_branch = t () => (float[n, b] u) { u = Concat<axis=0>(x, x) },
                   else_branch = e () => (float[n, b] v) { v = Identity(x) }> }""")
    with pytest.raises(UnsupportedOp, match="If.*output 0.*in one branch"):
        load(model)


LOOP = """f (float[a, b] x, float[b] w) => (float[a, b] y, float[n, a, b] all) <int64 axis = {{0}}, bool yes = {{1}}> {{
    shape = Shape(x) n = Gather(shape, axis) {count}
    y, all = Loop({trips}, {start}, x) <body = g (int64 i, bool c, float[a, b] h) => (bool d, float[a, b] k, float[a, b] s) {{
        d = Identity(c) f = Cast<to=1>(i) t = Add(h, w) k = Mul(t, f) s = Neg(k) }}> }}"""


@pytest.mark.parametrize("start", ["", "yes"])
@pytest.mark.parametrize(("count", "trips"), [("", "n"), ("three = Constant<value_int=3>()", "three")])
def test_loop_with_a_known_number_of_trips(start, count, trips):
    graph = check_against_ort(parse(LOOP.format(count=count, trips=trips, start=start)), SIZES)
    assert "scan" in ops_of(graph) and "while" not in ops_of(graph)


@pytest.mark.parametrize("trips", ["", "limit"])
def test_loop_until_data_says_so(trips):
    model = parse(f"""f (float[a, b] x, int64 limit) => (float[a, b] y, int64 count)
        <float top = {{50.0}}, bool yes = {{1}}, int64 zero = {{0}}> {{
        y, count = Loop({trips}, yes, x, zero) <body = g (int64 i, bool c, float[a, b] h, int64 m) => (bool d, float[a, b] k, int64 o) {{
            j = Abs(h) l = Add(j, j) one = Constant<value_float=1.0>() k = Add(l, one) s = ReduceMax<keepdims=0>(k) d = Less(s, top)
            o = Identity(i) }}> }}""")  # fmt: skip
    graph = check_against_ort(model, SIZES, low=1, high=4)
    assert "while" in ops_of(graph)


def test_loop_whose_state_grows():
    model = parse("""f (float[a, b] x) => (float[n, b] y) <int64 three = {3}, bool yes = {1}> {
        y = Loop(three, yes, x) <body = g (int64 i, bool c, float[m, b] h) => (bool d, float[n, b] k) {
            d = Identity(c) k = Concat<axis=0>(h, x) }> }""")
    with pytest.raises(UnsupportedOp, match="loop variable 0 changes"):
        load(model)


@pytest.mark.parametrize(
    "attrs",
    ["", ", scan_input_directions=[1]", ", scan_output_directions=[1]", ", scan_input_axes=[1], scan_output_axes=[1]"],
)
def test_scan(attrs):
    wide = "[2, a, b]" if "axes" not in attrs else "[b, a, 2]"
    row = "[a, b]" if "axes" not in attrs else "[b, 2]"
    model = parse(f"""f (float{row} s, float{wide} x, float k) => (float{row} y, float z) {{
        y, z = Scan(s, x) <num_scan_inputs=1{attrs}, body = g (float{row} h, float{row} r) => (float{row} o, float{row} p) {{
            t = Add(h, r) o = Mul(t, k) p = Sub(o, r) }}> }}""")
    model.graph.output[1].type.tensor_type.ClearField("shape")
    check_against_ort(model, SIZES)


def test_empty_trips():
    model = parse(LOOP.format(count="none = Constant<value_int=0>()", trips="none", start="yes"))
    feeds = random_feeds(model, {"a": 2, "b": 3})
    y, rows = run(load(model), feeds)
    close(y, feeds["x"])
    assert rows.shape == (0, 2, 3)
