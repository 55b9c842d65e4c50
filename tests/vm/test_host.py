"""Host functions against jax.lax, at sizes 0 and 1 too; inputs stay as they were."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import lax

from vm import counters
from vm.errors import ProgramError
from vm.host import CODES, FUNCTIONS, WORDS, call

bfloat16 = np.dtype(ml_dtypes.bfloat16)
quick = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def run(name: str, *xs: Any, **attrs: Any) -> list[np.ndarray]:
    """Calls a host function and checks that its inputs are unchanged."""
    inputs = [np.asarray(x) for x in xs]
    before = [x.copy() for x in inputs]
    for x in inputs:
        x.flags.writeable = False
    out = call(name, inputs, attrs)
    assert all(x.tobytes() == copy.tobytes() for x, copy in zip(inputs, before))
    assert all(isinstance(o, np.ndarray) for o in out)
    return out


def expect(fn: Callable[..., Any], *xs: Any) -> list[np.ndarray]:
    """What JAX gives, with 64-bit types."""
    with jax.enable_x64(True):
        return [np.asarray(o) for o in jax.tree.leaves(fn(*(jnp.asarray(x) for x in xs)))]


def expect_all(fns: dict[Any, Callable[..., Any]], *xs: Any) -> dict[Any, list[np.ndarray]]:
    """``expect`` of many functions of the same operands with one compile."""
    keys = list(fns)
    with jax.enable_x64(True):
        results = jax.jit(lambda *v: [jax.tree.leaves(fns[k](*v)) for k in keys])(*map(jnp.asarray, xs))
        return {k: [np.asarray(o) for o in r] for k, r in zip(keys, results)}


def close(
    found: list[np.ndarray], expected: list[np.ndarray], tolerance: float | None = None, dtype: bool = True
) -> None:
    assert len(found) == len(expected)
    for f, e in zip(found, expected):
        assert f.shape == e.shape
        assert not dtype or f.dtype == e.dtype, (f.dtype, e.dtype)
        if e.dtype.kind in "biu":
            np.testing.assert_array_equal(f, e)
            continue
        t = tolerance or {"float64": 1e-11, "complex128": 1e-11, "float32": 3e-6, "complex64": 3e-6}.get(
            e.dtype.name, 1e-2
        )
        wide = np.complex128 if e.dtype.kind == "c" else np.float64
        np.testing.assert_allclose(f.astype(wide), e.astype(wide), rtol=t, atol=t, equal_nan=True)


def numbers(dtype: Any, shape: tuple[int, ...] = (40,), seed: int = 0) -> np.ndarray:
    """Values of any type; floats include the special ones where there is room."""
    rng, dtype = np.random.default_rng(seed), np.dtype(dtype)
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        x = rng.integers(max(info.min, -9), 10, shape).astype(dtype)
        if x.size >= 8:
            x.reshape(-1)[:5] = [0, 1, info.max, info.min, info.max - 1]
        return x
    if dtype.kind == "c":
        return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(dtype)
    x = rng.normal(size=shape).astype(dtype)
    if x.size >= 8:
        x.reshape(-1)[:8] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 2.5]
    return x


def same_bits(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.dtype == expected.dtype and found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()


# ---- elementwise

UNARY: dict[str, Callable[..., Any]] = {
    "neg": lax.neg, "abs": lax.abs, "sign": lax.sign, "floor": lax.floor, "ceil": lax.ceil, "trunc": jnp.trunc,
    "round": lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN), "exp": lax.exp, "exp2": lax.exp2, "log": lax.log,
    "log1p": lax.log1p, "expm1": lax.expm1, "sqrt": lax.sqrt, "rsqrt": lax.rsqrt, "cbrt": lax.cbrt, "square": lax.square,
    "reciprocal": lax.reciprocal, "sin": lax.sin, "cos": lax.cos, "tan": lax.tan, "asin": lax.asin, "acos": lax.acos,
    "atan": lax.atan, "sinh": lax.sinh, "cosh": lax.cosh, "tanh": lax.tanh, "asinh": lax.asinh, "acosh": lax.acosh,
    "atanh": lax.atanh, "erf": lax.erf, "erfc": lax.erfc, "erf_inv": lax.erf_inv, "logistic": lax.logistic,
    "is_finite": lax.is_finite, "is_nan": jnp.isnan, "is_inf": jnp.isinf, "lgamma": lax.lgamma, "digamma": lax.digamma,
    "bessel_i0e": lax.bessel_i0e, "bessel_i1e": lax.bessel_i1e,
}  # fmt: skip
REAL_ONLY = {
    "floor", "ceil", "trunc", "round", "cbrt", "erf", "erfc", "erf_inv", "is_finite", "is_nan", "is_inf", "lgamma", "digamma",
    "bessel_i0e", "bessel_i1e", "sign", "exp2",
}  # fmt: skip
BINARY: dict[str, Callable[..., Any]] = {
    "add": lax.add, "sub": lax.sub, "mul": lax.mul, "div": lax.div, "rem": lax.rem, "pow": lax.pow, "max": lax.max, "min": lax.min,
    "atan2": lax.atan2, "eq": lax.eq, "ne": lax.ne, "lt": lax.lt, "le": lax.le, "gt": lax.gt, "ge": lax.ge,
}  # fmt: skip


def typed(name: str) -> np.dtype:
    return bfloat16 if name == "bfloat16" else np.dtype(name)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "complex128"])
def test_unary(dtype: str) -> None:
    x = numbers(typed(dtype))
    expected = expect_all({n: f for n, f in UNARY.items() if dtype != "complex128" or n not in REAL_ONLY}, x)
    for name, value in expected.items():
        close(run(name, x), value)


NOT_FOR = {
    "complex128": ("rem", "lt", "le", "gt", "ge", "max", "min", "atan2"),
    "int64": ("pow", "atan2"),
    "int32": ("pow", "atan2"),
    "uint8": ("pow", "atan2"),
    "bool": ("pow", "atan2", "add", "sub", "mul", "div", "rem"),
}


@pytest.mark.parametrize("dtype", ["float64", "float16", "complex128", "int64", "int32", "uint8", "bool"])
def test_binary(dtype: str) -> None:
    x, y = numbers(dtype, seed=1), np.roll(numbers(dtype, seed=2), 3)
    expected = expect_all({n: f for n, f in BINARY.items() if n not in NOT_FOR.get(dtype, ())}, x, y)
    if dtype == "bool":
        expected |= {"add": [x | y], "mul": [x & y]}
    for name, value in expected.items():
        close(run(name, x, y), value)
        close(run("elementwise", x, y, op=name), value)


def test_integer_division_at_its_edges() -> None:
    for dtype in (np.int8, np.int32, np.int64):
        edge = np.array([np.iinfo(dtype).min, np.iinfo(dtype).max, -7, 7, 0, 1, -1], dtype)
        x, y = (a.reshape(-1) for a in np.meshgrid(edge, edge))
        for name in ("div", "rem"):
            close(run(name, x, y), expect(BINARY[name], x, y))


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "uint64", "bool"])
def test_bits(dtype: str) -> None:
    x, y = numbers(dtype, seed=1), np.roll(numbers(dtype, seed=2), 2)
    close(run("not", x), expect(lax.bitwise_not, x))
    for name, fn in (("and", lax.bitwise_and), ("or", lax.bitwise_or), ("xor", lax.bitwise_xor)):
        close(run(name, x, y), expect(fn, x, y))
    if dtype == "bool":
        return
    for name, fn in (
        ("shift_left", lax.shift_left),
        ("shift_right_logical", lax.shift_right_logical),
        ("shift_right_arithmetic", lax.shift_right_arithmetic),
    ):
        close(run(name, x, y), expect(fn, x, y))
    close(run("population_count", x), expect(lax.population_count, x))
    close(run("clz", x), expect(lax.clz, x))


def test_special_functions() -> None:
    rng = np.random.default_rng(0)
    x, y, z = rng.uniform(0.5, 3, (3, 20))
    args = {
        "igamma": (x, y),
        "igammac": (x, y),
        "zeta": (x + 1, y),
        "polygamma": (np.round(x), y),
        "betainc": (x, y, z / 3),
    }
    expected = expect_all({n: lambda n=n: getattr(lax, n)(*map(jnp.asarray, args[n])) for n in args})
    for name, value in expected.items():
        close(run(name, *args[name]), value, 1e-6)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
def test_nextafter(dtype: str) -> None:
    dt = bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    x, y = numbers(dt, seed=3), np.roll(numbers(dt, seed=4), 2)
    (found,), (expected,) = run("nextafter", x, y), expect(lax.nextafter, x, y)
    keep = ~np.isnan(expected.astype(np.float64))
    same_bits(found[keep], expected[keep])
    assert np.isnan(found.astype(np.float64)[~keep]).all()


CASTS = ["bool", "int8", "uint8", "int32", "int64", "uint64", "float16", "float32", "float64", "bfloat16"]


@pytest.mark.parametrize("source", CASTS)
def test_cast(source: str) -> None:
    x = numbers(typed(source), seed=5)
    if x.dtype.kind == "f":
        x[-3:] = [60000, -60000, 300]
    expected = expect_all({t: lambda v, t=t: lax.convert_element_type(v, typed(t)) for t in CASTS}, x)
    for target, value in expected.items():
        close(run("cast", x, dtype=target), value)


def test_complex_parts_and_select() -> None:
    z = numbers(np.complex128)
    close(run("real", z), [z.real])
    close(run("imag", z), [z.imag])
    close(run("conj", z), [z.conj()])
    close(run("complex", z.real, z.imag), [z])
    close(run("cast", z, dtype="float64"), [z.real])
    pred = numbers(bool)
    close(run("select", pred, z, -z), [np.where(pred, z, -z)])


def test_bitcast() -> None:
    names = ("float32", "int16", "uint8", "float64", "bfloat16")
    for source in names:
        x = np.arange(64, dtype=np.uint8).reshape(8, 8).view(typed(source))
        targets = {t: max(1, typed(t).itemsize // x.dtype.itemsize) for t in names}
        fns = {
            t: lambda v, t=t, n=n: lax.bitcast_convert_type(v.reshape(-1, n) if n > 1 else v, typed(t))
            for t, n in targets.items()
        }
        for target, (value,) in expect_all(fns, x).items():
            n = targets[target]
            (found,) = run("bitcast", x.reshape(-1, n) if n > 1 else x, dtype=target)
            same_bits(np.ascontiguousarray(found), value)


def test_threefry() -> None:
    from jax.extend.random import threefry2x32_p

    rng = np.random.default_rng(0)
    words = rng.integers(0, 1 << 32, (4, 30), dtype=np.uint32)
    close(run("threefry2x32", *words), expect(lambda *w: threefry2x32_p.bind(*w), *words))


# ---- along axes


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "bool"])
def test_reductions(dtype: str) -> None:
    kinds = {"bool": ("max", "min", "and", "or"), "int32": ("sum", "prod", "max", "min", "and", "or")}.get(
        dtype, ("sum", "prod", "max", "min")
    )
    for shape in ((3, 4, 5), (0, 4), (4, 0), (1, 1), (5,)):
        x = numbers(typed(dtype), shape)
        axes = [(0,), tuple(range(len(shape))), (len(shape) - 1,), ()]
        expected = expect_all(
            {(k, a): lambda v, k=k, a=a: getattr(lax, f"reduce_{k}")(v, a) for k in kinds for a in axes}, x
        )
        for (kind, axis), value in expected.items():
            close(run(f"reduce_{kind}", x, axes=axis), value)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "int32"])
def test_argmax_and_cumulative(dtype: str) -> None:
    names = ["cumsum", "cumprod", "cummax", "cummin"] + ["cumlogsumexp"] * (dtype != "int32")
    for shape in ((3, 5), (0, 1), (9,)):
        x = numbers(typed(dtype), shape)
        fns: dict[Any, Callable[..., Any]] = {}
        for axis, name, reverse in itertools.product(range(len(shape)), names, (False, True)):
            fns[name, axis, reverse] = lambda v, n=name, a=axis, r=reverse: getattr(lax, n)(v, axis=a, reverse=r)
        for axis, name in itertools.product(range(len(shape)), ("argmax", "argmin")):
            if shape[axis]:
                fns[name, axis, None] = lambda v, n=name, a=axis: getattr(lax, n)(v, a, np.int32)
        for (name, axis, reverse), value in expect_all(fns, x).items():
            attrs = {"dtype": "int32"} if reverse is None else {"reverse": reverse}
            close(run(name, x, axis=axis, **attrs), value, 3e-2 if dtype == "bfloat16" else None)
    assert run("argmax", np.zeros((2, 0)), axis=1, dtype="int64")[0].tolist() == [0, 0]


@pytest.mark.parametrize("dtype", ["float64", "complex128", "bfloat16", "int32"])
def test_dot(dtype: str) -> None:
    dt = bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    for a_shape, b_shape, contract, batch in (
        ((3, 4), (4, 5), ((1,), (0,)), ((), ())),
        ((2, 3, 4), (4, 2, 5), ((2,), (0,)), ((0,), (1,))),
        ((2, 3, 4), (3, 4, 2), ((1, 2), (0, 1)), ((), ())),
        ((0, 4), (4, 5), ((1,), (0,)), ((), ())),
        ((3, 0), (0, 5), ((1,), (0,)), ((), ())),
        ((4,), (4,), ((0,), (0,)), ((), ())),
    ):
        rng = np.random.default_rng(0)
        a, b = (rng.integers(-3, 4, s).astype(dt) for s in (a_shape, b_shape))
        close(
            run("dot", a, b, contract=contract, batch=batch, dtype=dtype),
            expect(lambda u, v, d=(contract, batch): lax.dot_general(u, v, d), a, b),
        )


# ---- views


def test_views() -> None:
    x = numbers(np.float64, (2, 3, 4))
    close(
        run("broadcast", x[0, :, :1], shape=(5, 3, 2, 4), dims=(1, 3)),
        [np.broadcast_to(x[0, None, :, None, :1], (5, 3, 2, 4))],
    )
    close(run("reshape", x, shape=[6, 4]), [x.reshape(6, 4)])
    close(run("transpose", x, perm=[2, 0, 1]), [x.transpose(2, 0, 1)])
    close(run("slice", x, starts=[0, 1, 0], limits=[2, 3, 4], strides=[1, 1, 3]), [x[0:2, 1:3, 0:4:3]])
    close(run("rev", x, axes=[0, 2]), [x[::-1, :, ::-1]])
    close(run("rev", x, axes=[]), [x])
    close(run("concat", x, x[:, :1], axis=1), [np.concatenate([x, x[:, :1]], 1)])
    close(run("iota", shape=[2, 3], axis=1, dtype="int32"), expect(lambda: lax.broadcasted_iota(np.int32, (2, 3), 1)))
    close(run("dim", expr=7, dtype="int64"), [np.asarray(7)])
    close(run("copy", x, x[0]), [x, x[0]])


@quick
@given(st.data())
def test_pad(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))
    x = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
    config = []
    for n in shape:
        interior = data.draw(st.integers(0, 2))
        size = max(n + interior * (n - 1), 0)
        low = data.draw(st.integers(-size, 3))
        config.append((low, data.draw(st.integers(-size - min(low, 0) if low < 0 else -size, 3)), interior))
    low, high, interior = zip(*config)
    expected = expect(lambda v: lax.pad(v, np.float64(-5), config), x)
    close(run("pad", x, np.float64(-5), low=low, high=high, interior=interior), expected)


def test_dynamic_slices() -> None:
    x = numbers(np.float64, (5, 6))
    for starts, sizes in (((-3, 2), (2, 3)), ((4, 9), (2, 3)), ((1, 1), (0, 1)), ((0, 0), (5, 6))):
        at = [np.asarray(s, np.int32) for s in starts]
        close(
            run("dynamic_slice", x, *at, sizes=sizes),
            expect(lambda v, *a, sizes=sizes: lax.dynamic_slice(v, a, sizes, allow_negative_indices=False), x, *at),
        )
        u = np.full(sizes, 7.0)
        close(
            run("dynamic_update_slice", x, u, *at),
            expect(lambda v, w, *a: lax.dynamic_update_slice(v, w, a, allow_negative_indices=False), x, u, *at),
        )


def test_take() -> None:
    x = numbers(np.float64, (4, 5))
    index = np.array([[0, 3, 4], [-1, 1, 99]], np.int32)
    close(run("take", x, index, axis=0, mode="clip"), [x[np.clip(index, 0, 3)]])
    filled = x[np.clip(index, 0, 3)].copy()
    filled[(index < 0) | (index > 3)] = 8
    close(run("take", x, index, axis=0, mode="fill", fill=8), [filled])
    close(
        run("take", x, index, axis=1, mode="fill"),
        expect(lambda v, i: jnp.take(v, jnp.where(i < 0, 99, i), axis=1, mode="fill"), x, index),
    )
    assert run("take", x[:0], index, axis=0, mode="clip")[0].shape == (2, 3, 5)
    large = np.array([1 << 63], np.uint64)
    assert (
        run("take", x, large, axis=0, mode="clip")[0].tolist() == [x[3].tolist()] if not np.isnan(x[3]).any() else True
    )
    along = np.array([[0, 4], [9, -2], [1, 1], [2, 3]])
    close(run("take_along", x, along, axis=1), [np.take_along_axis(x, np.clip(along, 0, 4), 1)])


# ---- gather and scatter


@st.composite
def windows(draw: st.DrawFn) -> dict[str, Any]:
    """Dimension numbers of a gather and of the scatter that mirrors it."""
    rank = draw(st.integers(1, 3))
    n_batch = draw(st.integers(0, min(1, rank - 1)))
    shape = [draw(st.integers(1, 4)) for _ in range(rank)]
    batch = draw(st.lists(st.sampled_from(range(rank)), min_size=n_batch, max_size=n_batch, unique=True))
    others = [a for a in range(rank) if a not in batch]
    indexed = draw(st.lists(st.sampled_from(others), unique=True, min_size=1, max_size=len(others)))
    collapsed = sorted(draw(st.lists(st.sampled_from(others), unique=True, max_size=len(others))))
    sizes = [1 if a in batch or a in collapsed else draw(st.integers(0, shape[a])) for a in range(rank)]
    positions = [draw(st.integers(0, 3)) for _ in range(draw(st.integers(0, 2)))]
    at = []
    if batch:
        at = [draw(st.integers(0, len(positions)))]
        positions.insert(at[0], shape[batch[0]])
    n_window = rank - len(batch) - len(collapsed)
    offsets = sorted(draw(st.permutations(range(n_window + len(positions))))[:n_window])
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    indices = rng.integers(-2, 6, (*positions, len(indexed))).astype(draw(st.sampled_from([np.int32, np.int64])))
    return {
        "shape": shape, "sizes": sizes, "indices": indices, "offset_dims": offsets, "collapsed": collapsed, "map": indexed,
        "batch": batch, "at": at, "mode": draw(st.sampled_from(["clip", "fill"])),
        "dtype": draw(st.sampled_from([np.float64, np.int32, np.uint8])),
    }  # fmt: skip


def _mode(name: str) -> Any:
    return lax.GatherScatterMode.CLIP if name == "clip" else lax.GatherScatterMode.FILL_OR_DROP


@quick
@given(windows())
def test_gather(w: dict[str, Any]) -> None:
    x = np.arange(1, np.prod(w["shape"]) + 1).astype(w["dtype"]).reshape(w["shape"])
    dims = lax.GatherDimensionNumbers(
        tuple(w["offset_dims"]), tuple(w["collapsed"]), tuple(w["map"]), tuple(w["batch"]), tuple(w["at"])
    )
    expected = expect(lambda v, i: lax.gather(v, i, dims, w["sizes"], mode=_mode(w["mode"])), x, w["indices"])
    found = run(
        "gather", x, w["indices"], offset_dims=w["offset_dims"], collapsed_dims=w["collapsed"], start_index_map=w["map"],
        operand_batch_dims=w["batch"], indices_batch_dims=w["at"], slice_sizes=w["sizes"], mode=w["mode"],
    )  # fmt: skip
    close(found, expected)


@quick
@given(windows(), st.sampled_from(["set", "add", "sub", "mul", "min", "max"]))
def test_scatter(w: dict[str, Any], kind: str) -> None:
    x = np.arange(1, np.prod(w["shape"]) + 1).astype(np.float64).reshape(w["shape"])
    kept = [a for a in range(x.ndim) if a not in w["batch"] and a not in w["collapsed"]]
    shape: list[int] = []
    window, positions = iter([w["sizes"][a] for a in kept]), iter(w["indices"].shape[:-1])
    for a in range(len(kept) + w["indices"].ndim - 1):
        shape.append(next(window) if a in w["offset_dims"] else next(positions))
    updates = np.random.default_rng(0).integers(-5, 6, shape).astype(np.float64)
    if kind == "set":
        updates[...] = 3  # which of two updates at one place wins is not defined
    dims = lax.ScatterDimensionNumbers(
        tuple(w["offset_dims"]), tuple(w["collapsed"]), tuple(w["map"]), tuple(w["batch"]), tuple(w["at"])
    )
    fn = {"set": lax.scatter, "mul": lax.scatter_mul, "sub": lax.scatter_sub}.get(kind) or getattr(
        lax, f"scatter_{kind}"
    )
    expected = expect(lambda v, i, u: fn(v, i, u, dims, mode=_mode(w["mode"])), x, w["indices"], updates)
    found = run(
        "scatter", x, w["indices"], updates, kind=kind, update_window_dims=w["offset_dims"], inserted_dims=w["collapsed"],
        start_index_map=w["map"], operand_batch_dims=w["batch"], indices_batch_dims=w["at"], mode=w["mode"],
    )  # fmt: skip
    close(found, expected)


ROWS = {"start_index_map": [0], "operand_batch_dims": [], "indices_batch_dims": []}


def test_gather_and_scatter_of_rows() -> None:
    x = np.arange(12.0).reshape(4, 3)
    index = np.array([[3], [0], [3], [9]])
    row = {"offset_dims": [1], "collapsed_dims": [0], "slice_sizes": [1, 3], "mode": "fill", "fill": -1}
    assert run("gather", x, index, **row, **ROWS)[0][:, 0].tolist() == [9, 0, 9, -1]
    into = {"update_window_dims": [1], "inserted_dims": [0], "mode": "fill", **ROWS}
    u = np.arange(12.0).reshape(4, 3)
    assert run("scatter", x, index, u, kind="set", **into)[0][3].tolist() == [6, 7, 8]  # the last one wins
    assert run("scatter", x, index, u, kind="add", **into)[0][3].tolist() == [9 + 6, 10 + 8, 11 + 10]
    # Operands with no room for a window: nothing is read or written.
    assert run("gather", x[:0], index, **row, **ROWS)[0].tolist() == [[-1.0] * 3] * 4
    assert run("scatter", x[:0], index, u, kind="add", **into)[0].shape == (0, 3)


def test_scatter_of_16_bit_floats_rounds_once() -> None:
    x = np.zeros(1, bfloat16)
    index, u = np.zeros((1000, 1), np.int32), np.full(1000, 0.01, bfloat16)
    (found,) = run("scatter", x, index, u, kind="add", update_window_dims=[], inserted_dims=[0], mode="fill", **ROWS)
    assert found.dtype == bfloat16 and float(found[0]) == pytest.approx(1000 * float(u[0]), rel=4e-3)


# ---- sorting


@quick
@given(st.data())
def test_sort(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=3)))
    n = data.draw(st.integers(1, 3))
    keys = data.draw(st.integers(1, n))
    axis = data.draw(st.integers(0, len(shape) - 1))
    dtypes = [
        data.draw(st.sampled_from([np.dtype(d) for d in ("float64", "int8", "uint32", "bool", bfloat16)]))
        for _ in range(n)
    ]
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    xs = [rng.integers(0, 3, shape).astype(d) for d in dtypes]
    for x in xs:
        if x.dtype == np.float64 and x.size:
            x.reshape(-1)[rng.integers(0, x.size)] = data.draw(st.sampled_from([np.nan, -np.inf, -0.0]))
    expected = expect(lambda *v: lax.sort(v, dimension=axis, is_stable=True, num_keys=keys), *xs)
    close(run("sort", *xs, axis=axis, num_keys=keys), expected)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "int32", "uint8"])
def test_top_k(dtype: str) -> None:
    x = np.random.default_rng(0).integers(0, 4, (3, 7)).astype(bfloat16 if dtype == "bfloat16" else dtype)
    if x.dtype.kind == "f":
        x[1, 2:4] = [np.nan, np.inf]
    for k in (0, 1, 4, 7):
        values, indices = expect(lambda v, k=k: lax.top_k(v, k), x)
        close(run("top_k", x, axis=1, k=k, dtype="int32"), [values, indices])
    along = run("top_k", x.T, axis=0, k=3, dtype="int64")
    close([a.T for a in along], run("top_k", x, axis=1, k=3, dtype="int64"))
    with pytest.raises(ProgramError, match="top_k"):
        call("top_k", [x], {"axis": 1, "k": 8, "dtype": "int32"})


def test_nonzero_and_unique() -> None:
    x = np.array([[0, 2, 0], [3, 0, 4]], np.int32)
    close(run("nonzero", x), [np.array([[0, 1, 1], [1, 0, 2]])])
    assert run("nonzero", np.float32(2))[0].shape == (0, 1) and run("nonzero", np.zeros((0, 3)))[0].shape == (2, 0)
    values = np.array([3, 1, 3, 2, 1], bfloat16)
    for ordered, expected in (
        (True, ([1, 2, 3], [1, 3, 0], [2, 0, 2, 1, 0], [2, 1, 2])),
        (False, ([3, 1, 2], [0, 1, 3], [0, 1, 0, 2, 1], [2, 2, 1])),
    ):
        found = run("unique", values, sorted=ordered)
        assert [f.tolist() for f in found] == list(expected) and found[0].dtype == bfloat16
    assert [f.shape for f in run("unique", np.zeros(0), sorted=True)] == [(0,)] * 4


# ---- windows

WINDOWS = [
    ((1, 1, 7), (1, 1, 3), (1, 1, 2), ((0, 0), (0, 0), (1, 2)), (1, 1, 1), (1, 1, 2)),
    ((2, 5, 6), (1, 2, 3), (1, 2, 1), ((0, 0), (1, 0), (0, 1)), (1, 2, 3), (1, 1, 1)),
    ((2, 1, 0), (1, 1, 2), (1, 1, 1), ((0, 0), (0, 0), (0, 0)), (1, 1, 1), (1, 1, 1)),
    ((3, 4), (2, 2), (1, 1), ((-1, 0), (0, -1)), (1, 1), (1, 1)),
    ((4,), (6,), (1,), ((0, 0),), (1,), (1,)),
    ((4,), (2,), (3,), ((2, 2),), (1,), (3,)),
]


@pytest.mark.parametrize("case", WINDOWS)
@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "int32"])
def test_reduce_window(case: tuple[Any, ...], dtype: str) -> None:
    names = ("window", "strides", "padding", "base_dilation", "window_dilation")
    x = np.random.default_rng(0).integers(-4, 5, case[0]).astype(typed(dtype))
    low, high = (-np.inf, np.inf) if x.dtype.kind != "i" else (np.iinfo(x.dtype).min, np.iinfo(x.dtype).max)
    kinds = {"sum": (lax.add, 0), "prod": (lax.mul, 1), "max": (lax.max, low), "min": (lax.min, high)}
    fns = {
        kind: lambda v, fn=fn, start=start: lax.reduce_window(v, x.dtype.type(start), fn, *case[1:])
        for kind, (fn, start) in kinds.items()
    }
    for kind, value in expect_all(fns, x).items():
        close(run("reduce_window", x, kind=kind, **dict(zip(names, case[1:]))), value)


@pytest.mark.parametrize(
    "x_shape, w_shape, attrs",
    [
        ((2, 3, 8), (4, 3, 3), {}),
        ((2, 3, 8, 7), (4, 3, 3, 2), {"strides": (2, 1), "padding": ((1, 2), (0, 1))}),
        ((1, 4, 9), (6, 2, 3), {"groups": 2, "window_dilation": (2,)}),
        ((1, 4, 9), (4, 1, 3), {"groups": 4}),
        ((1, 2, 4), (3, 2, 3), {"base_dilation": (3,), "padding": ((2, 2),)}),
        ((4, 3, 6), (6, 3, 2), {"batch_groups": 2}),
        ((2, 3, 5), (4, 3, 2), {"padding": ((-1, 0),)}),
        ((0, 3, 5), (4, 3, 2), {}),
        ((2, 3, 1), (4, 3, 2), {}),
        ((2, 3), (4, 3), {}),
        ((1, 2, 3, 4, 5), (2, 2, 2, 2, 2), {}),
    ],
)
@pytest.mark.parametrize("dtype", ["float64", "float16", "complex128"])
def test_conv(x_shape: tuple[int, ...], w_shape: tuple[int, ...], attrs: dict[str, Any], dtype: str) -> None:
    rng, spatial = np.random.default_rng(0), len(x_shape) - 2
    x, w = (rng.integers(-3, 4, s).astype(dtype) for s in (x_shape, w_shape))
    full = {
        "strides": (1,) * spatial, "padding": ((0, 0),) * spatial, "base_dilation": (1,) * spatial,
        "window_dilation": (1,) * spatial, "groups": 1, "batch_groups": 1, **attrs,
    }  # fmt: skip
    if dtype != "float64" and attrs and "strides" not in attrs:
        return  # one plain and one full case are enough
    expected = expect(
        lambda a, b: lax.conv_general_dilated(
            a, b, full["strides"], full["padding"], full["base_dilation"], full["window_dilation"],
            feature_group_count=full["groups"], batch_group_count=full["batch_groups"],
        ), x, w,
    )  # fmt: skip
    close(run("conv", x, w, dtype=dtype, **full), expected)


# ---- the table


def test_every_function_has_a_number_and_numbers_are_stable() -> None:
    assert set(CODES) == set(FUNCTIONS)
    assert len(set(WORDS.values())) == len(WORDS)
    # Saved programs hold these numbers. A change here means that old files call other functions.
    assert {n: CODES[n] for n in ("copy", "elementwise", "neg", "select", "sort", "gather", "scatter", "conv", "complex")} == {
        "copy": 0, "elementwise": 1, "neg": 2, "select": 60, "sort": 90, "gather": 92, "scatter": 93, "conv": 95, "complex": 115,
    }  # fmt: skip


def test_calls_are_counted_and_faults_are_program_errors() -> None:
    before = counters.get("host_ops")
    call("neg", [np.ones(3)], {})
    assert counters.get("host_ops") == before + 1
    for name, xs, attrs in (
        ("add", [np.ones(3)], {}),
        ("reshape", [np.ones(3)], {"shape": [2]}),
        ("reshape", [np.ones(3)], {}),
        ("nothing", [], {}),
        ("cast", [np.ones(3)], {"dtype": "object"}),
        ("transpose", [np.ones(3)], {"perm": [1]}),
    ):
        with pytest.raises(ProgramError):
            call(name, xs, attrs)
