"""What an op is: the record every op family fills in, the table it goes to, and helpers that shape rules share."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from graph_kernel.ir import Origin, Value
from symbolic import Dim, Scope, eq
from vm.errors import CompileError

Type = tuple[tuple[Dim, ...], np.dtype]
Attrs = dict[str, Any]
Infer = Callable[[Scope, tuple[Value, ...], Attrs, Origin], list[Type]]
Evaluate = Callable[[list[np.ndarray], Attrs], list[np.ndarray]]
ValueRule = Callable[[Scope, list[np.ndarray], Attrs], "np.ndarray | None"]

bfloat16 = np.dtype(ml_dtypes.bfloat16)
float16 = np.dtype(np.float16)
float32 = np.dtype(np.float32)
HALF = (float16, bfloat16)


class Pattern(enum.Enum):
    """How an op moves data, which is all that fusion asks of it."""

    ELEMENTWISE = "elementwise"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    MATMUL = "matmul"
    VIEW = "view"
    SHAPE = "shape"
    CONTROL = "control"
    HOST = "host"
    COMPOSITE = "composite"  # stands for its body until it is expanded; fusion never sees one


@dataclass(frozen=True)
class OpDef:
    """One op of the graph IR.

    ``infer(scope, inputs, attrs, origin)`` gives the type of each output and raises ``CompileError``; what it cannot
    prove becomes a launch check of the scope. ``evaluate(arrays, attrs)`` is the meaning, in NumPy, with every dimension
    in ``attrs`` replaced by its size and every sub-graph by a callable. ``value_rule(scope, values, attrs)`` carries
    the entries of small integer tensors symbolically: an object array of dims, ``None`` where an entry is unknown.
    """

    name: str
    pattern: Pattern
    n_inputs: int | None  # None: any number
    infer: Infer
    evaluate: Evaluate
    value_rule: ValueRule | None = None
    chip: bool = True  # False: computed by the host function named ``host``
    host: str = ""
    doc: str = ""


OPS: dict[str, OpDef] = {}


def register(op: OpDef) -> OpDef:
    """Puts ``op`` into the table; a name can be taken once."""
    if op.name in OPS:
        raise ValueError(f"op {op.name!r} is defined twice")
    OPS[op.name] = op
    return op


CHIP_DTYPES = frozenset(
    ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32"]
)


def on_chip(op: str, dtypes: Sequence[np.dtype]) -> bool:
    """Whether the NPU can run ``op`` on operands and results of these dtypes: float64, complex and what is narrower than a byte or a
    16-bit float are the host's."""
    return OPS[op].chip and all(d.name in CHIP_DTYPES for d in dtypes)


def is_float(dtype: np.dtype) -> bool:
    """True for the floating-point dtypes, bfloat16 and the float8 family included."""
    return dtype.kind == "f" or (dtype.kind == "V" and dtype.names is None)


def is_int(dtype: np.dtype) -> bool:
    """True for signed and unsigned integers (not bool)."""
    return dtype.kind in "iu"


def fail(origin: Origin, message: str) -> CompileError:
    """A ``CompileError`` that starts with where the op came from."""
    prefix = f"{origin}: " if str(origin) else ""
    return CompileError(prefix + message)


def shape_text(shape: Sequence[Dim]) -> str:
    """``[b, s, 4]``."""
    return "[" + ", ".join(map(str, shape)) + "]"


def same_dim(scope: Scope, a: Dim, b: Dim, origin: Origin, what: str) -> Dim:
    """The one size that ``a`` and ``b`` both have; equality that is not proved becomes a launch check.

    Returns the constant one when either is constant, else ``a``.
    """
    if isinstance(a, int) and isinstance(b, int) and a != b:
        raise fail(origin, f"{what} have sizes {a} and {b}, which must be equal")
    if a != b:
        scope.require(eq(a, b), str(origin), f"{what} must have equal sizes, {a} == {b}")
    return b if isinstance(b, int) else a


def same_shape_of(scope: Scope, values: Sequence[Value], origin: Origin, what: str) -> tuple[Dim, ...]:
    """The common shape of ``values``; differing ranks are an error, unproved sizes launch checks."""
    shape = values[0].shape
    for other in values[1:]:
        if len(other.shape) != len(shape):
            raise fail(
                origin, f"{what} have shapes {shape_text(shape)} and {shape_text(other.shape)}, of different rank"
            )
        shape = tuple(same_dim(scope, a, b, origin, what) for a, b in zip(shape, other.shape, strict=True))
    return shape


def check_axis(axis: int, rank: int, origin: Origin) -> int:
    """``axis`` if it is in [0, rank)."""
    if not 0 <= axis < rank:
        raise fail(origin, f"axis {axis} is not an axis of a tensor of rank {rank}")
    return axis


def widen(x: np.ndarray) -> np.ndarray:
    """float16 and bfloat16 as float32, others unchanged: 16-bit floats are computed in float32 and rounded per op."""
    return x.astype(np.float32) if x.dtype in HALF else x


def static_shape(shape: Sequence[Dim]) -> tuple[int, ...] | None:
    """The shape as ints, or None if a dimension is symbolic."""
    out: list[int] = []
    for d in shape:
        if not isinstance(d, int):
            return None
        out.append(d)
    return tuple(out)


def entrywise(fn: Callable[..., Any], *values: np.ndarray) -> np.ndarray:
    """Applies ``fn`` to the entries of equally shaped object arrays; an unknown entry (None) makes the result unknown."""
    out = np.empty(values[0].shape, dtype=object)
    for index in np.ndindex(*values[0].shape):
        entries = [v[index] for v in values]
        out[index] = None if any(e is None for e in entries) else fn(*entries)
    return out
