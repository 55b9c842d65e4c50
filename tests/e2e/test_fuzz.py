"""Random functions: the compiled program against NumPy in float64, fused and not, on the tests' tile machine and on the real one."""

import collections
import random as python_random

import numpy as np
import pytest

import dvm
from tests.e2e import fuzz_lane
from tests.e2e.harness import check, program_of, random, simulate
from tests.e2e.random_functions import random_recipe
from tests.e2e.random_layers import layer_sizes, random_layers
from tests.e2e.rounding import tolerances

SIZES = (1, 2, 3, 4, 5, 8, 13)
quiet = pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:invalid value", "ignore:overflow")


@pytest.mark.parametrize("seed", range(60))
@quiet
def test_random_functions(seed):
    fuzz_lane.check_graph(seed, collections.Counter())


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(40))
def test_many_random_functions(batch, tmp_path):
    """20,000 graphs; ``python -m tests.e2e.fuzz_lane`` runs any others."""
    failures = tmp_path / "failures"
    assert fuzz_lane.main(1000 + 500 * batch, 500, str(failures)) == 0, failures.read_text()


@pytest.mark.parametrize(
    "seed", [*range(3000, 3004), *(pytest.param(s, marks=pytest.mark.slow) for s in range(3004, 3100))]
)
@quiet
def test_random_functions_compiled_by_xla(seed):
    recipe = random_recipe(seed, 3 + seed % 9)
    program = dvm.compile(recipe, *recipe.specs)
    before = dvm.stats().xla_compiles
    for sizes, arrays, want in fuzz_lane.launches(recipe, seed, 4):
        limits = tolerances(lambda xs: recipe.run(np, xs), arrays, want)
        fuzz_lane.compare([np.asarray(x) for x in program(*arrays)], want, limits, f"seed {seed} at {sizes}\n{recipe}")
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
@quiet
def test_random_layers(seed):
    run_layers(seed)


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(40))
@quiet
def test_many_random_layers(batch):
    for seed in range(20 * batch, 20 * batch + 20):
        run_layers(seed)
