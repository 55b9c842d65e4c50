"""Small inputs on which comparable systems fail, through the public API: one compile, the right value at every legal size, and an error
that names what is wrong at the others. Each kind has inputs of its own besides the reported one; those run on the tests' tile machine."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from jax import lax
from onnx import helper, parser

import dvm
from codegen import compile_graph
from dvm import pipeline
from graph_kernel import passes
from tests.e2e.harness import Compiled, check, random, simulate, spec


def model(body, opset=18, ir=9):
    return parser.parse_model(f'<ir_version: {ir}, opset_import: ["": {opset}]> {body}')


class Words:
    """A function or a model compiled to words once and run on the tests' tile machine."""

    def __init__(self, what, *specs, dims=None, constraints=()):
        if isinstance(what, onnx.ModelProto):
            traced = pipeline.from_onnx_model(what, dims, constraints)
        else:
            traced = pipeline.from_function(what, specs, {}, dims, constraints)
        passes.optimise(traced.graph)
        self.graph, self.program = traced.graph, compile_graph(traced.graph)

    def __call__(self, *arrays):
        return simulate(self.program, *(np.asarray(a) for a in arrays))

    @property
    def host_ops(self):
        return [s for s in self.program.steps if type(s).__name__ == "HostStep"]


def refused(call, *arrays, names=()):
    with pytest.raises(dvm.ShapeError) as error:
        call(*arrays)
    for name in names:
        assert name in str(error.value), str(error.value)


# --- 1, 12: symbols that only an expression of theirs shows


def test_row_1_equal_dims():
    program = dvm.compile(
        lambda x, y: x + y, dvm.spec("2*a", jnp.float32), dvm.spec("2*b", jnp.float32), constraints=["a == b"]
    )
    for n in (2, 14, 64):
        x, y = random((n,)), random((n,), seed=1)
        check(program(x, y), x + y)
    refused(program, random((3,)), random((3,)), names=["x", "axis 0"])
    refused(program, random((4,)), random((6,)), names=["y"])


@pytest.mark.parametrize(
    "fn, texts, good, bad",
    [
        (lambda x: x.reshape(-1, 3) * 2, ["3*a"], [(3,), (21,)], [(4,)]),
        (lambda x: x * 2, ["4*a + 1"], [(5,), (9,)], [(4,), (6,)]),
        (lambda x, y: (x[:, None] + y[None], x.sum()), ["2*s", "s"], [(2, 1), (14, 7)], [(3, 1), (4, 3)]),
        (lambda x: x[1:] - x[:-1], ["2*s"], [(2,), (6,)], [(7,)]),
    ],
)
def test_rows_1_and_12_more(fn, texts, good, bad):
    words = Words(fn, *(dvm.spec(t, jnp.float32) for t in texts))
    for sizes in good:
        arrays = [random((n,)) for n in sizes]
        for a, b in zip(words(*arrays), jax.tree_util.tree_leaves(fn(*map(jnp.asarray, arrays))), strict=True):
            check(a, b)
    for sizes in bad:
        refused(words, *(random((n,)) for n in sizes), names=["axis 0"])


# --- 2: sizes of 0


def test_row_2_size_zero():
    def fn(x, y):
        return x + y, jnp.sum(x), jnp.sum(x, 0), jnp.concatenate([x, y]), jnp.prod(x), jnp.any(x > 0)

    program = Compiled(fn, *[spec("b, 3", b=(0, 300))] * 2)
    for b in (0, 1, 7, 16):
        program.check(random((b, 3)), random((b, 3), seed=1))
    with pytest.raises(dvm.CompileError, match="b"):
        dvm.compile(lambda x: jnp.max(x), spec("b", b=(0, 9)))


@pytest.mark.parametrize(
    "op, empty", [("ReduceMax", -np.inf), ("ReduceMin", np.inf), ("ReduceSum", 0), ("ReduceProd", 1)]
)
def test_row_2_reductions_of_nothing(op, empty):
    words = Words(
        model(
            f"f (float[b, n] x) => (float[b] y, float z) {{ a = Constant<value = int64[1] {{1}}>() y = {op}<keepdims=0>(x, a) z = {op}<keepdims=0>(x) }}"  # noqa: E501
        )
    )
    want = getattr(np, {"ReduceMax": "max", "ReduceMin": "min", "ReduceSum": "sum", "ReduceProd": "prod"}[op])
    for b, n in itertools.product((0, 1, 5), (0, 1, 7)):
        x = random((b, n))
        y, z = words(x)
        check(y, np.full(b, empty, np.float32) if n == 0 else want(x, 1).astype(np.float32), 1e-5)
        check(z, np.float32(empty) if 0 in (b, n) else want(x).astype(np.float32), 1e-5)


# --- 3: multiples


def test_row_3_multiple_of_eight():
    program = Compiled(
        lambda x: x.reshape(-1, 8) * 2, dvm.spec("b", jnp.float32, b=dvm.Dim("b", max=512, multiple_of=8))
    )
    for b in (8, 16, 256):
        program.check(random((b,)))
    refused(program.program, random((12,)), names=["x", "8"])


@pytest.mark.parametrize("c", [8, 16, 40])
def test_row_3_more(c):
    def fn(x):
        n = x.shape[0]
        return (
            jnp.zeros((n % 4 + 1,)),
            jnp.zeros(((2 * n) % 16 + 2,)),
            x.reshape(4, -1, 2).sum(1),
            x.reshape(n // 8, 8).T,
        )

    words = Words(fn, dvm.spec("c", jnp.float32, c=dvm.Dim("c", multiple_of=8)))
    assert not words.graph.scope.checks or all(
        "c" not in str(k.rel) or "%" not in str(k.rel) for k in words.graph.scope.checks
    )
    x = random((c,))
    for a, b in zip(words(x), fn(jnp.asarray(x)), strict=True):
        check(a, b, 1e-5)


# --- 4, 10, 14: no size is special


def test_rows_4_10_14_every_length_runs():
    def rms(x, g):
        return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * g, jnp.sum(x)

    program = Compiled(rms, spec("s, 256", s=(1, 300)), spec("256"), reference=rms)
    g = random((256,))
    for s in (32, 1, 64, 32, 256, 255, 257, 17, 300):
        x = random((s, 256), seed=s)
        y = x / np.sqrt(np.mean(x.astype(np.float64) ** 2, -1, keepdims=True) + 1e-6) * g
        program.check(x, g, want=(y.astype(np.float32), np.float32(x.astype(np.float64).sum())), tolerance=1e-5)
    assert not any("!=" in line for line in program.program.constraints)


def test_row_4_two_hundred_lengths():
    program = Compiled(lambda x: (jnp.sum(jnp.sin(x) * 2, -1), x + 1), spec("n, 3", n=(1, 400)))
    for n in range(1, 400, 2):
        x = random((n, 3))
        y, z = program.run(x)
        check(y, (np.sin(x.astype(np.float64)) * 2).sum(-1).astype(np.float32), 1e-5)
        check(z, x + 1)


# --- 5, 6: attention


def attention(q, k, v, mask):
    s = jnp.einsum("bhqd,bhkd->bhqk", q, k) / 4
    s = jnp.where(mask[: q.shape[2], : k.shape[2]] > 0, s, -1e9)
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(s, -1), v)


def test_row_5_every_length_from_1_to_64():
    qkv = spec("1, 2, s, 16", s=(1, 64))
    program = Compiled(attention, qkv, qkv, qkv, spec("s + 1, s + 1", s=(1, 64)))
    for s in range(1, 65):
        q, k, v = (random((1, 2, s, 16), seed=i) for i in range(3))
        mask = np.tril(np.ones((s + 1, s + 1), np.float32))
        score = np.einsum("bhqd,bhkd->bhqk", q, k).astype(np.float64) / 4
        score = np.where(mask[:s, :s] > 0, score, -1e9)
        p = np.exp(score - score.max(-1, keepdims=True))
        want = np.einsum("bhqk,bhkd->bhqd", p / p.sum(-1, keepdims=True), v).astype(np.float32)
        check(program.run(q, k, v, mask), want, 1e-5)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_row_6_past_and_new(axis):
    shape = ["b", "4", "2"]
    past, new = shape.copy(), shape.copy()
    past[axis], new[axis] = "p", "s"
    low = {"p": (0, 99), "s": (1, 99), "b": (1, 9)}
    fn = lambda x, y: (jnp.concatenate([x, y], axis), jnp.concatenate([x, y * 2], axis).sum(axis))  # noqa: E731
    used = lambda t: spec(", ".join(t), **{k: low[k] for k in t if k in low})  # noqa: E731
    words = Words(fn, used(past), used(new))
    for p, s in itertools.product((0, 1, 7), (1, 5)):
        a, b = [3, 4, 2], [3, 4, 2]
        a[axis], b[axis] = p, s
        x, y = random(a), random(b, seed=1)
        for got, want in zip(words(x, y), fn(jnp.asarray(x), jnp.asarray(y)), strict=True):
            check(got, want, 1e-5)


# --- 7, 8, 21: broadcasting


def test_row_7_a_symbol_against_a_number():
    m = model("f (float[B, 16] x, float[4, 16] y) => (float[C, 16] z) { z = Add(x, y) }")
    program = dvm.compile(m, dims={"B": dvm.Dim("B", max=64)})
    y = random((4, 16))
    for b in (1, 4):
        x = random((b, 16), seed=1)
        check(np.asarray(program.run(None, {"x": x, "y": y})[0]), x + y)
    assert any("B" in line and "Add" in line for line in program.constraints), program.constraints
    refused(lambda x: program.run(None, {"x": x, "y": y}), random((3, 16)), names=["B"])
    with pytest.raises((dvm.CompileError, TypeError, ValueError), match="B"):
        dvm.compile(lambda x, y: x + y, dvm.spec("B, 16", jnp.float32), spec("4, 16"))


@pytest.mark.parametrize("op, fn", [("Add", np.add), ("Mul", np.multiply), ("Max", np.maximum)])
def test_row_8_three_inputs_of_any_size(op, fn):
    words = Words(model(f"f (float[a] x, float[b] y, float[c] z) => (float[d] w) {{ u = {op}(x, y) w = {op}(u, z) }}"))
    for sizes in itertools.product((0, 1, 5), repeat=3):
        arrays = [random((n,), seed=i) for i, n in enumerate(sizes)]
        try:
            want = fn(fn(*arrays[:2]), arrays[2])
        except ValueError:
            refused(words, *arrays)
        else:
            check(words(*arrays)[0], want)


def test_row_8_matrices_of_any_size():
    words = Words(
        model(
            "f (float[a, b] x, float[c, d] y, float[e] z) => (float[p, q] w) { u = Sub(x, y) v = Exp(u) w = Mul(v, z) }"
        )
    )
    for sizes in itertools.product((1, 4), (1, 3), (1, 4), (0, 1, 3), (1, 3)):
        x, y, z = random(sizes[:2]), random(sizes[2:4], seed=1), random(sizes[4:], seed=2)
        try:
            want = np.exp(x - y) * z
        except ValueError:
            refused(words, x, y, z)
        else:
            check(words(x, y, z)[0], want)


def test_row_21_broadcasts_keep_their_shape():
    def fn(v, w, u, s):
        rows = jnp.broadcast_to(v, (4, 5)) + w
        front = jnp.broadcast_to(u, (4, 4))
        return (
            rows,
            front,
            front.T,
            lax.broadcast_in_dim(u, (4, 4), (0,)),
            jnp.broadcast_to(s[:, None], (s.shape[0], s.shape[0])),
        )

    words = Words(fn, spec("1"), spec("1, 5"), spec("4"), spec("n", n=(0, 9)))
    for n in (0, 1, 4, 7):
        arrays = [random((1,)), random((1, 5)), random((4,)), random((n,))]
        for got, want in zip(words(*arrays), fn(*map(jnp.asarray, arrays)), strict=True):
            check(got, want)


# --- 9: a maximum of sizes


def test_row_9_pad_to_at_least_sixteen():
    def fn(x):
        n = jax.core.max_dim(x.shape[0], 16)
        return jnp.pad(x, ((0, n - x.shape[0]), (0, 0))) * 2

    def reference(x):
        return np.pad(x, ((0, max(len(x), 16) - len(x)), (0, 0))) * 2

    program = Compiled(fn, spec("s, 3", s=(1, 64)), reference=reference)
    for s in (15, 16, 17, 1, 64):
        program.check(random((s, 3)))
    least = Words(lambda x: jnp.sin(x)[: jax.core.min_dim(x.shape[0], 5)], spec("s", s=(1, 64)))
    for s in (1, 4, 5, 6, 17):
        check(least(random((s,)))[0], np.sin(random((s,)))[:5])
    both = Words(
        lambda x, y: jnp.zeros((jax.core.max_dim(x.shape[0], y.shape[0]),)) + 1,
        spec("s", s=(1, 64)),
        spec("t", t=(1, 64)),
    )
    for s, t in ((1, 5), (5, 1), (3, 3)):
        check(both(random((s,)), random((t,)))[0], np.ones(max(s, t), np.float32))


# --- 11, 16, 17, 18: reshapes


@pytest.mark.parametrize(
    "shape, perm, target",
    [
        ("u, 4, 20", (0, 2, 1), (-1, 80)),
        ("4, u, 20", (1, 0, 2), (-1, 80)),
        ("u, 4, 20", (2, 1, 0), (20, -1)),
        ("u, v, 6", (1, 2, 0), (-1, 2)),
    ],
)
def test_row_11_transposed_then_reshaped(shape, perm, target):
    fn = lambda x: (jnp.transpose(x, perm).reshape(target), jnp.transpose(jnp.sin(x), perm).reshape(target) * 2)  # noqa: E731
    if (target, perm) == ((-1, 2), (1, 2, 0)):
        fn = lambda x: (jnp.transpose(x, perm).reshape(x.shape[1] * 6, x.shape[0]),)  # noqa: E731
    words = Words(fn, dvm.spec(shape, jnp.float32))
    assert not words.graph.scope.checks
    for u, v in ((1, 1), (3, 2), (7, 5)):
        x = random(tuple(int(d) if d.strip().isdigit() else {"u": u, "v": v}[d.strip()] for d in shape.split(",")))
        for got, want in zip(words(x), fn(jnp.asarray(x)), strict=True):
            check(got, want)


@pytest.mark.parametrize(
    "dims, target, good, bad",
    [
        ("B, 720", "{5, -1, 144}", [1, 2, 7], []),
        ("B, 144", "{5, -1, 144}", [5, 10], [1, 4]),
        ("B, 6", "{-1, 4}", [2, 4, 0], [1, 3]),
        ("B, 3", "{2, 3}", [2], [1, 3]),
    ],
)
def test_row_16_baked_reshape(dims, target, good, bad):
    n = target.count(",") + 1
    m = model(
        f"f (float[{dims}] x) => (float[{', '.join('rst'[:n])}] y) {{ s = Constant<value = int64[{n}] {target}>() u = Sin(x) y = Reshape(u, s) }}"  # noqa: E501
    )
    m.graph.node[-1].name = "flatten_heads"
    words = Words(m)
    width = int(dims.split(",")[1])
    for b in good:
        x = random((b, width))
        check(words(x)[0], np.sin(x).reshape([int(t) for t in target[1:-1].split(",")] if b else (0, 4)))
    for b in bad:
        refused(words, random((b, width)), names=["flatten_heads"])


def test_row_16_refused_at_load():
    with pytest.raises(dvm.CompileError):
        Words(
            model("f (float[2, 7] x) => (float[r, s] y) { s = Constant<value = int64[2] {-1, 4}>() y = Reshape(x, s) }")
        )


def test_row_17_dims_of_results():
    m = model("""f (float[N] x, float[B, S, 32] y, float[n, 2] p, float[m, 2] q, float[H, 3] z)
        => (float[a] u, float[b, 32] v, float[c, 2] w, float[d, 3] t) {
        five = Constant<value = float[5] {1, 2, 3, 4, 5}>()  u = Concat<axis = 0>(five, x)
        s = Constant<value = int64[2] {-1, 32}>()  v = Reshape(y, s)  w = Concat<axis = 0>(p, q)
        one = Constant<value = int64[1] {0}>()  big = Constant<value = int64[1] {9223372036854775807}>()
        two = Constant<value = int64[1] {2}>()
        half = Slice(z, one, big, one, two)  t = Concat<axis = 0>(half, half) }""")
    words = Words(m)
    texts = [" ".join(map(str, o.text)) for o in words.program.outputs]
    assert (
        texts[0] in ("N + 5", "5 + N")
        and texts[1] == "B*S 32"
        and texts[2] in ("m + n 2", "n + m 2")
        and "//2" in texts[3]
    )
    for k in (1, 2, 7):
        x, y, p, q, z = random((k,)), random((k, 3, 32)), random((k, 2)), random((4, 2)), random((k, 3))
        u, v, w, t = words(x, y, p, q, z)
        check(u, np.concatenate([np.arange(1, 6, dtype=np.float32), x]))
        check(v, y.reshape(-1, 32))
        check(w, np.concatenate([p, q]))
        check(t, np.concatenate([z[::2], z[::2]]))


@pytest.mark.parametrize(
    "tail, want",
    [
        ("f = Concat<axis = 0>(bs, minus)", lambda x: x.reshape(x.shape[0], -1)),
        ("f = Concat<axis = 0>(minus, cs)", lambda x: x.reshape(-1, x.shape[2])),
        ("p = Mul(bs, ss)  f = Concat<axis = 0>(p, minus)", lambda x: x.reshape(x.shape[0] * x.shape[1], -1)),
        ("f = Concat<axis = 0>(ss, minus, two)", lambda x: x.reshape(x.shape[1], -1, 2)),
    ],
)
def test_row_18_shape_chains_vanish(tail, want):
    rank = 3 if "two)" in tail else 2
    m = model(f"""f (float[b, s, 6] x) => (float[{", ".join("ijk"[:rank])}] y) {{
        h = Shape(x)  zero = Constant<value = int64[1] {{0}}>()  one = Constant<value = int64[1] {{1}}>()
        two = Constant<value = int64[1] {{2}}>()
        minus = Constant<value = int64[1] {{-1}}>()  bs = Gather(h, zero)  ss = Gather(h, one)  cs = Gather(h, two)
        {tail}  r = Reshape(x, f)  y = Exp(r) }}""")
    words = Words(m)
    assert [n.op for n in words.graph.nodes if n.op not in ("exp", "reshape")] == [] and not words.host_ops
    assert len(words.program.steps) == 1
    for b, s in ((1, 1), (2, 5), (7, 3)):
        x = random((b, s, 6))
        check(words(x)[0], np.exp(want(x)))


# --- 13: pool, enlarge, add


def pool_model(size):
    return model(f"""f (float[1, 2, H, W] x) => (float[1, 2, h, w] y) {{
        p = MaxPool<kernel_shape = [{size}, {size}], strides = [{size}, {size}]>(x)
        scales = Constant<value = float[4] {{1.0, 1.0, {size}.0, {size}.0}}>()
        u = Resize<mode = "nearest", nearest_mode = "floor", coordinate_transformation_mode = "asymmetric">(p, , scales)
        y = Add(x, u) }}""")


@pytest.mark.parametrize("size", [2, 3, 4])
def test_row_13_pool_enlarge_add(size):
    words = Words(pool_model(size))
    for h, w in ((size, size), (2 * size, 3 * size), (4 * size, size)):
        x = random((1, 2, h, w))
        pooled = x.reshape(1, 2, h // size, size, w // size, size).max((3, 5))
        check(words(x)[0], x + pooled.repeat(size, 2).repeat(size, 3))
    for h, w, name in ((size + 1, size, "H"), (size, 2 * size + 1, "W")):
        refused(words, random((1, 2, h, w)), names=[name])


# --- 15, 25: names of dims


def test_row_15_two_inputs_share_a_name():
    program = dvm.compile(
        model("f (float[n] x, float[n] y) => (float[n] z) { z = Add(x, y) }"), dims={"n": dvm.Dim("n", max=64)}
    )
    check(program.run(None, {"x": random((4,)), "y": random((4,))})[0], 2 * random((4,)))
    refused(lambda: program.run(None, {"x": random((4,)), "y": random((6,))}), names=["x", "y"])
    more = Words(model("f (float[n, m] x, float[m, n] y) => (float[n, n] z) { z = MatMul(x, y) }"))
    check(more(random((2, 3)), random((3, 2)))[0], random((2, 3)) @ random((3, 2)), 1e-5)
    refused(more, random((2, 3)), random((3, 4)), names=["x", "y"])
    refused(more, random((2, 3)), random((5, 2)), names=["x", "y"])
    square = Words(model("f (float[n, n] x) => (float[n, n] z) { z = Add(x, x) }"))
    refused(square, random((2, 3)), names=["x"])


def test_row_25_unnamed_dims_are_different():
    value = helper.make_tensor_value_info
    for op, fn, ranks in (("Exp", np.exp, 1), ("Neg", np.negative, 2), ("Identity", np.array, 2)):
        inputs = [value(f"x{i}", onnx.TensorProto.FLOAT, [None] * ranks) for i in range(2)]
        outputs = [value(f"y{i}", onnx.TensorProto.FLOAT, [None] * ranks) for i in range(2)]
        nodes = [helper.make_node(op, [f"x{i}"], [f"y{i}"]) for i in range(2)]
        made = helper.make_model(
            helper.make_graph(nodes, "g", inputs, outputs), opset_imports=[helper.make_opsetid("", 18)]
        )
        words = Words(made)
        a, b = random((4, 2)[:ranks]), random((7, 5)[:ranks])
        for got, want in zip(words(a, b), (fn(a), fn(b)), strict=True):
            check(got, want)


# --- 19, 20, 22, 26


def test_row_19_shapes_used_by_two_branches():
    m = model("""f (float[b, s] x, float[s, k] w) => (float[i, j] y, float[t] z) {
        h = Shape(x)  one = Constant<value = int64[1] {1}>()  s1 = Gather(h, one)  u = Exp(x)  v = MatMul(u, w)
        l = Shape(w)  k1 = Gather(l, one)  n = Add(s1, k1)  f = ConstantOfShape(n)  z = Add(f, f)
        m2 = Constant<value = int64[1] {-1}>()  g = Concat<axis = 0>(m2, k1)  y = Reshape(v, g) }""")
    words = Words(m)
    for b, s, k in ((1, 1, 1), (3, 5, 2), (2, 7, 4)):
        x, w = random((b, s)), random((s, k))
        y, z = words(x, w)
        check(y, np.exp(x) @ w, 1e-5)
        check(z, np.zeros(s + k, np.float32))


def scaled(block):
    def fn(x, w):
        parts = x.reshape(x.shape[0], -1, block)
        scale = jnp.max(jnp.abs(parts), -1, keepdims=True) + 1
        return (parts / scale).reshape(x.shape).T @ w

    return fn


def test_row_20_block_scaling():
    fn = scaled(16)
    k = dvm.Dim("k", max=160, multiple_of=16)
    program = Compiled(fn, dvm.spec("m, k", jnp.float32, m=dvm.Dim("m", max=600), k=k), spec("m, 8", m=(1, 600)))
    for m, n in ((512, 144), (1, 16), (17, 32)):
        program.check(random((m, n)), random((m, 8), seed=1), tolerance=1e-5)
    refused(program.program, random((4, 24)), random((4, 8)), names=["k"])


@pytest.mark.parametrize("block", [4, 8, 32])
def test_row_20_more(block):
    words = Words(scaled(block), dvm.spec(f"m, {block}*k", jnp.float32), dvm.spec("m, 3", jnp.float32))
    for m, k in ((1, 1), (5, 3), (16, 2)):
        x, w = random((m, block * k)), random((m, 3), seed=1)
        check(words(x, w)[0], scaled(block)(jnp.asarray(x), jnp.asarray(w)), 1e-5)


def test_row_22_a_mask_that_fits_one_batch_only():
    m = model(
        """f (float[B, kv, rep, L, L] s, float[B, 1, L, L] mask) => (float[p, q, r, t, u] y) { y = Add(s, mask) }"""
    )
    words = Words(m)
    for b, kv, rep, n in ((1, 2, 3, 4), (1, 1, 1, 1), (2, 2, 3, 4), (3, 2, 2, 4), (2, 1, 5, 3)):
        s, mask = random((b, kv, rep, n, n)), random((b, 1, n, n), seed=1)
        try:
            want = s + mask
        except ValueError:
            refused(words, s, mask)
        else:
            if want.shape == s.shape:
                check(words(s, mask)[0], want)
    with pytest.raises((dvm.CompileError, TypeError, ValueError)):
        dvm.compile(lambda s, m: s + m, dvm.spec("B, k, r, L, L", jnp.float32), dvm.spec("B, 1, L, L", jnp.float32))


def test_row_26_both_branches_in_one_program():
    def fn(x, y):
        return lax.cond(x.mean() > 0, lambda: x + y, lambda: x - y)

    program = Compiled(fn, *[spec("b, s, f", b=(1, 9), s=(1, 99), f=(1, 99))] * 2)
    for shape in ((1, 1, 1), (2, 7, 5), (3, 17, 16)):
        for sign in (1, -1):
            program.check(np.abs(random(shape)) * sign, random(shape, seed=1))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, y: lax.cond(x.sum() > y.sum(), lambda: jnp.sin(x) @ y.T, lambda: x @ y.T),
        lambda x, y: lax.cond(x.shape[0] * x.sum() > 0, lambda: (x, y + 1), lambda: (y, x)),
        lambda x, y: jnp.where(x.mean() > 0, x + y, x - y),
    ],
)
def test_row_26_more(fn):
    words = Words(fn, *[spec("b, f", b=(1, 9), f=(1, 99))] * 2)
    for shape, sign in itertools.product(((1, 1), (5, 7)), (1, -1)):
        x, y = np.abs(random(shape)) * sign, random(shape, seed=1)
        for got, want in zip(words(x, y), jax.tree_util.tree_leaves(fn(jnp.asarray(x), jnp.asarray(y))), strict=True):
            check(got, want, 1e-5)
