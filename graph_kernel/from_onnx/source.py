"""Reads an ONNX model from a file or a proto, and the numbers of its tensors, wherever they are stored."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import defs, inliner, numpy_helper

from graph_kernel.from_onnx.registry import np_dtype
from vm.errors import CompileError

OLDEST_OPSET = 13
_PACKED = ("int4", "uint4", "int2", "uint2", "float4_e2m1fn")  # several elements in a byte


class Weights:
    """Tensors of a model as arrays; external data is read relative to the model's directory."""

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory

    def array(self, proto: onnx.TensorProto) -> np.ndarray:
        """The numbers of a tensor. Raises CompileError where they are missing, too short or of an unknown type."""
        what = f"initializer {proto.name!r}"
        dtype = np_dtype(proto.data_type, what)
        if proto.data_location == onnx.TensorProto.EXTERNAL:
            return self._external(proto, dtype, what)
        try:
            return numpy_helper.to_array(proto)
        except (ValueError, TypeError, KeyError, NotImplementedError, OverflowError, MemoryError) as error:
            raise CompileError(
                f"{what} is damaged: its data does not fit its shape {list(proto.dims)} ({error})"
            ) from error

    def _external(self, proto: onnx.TensorProto, dtype: np.dtype, what: str) -> np.ndarray:
        info = {entry.key: entry.value for entry in proto.external_data}
        path = self._inside(info.get("location", ""), what)
        try:
            offset, length = int(info.get("offset", 0)), int(info.get("length", -1))
        except ValueError as error:
            raise CompileError(f"{what}: offset and length of its external data have to be numbers") from error
        size = path.stat().st_size
        length = size - offset if length < 0 else length
        if offset < 0 or offset + length > size:
            raise CompileError(f"{what} needs bytes {offset} to {offset + length} of {path.name}, which has {size}")
        if dtype.itemsize * math.prod(proto.dims) == length and dtype.name not in _PACKED:
            return np.fromfile(path, dtype, math.prod(proto.dims), offset=offset).reshape(tuple(proto.dims))
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(length)
        copy = onnx.TensorProto(name=proto.name, data_type=proto.data_type, dims=proto.dims, raw_data=data)
        return self.array(copy)

    def _inside(self, location: str, what: str) -> Path:
        """The file, which has to be inside the model's directory, links followed."""
        if self.directory is None:
            raise CompileError(f"{what} is stored in {location!r}: give the model's path instead of a ModelProto")
        root = self.directory.resolve()
        path = Path(os.path.realpath(root / location))
        if not location or not path.is_relative_to(root):
            raise CompileError(f"{what}: external data {location!r} is outside the model's directory")
        if not path.is_file():
            raise CompileError(f"{what}: external data file {location!r} does not exist beside the model")
        return path


def read_model(model: str | Path | onnx.ModelProto) -> tuple[onnx.ModelProto, Weights]:
    """The model with its own functions inlined. Raises CompileError for what is not a usable ONNX model."""
    if isinstance(model, onnx.ModelProto):
        proto, directory = model, None
    elif isinstance(model, (str, os.PathLike)):
        directory = Path(model).parent
        proto = _read_file(Path(model))
    else:
        raise CompileError(f"an ONNX model is a path or an onnx.ModelProto, not {type(model).__name__}")
    if not proto.HasField("graph") or not proto.opset_import:
        raise CompileError(
            "this is not a complete ONNX model: it has no graph or names no opset (is the file truncated?)"
        )
    check_opset(proto)
    return (_inlined(proto) if proto.functions else proto), Weights(directory)


def _read_file(path: Path) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(path.read_bytes())
    except OSError as error:
        raise CompileError(f"cannot read {str(path)!r}: {error.strerror or error}") from error
    except DecodeError as error:
        raise CompileError(f"{path.name} is not an ONNX model, or it is truncated or damaged ({error})") from error
    return proto


def _inlined(proto: onnx.ModelProto) -> onnx.ModelProto:
    try:
        return inliner.inline_local_functions(proto)
    except Exception as error:  # the C++ side raises several kinds
        raise CompileError(f"the model's functions cannot be inlined: {error}") from error


def check_opset(proto: onnx.ModelProto) -> None:
    """Raises CompileError for opsets older than 13 or newer than the installed onnx package knows."""
    newest = defs.onnx_opset_version()
    for entry in proto.opset_import:
        if entry.domain in ("", "ai.onnx") and not OLDEST_OPSET <= entry.version <= newest:
            raise CompileError(
                f"the model uses opset {entry.version}; {OLDEST_OPSET} to {newest} are supported "
                "(onnx.version_converter can change it)"
            )


def opsets_of(proto: onnx.ModelProto) -> dict[str, int]:
    """Opset version by domain; ONNX's own domain is the empty one."""
    return {"" if e.domain == "ai.onnx" else e.domain: e.version for e in proto.opset_import}
