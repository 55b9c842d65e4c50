"""From a JAX function or a closed jaxpr to a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax._src.interpreters import partial_eval
from jax.extend import core as jax_core

from graph_kernel.from_jaxpr import rules_control, rules_elementwise, rules_indexing, rules_movement, rules_reduce
from graph_kernel.from_jaxpr.dims import DimSpec, DimTranslator, Variable, is_symbolic, plan
from graph_kernel.from_jaxpr.equality import require, watched
from graph_kernel.from_jaxpr.errors import translated
from graph_kernel.from_jaxpr.lowering import Lowering, Missing, Unsupported, drop_dead
from graph_kernel.ir import Graph
from symbolic import Dim, Relation, Scope
from vm.errors import CompileError, UnsupportedOp

_FAMILIES = (rules_control, rules_elementwise, rules_indexing, rules_movement, rules_reduce)


@dataclass(frozen=True)
class Traced:
    """A graph, and how its flat inputs and outputs make up the function's arguments and result."""

    graph: Graph
    in_tree: Any  # of (args, kwargs)
    out_tree: Any
    closed_jaxpr: Any  # kept for tests and messages; programs do not need it


def trace(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dims: Mapping[str, DimSpec] | None = None,
    name: str = "",
    said: Mapping[Relation, str] | None = None,
) -> Traced:
    """Traces ``fn`` once with the shapes of ``args`` and ``kwargs``, pytrees of ``ShapeDtypeStruct`` or arrays.

    Dimensions made by ``jax.export.symbolic_shape`` stay symbolic; ``dims`` declares ranges and divisors by name; ``said`` has
    the user's words for constraints among the dims. Raises ``CompileError`` where JAX cannot decide a question about sizes,
    ``UnsupportedOp`` with every primitive that has no place to run.
    """
    leaves, in_tree = jax.tree.flatten((tuple(args), dict(kwargs or {})))
    scope = Scope(name or getattr(fn, "__name__", "main"))
    all_dims = [d for leaf in leaves if isinstance(leaf, jax.ShapeDtypeStruct) for d in leaf.shape]
    shapes = plan(all_dims, dims, scope, said)
    specs = [_respecify(leaf, shapes.jax_dim) for leaf in leaves]
    call_args, call_kwargs = jax.tree.unflatten(in_tree, specs)
    with translated(shapes), watched(shapes.translate) as differences:
        closed, out_shape = jax.make_jaxpr(fn, return_shape=True)(*call_args, **call_kwargs)
    require(differences, scope, shapes.translate)
    graph = convert(closed, scope, shapes.translate, scope.name)
    return Traced(graph, in_tree, jax.tree.structure(out_shape), closed)


def _respecify(leaf: Any, jax_dim: Callable[[Any], Any]) -> Any:
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    if not any(map(is_symbolic, leaf.shape)):
        return leaf
    return jax.ShapeDtypeStruct(tuple(jax_dim(d) for d in leaf.shape), leaf.dtype)


def from_closed_jaxpr(closed: Any, *, dims: Mapping[str, DimSpec] | None = None, name: str = "main") -> Traced:
    """A graph from a closed jaxpr whose shapes may be symbolic; ``dims`` adds ranges and divisors as facts."""
    scope = Scope(name)
    all_dims = [d for aval in closed.in_avals for d in aval.shape]
    shapes = plan(all_dims, None, scope)
    for key, spec in (dims or {}).items():
        if key not in shapes.translate.variables:
            raise CompileError(f"the jaxpr has no dimension named {key!r}")
        scope.declare(key, spec.min, spec.max, spec.multiple_of, origin=f'Dim("{key}")')
    graph = convert(closed, scope, shapes.translate, name)
    in_tree = jax.tree.structure((tuple(closed.in_avals), {}))
    return Traced(graph, in_tree, jax.tree.structure(list(closed.out_avals)), closed)


def convert(closed: Any, scope: Scope, dims: Mapping[str, Dim | Variable] | DimTranslator, name: str = "main") -> Graph:
    """Converts a closed jaxpr; ``dims`` says what each JAX dimension variable is in ``scope``."""
    translator = dims if isinstance(dims, DimTranslator) else DimTranslator(scope, dims)
    graph, missing = Graph(scope, name=name), Missing()
    low = Lowering(graph, translator, missing)
    jaxpr = closed.jaxpr
    names = _input_names(jaxpr)
    try:
        args = [graph.add_input(*low.type_of(v.aval), name=n) for v, n in zip(jaxpr.invars, names, strict=True)]
    except Unsupported as why:
        raise UnsupportedOp(f"an argument has a type that no array has here: {why}") from None
    live, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)
    graph.outputs = low.inline(jax_core.ClosedJaxpr(live, closed.consts), (), args)
    missing.check()
    drop_dead(graph)
    return graph


def _input_names(jaxpr: Any) -> list[str]:
    """The names of the function's parameters, with paths into pytrees; unique."""
    info = getattr(jaxpr, "debug_info", None)
    found = info.safe_arg_names(len(jaxpr.invars)) if info is not None else [None] * len(jaxpr.invars)
    names: list[str] = []
    for i, raw in enumerate(found):
        base = raw or f"arg{i}"
        names.append(base if base not in names else f"{base}#{i}")
    return names
