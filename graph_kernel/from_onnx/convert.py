"""Walks an ONNX graph and emits canonical ops: names, folding, function bodies, and errors that say which node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import onnx

from graph_kernel.from_onnx import (  # noqa: F401  (importing a family registers its converters)
    activations,
    control,
    creation,
    elementwise,
    indexing,
    matmul,
    normalization,
    quantize,
    recurrent,
    reductions,
    resize,
    scatter,
    shaping,
    windows,
)
from graph_kernel.from_onnx.builder import Builder
from graph_kernel.from_onnx.functions import function_body, has_function
from graph_kernel.from_onnx.registry import CONVERTERS, Call, describe, place
from graph_kernel.from_onnx.tensor import Tensor
from graph_kernel.from_onnx.values import fold
from graph_kernel.ir import Origin, Value
from vm.errors import CompileError, DvmError, UnsupportedOp

if TYPE_CHECKING:
    from graph_kernel.from_onnx.source import Weights

MAX_DEPTH = 40  # nested sub-graphs and function bodies


@dataclass
class Frame:
    """The names visible in one graph or function body, and where nodes go.

    parent: the frame whose names a sub-graph sees; None for the main graph and function bodies.
    failed: names that no value exists for, because the node that makes them is unsupported.
    inside_op: whether the nodes are the body of an op; they keep the origin of the node that was expanded.
    """

    builder: Builder
    opsets: dict[str, int]
    weights: Weights
    parent: Frame | None = None
    depth: int = 0
    names: dict[str, Tensor] = field(default_factory=dict)
    problems: Problems = field(default_factory=lambda: Problems())
    failed: set[str] = field(default_factory=set)
    inside_op: bool = False

    def child(self, builder: Builder, sees_names: bool = True) -> Frame:
        """A frame inside this one: of a sub-graph, or of an op's body, which sees no outer names."""
        if self.depth >= MAX_DEPTH:
            raise CompileError("sub-graphs or functions are nested too deeply")
        parent = self if sees_names else None
        inside_op = self.inside_op or not sees_names
        return Frame(
            builder, self.opsets, self.weights, parent, self.depth + 1, problems=self.problems, inside_op=inside_op
        )

    def find(self, name: str) -> Tensor | None:
        """The tensor of that name here or in an enclosing graph."""
        if name in self.names:
            return self.names[name]
        return self.parent.find(name) if self.parent else None

    def has_failed(self, name: str) -> bool:
        """Whether the name belongs to an unsupported node."""
        return name in self.failed or (self.parent is not None and self.parent.has_failed(name))


@dataclass
class Problems:
    """Unsupported nodes, collected so that one error can list them all."""

    found: list[tuple[str, str, str]] = field(default_factory=list)  # op type, node, what is missing

    def report(self) -> None:
        """Raises one UnsupportedOp if anything was found."""
        if not self.found:
            return
        counts = Counter(op for op, _, _ in self.found)
        lines = [f"{len(self.found)} of the model's nodes are not supported:"]
        for op, count in sorted(counts.items()):
            nodes = [(node, why) for o, node, why in self.found if o == op]
            shown = "; ".join(f"{node!r}{': ' + why if why else ''}" for node, why in nodes[:5])
            more = f" and {count - 5} more" if count > 5 else ""
            lines.append(f"  {op} ({count}): {shown}{more}")
        raise UnsupportedOp("\n".join(lines))


def supported_ops(domain: str = "") -> list[str]:
    """Op types that have a converter of their own; ONNX's function bodies come on top."""
    return sorted(op_type for where, op_type in CONVERTERS if where == domain)


def op_name(node: onnx.NodeProto) -> str:
    """The op type with its domain where that is not ONNX's own."""
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}::{node.op_type}"


def add_initializers(frame: Frame, graph: onnx.GraphProto) -> None:
    """Makes a graph's initializers visible."""
    for proto in graph.initializer:
        frame.names[proto.name] = Tensor.const(frame.weights.array(proto))
    if graph.sparse_initializer:
        raise CompileError("sparse initializers are not supported")


def convert_nodes(frame: Frame, nodes: Iterable[onnx.NodeProto]) -> None:
    """Converts nodes in their order; unsupported ones are noted and what depends on them is left out."""
    for node in nodes:
        if any(name and frame.has_failed(name) for name in _reads(node)):
            frame.failed.update(node.output)
            continue
        already = len(frame.problems.found)
        try:
            convert_node(frame, node)
        except UnsupportedOp as error:
            frame.failed.update(node.output)
            if len(frame.problems.found) > already:
                continue  # what is missing is inside the node's sub-graph, and listed
            prefix = f"{describe(node)}: "
            why = str(error).removeprefix(prefix)
            frame.problems.found.append((op_name(node), place(node), why))


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield from _reads(inner)


def convert_node(frame: Frame, node: onnx.NodeProto) -> None:
    """Converts one node and names its outputs. Raises CompileError or UnsupportedOp that name it."""
    inputs = [_lookup(frame, node, name) if name else None for name in node.input]
    builder = frame.builder
    outer, builder.origin = builder.origin, _origin(frame, node)
    call = Call(node, inputs, builder, frame, frame.opsets.get("", 0))
    try:
        outputs: Sequence[Tensor | None] | None = fold(call)
        if outputs is None:
            outputs = _convert(frame, call)
    except DvmError as error:
        if place(node) in str(error):
            raise
        raise type(error)(f"{describe(node)}: {error}") from error
    except RecursionError:
        raise
    except Exception as error:  # a malformed node: converters do not check everything that a valid model guarantees
        raise CompileError(
            f"{describe(node)} cannot be converted, is the model valid? ({type(error).__name__}: {error})"
        ) from error
    finally:
        builder.origin = outer
    if len(outputs) < sum(1 for name in node.output if name):
        raise CompileError(f"{describe(node)} has {len(node.output)} outputs, {len(outputs)} are possible")
    for name, tensor in zip(node.output, outputs, strict=False):
        if name and tensor is None:
            raise UnsupportedOp(f"{describe(node)}: output {name!r} is not supported")
        if name and tensor is not None:
            frame.names[name] = tensor


def _origin(frame: Frame, node: onnx.NodeProto) -> Origin:
    return frame.builder.origin if frame.inside_op else Origin(op_name(node), place(node))


def _lookup(frame: Frame, node: onnx.NodeProto, name: str) -> Tensor:
    tensor = frame.find(name)
    if tensor is None:
        raise CompileError(f"{describe(node)} reads {name!r}, which nothing before it defines")
    return tensor


def _convert(frame: Frame, call: Call) -> Sequence[Tensor | None]:
    node = call.node
    domain = "" if node.domain == "ai.onnx" else node.domain
    handler = CONVERTERS.get((domain, node.op_type))
    if handler is not None:
        result = handler(call)
        found = [result] if isinstance(result, Value | Tensor) else list(result)
        return [Tensor.of(r, frame.builder) if isinstance(r, Value) else r for r in found]
    if not has_function(node, frame.opsets):
        raise UnsupportedOp(f"{describe(node)}: the operator is not supported")
    return _expand(frame, call)


def _expand(frame: Frame, call: Call) -> Sequence[Tensor | None]:
    """Converts the function body that ONNX itself gives for an op."""
    body, opsets = function_body(call, frame.opsets)
    inner = frame.child(frame.builder, sees_names=False)
    inner.opsets = opsets
    inner.problems = Problems()
    for name, tensor in zip(body.input, call.inputs, strict=False):
        if tensor is not None:
            inner.names[name] = tensor
    missing = set(body.input) - set(inner.names)
    nodes = [_without(node, missing) for node in body.node]
    convert_nodes(inner, nodes)
    if inner.problems.found:
        details = "; ".join(f"{op} {why}" for op, _, why in inner.problems.found)
        raise UnsupportedOp(f"{call.where()}: {details}")
    return [inner.names.get(name) for name in body.output]


def _without(node: onnx.NodeProto, missing: set[str]) -> onnx.NodeProto:
    """The node with inputs that the caller left out made empty."""
    if not missing.intersection(node.input):
        return node
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.input[:] = ["" if name in missing else name for name in node.input]
    return copy


def subgraph_value(frame: Frame, name: str) -> Tensor:
    """A named result of a sub-graph."""
    tensor = frame.find(name)
    if tensor is None:
        if frame.has_failed(name):
            raise UnsupportedOp(f"{name!r} comes from an unsupported node")
        raise CompileError(f"nothing defines the graph output {name!r}")
    return tensor
