"""Random inputs for verbs that run a model, and the implementation that it is compared with."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vm.dtypes import dtype_of

if TYPE_CHECKING:
    from dvm.program import CompiledProgram

Peer = Callable[[Mapping[str, np.ndarray]], list[Any]]


def random_feeds(program: CompiledProgram, sizes: Mapping[str, int], seed: int) -> dict[str, np.ndarray]:
    """Inputs at these sizes of the symbols: floats standard normal, integers and bools 0 or 1."""
    generator = np.random.default_rng(seed)
    feeds = {}
    for spec, shape in zip(program.inputs, program.bind(sizes).input_shapes, strict=True):
        kind = dtype_of(spec.dtype)
        if kind.kind in "iub":
            feeds[spec.name] = generator.integers(0, 2, shape).astype(kind)
        else:
            feeds[spec.name] = np.asarray(generator.standard_normal(shape)).astype(kind)
    return feeds


def peer_of(path: Path, program: CompiledProgram) -> tuple[str, Peer]:
    """ONNX Runtime for an ONNX model if it is installed, else the reference executor on the same program."""
    if path.suffix == ".onnx" and importlib.util.find_spec("onnxruntime") is not None:
        ort: Any = importlib.import_module("onnxruntime")  # optional, and no dependency of the package
        session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        names = [spec.name for spec in program.outputs]
        return "onnxruntime", lambda feeds: list(session.run(names, dict(feeds)))
    from dvm.program import CompiledProgram as Program

    reference = Program(program.program, tier="reference")
    return "reference", lambda feeds: reference.run(None, feeds)
