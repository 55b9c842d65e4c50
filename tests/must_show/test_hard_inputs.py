"""Small inputs on which comparable systems fail, on the machine: the right value at every legal size with exactly one compile of the graph,
and no XLA compile during the launches."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dvm
from tests.graph_kernel.onnx_harness import parse as model_of

rng = np.random.default_rng(0)
EDGES = (0, 1, 7, 127, 128, 129)  # 0, 1, a prime, around a lane row


def normal(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def close(got: Any, want: Any, tol: float = 2e-5) -> None:
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=tol, atol=tol)


@contextlib.contextmanager
def one_compile() -> Iterator[None]:
    """Around the compile and all launches."""
    before = dvm.stats()
    yield
    used = dvm.stats() - before
    assert used.compiles == 1 and used.host_ops == 0


@contextlib.contextmanager
def no_compile() -> Iterator[None]:
    """Around launches after the program was made for its maxima."""
    before = dvm.stats()
    yield
    assert (dvm.stats() - before).xla_compiles == 0


def test_a_dim_that_only_its_double_shows() -> None:
    """Inputs [2a] and [2b] with a == b."""
    with one_compile():
        program = dvm.compile(
            lambda x, y: x + y, dvm.spec("2*a"), dvm.spec("2*b"), constraints=["a == b"], dims={"a": dvm.Dim(max=99)}
        )
        for a in (1, 7, 64):
            x, y = normal(2 * a), normal(2 * a)
            close(program(x, y), x + y)
    with pytest.raises(dvm.ShapeError, match="x.*axis 0"):
        program(normal(7), normal(7))
    with pytest.raises(dvm.ShapeError):
        program(normal(6), normal(8))


def test_sizes_of_zero() -> None:
    model = model_of("""f (float[b, 3] x) => (float[b, 3] y, float[3] s, float[c, 3] z, float[3] m) {
        y = Add(x, x)  axes = Constant<value = int64[1] {0}>()
        s = ReduceSum<keepdims = 0>(x, axes)  z = Concat<axis = 0>(x, y)  m = ReduceMax<keepdims = 0>(x, axes) }""")
    with one_compile():
        program = dvm.compile(model, dims={"b": dvm.Dim(min=0, max=200)})
        with no_compile():
            for b in EDGES:
                x = normal(b, 3)
                y, s, z, m = program(x)
                close(y, x + x)
                close(s, x.sum(0), 1e-4)
                close(z, np.concatenate([x, x + x]))
                close(m, x.max(0, initial=-np.inf))


def test_a_declared_multiple() -> None:
    with one_compile():
        program = dvm.compile(lambda x: x.reshape(-1, 8).sum(-1), dvm.spec("b", b=dvm.Dim(multiple_of=8, max=512)))
        for b in (8, 16, 120, 128, 136):
            x = normal(b)
            close(program(x), x.reshape(-1, 8).sum(-1))
    with pytest.raises(dvm.ShapeError, match="b.*multiple of 8"):
        program(normal(12))


def test_two_hundred_lengths() -> None:
    def fn(x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.exp(-x * x) + x, axis=-1)

    with one_compile():
        program = dvm.compile(fn, dvm.spec("3, n", n=dvm.Dim(max=200)))
        with no_compile():
            for n in range(1, 201):
                x = normal(3, n)
                close(program(x), (np.exp(-x * x) + x).sum(-1), 1e-4)


def attention(q: Any, k: Any, v: Any, mask: Any) -> Any:
    scores = jnp.einsum("hsd,htd->hst", q, k) / np.sqrt(q.shape[-1])
    return jnp.einsum("hst,htd->hsd", jax.nn.softmax(jnp.where(mask, scores, -1e30), axis=-1), v)


def expected_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: Any) -> np.ndarray:
    """The same in NumPy, which compiles nothing."""
    scores = np.where(mask, np.einsum("hsd,htd->hst", q, k) / np.sqrt(q.shape[-1]), -1e30)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hst,htd->hsd", weights / weights.sum(-1, keepdims=True), v)


def test_causal_attention_at_every_length() -> None:
    """The mask is one wider than the sequence, as buffers for the next token are."""

    def fn(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return attention(q, k, v, mask[:, :-1])

    qkv = dvm.spec("2, s, 8", s=dvm.Dim(max=64))
    with one_compile():
        program = dvm.compile(fn, qkv, qkv, qkv, dvm.spec("s, s + 1", jnp.bool_))
        with no_compile():
            for s in range(1, 65):
                q, k, v = normal(2, s, 8), normal(2, s, 8), normal(2, s, 8)
                mask = np.tril(np.ones((s, s + 1), bool))
                close(program(q, k, v, mask), expected_attention(q, k, v, mask[:, :-1]))


def test_past_and_new_keys() -> None:
    def fn(past: Any, q: Any, new: Any) -> Any:
        keys = jnp.concatenate([past, new], axis=1)
        return keys, attention(q, keys, keys, True)

    p, s = dvm.Dim(min=0, max=64), dvm.Dim(max=16)
    with one_compile():
        program = dvm.compile(fn, dvm.spec("2, p, 8", p=p), dvm.spec("2, s, 8", s=s), dvm.spec("2, s, 8", s=s))
        for past, new in itertools.product((0, 1, 7), (1, 5)):
            cache, q, x = normal(2, past, 8), normal(2, new, 8), normal(2, new, 8)
            keys, out = program(cache, q, x)
            close(keys, np.concatenate([cache, x], axis=1))
            close(out, expected_attention(q, np.asarray(keys), np.asarray(keys), True))


def test_a_symbol_against_a_number() -> None:
    program = dvm.compile(model_of("f (float[B, 16] x, float[4, 16] y) => (float[N, 16] z) { z = Add(x, y) }"))
    for b in (1, 4):
        x, y = normal(b, 16), normal(4, 16)
        close(program(x, y)[0], x + y)
    with pytest.raises(dvm.ShapeError, match="(?i)add"):
        program(normal(3, 16), normal(4, 16))
    assert any("Add" in line and "4" in line for line in program.constraints)
    with pytest.raises(dvm.CompileError, match="B"):
        dvm.compile(lambda x, y: x + y, dvm.spec("B, 16"), dvm.spec("4, 16"))


def test_three_operands_of_sizes_0_1_and_5() -> None:
    model = model_of("f (float[a] x, float[b] y, float[c] z) => (float[n] r) { t = Add(x, y)  r = Mul(t, z) }")
    with one_compile():
        program = dvm.compile(model, dims={name: dvm.Dim(min=0, max=9) for name in "abc"})
        for sizes in itertools.product((0, 1, 5), repeat=3):
            x, y, z = map(normal, sizes)
            try:
                want = (x + y) * z
            except ValueError:
                with pytest.raises(dvm.ShapeError):
                    program(x, y, z)
            else:
                close(program(x, y, z)[0], want)


def test_padding_to_at_least_16() -> None:
    def fn(x: Any) -> Any:
        n = x.shape[0]
        return jnp.pad(x, (0, jax.core.max_dim(n, 16) - n)) * 2

    with one_compile():
        program = dvm.compile(fn, dvm.spec("s", s=dvm.Dim(max=64)))
        for s in (1, 15, 16, 17):
            x = normal(s)
            close(program(x), np.pad(x, (0, max(s, 16) - s)) * 2)


def test_a_size_that_equals_a_constant_of_the_model() -> None:
    def fn(x: Any) -> Any:
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)

    with one_compile():
        program = dvm.compile(fn, dvm.spec("s, 256", s=dvm.Dim(max=512)))
        for s in (1, 255, 256, 257):
            x = normal(s, 256)
            close(program(x), fn(x))
    assert program.constraints == ['1 <= s <= 512  (Dim("s"))']


def test_a_transpose_then_a_reshape() -> None:
    with one_compile():
        program = dvm.compile(
            lambda x: jnp.transpose(x, (0, 2, 1)).reshape(-1, 80) + 1, dvm.spec("u, 4, 20", u=dvm.Dim(max=200))
        )
        for u in (1, 7, 127, 128, 129):
            x = normal(u, 4, 20)
            close(program(x), x.transpose(0, 2, 1).reshape(-1, 80) + 1)


@pytest.mark.parametrize("shapes", [("2*s", "s"), ("s", "2*s")])
def test_a_double_and_its_half(shapes: tuple[str, str]) -> None:
    with one_compile():
        program = dvm.compile(lambda x, y: jnp.sum(x) * y, *(dvm.spec(text, s=dvm.Dim(max=64)) for text in shapes))
        for s in (1, 7, 33):
            x, y = (normal(2 * s if text == "2*s" else s) for text in shapes)
            close(program(x, y), x.sum() * y, 1e-4)
    with pytest.raises(dvm.ShapeError):
        program(*(normal(9 if text == "2*s" else 4) for text in shapes))


def test_each_launch_plans_from_its_own_sizes() -> None:
    def fn(w: Any, x: Any) -> Any:
        h = jnp.tanh(x @ w)
        return h, jax.nn.softmax(h, axis=0), h.sum(0)

    w = normal(8, 8)
    with one_compile():
        program = dvm.compile(fn, dvm.spec("8, 8"), dvm.spec("s, 8", s=dvm.Dim(max=128)))
        with no_compile():
            for s in (32, 1, 64, 32, 1, 128):
                x = normal(s, 8)
                h = np.tanh(x @ w)
                for got, want in zip(program(w, x), (h, np.exp(h) / np.exp(h).sum(0), h.sum(0)), strict=True):
                    close(got, want, 1e-4)


def test_two_inputs_that_name_the_same_dim() -> None:
    program = dvm.compile(model_of("f (float[n] first, float[n] second) => (float[n] y) { y = Add(first, second) }"))
    close(program(np.ones(5, np.float32), np.ones(5, np.float32))[0], np.full(5, 2.0))
    with pytest.raises(dvm.ShapeError, match="(?s)first.*second|second.*first"):
        program(normal(4), normal(6))


def test_a_baked_reshape() -> None:
    model = model_of("""f (float[B, 6, 144] x) => (float[5, n, 144] y) {
        to = Constant<value = int64[3] {5, -1, 144}>()  r = Reshape(x, to)  y = Neg(r) }""")
    with one_compile():
        program = dvm.compile(model, dims={"B": dvm.Dim(max=64)})
        for b in (5, 10, 55):
            x = normal(b, 6, 144)
            close(program(x)[0], -x.reshape(5, -1, 144))
    with pytest.raises(dvm.ShapeError, match="Reshape"):
        program(normal(4, 6, 144))


def test_a_chain_that_computes_a_shape() -> None:
    model = model_of("""f (float[batch, seq, 8] x) => (float[n, 8] y, float[batch, seq, 2, 4] z) {
        shape = Shape(x)  zero = Constant<value = int64[1] {0}>()  one = Constant<value = int64[1] {1}>()
        b = Gather(shape, zero)  s = Gather(shape, one)  bs = Mul(b, s)
        eight = Constant<value = int64[1] {8}>()  flat = Concat<axis = 0>(bs, eight)  y0 = Reshape(x, flat)  y = Exp(y0)
        heads = Constant<value = int64[2] {2, 4}>()  to = Concat<axis = 0>(b, s, heads)  z0 = Reshape(x, to)  z = Neg(z0) }""")
    with one_compile():
        program = dvm.compile(model, dims={"batch": dvm.Dim(max=16), "seq": dvm.Dim(max=64)})
        for b, s in ((1, 1), (2, 7), (16, 64)):
            x = normal(b, s, 8)
            y, z = program(x)
            close(y, np.exp(x.reshape(b * s, 8)))
            close(z, -x.reshape(b, s, 2, 4))
    assert {op for kernel in program.kernels for op in kernel.ops} == {"exp", "neg"}
    assert program.outputs[0].text == ("batch*seq", "8")


def test_block_scaling() -> None:
    def fn(x: Any, w: Any) -> Any:
        m, k = x.shape
        blocks = x.reshape(m, k // 16, 16)
        scaled = blocks / jnp.max(jnp.abs(blocks), axis=-1, keepdims=True)
        return scaled.reshape(m, k).T @ w

    with one_compile():
        k = dvm.Dim(multiple_of=16, max=160)
        program = dvm.compile(fn, dvm.spec("m, k", m=dvm.Dim(max=512), k=k), dvm.spec("m, 24"))
        for m, k in ((1, 16), (7, 48), (512, 144)):
            x, w = normal(m, k), normal(m, 24)
            close(program(x, w), fn(x, w), 2e-4)


def test_one_element_spread_over_a_matrix() -> None:
    model = model_of("""f (float[1] v, float[1, 5] w, float[4] u) => (float[4, 5] y, float[4, 4] z) {
        to = Constant<value = int64[2] {4, 5}>()  e = Expand(v, to)  y = Add(e, w)
        square = Constant<value = int64[2] {4, 4}>()  z = Expand(u, square) }""")
    v, w, u = normal(1), normal(1, 5), normal(4)
    y, z = dvm.compile(model)(v, w, u)
    close(y, np.broadcast_to(v, (4, 5)) + w)
    close(z, np.broadcast_to(u, (4, 4)))


def test_unnamed_dims_are_different() -> None:
    model = model_of("f (float[?, 4] x, float[?, 4] y) => (float[n, 4] z) { z = Concat<axis = 0>(x, y) }")
    program = dvm.compile(model)
    x, y = normal(3, 4), normal(5, 4)
    close(program(x, y)[0], np.concatenate([x, y]))
    assert len(program.symbols) == 2


def branches(x: Any, y: Any) -> Any:
    return jax.lax.cond(jnp.mean(x) > 0, lambda: x + y, lambda: x - y)


def test_both_branches_in_one_program() -> None:
    b, s = dvm.Dim(max=8), dvm.Dim(max=64)
    spec = dvm.spec("b, s, 5", b=b, s=s)
    before = dvm.stats()
    program = dvm.compile(branches, spec, spec)
    for (n, m), sign in itertools.product(((1, 1), (3, 7), (8, 64)), (1, -1)):
        x, y = np.abs(normal(n, m, 5)) * np.float32(sign), normal(n, m, 5)
        close(program(x, y), x + sign * y)
    assert (dvm.stats() - before).compiles == 1
