"""What the front-end tests share: trace once with symbolic sizes, evaluate at many, compare with ``jax.jit``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.export import symbolic_shape

from graph_kernel.evaluate import evaluate, shape_of
from graph_kernel.from_jaxpr import Traced, trace
from graph_kernel.ops import OPS

_QUICK = {"xla_backend_optimization_level": 0}  # XLA's compiling is most of what these tests cost


@dataclass(frozen=True)
class D:
    """A declared dimension, as ``dvm.Dim`` will be."""

    name: str
    min: int = 1
    max: int | None = None
    multiple_of: int = 1


def specs(*shapes: tuple[str, Any], constraints: Sequence[str] = ()) -> list[jax.ShapeDtypeStruct]:
    """Argument specs in one JAX scope from ("b, s, 4", dtype) pairs."""
    scope = jax.export.SymbolicScope(constraints)
    return [jax.ShapeDtypeStruct(symbolic_shape(text, scope=scope) if text else (), dtype) for text, dtype in shapes]


def sample(shape: Sequence[int], dtype: Any, seed: int = 0, high: int = 4) -> np.ndarray:
    """Reproducible data of any dtype."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        return rng.integers(0 if dtype.kind == "u" else -high, high, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def ops_of(traced: Traced) -> list[str]:
    """The op names of a graph and its sub-graphs."""
    found: list[str] = []
    todo = [traced.graph]
    while todo:
        graph = todo.pop()
        found += [node.op for node in graph.nodes]
        todo += graph.subgraphs()
    return found


def host_ops(traced: Traced) -> list[str]:
    """Those of them that the host computes."""
    return [op for op in ops_of(traced) if not OPS[op].chip]


def run(
    traced: Traced, fn: Callable[..., Any], arrays: Sequence[np.ndarray], dims: Mapping[str, int], tol: float
) -> None:
    """Evaluates the graph and ``jax.jit(fn)`` on the same arrays and compares every result."""
    assert traced.graph.scope.holds(dims), dims
    got = evaluate(traced.graph, arrays, dims)
    want = jax.tree.leaves(jax.jit(fn, compiler_options=_QUICK)(*arrays))
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        if jax.dtypes.issubdtype(w.dtype, jax.dtypes.prng_key):
            w = jax.random.key_data(w)
        w = np.asarray(w)
        assert g.shape == w.shape and g.dtype == w.dtype, (g.dtype, g.shape, w.dtype, w.shape)
        if g.dtype.kind in "iub":
            np.testing.assert_array_equal(g, w)
        else:
            np.testing.assert_allclose(g.astype(np.float64), w.astype(np.float64), rtol=tol, atol=tol)


def check(
    fn: Callable[..., Any],
    args: Sequence[jax.ShapeDtypeStruct],
    sizes: Iterable[Mapping[str, int]],
    *,
    dims: Mapping[str, D] | None = None,
    tol: float = 2e-5,
    data: Callable[..., Sequence[np.ndarray]] | None = None,
) -> Traced:
    """One trace of ``fn``; at all ``sizes`` its graph agrees with JAX. Returns the trace."""
    traced = trace(fn, args, dims=dims)
    for size in sizes:
        shapes = [(shape_of(v, size), v.dtype) for v in traced.graph.inputs]
        arrays = [sample(s, d, seed=i) for i, (s, d) in enumerate(shapes)]
        run(traced, fn, arrays if data is None else data(arrays, size), size, tol)
    return traced
