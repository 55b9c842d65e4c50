"""The long run of the fuzzer: ``python -m tests.e2e.fuzz_lane FIRST COUNT [FAILURES]``.

Each seed is a random function of 3 to 40 operations, compiled once with fusion and once without, and run from its decoded words on the
tests' tile machine at sizes with 0 and 1 among them, with the chip's tiles and with small ones, against NumPy in float64. Failing seeds
go to a file and to the log, and the run goes on. A line every 500 graphs says what has been covered.
"""

from __future__ import annotations

import collections
import gc
import random as python_random
import re
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator

import jax
import numpy as np

from codegen import compile_graph
from dvm import pipeline
from graph_kernel import passes, text
from tests.e2e.harness import random
from tests.e2e.random_functions import Recipe, TooLarge, random_recipe, sizes_of
from tests.e2e.rounding import EXECUTORS, MORE_RUNS, OutOfRange, tolerances
from tests.e2e.tile_machine import Machine
from vm import serialise
from vm.program import Program
from vm.timing import Stopwatch
from vm.verifier import BoundCheck

SIZES = (1, 2, 3, 4, 5, 8, 13)
LARGEST = 20_000  # elements of a value: smaller sizes are taken where there would be more
STEP = 500
SECONDS = 30.0  # of CPU time for one graph, a hundred times what one takes: then it hangs
Counts = collections.Counter[str]


def nodes_of(seed: int) -> int:
    """How many operations the function of a seed has: 3 to 40, few more often than many."""
    return 3 + round(37 * (seed % 50 / 49) ** 2)


def launches(
    recipe: Recipe, seed: int, count: int
) -> Iterator[tuple[dict[str, int], list[np.ndarray], list[np.ndarray]]]:
    """Inputs at random sizes, the least ones at the second launch, and the results of NumPy in float64."""
    rng = python_random.Random(seed)
    for trial in range(count):
        choice = (recipe.low, *SIZES)
        while True:
            sizes = {k: recipe.low if trial == 1 else rng.choice(choice) for k in "abc"}
            arrays = [random(shape, seed=seed + i) for i, shape in enumerate(sizes_of(recipe, sizes))]
            try:
                want = recipe.run(np, [a.astype(np.float64) for a in arrays], LARGEST)
            except TooLarge:
                choice = choice[:-1]
                continue
            yield sizes, arrays, [np.asarray(x) for x in want]
            break


def expected(recipe: Recipe, arrays: list[np.ndarray]) -> tuple[list[np.ndarray], list[float]]:
    """The results of NumPy in float64, and how much those in float32 may differ from them. Raises ``TooLarge`` and ``OutOfRange``."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = [np.asarray(x) for x in recipe.run(np, [a.astype(np.float64) for a in arrays], LARGEST)]
        return want, tolerances(lambda xs: recipe.run(np, xs), arrays, want)


def compare(got: list[np.ndarray], want: list[np.ndarray], limits: list[float], label: str) -> bool:
    """Raises unless shapes agree, NaN and infinities are in the same places, and all else is within the limits. Returns whether all is
    also within the tolerance of executors against each other, which takes no account of what the graph makes of rounding."""
    strict = True
    for i, (a, b, limit) in enumerate(zip(got, want, limits, strict=True)):
        assert a.shape == b.shape, f"{label}: result {i} has shape {a.shape}, expected {b.shape}"
        assert a.dtype == np.float32, f"{label}: result {i} is {a.dtype}"
        finite = np.isfinite(b)
        np.testing.assert_array_equal(a[~finite], b[~finite], err_msg=f"{label}: result {i}")
        error = np.abs(a[finite].astype(np.float64) - b[finite]).max(initial=0.0)
        assert error <= limit, f"{label}: result {i} is off by {error:.3g}, allowed {limit:.3g}"
        strict &= bool(error <= EXECUTORS * np.abs(b[finite]).max(initial=0.0))
    return strict


def agrees(
    recipe: Recipe,
    arrays: list[np.ndarray],
    got: list[np.ndarray],
    want: list[np.ndarray],
    limits: list[float],
    label: str,
) -> bool:
    """``compare``, with the effect of rounding measured again where a result is off: a few runs may miss what it can do."""
    try:
        return compare(got, want, limits, label)
    except AssertionError:
        more = tolerances(lambda xs: recipe.run(np, xs), arrays, want, MORE_RUNS)
        return compare(got, want, more, label)


def small_tile(elements: int, trial: int) -> int | None:
    """The chip's tile, then small ones, which leave tails, in about as many steps at any size."""
    if trial == 0:
        return None
    return next((tile for most, tile in ((30, 1), (100, 2), (500, 3), (2000, 5)) if elements <= most), 7)


def programs(recipe: Recipe) -> tuple[Program, Program]:
    """The program as it is read from its file, and that of a copy of the graph with every operation a kernel of its own."""
    graph = pipeline.from_function(recipe, tuple(recipe.specs), {}).graph
    passes.optimise(graph)
    copy = text.parse(text.to_text(graph))
    return serialise.loads(serialise.dumps(compile_graph(graph, {"clock": Stopwatch}))), compile_graph(
        copy, {"fusion": False}
    )


def check_graph(seed: int, counts: Counts) -> None:
    """One graph; raises at the first difference."""
    recipe = random_recipe(seed, nodes_of(seed))
    if not recipe.results:
        counts["empty"] += 1
        return
    counts["operations"] += len(recipe.steps)
    counts["40 operations"] += len(recipe.steps) == 40
    for family in {f for f, _, _ in map(family_of, (name for name, _, _ in recipe.steps))}:
        counts[f"with {family}"] += 1
    fused, single = map(Machine, programs(recipe))
    fused.binder.check = BoundCheck(fused.program)
    for trial, (sizes, arrays, want) in enumerate(launches(recipe, seed, 3)):
        counts["launches"] += 1
        counts["launches at 0"] += 0 in sizes.values()
        try:
            limits = tolerances(lambda xs: recipe.run(np, xs), arrays, want)
        except OutOfRange:
            counts["launches beyond float32"] += 1
            continue
        label = f"seed {seed} at {sizes}"
        fused.tile = small_tile(recipe.largest, trial)

        strict = agrees(recipe, arrays, fused.run(arrays), want, limits, f"{label}, tile {fused.tile}")
        counts["launches within 2e-6" if strict else "launches within rounding"] += 1
        if trial == seed % 3:
            agrees(recipe, arrays, single.run(arrays), want, limits, f"{label}, not fused")


FAMILY = re.compile(r"[a-zA-Z_.@ ]+")
FAMILIES = {
    "control flow": ["cond", "switch", "for", "scan", "while", "nested", "by", "sized"],
    "matmul": ["x@y", "x@y.T", "x.T@y", "x@x.T", "outer", "dot_last"],
    "reduce": ["sum", "max", "min", "prod", "var", "unit", "cumsum"],
    "norm": ["softmax", "layer_norm", "rms_norm"],
    "concat": ["concat", "stack", "roll"],
    "broadcast": ["broadcast_like", "grow", "expand", "repeat", "tile"],
    "view": ["transpose", "merge", "split", "squeeze", "slice", "stride", "flip", "flatten", "pad", "half"],
    "index": ["causal", "take", "position", "gather"],
}


def family_of(name: str) -> tuple[str, str, str]:
    """The class of an operation, its name without and with parameters."""
    for family, names in FAMILIES.items():
        for known in names:
            if re.match(re.escape(known) + r"(?![a-z_])", name) and not (known in ("max", "sum") and "(" not in name):
                return family, known, name
    return "elementwise", name, name


def _hangs(*_: object) -> None:
    raise TimeoutError(f"not done after {SECONDS} s")


def main(first: int, count: int, failures: str = "") -> int:
    """Runs the seeds; returns how many failed."""
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    gc.freeze()
    jax.config.update("jax_traceback_filtering", "off")  # half of the operations that a seed tries are refused
    signal.signal(signal.SIGVTALRM, _hangs)
    counts: Counts = collections.Counter()
    failed: list[int] = []
    begun = time.process_time()
    for done, seed in enumerate(range(first, first + count), 1):
        signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
        try:
            check_graph(seed, counts)
        except Exception as error:
            failed.append(seed)
            what = f"seed {seed}: {type(error).__name__}: {error}".splitlines()[:2]
            print("FAILED", *what, flush=True)
            if failures:
                with open(failures, "a") as file:
                    file.write(f"{seed}\n{traceback.format_exc()}\n")
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        if done % 50 == 0:
            gc.collect()
        if done % STEP == 0:
            jax.clear_caches()
        if done % STEP == 0 or done == count:
            used = time.process_time() - begun
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
            print(f"{done} graphs, {len(failed)} failed, {used:.0f} CPU s, {memory} MiB, {dict(counts)}", flush=True)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:4]) > 0)
