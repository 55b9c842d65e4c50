"""Runs loaded ONNX graphs at concrete sizes, with the launch checks a program would make, and compares with peers."""

import functools
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime

import symbolic
from graph_kernel.evaluate import evaluate
from graph_kernel.from_onnx import load
from graph_kernel.ir import Graph
from graph_kernel.verifier import verify
from vm.errors import ShapeError

MODELS = Path(__file__).parents[1] / "data" / "models"


def parse(graph: str, opset: int = 21, functions: str = "") -> onnx.ModelProto:
    """A model from ONNX's text form."""
    domains = f'"" : {opset}, "local" : 1, "com.microsoft" : 1'
    return onnx.parser.parse_model(f"<ir_version: 10, opset_import: [{domains}]>\n{graph}\n{functions}")


@functools.lru_cache(maxsize=8)
def _solution(graph: Graph) -> symbolic.Solution:
    return symbolic.solve(graph.scope, [(v.name, a, d) for v in graph.inputs for a, d in enumerate(v.shape)])


def bind(graph: Graph, arrays: list[np.ndarray]) -> dict[str, int]:
    """The symbols' values from the input sizes; ShapeError where sizes disagree or a launch check fails."""
    sizes = {f"@{i}": n for i, n in enumerate(n for a in arrays for n in a.shape)}
    dims: dict[str, int] = {}
    for name, dim in _solution(graph).steps:
        dims[name] = symbolic.evaluate(dim, {**sizes, **dims})
    for value, array in zip(graph.inputs, arrays, strict=True):
        for axis, (dim, size) in enumerate(zip(value.shape, array.shape, strict=True)):
            if symbolic.evaluate(dim, dims) != size:
                raise ShapeError(f"input {value.name} axis {axis}: {dim} is {symbolic.evaluate(dim, dims)}, got {size}")
    for info in graph.scope.symbols.values():
        if info.name in dims and not info.holds(dims[info.name]):
            raise ShapeError(f"{info}, got {dims[info.name]}")
    for check in graph.scope.checks:
        if not check.rel.holds(dims):
            raise ShapeError(f"{check} {check.message}")
    return dims


def run(graph: Graph, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs of a graph for named inputs."""
    arrays = [feeds[v.name] for v in graph.inputs]
    with np.errstate(all="ignore"):
        return evaluate(graph, arrays, bind(graph, arrays))


def ort(model: onnx.ModelProto | str):
    """A function that runs a model with ONNX Runtime, not optimised."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    data = model if isinstance(model, str) else model.SerializeToString()
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return lambda feeds: session.run(None, feeds)


def close(actual: np.ndarray, expected: np.ndarray, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    """Same shape and dtype, and values within the tolerance (exact for integers)."""
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    if expected.dtype.kind in "iub":
        np.testing.assert_array_equal(actual, expected)
        return
    if expected.dtype.itemsize == 2:
        rtol, atol = max(rtol, 2e-2), max(atol, 2e-3)
    np.testing.assert_allclose(actual.astype(np.float64), expected.astype(np.float64), rtol=rtol, atol=atol)


def random_feeds(model: onnx.ModelProto, sizes: dict[str, int], seed: int = 0, low: int = -4, high: int = 5):
    """Random inputs; integers in [low, high)."""
    rng = np.random.default_rng(seed)
    feeds = {}
    constants = {i.name for i in model.graph.initializer}
    for info in model.graph.input:
        if info.name in constants:
            continue
        tensor = info.type.tensor_type
        shape = [sizes[d.dim_param] if d.dim_param else d.dim_value for d in tensor.shape.dim]
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        if dtype == np.bool_:
            feeds[info.name] = rng.random(shape) < 0.5
        elif dtype.kind in "iu":
            feeds[info.name] = np.asarray(rng.integers(max(low, 0) if dtype.kind == "u" else low, high, shape)).astype(
                dtype
            )
        else:
            feeds[info.name] = np.asarray(rng.standard_normal(shape) * 2).astype(dtype)
    return feeds


def check_against_ort(model: onnx.ModelProto, sizes: list[dict[str, int]], **ranges: int) -> Graph:
    """Loads once, runs at every size, compares with ONNX Runtime; the graph."""
    graph, peer = load(model), ort(model)
    verify(graph)
    for seed, size in enumerate(sizes):
        feeds = random_feeds(model, size, seed, **ranges)
        for actual, expected in zip(run(graph, feeds), peer(feeds), strict=True):
            close(actual, expected)
    return graph


def ops_of(graph: Graph) -> list[str]:
    """The names of all ops, bodies of control flow included."""
    return [n.op for n in graph.nodes] + [op for g in graph.subgraphs() for op in ops_of(g)]
