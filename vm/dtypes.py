"""The element types a program may name. Names are NumPy's; the 16-bit and 8-bit floats that NumPy lacks come from ``ml_dtypes``."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from vm.errors import ProgramError

_NAMES = (
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
_EXTRA = (
    *(
        "bfloat16",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
        "float4_e2m1fn",
    ),
    *("int4", "uint4", "int2", "uint2"),
)

DTYPES: dict[str, np.dtype] = {name: np.dtype(name).newbyteorder("<") for name in _NAMES}
DTYPES.update({name: np.dtype(getattr(ml_dtypes, name)) for name in _EXTRA})

INTEGERS = frozenset(name for name in _NAMES if "int" in name)


def dtype_of(name: str) -> np.dtype:
    """The NumPy dtype called ``name``; an unknown name is a ``ProgramError``."""
    found = DTYPES.get(name)
    if found is None:
        raise ProgramError(f"unknown element type {name!r}; known are {', '.join(DTYPES)}")
    return found


def item_size(name: str) -> int:
    """Bytes of one arena item (1, 2, 4 or 8) of the element type ``name``; a complex128 element takes two 8-byte items."""
    return min(8, dtype_of(name).itemsize)
