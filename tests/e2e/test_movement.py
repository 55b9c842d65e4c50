"""Data movement in front of, behind and between everything else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.e2e.harness import Case, random, spec, verify

F32 = jnp.float32


def S(shape, dtype=F32, low=0):
    """A spec whose one-letter dims may be ``low`` to 1000."""
    return spec(shape, dtype, **{k: (low, 1000) for k in "abcmnks" if k in shape})


def S1(shape, dtype=F32):
    return S(shape, dtype, 1)


CASES = []
c1 = [((7, 5),), ((1, 1),), ((0, 3),), ((3, 0),)]


def add(name, fn, specs, launches, dtypes=(), tol=None, kernels=None, host=0):
    CASES.append(Case(name, fn, specs, launches, dtypes, tol, kernels, host))


add("T", lambda x: x.T, [S("a,b")], c1, kernels=1)
add("T exp", lambda x: jnp.exp(x).T + x.T, [S("a,b")], c1, kernels=1)
add("T4", lambda x: jnp.transpose(x, (2, 0, 3, 1)), [S("a,b,c,5")], [((2, 3, 4, 5),), ((1, 1, 1, 5),), ((0, 3, 4, 5),)])
add("merge", lambda x: x.reshape(x.shape[0] * x.shape[1], -1), [S1("a,b,4")], [((2, 3, 4),), ((1, 1, 4),)])
add(
    "split",
    lambda x: jnp.tanh(x).reshape(x.shape[0], 4, 8) * 2,
    [S("a,32")],
    [((2, 32),), ((1, 32),), ((0, 32),)],
    kernels=1,
)
add(
    "split sum",
    lambda x: jnp.sum(x.reshape(x.shape[0], 4, 8), -1),
    [S("a,32")],
    [((2, 32),), ((1, 32),), ((0, 32),)],
    kernels=1,
)
add(
    "split dyn",
    lambda x: x.reshape(x.shape[0] // 4, 4, -1).sum(1) if False else x.reshape(-1, 4).sum(0),
    [spec("4*a", a=(0, 100))],
    [((12,),), ((0,),), ((4,),)],
    tol=1e-5,
)
add("merge T", lambda x: x.T.reshape(-1), [S1("a,b")], [((7, 5),), ((1, 1),)])
add("exp merge T", lambda x: jnp.exp(x).T.reshape(-1) * 2, [S1("a,b")], [((7, 5),), ((1, 1),)])
add(
    "u420",
    lambda x: jnp.transpose(x, (0, 2, 1)).reshape(-1, 80),
    [S("u,4,20".replace("u", "a"))],
    [((3, 4, 20),), ((1, 4, 20),), ((0, 4, 20),)],
)
for _, (nm, f) in enumerate(
    [
        ("s1", lambda x: x[:, 1:]),
        ("s2", lambda x: x[:, :-1]),
        ("s3", lambda x: x[:, ::2]),
        ("s4", lambda x: x[:, ::-1]),
        ("s5", lambda x: x[:, 2:7:2]),
        ("s6", lambda x: x[:, ::-2]),
        ("s7", lambda x: x[:, 3]),
        ("s8", lambda x: x[:, -1:]),
        ("s9", lambda x: x[:, 4:4]),
    ]
):
    add("static " + nm, f, [S("a,9")], [((3, 9),), ((1, 9),), ((0, 9),)])
    add("static pre " + nm, lambda x, f=f: f(jnp.sin(x)), [S("a,9")], [((3, 9),), ((1, 9),), ((0, 9),)])
    add("static post " + nm, lambda x, f=f: jnp.sin(f(x)) + 1, [S("a,9")], [((3, 9),), ((1, 9),), ((0, 9),)])
    add(
        "static sum " + nm,
        lambda x, f=f: jnp.sum(f(x * x), -1),
        [S("a,9")],
        [((3, 9),), ((1, 9),), ((0, 9),)],
        tol=1e-5,
    )
    add(
        "static axis0 " + nm, lambda x, f=f: f(x.T).T * f(jnp.sin(x.T)).T, [S("9,a")], [((9, 3),), ((9, 1),), ((9, 0),)]
    )
for _, (nm, f) in enumerate(
    [
        ("s1", lambda x: x[:, 1:]),
        ("s2", lambda x: x[:, :-1]),
        ("s3", lambda x: x[:, ::2]),
        ("s4", lambda x: x[:, ::-1]),
        ("s6", lambda x: x[:, ::-2]),
        ("s8", lambda x: x[:, -1:]),
        ("s9", lambda x: x[:, :1]),
    ]
):
    cs = [((3, 9),), ((1, 1),), ((2, 2),)]
    add("dyn " + nm, f, [S1("a,b")], cs)
    add("dyn pre " + nm, lambda x, f=f: f(jnp.sin(x)), [S1("a,b")], cs)
    add("dyn sum " + nm, lambda x, f=f: jnp.sum(f(x * x), -1), [S1("a,b")], cs, tol=1e-5)
    add("dyn both " + nm, lambda x, f=f: f(x) * f(jnp.sin(x)), [S1("a,b")], cs)
add("shift diff", lambda x: x[1:] - x[:-1], [S1("a")], [((5,),), ((1,),), ((2,),)], kernels=1)
add("shift diff exp", lambda x: jnp.exp(x[1:]) - jnp.exp(x)[:-1], [S1("a")], [((5,),), ((1,),), ((2,),)])
add("roll", lambda x: jnp.roll(x, 1, 0) + jnp.roll(x, -2, 1), [S1("a,8")], [((5, 8),), ((1, 8),)])
add("roll dyn", lambda x: jnp.roll(x, 1, 1), [S1("a,b")], [((5, 8),), ((1, 1),)])
for nm, pw in (("p1", ((1, 0), (0, 0))), ("p2", ((0, 0), (2, 3))), ("p3", ((1, 1), (1, 1)))):
    add("pad " + nm, lambda x, pw=pw: jnp.pad(x, pw), [S("a,b")], c1)
    add("pad pre " + nm, lambda x, pw=pw: jnp.pad(jnp.sin(x), pw, constant_values=2.0) * 3, [S("a,b")], c1)
    add(
        "pad pre st " + nm,
        lambda x, pw=pw: jnp.pad(jnp.sin(x), pw, constant_values=2.0) * 3,
        [S("a,5")],
        [((7, 5),), ((1, 5),), ((0, 5),)],
    )
    add(
        "pad sum " + nm,
        lambda x, pw=pw: jnp.sum(jnp.pad(jnp.sin(x), pw, constant_values=2.0), 0),
        [S("a,5")],
        [((7, 5),), ((1, 5),), ((0, 5),)],
        tol=1e-5,
    )
add("pad edge", lambda x: jnp.pad(x, ((0, 0), (1, 2)), mode="edge"), [S1("a,b")], [((3, 4),), ((1, 1),)])
add("pad neg", lambda x: lax.pad(x, jnp.float32(1), ((0, 0, 0), (-1, 2, 0))), [S("a,6")], [((3, 6),), ((0, 6),)])
add(
    "pad interior",
    lambda x: lax.pad(x, jnp.float32(1), ((0, 0, 0), (1, 2, 1))),
    [S("a,6")],
    [((3, 6),), ((0, 6),)],
    host=1,
)
add(
    "pad int dyn",
    lambda x: lax.pad(x, jnp.float32(1), ((1, 0, 2), (0, 0, 0))),
    [S("a,6")],
    [((3, 6),), ((1, 6),)],
    host=1,
)
for ax in (0, 1):
    add(
        f"concat{ax}",
        lambda x, y, ax=ax: jnp.concatenate([x, y], ax),
        [S("a,b")] * 2,
        [((3, 4), (3, 4)), ((1, 1), (1, 1)), ((0, 4), (0, 4)), ((3, 0), (3, 0))],
    )
    add(
        f"concat pre{ax}",
        lambda x, y, ax=ax: jnp.concatenate([jnp.sin(x), y, x * 2], ax),
        [S("a,b")] * 2,
        [((3, 4), (3, 4)), ((1, 1), (1, 1)), ((0, 4), (0, 4))],
    )
    add(
        f"concat post{ax}",
        lambda x, y, ax=ax: jnp.sin(jnp.concatenate([x, y], ax)),
        [S("a,b")] * 2,
        [((3, 4), (3, 4)), ((1, 1), (1, 1)), ((0, 4), (0, 4))],
        kernels=1,
    )
    add(
        f"concat sum{ax}",
        lambda x, y, ax=ax: jnp.sum(jnp.concatenate([x, y], ax), 0),
        [S("a,b")] * 2,
        [((3, 4), (3, 4)), ((1, 1), (1, 1)), ((0, 4), (0, 4))],
        kernels=1,
        tol=1e-5,
    )
    add(
        f"concat softmax{ax}",
        lambda x, y, ax=ax: jax.nn.softmax(jnp.concatenate([x, y], ax), -1),
        [S1("a,b")] * 2,
        [((3, 4), (3, 4)), ((1, 1), (1, 1))],
        tol=1e-5,
    )
    add(
        f"concat mm{ax}",
        lambda x, y, ax=ax: (
            jnp.concatenate([x, y], ax) @ jnp.ones((5, 3), np.float32)
            if ax == 0
            else jnp.concatenate([x, y], ax) @ jnp.ones((10, 3), np.float32)
        ),
        [S("a,5")] * 2,
        [((3, 5), (3, 5)), ((1, 5), (1, 5)), ((0, 5), (0, 5))],
        tol=1e-5,
    )
add(
    "kv",
    lambda p, k: jnp.concatenate([p, k], 1),
    [S("b,n,2,4"), S("b,s,2,4")],
    [((2, 0, 2, 4), (2, 3, 2, 4)), ((2, 5, 2, 4), (2, 1, 2, 4)), ((1, 1, 2, 4), (1, 7, 2, 4))],
    kernels=1,
)
add(
    "stack",
    lambda x, y: jnp.stack([jnp.sin(x), y], 0),
    [S("a,b")] * 2,
    [((3, 4), (3, 4)), ((1, 1), (1, 1)), ((0, 4), (0, 4))],
)
add(
    "stack1",
    lambda x, y: jnp.stack([jnp.sin(x), y * 2], -1),
    [S("a,b")] * 2,
    [((3, 4), (3, 4)), ((1, 1), (1, 1)), ((0, 4), (0, 4))],
)


def rope(x, c, s):
    h = x.shape[-1] // 2
    return x * c + jnp.concatenate([-x[..., h:], x[..., :h]], -1) * s


add(
    "rope",
    rope,
    [S("b,s,2,8"), S("s,1,8"), S("s,1,8")],
    [((2, 3, 2, 8), (3, 1, 8), (3, 1, 8)), ((1, 1, 2, 8), (1, 1, 8), (1, 1, 8))],
    kernels=1,
)
add(
    "rope pre",
    lambda x, c, s: rope(jnp.sin(x), c, s),
    [S("b,s,2,8"), S("s,1,8"), S("s,1,8")],
    [((2, 3, 2, 8), (3, 1, 8), (3, 1, 8)), ((1, 1, 2, 8), (1, 1, 8), (1, 1, 8))],
    kernels=1,
)


def rope2(x, c):
    y = x.reshape(*x.shape[:-1], 4, 2)
    a, b = y[..., 0], y[..., 1]
    return jnp.stack([a * c - b, a + b * c], -1).reshape(x.shape)


add("rope interleaved", rope2, [S("b,s,2,8"), S("s,1,4")], [((2, 3, 2, 8), (3, 1, 4)), ((1, 1, 2, 8), (1, 1, 4))])
add("split3", lambda x: jnp.split(x, 3, -1), [S("a,12")], [((3, 12),), ((0, 12),)])
add(
    "split3 mul",
    lambda x: (lambda a, b, c: a * b + c)(*jnp.split(jnp.sin(x), 3, -1)),
    [S("a,12")],
    [((3, 12),), ((0, 12),)],
    kernels=1,
)
add(
    "swiglu",
    lambda x, w: (lambda a, b: jax.nn.silu(a) * b)(*jnp.split(x @ w, 2, -1)),
    [S("a,12"), spec("12,16")],
    [((3, 12), (12, 16)), ((1, 12), (12, 16))],
    tol=1e-5,
)
add("iota", lambda x: x + jnp.arange(x.shape[1]) * 2 + jnp.arange(x.shape[0])[:, None], [S("a,b")], c1, kernels=1)
add(
    "iota T",
    lambda x: (jnp.arange(x.shape[0] * x.shape[1]).reshape(x.shape) * 1.0 + x).T,
    [S1("a,b")],
    [((7, 5),), ((1, 1),)],
)
add("tri", lambda x: jnp.tril(x) + jnp.triu(x, 1) * 2, [S("a,b")], c1, kernels=1)
add("eye", lambda x: x + jnp.eye(x.shape[0]), [S1("a,a")], [((5, 5),), ((1, 1),)])
add("linspace", lambda x: x * jnp.linspace(0, 1, 5), [S("a,5")], [((3, 5),)])


def index(*s, hi=9):
    return (np.arange(int(np.prod(s))) % hi).reshape(s).astype(np.int32)


add(
    "embed",
    lambda t, i: t[i],
    [spec("50,16"), S("b,s", jnp.int32)],
    [(random((50, 16)), index(2, 7, hi=50)), (random((50, 16)), index(1, 1)), (random((50, 16)), index(0, 3))],
    kernels=1,
)
add(
    "embed clip",
    lambda t, i: jnp.take(t, i, axis=0, mode="clip") * 2,
    [spec("50,16"), S("b,s", jnp.int32)],
    [(random((50, 16)), np.array([[-3, 70, 49]], np.int32))],
    kernels=1,
)
add(
    "embed fill",
    lambda t, i: jnp.take(t, i, axis=0, mode="fill") * 2,
    [spec("50,16"), S("b,s", jnp.int32)],
    [(random((50, 16)), np.array([[-3, 70, 49, -60]], np.int32))],
)
add(
    "embed dyn",
    lambda t, i: t[i],
    [S1("n,k"), S("s", jnp.int32)],
    [(random((5, 3)), index(7, hi=5)), (random((1, 1)), index(2, hi=1))],
)
add(
    "take1",
    lambda t, i: jnp.take(t, i, axis=1),
    [S1("a,9"), S("s", jnp.int32)],
    [(random((5, 9)), index(7)), (random((1, 9)), index(1))],
)
add(
    "take pre",
    lambda t, i: jnp.take(jnp.sin(t), i, axis=1),
    [S1("a,9"), S("s", jnp.int32)],
    [(random((5, 9)), index(7)), (random((1, 9)), index(1))],
)
add(
    "take T",
    lambda t, i: jnp.take(t.T, i, axis=1),
    [S1("9,a"), S("s", jnp.int32)],
    [(random((9, 5)), index(7, hi=5)), (random((9, 1)), index(1))],
)
add(
    "take along",
    lambda t, i: jnp.take_along_axis(t, i, 1),
    [S1("a,9"), S1("a,s", jnp.int32)],
    [(random((5, 9)), index(5, 7)), (random((1, 9)), index(1, 1))],
)
add(
    "take along0",
    lambda t, i: jnp.take_along_axis(t, i, 0),
    [S1("b,k"), S1("s,k", jnp.int32)],
    [(random((9, 5)), index(4, 5)), (random((1, 1)), index(1, 1, hi=1))],
)
add(
    "x[i,j]",
    lambda t, i, j: t[i, j],
    [S1("a,9"), S("s", jnp.int32), S("s", jnp.int32)],
    [
        (random((5, 9)), index(7, hi=5), index(7)),
    ],
    host=0,
)
add(
    "last token",
    lambda x, n: jnp.take_along_axis(x, n[:, None, None], 1)[:, 0],
    [S1("b,s,8"), S1("b", jnp.int32)],
    [(random((3, 5, 8)), index(3, hi=5)), (random((1, 1, 8)), index(1, hi=1))],
)
add(
    "ds",
    lambda x, i: lax.dynamic_slice(x, (i, 0), (3, x.shape[1])),
    [S("9,b"), spec("", jnp.int32)],
    [(random((9, 5)), np.int32(2)), (random((9, 1)), np.int32(8)), (random((9, 5)), np.int32(-20))],
)
add(
    "ds dyn",
    lambda x, i: lax.dynamic_slice_in_dim(x, i, 1, 0),
    [S1("a,b"), spec("", jnp.int32)],
    [(random((9, 5)), np.int32(2)), (random((1, 1)), np.int32(8)), (random((9, 5)), np.int32(-2))],
)
add(
    "ds pre",
    lambda x, i: lax.dynamic_slice_in_dim(jnp.sin(x), i + 1, 1, 0) * 2,
    [S1("a,b"), spec("", jnp.int32)],
    [(random((9, 5)), np.int32(2)), (random((1, 1)), np.int32(8))],
)
add(
    "dus",
    lambda x, u, i: lax.dynamic_update_slice(x, u, (i, 0)),
    [S1("a,b"), S1("1,b"), spec("", jnp.int32)],
    [(random((9, 5)), random((1, 5), seed=9), np.int32(2)), (random((1, 1)), random((1, 1), seed=3), np.int32(8))],
)
add(
    "dus pre",
    lambda x, u, i: jnp.sin(lax.dynamic_update_slice(x * 2, u * 3, (i, 1))) + 1,
    [S1("a,8"), spec("1,3"), spec("", jnp.int32)],
    [(random((9, 8)), random((1, 3), seed=9), np.int32(2)), (random((1, 8)), random((1, 3), seed=3), np.int32(8))],
)
add("at set", lambda x: x.at[0].set(5.0), [S1("a,b")], [((3, 4),), ((1, 1),)], host=0)
add("at add", lambda x: x.at[:, 2].add(1.0), [S1("a,8")], [((3, 8),), ((1, 8),)], host=0)
add("squeeze", lambda x: jnp.squeeze(x[:, None] * 2, 1) + jnp.expand_dims(x, 0)[0], [S("a,b")], c1, kernels=1)
add(
    "bcast",
    lambda x, y: x[:, None] + y[None, :],
    [S("a"), S("b")],
    [((3,), (4,)), ((1,), (1,)), ((0,), (3,))],
    kernels=1,
)
add(
    "bcast exp",
    lambda x, y: jnp.exp(x)[:, None] * jnp.log(y * y + 1)[None, :],
    [S("a"), S("b")],
    [((3,), (4,)), ((1,), (1,)), ((0,), (3,))],
)
add("tile", lambda x: jnp.tile(x, (2, 3)), [S1("a,b")], [((3, 4),), ((1, 1),)])
add("repeat", lambda x: jnp.repeat(x, 3, axis=0), [S1("a,b")], [((3, 4),), ((1, 1),)])
add("repeat1", lambda x: jnp.repeat(jnp.sin(x), 3, axis=1), [S1("a,4")], [((3, 4),), ((1, 4),)])
add("meshgrid", lambda x, y: jnp.meshgrid(x, y), [S1("a"), S1("b")], [((3,), (4,)), ((1,), (1,))])
add("diag", lambda x: jnp.diagonal(x), [S1("a,a")], [((3, 3),), ((1, 1),)], host=0)
add("trace", lambda x: jnp.trace(x), [S1("a,a")], [((3, 3),), ((1, 1),)], host=0)
add("x+x.T", lambda x: x + x.T, [S("a,a")], [((3, 3),), ((1, 1),), ((0, 0),)])
add("sin x + sin x.T", lambda x: jnp.sin(x) + jnp.sin(x).T, [S("a,a")], [((3, 3),), ((1, 1),)])
add(
    "rank9",
    lambda x: jnp.transpose(x.reshape(x.shape[0], 2, 2, 2, 2, 2, 2, 2, 2), (0, 8, 7, 6, 5, 4, 3, 2, 1)),
    [S1("a,256")],
    [((3, 256),)],
)
add(
    "rank9 exp",
    lambda x: jnp.exp(
        jnp.transpose(jnp.sin(x).reshape(x.shape[0], 2, 2, 2, 2, 2, 2, 2, 2), (0, 8, 7, 6, 5, 4, 3, 2, 1))
    ).sum((1, 3, 5)),
    [S1("a,256")],
    [((3, 256),)],
    tol=1e-5,
)
add(
    "pixel shuffle",
    lambda x: (
        x.reshape(x.shape[0], 2, 2, x.shape[2], x.shape[3])
        .transpose(0, 3, 1, 4, 2)
        .reshape(x.shape[0], 2 * x.shape[2], 2 * x.shape[3])
    ),
    [S1("b,4,m,n")],
    [((2, 4, 3, 5),), ((1, 4, 1, 1),)],
)
add(
    "block scale",
    lambda x, w: (
        (x.reshape(x.shape[0], -1, 16) / jnp.max(jnp.abs(x.reshape(x.shape[0], -1, 16)), -1, keepdims=True)).reshape(
            x.shape
        )
        @ w
    ),
    [spec("m,16*k", m=(1, 512), k=(1, 16)), spec("16*k,8", k=(1, 16))],
    [((5, 48), (48, 8)), ((1, 16), (16, 8))],
    tol=1e-5,
)
add("large static", lambda x: jnp.sin(x).T, [spec("300,400")], [((300, 400),)])
add("large static sum", lambda x: jnp.sum(x, 0), [spec("3000,40")], [((3000, 40),)], tol=1e-5)
add("static softmax big", lambda x: jax.nn.softmax(x, -1), [spec("3,30000")], [((3, 30000),)], tol=1e-5)
add("argsort", lambda x: jnp.argsort(x, -1), [S1("a,b")], [((3, 4),), ((1, 1),)], host=1)
add("topk", lambda x: lax.top_k(x, 2), [S1("a,8")], [((3, 8),), ((1, 8),)], host=1)
add("onehot", lambda i: jax.nn.one_hot(i, 7), [S("a", jnp.int32)], [(index(5, hi=8),), (index(0),)], kernels=1)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name.replace(" ", "-"))
def test_words(case):
    verify(case)
