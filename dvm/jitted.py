"""``dvm.jit``: compile on first call, and turn a dim into a symbol when it changes."""

from __future__ import annotations

import copy
import functools
import inspect
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dvm import diagnostics, pipeline
from dvm import dims as dim_declarations
from dvm.dims import Dim
from dvm.options import Options
from dvm.program import TIERS, CompiledProgram, x64_enabled
from dvm.specialise import History, Plan, Site, search
from dvm.trees import Signature
from vm import counters
from vm.errors import CompileError, InputError, ShapeError

_REMEMBERED = 4096  # sizes whose program is known without asking every plan


def jit(
    fn: Callable[..., Any] | None = None,
    specs: Sequence[Any] | None = None,
    static_argnums: int | Sequence[int] = (),
    tier: str = "auto",
    *,
    static_argnames: str | Sequence[str] = (),
    options: Options | None = None,
) -> Any:
    """``jax.jit``'s counterpart: ``f = dvm.jit(fn)``, or as a decorator, with or without arguments.

    With ``specs`` (one pytree of specs per positional argument; entries of static arguments are ignored) ``fn`` is compiled once.

    Without, call 1 is compiled for its shapes. A dim that changes later becomes a symbol; dims that were equal so far share one, under
    a launch check. So ``fn`` is compiled at most 1 + (number of dims that ever change) times. With the first dim that changes, the first
    axis of its input (a batch) and sizes 0 and 1 become symbols too, where ``fn`` can be traced so. A dim whose size the function
    needs to know stays fixed, and every size of it gets a program of its own. What stayed fixed and why is in the ``constraints`` of the
    programs in ``f.programs``. Another dtype, rank, tree or static argument makes a new entry, and so do arguments that are now
    given by name. The function is traced several times per compile; it must have no side effects.

    Called with JAX tracers, or inside a JAX transformation, the original function is traced, so that it nests in ``jax.jit``,
    ``jax.grad``, ``jax.vmap`` and ``lax.scan``. Thread-safe. ``options`` are ``dvm.Options`` for every compile.
    """
    if fn is None:
        return lambda fn: jit(fn, specs, static_argnums, tier, static_argnames=static_argnames, options=options)
    return JitFunction(fn, specs, static_argnums, tier, static_argnames, options)


class JitFunction:
    """What ``dvm.jit`` returns. ``programs`` are the compiled programs so far, ``clear()`` forgets them."""

    def __init__(
        self,
        fn: Callable[..., Any],
        specs: Sequence[Any] | None = None,
        static_argnums: int | Sequence[int] = (),
        tier: str = "auto",
        static_argnames: str | Sequence[str] = (),
        options: Options | None = None,
    ):
        if not callable(fn):
            raise CompileError(f"jit takes a function, not a {type(fn).__name__}")
        if tier not in TIERS:
            raise CompileError(f"unknown tier {tier!r}; there are {', '.join(TIERS)}")
        self._fn = fn
        self._specs = None if specs is None else tuple(specs) if isinstance(specs, (tuple, list)) else (specs,)
        self._static = _static_positions(fn, static_argnums)
        self._static_names = _static_names(fn, static_argnames, self._static)
        self._tier = tier
        self._options = options
        self._entries: dict[Any, _Entry] = {}
        self._lock = threading.Lock()
        functools.update_wrapper(self, fn, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        import jax

        static, static_kwargs, dynamic, named = self._split(args, kwargs)
        leaves, tree = jax.tree_util.tree_flatten((dynamic, named))
        if _inside_trace() or any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return self._fn(*args, **kwargs)
        statics = (tuple(sorted(static.items())), tuple(sorted(static_kwargs.items())))
        if self._specs is not None:
            key: tuple[Any, ...] = ("specs", *map(_typed, statics))
        else:
            key = (tree, *map(_typed, statics), tuple(map(_kind, leaves)), x64_enabled())
        entry = self._entry(key, static, static_kwargs)
        if self._specs is not None:
            return entry.fixed_program(self._spec_args(static))(*dynamic, **named)
        return entry.call(leaves, tree)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As a method: the instance becomes the first argument, which must then be a pytree or static."""
        return self if instance is None else functools.partial(self, instance)

    def trace(self, *args: Any, **kwargs: Any) -> TracedFunction:
        """Traces the function on specs (symbolic or not) or arrays, without compiling."""
        static, static_kwargs, dynamic, named = self._split(args, kwargs)
        return TracedFunction(
            pipeline.closed_over(self._fn, static, static_kwargs), dynamic, named, self._tier, self._options
        )

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """``trace(...).lower()``: the graph, which ``.compile()`` turns into a ``CompiledProgram``."""
        return self.trace(*args, **kwargs).lower()

    @property
    def programs(self) -> tuple[CompiledProgram, ...]:
        """All programs compiled by calls so far, oldest first within each entry."""
        with self._lock:
            entries = list(self._entries.values())
        return tuple(program for entry in entries for program in entry.programs)

    def clear(self) -> None:
        """Forgets all programs and all sizes seen."""
        with self._lock:
            self._entries.clear()

    def __repr__(self) -> str:
        return f"<dvm.jit of {getattr(self._fn, '__name__', self._fn)!s}>"

    def _split(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[dict[int, Any], dict[str, Any], tuple, dict]:
        """Static and other arguments, positional and named; negative static positions count from the end, as in JAX."""
        if not self._static and not self._static_names:
            return {}, {}, args, kwargs
        positions = {i + len(args) if i < 0 else i for i in self._static}
        static = {i: args[i] for i in sorted(positions) if 0 <= i < len(args)}
        static_kwargs = {k: v for k, v in kwargs.items() if k in self._static_names}
        for place, value in [*static.items(), *static_kwargs.items()]:
            try:
                hash(value)
            except TypeError:
                raise InputError(f"static argument {place} must be hashable, got a {type(value).__name__}") from None
        dynamic = tuple(value for i, value in enumerate(args) if i not in static)
        return static, static_kwargs, dynamic, {k: v for k, v in kwargs.items() if k not in static_kwargs}

    def _spec_args(self, static: Mapping[int, Any]) -> tuple[Any, ...]:
        return tuple(spec for i, spec in enumerate(self._specs or ()) if i not in static)

    def _entry(self, key: Any, static: dict[int, Any], static_kwargs: dict[str, Any]) -> _Entry:
        entry = self._entries.get(key)
        if entry is None:
            with self._lock:
                entry = self._entries.get(key)
                if entry is None:
                    made = _Entry(pipeline.closed_over(self._fn, static, static_kwargs), self._tier, self._options)
                    entry = self._entries[key] = made
        return entry


class _Entry:
    """The programs of one combination of tree, dtypes, ranks and static arguments."""

    def __init__(self, fn: Callable[..., Any], tier: str, options: Options | None):
        self._fn = fn
        self._options = options
        self._tier = tier
        self._lock = threading.RLock()
        self._variants: tuple[tuple[Plan, CompiledProgram], ...] = ()  # oldest first; replaced, never changed
        self._known: OrderedDict[tuple[int, ...], CompiledProgram] = OrderedDict()
        self._history: History | None = None
        self._kind: tuple[Any, ...] | None = None
        self._only: CompiledProgram | None = None

    @property
    def programs(self) -> list[CompiledProgram]:
        """Oldest first."""
        only = () if self._only is None else (self._only,)
        return [*only, *(program for _, program in self._variants)]

    def fixed_program(self, specs: tuple[Any, ...]) -> CompiledProgram:
        """The one program of a function with specs."""
        if self._only is None:
            with self._lock:
                if self._only is None:
                    self._only = pipeline.from_function(self._fn, specs, {}).compile(self._tier, self._options)
        return self._only

    def call(self, leaves: list[Any], tree: Any) -> Any:
        """Runs the newest program that takes these sizes, or compiles one."""
        sizes = tuple([size for leaf in leaves for size in getattr(leaf, "shape", ())])
        program = self._known.get(sizes) or self._newest(sizes)
        refused: ShapeError | None = None
        if program is not None:
            try:
                return self._launch(program, sizes, leaves)
            except ShapeError as error:
                refused = error  # a launch check that the plan does not know: this shape needs a program of its own
        with self._lock:
            program = self._newest(sizes, only_fixed=refused is not None)  # another thread may have made it
            if program is None:
                program = self._specialise(sizes, leaves, tree, refused)
        return self._launch(program, sizes, leaves)

    def _launch(self, program: CompiledProgram, sizes: tuple[int, ...], leaves: list[Any]) -> Any:
        result = program.unflatten(program.launch_flat(leaves))
        if sizes not in self._known:
            with self._lock:
                self._known[sizes] = program
                while len(self._known) > _REMEMBERED:
                    self._known.popitem(last=False)
        return result

    def _newest(self, sizes: tuple[int, ...], only_fixed: bool = False) -> CompiledProgram | None:
        for plan, program in reversed(self._variants):
            if plan.accepts(sizes) and not (only_fixed and plan.variables):
                return program
        return None

    def _specialise(
        self, sizes: tuple[int, ...], leaves: list[Any], tree: Any, refused: ShapeError | None
    ) -> CompiledProgram:
        avals = [pipeline.as_aval(leaf, f"argument {i}") for i, leaf in enumerate(leaves)]
        history = copy.copy(self._history) if self._history is not None else History(self._sites(avals, tree))
        history.record(sizes)  # in a copy: a call that turns out to be wrong must leave no trace
        self._known.pop(sizes, None)
        counters.add("jit_specialisations")

        def attempt(plan: Plan) -> pipeline.Traced:
            args, kwargs = tree.unflatten(_specs_of(plan, avals))
            return pipeline.from_function(self._fn, args, kwargs)

        if refused is None:
            found = search(history, sizes, attempt, self._kind)
            try:
                return self._add(found.plan, found.result, found.reason, history)
            except CompileError as error:
                if not found.plan.variables:
                    raise
                reason = f"{type(error).__name__}: {error}"  # traced, but no code for it at every size
        else:
            reason = f"{type(refused).__name__}: {refused}"
        plan = history.plan(sizes, {}, pinned=history.changed_classes(), kind=("fixed",))
        return self._add(plan, attempt(plan), reason, history)

    def _add(self, plan: Plan, traced: pipeline.Traced, reason: str, history: History) -> CompiledProgram:
        """Compiles for ``plan``; ``reason`` is why a more general one was not possible."""
        diagnostics.log("jit", lambda: f"{plan.kind[0]}: dims {plan.dims()}" + (f" ({reason})" if reason else ""))
        program = traced.compile(self._tier, self._options, notes=plan.notes(reason))
        self._history, self._kind = history, plan.kind
        self._variants = (*self._variants, (plan, program))
        return program

    def _sites(self, avals: Sequence[Any], tree: Any) -> tuple[Site, ...]:
        names = pipeline.parameter_names(self._fn, len(tree.children()[0].children()))
        signature = Signature.of_function("", names, tree, tree)
        return tuple(
            Site(leaf, axis, signature.labels[leaf], signature.feeds[leaf])
            for leaf, aval in enumerate(avals)
            for axis in range(len(aval.shape))
        )


def _specs_of(plan: Plan, avals: Sequence[Any]) -> list[Any]:
    """The specs of a plan: the shapes of ``avals`` with the plan's dims, all in one JAX scope."""
    import jax
    from jax import export

    declared = {v.name: Dim(v.name, min=v.min, multiple_of=v.multiple_of) for v in plan.variables.values()}
    scope = export.SymbolicScope()
    dim_declarations.attach(scope, declared)
    texts = [str(dim) for dim in plan.dims()]
    dims = iter(export.symbolic_shape(", ".join(texts), scope=scope) if texts else ())
    return [
        jax.ShapeDtypeStruct(tuple(next(dims) for _ in aval.shape), aval.dtype, weak_type=aval.weak_type)
        for aval in avals
    ]


def _kind(leaf: Any) -> Any:
    """What of an argument besides its sizes makes another entry."""
    if isinstance(leaf, (np.ndarray, np.generic)):
        return (leaf.dtype, leaf.ndim)
    if isinstance(leaf, (bool, int, float, complex)):
        return type(leaf)
    try:
        aval = leaf.aval
        return (aval.dtype, len(aval.shape), aval.weak_type)
    except AttributeError:
        raise InputError(
            f"dvm.jit takes arrays and numbers, got a {type(leaf).__name__}; use static_argnums for other values"
        ) from None


def _typed(items: Sequence[tuple[Any, Any]]) -> tuple[Any, ...]:
    """Static arguments as a key: 1, 1.0 and True are different."""
    return tuple((place, type(value), value) for place, value in items)


def _inside_trace() -> bool:
    """Whether a JAX transformation is tracing in this thread, which may reach the function by its closure alone."""
    from jax._src import core

    return not core.trace_state_clean()


def _static_positions(fn: Callable[..., Any], given: int | Sequence[int]) -> tuple[int, ...]:
    positions = (given,) if isinstance(given, int) else tuple(given)
    for position in positions:
        if isinstance(position, bool) or not isinstance(position, int):
            raise CompileError(f"static_argnums must be integers, not {position!r}")
    names = _positional(fn)
    if names is not None:
        for position in positions:
            if not -len(names) <= position < len(names):
                raise CompileError(
                    f"static_argnums: {position} is out of range, the function has {len(names)} positional arguments"
                )
        return tuple(position % len(names) for position in positions)
    return positions


def _static_names(fn: Callable[..., Any], given: str | Sequence[str], positions: Sequence[int]) -> frozenset[str]:
    """Static parameters by name; those that are static by position are static by name too."""
    names = _positional(fn) or []
    by_position = [names[i] for i in positions if 0 <= i < len(names)]
    return frozenset([given] if isinstance(given, str) else given) | frozenset(by_position)


def _positional(fn: Callable[..., Any]) -> list[str] | None:
    """Names of the positional parameters; None if there is no fixed number of them."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return None
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


class TracedFunction:
    """``f.trace(...)``: a function together with the specs of its arguments."""

    def __init__(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], tier: str, options: Options | None
    ):
        self._fn, self._args, self._kwargs, self._tier, self._options = fn, args, kwargs, tier, options

    @functools.cached_property
    def jaxpr(self) -> Any:
        """The closed jaxpr that JAX makes of the function, with the specs' own symbols."""
        import jax

        return jax.make_jaxpr(self._fn)(*self._args, **self._kwargs)

    @functools.cached_property
    def out_info(self) -> Any:
        """Shapes and dtypes of the result."""
        import jax

        return jax.eval_shape(self._fn, *self._args, **self._kwargs)

    def lower(self) -> Lowered:
        """Converts to a DVM graph."""
        return Lowered(pipeline.from_function(self._fn, self._args, self._kwargs), self._tier, self._options)


class Lowered:
    """``f.lower(...)``: a graph that is ready to be compiled."""

    def __init__(self, traced: pipeline.Traced, tier: str, options: Options | None):
        self._traced, self._tier, self._options = traced, tier, options
        self._program: CompiledProgram | None = None

    @property
    def graph(self) -> Any:
        """The ``graph_kernel.ir.Graph``; compiling optimises it in place."""
        return self._traced.graph

    def as_text(self) -> str:
        """The graph as text; compiling optimises it in place."""
        return self._traced.as_text()

    def compile(self) -> CompiledProgram:
        """The program; the same one if called again."""
        if self._program is None:
            self._program = self._traced.compile(self._tier, self._options)
        return self._program
