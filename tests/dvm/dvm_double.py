"""A stand-in for the compiler and the machine: the function itself is called where a program would run.

It makes real program data (symbols, specs, integer code), so that binding, errors and explanations are the product's own. Tests of what
the API decides use it, because nothing has to be compiled. It supports dims that are integers or ``symbol``, ``k*symbol``, or
expressions of symbols that occur alone elsewhere.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from jax.export import is_symbolic_dim

import graph_kernel
from graph_kernel import from_jaxpr
from symbolic import Scope
from vm import program as pg
from vm.binder import Binder, BoundProgram
from vm.errors import CompileError
from vm.intcode import ADD, FLOORDIV, MUL, SUB, Builder


@dataclass
class FakeGraph:
    """What the fake front end returns: enough of a graph for the pipeline."""

    fn: Any
    tree: Any
    avals: list[Any]
    outs: list[Any]
    dims: dict[str, Any]
    nodes: tuple[()] = ()
    scope: Any = field(default_factory=Scope)
    inputs: list[SimpleNamespace] = field(default_factory=list)
    outputs: list[SimpleNamespace] = field(default_factory=list)


@dataclass
class Double:
    """Counts what the API asked for."""

    values: bool = True  # False: launches give zeros of the right shape, which needs no XLA compile per shape
    functions: dict[int, FakeGraph] = field(default_factory=dict)
    traces: int = 0
    compiles: int = 0
    launches: int = 0


def trace(double: Double, fn: Any, args: Any, kwargs: Any, dims: Any, name: str, said: Any = None) -> SimpleNamespace:
    double.traces += 1
    avals, tree = jax.tree_util.tree_flatten((args, kwargs))
    shapes = iter(_with_minima([a.shape for a in avals], dims))
    avals = [jax.ShapeDtypeStruct(next(shapes), a.dtype, weak_type=a.weak_type) for a in avals]
    args, kwargs = tree.unflatten(avals)
    try:
        outs = jax.eval_shape(fn, *args, **kwargs)
    except jax.errors.JAXTypeError:
        raise
    except (TypeError, ValueError) as error:
        raise CompileError(str(error)) from error
    leaves, out_tree = jax.tree_util.tree_flatten(outs)
    graph = FakeGraph(fn, tree, avals, leaves, dims)
    graph.inputs = [SimpleNamespace(name=f"i{i}", shape=()) for i in range(len(avals))]
    graph.outputs = [SimpleNamespace(name=f"o{i}", shape=()) for i in range(len(leaves))]
    return SimpleNamespace(graph=graph, out_tree=out_tree)


def _with_minima(shapes: list[Any], dims: Any) -> list[Any]:
    """Shapes in a fresh scope in which ``min=0`` is ``b - 1`` and ``multiple_of`` a factor, as the product's tracer makes them."""
    scope = jax.export.SymbolicScope()
    names = sorted({n for shape in shapes for d in shape if is_symbolic_dim(d) for n in d.get_vars()})
    values = {}
    for name in names:
        dim = dims.get(name)
        base = jax.export.symbolic_shape(name, scope=scope)[0]
        if dim is not None and dim.min == 0:
            base = base - 1
        values[name] = base * (dim.multiple_of if dim is not None else 1)
    return [tuple(_evaluate(str(d), values) if is_symbolic_dim(d) else d for d in shape) for shape in shapes]


def _evaluate(text: str, values: dict[str, Any]) -> Any:
    total: Any = 0
    for part in text.replace("- ", "+ -").split(" + "):
        product: Any = 1
        for piece in part.split("*"):
            sign, piece = (-1, piece[1:]) if piece.startswith("-") else (1, piece)
            product = product * (int(piece) if piece.isdigit() else values[piece]) * sign
        total = total + product
    return total


def compile_graph(double: Double, graph: FakeGraph, options: Any) -> pg.Program:
    double.compiles += 1
    names = sorted({n for a in graph.avals for d in a.shape if is_symbolic_dim(d) for n in d.get_vars()})
    solve = Builder(sum(len(a.shape) for a in graph.avals))
    solved = [_solve(solve, name, graph) for name in names]
    code = Builder(len(names))

    def reg(dim: Any) -> int:
        return _emit(code, str(dim), names) if is_symbolic_dim(dim) else code.const(int(dim))

    inputs = tuple(
        pg.TensorSpec(v.name, a.dtype.name, tuple(map(reg, a.shape)), tuple(map(str, a.shape)))
        for v, a in zip(graph.inputs, graph.avals, strict=True)
    )
    outputs = tuple(
        pg.TensorSpec(v.name, a.dtype.name, tuple(map(reg, a.shape)), tuple(map(str, a.shape)))
        for v, a in zip(graph.outputs, graph.outs, strict=True)
    )
    symbols = [pg.Symbol(name, 1) for name in names]  # as JAX's own: a dim that may be 0 is ``name - 1`` here
    program = pg.Program(
        tuple(symbols), inputs, outputs, solve.finish(), tuple(solved), code.finish(), (), (), (), (), (), {}
    )
    kernel = {"name": "k0", "ops": ["add"], "origin": ["here"]}
    program.debug = {"kernels": [kernel], "cuts": [], "double": len(double.functions)}
    double.functions[program.debug["double"]] = graph
    return program


def _solve(solve: Builder, name: str, graph: FakeGraph) -> int:
    """The symbol from the first size that has only this symbol, linearly; the binder compares all sizes with the solution."""
    at = 0
    for aval in graph.avals:
        for dim in aval.shape:
            if is_symbolic_dim(dim) and dim.get_vars() == {name}:
                zero, one = _evaluate(str(dim), {name: 0}), _evaluate(str(dim), {name: 1})
                return solve.op(FLOORDIV, solve.op(SUB, at, solve.const(zero)), solve.const(one - zero))
            at += 1
    raise CompileError(f"{name} is not determined")


def _emit(code: Builder, text: str, names: list[str]) -> int:
    total = code.const(0)
    for part in text.replace("- ", "+ -").split(" + "):
        product = code.const(1)
        for piece in part.split("*"):
            if piece.startswith("-"):
                product, piece = code.op(MUL, product, code.const(-1)), piece[1:]
            product = code.op(MUL, product, code.const(int(piece)) if piece.isdigit() else names.index(piece))
        total = code.op(ADD, total, product)
    return total


class FakeExecutable:
    """Calls the function; sizes are checked by the real binder."""

    def __init__(self, double: Double, program: pg.Program, tier: str):
        self.binder = Binder(program)
        self._double = double
        self._graph = double.functions[program.debug["double"]]

    def launch(self, arrays: list[Any], bound: BoundProgram) -> list[Any]:
        self._double.launches += 1
        if not self._double.values:
            shapes = bound.output_shapes
            return [np.zeros(s, spec.dtype) for s, spec in zip(shapes, self.binder.program.outputs, strict=True)]
        pairs = zip(arrays, self._graph.avals, strict=True)
        args, kwargs = self._graph.tree.unflatten([x.item() if aval.weak_type else x for x, aval in pairs])
        return jax.tree_util.tree_leaves(self._graph.fn(*args, **kwargs))

    def reserve(self, symbols: dict[str, int]) -> None:
        self.reserved = symbols

    def wait(self) -> None:
        pass


def install(monkeypatch: pytest.MonkeyPatch) -> Double:
    """Puts the double behind the API for one test."""
    double = Double()
    passes = SimpleNamespace(optimise=lambda graph, *given, **named: [])
    back = SimpleNamespace(compile_graph=lambda graph, options: compile_graph(double, graph, options))
    monkeypatch.setattr(from_jaxpr, "trace", lambda *args, **kwargs: trace(double, *args, **kwargs))
    monkeypatch.setitem(sys.modules, "graph_kernel.passes", passes)
    monkeypatch.setattr(graph_kernel, "passes", passes, raising=False)
    monkeypatch.setitem(sys.modules, "codegen", back)
    monkeypatch.setattr("dvm.program.make_executable", lambda program, tier: FakeExecutable(double, program, tier))
    return double
