"""The graph IR: one static single assignment graph of typed tensor values.

A graph owns its values and nodes; every value has a shape (a tuple of ints and symbolic dimensions) and a NumPy dtype
(bfloat16 through ``ml_dtypes``). Ops and what they mean are in ``graph_kernel.ops``; nothing here knows an op by name.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    from symbolic import Dim, Scope

bfloat16 = np.dtype(ml_dtypes.bfloat16)
Shape = tuple["Dim", ...]


@dataclass(frozen=True)
class Origin:
    """Where a node came from, for messages: ``place`` is a source line (``file.py:12 (fn)``) or an ONNX node's name."""

    op: str = ""  # the front end's own name of the operation: a JAX primitive or an ONNX op type
    place: str = ""

    def __str__(self) -> str:
        return f"{self.op} at {self.place}" if self.place else self.op


NO_ORIGIN = Origin()


@dataclass(eq=False)
class Value:
    """One tensor: defined once, by a node or as a graph input."""

    shape: Shape
    dtype: np.dtype
    name: str = ""
    producer: Node | None = None

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __repr__(self) -> str:
        dims = ", ".join(map(str, self.shape))
        return f"%{self.name or '?'}: {self.dtype}[{dims}]"


@dataclass(eq=False)
class Node:
    """One operation. ``attrs`` holds plain data only: ints, dims, strings, dtypes, tuples of these, NumPy arrays, graphs."""

    op: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    origin: Origin = NO_ORIGIN

    @property
    def output(self) -> Value:
        """The only output of a node that has one."""
        (out,) = self.outputs
        return out

    def __repr__(self) -> str:
        outs = ", ".join(f"%{v.name}" for v in self.outputs)
        return f"{outs} = {self.op}({', '.join(f'%{v.name}' for v in self.inputs)})"


@dataclass(eq=False)
class Graph:
    """Inputs, outputs and nodes in an order in which every value is defined before it is used."""

    scope: Scope
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    name: str = "main"
    _ids: Iterator[int] = field(default_factory=itertools.count, repr=False)

    def new_value(self, shape: Sequence[Dim], dtype: Any, name: str = "") -> Value:
        """A value that no node defines yet; an empty name becomes a number."""
        return Value(tuple(shape), np.dtype(dtype), name or str(next(self._ids)))

    def add_input(self, shape: Sequence[Dim], dtype: Any, name: str = "") -> Value:
        """A new graph input."""
        value = self.new_value(shape, dtype, name)
        self.inputs.append(value)
        return value

    def add(self, op: str, *inputs: Value, origin: Origin = NO_ORIGIN, name: str = "", **attrs: Any) -> Value:
        """Appends a node with one output; its type comes from the op's shape rule. Returns the output."""
        return self.add_multi(op, inputs, attrs, origin, (name,) if name else ())[0]

    def add_multi(
        self,
        op: str,
        inputs: Sequence[Value],
        attrs: dict[str, Any],
        origin: Origin = NO_ORIGIN,
        names: Sequence[str] = (),
    ) -> tuple[Value, ...]:
        """Appends a node with any number of outputs, typed by the op's shape rule."""
        node = self.make_node(op, inputs, attrs, origin, names)
        self.nodes.append(node)
        return node.outputs

    def make_node(
        self,
        op: str,
        inputs: Sequence[Value],
        attrs: dict[str, Any],
        origin: Origin = NO_ORIGIN,
        names: Sequence[str] = (),
    ) -> Node:
        """A typed node that is not in ``nodes`` yet (passes place it themselves)."""
        from graph_kernel.ops import OPS  # the table imports this module

        types = OPS[op].infer(self.scope, tuple(inputs), attrs, origin)
        outs = tuple(self.new_value(s, d, names[i] if i < len(names) else "") for i, (s, d) in enumerate(types))
        node = Node(op, tuple(inputs), outs, attrs, origin)
        for out in outs:
            out.producer = node
        return node

    def constant(self, value: Any, dtype: Any = None, origin: Origin = NO_ORIGIN) -> Value:
        """A ``constant`` node holding ``value`` as a NumPy array."""
        return self.add("constant", value=np.asarray(value, dtype=dtype), origin=origin)

    def users(self) -> dict[Value, list[Node]]:
        """For every value, the nodes that read it, in node order (once per node)."""
        found: dict[Value, list[Node]] = {}
        for node in self.nodes:
            for value in dict.fromkeys(node.inputs):
                found.setdefault(value, []).append(node)
        return found

    def replace_uses(self, mapping: dict[Value, Value]) -> None:
        """Redirects node inputs and graph outputs through ``mapping`` (chains are followed)."""
        if not mapping:
            return

        def final(value: Value) -> Value:
            while value in mapping:
                value = mapping[value]
            return value

        for node in self.nodes:
            if any(v in mapping for v in node.inputs):
                node.inputs = tuple(final(v) for v in node.inputs)
        self.outputs = [final(v) for v in self.outputs]

    def subgraphs(self) -> Iterable[Graph]:
        """Graphs held in attributes (branches and bodies), in node order."""
        for node in self.nodes:
            for value in node.attrs.values():
                for item in value if isinstance(value, tuple) else (value,):
                    if isinstance(item, Graph):
                        yield item
