"""Loads an ONNX model as a graph."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path

import onnx

from graph_kernel.from_onnx.builder import Builder
from graph_kernel.from_onnx.convert import Frame, add_initializers, convert_nodes
from graph_kernel.from_onnx.inputs import DimSpec, InputDims
from graph_kernel.from_onnx.registry import np_dtype
from graph_kernel.from_onnx.source import opsets_of, read_model
from graph_kernel.from_onnx.tensor import Tensor
from graph_kernel.ir import Graph, Origin, Value
from graph_kernel.passes.liveness import remove_dead
from symbolic import Relation, Scope
from vm.errors import CompileError, DvmError, UnsupportedOp


def load(
    model: str | Path | onnx.ModelProto,
    dims: Mapping[str, DimSpec | int] | None = None,
    constraints: Iterable[str | Relation] = (),
) -> Graph:
    """The graph of an ONNX model, its shapes symbolic.

    model: path, or a proto (without external data). Opset 13 up to the newest that the onnx package knows.
    dims: what is declared about the model's named dimensions, by name: a ``dvm.Dim``, or a number that fixes the size.
        Without one a dimension is in [0, infinity). Unnamed dimensions are called ``INPUT_AXIS``.
    constraints: relations between dimensions, such as ``"past + seq <= 4096"``.

    Inputs and outputs have the model's names and order; initializers are not inputs. Raises ``CompileError`` for a
    model that is damaged or whose shapes cannot work, ``UnsupportedOp`` with all operators that are not supported.
    """
    try:
        return _load(model, dims or {}, constraints)
    except DvmError:
        raise
    except RecursionError as error:
        raise CompileError("the ONNX model is nested too deeply, or its shape expressions are too complex") from error
    except Exception as error:  # a damaged model can break any assumption about protos
        raise CompileError(
            f"the ONNX model cannot be read, it may be damaged ({type(error).__name__}: {error})"
        ) from error


def _load(
    model: str | Path | onnx.ModelProto, specs: Mapping[str, DimSpec | int], constraints: Iterable[str | Relation]
) -> Graph:
    proto, weights = read_model(model)
    names = [v.name for v in (*proto.graph.input, *proto.graph.output)]
    graph = Graph(Scope(proto.graph.name), name=proto.graph.name or "main", _ids=itertools.count(_first_number(names)))
    frame = Frame(Builder(graph), opsets_of(proto), weights)
    add_initializers(frame, proto.graph)
    infos = [i for i in proto.graph.input if i.name not in frame.names]
    input_dims = InputDims(graph.scope, specs, infos)
    for info in infos:
        _add_input(frame, input_dims, info)
    input_dims.check_specs()
    input_dims.assume(constraints)
    convert_nodes(frame, proto.graph.node)
    frame.problems.report()
    graph.outputs = _outputs(frame, [o.name for o in proto.graph.output])
    _remove_dead(graph)
    return graph


def _first_number(names: list[str]) -> int:
    """Unnamed values are numbered; exporters number theirs too, so ours start behind those of the inputs and outputs."""
    return max((int(name) + 1 for name in names if name.isascii() and name.isdecimal()), default=0)


def _add_input(frame: Frame, dims: InputDims, info: onnx.ValueInfoProto) -> None:
    kind = info.type.WhichOneof("value")
    if kind != "tensor_type":
        raise UnsupportedOp(
            f"input {info.name!r} is a {(kind or 'value without type').removesuffix('_type')}, only tensors work"
        )
    if info.name in frame.names:
        raise CompileError(f"the model has two inputs named {info.name!r}")
    dtype = np_dtype(info.type.tensor_type.elem_type, f"input {info.name!r}")
    value = frame.builder.graph.add_input(dims.shape(info), dtype, info.name)
    frame.names[info.name] = Tensor.of(value, frame.builder)


def _outputs(frame: Frame, names: list[str]) -> list[Value]:
    """The outputs as values of their own that carry the outputs' names."""
    if not names:
        raise CompileError("the model has no outputs (is the file truncated?)")
    builder, outputs = frame.builder, []
    taken = set(builder.graph.inputs)
    for name in names:
        builder.origin = Origin("Output", name)
        tensor = frame.find(name)
        if tensor is None:
            raise CompileError(f"nothing in the model defines its output {name!r} (is the file truncated?)")
        if tensor.items is not None:
            raise UnsupportedOp(f"output {name!r} is a sequence, only tensors work")
        value = builder.value(tensor)
        if value in taken:  # an input, or a value that is another output already
            value = builder.op("reshape", value, shape=value.shape)
        taken.add(value)
        value.name = name
        outputs.append(value)
    return outputs


def _remove_dead(graph: Graph) -> None:
    """Drops nodes that no output needs, in sub-graphs too: what folded shape computations leave behind."""
    remove_dead(graph)
    for inner in graph.subgraphs():
        _remove_dead(inner)
