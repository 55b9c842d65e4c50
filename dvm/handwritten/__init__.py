"""Hand-written kernels: ``@dvm.kernel``, ``dvm.Kernel`` and the vocabulary that both are written in.

Reading order: ``arguments`` (what a kernel is called with), ``vocabulary`` (``k.add``, ``k.sum``, ``k.matmul`` ...), ``kinds`` (what each
kind of kernel may hold), ``kernel_object`` (a kernel that is built and driven by hand), ``decorator`` (functions that build one).
"""

from dvm.handwritten.arguments import IntArray, bfloat16, bool_, float16, float32, int32, int64
from dvm.handwritten.decorator import KernelFunction, kernel
from dvm.handwritten.kernel_object import Kernel

__all__ = [
    "IntArray",
    "Kernel",
    "KernelFunction",
    "bfloat16",
    "bool_",
    "float16",
    "float32",
    "int32",
    "int64",
    "kernel",
]
