"""What the tests of the table share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import onnx
import pytest
from onnx import parser

import dvm
from codegen import compile_graph
from dvm import pipeline
from graph_kernel import passes
from tests.e2e.harness import check, random, simulate
from vm.program import HostStep
from vm.timing import Stopwatch

MULTIPLE = "Constant<value = int64[1] {%d}>()"


def model(body: str, opset: int = 18) -> onnx.ModelProto:
    """A model from ONNX's text form."""
    return parser.parse_model(f'<ir_version: 9, opset_import: ["": {opset}]> {body}')


class Words:
    """A function or a model compiled to words once and run on the tests' tile machine."""

    def __init__(
        self, what: Any, *specs: Any, dims: dict[str, dvm.Dim] | None = None, constraints: Sequence[str] = ()
    ) -> None:
        if isinstance(what, onnx.ModelProto):
            traced = pipeline.from_onnx_model(what, dims, constraints)
        else:
            traced = pipeline.from_function(what, specs, {}, dims, constraints)
        passes.optimise(traced.graph)
        self.graph, self.program = traced.graph, compile_graph(traced.graph, {"clock": Stopwatch})

    def __call__(self, *arrays: Any) -> list[np.ndarray]:
        return simulate(self.program, *(np.asarray(a) for a in arrays))

    @property
    def ops(self) -> list[str]:
        """The operations that are left, in order."""
        return [n.op for n in self.graph.nodes]

    @property
    def host_ops(self) -> list[str]:
        """The functions that the host runs."""
        return [s.function for s in self.program.steps if isinstance(s, HostStep)]

    @property
    def texts(self) -> list[str]:
        """The outputs' dims as a person reads them."""
        return [", ".join(o.text) for o in self.program.outputs]


@dataclass
class Probe:
    """One input of a row's kind: what to compile, the sizes at which it runs with the result of ``want``, and the sizes that are
    refused with a message that has all of ``names`` in it. An entry of ``good`` or ``bad`` is a tuple of shapes, one an input."""

    name: str
    what: Any
    want: Callable[..., Any] | None
    specs: Sequence[Any] = ()
    good: Sequence[tuple[tuple[int, ...], ...]] = ()
    bad: Sequence[tuple[tuple[int, ...], ...]] = ()
    names: Sequence[str] = ()
    dtype: Any = np.float32
    dims: dict[str, dvm.Dim] | None = None
    constraints: Sequence[str] = ()
    tolerance: float = 1e-5
    more: Callable[[Words], None] | None = None
    inputs: Callable[..., Sequence[np.ndarray]] | None = field(default=None)

    def __repr__(self) -> str:
        return self.name

    def arrays(self, shapes: tuple[tuple[int, ...], ...]) -> list[np.ndarray]:
        """Random inputs of these shapes."""
        if self.inputs is not None:
            return list(self.inputs(*shapes))
        return [random(shape, self.dtype, seed=i) for i, shape in enumerate(shapes)]

    def check(self) -> Words:
        """Compiles once and launches at all sizes."""
        what = model(self.what) if isinstance(self.what, str) else self.what
        words = Words(what, *self.specs, dims=self.dims, constraints=self.constraints)
        if self.more is not None:
            self.more(words)
        for shapes in self.good:
            arrays = self.arrays(shapes)
            assert self.want is not None
            results = jax.tree_util.tree_leaves(self.want(*arrays))
            for got, want in zip(words(*arrays), results, strict=True):
                want = np.asarray(want)
                narrow = jax.dtypes.canonicalize_dtype(
                    want.dtype
                )  # NumPy computes in 64 bits where it is asked for the truth
                assert got.dtype in (want.dtype, narrow), f"{self.name} at {shapes}: {got.dtype}, not {want.dtype}"
                check(got, want.astype(got.dtype), self.tolerance, f"{self.name} at {shapes}")
        for shapes in self.bad:
            refused(words, *self.arrays(shapes), names=self.names)
        return words


def refused(call: Callable[..., Any], *arrays: Any, names: Sequence[str] = ()) -> None:
    """The launch is a ShapeError that names what is wrong."""
    with pytest.raises(dvm.ShapeError) as error:
        call(*arrays)
    for name in names:
        assert name in str(error.value), str(error.value)


@contextlib.contextmanager
def one_compile() -> Iterator[None]:
    """Around a compile and all its launches."""
    before = dvm.stats()
    yield
    used = dvm.stats() - before
    assert used.compiles == 1 and used.host_ops == 0


@contextlib.contextmanager
def no_compile() -> Iterator[None]:
    """Around launches after the program was made for its maxima."""
    before = dvm.stats()
    yield
    assert (dvm.stats() - before).xla_compiles == 0


def f32(text: str, **limits: tuple[int, int]) -> jax.ShapeDtypeStruct:
    """A float32 spec whose dims have ranges: ``f32("n, 4", n=(0, 9))``."""
    return dvm.spec(text, np.float32, **{name: dvm.Dim(name, min=lo, max=hi) for name, (lo, hi) in limits.items()})


def check_launch(
    program: dvm.CompiledProgram, want: Callable[..., Any], *arrays: np.ndarray, tol: float = 2e-5
) -> None:
    """One launch of a compiled program, compared leaf by leaf."""
    got, expected = jax.tree_util.tree_leaves(program(*arrays)), jax.tree_util.tree_leaves(want(*arrays))
    for a, b in zip(got, expected, strict=True):
        check(np.asarray(a), np.asarray(b).astype(np.asarray(a).dtype), tol, str([x.shape for x in arrays]))
