"""The interpreter agrees with the reference executor and the specialised one, at blocks of every size, and compiles nothing."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import dvm
from tests.e2e import harness
from tests.e2e.fuzz_lane import compare, expected
from tests.e2e.random_functions import TooLarge, random_recipe, sizes_of
from tests.e2e.rounding import OutOfRange
from tests.vm.test_reference import BF16, BOOL, CASES, F16, I8, I32, Case, arrays_of
from vm import interpreter_code, interpreter_image, reference, runtime
from vm.program import Program

spec, random = harness.spec, harness.random
SMALL = (interpreter_image.FIRST_CLASS, interpreter_image.SMALLEST_CLASS)
I64, U8, U32 = np.int64, np.uint8, np.uint32


def shifts(x: Any, y: Any) -> Any:
    return x >> 1, lax.shift_right_logical(x, y), lax.shift_left(x, y), ~x, -x, abs(x)


def unsigned(x: Any, y: Any) -> Any:
    return x // (y + 1), x - y, x > y, x >> 1, jnp.maximum(x, y), x.sum(-1), x.max(-1), x.astype(jnp.float32)


def casts(x: Any) -> Any:
    return x.astype(jnp.int8), x.astype(jnp.float16), x.astype(jnp.bool_), jnp.floor(x).astype(jnp.uint8)


MORE: dict[str, Case] = {
    "shifts": (shifts, [spec("n, d", I8)] * 2, [(5, 33)]),
    "unsigned": (unsigned, [spec("n, d", U8)] * 2, [(5, 33)]),
    "unsigned words": (unsigned, [spec("n, d", U32)] * 2, [(5, 33)]),
    "products of integers": (lambda x, y: x @ y, [spec("m, k", I32), spec("k, n", I32)], [(3, 130, 40)]),
    "half arg": (lambda x: (jnp.argmax(x, 0), jnp.argmin(x, -1), jnp.cumsum(x, 0)), [spec("n, d", F16)], [(40, 70)]),
    "half casts": (casts, [spec("n, d", BF16)], [(7, 9)]),
    "bool reductions": (lambda x: (x.any(0), x.all(-1), x.astype(jnp.int32).sum(0), jnp.argmax(x, -1)), [spec("n, d", BOOL)], [(70, 9)]),
    "lookup": (lambda t, i: t[i] * 2, [spec("v, 24"), spec("n", I32)], [(50, 24, 33)]),
    "batched": (lambda x, y: jnp.einsum("bij,bkj->bik", x, y) * 2, [spec("b, i, j"), spec("b, k, j")], [(3, 33, 20, 17)]),
    "transposes": (lambda x: (x.transpose(2, 0, 1) + 1, x.reshape(-1, 6) * 2, x[:, ::-1].sum(0)), [spec("a, b, 6")], [(3, 37, 6)]),
}  # fmt: skip
ALL = {**CASES, **MORE}
LOOSE = {"whole": 1e-5, "scans": 1e-5}


def launched(program: Program, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The results of one launch on the interpreter, which must compile nothing."""
    executable = runtime.Executable(program, "interpreter")
    before = dvm.stats()
    out = executable.launch(arrays)
    after = dvm.stats() - before
    assert after.xla_compiles == 0 and after["interpreter_launches"] == 1
    return out


@pytest.fixture(scope="module", autouse=True)
def image() -> None:
    """The image is compiled, or comes from the cache, before anything is counted."""
    dvm.stats()
    interpreter_image.compiled(*SMALL)


def agree(program: Program, arrays: list[np.ndarray], tolerance: float | None, label: str) -> None:
    """The interpreter's results are those of the reference executor."""
    binder = runtime.Binder(program)
    want = reference.run(program, binder.bind_sizes(binder.check_inputs(arrays)), arrays)
    for i, (a, b) in enumerate(zip(launched(program, arrays), want, strict=True)):
        harness.check(a, b, tolerance, f"{label} result {i}")


@pytest.mark.parametrize("name", ALL)
def test_agrees_with_the_reference(name: str) -> None:
    fn, specs, many = ALL[name]
    program = harness.program_of(fn, *specs)
    for sizes in many:
        agree(program, arrays_of(specs, sizes), LOOSE.get(name), f"{name} {sizes}")


def test_a_row_longer_than_local_memory() -> None:
    def fn(x: Any) -> Any:
        return jax.nn.softmax(x, -1) + x.max(-1, keepdims=True)

    x = random((2, 60_000))  # float32: more than the unified buffer holds
    (got,) = launched(harness.program_of(fn, spec("n, d")), [x])
    harness.check(got, fn(x))


@pytest.mark.parametrize("volume", [1, 50])
@pytest.mark.parametrize(
    "name", ["layer_norm", "softmax", "matmul", "attention", "arg", "column_sums", "moves", "iota", "ints", "batched"]
)
def test_small_blocks_give_the_same(name: str, volume: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many steps of every loop, with and without a rest."""
    fn, specs, many = ALL[name]
    for constant in ("VECTOR_VOLUME", "CUBE_VOLUME", "REDUCE_BLOCK"):
        monkeypatch.setattr(interpreter_code, constant, volume)
    sizes = (9, 10, 11) if name == "matmul" else (3, 50) if name == "softmax" and volume > 1 else many[0]
    program = harness.program_of(fn, *specs)
    for chosen in {sizes, many[0]}:
        agree(program, arrays_of(specs, chosen), 1e-5, f"{name} {chosen}")


def test_integers_of_64_bits_are_exact() -> None:
    def fn(x: Any, y: Any) -> Any:
        return x * y + (x // (y + 3)), x.sum(-1), x > y, jnp.cumsum(x, -1), lax.shift_right_logical(x, 3), x.max(0)

    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        program = harness.program_of(fn, spec("n, d", I64), spec("n, d", I64))
        for shape in ((1, 1), (5, 70)):
            arrays = [rng.integers(1 << 40, 1 << 62, shape), rng.integers(1, 1 << 30, shape)]
            for a, b in zip(launched(program, arrays), fn(*map(jnp.asarray, arrays)), strict=True):
                np.testing.assert_array_equal(a, np.asarray(b))


@pytest.mark.parametrize("seed", range(8))
def test_random_programs(seed: int) -> None:
    agrees_with_numpy(seed)


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(30))
def test_many_random_programs(batch: int) -> None:
    for seed in range(100 * batch + 100, 100 * batch + 200):
        agrees_with_numpy(seed)


def agrees_with_numpy(seed: int) -> None:
    recipe = random_recipe(seed, 3 + seed % 12)
    if not recipe.results:
        return
    program = harness.program_of(recipe, *recipe.specs)
    for values in ({"a": 3, "b": 5, "c": 7}, {"a": 17, "b": 1, "c": 4}):
        arrays = [random(shape, seed=seed) for shape in sizes_of(recipe, values)]
        try:
            want, limits = expected(recipe, arrays)
        except (TooLarge, OutOfRange):
            continue
        compare(launched(program, arrays), want, limits, f"seed {seed} at {values}\n{recipe}")


def test_compile_jit_and_load_take_the_tier(tmp_path: Any) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    program = dvm.compile(lambda x: x * 2 + 1, spec("n, 4"), tier="interpreter")
    program.save(tmp_path / "p.dvm")
    before = dvm.stats()
    for run in (
        program,
        dvm.load(tmp_path / "p.dvm", tier="interpreter"),
        dvm.jit(lambda x: x * 2 + 1, tier="interpreter"),
    ):
        np.testing.assert_array_equal(run(x), x * 2 + 1)
    assert (dvm.stats() - before)["interpreter_launches"] == 3
    assert (dvm.stats() - before).xla_compiles == 0


def test_pinned_arrays_are_copied_once_and_numpy_ones_always() -> None:
    program = dvm.compile(lambda x, w: x @ w, spec("n, 4"), spec("4, 3"), tier="interpreter")
    x, w = random((5, 4)), random((4, 3))
    harness.check(program(x, w), x @ w, 1e-5)
    w[...] *= 2
    harness.check(program(x, w), x @ w, 1e-5)
    other = jax.device_put(w * 3)
    for _ in range(2):
        harness.check(program(x, other), x @ np.asarray(other), 1e-5)
    harness.check(program(x, jax.device_put(w)), x @ w, 1e-5)


def test_a_larger_class_is_one_more_image() -> None:
    assert interpreter_image.capacity(0) == interpreter_image.SMALLEST_CLASS
    sizes = {interpreter_image.capacity(n) for n in range(1 << 20, 1 << 28, 1 << 20)}
    assert sorted(sizes) == [1 << 21, 1 << 23, 1 << 25, 1 << 27, 1 << 29]


def test_equal_layers_are_planned_once_for_a_launch() -> None:
    rng = np.random.default_rng(3)
    weights = [rng.standard_normal((4, 4)).astype(np.float32) for _ in range(9)]
    x = rng.standard_normal((7, 4)).astype(np.float32)

    def layers(ws: list[Any], x: Any) -> Any:
        for w in ws:
            x = jnp.tanh(x @ w) @ w.T + x.sum(0)
        return x

    planned = []
    for n in (6, 9):
        program = dvm.compile(layers, weights[:n], spec("n, 4"), tier="interpreter")
        before = dvm.stats()
        np.testing.assert_allclose(program(weights[:n], x), layers(weights[:n], x), rtol=1e-4, atol=1e-4)
        program(weights[:n], x)  # what is planned is kept with the sizes
        planned.append(dvm.stats()["interpreter_plans"] - before.get("interpreter_plans", 0))
        assert len(program.kernels) > planned[-1]
    assert planned[0] == planned[1]
