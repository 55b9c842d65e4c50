"""Rows 2, 4, 5, 6, 9, 10, 13, 14: no size is special, and every launch plans from its own."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import dvm
from tests.cases.registry import further, value
from tests.cases.tools import Probe, check_launch, f32, model, no_compile, one_compile, refused
from tests.e2e.harness import random

EDGES = (0, 1, 7, 127, 128, 129)  # 0, 1, a prime, around a lane row


@value(2)
def test_sizes_of_zero():
    m = model("""f (float[b, 3] x) => (float[b, 3] y, float[3] s, float[c, 3] z, float[3] m) {
        y = Add(x, x)  axes = Constant<value = int64[1] {0}>()
        s = ReduceSum<keepdims = 0>(x, axes)  z = Concat<axis = 0>(x, y)  m = ReduceMax<keepdims = 0>(x, axes) }""")
    want = lambda x: (x + x, x.sum(0), np.concatenate([x, x + x]), x.max(0, initial=-np.inf))  # noqa: E731
    with one_compile():
        program = dvm.compile(m, dims={"b": dvm.Dim(min=0, max=200)})
        with no_compile():
            for b in EDGES:
                check_launch(program, want, random((b, 3)), tol=1e-5)
    with pytest.raises(dvm.CompileError, match="b"):  # JAX wants a proof that there is a first element
        dvm.compile(lambda x: jnp.max(x), f32("b", b=(0, 9)))


def of_nothing(op, empty):
    ufunc = {"ReduceMax": np.maximum, "ReduceMin": np.minimum, "ReduceSum": np.add, "ReduceProd": np.multiply}[op]
    return Probe(
        f"{op} of nothing is {empty}",
        f"""f (float[b, n] x) => (float[b] y, float z) {{ a = Constant<value = int64[1] {{1}}>()
        y = {op}<keepdims=0>(x, a) z = {op}<keepdims=0>(x) }}""",
        lambda x: [ufunc.reduce(x, axis, initial=empty) for axis in (1, None)],
        good=[((b, n),) for b, n in itertools.product((0, 1, 5), (0, 1, 7))],
    )


ROW_2 = [of_nothing(*c) for c in (("ReduceMax", -np.inf), ("ReduceMin", np.inf), ("ReduceSum", 0), ("ReduceProd", 1))]
ROW_2 += [
    Probe(
        "a product over nothing is zero",
        lambda x, y: x @ y,
        lambda x, y: x @ y,
        [f32("b, k", b=(0, 9), k=(0, 9)), f32("k, 3", k=(0, 9))],
        good=[((0, 0), (0, 3)), ((2, 0), (0, 3)), ((0, 5), (5, 3)), ((1, 1), (1, 3))],
    ),
    Probe(
        "a softmax and a join of no rows, int and float",
        lambda x: (jax.nn.softmax(x, -1), jnp.concatenate([x, jnp.ones((1, 3), x.dtype)]), (x > 0).sum(0)),
        lambda x: (
            np.exp(x - x.max(-1, keepdims=True)) / np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True),
            np.concatenate([x, np.ones((1, 3), x.dtype)]),
            (x > 0).sum(0),
        ),
        [f32("b, 3", b=(0, 20))],
        good=[((b, 3),) for b in (0, 1, 7, 20)],
    ),
]


@further(2, "probe", ROW_2)
def test_sizes_of_zero_more(probe):
    probe.check()


@value(4)
def test_two_hundred_lengths():
    fn = lambda x: (jnp.sum(jnp.exp(-x * x) + x, axis=-1), x + 1)  # noqa: E731
    with one_compile():
        program = dvm.compile(fn, f32("3, n", n=(1, 200)))
        with no_compile():
            for n in range(1, 201):
                check_launch(program, lambda x: ((np.exp(-x * x) + x).sum(-1), x + 1), random((3, n)), tol=1e-4)


LENGTHS = [1, 2, 3, 5, 7, *range(15, 18), *range(31, 34), *range(61, 67), *range(126, 131), 255, 257]
ROW_4 = [
    Probe(
        "a running sum",
        lambda x: jnp.cumsum(x, 0) * 2,
        lambda x: np.cumsum(x.astype(np.float64), 0) * 2,
        [f32("n, 2")],
        good=[((n, 2),) for n in LENGTHS],
    ),
    Probe(
        "a product and its largest row, the length contracted",
        lambda x, y: (x @ y).max(0),
        lambda x, y: (x.astype(np.float64) @ y).max(0),
        [f32("3, n"), f32("n, 2")],
        good=[((3, n), (n, 2)) for n in LENGTHS],
    ),
    Probe(
        "ONNX, int64, transposed",
        "f (int64[n, 3] x) => (int64[3] y, int64[3, n] z) { a = Constant<value = int64[1] {1}>() t = Transpose(x) "
        "z = Mul(t, t) y = ReduceSum<keepdims = 0>(z, a) }",
        lambda x: ((x * x).sum(0), (x * x).T),
        good=[((n, 3),) for n in LENGTHS],
        dtype=np.int64,
    ),
]


@further(4, "probe", ROW_4)
def test_many_lengths_more(probe):
    probe.check()


def attention(q, k, v, mask):
    scores = jnp.einsum("hsd,htd->hst", q, k) / np.sqrt(q.shape[-1])
    return jnp.einsum("hst,htd->hsd", jax.nn.softmax(jnp.where(mask, scores, -1e30), axis=-1), v)


def expected_attention(q, k, v, mask):
    scores = np.where(mask, np.einsum("hsd,htd->hst", q, k) / np.sqrt(q.shape[-1]), -1e30)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hst,htd->hsd", weights / weights.sum(-1, keepdims=True), v)


@value(5)
def test_causal_attention_at_every_length():
    qkv = dvm.spec("2, s, 8", s=dvm.Dim(max=64))
    with one_compile():
        program = dvm.compile(
            lambda q, k, v, mask: attention(q, k, v, mask[:, :-1]), qkv, qkv, qkv, dvm.spec("s, s + 1", jnp.bool_)
        )
        with no_compile():
            for s in range(1, 65):
                q, k, v = (random((2, s, 8), seed=i) for i in range(3))
                mask = np.tril(np.ones((s, s + 1), bool))
                check_launch(program, lambda q, k, v, m: expected_attention(q, k, v, m[:, :-1]), q, k, v, mask)


ODD = [1, 2, 7, 15, 16, 17, 31, 63, 64, 65]
ROW_5 = [
    Probe(
        "an additive bias, wider and taller than the scores",
        lambda x, bias: jax.nn.softmax(x @ x.T + bias[1:, : x.shape[0]], -1),
        lambda x, bias: (e := np.exp(x @ x.T + bias[1:, : len(x)] - 9)) / e.sum(-1, keepdims=True),
        [f32("s, 4"), f32("s + 1, s + 3")],
        good=[((s, 4), (s + 1, s + 3)) for s in ODD],
        bad=[((5, 4), (6, 9))],
        names=["axis 1"],
        tolerance=1e-4,
    ),
    Probe(
        "heads with a mask of their own, from numbers",
        lambda x: jax.nn.softmax(
            jnp.where(jnp.arange(x.shape[1] + 1)[None, :-1] <= jnp.arange(x.shape[1])[:, None], x, -1e30), -1
        ),
        lambda x: (e := np.exp(np.where(np.tri(x.shape[1], dtype=bool), x, -1e30))) / e.sum(-1, keepdims=True),
        [f32("h, s, s")],
        good=[((3, s, s),) for s in ODD],
    ),
    Probe(
        "ONNX, the mask cut by Slice",
        """f (float[s, s] x, float["s + 1", "s + 1"] m) => (float[s, s] y) {
        h = Shape(x)  z = Constant<value = int64[2] {0, 0}>()  a = Constant<value = int64[2] {0, 1}>()
        c = Slice(m, z, h, a)  t = Add(x, c)  y = Softmax<axis = -1>(t) }""",
        lambda x, m: (e := np.exp(x + m[: len(x), : len(x)])) / e.sum(-1, keepdims=True),
        good=[((s, s), (s + 1, s + 1)) for s in ODD],
        bad=[((3, 3), (3, 3))],
        names=["axis"],
    ),
]


@further(5, "probe", ROW_5)
def test_wider_masks_more(probe):
    probe.check()


@value(6)
def test_past_and_new_keys():
    def fn(past, q, new):
        keys = jnp.concatenate([past, new], axis=1)
        return keys, attention(q, keys, keys, True)

    def want(past, q, new):
        keys = np.concatenate([past, new], axis=1)
        return keys, expected_attention(q, keys, keys, True)

    p, s = dvm.Dim(min=0, max=64), dvm.Dim(max=16)
    with one_compile():
        program = dvm.compile(fn, dvm.spec("2, p, 8", p=p), dvm.spec("2, s, 8", s=s), dvm.spec("2, s, 8", s=s))
        for past, new in itertools.product((0, 1, 7), (1, 5, 16)):
            check_launch(program, want, random((2, past, 8)), random((2, new, 8), seed=1), random((2, new, 8), seed=2))
    assert program.outputs[0].text[1] in ("p + s", "s + p")


def joined(axis):
    shape = ["b", "4", "2"]
    past, new = shape.copy(), shape.copy()
    past[axis], new[axis] = "p", "s"
    low = {"p": (0, 99), "s": (1, 99), "b": (1, 9)}
    used = lambda t: f32(", ".join(t), **{k: low[k] for k in t if k in low})  # noqa: E731
    at = lambda n: tuple(n if a == axis else size for a, size in enumerate((3, 4, 2)))  # noqa: E731
    return Probe(
        f"along axis {axis}",
        lambda x, y: (jnp.concatenate([x, y], axis), jnp.concatenate([x, y * 2], axis).sum(axis)),
        lambda x, y: (np.concatenate([x, y], axis), np.concatenate([x, y * 2], axis).sum(axis)),
        [used(past), used(new)],
        good=[(at(p), at(s)) for p, s in itertools.product((0, 1, 7), (1, 5))],
    )


ROW_6 = [joined(axis) for axis in (0, 1, 2)] + [
    Probe(
        "ONNX, an input of the total's size",
        """f (float[past, 2] x, float[seq, 2] y, float["past + seq"] m) => (float[t, 2] z) {
        c = Concat<axis = 0>(x, y)  one = Constant<value = int64[1] {1}>()  u = Unsqueeze(m, one)  z = Mul(c, u) }""",
        lambda x, y, m: np.concatenate([x, y]) * m[:, None],
        good=[((p, 2), (s, 2), (p + s,)) for p, s in itertools.product((0, 1, 7), (1, 5))],
        bad=[((1, 2), (5, 2), (7,))],
        names=["m", "7", "6"],
    ),
]


@further(6, "probe", ROW_6)
def test_past_and_new_more(probe):
    probe.check()


@value(9)
def test_padding_to_at_least_16():
    def fn(x):
        return jnp.pad(x, (0, jax.core.max_dim(x.shape[0], 16) - x.shape[0])) * 2

    with one_compile():
        program = dvm.compile(fn, dvm.spec("s", s=dvm.Dim(max=64)))
        with no_compile():
            for s in (1, 15, 16, 17, 64):
                check_launch(program, lambda x: np.pad(x, (0, max(len(x), 16) - len(x))) * 2, random((s,)))


ROW_9 = [
    Probe(
        "cut to at most five",
        lambda x: jnp.sin(x)[: jax.core.min_dim(x.shape[0], 5)],
        lambda x: np.sin(x)[:5],
        [f32("s", s=(1, 64))],
        good=[((s,),) for s in (1, 4, 5, 6, 17)],
    ),
    Probe(
        "the longer of two",
        lambda x, y: jnp.zeros((jax.core.max_dim(x.shape[0], y.shape[0]),)) + x[0],
        lambda x, y: np.zeros(max(len(x), len(y)), np.float32) + x[0],
        [f32("s"), f32("t")],
        good=[((1,), (5,)), ((5,), (1,)), ((3,), (3,))],
    ),
    Probe(
        "ONNX, rows padded to Max(Shape, 8)",
        """f (float[s, 2] x) => (float[t, 2] y) {
        h = Shape<end = 1>(x)  k = Constant<value = int64[1] {8}>()  m = Max(h, k)  d = Sub(m, h)
        z = Constant<value = int64[3] {0, 0, 0}>()  u = Constant<value = int64[1] {0}>()  p = Concat<axis = 0>(z, d)
        q = Constant<value = int64[2] {0, 0}>()  w = Concat<axis = 0>(q, d, u)  y = Pad(x, w) }""",
        lambda x: np.pad(x, ((0, max(len(x), 8) - len(x)), (0, 0))),
        good=[((s, 2),) for s in (0, 1, 7, 8, 9, 17)],
    ),
    Probe(
        "to the next multiple of 8, in rows of it",
        lambda x: jnp.pad(x, (0, 8 * ((x.shape[0] + 7) // 8) - x.shape[0])).reshape(-1, 8).sum(0),
        lambda x: np.pad(x, (0, -len(x) % 8)).reshape(-1, 8).sum(0),
        [f32("s")],
        good=[((s,),) for s in (1, 7, 8, 9, 17)],
    ),
]


@further(9, "probe", ROW_9)
def test_padding_more(probe):
    probe.check()


@value(10)
def test_a_size_that_equals_a_constant_of_the_model():
    fn = lambda x, g: x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * g  # noqa: E731
    want = lambda x, g: x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-6) * g  # noqa: E731
    with one_compile():
        program = dvm.compile(fn, dvm.spec("s, 256", s=dvm.Dim(max=512)), dvm.spec("256"))
        with no_compile():
            for s in (1, 255, 256, 257):
                check_launch(program, want, random((s, 256)), random((256,)))
    assert program.constraints == ['1 <= s <= 512  (Dim("s"))']


def no_relation(words):
    assert not words.graph.scope.checks and not words.graph.scope.facts


ROW_10 = [
    Probe(
        "a layer norm over 64",
        lambda x: (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5),
        lambda x: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5),
        [f32("s, 64")],
        good=[((s, 64),) for s in (1, 63, 64, 65)],
        more=no_relation,
        tolerance=1e-4,
    ),
    Probe(
        "a square product",
        lambda x, w: x @ w + w[0],
        lambda x, w: x @ w + w[0],
        [f32("s, 16"), f32("16, 16")],
        good=[((s, 16), (16, 16)) for s in (1, 15, 16, 17)],
        more=no_relation,
    ),
    Probe(
        "ONNX, a softmax over 8 of s rows",
        "f (float[s, 8] x) => (float[s, 8] y, float[8, s] z) { y = Softmax<axis = 1>(x) z = Transpose(y) }",
        lambda x: (y := np.exp(x) / np.exp(x).sum(1, keepdims=True), y.T),
        good=[((s, 8),) for s in (0, 1, 7, 8, 9)],
        more=no_relation,
    ),
]


@further(10, "probe", ROW_10)
def test_equal_to_a_constant_more(probe):
    probe.check()


def pooled(x, size, how):
    b, c, h, w = x.shape
    small = how(x.reshape(b, c, h // size, size, w // size, size), (3, 5))
    return x + small.repeat(size, 2).repeat(size, 3)


def pool_model(size, op="MaxPool"):
    return model(f"""f (float[1, 2, H, W] x) => (float[1, 2, h, w] y) {{
        p = {op}<kernel_shape = [{size}, {size}], strides = [{size}, {size}]>(x)
        scales = Constant<value = float[4] {{1.0, 1.0, {size}.0, {size}.0}}>()
        u = Resize<mode = "nearest", nearest_mode = "floor", coordinate_transformation_mode = "asymmetric">(p, , scales)
        y = Add(x, u) }}""")


@value(13)
def test_pool_enlarge_add():
    with one_compile():
        program = dvm.compile(pool_model(2), dims={n: dvm.Dim(max=32) for n in "HW"})
        with no_compile():
            for h, w in ((2, 2), (4, 6), (14, 16), (32, 2)):
                check_launch(program, lambda x: (pooled(x, 2, np.max),), random((1, 2, h, w)))
    refused(program, random((1, 2, 3, 2)), names=["H", "3"])
    refused(program, random((1, 2, 4, 7)), names=["W", "7"])


ROW_13 = [
    Probe(
        f"{op} by {size}",
        pool_model(size, op),
        lambda x, size=size, how=how: pooled(x, size, how),
        good=[((1, 2, h * size, w * size),) for h, w in ((1, 1), (2, 3), (4, 1))],
        bad=[((1, 2, size + 1, size),), ((1, 2, size, 2 * size + 1),)],
        names=["Add"],
    )
    for op, size, how in (("MaxPool", 3, np.max), ("MaxPool", 4, np.max), ("AveragePool", 2, np.mean))
] + [
    Probe(
        "every second row, repeated, taken from the input",
        "f (float[n, 3] x) => (float[n, 3] y) { a = Constant<value = int64[1] {0}>() "
        "e = Constant<value = int64[1] {9223372036854775807}>() s = Constant<value = int64[1] {2}>() "
        "h = Slice(x, a, e, a, s) u = Unsqueeze(h, o) o = Constant<value = int64[1] {1}>() y = Identity(x) }".replace(
            "u = Unsqueeze(h, o) o = Constant<value = int64[1] {1}>() y = Identity(x)",
            "o = Constant<value = int64[1] {1}>() u = Unsqueeze(h, o) d = Concat<axis = 1>(u, u) "
            "t = Constant<value = int64[2] {-1, 3}>() r = Reshape(d, t) y = Sub(x, r)",
        ),
        lambda x: x - x[::2].repeat(2, 0),
        good=[((2, 3),), ((8, 3),), ((14, 3),)],
        bad=[((3, 3),), ((7, 3),)],
        names=["Sub", "n"],
    ),
]


@further(13, "probe", ROW_13)
def test_pool_more(probe):
    probe.check()


PREFILL = (32, 1, 64, 32, 1)


@value(14)
def test_each_launch_plans_from_its_own_sizes():
    def fn(w, x):
        h = jnp.tanh(x @ w)
        return h, jax.nn.softmax(h, axis=0), h.sum(0)

    def want(w, x):
        h = np.tanh(x @ w)
        return h, np.exp(h) / np.exp(h).sum(0), h.sum(0)

    with one_compile():
        program = dvm.compile(fn, dvm.spec("8, 8"), dvm.spec("s, 8", s=dvm.Dim(max=128)))
        with no_compile():
            for s in (*PREFILL, 128, 7):
                check_launch(program, want, random((8, 8)), random((s, 8), seed=s), tol=1e-4)


ROW_14 = [
    Probe(
        "a running maximum over reversed rows",
        lambda x: lax.cummax(x[::-1], axis=0) - x,
        lambda x: np.maximum.accumulate(x[::-1], 0) - x,
        [f32("s, 3", s=(1, 64))],
        good=[((s, 3),) for s in PREFILL],
    ),
    Probe(
        "several results that keep memory, int32",
        lambda x: (x.sum(), x.reshape(-1), x.T * 2),
        lambda x: (x.sum(), x.reshape(-1), x.T * 2),
        [dvm.spec("s, 2", np.int32, s=dvm.Dim(max=64))],
        good=[((s, 2),) for s in PREFILL],
        dtype=np.int32,
    ),
    Probe(
        "ONNX, past and new",
        "f (float[p, 2] x, float[s, 2] y) => (float[t, 2] z, float[2] m) { z = Concat<axis = 0>(x, y) "
        "a = Constant<value = int64[1] {0}>() m = ReduceMax<keepdims = 0>(z, a) }",
        lambda x, y: (np.concatenate([x, y]), np.concatenate([x, y]).max(0)),
        good=[((0, 2), (32, 2)), ((32, 2), (1, 2)), ((33, 2), (1, 2)), ((0, 2), (64, 2)), ((1, 2), (1, 2))],
        dims={"p": dvm.Dim(min=0, max=64), "s": dvm.Dim(min=1, max=64)},
    ),
]


@further(14, "probe", ROW_14)
def test_plans_more(probe):
    """On the machine, whose memory stays from launch to launch; the results of all launches are held and still right at the end."""
    what = model(probe.what) if isinstance(probe.what, str) else probe.what
    program = dvm.compile(what, *probe.specs, dims=probe.dims)
    held = []
    with no_compile():
        for shapes in probe.good:
            arrays = probe.arrays(shapes)
            check_launch(program, probe.want, *arrays)
            held.append((arrays, jax.tree_util.tree_leaves(program(*arrays))))
    for arrays, results in held:
        for got, want in zip(results, jax.tree_util.tree_leaves(probe.want(*arrays)), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
