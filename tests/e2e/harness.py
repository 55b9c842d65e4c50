"""Helpers of the whole-compiler tests: compile once, launch at many sizes, compare with an independent result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

import dvm
from codegen import compile_graph
from dvm import pipeline
from graph_kernel import passes
from tests.e2e.tile_machine import Machine
from vm.program import HostStep, Program
from vm.timing import Stopwatch

SIZES = (0, 1, 2, 7, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1000)
"""0, 1, primes, and around the executors' block sizes."""

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
TOLERANCE = 2e-6  # of the largest element, float32
HALF_TOLERANCE = 1e-2


def spec(shape: str, dtype: Any = jnp.float32, **limits: tuple[int, int]) -> jax.ShapeDtypeStruct:
    """A spec whose dims have ranges: ``spec("n, 4", n=(0, 1000))``."""
    return dvm.spec(shape, dtype, **{name: dvm.Dim(name, min=lo, max=hi) for name, (lo, hi) in limits.items()})


def random(shape: Sequence[int], dtype: Any = np.float32, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    """Test data of any dtype: normal floats, small integers of both signs where they exist, random bools."""
    rng, dtype = np.random.default_rng([seed, *shape]), np.dtype(dtype)
    if dtype == np.bool_:
        return rng.random(shape) < 0.5
    if dtype.kind in "iu":
        return rng.integers(0 if dtype.kind == "u" else -9, 10, shape).astype(dtype)
    return (rng.standard_normal(shape) * scale).astype(dtype)


def check(got: Any, want: Any, tolerance: float | None = None, label: str = "", least: float = 0.0) -> None:
    """Raises unless shapes, dtypes and values agree: integers and bools exactly, NaN and infinities in the same places, and floats
    up to ``tolerance`` times the largest finite element of ``want`` (or ``least``, where differences of larger numbers are expected)."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape, f"{label}: shape {got.shape}, expected {want.shape}"
    assert got.dtype == want.dtype, f"{label}: dtype {got.dtype}, expected {want.dtype}"
    if want.dtype.kind in "iub":
        np.testing.assert_array_equal(got, want, err_msg=label)
        return
    half = want.dtype.itemsize == 2
    kind = np.complex128 if want.dtype.kind == "c" else np.float64
    a, b = got.astype(kind), want.astype(kind)
    np.testing.assert_array_equal(np.isnan(a), np.isnan(b), err_msg=f"{label}: NaN")
    infinite = np.isinf(a) | np.isinf(b)
    if half:  # what overflows in 16 bits may overflow a rounding earlier
        infinite &= np.isinf(a) & np.isinf(b)
    np.testing.assert_array_equal(a[infinite], b[infinite], err_msg=f"{label}: infinities")
    finite = np.isfinite(a) & np.isfinite(b)
    if not finite.any():
        return
    limit = tolerance if tolerance is not None else HALF_TOLERANCE if half else TOLERANCE
    scale = max(np.abs(b[finite]).max(), least)
    error = np.abs(a[finite] - b[finite]).max()
    assert error <= limit * scale, (
        f"{label}: error {error:.3g} of {scale:.3g} ({error / max(scale, 1e-300):.3g} > {limit:.3g})"
    )


class Compiled:
    """A function compiled once by ``dvm.compile``; ``check`` launches it and compares with ``jax.jit`` (or ``reference``)."""

    def __init__(
        self, fn: Callable[..., Any], *specs: Any, reference: Callable[..., Any] | None = None, **options: Any
    ) -> None:
        before = dvm.stats().compiles
        self.fn, self.program = fn, dvm.compile(fn, *specs, **options)
        assert dvm.stats().compiles == before + 1
        self.reference = reference if reference is not None else jax.jit(fn)
        self.compiled = dvm.stats().xla_compiles

    @property
    def kernels(self) -> int:
        """Number of kernels."""
        return len(self.program.kernels)

    def run(self, *arrays: Any) -> Any:
        """One launch, which must compile nothing."""
        before = dvm.stats().xla_compiles
        out = self.program(*arrays)
        assert dvm.stats().xla_compiles == before, "a launch within the declared sizes compiled something"
        return out

    def check(self, *arrays: Any, tolerance: float | None = None, want: Any = None) -> Any:
        """Launches and compares every leaf of the result; returns the result."""
        out = self.run(*arrays)
        if want is None:
            want = self.reference(*arrays)
        got, expected = jax.tree_util.tree_flatten(out), jax.tree_util.tree_flatten(want)
        assert got[1] == expected[1], f"result {got[1]}, expected {expected[1]}"
        shapes = ", ".join(str(np.shape(a)) for a in jax.tree_util.tree_leaves(arrays))
        for i, (a, b) in enumerate(zip(got[0], expected[0], strict=True)):
            check(a, b, tolerance, f"result {i} at {shapes}")
        return out


Shapes = tuple[Any, ...]  # of the inputs: a shape stands for random data, anything else is the input itself


@dataclass(frozen=True)
class Case:
    """A function with specs and launches, for ``verify``. ``dtypes`` of the random inputs; ``kernels`` and ``host_ops`` as expected."""

    name: str
    fn: Callable[..., Any]
    specs: Sequence[Any]
    launches: Sequence[Shapes]
    dtypes: Sequence[Any] = ()
    tolerance: float | None = None
    kernels: int | None = None
    host_ops: int = 0

    def arrays(self, launch: Shapes) -> list[np.ndarray]:
        """The inputs of one launch."""
        dtypes = [*self.dtypes, *[np.float32] * len(launch)]
        return [
            random(s, d, i) if isinstance(s, tuple) else np.asarray(s)
            for i, (s, d) in enumerate(zip(launch, dtypes, strict=False))
        ]


def verify(case: Case) -> None:
    """Compiles once and launches on the tests' tile machine, with the chip's tiles and with small ones, against ``jax.jit``."""
    program = program_of(case.fn, *case.specs)
    ops = [k["ops"] for k in program.debug["kernels"]]
    if case.kernels is not None:
        assert len(ops) == case.kernels, f"{ops}, cuts {program.debug['cuts']}"
    hosts = [s.function for s in program.steps if isinstance(s, HostStep)]
    assert len(hosts) == case.host_ops, f"host ops {hosts}"
    reference = jax.jit(case.fn)
    for i, launch in enumerate(case.launches):
        arrays = case.arrays(launch)
        want = jax.tree_util.tree_leaves(reference(*arrays))
        tails = 3 if max((a.size for a in arrays), default=0) < 5000 else 200
        for tile in (None, tails)[: 1 + (i == 0)]:
            label = f"{case.name} at {[a.shape for a in arrays]}, tile {tile}"
            for got, expected in zip(simulate(program, *arrays, tile=tile), want, strict=True):
                check(got, expected, case.tolerance, label)


def program_of(fn: Callable[..., Any], *specs: Any, **options: Any) -> Program:
    """The program alone, nothing compiled by XLA: for the tests' own tile machine."""
    traced = pipeline.from_function(fn, specs, {})
    passes.optimise(traced.graph)
    return compile_graph(traced.graph, {"clock": Stopwatch, **options})


def simulate(program: Program, *arrays: np.ndarray, tile: int | None = None) -> list[np.ndarray]:
    """Results of a program on the tests' tile machine."""
    return Machine(program, tile).run(arrays)
