"""Small inputs on which comparable systems fail, as far as the graph decides them: one trace, right values at every size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graph_kernel.evaluate import evaluate
from graph_kernel.from_jaxpr import from_closed_jaxpr, trace
from symbolic import divides, eq, solve, symbol
from tests.graph_kernel.jaxpr_cases import D, check, host_ops, ops_of, sample, specs
from vm.errors import CompileError

F32, I32 = jnp.float32, jnp.int32


def recipe(traced):
    """How the symbols are computed from the input sizes."""
    graph = traced.graph
    return solve(graph.scope, [(v.name, a, d) for v in graph.inputs for a, d in enumerate(v.shape)])


def test_equal_dims_of_a_constraint():
    args = specs(("2*a", F32), ("2*b", F32), constraints=["a == b"])
    traced = check(lambda x, y: x + y, args, [{"b": n} for n in (1, 2, 7)])
    assert traced.graph.outputs[0].shape == (2 * symbol("b"),)
    assert not traced.graph.scope.checks
    steps = dict(recipe(traced).steps)
    assert steps["b"].evaluate({"@0": 6}) == 3


def test_a_declared_range_of_a_dim_that_a_constraint_replaced():
    args = specs(("2*a", F32), ("2*b", F32), constraints=["a == b"])
    traced = trace(lambda x, y: x + y, args, dims={"a": D("a", max=100)})
    assert traced.graph.scope.bounds(traced.graph.inputs[1].shape[0]) == (2, 200)


def test_sizes_of_zero():
    def fn(x):
        return x + 1, x.sum(0), x.sum(), jnp.concatenate([x, x]), x.T @ x, x.astype(I32).prod(0), jnp.cumsum(x, 0)

    traced = check(fn, specs(("b, 4", F32)), [{"b": n} for n in (0, 1, 5)], dims={"b": D("b", min=0)})
    assert not traced.graph.scope.checks


def test_maximum_over_a_size_that_may_be_zero():
    with pytest.raises(CompileError, match=r'b >= 1 .*test_jaxpr_cases.py.*Dim\("b", min=1\)'):
        trace(lambda x: x.max(0), specs(("b, 4", F32)), dims={"b": D("b", min=0)})


def test_reshape_of_a_declared_multiple():
    args, dims = specs(("b", F32)), {"b": D("b", multiple_of=8)}
    traced = check(lambda x: x.reshape(-1, 8) + 1, args, [{"b": n} for n in (8, 16, 24)], dims=dims)
    assert traced.graph.scope.proves(divides(8, traced.graph.inputs[0].shape[0]))
    assert not traced.graph.scope.checks and not traced.graph.scope.holds({"b": 12})
    with pytest.raises(CompileError, match=r'a multiple of 8 .*Dim\("b", multiple_of=8\)'):
        trace(lambda x: x.reshape(-1, 8), args)


def test_arithmetic_on_a_multiple_of_eight():
    def fn(x):
        c = x.shape[0]
        return x[: c - c % 4], x[: c - (2 * c) % 16], jnp.zeros(c // 2 + (c + 1) // 2) + x

    dims = {"c": D("c", min=0, multiple_of=8)}
    traced = check(fn, specs(("c", F32)), [{"c": n} for n in (0, 8, 24)], dims=dims)
    scope, (x,) = traced.graph.scope, traced.graph.inputs
    assert all(scope.equal(v.shape[0], x.shape[0]) for v in traced.graph.outputs) and not scope.checks


def test_one_trace_for_two_hundred_lengths():
    traced = trace(lambda x: jnp.tanh(x * 2).sum(-1), specs(("n, 3", F32)))
    for n in range(1, 201):
        x = sample((n, 3), np.float32, n)
        np.testing.assert_allclose(
            evaluate(traced.graph, [x], {"n": n})[0], np.tanh(x * 2).sum(-1), rtol=1e-4, atol=1e-5
        )


def attention(q, k, v, mask):
    scores = jnp.where(mask[:, :-1], q @ k.swapaxes(-1, -2) / 2, -jnp.inf)
    return jax.nn.softmax(scores) @ v


def test_causal_attention_at_every_length():
    def fn(q, k, v):
        s = q.shape[1]
        return attention(q, k, v, jnp.tril(jnp.ones((s, s + 1), bool)))

    args = specs(*[("b, s, 4", F32)] * 3)
    traced = trace(fn, args)
    assert not traced.graph.scope.checks
    for s in range(1, 65):
        q, k, v = (sample((2, s, 4), np.float32, i) for i in range(3))
        scores = np.where(np.tril(np.ones((s, s), bool)), q @ k.swapaxes(-1, -2) / 2, -np.inf)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        want = p / p.sum(-1, keepdims=True) @ v
        np.testing.assert_allclose(evaluate(traced.graph, [q, k, v], {"b": 2, "s": s})[0], want, rtol=1e-4, atol=1e-5)


def test_past_keys_of_any_length():
    def fn(past, new):
        keys = jnp.concatenate([past, new], 1)
        return keys, new @ keys.swapaxes(1, 2)

    sizes = [{"b": 2, "p": p, "s": s} for p in (0, 1, 7) for s in (1, 3)]
    traced = check(fn, specs(("b, p, 4", F32), ("b, s, 4", F32)), sizes, dims={"p": D("p", min=0)})
    assert str(traced.graph.outputs[0].shape[1]) == "p + s"


def test_an_addition_that_is_right_at_some_sizes_only():
    with pytest.raises(CompileError, match=r"every size of B .*\(B, 16\), \(4, 16\)"):
        trace(lambda x, y: x + y, specs(("B, 16", F32), ("4, 16", F32)))


def test_padding_to_at_least_sixteen():
    def fn(x):
        return jnp.pad(x, (0, jax.core.max_dim(16 - x.shape[0], 0)), constant_values=7.0)

    traced = check(fn, specs(("s", F32)), [{"s": n} for n in (1, 15, 16, 17)])
    scope = traced.graph.scope
    assert not scope.checks and scope.proves(eq(traced.graph.outputs[0].shape[0], jax_max(symbol("s"), 16)))


def jax_max(a, b):
    from symbolic import smax

    return smax(a, b)


def test_rms_norm_assumes_nothing_about_a_size_that_equals_another():
    def fn(x, w):
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w

    traced = check(fn, specs(("s, 256", F32), ("256", F32)), [{"s": n} for n in (1, 255, 256)])
    assert not traced.graph.scope.checks and not traced.graph.scope.facts


def test_transpose_then_reshape():
    traced = check(
        lambda x: x.transpose(1, 0, 2).reshape(-1, 80), specs(("u, 4, 20", F32)), [{"u": n} for n in (1, 2, 13)]
    )
    assert not traced.graph.scope.checks


def test_symbols_are_solved_from_what_is_given():
    traced = check(lambda x: x * x.shape[0], specs(("2*s", F32)), [{"s": n} for n in (1, 5)])
    assert dict(recipe(traced).steps)["s"].evaluate({"@0": 10}) == 5
    both = trace(lambda x, y: x.sum() + y, specs(("2*s", F32), ("s", F32)))
    assert [name for name, _ in recipe(both).steps] == ["s"]


def test_one_program_for_both_branches():
    def fn(x, y):
        return jax.lax.cond(x.mean() > 0, lambda: x + y, lambda: x - y)

    traced = check(fn, specs(*[("b, s, f", F32)] * 2), [{"b": 1, "s": 2, "f": 3}, {"b": 2, "s": 1, "f": 5}])
    for sign in (1.0, -1.0):
        x = np.full((1, 2, 2), sign, np.float32)
        (out,) = evaluate(traced.graph, [x, np.ones_like(x)], {"b": 1, "s": 2, "f": 2})
        assert (out == (2 if sign > 0 else -2)).all()
    assert ops_of(traced).count("cond") == 1


# ---- a decoder block


def rope(x, positions):
    angles = positions[:, None] * 10000.0 ** (-jnp.arange(0, x.shape[-1], 2) / x.shape[-1])
    a, b = jnp.split(x, 2, axis=-1)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def decoder(params, ids, past_k, past_v):
    """Embedding, grouped-query attention over a cache, SwiGLU and a head, 8 wide."""

    def norm(x, w):
        return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6) * w

    def heads(x, n):
        return x.reshape(*x.shape[:2], n, 4).transpose(0, 2, 1, 3)

    x = jnp.take(params["embed"], ids, axis=0)
    past, s = past_k.shape[2], ids.shape[1]
    h = norm(x, params["norm"])
    positions = past + jnp.arange(s)
    q, k, v = (heads(h @ params[n], c) for n, c in (("q", 2), ("k", 1), ("v", 1)))
    q, k = rope(q, positions), rope(k, positions)
    k, v = jnp.concatenate([past_k, k], 2), jnp.concatenate([past_v, v], 2)
    scores = jnp.einsum("bhqd,bkd->bhqk", q, k[:, 0]) / 2
    mask = positions[:, None] >= jnp.arange(past + s)
    p = jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(scores.dtype).min), -1)
    o = jnp.einsum("bhqk,bkd->bqhd", p, v[:, 0]).reshape(*x.shape)
    x = x + o @ params["o"]
    h = norm(x, params["norm"])
    x = x + (jax.nn.silu(h @ params["gate"]) * (h @ params["up"])) @ params["down"]
    return x[:, -1] @ params["embed"].T, k, v


@pytest.mark.parametrize("dtype", [F32, jnp.bfloat16])
def test_decoder_block_with_a_cache(dtype):
    shapes = {"embed": "11, 8", "norm": "8", "q": "8, 8", "k": "8, 4", "v": "8, 4", "o": "8, 8",
              "gate": "8, 16", "up": "8, 16", "down": "16, 8"}  # fmt: skip
    args = specs(*[(t, dtype) for t in shapes.values()], ("b, s", I32), ("b, 1, p, 4", dtype), ("b, 1, p, 4", dtype))

    def fn(*flat):
        return decoder(dict(zip(shapes, flat[: len(shapes)], strict=True)), *flat[len(shapes) :])

    def data(arrays, size):
        return [a if a.dtype != np.int32 else np.abs(a) for a in arrays]

    sizes = [{"b": 1, "s": 1, "p": 0}, {"b": 2, "s": 5, "p": 0}, {"b": 2, "s": 1, "p": 7}, {"b": 1, "s": 3, "p": 1}]
    tol = 1e-4 if dtype == F32 else 1.5e-1
    traced = check(fn, args, sizes, dims={"p": D("p", min=0), "s": D("s", max=64)}, data=data, tol=tol)
    assert not host_ops(traced) and not traced.graph.scope.checks


def test_a_closed_jaxpr():
    (x,) = specs(("b, s", F32))
    closed = jax.make_jaxpr(lambda x: (x.sum(0), x * x.shape[1]))(x)
    traced = from_closed_jaxpr(closed, dims={"b": D("b", max=9)})
    out = evaluate(traced.graph, [np.ones((3, 2), np.float32)], {"b": 3, "s": 2})
    assert out[0].tolist() == [3, 3] and (out[1] == 2).all()
    assert traced.graph.scope.bounds(traced.graph.inputs[0].shape[0]) == (1, 9)
