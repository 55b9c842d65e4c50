"""The reference executor agrees with JAX on all kinds of kernels, tiles of every size, and with the specialised executor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

import configs
import dvm
from dvm import models, pipeline
from tests.e2e import harness
from tests.e2e.fuzz_lane import compare, expected
from tests.e2e.random_functions import TooLarge, random_recipe, sizes_of
from tests.e2e.rounding import OutOfRange
from tests.models import harness as layers
from tests.vm import reference_mutants as mutants
from vm import reference, verifier
from vm.binder import Binder
from vm.program import Program

spec, random = harness.spec, harness.random
INTS = np.arange(20, dtype=np.int32) % 7


def layer_norm(x: Any, g: Any, b: Any) -> Any:
    m = x.mean(-1, keepdims=True)
    return (x - m) / jnp.sqrt(((x - m) ** 2).mean(-1, keepdims=True) + 1e-5) * g + b


def attention(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.softmax(q @ jnp.swapaxes(k, -1, -2) / 4, -1) @ v


def scan(x: Any) -> Any:
    return lax.scan(lambda c, r: (c * 0.5 + r, c + r), jnp.zeros(x.shape[1:], x.dtype), x)


def control(x: Any) -> Any:
    y = lax.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2, x)
    return lax.fori_loop(
        0, 3, lambda i, c: jnp.sin(c) + i, lax.while_loop(lambda c: c.sum() < 100, lambda c: c * 2 + 3, y)
    )


Case = tuple[Callable[..., Any], list[Any], list[tuple[Any, ...]]]
F16, BF16, I32, I8, BOOL = np.float16, ml_dtypes.bfloat16, np.int32, np.int8, np.bool_

CASES: dict[str, Case] = {
    "chain": (lambda x, y: jnp.tanh(x) * y + jnp.exp(-x * x), [spec("n, 33", n=(0, 999))] * 2, [(n, 33) for n in (0, 1, 7, 8, 9, 100)]),
    "layer_norm": (layer_norm, [spec("n, d"), spec("d"), spec("d")], [(1, 1), (7, 16), (33, 17), (70, 300)]),
    "softmax": (lambda x: jax.nn.softmax(x, -1), [spec("b, s")], [(1, 1), (33, 15), (5, 1100)]),
    "matmul": (lambda a, b: a @ b, [spec("m, k"), spec("k, n")], [(1, 1, 1), (31, 33, 32), (70, 100, 65)]),
    "matmul_t": (lambda a, b: jax.nn.relu(a @ b.T) + 1, [spec("m, k"), spec("n, k")], [(5, 64, 7), (33, 31, 40)]),
    "attention": (attention, [spec("b, h, s, 16")] * 3, [(1, 1, 1, 16), (2, 2, 37, 16)]),
    "column_sums": (lambda x: (x.sum(0), x.max(0), x.min(0)), [spec("n, d")], [(1, 1), (100, 70)]),
    "whole": (lambda x: x / jnp.abs(x).sum(), [spec("n, d")], [(60, 70)]),
    "arg": (lambda x: (jnp.argmax(x, -1), jnp.argmin(x, 0)), [spec("n, d")], [(1, 1), (70, 50)]),
    "scans": (lambda x: (jnp.cumsum(x, -1), lax.cummax(x, axis=1), lax.cumlogsumexp(x, axis=1)), [spec("n, 20")], [(9, 20)]),
    "moves": (lambda x: (x.T + 1, x[::-1, 1:5:2], jnp.pad(x, 1), jnp.concatenate([x, x * 2], 0)), [spec("n, 6")], [(2, 6), (45, 6)]),
    "iota": (lambda x: x + jnp.arange(x.shape[1]) * x.shape[0], [spec("n, d")], [(3, 40)]),
    "scan": (scan, [spec("n, d")], [(1, 7), (5, 7)]),
    "control": (control, [spec("n, d")], [(3, 4)]),
    "half": (lambda x, y: (jnp.tanh(x).sum(-1), x @ y, x > 0), [spec("n, k", F16), spec("k, 9", F16)], [(6, 50, 9)]),
    "bfloat16": (lambda x: (jax.nn.softmax(x, -1), jnp.exp(x) + x), [spec("n, d", BF16)], [(6, 70)]),
    "ints": (lambda x, y: (x // (y + 10), x % 3, x << 2, x.sum(-1), x.astype(jnp.float32)), [spec("n, d", I32)] * 2, [(6, 70)]),
    "bytes": (lambda x: (x + x, x.max(-1), x > 2, x.astype(jnp.int32)), [spec("n, d", I8)], [(6, 70)]),
    "bools": (lambda x, y: (x & y, x ^ y, ~x, x.all(-1), jnp.where(x, 1.5, 2.0)), [spec("n, d", BOOL)] * 2, [(6, 70)]),
}  # fmt: skip


def arrays_of(specs: Sequence[Any], sizes: tuple[int, ...]) -> list[np.ndarray]:
    """Random inputs; the sizes are those of the dims in the order in which they are first named."""
    names: dict[str, int] = {}
    free = iter(sizes)
    out = []
    for s in specs:
        shape = []
        for dim in s.shape:
            if not isinstance(dim, int) and str(dim) not in names:
                names[str(dim)] = next(free)
            elif isinstance(dim, int) and not out:
                next(free, None)
            shape.append(dim if isinstance(dim, int) else names[str(dim)])
        out.append(random(shape, s.dtype, seed=len(out)))
    return out


def run(program: Program, arrays: Sequence[np.ndarray], cores: int | None = None) -> list[np.ndarray]:
    binder = Binder(program)
    bound = binder.bind_sizes(binder.check_inputs(arrays))
    verifier.BoundCheck(program)(bound)
    return reference.run(program, bound, arrays, cores=cores)


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_jax(name: str) -> None:
    fn, specs, many = CASES[name]
    program = harness.program_of(fn, *specs)
    verifier.verify(program)
    for sizes in many:
        arrays = arrays_of(specs, sizes)
        want = jax.tree_util.tree_leaves(jax.jit(fn)(*arrays))
        for cores in (None, 1):
            for i, (a, b) in enumerate(zip(run(program, arrays, cores), want, strict=True)):
                harness.check(a, b, 1e-5 if name in ("whole", "scans") else None, f"{name} {sizes} result {i}")


@pytest.mark.parametrize("name", ["chain", "layer_norm", "softmax", "matmul", "attention", "arg", "column_sums"])
def test_small_tiles_give_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many steps of every loop, on one core and on many."""
    fn, specs, many = CASES[name]
    arrays = arrays_of(specs, many[-1] if name != "softmax" else (70, 50))
    case = mutants.compiled(name, fn, specs, [arrays], monkeypatch)
    want = jax.tree_util.tree_leaves(jax.jit(fn)(*arrays))
    binder = Binder(case.program)
    bound = binder.bind_sizes(binder.check_inputs(arrays))
    for got in (case.right, reference.run(case.program, bound, arrays, case.chip)):
        for a, b in zip(got, want, strict=True):
            harness.check(a, b, 1e-5)


@pytest.mark.parametrize("name", ["layer_norm", "matmul", "attention", "arg", "moves", "ints", "half", "control"])
def test_agrees_with_the_specialised_executor(name: str) -> None:
    fn, specs, many = CASES[name]
    slow, fast = (dvm.compile(fn, *specs, tier=tier) for tier in ("reference", "specialised"))
    assert slow.tier == "reference"
    for sizes in many[-1:]:
        arrays = arrays_of(specs, sizes)
        a, b = (jax.tree_util.tree_leaves(p(*arrays)) for p in (slow, fast))
        for x, y in zip(a, b, strict=True):
            harness.check(x, y)


@pytest.mark.parametrize("seed", [*range(10), *(pytest.param(s, marks=pytest.mark.slow) for s in range(10, 1000))])
def test_random_programs(seed: int) -> None:
    recipe = random_recipe(seed, 8)
    if not recipe.results:
        pytest.skip("no operation was possible")
    program = harness.program_of(recipe, *recipe.specs)
    verifier.verify(program)
    for values in ({"a": 3, "b": 5, "c": 7}, {"a": 17, "b": 1, "c": 4}):
        arrays = [random(shape, seed=seed) for shape in sizes_of(recipe, values)]
        try:
            want, limits = expected(recipe, arrays)
        except (TooLarge, OutOfRange):
            continue
        compare(run(program, arrays), want, limits, f"seed {seed} at {values}\n{recipe}")


@pytest.mark.parametrize(
    "name",
    [
        n if n in ("bert-base", "mmoe", "qwen2.5-0.5b") else pytest.param(n, marks=pytest.mark.slow)
        for n in configs.model_names()
    ],
)
def test_layers_of_models(name: str) -> None:
    config = models.scaled(models.load_config(name))
    specs = (models.param_specs(config, dtype=jnp.float32), *layers.specs(config, jnp.float32))
    program = pipeline.from_function(models.block(config), specs, {}).compile(tier="reference", start=False)
    verifier.verify(program.program)
    params = models.init_params(config, seed=0)
    for sizes in ({"b": 1, "s": 1, "p": 0}, {"b": 2, "s": 5, "p": 3}):
        arrays = layers.inputs(config, sizes, jnp.float32)
        got = jax.tree_util.tree_leaves(program(params, *arrays))
        for a, b in zip(got, jax.tree_util.tree_leaves(jax.jit(models.block(config))(params, *arrays)), strict=True):
            harness.check(a, np.asarray(b), 2e-5, name)
