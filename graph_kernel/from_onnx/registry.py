"""The table of ONNX op converters, and what a converter is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from graph_kernel.from_onnx.builder import Builder
from graph_kernel.from_onnx.tensor import Tensor
from graph_kernel.ir import Value
from vm.errors import CompileError, UnsupportedOp

if TYPE_CHECKING:
    from graph_kernel.from_onnx.convert import Frame
    from symbolic import Dim

Result = Value | Tensor | Sequence[Value | Tensor | None]
Converter = Callable[["Call"], Result]

CONVERTERS: dict[tuple[str, str], Converter] = {}
MICROSOFT = "com.microsoft"


def converter(*op_types: str, domain: str = "") -> Callable[[Converter], Converter]:
    """Registers the converter of one or more ONNX op types."""

    def register(fn: Converter) -> Converter:
        for op_type in op_types:
            CONVERTERS[domain, op_type] = fn
        return fn

    return register


@dataclass
class Call:
    """One ONNX node about to be converted."""

    node: onnx.NodeProto
    inputs: list[Tensor | None]
    builder: Builder
    frame: Frame
    opset: int

    # ---- inputs

    def has(self, i: int) -> bool:
        """Whether input ``i`` is given (an empty name is not)."""
        return i < len(self.inputs) and self.inputs[i] is not None

    def tensor(self, i: int) -> Tensor:
        """Input ``i``; a missing one is a CompileError."""
        tensor = self.inputs[i] if i < len(self.inputs) else None
        if tensor is None:
            raise CompileError(f"{self.where()} has no input {i}")
        return tensor

    def x(self, i: int = 0) -> Value:
        """Input ``i`` as data."""
        tensor = self.tensor(i)
        if tensor.items is not None:
            raise UnsupportedOp(f"{self.where()}: input {i} is a sequence, not a tensor")
        return self.builder.value(tensor)

    def maybe(self, i: int) -> Value | None:
        """Input ``i`` as data, or None."""
        return self.x(i) if self.has(i) else None

    def xs(self) -> list[Value]:
        """All given inputs as data."""
        return [self.x(i) for i in range(len(self.inputs)) if self.has(i)]

    def dims(self, i: int) -> list[Dim]:
        """Input ``i``, a small integer tensor, as a list of dims; UnsupportedOp if it depends on data."""
        tensor = self.tensor(i)
        known = tensor.known
        if known is None and tensor.array is not None and tensor.array.dtype.kind in "iu":
            return [int(e) for e in tensor.array.flat]
        if known is None or tensor.dtype.kind not in "iu":
            raise UnsupportedOp(f"{self.where()}: input {i} ({self.input_name(i)}) sets a shape but depends on data")
        return list(known.flat)

    def ints(self, i: int) -> list[int]:
        """Input ``i`` as plain integers; UnsupportedOp if any is symbolic or depends on data."""
        dims = self.dims(i)
        if not all(isinstance(d, int) for d in dims):
            raise UnsupportedOp(f"{self.where()}: input {i} ({self.input_name(i)}) has to be constant, it is {dims}")
        return [int(d) for d in dims]

    def number(self, i: int) -> Any:
        """Input ``i``, a constant with one element, as a Python number; None if it is not constant."""
        tensor = self.tensor(i)
        return tensor.array.reshape(-1)[0].item() if tensor.array is not None and tensor.array.size == 1 else None

    def axes(self, i: int, rank: int, attr: str = "axes") -> list[int] | None:
        """Axes from input ``i`` or the attribute, made non-negative; None if neither is given."""
        given = self.ints(i) if self.has(i) else self.attr(attr, None)
        return None if given is None else [self.axis(a, rank) for a in given]

    def axis(self, axis: int, rank: int) -> int:
        """A checked non-negative axis."""
        if not -rank <= axis < rank:
            raise CompileError(f"{self.where()}: axis {axis} is out of range for rank {rank}")
        return axis % rank

    # ---- the node

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute: number, string, list, NumPy array or GraphProto."""
        for attribute in self.node.attribute:
            if attribute.name == name:
                return attribute_value(attribute)
        return default

    def wants(self, i: int) -> bool:
        """Whether output ``i`` is used by name."""
        return i < len(self.node.output) and bool(self.node.output[i])

    def input_name(self, i: int) -> str:
        """The ONNX name of an input."""
        return self.node.input[i]

    def where(self) -> str:
        """The node, for messages."""
        return describe(self.node)

    def unsupported(self, what: str) -> UnsupportedOp:
        """An UnsupportedOp about this node."""
        return UnsupportedOp(f"{self.where()}: {what}")


def describe(node: onnx.NodeProto) -> str:
    """``Reshape node 'view_3'``."""
    return f"{node.op_type} node {place(node)!r}"


def place(node: onnx.NodeProto) -> str:
    """A node's name, or that of its first output if it has none."""
    return node.name or next((o for o in node.output if o), "?")


def attribute_value(attribute: onnx.AttributeProto) -> Any:
    """The value of an attribute, tensors as arrays and bytes as text."""
    value = helper.get_attribute_value(attribute)
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, onnx.GraphProto):
        return value
    if isinstance(value, (int, float)):
        return value
    return [v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in value]


def np_dtype(elem_type: int, what: str) -> np.dtype:
    """The NumPy dtype of an ONNX element type; UnsupportedOp for strings and undefined types."""
    if elem_type in (onnx.TensorProto.STRING, onnx.TensorProto.UNDEFINED):
        raise UnsupportedOp(f"{what}: element type {onnx.TensorProto.DataType.Name(elem_type)} is not supported")
    try:
        return np.dtype(helper.tensor_dtype_to_np_dtype(elem_type))
    except (KeyError, ValueError, TypeError) as error:
        raise CompileError(f"{what}: element type {elem_type} is unknown") from error
