"""Reductions, scans, arg-reductions, normalisations and attention: the words on the tests' tile machine, some on the real one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.e2e.harness import BFLOAT16, Case, spec, verify

F32 = jnp.float32


def S(shape, dtype=F32, low=0):
    """A spec whose one-letter dims may be ``low`` to 1000."""
    return spec(shape, dtype, **{k: (low, 1000) for k in "abcmnks" if k in shape})


def S1(shape, dtype=F32):
    return S(shape, dtype, 1)


CASES = []


def add(name, fn, specs, launches, dtypes=(), tol=None, kernels=None, host=0):
    CASES.append(Case(name, fn, specs, launches, dtypes, tol, kernels, host))


# reductions
two = [((0, 5),), ((1, 1),), ((3, 0),), ((7, 5),), ((17, 33),)]
for nm in ("sum", "prod"):
    for ax in (0, 1, (0, 1)):
        add(
            f"{nm}{ax}",
            lambda x, ax=ax, nm=nm: getattr(jnp, nm)(x * 0.1 + 1, axis=ax),
            [S("a,b")],
            two,
            tol=1e-5,
            kernels=1,
        )
pos = [((1, 1),), ((7, 5),), ((17, 33),), ((2, 129),)]
for nm in ("max", "min", "argmax", "argmin", "mean", "var"):
    for ax in (0, 1):
        add(f"{nm}{ax}", lambda x, ax=ax, nm=nm: getattr(jnp, nm)(x, axis=ax), [S1("a,b")], pos, tol=1e-5)
for nm in ("any", "all"):
    for ax in (0, 1, (0, 1)):
        add(f"{nm}{ax}", lambda x, ax=ax, nm=nm: getattr(jnp, nm)(x > 0, axis=ax), [S("a,b")], two, kernels=1)
add("argmax all", lambda x: jnp.argmax(x), [S1("a,b")], pos)
add(
    "argmax3",
    lambda x: (jnp.argmax(x, 0), jnp.argmax(x, 1), jnp.argmax(x, 2)),
    [S1("a,5,b")],
    [((1, 5, 1),), ((3, 5, 7),)],
)
add("argmax int", lambda x: (jnp.argmax(x, -1), jnp.argmin(x, -1)), [S1("a,b", jnp.int32)], pos, dtypes=[np.int32])
for ax in (0, 1, 2, (0, 2), (1, 2), (0, 1)):
    add(
        f"sum3 {ax}",
        lambda x, ax=ax: jnp.sum(x, ax),
        [S("a,b,c")],
        [((2, 3, 5),), ((1, 1, 1),), ((0, 3, 4),), ((4, 0, 3),), ((4, 3, 0),)],
        tol=1e-5,
    )
    add(
        f"sum3s {ax}",
        lambda x, ax=ax: jnp.sum(x, ax),
        [S("a,8,c")],
        [((2, 8, 5),), ((1, 8, 1),), ((0, 8, 4),), ((4, 8, 0),)],
        tol=1e-5,
    )
add("sum keep", lambda x: x / jnp.sum(jnp.abs(x) + 1, 1, keepdims=True), [S("a,b")], two, kernels=1, tol=1e-5)
add(
    "int sums", lambda x: (jnp.sum(x, 0), jnp.max(x, 1), jnp.prod(x, 1)), [S1("a,b", jnp.int32)], pos, dtypes=[np.int32]
)
add("bool sum", lambda x: jnp.sum(x > 0, 1), [S("a,b")], two)
add("bf16 sum", lambda x: jnp.sum(x, 1), [S("a,b", jnp.bfloat16)], two, dtypes=[BFLOAT16])
for nm in ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"):
    f = getattr(lax, nm)
    add(nm + " static", lambda x, f=f: f(x, axis=1), [S("a,16")], [((0, 16),), ((1, 16),), ((9, 16),)], tol=1e-5)
    add(
        nm + " rev",
        lambda x, f=f: f(x, axis=1, reverse=True),
        [S("a,16,b")],
        [((0, 16, 2),), ((1, 16, 1),), ((9, 16, 3),)],
        tol=1e-5,
    )
    add(nm + " dyn", lambda x, f=f: f(x, axis=0) + 1, [S("a,b")], [((0, 3),), ((1, 1),), ((9, 4),)], tol=1e-5, host=1)
add("logsumexp", lambda x: jax.nn.logsumexp(x, -1), [S1("a,b")], pos, tol=1e-5)
add("softmax", lambda x: jax.nn.softmax(x, -1), [S1("a,b")], pos, tol=1e-5, kernels=1)
add("softmax0", lambda x: jax.nn.softmax(x, 0), [S1("a,b")], pos, tol=1e-5, kernels=1)
add("softmax static", lambda x: jax.nn.softmax(x, -1), [S1("a,77")], [((1, 77),), ((5, 77),)], tol=1e-5, kernels=1)
add("log_softmax", lambda x: jax.nn.log_softmax(x, -1), [S1("a,b")], pos, tol=1e-5, kernels=1)
add("softmax2", lambda x: jax.nn.softmax(x, (-1, -2)), [S1("a,b,c")], [((2, 3, 4),), ((1, 1, 1),)], tol=1e-5)


def ln(x, g, b):
    m = jnp.mean(x, -1, keepdims=True)
    v = jnp.mean((x - m) ** 2, -1, keepdims=True)
    return (x - m) * lax.rsqrt(v + 1e-5) * g + b


def rms(x, g):
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * g


add(
    "ln",
    ln,
    [S1("b,s,256"), spec("256"), spec("256")],
    [((1, 1, 256), (256,), (256,)), ((3, 7, 256), (256,), (256,))],
    kernels=1,
    tol=1e-5,
)
add(
    "ln dyn",
    ln,
    [S1("b,s,k"), S1("k"), S1("k")],
    [((1, 1, 1), (1,), (1,)), ((3, 7, 33), (33,), (33,))],
    kernels=1,
    tol=1e-5,
)
add(
    "rms",
    rms,
    [S1("b,s,256"), spec("256")],
    [((1, 1, 256), (256,)), ((3, 7, 256), (256,)), ((2, 256, 256), (256,))],
    kernels=1,
    tol=1e-5,
)
add(
    "rms big",
    rms,
    [S1("b,s,18944"), spec("18944")],
    [((1, 1, 18944), (18944,)), ((2, 1, 18944), (18944,))],
    kernels=1,
    tol=1e-5,
)
add("gelu", lambda x: jax.nn.gelu(x), [S("b,s,256")], [((0, 1, 256),), ((3, 2, 256),)], kernels=1)
add(
    "gelu exact",
    lambda x: jax.nn.gelu(x, approximate=False),
    [S("b,s,256")],
    [((1, 1, 256),), ((3, 2, 256),)],
    kernels=1,
)


def attn(q, k, v):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 8.0
    s = jnp.where(jnp.arange(q.shape[1])[:, None] >= jnp.arange(k.shape[1])[None], s, -1e9)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1), v)


A = [((1, 1, 2, 16),) * 3, ((2, 5, 2, 16),) * 3, ((1, 33, 2, 16),) * 3]
add("attn", attn, [S1("b,s,2,16")] * 3, A, kernels=1, tol=2e-5)


def gqa(q, k, v):
    s = jnp.einsum("bkrqd,bkld->bkrql", q, k)
    return jnp.einsum("bkrql,bkld->bkrqd", jax.nn.softmax(s, -1), v)


add(
    "gqa",
    gqa,
    [S1("b,2,3,s,16"), S1("b,2,k,16"), S1("b,2,k,16")],
    [((1, 2, 3, 1, 16), (1, 2, 1, 16), (1, 2, 1, 16)), ((2, 2, 3, 5, 16), (2, 2, 9, 16), (2, 2, 9, 16))],
    kernels=1,
    tol=2e-5,
)
# reduce then many
add(
    "row and col",
    lambda x: (x / jnp.sum(x * x + 1, 0), x / jnp.sum(x * x + 1, 1, keepdims=True)),
    [S("a,b")],
    two,
    tol=1e-5,
)
add("two reductions diff axes", lambda x: jnp.sum(x, 0)[None] + jnp.sum(x, 1)[:, None], [S("a,b")], two, tol=1e-5)
add("var all", lambda x: jnp.var(x), [S1("a,b")], pos, tol=1e-5)
add("normalize all", lambda x: (x - jnp.mean(x)) / jnp.std(x), [S1("a,b")], [((7, 5),), ((17, 33),)], tol=1e-5)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name.replace(" ", "-"))
def test_words(case):
    verify(case)
