"""``dvm.backend``: DVM behind ONNX's own backend interface (``onnx.backend.base``).

rep = dvm.backend.prepare(model)
(y,) = rep.run([x])
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.backend.base import Backend, BackendRep

from dvm.program import CompiledProgram
from vm.errors import InputError, UnsupportedOp

MAX_SHAPE_ENTRIES = 64  # longer integer vectors are data, not shapes
_FLOATS_SET_SHAPES = ("Range", "Resize", "OneHot")


class DvmBackendRep(BackendRep):
    """A prepared model. ``run`` takes arrays in the order of the model's inputs, or by name, and returns a tuple of NumPy arrays.

    Sizes may differ from run to run where the model has names for them. A model that needs the *values* of an input to know its shapes (the
    target of a Reshape, say) is compiled at the first run, for those values, and again for others; ``program`` is None until then.
    """

    def __init__(self, model: onnx.ModelProto, options: Mapping[str, Any]) -> None:
        self._model, self._options = model, dict(options)
        initialised = {proto.name for proto in model.graph.initializer}
        self.input_names = [info.name for info in model.graph.input if info.name not in initialised]
        self.program: CompiledProgram | None = None
        self._refusal: UnsupportedOp | None = None
        self._by_values: dict[tuple[Any, ...], CompiledProgram] = {}
        try:
            self.program = _compile(model, self._options)
        except UnsupportedOp as error:
            tensors = all(info.type.HasField("tensor_type") for info in model.graph.input)
            if not tensors or not any(_may_set_shapes(info, model) for info in model.graph.input):
                raise
            self._refusal = error

    def run(self, inputs: Any, **kwargs: Any) -> tuple[np.ndarray, ...]:
        """The outputs for ``inputs``: a list, a dict by name, or one array."""
        feeds = self._feeds(inputs)
        if self._refusal is None and self.program is not None:
            return tuple(self.program.run(None, feeds))
        shapes = {name: array for name, array in feeds.items() if _is_shape(array)}
        if not shapes and self._refusal is not None:
            raise self._refusal
        key = tuple((name, array.dtype.name, array.shape, array.tobytes()) for name, array in sorted(shapes.items()))
        if key not in self._by_values:
            self._by_values[key] = _compile(_with_constants(self._model, shapes), self._options)
        self.program = self._by_values[key]
        return tuple(self.program.run(None, {name: array for name, array in feeds.items() if name not in shapes}))

    def _feeds(self, inputs: Any) -> dict[str, np.ndarray]:
        if isinstance(inputs, Mapping):
            return {name: _array(name, value) for name, value in inputs.items()}
        values = [inputs] if isinstance(inputs, np.ndarray) else list(inputs)
        if len(values) != len(self.input_names):
            raise InputError(f"the model takes {len(self.input_names)} inputs, got {len(values)}")
        return {name: _array(name, value) for name, value in zip(self.input_names, values, strict=True)}


class DvmBackend(Backend):
    """ONNX's backend interface: ``prepare``, ``run_model``, ``run_node`` and ``supports_device``. The machine lives on the CPU."""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether models can be prepared for ``device``: ``CPU``, or ``CPU:0``."""
        return device in ("CPU", "CPU:0")

    @classmethod
    def prepare(
        cls, model: onnx.ModelProto | str | os.PathLike[str], device: str = "CPU", **kwargs: Any
    ) -> DvmBackendRep:
        """Compiles a model. ``kwargs`` go to ``dvm.compile``: ``dims``, ``constraints``, ``tier``, ``options``. Raises what it raises,
        ``InputError`` for another device, and what ``onnx.checker`` raises for a model that is not valid."""
        _check_device(device)
        proto = model if isinstance(model, onnx.ModelProto) else onnx.load(os.fspath(model))
        super().prepare(proto, device)
        return DvmBackendRep(proto, kwargs)

    @classmethod
    def run_model(
        cls, model: onnx.ModelProto | str | os.PathLike[str], inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[np.ndarray, ...]:
        """Compiles a model and runs it once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[np.ndarray, ...]:
        """Runs one node of opset ``opset_version`` (else the newest that the onnx package knows) on arrays in order or by name."""
        _check_device(device)
        version = kwargs.pop("opset_version", onnx.defs.onnx_opset_version())
        names = [name for name in node.input if name]
        values = inputs if isinstance(inputs, Mapping) else dict(zip(names, _listed(inputs, len(names)), strict=True))
        arrays = {name: _array(name, value) for name, value in values.items()}
        graph = helper.make_graph(
            [node],
            node.op_type,
            [
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
                for name, array in arrays.items()
            ],
            [onnx.ValueInfoProto(name=name) for name in node.output if name],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid(node.domain, version)])
        return DvmBackendRep(model, kwargs).run(arrays)


def _check_device(device: str) -> None:
    if not DvmBackend.supports_device(device):
        raise InputError(f"DVM has no device {device!r}; it has CPU")


def _compile(model: onnx.ModelProto, options: Mapping[str, Any]) -> CompiledProgram:
    import dvm

    return dvm.compile(model, **options)


def _array(name: str, value: Any) -> np.ndarray:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.empty((), object)
    if array.dtype == object or isinstance(value, (list, tuple)):
        raise InputError(f"input {name!r}: expected an array, got {type(value).__name__}")
    return array


def _listed(inputs: Any, count: int) -> list[Any]:
    values = [inputs] if isinstance(inputs, np.ndarray) else list(inputs)
    if len(values) != count:
        raise InputError(f"the node takes {count} inputs, got {len(values)}")
    return values


def _may_set_shapes(info: onnx.ValueInfoProto, model: onnx.ModelProto) -> bool:
    """Whether an input may be a shape, or a number that sets one."""
    kind = info.type.tensor_type
    if len(kind.shape.dim) > 1:
        return False
    if np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type)).kind in "iub":
        return True
    return any(node.op_type in _FLOATS_SET_SHAPES and info.name in node.input for node in model.graph.node)


def _is_shape(array: np.ndarray) -> bool:
    return array.ndim <= 1 and array.size <= MAX_SHAPE_ENTRIES and array.dtype.kind in "iubf"


def _with_constants(model: onnx.ModelProto, values: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """The model with some of its inputs fixed."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    kept = [info for info in fixed.graph.input if info.name not in values]
    del fixed.graph.input[:]
    fixed.graph.input.extend(kept)
    fixed.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in values.items())
    return fixed


backend = DvmBackend
__all__ = ["DvmBackend", "DvmBackendRep", "backend"]
