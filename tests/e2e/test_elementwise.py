"""Every elementwise op of every dtype: one program a family, launched around the block sizes, against one run of ``jax.jit``."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.e2e.harness import BFLOAT16, SIZES, Compiled, check, program_of, random, simulate, spec

N = max(SIZES)
RANGE = {"n": (0, N)}
SMALL = (0, 1, 17, 129, N)

FLOAT_UNARY = (
    lax.neg,
    lax.abs,
    lax.sign,
    lax.floor,
    lax.ceil,
    lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
    lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
    jnp.trunc,
    lax.exp,
    lax.exp2,
    lax.log,
    lax.log1p,
    lax.expm1,
    lax.sqrt,
    lax.rsqrt,
    lax.cbrt,
    lambda x: 1 / x,
    lax.square,
    lax.sin,
    lax.cos,
    lax.tan,
    lax.logistic,
    lax.is_finite,
    jnp.isnan,
    jnp.isinf,
)
FLOAT_UNARY_2 = (
    lax.asin,
    lax.acos,
    lax.atan,
    lax.sinh,
    lax.cosh,
    lax.tanh,
    lax.asinh,
    lax.acosh,
    lax.atanh,
    lax.erf,
    lax.erfc,
    lax.erf_inv,
    lambda x: lax.integer_pow(x, 3),
    lambda x: lax.integer_pow(x, -2),
    lambda x: lax.clamp(jnp.asarray(-0.5, x.dtype), x, jnp.asarray(2, x.dtype)),
    jax.nn.gelu,
    jax.nn.silu,
    jax.nn.softplus,
)
FLOAT_BINARY = (
    lax.add,
    lax.sub,
    lax.mul,
    lax.div,
    lax.max,
    lax.min,
    lax.rem,
    lax.atan2,
    lambda x, y: lax.pow(lax.abs(x), y),
    lax.eq,
    lax.ne,
    lax.lt,
    lax.le,
    lax.gt,
    lax.ge,
    lambda x, y: lax.select(x > y, x, y),
    jnp.logaddexp,
    jnp.floor_divide,
    jnp.mod,
)
INT_UNARY = (lax.neg, lax.abs, lax.sign, lax.bitwise_not, lambda x: lax.integer_pow(x, 3))
HOST_UNARY = (lax.population_count, lax.clz)
INT_BINARY = (
    lax.add,
    lax.sub,
    lax.mul,
    lax.max,
    lax.min,
    lax.bitwise_and,
    lax.bitwise_or,
    lax.bitwise_xor,
    lax.eq,
    lax.ne,
    lax.lt,
    lax.le,
    lax.gt,
    lax.ge,
    lambda x, y: lax.select(x > y, x, y),
    lambda x, y: lax.div(x, lax.max(y, jnp.ones_like(y))),
    lambda x, y: lax.rem(x, lax.max(y, jnp.ones_like(y))),
    lambda x, y: jnp.floor_divide(x, lax.max(y, jnp.ones_like(y))),
    lambda x, y: jnp.mod(x, lax.max(y, jnp.ones_like(y))),
    lambda x, y: lax.shift_left(x, y & 3),
    lambda x, y: lax.shift_right_logical(x, y & 3),
    lambda x, y: lax.shift_right_arithmetic(x, y & 3),
)
BOOL_BINARY = (
    jnp.logical_and,
    jnp.logical_or,
    jnp.logical_xor,
    lax.eq,
    lax.ne,
    lambda x, y: lax.select(x, y, ~x),
    lambda x, y: ~x,
    lax.max,
    lax.min,
)
DTYPES = (np.float32, BFLOAT16, np.float16, np.int32, np.int8, np.uint8, np.bool_)


def joined(functions):
    """All functions on operands that are computed in the kernel, so that they form one kernel."""

    def fn(flag, *arrays):
        chosen = [jnp.where(flag, a, jnp.zeros_like(a)) for a in arrays]
        return [f(*chosen) for f in functions]

    return fn


def values(dtype, seed):
    """Data with the special values of the dtype at fixed places."""
    x = random((N,), dtype, seed, 3.0)
    if dtype.kind not in "iub":
        special = np.array(
            [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, -0.5, 2.5, -2.5, 1e-3], np.float32
        ).astype(dtype)
    elif dtype.kind == "b":
        return x
    else:
        info = np.iinfo(dtype)
        special = np.array([0, 1, info.max, info.min, info.max - 1], dtype)
    x[5 : 5 + len(special)] = np.roll(special, seed)
    x[200 : 200 + len(special)] = special
    return x


def run(functions, dtype, arity, sizes=SMALL, xla=True):
    """One program of all ``functions`` at all ``sizes``. Without ``xla`` the words run on the tests' tile machine: instructions mean the
    same whatever the dtype, and XLA needs long for many of them."""
    dtype = np.dtype(dtype)
    fn, specs = joined(functions), [spec("", np.bool_), *[spec("n", dtype, **RANGE)] * arity]
    flag, arrays = np.asarray(True), [values(dtype, seed) for seed in range(arity)]
    want = reference(fn, flag, arrays)
    program = Compiled(fn, *specs) if xla else program_of(fn, *specs)
    steps = program.program.program.steps if xla else program.steps
    assert len(steps) == 1
    for n in sizes:
        part = [a[:n] for a in arrays]
        got = program.run(flag, *part) if xla else simulate(program, flag, *part, tile=None if n < N else 100)
        for g, w in zip(got, want, strict=True):
            check(g, w[:n], label=f"size {n}")


def reference(fn, flag, arrays):
    """``jax.jit``, with 16-bit types computed in float32: some of JAX's own approximations are off by more than a rounding."""
    if arrays[0].dtype.itemsize == 2 and arrays[0].dtype.kind not in "iu":
        wide = jax.jit(fn)(flag, *(a.astype(np.float32) for a in arrays))
        return [np.asarray(w).astype(arrays[0].dtype) if w.dtype == np.float32 else w for w in wide]
    return jax.jit(fn)(flag, *arrays)


@pytest.mark.parametrize("functions", [FLOAT_UNARY, FLOAT_UNARY_2], ids=["first", "second"])
@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16, np.float16], ids=["float32", "bfloat16", "float16"])
def test_float_unary(functions, dtype):
    run(functions, dtype, 1, SIZES, xla=dtype == np.float32)


@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16, np.float16], ids=["float32", "bfloat16", "float16"])
def test_float_binary(dtype):
    run(FLOAT_BINARY, dtype, 2, xla=dtype != np.float16)


@pytest.mark.parametrize("dtype", [np.int32, np.int8, np.uint8, np.int16, np.uint32], ids=lambda d: d.__name__)
def test_int(dtype):
    unary = [f for f in INT_UNARY if np.dtype(dtype).kind != "u" or f is not lax.abs]
    run([*INT_BINARY, *(lambda x, y, f=f: f(x) for f in unary)], dtype, 2, xla=dtype == np.int32)


def test_int64():
    with jax.enable_x64(True):
        run([*INT_BINARY, *(lambda x, y, f=f: f(x) for f in INT_UNARY)], np.int64, 2, xla=False)


def test_bool():
    run(BOOL_BINARY, np.bool_, 2)


def test_ops_without_kernel_form_run_on_the_host():
    program = Compiled(
        lambda x, f: (lax.population_count(x) + x, lax.clz(x), jnp.signbit(f)),
        spec("n", np.int32, **RANGE),
        spec("n", **RANGE),
    )
    for n in (0, 1, 17):
        program.check(random((n,), np.int32), random((n,)))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_cast(dtype):
    """From one dtype to all others, where the result is defined: floats within the range of the integers."""
    dtype = np.dtype(dtype)
    fn = joined([lambda x, t=t: x.astype(t) for t in DTYPES])
    program = program_of(fn, spec("", np.bool_), spec("n", dtype, **RANGE))
    x = random((N,), dtype, 1, 3.0)
    if dtype.kind not in "iub":
        x = np.abs(x)  # uint8 has no negative numbers
    flag = np.asarray(True)
    want = jax.jit(fn)(flag, x)
    for n in SMALL:
        for g, w in zip(simulate(program, flag, x[:n]), want, strict=True):
            check(g, w[:n])


def test_select_of_many_dtypes():
    def fn(p, x, i, h):
        return (
            jnp.where(p, x, -x),
            jnp.where(p, i, 7),
            jnp.where(p, h, jnp.zeros_like(h)),
            jnp.where(x > 0, i.astype(jnp.float32), x),
        )

    program = Compiled(
        fn, spec("n", np.bool_, **RANGE), spec("n", **RANGE), spec("n", np.int32, **RANGE), spec("n", BFLOAT16, **RANGE)
    )
    for n in SMALL:
        program.check(*(random((n,), d) for d in (np.bool_, np.float32, np.int32, BFLOAT16)))


def test_float64_runs_on_the_host():
    import dvm

    with jax.enable_x64(True):
        program = Compiled(
            lambda x, y: jnp.sin(x) * y + 1, spec("n", np.float64, **RANGE), spec("n", np.float64, **RANGE)
        )
        before = dvm.stats().host_ops
        for n in (0, 1, 17):
            program.check(random((n,), np.float64), random((n,), np.float64, 1), tolerance=1e-14)
        assert dvm.stats().host_ops > before
