"""A value of the ONNX graph while it is converted: data in the graph, a constant, or numbers known as dimensions.

Exporters compute shapes with ordinary ops (Shape, Gather, Concat, ...). A small tensor whose elements are known as
dimensions is kept as such and gets a node of the graph only when an op really needs it as data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import symbolic
from graph_kernel.ir import Shape, Value

if TYPE_CHECKING:
    from graph_kernel.from_onnx.builder import Builder
    from symbolic import Dim

KNOWN_LIMIT = 64  # elements; a tensor that computes shapes is never longer than a few ranks


@dataclass(frozen=True)
class Ratio:
    """The exact number num/den (den >= 1): a dimension that an exporter has cast to float to scale it."""

    num: Dim
    den: int = 1


@dataclass(eq=False)
class Tensor:
    """One ONNX value. At least one of ``value``, ``array`` and ``elements`` is set.

    elements: object array of the tensor's shape; integers and bools (as 0/1) are ints or dimensions, floats are
        Python floats or ``Ratio``.
    items: the members, if this is an ONNX sequence (then the other fields mean nothing).
    """

    shape: Shape
    dtype: np.dtype
    value: Value | None = None
    owner: Builder | None = None
    array: np.ndarray | None = None
    elements: np.ndarray | None = None
    items: list[Tensor] | None = None

    @classmethod
    def of(cls, value: Value, owner: Builder) -> Tensor:
        """A tensor that lives in ``owner``'s graph."""
        return cls(value.shape, value.dtype, value=value, owner=owner)

    @classmethod
    def const(cls, array: np.ndarray) -> Tensor:
        """A constant."""
        return cls(tuple(array.shape), array.dtype, array=array)

    @classmethod
    def sym(cls, elements: np.ndarray, dtype: Any) -> Tensor:
        """A tensor known element by element; a constant if every element is a plain number."""
        dtype = np.dtype(dtype)
        if not any(_is_symbolic(e) for e in elements.flat):
            flat = [_plain(e) for e in elements.flat]
            return cls.const(_wrapped(flat, dtype).reshape(elements.shape))
        return cls(tuple(elements.shape), dtype, elements=elements)

    @classmethod
    def sequence(cls, items: list[Tensor]) -> Tensor:
        """An ONNX sequence whose length is known."""
        return cls((), np.dtype(object), items=items)

    @property
    def known(self) -> np.ndarray | None:
        """The elements as an object array if they are known and few, else None."""
        if self.elements is None and self.array is not None and self.array.size <= KNOWN_LIMIT:
            if self.array.dtype.kind not in "iubf":
                return None
            convert = float if self.array.dtype.kind == "f" else int
            self.elements = object_array([convert(e) for e in self.array.flat], self.array.shape)
        return self.elements


def object_array(items: list[Any], shape: tuple[int, ...]) -> np.ndarray:
    """An object array with exactly these elements (NumPy never looks inside them)."""
    out = np.empty(len(items), dtype=object)
    for i, item in enumerate(items):
        out[i] = item
    return out.reshape(shape)


def _is_symbolic(element: Any) -> bool:
    if isinstance(element, Ratio):
        return not isinstance(element.num, int)
    return not isinstance(element, (int, float))


def _plain(element: Any) -> int | float:
    if not isinstance(element, Ratio):
        return element
    return symbolic.evaluate(element.num, {}) / element.den


def _wrapped(flat: list[Any], dtype: np.dtype) -> np.ndarray:
    """Numbers as ``dtype``; integers wrap around as the op itself would have done."""
    if dtype.kind not in "iu":
        return np.array(flat, dtype=dtype)
    bits = dtype.itemsize * 8
    low = -(1 << (bits - 1)) if dtype.kind == "i" else 0
    return np.array([(e - low) % (1 << bits) + low for e in flat], dtype=dtype)
