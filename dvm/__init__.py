"""DVM: a tensor compiler whose output stays valid for every shape.

``import dvm`` loads neither JAX nor the compiler; each name below is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from vm.errors import (
    CompileError,
    DvmError,
    InputError,
    OutOfMemory,
    ProgramError,
    ShapeError,
    UnsupportedOp,
)

if TYPE_CHECKING:
    from dvm.api import compile
    from dvm.dims import Dim, spec
    from dvm.handwritten import (
        IntArray,
        Kernel,
        KernelFunction,
        bfloat16,
        bool_,
        float16,
        float32,
        int32,
        int64,
        kernel,
    )
    from dvm.jitted import jit
    from dvm.onnx_backend import backend
    from dvm.options import Options
    from dvm.program import CompiledProgram, load
    from dvm.statistics import Stats, stats

__version__ = "0.1.0"

# Public name -> the module that defines it.
_LAZY = {
    "CompiledProgram": "dvm.program",
    "Dim": "dvm.dims",
    "IntArray": "dvm.handwritten.arguments",
    "Kernel": "dvm.handwritten",
    "KernelFunction": "dvm.handwritten",
    "Options": "dvm.options",
    "Stats": "dvm.statistics",
    "backend": "dvm.onnx_backend",
    "bfloat16": "dvm.handwritten.arguments",
    "bool_": "dvm.handwritten.arguments",
    "compile": "dvm.api",
    "float16": "dvm.handwritten.arguments",
    "float32": "dvm.handwritten.arguments",
    "int32": "dvm.handwritten.arguments",
    "int64": "dvm.handwritten.arguments",
    "jit": "dvm.jitted",
    "kernel": "dvm.handwritten",
    "load": "dvm.program",
    "spec": "dvm.dims",
    "stats": "dvm.statistics",
}

__all__ = [
    "CompileError",
    "CompiledProgram",
    "Dim",
    "DvmError",
    "InputError",
    "IntArray",
    "Kernel",
    "KernelFunction",
    "Options",
    "OutOfMemory",
    "ProgramError",
    "ShapeError",
    "Stats",
    "UnsupportedOp",
    "backend",
    "bfloat16",
    "bool_",
    "compile",
    "float16",
    "float32",
    "int32",
    "int64",
    "jit",
    "kernel",
    "load",
    "spec",
    "stats",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'dvm' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
