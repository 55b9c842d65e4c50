"""Host functions: what the NPU cannot do, in NumPy, with the meaning of the graph ops of the same names.

Every function takes ``(inputs, attrs)`` and returns a list of results. Inputs are never changed; a result may be a view of one.
Attributes are plain data (numbers, strings, lists); element types are named.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vm import counters, host_index, host_math, host_window
from vm.errors import OutOfMemory, ProgramError
from vm.host_math import Attrs, HostFunction

FUNCTIONS: dict[str, HostFunction] = {**host_math.FUNCTIONS, **host_index.FUNCTIONS, **host_window.FUNCTIONS}


def _elementwise(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    """The function named ``attrs["op"]``, for callers that keep the name of an operation apart."""
    return FUNCTIONS[attrs["op"]](xs, {k: v for k, v in attrs.items() if k != "op"})


FUNCTIONS["elementwise"] = _elementwise

# A program file holds numbers instead of the names of functions. A name's number is its place here: append only, never reorder.
_ORDER = """
copy elementwise neg abs sign floor ceil round trunc exp exp2 log log1p expm1 sqrt rsqrt cbrt reciprocal square sin cos tan asin acos
atan sinh cosh tanh asinh acosh atanh erf erfc erf_inv logistic is_finite is_nan is_inf not add sub mul div rem pow max min atan2 and or
xor shift_left shift_right_logical shift_right_arithmetic eq ne lt le gt ge select cast broadcast reshape transpose slice rev pad concat
iota dim reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or reduce_xor argmax argmin cumsum cumprod cummax cummin
cumlogsumexp dot take take_along dynamic_slice dynamic_update_slice sort top_k gather scatter reduce_window conv nonzero unique nextafter
bitcast lgamma digamma bessel_i0e bessel_i1e igamma igammac zeta polygamma betainc population_count clz threefry2x32 real imag conj
complex
"""
CODES: dict[str, int] = {name: code for code, name in enumerate(_ORDER.split())}

# Likewise for the attributes ``op`` (a function) and ``kind`` (how a scatter or a window combines).
WORDS: dict[str, int] = {**CODES, "set": 1000, "sum": 1001, "prod": 1002}


def call(function: str, inputs: list[np.ndarray], attrs: dict[str, Any]) -> list[np.ndarray]:
    """Runs one host step and counts it as ``host_ops``. What NumPy refuses is a ``ProgramError``: sizes that a user may get wrong
    have been checked before a launch."""
    counters.add("host_ops")
    try:
        return FUNCTIONS[function](inputs, attrs)
    except MemoryError as error:
        raise OutOfMemory(f"host function {function!r}: {error}") from error
    except (
        ValueError,
        TypeError,
        IndexError,
        KeyError,
        AttributeError,
        OverflowError,
        ZeroDivisionError,
    ) as error:
        shapes = ", ".join(f"{x.dtype}{list(x.shape)}" for x in inputs)
        raise ProgramError(f"host function {function!r} on {shapes}: {type(error).__name__}: {error}") from error
