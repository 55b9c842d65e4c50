"""The vocabulary of hand-written kernels against NumPy, at sizes 0, 1, primes and the neighbours of a tile."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import dvm

SHAPES = [(0, 3), (1, 1), (2, 0), (5, 7), (3, 127), (2, 129)]
TIER = "reference"  # the definition of the instructions; what the fast executor does is compared below


def numbers(shape, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    if np.dtype(dtype) == np.bool_:
        return rng.random(shape) < 0.5
    if np.dtype(dtype).kind in "iu":
        return rng.integers(-9, 9, shape).astype(dtype)
    return rng.uniform(-3, 3, shape).astype(dtype)


def same(got, want, rtol=2e-6):
    """Equal dtype and shape; equal values, up to rounding for floats."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == want.dtype and got.shape == want.shape, (got.dtype, got.shape, want.dtype, want.shape)
    if got.dtype.kind in "iub":
        np.testing.assert_array_equal(got, want)
        return
    np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=rtol, atol=rtol)


def all_of(results, wants, rtol=2e-6):
    assert len(results) == len(wants)
    for got, want in zip(results, wants, strict=True):
        same(got, want, rtol)


# ---- the vocabulary

UNARY = {
    "sqrt": np.sqrt, "abs": np.abs, "log": np.log, "exp": np.exp, "reciprocal": np.reciprocal, "isfinite": np.isfinite,
    "logical_not": np.logical_not, "round": np.rint, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc,
}  # fmt: skip
BINARY = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "maximum": np.maximum, "minimum": np.minimum,
    "equal": np.equal, "not_equal": np.not_equal, "greater": np.greater, "greater_equal": np.greater_equal, "less": np.less,
    "less_equal": np.less_equal, "logical_and": np.logical_and, "logical_or": np.logical_or,
}  # fmt: skip


def compiled_once(function, calls):
    """Makes the calls; the kernel is compiled at the first, never again."""
    before = dvm.stats().compiles
    for call in calls:
        call(function)
    assert dvm.stats().compiles - before == 1


def test_every_unary():
    @dvm.kernel("vector", tier=TIER)
    def every(k, x):
        x = k.load(x, "float32")
        return tuple(k.store(getattr(k, name)(x)) for name in UNARY)

    def at(shape):
        def call(f):
            x = numbers(shape)
            x[x == 0] = 1
            with np.errstate(all="ignore"):
                wants = [np.asarray(fn(x)) for fn in UNARY.values()]
            all_of(f(x), wants)

        return call

    compiled_once(every, [at(shape) for shape in SHAPES])


def test_every_binary_with_a_tensor_a_scalar_and_a_number_on_either_side():
    @dvm.kernel(tier=TIER)
    def every(k, x, y, s):
        x, y, s = k.load(x), k.load(y), k.scalar(s)
        pairs = [(x, y), (x, s), (s, x), (x, 1.5), (1.5, x)]
        return tuple(k.store(k.binary(name, a, b)) for name in BINARY for a, b in pairs)

    def at(shape, s):
        def call(f):
            x, y = numbers(shape), numbers(shape, seed=1)
            y.reshape(-1)[:2] = x.reshape(-1)[:2]
            c, d = np.float32(s), np.float32(1.5)
            with np.errstate(all="ignore"):
                wants = [fn(a, b) for fn in BINARY.values() for a, b in [(x, y), (x, c), (c, x), (x, d), (d, x)]]
            all_of(f(x, y, s), wants)

        return call

    compiled_once(every, [at(shape, 0.25 + i) for i, shape in enumerate(SHAPES)])


def test_pow():
    @dvm.kernel("vector", tier=TIER)
    def power(k, x, s):
        x = k.load(x)
        return k.store(k.pow(k.abs(x), s)), k.store(k.pow(2.0, x))

    x = numbers((5, 7))
    all_of(power(x, 1.5), [np.abs(x) ** np.float32(1.5), np.float32(2) ** x])


@pytest.mark.parametrize("dtype", [dvm.int32, dvm.int64])
def test_integers(dtype):
    @dvm.kernel("vector", tier=TIER)
    def ints(k, x, y, s):
        x, y = k.load(x, shape=["m", "n"]), k.load(y, shape=["m", "n"])
        return (
            k.store(k.add(x, y)),
            k.store(k.mul(x, s)),
            k.store(k.div(x, 4)),
            k.store(k.maximum(3, y)),
            k.store(k.less(x, y)),
            k.store(k.abs(x)),
            k.store(k.logical_not(x)),
        )

    for shape in SHAPES:
        x, y = numbers(shape, dtype), numbers(shape, dtype, 1)
        quotient = (np.sign(x) * (np.abs(x) // 4)).astype(dtype)
        wants = [x + y, x * dtype.type(-2), quotient, np.maximum(3, y), x < y, np.abs(x), x == 0]
        all_of(ints(x, y, -2), [np.asarray(w) for w in wants])


@pytest.mark.parametrize("dtype", [dvm.float16, dvm.bfloat16])
def test_sixteen_bits(dtype):
    @dvm.kernel("vector", tier=TIER)
    def half(k, x, y):
        x, y = k.load(x, dtype, ["m", "n"]), k.load(y, dtype, ["m", "n"])
        return k.store(k.add(k.mul(x, 0.5), y)), k.store(k.sum(x, -1)), k.store(k.exp(x), "float32")

    x, y = numbers((5, 33), dtype), numbers((5, 33), dtype, 1)
    wide = x.astype(np.float32)
    product = (wide * np.float32(0.5)).astype(dtype).astype(np.float32)
    wants = [(product + y.astype(np.float32)).astype(dtype), wide.sum(-1).astype(dtype)]
    got = half(x, y)
    all_of(got[:2], wants, rtol=1e-2)
    same(got[2], np.exp(wide).astype(dtype).astype(np.float32), rtol=1e-2)


@pytest.mark.parametrize("name", ["sum", "max", "min"])
def test_reductions(name):
    @dvm.kernel(tier=TIER)
    def reduced(k, x):
        x = k.load(x)
        reduce = getattr(k, name)
        return (
            k.store(reduce(x, -1)),
            k.store(reduce(x, [0], True)),
            k.store(reduce(x, (0, 1))),
            k.store(reduce(x)),
            k.store(k.reduce(name.title(), x, [1], keepdims=True)),
        )

    fn = getattr(np, name)
    identity = {"sum": {}, "max": {"initial": -np.inf}, "min": {"initial": np.inf}}[name]
    for shape in SHAPES:
        x = numbers(shape)
        wants = [fn(x, axis=-1, **identity), fn(x, axis=0, keepdims=True, **identity), fn(x, axis=(0, 1), **identity)]
        wants += [fn(x, **identity), fn(x, axis=1, keepdims=True, **identity)]
        all_of(reduced(x), [np.asarray(w, np.float32) for w in wants], rtol=1e-5)


def test_select_and_cast():
    @dvm.kernel("vector", tier=TIER)
    def chosen(k, cond, x, y, s):
        cond, x, y = (k.load(v, shape=["m", "n"]) for v in (cond, x, y))
        return (
            k.store(k.select(cond, x, y)),
            k.store(k.select(cond, x, s)),
            k.store(k.select(k.greater(x, 0), 1.0, y)),
            k.store(k.cast(x, dvm.int32)),
            k.store(k.cast(x, "float16")),
            k.store(k.cast(cond, dvm.float32)),
            k.store(k.cast(k.floor(x), dvm.bool_)),
            k.store(x, dvm.bfloat16),
        )

    for shape in SHAPES:
        c, x, y = numbers(shape, bool), numbers(shape), numbers(shape, seed=1)
        wants = [
            np.where(c, x, y),
            np.where(c, x, np.float32(7)),
            np.where(x > 0, np.float32(1), y),
            x.astype(np.int32),
        ]
        wants += [x.astype(np.float16), c.astype(np.float32), np.floor(x) != 0, x.astype(ml_dtypes.bfloat16)]
        all_of(chosen(c, x, y, 7.0), wants)


def test_shapes():
    @dvm.kernel(tier=TIER)
    def moved(k, x, sizes):
        x = k.load(x, shape=["m", "n"])
        m, n = k.int_array(sizes)
        return (
            k.store(k.broadcast(x, (3, *x.shape))),
            k.store(k.broadcast(2.5, [m, n])),
            k.store(k.reshape(x, [-1])),
            k.store(k.reshape(x, [x.shape[1], -1])),
            k.store(k.permute(x, [1, 0])),
            k.store(k.slice(x, 0, 1, None)),
            k.store(k.slice(x, 1, -2, None)),
            k.store(k.slice(x, [0, 1], [2, -1])),
            k.store(k.concat([x, k.exp(x), x], 1)),
            k.store(k.copy(x)),
        )

    for shape in [(2, 2), (5, 7), (3, 127), (2, 129)]:
        x = numbers(shape)
        wants = [
            np.broadcast_to(x, (3, *shape)),
            np.full((4, 3), 2.5, np.float32),
            x.reshape(-1),
            x.reshape(shape[1], -1),
        ]
        wants += [x.T, x[1:], x[:, -2:], x[:2, 1:], np.concatenate([x, np.exp(x), x], 1), x]
        all_of(moved(x, [4, 3]), wants)
    with pytest.raises(dvm.ShapeError, match="'x' axis 1"):
        moved(numbers((2, 1)), [4, 3])


def test_one_hot():
    @dvm.kernel(tier=TIER)
    def hot(k, i, depth, on):
        i = k.load(i, dvm.int32)
        (depth,) = k.int_array(depth)
        return k.store(k.one_hot(i, depth)), k.store(k.one_hot(i, 5, axis=0, on=on, off=-1, dtype=dvm.int32))

    for n in (0, 1, 7):
        i = numbers((n,), np.int32) % 6
        wants = [
            (i[:, None] == np.arange(6)).astype(np.float32),
            np.where(np.arange(5)[:, None] == i, 9, -1).astype(np.int32),
        ]
        all_of(hot(i, [6], 9), wants)


@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
def test_matmul(trans_a, trans_b):
    @dvm.kernel("cube", tier=TIER)
    def product(k, a, b, bias):
        return k.store(k.matmul(k.load(a), k.load(b), trans_a, trans_b, k.load(bias)))

    for batch, m, n, p in [((), 1, 1, 1), ((), 5, 17, 33), ((), 0, 3, 2), ((), 3, 0, 2)]:
        a, b, bias = numbers((*batch, m, n)), numbers((*batch, n, p), seed=1), numbers((p,), seed=2)
        got = product(a.T.copy() if trans_a else a, b.T.copy() if trans_b else b, bias)
        same(got, a @ b + bias, rtol=1e-5)


def test_matmul_of_batches_and_half_precision():
    @dvm.kernel("cube", tier=TIER)
    def product(k, a, b):
        return k.store(k.matmul(k.load(a, dvm.float16), k.load(b, dvm.float16), trans_b=True))

    for left, right in [((2,), (2,)), ((3,), (1,)), ((1,), (3,))]:
        a, b = numbers((*left, 5, 8), np.float16), numbers((*right, 7, 8), np.float16, 1)
        want = (a.astype(np.float32) @ b.astype(np.float32).swapaxes(-1, -2)).astype(np.float16)
        same(product(a, b), want, rtol=1e-2)


def test_further_operators_by_name():
    @dvm.kernel("vector", tier=TIER)
    def more(k, x, y):
        x, y = k.load(x, shape=["m", "n"]), k.load(y, shape=["m", "n"])
        return k.store(k.unary("Tanh", x)), k.store(k.unary("neg", x)), k.store(k.binary("Atan2", x, y))

    x, y = numbers((5, 7)), numbers((5, 7), seed=1)
    all_of(more(x, y), [np.tanh(x), -x, np.arctan2(x, y)])
    with pytest.raises(dvm.CompileError, match="no operator 'Frobnicate'"):
        dvm.Kernel().unary("Frobnicate", 1.0)


# ---- sizes


def test_two_unknown_sizes_are_related_at_launch():
    @dvm.kernel("vector", tier=TIER)
    def total(k, x, y, z):
        return k.store(k.add(k.mul(k.load(x), k.load(y)), k.load(z)))

    calls = [
        ((5, 7), (5, 7), (7,)),
        ((5, 1), (1, 7), (1,)),
        ((1, 1), (1, 1), (7,)),
        ((0, 7), (1, 7), (7,)),
        ((5, 7), (1, 1), (1,)),
    ]

    def at(shapes):
        def call(f):
            x, y, z = (numbers(s, seed=i) for i, s in enumerate(shapes))
            same(f(x, y, z), x * y + z)

        return call

    compiled_once(total, [at(shapes) for shapes in calls])
    with pytest.raises(dvm.ShapeError, match="'x' axis 1 .* is 7, .*'y' axis 1 .* is 6"):
        total(numbers((5, 7)), numbers((5, 6)), numbers((7,)))


def test_named_sizes_are_one_size():
    @dvm.kernel("vector", tier=TIER)
    def normalised(k, x, gain):
        x, gain = k.load(x, shape=["b", "h"]), k.load(gain, shape=[dvm.Dim("h", max=64)])
        return k.store(k.mul(k.div(x, k.div(k.sum(k.abs(x), -1, True), x.shape[-1])), gain))

    x, g = numbers((5, 7)), numbers((7,))
    same(normalised(x, g), x / np.abs(x).mean(-1, keepdims=True) * g, rtol=1e-5)
    with pytest.raises(dvm.ShapeError, match="'gain' axis 0"):
        normalised(x, numbers((1,)))
    with pytest.raises(dvm.ShapeError, match="64"):
        normalised(numbers((1, 65)), numbers((65,)))


def test_static_kernels_have_fixed_sizes():
    @dvm.kernel(ktype="vector", dyn_shape=False, tier=TIER)
    def fixed(k):
        k.store(k.add(k.load([5, 7], dvm.float32), 1.0))

    same(fixed(numbers((5, 7))), numbers((5, 7)) + 1)
    with pytest.raises(dvm.ShapeError, match="'arg0' axis 1"):
        fixed(numbers((5, 6)))

    @dvm.kernel(ktype="vector", dyn_shape=False, tier=TIER)
    def wrong(k):
        k.store(k.load([-1], dvm.float32))

    with pytest.raises(dvm.CompileError, match="fixed sizes"):
        wrong(numbers((5,)))

    @dvm.kernel("vector", dynamic=False, tier=TIER)
    def by_first_call(k, x):
        return k.store(k.add(k.load(x), 1.0))

    before = dvm.stats().compiles
    for shape in [(2,), (3,), (2,)]:
        same(by_first_call(numbers(shape)), numbers(shape) + 1)
    assert dvm.stats().compiles - before == 2 and by_first_call.program.symbols == {}


# ---- calling


def test_both_styles_give_the_same():
    @dvm.kernel(ktype="vector", dyn_shape=True, tier=TIER)
    def built(k):
        x, y, s = k.load(["m", "n"], dvm.float32), k.load(["m", "n"], dvm.float32), k.scalar(dvm.float32)
        k.store(k.add(k.mul(x, s), y))
        k.store(k.mul(x, y), dvm.float16)

    x, y = numbers((5, 7)), numbers((5, 7), seed=1)
    first, second = built(x, y, 1.25)
    same(first, x * np.float32(1.25) + y)
    same(second, (x * y).astype(np.float16), rtol=1e-3)
    a, b = np.empty((5, 7), np.float32), np.empty((5, 7), np.float16)
    returned = built.run(x, y, 1.25, a, b)
    assert returned[0] is a and returned[1] is b
    same(a, first)
    same(b, second)
    for wrong, error in [((a,), dvm.InputError), ((b, a), dvm.InputError), ((a[:4], b), dvm.ShapeError)]:
        with pytest.raises(error, match="result"):
            built.run(x, y, 1.25, *wrong)
    with pytest.raises(dvm.InputError, match="takes 3 arguments"):
        built(x, y)


def test_numpy_in_numpy_out_and_jax_in_jax_out():
    @dvm.kernel
    def doubled(k, x, s):
        return k.store(k.mul(k.load(x), s))

    x = numbers((5, 7))
    assert type(doubled(x, 2.0)) is np.ndarray
    result = doubled(jnp.asarray(x), 2.0)
    assert isinstance(result, jax.Array)
    same(result, x * 2)
    same(doubled(x=x, s=np.float32(2)), x * 2)
    same(doubled(x, s=3), x * 3)


def test_errors_of_calls():
    @dvm.kernel(tier=TIER)
    def f(k, x, s):
        return k.store(k.mul(k.load(x, "float16", [-1, 4]), s))

    with pytest.raises(dvm.InputError, match="argument 'x': expected float16, got float32"):
        f(numbers((2, 4)), 1.0)
    with pytest.raises(dvm.InputError, match="argument 'x': expected 2 dimensions, got 1"):
        f(numbers((4,), np.float16), 1.0)
    with pytest.raises(dvm.InputError, match="missing a required argument: 's'"):
        f(numbers((2, 4), np.float16))
    with pytest.raises(dvm.InputError, match="argument 's': expected an array"):
        f(numbers((2, 4), np.float16), "1.0")
    with pytest.raises(dvm.ShapeError, match="'x' axis 1"):
        f(numbers((2, 5), np.float16), 1.0)
    same(f(numbers((2, 4), np.float16), 2.0), numbers((2, 4), np.float16) * 2)


def test_errors_of_construction():
    k = dvm.Kernel()
    x, i = k.load([-1], dvm.float32), k.load([-1], dvm.int32)
    for wrong, text in [
        (lambda: k.add(x, i), "operands of float32 and int32; make them equal with k.cast"),
        (lambda: k.add(i, 0.5), "0.5 does not fit int32"),
        (lambda: k.add(i, k.scalar(dvm.float32)), "float32 scalar does not fit int32"),
        (lambda: k.add(1, 2), "one operand has to be a tensor"),
        (lambda: k.sqrt(i), "sqrt is not defined on int32"),
        (lambda: k.sum(x, 1), "1 is no axis of a tensor of rank 1"),
        (lambda: k.load([-2], dvm.float32), "a size is a whole number"),
        (lambda: k.load([-1], "float8"), "not a dtype"),
        (lambda: k.load([-1], np.float64), "the chip has no float64"),
        (lambda: k.matmul(x, x), "expected two matrices"),
        (lambda: k.reshape(x, [-1, -1]), "more than one -1"),
        (lambda: k.add(np.ones(3), x), "expected a tensor"),
        (lambda: dvm.Kernel("cubic"), "unknown kind of kernel 'cubic'"),
        (lambda: dvm.Kernel().program, "has no result"),
    ]:
        with pytest.raises(dvm.CompileError) as caught:
            wrong()
        assert text in str(caught.value)
    with pytest.raises(dvm.CompileError, match=r"test_handwritten.py:\d+ \(test_errors_of_construction\)"):
        k.add(x, i)


def test_the_fast_executor_agrees():
    @dvm.kernel("vector")
    def softmax(k, x):
        x = k.load(x)
        e = k.exp(k.sub(x, k.max(x, -1, True)))
        return k.store(k.div(e, k.sum(e, -1, True)))

    def at(shape):
        def call(f):
            x = numbers(shape)
            same(f(x), np.asarray(jax.nn.softmax(x, -1)), rtol=1e-5)

        return call

    compiled_once(softmax, [at(shape) for shape in [(0, 3), (1, 1), (5, 7), (3, 127), (2, 129), (67, 1031)]])
