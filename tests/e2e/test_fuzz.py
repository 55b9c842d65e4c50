"""Random functions: the compiled program against NumPy in float64, fused and not, on the tests' tile machine and on the real one."""

import random as python_random

import numpy as np
import pytest

import dvm
from tests.e2e.harness import check, program_of, random, simulate
from tests.e2e.random_functions import random_recipe, sizes_of
from tests.e2e.random_layers import layer_sizes, random_layers

# Float32 through up to 25 operations, sums and normalisations among them, against float64; differences of numbers of size 1 are common.
TOLERANCE = 3e-5
SIZES = (1, 2, 3, 4, 5, 8, 13)


def launches(recipe, seed, count):
    """Inputs at random sizes, the least ones among them, and the results of NumPy in float64 (None: it refuses these sizes)."""
    rng = python_random.Random(seed)
    for trial in range(count):
        sizes = {k: recipe.low if trial == 1 else rng.choice((recipe.low, *SIZES)) for k in "abc"}
        arrays = [random(shape, seed=seed + i) for i, shape in enumerate(sizes_of(recipe, sizes))]
        with np.errstate(all="ignore"):
            want = recipe.run(np, [a.astype(np.float64) for a in arrays])
        yield sizes, arrays, want


def compare(recipe, got, want, label):
    for g, w in zip(got, want, strict=True):
        check(g, np.asarray(w).astype(np.float32), TOLERANCE, f"{label}\n{recipe}", least=1.0)


def run(seed, nodes):
    recipe = random_recipe(seed, nodes)
    if not recipe.steps:
        return
    fused = program_of(recipe, *recipe.specs)
    single = program_of(recipe, *recipe.specs, fusion=False)
    for trial, (sizes, arrays, want) in enumerate(launches(recipe, seed, 3)):
        compare(recipe, simulate(fused, *arrays, tile=(None, 3, 1)[trial]), want, f"seed {seed} at {sizes}")
        compare(recipe, simulate(single, *arrays), want, f"seed {seed} at {sizes}, not fused")


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:invalid value")
def test_random_functions(seed):
    run(seed, 3 + seed % 23)


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(40))
@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:invalid value")
def test_many_random_functions(batch):
    for seed in range(1000 + 100 * batch, 1100 + 100 * batch):
        run(seed, 3 + seed % 23)


@pytest.mark.parametrize(
    "seed", [*range(3000, 3004), *(pytest.param(s, marks=pytest.mark.slow) for s in range(3004, 3100))]
)
@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:invalid value")
def test_random_functions_compiled_by_xla(seed):
    recipe = random_recipe(seed, 3 + seed % 9)
    program = dvm.compile(recipe, *recipe.specs)
    before = dvm.stats().xla_compiles
    for sizes, arrays, want in launches(recipe, seed, 4):
        compare(recipe, [np.asarray(x) for x in program(*arrays)], want, f"seed {seed} at {sizes}")
    assert dvm.stats().xla_compiles == before


def run_layers(seed):
    recipe = random_layers(seed, 1 + seed % 7)
    program = program_of(recipe, *recipe.specs)
    rng = python_random.Random(seed)
    for trial in range(3):
        sizes = {k: recipe.low if trial == 2 else rng.choice((recipe.low, *SIZES, 17)) for k in "stb"}
        arrays = [random(shape, seed=seed + i) for i, shape in enumerate(layer_sizes(recipe, sizes))]
        with np.errstate(all="ignore"):
            want = recipe.run(np, [a.astype(np.float64) for a in arrays])
        got = simulate(program, *arrays, tile=(None, 3, 1)[trial])
        for g, w in zip(got, want, strict=True):
            label = f"seed {seed} at {sizes}\n{recipe}"
            check(g, np.asarray(w).astype(np.float32), recipe.tolerance, label, least=1.0)


@pytest.mark.parametrize("seed", [11, 38, 102, 155, 158, *range(5000, 5006)])  # the first ones have found something
@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:invalid value")
def test_random_layers(seed):
    run_layers(seed)


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(40))
@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:invalid value")
def test_many_random_layers(batch):
    for seed in range(20 * batch, 20 * batch + 20):
        run_layers(seed)
