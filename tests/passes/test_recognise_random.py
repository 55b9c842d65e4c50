"""Random chains of layers, each in one of many spellings, some spoiled: recognising and expanding leaves the meaning alone, and every
composite found is what its attributes say."""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graph_kernel.evaluate import evaluate, shape_of
from graph_kernel.ir import Graph, Node, Value
from graph_kernel.passes import expand_again, recognise
from graph_kernel.passes.base import all_graphs
from tests.passes.random_graphs import assert_same
from tests.passes.test_recognise import FORMULAS, simplified

WIDTH = 8
f32, bf16 = jnp.float32, jnp.bfloat16
Array = Any


class Layers:
    """Makes one layer after another; every choice comes from the seed."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def of(self, *items: Any) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def weight(self, *shape: int, like: Array) -> Array:
        return jnp.asarray(self.rng.standard_normal(shape) * 0.5, like.dtype)

    def layer(self, x: Array) -> Array:
        """The next layer of x[b, s, WIDTH]."""
        make = self.of(
            self.norm,
            self.norm,
            self.softmax,
            self.gelu,
            self.silu,
            self.rope,
            self.linear,
            self.attention,
            self.spoiled,
        )
        y = make(x)
        return self.of(y, y, x + y, jnp.tanh(y))

    def norm(self, x: Array) -> Array:
        wide = self.of(x, x.astype(f32))
        axis = self.of(-1, -1, 1, (1, 2))
        size = [wide.shape[a] for a in ((axis,) if isinstance(axis, int) else axis)]
        eps = self.of(1e-3, 1e-2)
        mean = self.of(
            lambda v: jnp.mean(v, axis, keepdims=True),
            lambda v: jnp.sum(v, axis, keepdims=True) / np.prod(np.asarray(size, object)),
        )
        centred = wide - mean(wide) if self.of(True, False) else wide
        variance = mean(self.of(centred**2, centred * centred, jnp.square(centred)))
        if self.of(*[False] * 4, True):
            centred = wide  # spoiled, unless nothing was subtracted
        root = self.of(lambda v: jax.lax.rsqrt(v), lambda v: 1 / jnp.sqrt(v), lambda v: jnp.reciprocal(jnp.sqrt(v)))(
            variance + eps
        )
        scale = self.weight(WIDTH, like=self.of(x, wide))
        y = self.of(
            lambda: centred * root,
            lambda: centred * root * scale,
            lambda: centred * (root * scale),
            lambda: scale * (centred * root).astype(x.dtype),
            lambda: centred / jnp.sqrt(variance + eps) + scale,
        )()
        return self.of(y, y + self.weight(WIDTH, like=y)).astype(x.dtype)

    def softmax(self, x: Array) -> Array:
        axis = self.of(-1, 1, (1, 2))
        top = x.max(self.of(axis, axis, axis, -1), keepdims=True)
        e = jnp.exp(x - top)
        total = e.sum(axis, keepdims=True)
        return self.of(lambda: jax.nn.softmax(x, axis), lambda: e / total, lambda: e * (1 / total))()

    def gelu(self, x: Array) -> Array:
        c = self.of(np.sqrt(2), np.sqrt(2), 1.4)
        half = self.of(0.5, 0.5, 0.6)
        return self.of(
            lambda: jax.nn.gelu(x),
            lambda: jax.nn.gelu(x, approximate=False),
            lambda: x * half * (1 + jax.scipy.special.erf(x / c)),
            lambda: (jax.scipy.special.erf(x / c) + 1) * (half * x),
            lambda: half * (x * (1 + jnp.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))),
        )()

    def silu(self, x: Array) -> Array:
        beta = self.of(1, 1.702)
        return self.of(lambda: jax.nn.silu(x), lambda: x / (1 + jnp.exp(-x)), lambda: jax.nn.sigmoid(beta * x) * x)()

    def rope(self, x: Array) -> Array:
        h = self.of(WIDTH // 2, WIDTH // 2, WIDTH // 2 - 1)
        angles = jnp.arange(x.shape[1])[:, None] * self.rng.standard_normal(WIDTH // 2)
        cos, sin = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
        both = [jnp.concatenate([t, t], -1) for t in (cos, sin)]
        a, b = x[..., : WIDTH // 2], x[..., WIDTH // 2 :]
        return self.of(
            lambda: x * both[0] + jnp.concatenate([-x[..., h:], x[..., :h]], -1) * both[1],
            lambda: jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1),
        )()

    def linear(self, x: Array) -> Array:
        y = x @ self.weight(WIDTH, WIDTH, like=x)
        return self.of(y + self.weight(WIDTH, like=x), y + x, jax.nn.relu(y), y)

    def attention(self, x: Array) -> Array:
        q, k, v = (x @ self.weight(WIDTH, WIDTH, like=x) for _ in range(3))
        s = self.of(
            lambda: jnp.einsum("bqd,bkd->bqk", q, k) * 0.5,
            lambda: jnp.einsum("bqd,bkd->bqk", q * 0.25, k, preferred_element_type=f32),
        )()
        rows, keys = jnp.arange(s.shape[1])[:, None], jnp.arange(s.shape[2])
        s = self.of(
            lambda: s,
            lambda: jnp.where(keys <= rows, s, -jnp.inf),
            lambda: s + jnp.where(keys < rows, 0, -1e30).astype(s.dtype),
            lambda: jnp.where(keys < rows, s, -jnp.inf),
        )()
        p = jax.nn.softmax(s, -1)
        p = jnp.where(jnp.isnan(p), 0, p)
        return jnp.einsum("bqk,bkd->bqd", p.astype(x.dtype), v)

    def spoiled(self, x: Array) -> Array:
        return self.of(x * jax.nn.sigmoid(x[:, :, ::-1]), jnp.maximum(x, 0.25), jnp.exp(-jnp.abs(x)))


def random_layers(seed: int, dtype: Any) -> Graph:
    """The simplified graph of two to five random layers of x[b, s, WIDTH]; now and then an inner value is a result too."""
    n = 2 + seed % 4

    def fn(x: Array) -> Any:
        layers = Layers(seed)
        values = [x]
        for _ in range(n):
            values.append(layers.layer(values[-1]))
        return (values[-1], values[len(values) // 2]) if seed % 3 == 0 else values[-1]

    return simplified(fn, (f"b, s, {WIDTH}", dtype))


def check_attributes(node: Node, dims: dict[str, int], rng: np.random.Generator) -> None:
    """The body of one composite against the formula of its attributes, on data of its own."""
    if node.op not in FORMULAS or any(v.dtype != np.float32 for v in (*node.inputs, node.output)):
        return
    body: Graph = node.attrs["body"]
    if node.op == "linear" and any(len(axes) != 0 for n in body.nodes if n.op == "dot" for axes in n.attrs["batch"]):
        return
    arrays = [np.asarray(rng.standard_normal(shape_of(v, dims))).astype(v.dtype) for v in node.inputs]
    (got,) = evaluate(body, arrays, dims)
    want = FORMULAS[node.op](arrays[0], node.attrs, *arrays[1:])
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5, err_msg=f"{node.op} {node.attrs}")


def check(seed: int, dtype: Any, counts: Counter[str]) -> None:
    graph = random_layers(seed, dtype)
    rng = np.random.default_rng(seed)
    runs = []
    for b, s in ((1, 1), (2, 5)):
        dims = {k: n for k, n in (("b", b), ("s", s)) if k in graph.scope.symbols}
        x = rng.standard_normal((b, s, WIDTH)).astype(dtype)
        runs.append((dims, [x], evaluate(graph, [x], dims)))
    tol = 5e-2 if dtype == bf16 else 2e-4
    recognise(graph, verify=True)
    nodes = [node for g in all_graphs(graph) for node in g.nodes]
    counts.update(node.op for node in nodes)
    for node in nodes:
        check_attributes(node, runs[-1][0], rng)
    for dims, arrays, want in runs:
        assert_same(evaluate(graph, arrays, dims), want, tol=tol)
    expand_again(graph, verify=True)
    for dims, arrays, want in runs:
        assert_same(evaluate(graph, arrays, dims), want, tol=tol)


def test_random_layers() -> None:
    counts: Counter[str] = Counter()
    for seed in range(24):
        check(seed, (f32, bf16)[seed % 4 == 3], counts)
    for op in ("layer_norm", "rms_norm", "softmax", "gelu", "silu", "rope", "attention", "linear"):
        assert counts[op], f"no {op} was found: the test says nothing about it"


@pytest.mark.slow
def test_many_random_layers() -> None:
    counts: Counter[str] = Counter()
    for seed in range(24, 2000):
        check(seed, (f32, bf16)[seed % 4 == 3], counts)
    assert min(counts[op] for op in FORMULAS) > 50


def test_values_are_never_shared_between_bodies() -> None:
    """A body's nodes are its own, so that expanding one cannot change another."""
    graph = random_layers(9, f32)
    recognise(graph)
    seen: set[Value] = {v for node in graph.nodes for v in node.outputs}
    for node in graph.nodes:
        if "body" in node.attrs:
            mine = {v for n in node.attrs["body"].nodes for v in n.outputs}
            assert not mine & seen
            seen |= mine
