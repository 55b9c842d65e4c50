"""The layers of a transformer at symbolic shapes, each exactly one kernel, compiled by XLA once and launched around the block sizes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.e2e.harness import BFLOAT16, Compiled, random, spec

ROWS = {"b": (1, 4), "s": (1, 600)}
SHAPES = ((1, 1), (2, 7), (1, 15), (1, 16), (1, 17), (3, 43), (1, 127), (2, 64), (1, 257), (4, 127))
LONG_SUMS = 1e-5  # a few thousand terms, added up in another order


def layer_norm(x, g, b):
    mean = jnp.mean(x, -1, keepdims=True)
    return (x - mean) * lax.rsqrt(jnp.mean((x - mean) ** 2, -1, keepdims=True) + 1e-5) * g + b


def rms_norm(x, g):
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * g


LAYERS = {
    "layer_norm": (layer_norm, 2, LONG_SUMS),
    "rms_norm": (rms_norm, 1, LONG_SUMS),
    "softmax": (lambda x: jax.nn.softmax(x, -1), 0, LONG_SUMS),
    "log_softmax": (lambda x: jax.nn.log_softmax(x, -1), 0, LONG_SUMS),
    "gelu": (lambda x: jax.nn.gelu(x, approximate=False), 0, None),
    "gelu_tanh": (lambda x: jax.nn.gelu(x, approximate=True), 0, None),
}


@pytest.mark.parametrize("name", LAYERS)
def test_one_kernel(name):
    fn, weights, tolerance = LAYERS[name]
    program = Compiled(fn, spec("b, s, 48", **ROWS), *[spec("48")] * weights)
    assert program.kernels == 1
    extra = [random((48,), seed=i) for i in range(weights)]
    top = random((4, 600, 48), scale=3)
    want = np.asarray(program.reference(top, *extra))  # a row does not depend on the others
    for b, s in SHAPES:
        program.check(top[:b, :s].copy(), *extra, want=want[:b, :s], tolerance=tolerance)


@pytest.mark.parametrize("name", ["softmax", "layer_norm"])
def test_one_kernel_over_a_dynamic_axis(name):
    fn, weights, tolerance = LAYERS[name]
    program = Compiled(fn, spec("s, k", s=(1, 600), k=(1, 600)), *[spec("k", k=(1, 600))] * weights)
    assert program.kernels == 1
    for s, k in ((1, 1), (7, 16), (17, 127), (3, 129), (5, 257), (64, 600)):
        program.check(random((s, k), scale=3), *(random((k,), seed=i) for i in range(weights)), tolerance=tolerance)


def test_one_kernel_in_bfloat16():
    program = Compiled(lambda x: jax.nn.softmax(x, -1), spec("s, 48", BFLOAT16, s=(1, 600)))
    assert program.kernels == 1
    for s in (1, 17, 257):
        program.check(random((s, 48), BFLOAT16), tolerance=2e-2)


def attention(q, k, v):
    s = jnp.einsum("bqkrd,blkd->bkrql", q, k) * 0.25
    past = k.shape[1] - q.shape[1]
    s = jnp.where(jnp.arange(k.shape[1]) <= jnp.arange(q.shape[1])[:, None] + past, s, -1e9)
    return jnp.einsum("bkrql,blkd->bqkrd", jax.nn.softmax(s, -1), v)


def test_attention_is_one_kernel():
    limits = {"b": (1, 3), "s": (1, 300), "p": (0, 300)}
    program = Compiled(
        attention,
        spec("b, s, 2, 3, 16", **{k: limits[k] for k in "bs"}),
        *[spec("b, s + p, 2, 16", **limits)] * 2,
    )
    assert program.kernels == 1
    for b, s, p in ((1, 1, 0), (2, 1, 5), (1, 16, 0), (3, 7, 1), (1, 17, 127), (1, 1, 256), (1, 129, 0)):
        q, k, v = random((b, s, 2, 3, 16)), random((b, s + p, 2, 16), seed=1), random((b, s + p, 2, 16), seed=2)
        program.check(q, k, v, tolerance=1e-5)


def test_products_around_the_block_sizes():
    def fn(x, w, y, g):
        return jax.nn.silu(x @ w) * 2 + 1, jnp.einsum("bik,bjk->bij", y, y), jnp.tanh(g @ g.T)

    program = Compiled(
        fn, spec("n, 64", n=(0, 600)), spec("64, 96"), spec("b, s, 8", **ROWS), spec("n, m", n=(0, 600), m=(0, 600))
    )
    w = random((64, 96))
    for n, b, s, m in (
        (0, 1, 1, 3),
        (1, 1, 1, 1),
        (15, 2, 16, 17),
        (17, 3, 7, 64),
        (64, 1, 65, 127),
        (129, 1, 128, 5),
        (257, 2, 63, 0),
    ):
        program.check(random((n, 64)), w, random((b, s, 8)), random((n, m), scale=0.2), tolerance=1e-5)


def test_movement_around_the_block_sizes():
    def fn(x, y, table, ids):
        both = jnp.concatenate([x, jnp.sin(y)], 0)
        return (
            both.T,
            jnp.pad(x, ((1, 2), (0, 0)))[::-1] * 2,
            x.reshape(-1, 4, 3).transpose(1, 0, 2).reshape(4, -1),
            table[ids] + jnp.arange(6),
            jnp.sum(both, 0),
            jnp.argmax(y, 1),
        )

    limits = {"n": (1, 600), "m": (1, 600)}
    program = Compiled(
        fn,
        spec("n, 12", n=limits["n"]),
        spec("m, 12", m=limits["m"]),
        spec("50, 6"),
        spec("n", np.int32, n=limits["n"]),
    )
    table = random((50, 6))
    for n, m in ((1, 1), (2, 7), (15, 16), (17, 1), (63, 65), (127, 2), (128, 129), (257, 256)):
        ids = np.arange(n, dtype=np.int32) % 50
        program.check(random((n, 12)), random((m, 12), seed=1), table, ids, tolerance=LONG_SUMS)


def test_reductions_around_the_block_sizes():
    def fn(x):
        return jnp.sum(x, 0), jnp.max(x, 1), jnp.mean(x), jnp.argmin(x, 0), jnp.any(x > 2, 1), jnp.prod(1 + 0.01 * x, 0)

    program = Compiled(fn, spec("n, m", n=(1, 600), m=(1, 600)))
    for n, m in ((1, 1), (7, 2), (15, 17), (64, 65), (127, 129), (257, 3), (2, 600)):
        program.check(random((n, m)), tolerance=LONG_SUMS)
