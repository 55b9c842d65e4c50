"""What a hand-written kernel is called with: dtypes, handles of arguments, and sizes that change between runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from vm.errors import CompileError, InputError

float16 = np.dtype(np.float16)
bfloat16 = np.dtype(ml_dtypes.bfloat16)
float32 = np.dtype(np.float32)
int32 = np.dtype(np.int32)
int64 = np.dtype(np.int64)
bool_ = np.dtype(np.bool_)

_NAMES = {"bool_": bool_, "bool": bool_, "bfloat16": bfloat16}


def as_dtype(dtype: Any) -> np.dtype:
    """``dtype`` (an object or a name such as ``"float16"``) as a NumPy dtype. Raises ``CompileError`` unless the chip has it."""
    from graph_kernel.ops.base import CHIP_DTYPES

    try:
        found = _NAMES[dtype] if isinstance(dtype, str) and dtype in _NAMES else np.dtype(dtype)
    except TypeError:
        raise CompileError(f"{dtype!r} is not a dtype; use dvm.float32 or its name, 'float32'") from None
    if found.name not in CHIP_DTYPES:
        raise CompileError(f"the chip has no {found}; it has {', '.join(sorted(CHIP_DTYPES))}")
    return found


def number_dtype(number: Any) -> np.dtype:
    """The dtype of a number given as a run-time scalar: a NumPy scalar's own; float32, bool, or int32 and int64 where that is too small."""
    if isinstance(number, np.generic):
        return as_dtype(number.dtype)
    if isinstance(number, bool):
        return bool_
    if isinstance(number, float):
        return float32
    return int32 if -(2**31) <= number < 2**31 else int64


def is_number(value: Any) -> bool:
    """Whether ``value`` is a Python or NumPy number."""
    return isinstance(value, (bool, int, float, np.bool_, np.integer, np.floating, ml_dtypes.bfloat16))


class IntArray:
    """Sizes that a kernel refers to: they are read at every run, so that changing them changes the next run and compiles nothing.

    Entries are whole numbers of at least 0; their count is fixed. Used as a shape, or by entry, after ``k.int_array(ref)``.
    """

    def __init__(self, values: Iterable[int]) -> None:
        self.values = list(values)
        sizes(self, "IntArray")

    def __setitem__(self, index: Any, value: Any) -> None:
        count = len(self.values)
        changed = list(self.values)
        changed[index] = value
        if len(changed) != count:
            raise InputError(f"an IntArray keeps its number of entries, {count}; got {len(changed)}")
        self.values = changed

    def __getitem__(self, index: Any) -> Any:
        return self.values[index]

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[int]:
        return iter(self.values)

    def __repr__(self) -> str:
        return f"IntArray({self.values})"


def sizes(values: Any, name: str, count: int | None = None) -> tuple[int, ...]:
    """``values`` as sizes. Raises ``InputError`` for a wrong count, and entries that are no whole numbers or negative."""
    try:
        found = tuple(v if isinstance(v, bool) else v.__index__() for v in values)
    except (TypeError, AttributeError):
        raise InputError(f"{name}: expected whole numbers, got {values!r}") from None
    if count is not None and len(found) != count:
        raise InputError(f"{name}: expected {count} sizes, got {len(found)}: {list(found)}")
    for number in found:
        if isinstance(number, bool) or number < 0:
            raise InputError(f"{name}: a size is a whole number of at least 0, got {number} in {list(found)}")
    return found


@dataclass(frozen=True)
class Argument:
    """The handle of one argument, in a kernel function that takes handles.

    ``form`` is ``array``, ``number`` or ``sizes``. ``shape`` is known in static kernels only. ``count`` is the number of sizes.
    """

    name: str
    form: str
    dtype: np.dtype | None = None
    rank: int = 0
    shape: tuple[int, ...] | None = None
    count: int = 0

    @classmethod
    def of(cls, name: str, value: Any, dynamic: bool) -> Argument:
        """The handle for an argument like ``value``; equal handles can share a compiled kernel. Raises ``InputError``."""
        if is_number(value):
            return cls(name, "number", number_dtype(value))
        if isinstance(value, (list, tuple, IntArray)):
            return cls(name, "sizes", count=len(sizes(value, f"argument {name!r}")))
        if not hasattr(value, "dtype") or not hasattr(value, "shape"):
            raise InputError(
                f"argument {name!r}: expected an array, a number or a list of sizes, got a {type(value).__name__}"
            )
        return cls(
            name, "array", np.dtype(value.dtype), len(value.shape), None if dynamic else tuple(map(int, value.shape))
        )

    def __repr__(self) -> str:
        if self.form == "sizes":
            return f"<argument {self.name}: {self.count} sizes>"
        return f"<argument {self.name}: {self.dtype}{f' of rank {self.rank}' if self.form == 'array' else ''}>"
