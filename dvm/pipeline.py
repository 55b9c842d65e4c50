"""The way from a function, a jaxpr or an ONNX model to a ``CompiledProgram``: trace, optimise, generate code. The only module of
``dvm`` that calls the compiler."""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dvm import diagnostics, explain
from dvm import dims as dim_declarations
from dvm.dims import Dim
from dvm.options import Options, options_of
from dvm.program import CompiledProgram, Made
from dvm.trees import Signature
from vm import background, counters, jaxevents
from vm.errors import CompileError

if TYPE_CHECKING:
    import onnx
    from jax.extend.core import ClosedJaxpr

    from graph_kernel.ir import Graph
    from symbolic import Relation

Dims = Mapping[str, Dim] | None
DEEP = 1000  # nodes of a graph that takes longer to compile than the interpreter's image to load

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


_pauses = [0, False]  # how many compiles are under way, whether the collector was on before
_pauses_lock = threading.Lock()


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Within the block Python's cyclic garbage collector is off: a graph is many objects that all live until the end, and the collector
    would look at all of them again and again."""
    with _pauses_lock:
        if not _pauses[0]:
            _pauses[1] = gc.isenabled()
            gc.disable()
        _pauses[0] += 1
    try:
        yield
    finally:
        with _pauses_lock:
            _pauses[0] -= 1
            if not _pauses[0] and _pauses[1]:
                gc.enable()


@dataclass
class Traced:
    """A graph that came out of a front end, and how Python arguments map to its inputs."""

    graph: Graph
    signature: Signature
    again: Callable[[], Traced] | None = None  # traces anew, for comparisons
    begun: float = field(default_factory=time.perf_counter)

    @uncollected()
    def compile(
        self,
        tier: str = "auto",
        options: Options | Mapping[str, Any] | None = None,
        notes: Sequence[str] = (),
        start: bool = True,
    ) -> CompiledProgram:
        """Optimises the graph (in place) and generates the program. ``notes`` go to ``prog.constraints``. With ``start`` the machine
        is made ready for it at once, else at the first launch."""
        from codegen import compile_graph
        from graph_kernel import passes

        chosen = options_of(options)
        if start and tier == "auto" and len(self.graph.nodes) >= DEEP:
            background.load_image(*_pinned_words(self.graph))
        title, begun = self.signature.title, time.perf_counter()
        diagnostics.dump(title, 0, "graph", self.as_text)
        dump = Dump(chosen.dump, self.graph)
        _stage("optimising the graph")
        reports = passes.optimise(
            self.graph,
            chosen.for_passes(),
            diagnostics.level() >= diagnostics.VERIFY_LEVEL,
            chosen.level,
            dump.after_pass,
        )
        diagnostics.log("passes", lambda: "\n".join(str(report) for report in reports if report.modified))
        diagnostics.log("compile", lambda: f"{title}: passes {time.perf_counter() - begun:.3f} s")
        diagnostics.dump(title, 1, "optimised", self.as_text)
        _stage("generating code")
        begun = time.perf_counter()
        program = compile_graph(self.graph, chosen.for_code())
        diagnostics.log("compile", lambda: f"{title}: code generation {time.perf_counter() - begun:.3f} s")
        program.in_tree, program.out_tree = self.signature.to_data()
        if self.signature.form != "onnx":
            named = zip(program.outputs, self.signature.results, strict=True)
            program.outputs = tuple(replace(spec, name=name) for spec, name in named)
        program.debug.setdefault("title", title)
        useful = [report for report in reports if report.modified]
        program.debug.setdefault("passes", list(map(_report, useful)))
        program.debug.setdefault("composites", [_composite(found) for report in reports for found in report.composites])
        program.debug.setdefault("nodes", _node_counts(reports))
        if notes:
            program.debug["jit"] = list(notes)
        counters.add("compiles")
        counters.add("kernels", len(program.debug.get("kernels", ())))
        compiled = CompiledProgram(program, self.signature, tier, [report.seconds for report in useful])
        compiled._made = Made(chosen, time.perf_counter() - self.begun, reports, self.again)
        dump.instructions(compiled.disassemble)
        diagnostics.log("fusion", lambda: explain.decisions(program))
        diagnostics.log("symbol", lambda: "\n".join(compiled.constraints))
        diagnostics.dump(title, 2, "instructions", compiled.disassemble)
        if start:
            _stage("preparing the machine")
            _ = compiled.executable
        return compiled

    def as_text(self) -> str:
        """The graph as it is now, as text."""
        from graph_kernel.text import to_text

        return to_text(self.graph)


def _pinned_words(graph: Graph) -> tuple[int, int]:
    """Words of inputs of fixed shape and of constants: of up to 32 bits, of 64 bits."""
    words = [0, 0]
    arrays = [n.output for n in graph.nodes if n.op == "constant"]
    for value in (*graph.inputs, *arrays):
        if all(isinstance(d, int) for d in value.shape):
            words[value.dtype.itemsize >= 8] += math.prod(d for d in value.shape if isinstance(d, int))
    return words[0], words[1]


def _report(report: Any) -> dict[str, Any]:
    """Without the time that it took: equal graphs give equal files."""
    before, after, notes = report.nodes_before, report.nodes_after, dict(report.notes)
    return {"name": report.name, "group": report.group, "before": before, "after": after, "notes": notes}


class Dump:
    """``Options.dump``: the graph before the passes and after each that changed it, then the instructions, numbered."""

    def __init__(self, folder: str | os.PathLike[str] | None, graph: Graph) -> None:
        self.folder, self.graph, self.number = None if folder is None else Path(folder), graph, 0
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._graph("input")

    def after_pass(self, report: Any) -> None:
        """Writes the graph that a pass left, if it changed it."""
        if report.modified:
            self._graph(report.name)

    def instructions(self, text: Callable[[], str]) -> None:
        """Writes the instructions of the program."""
        if self.folder is not None:
            (self.folder / f"{self.number:03}-instructions.txt").write_text(text())

    def _graph(self, stage: str) -> None:
        if self.folder is not None:
            from dvm.graph_files import write_graph

            write_graph(self.folder / f"{self.number:03}-{stage}.txt", self.graph)
            self.number += 1


def _composite(found: Any) -> dict[str, Any]:
    return {
        "op": found.op,
        "parameters": found.parameters,
        "origins": list(found.origins),
        "inside": list(found.inner),
    }


def _node_counts(reports: Sequence[Any]) -> dict[str, int]:
    """Nodes without constants: of the graph as traced, with every composite as one node, and as fusion sees it."""
    if not reports:
        return {}
    recognised = next((r.operations[0] for r in reports if r.name == "expand_composites"), reports[-1].operations[1])
    return {"traced": reports[0].operations[0], "composites": recognised, "expanded": reports[-1].operations[1]}


# ---- the three forms


@uncollected()
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
    begun = time.perf_counter()
    leaves, in_tree = jax.tree_util.tree_flatten((tuple(args), dict(kwargs)))
    names = parameter_names(fn, len(args))
    title = getattr(fn, "__name__", type(fn).__name__)
    labels = Signature.of_function(title, names, in_tree, in_tree).labels
    avals = [as_aval(leaf, label) for leaf, label in zip(leaves, labels, strict=True)]
    spec_args, spec_kwargs = jax.tree_util.tree_unflatten(in_tree, avals)
    again = functools.partial(
        from_function, fn, spec_args, spec_kwargs, dims, constraints
    )  # specs: no array is kept alive
    declared = dim_declarations.declared([aval.shape for aval in avals], dims)
    symbols = dim_declarations.symbol_names(dim for aval in avals for dim in aval.shape)
    said = stated(constraints, declared, symbols)
    if constraints and symbols:
        declared = with_divisors(declared, constraints, symbols)
        avals, declared = constrained(avals, declared, constraints)
    flat_args, flat_kwargs = jax.tree_util.tree_unflatten(in_tree, avals)
    known: Any = declared  # every Dim in it has a name
    traced = from_jaxpr.trace(fn, flat_args, flat_kwargs, dims=known, name=title, said=said)
    signature = Signature.of_function(title, names, in_tree, traced.out_tree)
    _finish(traced.graph, signature, said)
    return Traced(traced.graph, signature, again, begun)


def from_closed_jaxpr(jaxpr: ClosedJaxpr, dims: Dims = None, constraints: Sequence[str] = ()) -> Traced:
    """Converts a closed jaxpr: flat arrays in, a list of arrays out."""
    jaxevents.install()
    from graph_kernel import from_jaxpr

    _stage("converting the jaxpr")
    begun = time.perf_counter()
    declared: Any = dim_declarations.declared([getattr(aval, "shape", ()) for aval in jaxpr.in_avals], dims)
    symbols = dim_declarations.symbol_names(dim for aval in jaxpr.in_avals for dim in getattr(aval, "shape", ()))
    said = stated(constraints, declared, symbols)
    graph = from_jaxpr.from_closed_jaxpr(jaxpr, dims=declared).graph
    names = [f"arg{i}" for i in range(len(graph.inputs))]
    signature = Signature.flat("jaxpr", names, len(graph.outputs), "jaxpr")
    _finish(graph, signature, said)
    return Traced(graph, signature, functools.partial(from_closed_jaxpr, jaxpr, dims, constraints), begun)


@uncollected()
def from_onnx_model(
    model: str | os.PathLike[str] | onnx.ModelProto, dims: Dims = None, constraints: Sequence[str] = ()
) -> Traced:
    """Loads an ONNX model: arrays in its input order or by name in, a tuple of arrays out."""
    from graph_kernel import from_onnx

    _stage("loading the model")
    begun = time.perf_counter()
    declared = {
        name: dim if isinstance(dim, int) else dim_declarations.checked(dim, name)
        for name, dim in sorted((dims or {}).items())
    }
    title = os.path.basename(os.fspath(model)) if isinstance(model, (str, os.PathLike)) else model.graph.name
    source = os.fspath(model) if isinstance(model, os.PathLike) else model
    try:
        graph = from_onnx.load(source, declared, tuple(constraints))
    except CompileError as error:
        if type(error) is not CompileError or not isinstance(source, str) or title in str(error):
            raise
        raise CompileError(f"{title}: {error}") from error
    check_declared(graph)
    again = (
        None
        if not isinstance(model, (str, os.PathLike))
        else functools.partial(from_onnx_model, model, dims, constraints)
    )
    names = [value.name for value in graph.inputs]
    return Traced(graph, Signature.flat("onnx", names, len(graph.outputs), title), again, begun)


def from_graph(graph: Graph) -> Traced:
    """A graph of ours, from its text form: arrays in its input order or by name in, a tuple of arrays out."""
    names = [value.name for value in graph.inputs]
    check_declared(graph)
    return Traced(graph, Signature.flat("onnx", names, len(graph.outputs), graph.name))


def stated(constraints: Sequence[str], declared: Mapping[str, Dim], symbols: Sequence[str]) -> dict[Relation, str]:
    """The relations that users wrote, with their words. ``CompileError`` where one cannot be read, names a dim that is not among
    ``symbols``, or contradicts the others, in which case the facts that clash are listed."""
    import symbolic

    scope = symbolic.Scope("the constraints")
    for name in symbols:
        dim = declared.get(name) or Dim(name)
        scope.declare(name, dim.min, dim.max, dim.multiple_of, origin=f'Dim("{name}")' if name in declared else "")
    said: dict[Relation, str] = {}
    for text in constraints:
        relation = symbolic.parse_relation(text)
        unknown = [name for name in relation.symbols if name not in symbols]
        if unknown:
            raise CompileError(
                f"the constraint {text} names {', '.join(unknown)}; the dimensions are {', '.join(symbols) or 'none'}"
            )
        scope.assume(relation, f"the constraint {text}")
        said[relation] = text
    return said


def _finish(graph: Graph, signature: Signature, said: Mapping[Relation, str]) -> None:
    """Names the inputs as users write them and makes what was said about the dims a matter of each launch."""
    import symbolic

    for value, name in zip(graph.inputs, signature.feeds, strict=True):
        value.name = name
        for axis, dim in enumerate(value.shape):
            for used in symbolic.symbols_of(dim):
                graph.scope.introduced(used, f"input {name!r} axis {axis}")
    for relation, text in said.items():
        if all(
            name in graph.scope.symbols for name in relation.symbols
        ):  # JAX replaces b by a where a == b is declared
            graph.scope.require(relation, f"the constraint {text}")
        else:
            graph.scope.notes.append(f"{relation}  (the constraint {text}; the dims of the inputs say it)")
    check_declared(graph)


def check_declared(graph: Graph) -> None:
    """Adds a launch check for every declared fact that has none: the compiler relies on it, so a launch must not break it."""
    from symbolic import LaunchCheck

    scope = graph.scope
    checked = {check.rel for check in scope.checks}
    declared = [fact for fact in scope.facts if fact.rel not in checked and not scope.of_data(fact)]
    scope.checks[:0] = [LaunchCheck(fact.rel, fact.origin, f"{fact.rel} is required") for fact in declared]


def with_divisors(declared: Mapping[str, Dim], constraints: Sequence[str], symbols: Sequence[str]) -> dict[str, Dim]:
    """``declared`` with what constraints such as ``h % 8 == 0`` say about one dim: JAX decides more where it is declared."""
    import symbolic

    found = dict(declared)
    for text in constraints:
        relation = symbolic.parse_relation(text)
        if relation.op != "divides":
            continue
        divisor, dim = relation.args
        name = dim.as_symbol if isinstance(dim, symbolic.Expr) else None
        if name is not None and name in symbols and isinstance(divisor, int) and divisor > 1:
            old = found.get(name, Dim(name))
            found[name] = replace(old, multiple_of=math.lcm(old.multiple_of, divisor))
    return {name: found[name] for name in sorted(found)}


def constrained(
    avals: Sequence[Any], declared: Mapping[str, Dim], constraints: Sequence[str]
) -> tuple[list[Any], dict[str, Dim]]:
    """``avals`` in one JAX scope that also knows ``constraints``, so that JAX may use them, and the declarations of the dims that are left.

    JAX itself replaces ``b`` by ``a`` where ``a == b``; what is declared about ``b`` then becomes a constraint on ``a``.
    """
    import jax
    from jax import export

    from graph_kernel.from_jaxpr.dims import constraint_strings

    shapes = [aval.shape for aval in avals]
    lines = [line for text in constraints if (line := _jax_constraint(text)) is not None]
    for scope in dim_declarations.scopes(shapes):
        lines += [f"{left} {sign} {right}" for left, sign, right in constraint_strings(scope)]

    def rebuilt(lines: Sequence[str]) -> list[Any]:
        try:
            scope = export.SymbolicScope(lines)
            return [
                tuple(export.symbolic_shape(str(d), scope=scope)[0] if export.is_symbolic_dim(d) else d for d in shape)
                for shape in shapes
            ]
        except Exception as error:
            raise CompileError(f"the constraints {', '.join(constraints)} cannot be used: {error}") from error

    left = dim_declarations.symbol_names(d for shape in rebuilt(lines) for d in shape)
    for dim in (dim for name, dim in declared.items() if name not in left):
        lines += dim_declarations.range_constraints([dim])
        lines += [f"mod({dim.name}, {dim.multiple_of}) == 0"] * (dim.multiple_of > 1)
    specs = [
        jax.ShapeDtypeStruct(shape, aval.dtype, weak_type=aval.weak_type)
        for shape, aval in zip(rebuilt(lines), avals, strict=True)
    ]
    return specs, {name: dim for name, dim in declared.items() if name in left}


def _jax_constraint(text: str) -> str | None:
    """``text`` in the notation of JAX's scopes; None if JAX has none for it (it is then checked at launch only)."""
    match = re.fullmatch(r"([^<>=!%]+)(%\s*\w+\s*)?(<=|>=|==|<|>)([^<>=!%]+)", text)
    if match is None or "//" in text or re.search(r"\bor\b", text):
        return None
    left, modulo, sign, right = match.groups()
    if modulo:
        left = f"mod({left}, {modulo[1:].strip()})"
    if sign == "<":
        return f"{left} + 1 <= {right}"
    return f"{left} >= {right} + 1" if sign == ">" else f"{left} {sign} {right}"


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
        if isinstance(leaf, Dim):
            hint = ": write dvm.spec('b, s', dtype, b=dvm.Dim(...))"
        else:
            hint = "; give what is no array by functools.partial, or as a static argument of dvm.jit"
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
