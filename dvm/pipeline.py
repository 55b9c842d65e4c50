"""The way from a function, a jaxpr or an ONNX model to a ``CompiledProgram``: trace, optimise, generate code. The only module of
``dvm`` that calls the compiler."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dvm import dims as dim_declarations
from dvm.dims import Dim
from dvm.program import CompiledProgram
from dvm.trees import Signature
from vm import counters, jaxevents
from vm.errors import CompileError

if TYPE_CHECKING:
    import onnx
    from jax.extend.core import ClosedJaxpr

    from graph_kernel.ir import Graph

Dims = Mapping[str, Dim] | None

_observer: ContextVar[Callable[[str], None] | None] = ContextVar("observer", default=None)


@contextlib.contextmanager
def observe(callback: Callable[[str], None]) -> Iterator[None]:
    """Within the block, ``callback`` is told the name of each stage as it begins: for progress displays."""
    token = _observer.set(callback)
    try:
        yield
    finally:
        _observer.reset(token)


def _stage(name: str) -> None:
    callback = _observer.get()
    if callback is not None:
        callback(name)


@dataclass
class Traced:
    """A graph that came out of a front end, and how Python arguments map to its inputs."""

    graph: Graph
    signature: Signature

    def compile(
        self, tier: str = "auto", options: Mapping[str, Any] | None = None, notes: Sequence[str] = ()
    ) -> CompiledProgram:
        """Optimises the graph (in place), generates the program and starts its executor. ``notes`` go to ``prog.constraints``."""
        from codegen import compile_graph
        from graph_kernel import passes

        _stage("optimising the graph")
        reports = passes.optimise(self.graph)
        _stage("generating code")
        program = compile_graph(self.graph, dict(options or {}))
        program.in_tree, program.out_tree = self.signature.to_data()
        program.debug.setdefault("title", self.signature.title)
        program.debug.setdefault("passes", [_report(r) for r in reports or ()])
        if notes:
            program.debug["jit"] = list(notes)
        counters.add("compiles")
        counters.add("kernels", len(program.debug.get("kernels", ())))
        _stage("preparing the machine")
        compiled = CompiledProgram(program, self.signature, tier)
        _ = compiled.executable  # so that work in the background starts now
        return compiled


def _report(report: Any) -> Any:
    if isinstance(report, Mapping):
        return dict(report)
    return {
        "name": report.name,
        "before": report.nodes_before,
        "after": report.nodes_after,
        "seconds": report.seconds,
        "notes": dict(report.notes),
    }


# ---- the three forms


def from_function(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    dims: Dims = None,
    constraints: Sequence[str] = (),
) -> Traced:
    """Traces ``fn`` on specs or arrays (pytrees of them)."""
    jaxevents.install()
    import jax

    from graph_kernel import from_jaxpr

    _stage("tracing")
    leaves, in_tree = jax.tree_util.tree_flatten((tuple(args), dict(kwargs)))
    names = parameter_names(fn, len(args))
    title = getattr(fn, "__name__", type(fn).__name__)
    labels = Signature.of_function(title, names, in_tree, in_tree).labels
    avals = [as_aval(leaf, label) for leaf, label in zip(leaves, labels, strict=True)]
    declared = dim_declarations.declared([aval.shape for aval in avals], dims)
    flat_args, flat_kwargs = jax.tree_util.tree_unflatten(in_tree, avals)
    graph, out_tree = from_jaxpr.trace(fn, flat_args, flat_kwargs, declared, tuple(constraints))
    signature = Signature.of_function(title, names, in_tree, out_tree)
    _name_values(graph, signature)
    return Traced(graph, signature)


def from_closed_jaxpr(jaxpr: ClosedJaxpr, dims: Dims = None, constraints: Sequence[str] = ()) -> Traced:
    """Converts a closed jaxpr: flat arrays in, a list of arrays out."""
    jaxevents.install()
    from graph_kernel import from_jaxpr

    _stage("converting the jaxpr")
    declared = dim_declarations.declared([getattr(aval, "shape", ()) for aval in jaxpr.in_avals], dims)
    graph = from_jaxpr.convert(jaxpr, declared, tuple(constraints))
    names = [f"arg{i}" for i in range(len(graph.inputs))]
    signature = Signature.flat("jaxpr", names, len(graph.outputs), "jaxpr")
    _name_values(graph, signature)
    return Traced(graph, signature)


def from_onnx_model(
    model: str | os.PathLike[str] | onnx.ModelProto, dims: Dims = None, constraints: Sequence[str] = ()
) -> Traced:
    """Loads an ONNX model: arrays in its input order or by name in, a tuple of arrays out."""
    from graph_kernel import from_onnx

    _stage("loading the model")
    declared = {name: dim_declarations.checked(dim, name) for name, dim in sorted((dims or {}).items())}
    graph = from_onnx.load(model, declared, tuple(constraints))
    names = [value.name for value in graph.inputs]
    title = os.path.basename(os.fspath(model)) if isinstance(model, (str, os.PathLike)) else model.graph.name
    return Traced(graph, Signature.flat("onnx", names, len(graph.outputs), title))


def _name_values(graph: Graph, signature: Signature) -> None:
    """Names inputs and outputs as users write them. A value that is an output twice, or is an input, keeps its first name."""
    for value, name in zip(graph.inputs, signature.feeds, strict=True):
        value.name = name


def parameter_names(fn: Callable[..., Any], n: int) -> list[str]:
    """Names of the first ``n`` positional parameters, as far as they have names of their own."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return []
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return named[:n]


def as_aval(leaf: Any, label: str) -> Any:
    """The ``jax.ShapeDtypeStruct`` that stands for an argument: a spec as it is, an array by its own shape."""
    import jax

    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    try:
        aval = jax.typeof(leaf)
        return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)
    except (TypeError, AttributeError):
        hint = ": write dvm.spec('b, s', dtype, b=dvm.Dim(...))" if isinstance(leaf, Dim) else ""
        raise CompileError(
            f"{label}: expected a ShapeDtypeStruct or an array, got a {type(leaf).__name__}{hint}"
        ) from None


def closed_over(
    fn: Callable[..., Any], static: Mapping[int, Any], static_kwargs: Mapping[str, Any]
) -> Callable[..., Any]:
    """``fn`` with its static arguments filled in; keeps its name and the names of the other parameters."""
    if not static and not static_kwargs:
        return fn

    @functools.wraps(fn)
    def filled(*args: Any, **kwargs: Any) -> Any:
        rest = iter(args)
        total = len(args) + len(static)
        return fn(*(static[i] if i in static else next(rest) for i in range(total)), **kwargs, **static_kwargs)

    with contextlib.suppress(TypeError, ValueError):
        parameters = list(inspect.signature(fn).parameters.values())
        kept = [p for i, p in enumerate(parameters) if i not in static and p.name not in static_kwargs]
        filled.__signature__ = inspect.Signature(kept)  # type: ignore[attr-defined]
    return filled
