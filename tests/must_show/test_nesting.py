"""A ``dvm.jit`` function inside JAX's own transformations, and its results against the plain function there."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dvm

rng = np.random.default_rng(0)
W = rng.standard_normal((6, 6)).astype(np.float32)


def plain(w: jax.Array, x: jax.Array) -> jax.Array:
    """A layer: its gradient, batched form and repetition are what a user would build from it."""
    return jnp.tanh(x @ w) + jax.nn.softmax(x, axis=-1)


layer = dvm.jit(plain)


def normal(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def check_same(got: object, want: object) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n", [1, 3, 17])
def test_alone(n: int) -> None:
    x = normal(n, 6)
    check_same(layer(W, x), plain(W, x))


@pytest.mark.parametrize("n", [1, 5])
def test_in_jit(n: int) -> None:
    x = normal(n, 6)
    check_same(jax.jit(lambda w, x: layer(w, x) * 2)(W, x), plain(W, x) * 2)


def test_in_grad_and_value_and_grad() -> None:
    x = normal(4, 6)
    loss, plain_loss = (lambda w, x, f=f: jnp.sum(f(w, x) ** 2) for f in (layer, plain))
    check_same(jax.grad(loss, (0, 1))(W, x), jax.grad(plain_loss, (0, 1))(W, x))
    check_same(jax.jit(jax.value_and_grad(loss))(W, x), jax.value_and_grad(plain_loss)(W, x))


def test_in_vmap() -> None:
    x = normal(3, 4, 6)
    check_same(jax.vmap(layer, (None, 0))(W, x), jax.vmap(plain, (None, 0))(W, x))
    check_same(jax.vmap(jax.grad(lambda x: layer(W, x).sum()))(x), jax.vmap(jax.grad(lambda x: plain(W, x).sum()))(x))


def test_in_scan() -> None:
    x, ws = normal(4, 6), normal(5, 6, 6)
    got = jax.lax.scan(lambda h, w: (layer(w, h), h.sum()), x, ws)
    check_same(got, jax.lax.scan(lambda h, w: (plain(w, h), h.sum()), x, ws))


def test_the_transformations_of_each_other() -> None:
    x = normal(2, 3, 6)

    def total(f: object, w: object, x: object) -> jax.Array:
        body = jax.vmap(lambda x: jax.lax.scan(lambda h, _: (f(w, h), None), x, None, length=3)[0].sum())
        return body(x).sum()

    check_same(jax.jit(jax.grad(lambda w: total(layer, w, x)))(W), jax.grad(lambda w: total(plain, w, x))(W))


def test_tracing_does_not_disturb_the_program() -> None:
    before = dvm.stats()
    x = normal(9, 6)
    check_same(layer(W, x), plain(W, x))
    jax.jit(layer)(W, x)
    check_same(layer(W, x), plain(W, x))
    assert (dvm.stats() - before).compiles <= 2 and len(layer.programs) <= 2
