"""The walk over a jaxpr: inlines calls, keeps what is known of sizes, and asks one rule per primitive."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

import jax
import numpy as np
from jax._src import source_info_util
from jax.extend import core as jax_core

from graph_kernel.from_jaxpr.dims import DimTranslator
from graph_kernel.ir import Graph, Node, Origin, Value
from graph_kernel.ops import infer_values
from symbolic import Dim, Scope
from vm.errors import CompileError, UnsupportedOp

Rule = Callable[..., "Value | Sequence[Value]"]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers a rule ``rule(low, eqn, *inputs)`` for primitives of these names."""

    def register(fn: Rule) -> Rule:
        for name in names:
            if name in RULES:
                raise ValueError(f"two rules for {name}")
            RULES[name] = fn
        return fn

    return register


class Unsupported(Exception):
    """Raised by a rule for parameters that it does not cover; the walk collects it."""


@dataclass
class Missing:
    """The primitives that have no place to run, with their source lines in order of occurrence."""

    places: dict[str, list[str]] = field(default_factory=dict)

    def add(self, what: str, place: str) -> None:
        """Notes one occurrence."""
        self.places.setdefault(what, []).append(place)

    def check(self) -> None:
        """Raises one ``UnsupportedOp`` that lists all of them."""
        if not self.places:
            return
        lines = []
        for what, places in self.places.items():
            where = ", ".join(dict.fromkeys(p for p in places if p)) or "unknown line"
            lines.append(f"  {what}: {len(places)}x, at {where}")
        total = sum(map(len, self.places.values()))
        raise UnsupportedOp(f"{total} operations are neither on the NPU nor host operations:\n" + "\n".join(lines))


def is_key(dtype: Any) -> bool:
    """Whether ``dtype`` is that of JAX's typed random keys, which are carried as their uint32 words."""
    return jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


class Lowering:
    """The graph being built, and what is known while building it."""

    def __init__(self, graph: Graph, dim: DimTranslator, missing: Missing) -> None:
        self.graph = graph
        self.dim = dim
        self.missing = missing
        self.known: dict[Value, np.ndarray] = {}
        self.origin = Origin()
        self._constants: dict[tuple[str, bytes], Value] = {}
        self._dims: dict[tuple[str, str], Value] = {}

    @property
    def scope(self) -> Scope:
        """The graph's symbolic scope."""
        return self.graph.scope

    # ---- types

    def type_of(self, aval: Any) -> tuple[tuple[Dim, ...], np.dtype]:
        """Shape and dtype of an abstract value; random keys are arrays of words."""
        shape = self.dim.shape(aval.shape)
        if is_key(aval.dtype):
            return (*shape, *aval.dtype._impl.key_shape), np.dtype(np.uint32)
        if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended):
            raise Unsupported(f"dtype {aval.dtype}")
        return shape, np.dtype(aval.dtype)

    # ---- building

    def add(self, op: str, *inputs: Value, **attrs: Any) -> Value:
        """A node with one output."""
        return self.add_multi(op, inputs, attrs)[0]

    def add_multi(self, op: str, inputs: Sequence[Value], attrs: dict[str, Any]) -> tuple[Value, ...]:
        """A node; a scalar whose value is known is replaced by a ``constant`` or a ``dim``."""
        outputs = self.graph.add_multi(op, inputs, attrs, self.origin)
        return tuple(self._note(v) for v in outputs)

    def _note(self, value: Value) -> Value:
        node = value.producer
        assert node is not None
        if len(node.outputs) > 1:
            return value
        found = infer_values(self.scope, node, self.known)
        if found is None:
            return value
        self.known[value] = found
        entry: Any = found[()] if found.ndim == 0 else None
        if entry is None or node.op in ("constant", "dim") or (value.dtype == np.bool_ and not isinstance(entry, int)):
            return value
        self.graph.nodes.pop()
        return self.constant(entry, value.dtype) if isinstance(entry, int) else self.dim_value(entry, value.dtype)

    def constant(self, value: Any, dtype: Any = None) -> Value:
        """A ``constant`` node; equal scalars share one."""
        array = np.asarray(value) if dtype is None else np.asarray(value).astype(dtype)
        if array.ndim:
            return self._keep(self.graph.constant(array, origin=self.origin))
        key = (str(array.dtype), array.tobytes())
        if key not in self._constants:
            self._constants[key] = self._keep(self.graph.constant(array, origin=self.origin))
        return self._constants[key]

    def dim_value(self, dim: Dim, dtype: Any) -> Value:
        """A scalar tensor with the value of ``dim``."""
        if isinstance(dim, int):
            return self.constant(dim, dtype)
        key = (str(dim), str(np.dtype(dtype)))
        if key not in self._dims:
            self._dims[key] = self._keep(self.graph.add("dim", expr=dim, dtype=np.dtype(dtype), origin=self.origin))
        return self._dims[key]

    def _keep(self, value: Value) -> Value:
        assert value.producer is not None
        found = infer_values(self.scope, value.producer, self.known)
        if found is not None:
            self.known[value] = found
        return value

    def full(self, value: Any, shape: Sequence[Dim], dtype: Any) -> Value:
        """A tensor of one repeated scalar."""
        return self.fit(self.constant(value, dtype), shape)

    def fit(self, x: Value, shape: Sequence[Dim]) -> Value:
        """``x`` repeated to ``shape`` as JAX's elementwise primitives do: a scalar, or axes of size 1."""
        if x.rank == 0 and shape:
            return self.add("broadcast", x, shape=tuple(shape), dims=())
        if x.rank == len(shape) and any(n == 1 and m != 1 for n, m in zip(x.shape, shape, strict=True)):
            return self.add("broadcast", x, shape=tuple(shape), dims=tuple(range(x.rank)))
        return x

    def cast(self, x: Value, dtype: Any) -> Value:
        """``x`` as ``dtype``."""
        return x if x.dtype == np.dtype(dtype) else self.add("cast", x, dtype=np.dtype(dtype))

    def reshape(self, x: Value, shape: Sequence[Dim]) -> Value:
        """``x`` with another shape."""
        return x if x.shape == tuple(shape) else self.add("reshape", x, shape=tuple(shape))

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        """``x`` with its axes permuted."""
        return x if list(perm) == list(range(x.rank)) else self.add("transpose", x, perm=tuple(perm))

    def scalar_dim(self, x: Value) -> Dim | None:
        """The value of a scalar as a dim, if it is known."""
        found = self.known.get(x)
        return None if found is None or found.size != 1 else found.reshape(-1)[0]

    # ---- walking

    def inline(self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Value]) -> list[Value]:
        """Adds the equations of ``jaxpr`` (a Jaxpr or ClosedJaxpr) on ``args``; returns its results."""
        if isinstance(jaxpr, jax_core.ClosedJaxpr):
            jaxpr, consts = jaxpr.jaxpr, jaxpr.consts
        env: dict[Any, Value] = dict(zip(jaxpr.invars, args, strict=True))
        for var, const in zip(jaxpr.constvars, consts, strict=True):
            env[var] = const if isinstance(const, Value) else self.array_constant(const)
        for eqn in jaxpr.eqns:
            inputs = [self._read(env, atom) for atom in eqn.invars]
            for var, value in zip(eqn.outvars, self.equation(eqn, inputs), strict=True):
                env[var] = value
        return [self._read(env, atom) for atom in jaxpr.outvars]

    def array_constant(self, array: Any) -> Value:
        """A concrete array that the function closed over."""
        if is_key(getattr(array, "dtype", np.dtype(bool))):
            array = jax.random.key_data(array)
        return self.constant(np.asarray(array))

    def _read(self, env: dict[Any, Value], atom: Any) -> Value:
        if isinstance(atom, jax_core.Literal):
            aval: Any = atom.aval
            return self.constant(np.asarray(atom.val), aval.dtype)
        return env[atom]

    def equation(self, eqn: Any, inputs: Sequence[Value]) -> list[Value]:
        """The results of one equation."""
        name = eqn.primitive.name
        saved, self.origin = self.origin, Origin(name, place_of(eqn.source_info) or self.origin.place)
        try:
            found = RULES.get(name)
            if found is None:
                raise Unsupported("")
            result = found(self, eqn, *inputs)
            outputs = [result] if isinstance(result, Value) else list(result)
            return self._checked(eqn, outputs)
        except Unsupported as why:
            self.missing.add(f"{name} ({why})" if str(why) else name, self.origin.place)
            return [self._placeholder(v.aval) for v in eqn.outvars]
        finally:
            self.origin = saved

    def _placeholder(self, aval: Any) -> Value:
        """Stands for the result of a missing primitive, so that the walk can go on and find the others."""
        try:
            return self.graph.new_value(*self.type_of(aval))
        except Unsupported:
            return self.graph.new_value((), np.float32)

    def _checked(self, eqn: Any, outputs: list[Value]) -> list[Value]:
        """``outputs``, after comparing their types with what JAX deduced."""
        if len(outputs) != len(eqn.outvars):
            raise AssertionError(f"{self.origin}: {len(outputs)} results for {len(eqn.outvars)}")
        for var, value in zip(eqn.outvars, outputs, strict=True):
            shape, dtype = self.type_of(var.aval)
            if value.dtype != dtype or len(shape) != value.rank:
                raise CompileError(
                    f"{self.origin}: converted to {value!r}, but JAX says {dtype}{list(map(str, shape))}"
                )
        return outputs

    def subgraph(
        self, jaxpr: Any, name: str, args: Sequence[Value | None], shapes: Iterable[Any] | None = None
    ) -> Graph:
        """A graph of its own for a branch or a body. ``args``: the outer value a parameter always equals, if any."""
        graph = Graph(self.scope, name=name)
        inner = Lowering(graph, self.dim, self.missing)
        inner.origin = self.origin
        closed = jaxpr if isinstance(jaxpr, jax_core.ClosedJaxpr) else jax_core.ClosedJaxpr(jaxpr, ())
        params = [graph.add_input(*inner.type_of(v.aval)) for v in closed.jaxpr.invars]
        for param, arg in zip(params, args, strict=True):
            if arg is not None and arg in self.known and arg.dtype == param.dtype and arg.rank == param.rank:
                inner.known[param] = self.known[arg]
        graph.outputs = inner.inline(closed, (), params)
        drop_dead(graph)
        return graph


def drop_dead(graph: Graph) -> None:
    """Removes the nodes that no output needs (the walk leaves some behind)."""
    needed = dict.fromkeys(graph.outputs)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if any(v in needed for v in node.outputs):
            kept.append(node)
            needed.update(dict.fromkeys(node.inputs))
    graph.nodes = kept[::-1]


def place_of(source_info: Any) -> str:
    """``file.py:12 (fn)`` of the user's frame, without folders."""
    return _place(source_info.traceback)


@functools.lru_cache(256)
def _place(traceback: Any) -> str:
    frame = source_info_util.user_frame(traceback)
    if frame is None:
        return ""
    return f"{PurePath(frame.file_name).name}:{frame.start_line} ({frame.function_name})"
