"""What the interpreter's image can do to a chunk of lanes: its operations by name, with bodies from ``vm.semantics``.

The image computes in *carriers*: element types of at most 32 bits live in int32 words (floats by their float32 bits, 16-bit floats as
float32 values, bools as 0 and 1), 64-bit integers in int64 words. A class says how a word is read: ``f`` float32, ``i`` int32, ``u``
uint32, ``b`` bool, ``I`` int64, ``U`` uint64. Types narrower than their class are brought back by a ``narrow`` operation, which rounds or
wraps exactly as an instruction on the type itself would.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from vm import isa, semantics

Array = Any

CHUNK = 2048  # lanes that one operation handles at a time: what stays in the first-level cache

CLASSES: dict[str, np.dtype] = {
    "f": np.dtype(np.float32),
    "i": np.dtype(np.int32),
    "u": np.dtype(np.uint32),
    "b": np.dtype(np.bool_),
    "I": np.dtype(np.int64),
    "U": np.dtype(np.uint64),
}
WIDE = ("I", "U")
NARROW: tuple[np.dtype, ...] = tuple(
    np.dtype(d) for d in (np.int8, np.uint8, np.int16, np.uint16, np.float16, ml_dtypes.bfloat16)
)

# Fields of a row of the table (int64 each). An operation runs ``N1`` rows of ``N0`` chunks; chunk j of row i starts at
# ``DST + i * D1 + j * D0`` and likewise for the operands. ``A + sum(COEF[k] * axis[k])`` is the row's scalar: an address or an index.
# ``T`` is a place in the table memory. Control, after the operation: axis[AX] grows by ADD; below END the table continues at TARGET,
# else axis[AX] becomes AFTER.
(
    KIND, OP, N0, N1, DST, D0, D1, X, X0, X1, Y, Y0, Y1, Z, Z0, Z1, A, T, LEN, P0, P1, P2, P3, COEF,
) = range(24)  # fmt: skip
AXES = 16
AX, ADD, END, AFTER, TARGET = range(COEF + AXES, COEF + AXES + 5)
FIELDS = 48

HALT, NONE, INTO32, INTO64, STORE32, STORE64, SCATTER32, SCATTER64, MMAD_F, MMAD_I, MMAD_L = range(11)
OUTSIDE = -(1 << 58)  # added to a position that is outside of its bounds: no sum of them reaches 0 again


class View:
    """The memories and the row that an operation sees, at chunk j of row i."""

    def __init__(self, memory: dict[str, Array], row: Array, scalar: Array, i: Array, j: Array) -> None:
        self.memory, self.row, self.scalar, self.i, self.j = memory, row, scalar, i, j

    def at(self, base: int) -> Array:
        """Where the operand with its base in field ``base`` starts."""
        r = self.row
        return r[base] + self.i * r[base + 2] + self.j * r[base + 1]

    def words(self, base: int, wide: bool) -> Array:
        """A chunk of an operand, as carrier words."""
        return lax.dynamic_slice(self.memory["lm64" if wide else "lm"], (self.at(base),), (CHUNK,))

    def read(self, base: int, cls: str) -> Array:
        """A chunk of an operand, as values of a class."""
        return from_words(self.words(base, cls in WIDE), cls)

    def table(self) -> Array:
        """A chunk of the table at ``T``."""
        return lax.dynamic_slice(self.memory["tm"], (self.row[T] + self.j * CHUNK,), (CHUNK,))

    def row_offset(self) -> Array:
        """The table's entry for row i."""
        return self.memory["tm"][self.row[T] + self.i]

    def inside(self) -> Array:
        """Which lanes of the chunk belong to the row."""
        return jnp.arange(CHUNK, dtype=jnp.int64) < self.row[LEN] - self.j * CHUNK


def from_words(words: Array, cls: str) -> Array:
    """Carrier words as values of a class."""
    if cls == "b":
        return words != 0
    return words if cls in ("i", "I") else lax.bitcast_convert_type(words, CLASSES[cls])


def to_words(x: Array) -> Array:
    """Values of any element type as carrier words."""
    if x.dtype in (np.int32, np.int64):
        return x
    if x.dtype == np.uint64:
        return lax.bitcast_convert_type(x, jnp.int64)
    if x.dtype == np.uint32:
        return lax.bitcast_convert_type(x, jnp.int32)
    if x.dtype.kind in "iub":
        return x.astype(jnp.int32)
    return lax.bitcast_convert_type(x.astype(jnp.float32), jnp.int32)


@dataclass(frozen=True)
class Operations:
    """The operations whose results are 32-bit words, and those whose results are 64-bit words, by name."""

    into32: dict[str, Callable[[View], Array]]
    into64: dict[str, Callable[[View], Array]]


# Where unsigned words give another result than signed ones.
_UNSIGNED = frozenset(
    ("div", "rem", "max", "min", "shift_right_logical", "shift_right_arithmetic", "lt", "le", "gt", "ge", "sign")
)
_INTEGER_UNARY = ("neg", "abs", "sign", "square", "not", "is_nan", "is_inf")
_COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")
_FLOAT_BINARY = ("add", "sub", "mul", "div", "rem", "pow", "max", "min", "atan2", *_COMPARE)
_INTEGER_BINARY = tuple(n for n in isa.BINARY if n != "atan2")
_PREDICATES = ("is_finite", "is_nan", "is_inf")


def elementwise(name: str, cls: str) -> str:
    """The operation for an elementwise instruction on a class, such as ``f.add``: unsigned classes share what is equal."""
    if cls in "uU" and name not in _UNSIGNED:
        cls = {"u": "i", "U": "I"}[cls]
    if cls == "b" and name != "not":
        cls = "i"
    return f"{cls}.{name}"


def build() -> Operations:
    """All operations, in a fixed order: their numbers are part of the image."""
    into32: dict[str, Callable[[View], Array]] = {}
    into64: dict[str, Callable[[View], Array]] = {}
    ns = semantics.JaxNamespace()
    for cls in CLASSES:
        names: tuple[str, ...] = _INTEGER_UNARY + _INTEGER_BINARY
        if cls == "f":
            names = tuple(n for n in isa.UNARY if n != "not") + _FLOAT_BINARY
        for name in names:
            if elementwise(name, cls) == f"{cls}.{name}":
                body = _unary(ns, name, cls) if name in isa.UNARY else _binary(ns, name, cls)
                predicate = name in _COMPARE or name in _PREDICATES
                (into64 if cls in WIDE and not predicate else into32)[f"{cls}.{name}"] = body
        if cls == "b":
            continue
        for kind in ("sum", "prod", "max", "min", "and", "or"):
            if (kind in ("and", "or") and cls == "f") or (cls in "uU" and kind not in ("max", "min")):
                continue
            (into64 if cls in WIDE else into32)[f"{cls}.reduce_{kind}"] = _row_reduce(ns, kind, cls)
        for kind in ("max", "min"):
            into32[f"{cls}.better_{kind}"] = _better(ns, kind, cls)
        into32[f"{cls}.match"] = _match(cls)
    into32["f.logaddexp"] = lambda v: to_words(jnp.logaddexp(v.read(X, "f"), v.read(Y, "f")))
    for dtype in NARROW:
        into32[f"narrow.{dtype}"] = _narrow(dtype)
    _casts(ns, into32, into64)
    for out, memory, wide in ((into32, "", False), (into64, "64", True)):
        _moves(out, memory, wide)
    _positions(into64)
    return Operations(into32, into64)


def _unary(ns: Any, name: str, cls: str) -> Callable[[View], Array]:
    return lambda v: to_words(semantics.unary(ns, name, v.read(X, cls)))


def _binary(ns: Any, name: str, cls: str) -> Callable[[View], Array]:
    return lambda v: to_words(semantics.binary(ns, name, v.read(X, cls), v.read(Y, cls)))


def _row_reduce(ns: Any, kind: str, cls: str) -> Callable[[View], Array]:
    """One chunk of a row joins the row's result, which fills the whole result chunk: its first lane is what counts."""

    def run(v: View) -> Array:
        x = jnp.where(v.inside(), v.read(X, cls), isa.identity(kind, CLASSES[cls]))
        lanes = lax.optimization_barrier(semantics.reduce(ns, kind, x.reshape(-1, 128), (0,)))
        here = semantics.reduce(ns, kind, lanes, (0,))
        memory = v.memory["lm64" if cls in WIDE else "lm"]
        old = from_words(lax.dynamic_slice(memory, (v.at(DST),), (1,)), cls)[0]
        here = jnp.where(v.j == 0, here, semantics.combine(ns, kind, old, here))
        return to_words(jnp.full((CHUNK,), here))

    return run


def _match(cls: str) -> Callable[[View], Array]:
    """Where x is y, or both are NaN."""

    def run(v: View) -> Array:
        x, y = v.read(X, cls), v.read(Y, cls)
        return to_words((x == y) | ((x != x) & (y != y)))

    return run


_LAST = np.int32(np.iinfo(np.int32).max)


def _better(ns: Any, kind: str, cls: str) -> Callable[[View], Array]:
    """Where x, found later, beats the old y with index z (see ``semantics.better``)."""

    def run(v: View) -> Array:
        new, old = jnp.full((CHUNK,), _LAST), v.read(Z, "i")
        pick, _ = semantics.better(ns, kind, new, v.read(X, cls), old, v.read(Y, cls))
        return to_words(pick == _LAST)

    return run


def _narrow(dtype: np.dtype) -> Callable[[View], Array]:
    cls = "i" if dtype.kind in "iu" else "f"
    return lambda v: to_words(v.read(X, cls).astype(dtype))


def cast_name(source: str, target: np.dtype) -> str | None:
    """The operation that converts a class to an element type (float to 16-bit float and integer to narrow integer: a ``narrow``); None:
    the words stay as they are."""
    target = np.dtype(target)
    if target == np.bool_:
        return None if source == "b" else f"cast.{source}.bool"
    source = "i" if source == "b" else source
    if target.kind in "iu":
        if source == "f":
            return f"cast.f.{target}"
        if target.itemsize == 8:
            return None if source in WIDE else f"cast.{source}.int64"
        if source in WIDE:
            return "cast.I.int32"
        return None
    return None if source == "f" else f"cast.{source}.float32"


def _casts(ns: Any, into32: dict[str, Callable[[View], Array]], into64: dict[str, Callable[[View], Array]]) -> None:
    def cast(source: str, target: np.dtype) -> Callable[[View], Array]:
        return lambda v: to_words(semantics.cast(ns, v.read(X, source), target))

    for source in ("f", "i", "u", "I", "U"):
        for target in isa.DTYPES:
            name = cast_name(source, target)
            if name is None or name in into32 or name in into64:
                continue
            real = np.dtype(name.split(".")[2])
            (into64 if real.itemsize == 8 else into32)[name] = cast(source, real)


def _moves(out: dict[str, Callable[[View], Array]], suffix: str, wide: bool) -> None:
    """Moves between places of one memory and from global memory."""
    local, device = f"lm{suffix}", f"gm{suffix}"
    dtype = jnp.int64 if wide else jnp.int32

    def piece(memory: Array, at: Array) -> Array:
        return lax.dynamic_slice(memory, (at,), (CHUNK,))

    def row(v: View) -> Array:
        return piece(v.memory[local], v.at(X) + v.row_offset())

    def gather(memory: Array, at: Array) -> Array:
        return memory.at[at].get(mode="clip")

    def lookup(v: View) -> Array:
        index = v.words(Y, False).astype(jnp.int64)
        return gather(v.memory[local], v.row[X] + v.table() + jnp.clip(index, 0, v.row[P0]) * v.row[P1])

    def loaded(v: View) -> Array:
        at = v.words(Y, True)
        return jnp.where(at < 0, v.row[P0].astype(dtype), gather(v.memory[device], at))

    prefix = "wide." if wide else ""
    out[f"{prefix}row"] = row
    out[f"{prefix}row_inside"] = lambda v: jnp.where(v.inside(), row(v), v.words(DST, wide))
    out[f"{prefix}splat"] = lambda v: jnp.full((CHUNK,), v.memory[local][v.at(X) + v.row_offset()])
    out[f"{prefix}gather"] = lambda v: gather(v.memory[local], v.row[X] + v.table())
    out[f"{prefix}lookup"] = lookup
    out[f"{prefix}fill"] = lambda v: jnp.full((CHUNK,), v.scalar.astype(dtype))
    out[f"{prefix}select"] = lambda v: jnp.where(v.read(Z, "b"), v.words(X, wide), v.words(Y, wide))
    out[f"{prefix}load"] = lambda v: piece(v.memory[device], v.scalar + v.row_offset() + v.j * CHUNK)
    out[f"{prefix}load_splat"] = lambda v: jnp.full((CHUNK,), v.memory[device][v.scalar + v.row_offset()])
    out[f"{prefix}load_table"] = lambda v: gather(v.memory[device], v.scalar + v.table())
    out[f"{prefix}load_at"] = loaded


def _positions(into64: dict[str, Callable[[View], Array]]) -> None:
    """Positions in global memory, put together term by term (see ``isa.TERM``)."""

    def term(v: View) -> Array:
        i = v.scalar + v.table()
        i = i // jnp.maximum(v.row[P1], 1)
        i = jnp.where(v.row[P2] == 0, i, i % jnp.maximum(v.row[P2], 1))
        return v.words(Y, True) + i * v.row[P0]

    def indexed(wide: bool) -> Callable[[View], Array]:
        def run(v: View) -> Array:
            index = v.memory["lm64" if wide else "lm"].at[v.row[X] + v.table()].get(mode="clip")
            return v.words(Y, True) + index.astype(jnp.int64) * v.row[P0]

        return run

    def close(v: View) -> Array:
        """Position z of the access and position y along one source dim (size P0, stride P1; P2: bounded, P3: clamped) added up."""
        at = v.words(Y, True)
        ok = (v.row[P2] == 0) | ((at >= 0) & (at < v.row[P0]))
        inside = jnp.clip(at, 0, jnp.maximum(v.row[P0] - 1, 0))
        at = jnp.where(v.row[P3] == 0, at, inside) * v.row[P1]
        return v.words(Z, True) + jnp.where(ok, at, OUTSIDE)

    into64["at.table"] = lambda v: v.scalar + v.table()
    into64["at.term"] = term
    into64["at.index"] = indexed(False)
    into64["at.index64"] = indexed(True)
    into64["at.close"] = close
