"""Every primitive that the front end maps, against ``jax.jit``: one trace, several sizes, 0 and 1 among them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.graph_kernel.jaxpr_cases import D, check, host_ops, ops_of, specs

F32, I32 = jnp.float32, jnp.int32
ZERO = {"b": D("b", min=0)}
SIZES = [{"b": 0, "s": 3}, {"b": 1, "s": 1}, {"b": 5, "s": 7}]
POSITIVE = SIZES[1:]


def unary(x):
    return [
        f(x)
        for f in (
            lax.neg, lax.abs, lax.sign, lax.floor, lax.ceil, lax.exp, lax.exp2, lax.expm1, lax.cbrt, lax.square, lax.sin,
            lax.cos, lax.tan, lax.atan, lax.sinh, lax.cosh, lax.tanh, lax.asinh, lax.erf, lax.erfc, lax.logistic,
            lax.is_finite, lax.round, lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
        )
    ]  # fmt: skip


def unary_in_a_domain(x):
    y = lax.abs(x) + 0.5
    z = x / 8
    return [lax.log(y), lax.log1p(y), lax.sqrt(y), lax.rsqrt(y), lax.acosh(y + 1), lax.asin(z), lax.acos(z), lax.atanh(z),
            lax.erf_inv(z), lax.integer_pow(y, 5), lax.integer_pow(y, -3), lax.integer_pow(y, 0), y**0.7]  # fmt: skip


def special(x):
    y = lax.abs(x) + 0.5
    return [lax.lgamma(y), lax.digamma(y), lax.bessel_i0e(x), lax.bessel_i1e(x), lax.igamma(y, y + 1), lax.igammac(y, y),
            lax.nextafter(x, y), lax.bitcast_convert_type(x, I32)]  # fmt: skip


def binary(x, y):
    p = y > 0
    return [x + y, x - y, x * y, x / (y + 5), lax.rem(x, y), lax.max(x, y), lax.min(x, y), lax.atan2(x, y), x == y, x != y,
            x < y, x <= y, x > y, x >= y, lax.select(p, x, y), jnp.where(p, x, 2.0), lax.clamp(-0.5, x, 0.5),
            jnp.clip(x, -1, y), p & (x > 0), p | (x > 0), p ^ (x > 0), ~p, x % 0.7, x // 0.3,
            lax.select_n(lax.convert_element_type(p, I32) + (x > 1), x, y, x * y), lax.pow(lax.abs(x), 3)]  # fmt: skip


def integers(i, u):
    return [i // 3, i % 3, lax.div(i, i * 0 - 2), lax.rem(i, i * 0 + 3), i >> 1, i << 2, ~i, i & 3, i | 1, i ^ 2, i**2,
            jnp.abs(i), lax.sign(i), u >> 2, lax.shift_right_logical(i, 3 + 0 * i), lax.population_count(i), lax.clz(i),
            i.sum(), i.prod(0), i.max(1, initial=-9), (i > 0).all(), (i > 0).any(1), i.astype(F32), u.astype(jnp.bool_),
            lax.max(i > 0, i > 1)]  # fmt: skip


def views(x):
    return [x.reshape(-1), x.reshape(-1, 2), x.T, x[:, None], x[..., None, :], jnp.squeeze(x[:, None], 1), x[1:], x[:-1], x[:, -1],
            x[:, 0:2], x[:, ::2], x[::-1], x[::2], jnp.flip(x, 1), jnp.pad(x, ((1, 2), (0, 1))),
            lax.pad(x, 0.5, ((0, 1, 1), (-1, 0, 2))), jnp.concatenate([x, 2 * x], 1), jnp.stack([x, x], 1), jnp.tile(x, (2, 3)),
            jnp.split(x, 2, 1), jnp.broadcast_to(x[:, None], (x.shape[0], 3, 4)), jnp.repeat(x, 2, 0), jnp.moveaxis(x, 0, 1),
            jnp.arange(x.shape[0]), jnp.tril(x.T @ x), jnp.array(x.shape[0]) * x, jnp.zeros_like(x), jnp.eye(4),
            list(lax.split(x, (1, 3), 1)), jnp.roll(x, 1, 1)]  # fmt: skip


def reductions(x):
    return [x.sum(), x.sum(0), x.mean(1), x.prod(0), x.max(1), x.min(1), jnp.var(x, 1), jnp.std(x, 1), jnp.argmax(x, 1),
            jnp.argmin(x, 1), jnp.cumsum(x, 0), jnp.cumsum(x, 1), jnp.cumprod(x, 1), lax.cummax(x, 1), lax.cummin(x, 1),
            lax.cumlogsumexp(x, 1), lax.cumsum(x, 1, reverse=True), jax.nn.softmax(x), jax.nn.logsumexp(x, 1),
            jax.nn.log_softmax(x), lax.reduce(x, np.float32(0), lax.add, (1,)),
            lax.reduce(x, np.float32(-np.inf), lax.max, (1,))]  # fmt: skip


@pytest.mark.parametrize("fn", [unary, unary_in_a_domain, special], ids=lambda f: f.__name__)
def test_unary(fn):
    check(fn, specs(("b, s", F32)), SIZES, dims=ZERO, tol=1e-4)


def test_binary():
    check(binary, specs(("b, s", F32), ("b, s", F32)), SIZES, dims=ZERO)


def test_integers():
    check(integers, specs(("b, s", I32), ("b, s", jnp.uint32)), SIZES, dims=ZERO)


def test_views():
    traced = check(views, specs(("b, 4", F32)), [{"b": b} for b in (1, 2, 7)])
    assert not host_ops(traced)


def test_reductions():
    traced = check(reductions, specs(("b, s", F32)), SIZES, dims=ZERO, tol=1e-4)
    assert not host_ops(traced)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision(dtype):
    def fn(x, y):
        return [x @ y.T, jax.nn.softmax(x), x.sum(1), lax.dot(x, y.T, preferred_element_type=F32), jax.nn.gelu(x), x * 2 + y[:1],
                x.astype(F32), jnp.cumsum(x, 1)]  # fmt: skip

    check(fn, specs(("b, s", dtype), ("3, s", dtype)), SIZES, dims=ZERO, tol=3e-2)


def test_casts():
    def fn(x):
        wide = x * 100
        return [wide.astype(t) for t in (jnp.bfloat16, jnp.float16, I32, jnp.int8, jnp.uint8, jnp.bool_)] + [
            lax.reduce_precision(x, 8, 7),
            lax.reduce_precision(x, 5, 10),
        ]

    check(fn, specs(("b, s", F32)), POSITIVE)


def test_products():
    def fn(x, y):
        return [jnp.einsum("bs,ts->bt", x, y), jnp.einsum("bs,ts->ts", x, y), jnp.outer(x[0], y[0]), jnp.dot(x, y.T),
                jnp.einsum("bs,bs->b", x, x), lax.batch_matmul(x[:, None], x[:, :, None]), x[0] @ y[0],
                lax.dot_general(y, x, (((1,), (1,)), ((), ())))]  # fmt: skip

    traced = check(fn, specs(("b, s", F32), ("3, s", F32)), POSITIVE)
    assert not host_ops(traced)


def test_integer_product():
    def fn(x, y):
        return lax.dot_general(x, y, (((1,), (1,)), ((), ())), preferred_element_type=I32)

    check(fn, specs(("b, s", jnp.int8), ("3, s", jnp.int8)), SIZES, dims=ZERO)


def indices(arrays, size):
    """Indices inside, at the ends and outside."""
    rng = np.random.default_rng(1)
    return [a if a.dtype != np.int32 else rng.integers(-3, 4, a.shape).astype(np.int32) for a in arrays]


def test_takes_are_not_host_ops():
    def fn(x, i):
        return [jnp.take(x, i, axis=0), jnp.take(x, i, axis=1), jnp.take(x, i, axis=1, mode="clip"), x[i], x[:, i],
                x.at[i].get(mode="fill", fill_value=7.0), x.at[i, 1].get(mode="fill"), x[i, i % 2], x[i, :, i], x[0, i],
                x.at[i, :, i].get(mode="clip"), x[jnp.arange(x.shape[0])[:, None], 0, 1]]  # fmt: skip

    traced = check(fn, specs(("b, s, 4", F32), ("2, 3", I32)), POSITIVE, data=indices)
    assert not host_ops(traced)


@pytest.mark.parametrize("axis,shape", [(0, "5, s"), (1, "b, 3"), (-1, "b, s")])
def test_take_along_axis(axis, shape):
    traced = check(
        lambda x, i: jnp.take_along_axis(x, i, axis), specs(("b, s", F32), (shape, I32)), POSITIVE, data=indices
    )
    assert "take_along" in ops_of(traced) and not host_ops(traced)


def test_known_positions_are_slices():
    def fn(x):
        return [x[-1], x[0], x[:, -1], x[0, -1], x[:3], x[-1:], lax.dynamic_slice(x, (0, 0), (1, x.shape[1])),
                lax.dynamic_index_in_dim(x, x.shape[0] // 2), x[:, : x.shape[1] // 2]]  # fmt: skip

    traced = check(fn, specs(("b, s", F32)), POSITIVE)
    assert set(ops_of(traced)) <= {"slice", "reshape"}
    assert not traced.graph.scope.checks


def test_even_strides_are_slices():
    def fn(x):
        return [x[::2], x[1::3], x[:, ::2], x[:, 1::2], x[::-1], x[:, ::-1], x[1:-1:2]]

    traced = check(fn, specs(("b+1, s+1", F32)), [{"b": 1, "s": 1}, {"b": 4, "s": 7}, {"b": 5, "s": 2}])
    assert set(ops_of(traced)) <= {"slice", "rev"}


def test_windows_at_unknown_positions():
    def fn(x, u, i):
        return [lax.dynamic_slice(x, (0, i), (1, 3)), x[i], x[:, i], lax.dynamic_slice_in_dim(x, i, 2, 1),
                lax.dynamic_update_slice(x, u, (0, i)), x.at[:, i].set(1.0), x.at[i].add(2.0), x.at[0].set(3.0), x.at[-1, i].max(0.0),
                x.at[9].set(5.0), x.at[:, i].mul(3.0, mode="clip"), x.at[:2].min(0.0), x.at[1:, 2].set(0.0)]  # fmt: skip

    def data(value):
        return lambda arrays, size: [arrays[0], arrays[1], np.array(value, np.int32)]

    args = specs(("b+1, s+4", F32), ("b, 3", F32), ("", I32))
    for i in (0, 2, 30, -1, -40):
        traced = check(fn, args, POSITIVE[1:] if i else POSITIVE, data=data(i))
    assert not host_ops(traced)


def test_scatters_at_many_positions_are_host_ops():
    def fn(x, i, u):
        return [x.at[i].set(u), x.at[i].add(u), x.at[i].mul(u), x.at[i].max(u), x.at[i].min(u), x.at[:, i].add(1.0, mode="clip"),
                jax.ops.segment_sum(u, i, 4), x.at[i, i].set(2.0, mode="drop")]  # fmt: skip

    def data(arrays, size):
        return [arrays[0], np.array([0, 3, -1], np.int32), arrays[2]]

    traced = check(fn, specs(("b, s", F32), ("3", I32), ("3, s", F32)), POSITIVE, data=data)
    assert set(host_ops(traced)) == {"scatter"}


def test_general_gather_is_a_host_op():
    def fn(x, i):
        return jax.vmap(lambda k: lax.dynamic_slice(x, (k, 0), (2, x.shape[1])))(i)

    traced = check(fn, specs(("b+2, s", F32), ("3", I32)), POSITIVE, data=indices)
    assert host_ops(traced) == ["gather"]


def test_sorting_is_a_host_op():
    def fn(x):
        return [
            jnp.sort(x, 0),
            jnp.argsort(x, 1),
            lax.top_k(x, 1),
            lax.sort((x > 0, x), dimension=1, num_keys=2),
            jnp.median(x, 1),
        ]

    traced = check(fn, specs(("b, 5", F32)), [{"b": 1}, {"b": 4}])
    assert set(host_ops(traced)) == {"sort", "top_k"}


def test_windows_are_host_ops():
    def fn(x, w):
        return [
            lax.conv_general_dilated(x, w, (2, 1), ((1, 1), (0, 2)), rhs_dilation=(1, 2), feature_group_count=2),
            lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 1), "VALID"),
            lax.reduce_window(x, 0.0, lax.add, (1, 1, 3, 1), (1, 1, 1, 2), "SAME"),
            lax.reduce_window(x, 1.0, lax.add, (1, 1, 1, 2), (1, 1, 1, 1), "VALID"),
        ]

    check(fn, specs(("b, 4, s+4, 9", F32), ("6, 2, 3, 3", F32)), POSITIVE, tol=1e-4)


def test_transposed_convolution_with_channels_last():
    def fn(x, w):
        return lax.conv_general_dilated(
            x, w, (1,), ((1, 1),), lhs_dilation=(2,), dimension_numbers=("NHC", "HIO", "NHC")
        )

    check(fn, specs(("b, s+1, 4", F32), ("3, 4, 6", F32)), POSITIVE, tol=1e-4)


def test_random_numbers_are_jax_s_own():
    def fn(x, words):
        key = jax.random.wrap_key_data(words)
        a, b = jax.random.split(key)
        return [jax.random.normal(a, x.shape), jax.random.uniform(jax.random.fold_in(b, 3), (3,)), jax.random.bits(b, (4,)),
                jax.random.bernoulli(jax.random.key(3), 0.5, x.shape), jax.random.randint(a, (5,), 0, 9)]  # fmt: skip

    def data(arrays, size):
        return [arrays[0], np.asarray(jax.random.PRNGKey(5))]

    traced = check(fn, specs(("b, s", F32), ("2", jnp.uint32)), POSITIVE, data=data)
    assert set(host_ops(traced)) == {"threefry2x32", "bitcast"}


# ---- control flow


def test_scan_of_symbolic_length():
    def fn(x):
        forward = lax.scan(lambda c, a: (c + a.sum(), c * 2 + x.shape[0]), 0.0, x)
        return forward, lax.scan(lambda c, a: (c * 0.5 + a, (c, a)), x[0], x, reverse=True)

    traced = check(fn, specs(("b, s", F32)), POSITIVE)
    assert ops_of(traced).count("scan") == 2


def test_scan_of_length_zero():
    traced = check(lambda x: lax.scan(lambda c, a: (c + a.sum(), c), 1.0, x), specs(("b, s", F32)), SIZES, dims=ZERO)
    assert "scan" in ops_of(traced)


def test_while_and_fori_loop():
    def fn(x):
        return (
            lax.while_loop(lambda c: c[0] < x.shape[0], lambda c: (c[0] + 1, c[1] * 0.5 + x), (0, x)),
            lax.fori_loop(0, x.shape[0], lambda i, c: c + x[i], jnp.zeros(x.shape[1])),
            lax.fori_loop(0, 3, lambda i, c: jnp.sin(c), x),
        )

    traced = check(fn, specs(("b, s", F32)), POSITIVE)
    assert {"while", "scan"} <= set(ops_of(traced))


def test_cond_and_switch():
    def fn(x, n):
        return (
            lax.cond(x.mean() > 0, lambda x: x + 1, lambda x: x * x.shape[0], x),
            lax.switch(n, [jnp.sin, jnp.cos, lambda x: x * 3], x),
        )

    traced = None
    for n in (-1, 0, 1, 2, 9):
        traced = check(
            fn,
            specs(("b, s", F32), ("", I32)),
            POSITIVE[:1] if n else POSITIVE,
            data=lambda a, s, n=n: [a[0], np.array(n, np.int32)],
        )
    assert traced is not None and ops_of(traced).count("cond") == 2


def test_a_known_branch_is_taken_while_compiling():
    def fn(x):
        return lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos), lax.switch(
            x.ndim, [jnp.sin, jnp.cos, jnp.tan], x
        )

    assert "cond" not in ops_of(check(fn, specs(("b, s", F32)), POSITIVE))


# ---- calls


def test_nested_calls_are_inlined():
    @jax.custom_vjp
    def twice(x):
        return 2 * x

    twice.defvjp(lambda x: (2 * x, None), lambda _, g: (2 * g,))

    @jax.jit
    def outer(x):
        return jax.jit(jnp.sin)(x) + jax.checkpoint(jnp.cos)(twice(x)) + jax.nn.relu(x) + jax.nn.silu(x)

    def fn(x):
        y = lax.stop_gradient(lax.optimization_barrier(outer(outer(x))))
        return y, jax.named_call(jnp.tanh, name="t")(y), jax.nn.gelu(y, approximate=False), jax.nn.gelu(y)

    traced = check(fn, specs(("b, s", F32)), SIZES, dims=ZERO)
    assert not set(ops_of(traced)) & {"jit", "call"}


def test_derivatives_and_vmap():
    def fn(x):
        loss = lambda x: (jax.nn.softmax(x @ x.T) ** 2).sum() + jnp.take(x, jnp.array([0, 0]), 0).sum()  # noqa: E731
        return jax.grad(loss)(x), jax.vmap(lambda r: jnp.cumsum(r) + r.sum())(x), jax.jvp(jnp.sin, (x,), (x,))

    check(fn, specs(("b, s", F32)), POSITIVE, tol=1e-4)


def test_constants_that_a_function_closes_over():
    table = np.arange(12, dtype=np.float32).reshape(3, 4)
    device = jnp.ones(4, jnp.bfloat16)

    def fn(x):
        return lax.scan(lambda c, a: (c + a @ table, c), jnp.zeros(4), x), x @ table + device

    check(fn, specs(("b, 3", F32)), [{"b": 1}, {"b": 5}])


def test_pytrees_scalars_and_names():
    from graph_kernel.evaluate import evaluate
    from graph_kernel.from_jaxpr import trace

    (x,) = specs(("b, 2", F32))
    traced = trace(lambda p, *, k, n=3: {"y": p["w"] * k + n, "z": (p["v"],)}, [{"w": x, "v": x}], {"k": 2.0})
    assert [v.name for v in traced.graph.inputs] == ["p['v']", "p['w']", "k"]
    ones = np.ones((4, 2), np.float32)
    out = jax.tree.unflatten(traced.out_tree, evaluate(traced.graph, [ones, ones * 2, np.float32(2.0)], {"b": 4}))
    assert (out["y"] == 7).all() and (out["z"][0] == 1).all()
