"""Rows 3, 11, 16, 17, 18, 20: sizes that divide, and the dims of what comes out."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import dvm
from tests.cases.registry import further, value
from tests.cases.tools import Probe, Words, check_launch, f32, model, no_compile, one_compile, refused
from tests.e2e.harness import random


@value(3)
def test_a_declared_multiple():
    def fn(x):
        n = x.shape[0]
        halves = jnp.concatenate([x[: n // 2], x[: (n + 1) // 2]])
        return x.reshape(-1, 8).sum(-1), jnp.zeros((n % 4 + 1,)), jnp.zeros(((2 * n) % 16 + 2,)), halves + x

    def want(x):
        n = len(x)
        return x.reshape(-1, 8).sum(-1), np.zeros(1), np.zeros(2), np.concatenate([x[: n // 2], x[: (n + 1) // 2]]) + x

    with one_compile():
        program = dvm.compile(fn, dvm.spec("b", b=dvm.Dim(multiple_of=8, max=512)))
        with no_compile():
            for b in (8, 16, 120, 128, 136, 512):
                check_launch(program, want, random((b,)))
    assert [spec.text for spec in program.outputs[1:3]] == [("1",), ("2",)]
    refused(program, random((12,)), names=["b", "multiple of 8", "12"])


def unchecked(words):
    assert not words.graph.scope.checks, words.graph.scope.constraints


ROW_3 = [
    Probe(
        "a multiple of 6 in rows of 3 and 2",
        lambda x: (x.reshape(-1, 3).max(1), x.reshape(2, -1)),
        lambda x: (x.reshape(-1, 3).max(1), x.reshape(2, -1)),
        [dvm.spec("b", np.int32, b=dvm.Dim(multiple_of=6))],
        good=[((6,),), ((42,),)],
        bad=[((9,),), ((8,),)],
        names=["b", "6"],
        dtype=np.int32,
        more=unchecked,
    ),
    Probe(
        "ONNX, declared as a constraint",
        "f (float[n, 3] x) => (float[a, 4, 3] y) { s = Constant<value = int64[3] {-1, 4, 3}>() r = Reshape(x, s) y = Neg(r) }",
        lambda x: -x.reshape(-1, 4, 3),
        good=[((4, 3),), ((28, 3),)],
        bad=[((6, 3),)],
        names=["n", "4", "6"],
        constraints=["n % 4 == 0"],
    ),
    Probe(
        "ONNX, a size of unknown parity cut into a//2 and (a + 1)//2 and put together",
        """f (float[a] x) => (float[n] y) {
        h = Shape(x)  z = Constant<value = int64[1] {0}>()  one = Constant<value = int64[1] {1}>()
        two = Constant<value = int64[1] {2}>()  low = Div(h, two)  h1 = Add(h, one)  high = Div(h1, two)
        p = Slice(x, z, low)  q = Slice(x, z, high)  c = Concat<axis = 0>(p, q)  y = Add(c, x) }""",
        lambda x: np.concatenate([x[: len(x) // 2], x[: (len(x) + 1) // 2]]) + x,
        good=[((a,),) for a in (0, 1, 2, 7, 8)],
        more=unchecked,
    ),
    Probe(
        "a product of two multiples",
        lambda x: x.reshape(-1, 48).sum(0),
        lambda x: x.reshape(-1, 48).sum(0),
        [dvm.spec("c, d", c=dvm.Dim(multiple_of=8), d=dvm.Dim(multiple_of=6))],
        good=[((8, 6),), ((16, 18),)],
        bad=[((8, 9),), ((4, 12),)],
        names=["multiple"],
        more=unchecked,
    ),
]


@further(3, "probe", ROW_3)
def test_multiples_more(probe):
    probe.check()


@value(11)
def test_a_transpose_then_a_reshape():
    fn = lambda x: jnp.transpose(x, (0, 2, 1)).reshape(-1, 80) + 1  # noqa: E731
    with one_compile():
        program = dvm.compile(fn, dvm.spec("u, 4, 20", u=dvm.Dim(max=200)))
        with no_compile():
            for u in (1, 7, 127, 128, 129):
                check_launch(program, lambda x: x.transpose(0, 2, 1).reshape(-1, 80) + 1, random((u, 4, 20)))
    assert program.constraints == ['1 <= u <= 200  (Dim("u"))']


def turned(shape, perm, target, dtype=np.float32):
    text = ", ".join(map(str, target))
    sizes = lambda u, v: tuple({"u": u, "v": v}.get(d) or int(d) for d in shape.split(", "))  # noqa: E731
    return Probe(
        f"[{shape}] by {perm} to ({text})",
        lambda x: (jnp.transpose(x, perm).reshape(target), jnp.transpose(jnp.abs(x), perm).reshape(target) * 2),
        lambda x: (x.transpose(perm).reshape(target), np.abs(x).transpose(perm).reshape(target) * 2),
        [dvm.spec(shape, dtype)],
        good=[(sizes(u, v),) for u, v in ((1, 1), (3, 2), (7, 5))],
        dtype=dtype,
        more=unchecked,
    )


ROW_11 = [
    turned("4, u, 20", (1, 0, 2), (-1, 80)),
    turned("u, 4, 20", (2, 1, 0), (20, -1)),
    turned("u, v, 6", (1, 2, 0), (6, -1), np.int32),
    turned("2, u, 3, v", (3, 0, 2, 1), (-1, 6)),
]


@further(11, "probe", ROW_11)
def test_transposes_more(probe):
    probe.check()


@value(16)
def test_a_baked_reshape():
    m = model("""f (float[B, 6, 144] x) => (float[5, n, 144] y) {
        to = Constant<value = int64[3] {5, -1, 144}>()  r = Reshape(x, to)  y = Neg(r) }""")
    m.graph.node[1].name = "flatten_heads"
    with one_compile():
        program = dvm.compile(m, dims={"B": dvm.Dim(max=64)})
        with no_compile():
            for b in (5, 10, 55):
                check_launch(program, lambda x: (-x.reshape(5, -1, 144),), random((b, 6, 144)))
    refused(program, random((4, 6, 144)), names=["flatten_heads", "5, -1, 144", "B", "4"])
    with pytest.raises(dvm.CompileError, match="(?s)4.*7|7.*4"):  # no size can satisfy it
        dvm.compile(
            model("f (float[2, 7] x) => (float[r, s] y) { s = Constant<value = int64[2] {-1, 4}>() y = Reshape(x, s) }")
        )


def baked(dims, target, good, bad, dtype="float"):
    width = int(dims.split(", ")[1])
    n = target.count(",") + 1
    m = model(f"""f ({dtype}[{dims}] x) => ({dtype}[{", ".join("rst"[:n])}] y) {{
        s = Constant<value = int64[{n}] {{{target}}}>()  u = Neg(x)  y = Reshape(u, s) }}""")
    m.graph.node[-1].name = "flatten_heads"
    shape = [int(t) for t in target.split(", ")]
    return Probe(
        f"[{dims}] to [{target}]",
        m,
        lambda x: -x.reshape([x.size // abs(int(np.prod(shape))) if t == -1 else t for t in shape]),
        good=[((b, width),) for b in good],
        bad=[((b, width),) for b in bad],
        names=["flatten_heads", "B"],
        dtype={"float": np.float32, "int64": np.int64}[dtype],
    )


ROW_16 = [
    baked("B, 144", "5, -1, 144", [5, 10, 0], [1, 4]),
    baked("B, 6", "-1, 4", [2, 4, 0], [1, 3], "int64"),
    baked("B, 3", "2, 3", [2], [1, 3, 0]),
    Probe(
        "a baked Expand",
        "f (float[B, 3] x) => (float[n, 3] y) { s = Constant<value = int64[2] {4, 3}>() e = Expand(x, s) y = Neg(e) }",
        lambda x: -np.broadcast_to(x, (4, 3)),
        good=[((1, 3),), ((4, 3),)],
        bad=[((2, 3),)],
        names=["Expand", "B"],
    ),
    Probe(
        "a baked Split",
        "f (float[B, 3] x) => (float[2, 3] y, float[5, 3] z) { s = Constant<value = int64[2] {2, 5}>() y, z = Split(x, s) }",
        lambda x: (x[:2], x[2:]),
        good=[((7, 3),)],
        bad=[((6, 3),), ((8, 3),)],
        names=["Split", "B"],
    ),
]


@further(16, "probe", ROW_16)
def test_baked_sizes_more(probe):
    probe.check()


@value(17)
def test_dims_of_results():
    m = model("""f (float[N] x, float[B, S, 32] y, float[n, 2] p, float[m, 2] q, float[H, 3] z)
        => (float[a] u, float[b, 32] v, float[c, 2] w, float[d, 3] t) {
        five = Constant<value = float[5] {1, 2, 3, 4, 5}>()  u = Concat<axis = 0>(five, x)
        s = Constant<value = int64[2] {-1, 32}>()  v = Reshape(y, s)  w = Concat<axis = 0>(p, q)
        e = Constant<value = float[4] {1.0, 1.0, 0.5, 1.0}>()  o = Constant<value = int64[2] {0, 1}>()
        z4 = Unsqueeze(z, o)  h4 = Resize<mode = "nearest">(z4, , e)  h = Squeeze(h4, o)  t = Concat<axis = 0>(h, h) }""")
    with one_compile():
        program = dvm.compile(m)
        for k in (2, 7, 12):
            arrays = random((k,)), random((k, 3, 32)), random((k, 2)), random((4, 2)), random((k, 3))
            x, y, p, q, _ = arrays
            u, v, w, t = map(np.asarray, program(*arrays))
            for got, want in ((u, np.r_[1:6, x]), (v, y.reshape(-1, 32)), (w, np.concatenate([p, q]))):
                np.testing.assert_allclose(got, want, rtol=1e-6)
            assert t.shape == (2 * (k // 2), 3)
    texts = [" ".join(o.text) for o in program.outputs]
    assert texts == ["N + 5", "B*S 32", "m + n 2", "2*(H//2) 3"]


def texts(*wanted):
    def look(words):
        assert words.texts == list(wanted)

    return look


ROW_17 = [
    Probe(
        "three joined, one repeated",
        """f (float[n] x, float[m] y) => (float[a] u, float[b] v) { u = Concat<axis = 0>(x, y, x)
        k = Constant<value = int64[1] {3}>() v = Tile(x, k) }""",
        lambda x, y: (np.concatenate([x, y, x]), np.tile(x, 3)),
        good=[((1,), (2,)), ((7,), (0,))],
        more=texts("m + 2*n", "3*n"),
    ),
    Probe(
        "flattened and padded",
        """f (float[B, S, 3] x) => (float[a, 3] u, float[b, c, 3] v) {
        t = Constant<value = int64[2] {-1, 3}>() u = Reshape(x, t)
        p = Constant<value = int64[6] {1, 0, 0, 2, 1, 0}>() v = Pad(x, p) }""",
        lambda x: (x.reshape(-1, 3), np.pad(x, ((1, 2), (0, 1), (0, 0)))),
        good=[((1, 1, 3),), ((2, 7, 3),)],
        more=texts("B*S, 3", "B + 3, S + 1, 3"),
    ),
    Probe(
        "every second, and all but the first",
        """f (int64[H, 2] x) => (int64[a, 2] u, int64[b, 2] v) {
        z = Constant<value = int64[1] {0}>() o = Constant<value = int64[1] {1}>() two = Constant<value = int64[1] {2}>()
        e = Constant<value = int64[1] {9223372036854775807}>() u = Slice(x, z, e, z, two) v = Slice(x, o, e, z) }""",
        lambda x: (x[::2], x[1:]),
        good=[((1, 2),), ((2, 2),), ((7, 2),)],
        dtype=np.int64,
        dims={"H": dvm.Dim(min=1)},
        more=texts("(H + 1)//2, 2", "H - 1, 2"),
    ),
    Probe(
        "a pool of an input of known parity",
        """f (float[1, 1, "2*H", W] x) => (float[1, 1, a, b] y) {
        y = MaxPool<kernel_shape = [2, 3], strides = [2, 1], pads = [0, 1, 0, 1]>(x) }""",
        lambda x: (
            np.stack(
                [
                    np.pad(x, ((0, 0),) * 3 + ((1, 1),), constant_values=-np.inf)[..., i : i + x.shape[3]]
                    for i in range(3)
                ]
            )
            .max(0)
            .reshape(1, 1, -1, 2, x.shape[3])
            .max(3)
        ),
        good=[((1, 1, 2, 1),), ((1, 1, 6, 5),)],
        bad=[((1, 1, 3, 1),)],
        names=["x", "axis 2"],
        more=texts("1, 1, H, W"),
    ),
]


@further(17, "probe", ROW_17)
def test_dims_of_results_more(probe):
    probe.check()


@value(18)
def test_a_chain_that_computes_a_shape():
    m = model("""f (float[batch, seq, 8] x) => (float[n, 8] y, float[batch, seq, 2, 4] z) {
        shape = Shape(x)  zero = Constant<value = int64[1] {0}>()  one = Constant<value = int64[1] {1}>()
        b = Gather(shape, zero)  s = Gather(shape, one)  bs = Mul(b, s)
        eight = Constant<value = int64[1] {8}>()  flat = Concat<axis = 0>(bs, eight)  y0 = Reshape(x, flat)  y = Exp(y0)
        heads = Constant<value = int64[2] {2, 4}>()  to = Concat<axis = 0>(b, s, heads)  z0 = Reshape(x, to)  z = Neg(z0) }""")
    want = lambda x: (np.exp(x.reshape(-1, 8)), -x.reshape(*x.shape[:2], 2, 4))  # noqa: E731
    with one_compile():
        program = dvm.compile(m, dims={"batch": dvm.Dim(max=16), "seq": dvm.Dim(max=64)})
        with no_compile():
            for b, s in ((1, 1), (2, 7), (16, 64)):
                check_launch(program, want, random((b, s, 8)))
    assert {op for kernel in program.kernels for op in kernel.ops} == {"exp", "neg"}
    assert program.outputs[0].text == ("batch*seq", "8")


def only_the_data(words):
    assert [op for op in words.ops if op not in ("exp", "reshape")] == [] and not words.host_ops
    assert len(words.program.steps) == 1


def chained(tail, rank, want):
    return Probe(
        tail,
        f"""f (float[b, s, 6] x) => (float[{", ".join("ijk"[:rank])}] y) {{
        h = Shape(x)  zero = Constant<value = int64[1] {{0}}>()  one = Constant<value = int64[1] {{1}}>()
        two = Constant<value = int64[1] {{2}}>()
        minus = Constant<value = int64[1] {{-1}}>()  bs = Gather(h, zero)  ss = Gather(h, one)  cs = Gather(h, two)
        {tail}  r = Reshape(x, f)  y = Exp(r) }}""",
        lambda x: np.exp(want(x)),
        good=[((b, s, 6),) for b, s in ((1, 1), (2, 5), (7, 3))],
        more=only_the_data,
    )


ROW_18 = [
    chained("f = Concat<axis = 0>(bs, minus)", 2, lambda x: x.reshape(x.shape[0], -1)),
    chained("f = Concat<axis = 0>(minus, cs)", 2, lambda x: x.reshape(-1, x.shape[2])),
    chained("p = Mul(bs, ss)  f = Concat<axis = 0>(p, minus)", 2, lambda x: x.reshape(x.shape[0] * x.shape[1], -1)),
    chained("f = Concat<axis = 0>(ss, minus, two)", 3, lambda x: x.reshape(x.shape[1], -1, 2)),
    chained(
        "c = Cast<to = 1>(cs)  k = Constant<value = float[1] {0.5}>()  m = Mul(c, k)  d = Cast<to = 7>(m)  "
        "f = Concat<axis = 0>(bs, d, minus)",
        3,
        lambda x: x.reshape(x.shape[0], 3, -1),
    ),
]


@further(18, "probe", ROW_18)
def test_shape_chains_more(probe):
    probe.check()


def scaled(block, np=jnp):
    def fn(x, w):
        parts = x.reshape(x.shape[0], x.shape[1] // block, block)
        scale = np.abs(parts).max(-1, keepdims=True) + 1
        return (parts / scale).reshape(x.shape).T @ w

    return fn


@value(20)
def test_block_scaling():
    with one_compile():
        k = dvm.Dim(multiple_of=16, max=160)
        program = dvm.compile(scaled(16), dvm.spec("m, k", m=dvm.Dim(max=600), k=k), dvm.spec("m, 24"))
        with no_compile():
            for m, n in ((1, 16), (7, 48), (512, 144)):
                check_launch(program, scaled(16, np), random((m, n)), random((m, 24), seed=1), tol=2e-5)
    refused(program, random((4, 24)), random((4, 24)), names=["k", "24", "16"])


ROW_20 = [
    Probe(
        f"blocks of {block}",
        scaled(block),
        scaled(block, np),
        [f32(f"m, {block}*k"), f32("m, 3")],
        good=[((m, block * k), (m, 3)) for m, k in ((1, 1), (5, 3), (16, 2))],
        bad=[((2, block + 1), (2, 3))],
        names=["axis 1"],
        more=unchecked,
    )
    for block in (4, 32)
] + [
    Probe(
        "blocks of rows, summed and subtracted",
        lambda x: (p := x.reshape(-1, 8, x.shape[1]), (p - p.sum(1, keepdims=True)).reshape(x.shape) * 2)[1],
        lambda x: (p := x.reshape(-1, 8, x.shape[1]), (p - p.sum(1, keepdims=True)).reshape(x.shape) * 2)[1],
        [dvm.spec("m, k", m=dvm.Dim(multiple_of=8))],
        good=[((8, 3),), ((56, 1),)],
        bad=[((12, 3),)],
        names=["m", "8"],
        more=unchecked,
    ),
    Probe(
        "ONNX, blocks of 4 by a shape chain",
        """f (float[m, "4*k"] x) => (float[m, n] y) { h = Shape(x)  t = Constant<value = int64[3] {0, -1, 4}>()
        p = Reshape(x, t)  a = Abs(p)  l = Constant<value = int64[1] {2}>()  s = ReduceMax(a, l)  one = Constant<value = float {1.0}>()
        s1 = Add(s, one)  d = Div(p, s1)  y = Reshape(d, h) }""",
        lambda x: (p := x.reshape(len(x), -1, 4), (p / (np.abs(p).max(2, keepdims=True) + 1)).reshape(x.shape))[1],
        good=[((1, 4),), ((5, 12),), ((7, 8),)],
        bad=[((1, 6),)],
        names=["x", "axis 1"],
        more=unchecked,
    ),
]


@further(20, "probe", ROW_20)
def test_block_scaling_more(probe):
    probe.check()


def test_a_proof_that_the_blocks_fill_the_axis():
    """Row 20 asks for one proof: k//16*16 == k, and it is made once."""
    words = Words(scaled(16), dvm.spec("m, k", k=dvm.Dim(multiple_of=16)), dvm.spec("m, 3"))
    assert not words.graph.scope.checks
    assert words.texts == ["k, 3"]
