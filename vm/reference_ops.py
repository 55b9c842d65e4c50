"""What each instruction does in the reference executor: its operands and result are in local memory, its meaning in ``vm.semantics``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from vm import isa, semantics
from vm.reference_memory import Fault

if TYPE_CHECKING:
    from vm.decode import Tile
    from vm.reference_core import Execution


def execute(x: Execution) -> None:
    """Runs one instruction."""
    insn = x.ready.insn
    handler = _BY_NAME.get(insn.name) or _BY_FAMILY.get(insn.family)
    if handler is None:
        raise Fault("mismatch", f"{insn.name} has no meaning outside of the loop structure")
    try:
        handler(x)
    except (ValueError, IndexError, TypeError, KeyError) as error:
        raise Fault("mismatch", f"operands do not fit: {error}") from error


# --- memory ----------------------------------------------------------------------------------------------------------------------
def positions(x: Execution, tile: Tile) -> tuple[np.ndarray, np.ndarray]:
    """Element offsets of a tile in its buffer (int64), and which of them are inside the bounds of bounded terms."""
    shape = x.shape(tile)
    rank = len(shape)
    total = np.full([1] * rank, x.field("offset"), np.int64)
    inside = np.ones([1] * rank, bool)
    pos, gathers = np.zeros([1] * rank, np.int64), False
    for t in x.ready.tail:
        if t["gather"]:
            index = x.read(t["index"]).astype(np.int64)
            pos = pos + t["step"] * index.reshape([n if t["mask"] >> d & 1 else 1 for d, n in enumerate(shape)])
            gathers = True
        elif t["dim"] != isa.NO_DIM:
            if t["dim"] >= rank:
                raise Fault("mismatch", f"a term names dim {t['dim']} of a tile of rank {rank}")
            i = x.index(tile, t["dim"]) // max(t["div"], 1)
            pos = pos + t["step"] * (i % t["mod"] if t["mod"] else i)
        if t["chain"]:
            continue
        pos = pos + t["start"]
        if t["bounded"]:
            inside = inside & (pos >= 0) & (pos < t["hi"])
        if t["bounded"] or gathers:
            pos = np.clip(pos, 0, max(t["hi"] - 1, 0))
        total = total + pos * t["stride"]
        pos, gathers = np.zeros([1] * rank, np.int64), False
    return np.broadcast_to(total, shape), np.broadcast_to(inside, shape)


def _checked(x: Execution, at: np.ndarray, verb: str) -> np.ndarray:
    """Item numbers in the arena of element offsets, all of which must be inside the buffer."""
    region = x.ready.region
    assert region is not None
    if len(at) and (int(at.min()) < 0 or int(at.max()) >= region.elements):
        bad = int(at.min()) if int(at.min()) < 0 else int(at.max())
        raise Fault("out-of-bounds", f"{verb} element {bad} of {region.name}, which has {region.elements}")
    return at + region.start


def _load(x: Execution) -> None:
    region, tile = x.ready.region, x.tile(x.field("dst"))
    assert region is not None
    if region.arena.item != tile.dtype.itemsize:
        raise Fault("mismatch", f"{region.name} of {region.dtype} is loaded as {tile.dtype}")
    at, inside = positions(x, tile)
    out = np.full(at.shape, isa.imm_value(x.field("fill"), tile.dtype), tile.dtype)
    items = _checked(x, at[inside], "loads")
    out[inside] = region.arena.load(items, tile.dtype, x.access, region.name)
    undefined = None
    defined = region.arena.defined(items, region.owner)
    if not defined.all():
        undefined = np.zeros(at.shape, bool)
        undefined[inside] = ~defined
    x.write("dst", out, undefined)


def _store(x: Execution) -> None:
    region, tile = x.ready.region, x.tile(x.field("x"))
    assert region is not None
    if not region.writable:
        raise Fault("read-only", f"stores into {region.name}")
    if region.arena.item != tile.dtype.itemsize:
        raise Fault("mismatch", f"{tile.dtype} is stored into {region.name} of {region.dtype}")
    value, undefined = x.peek("x")
    at, inside = positions(x, tile)
    items = _checked(x, at[inside], "stores to")
    if x.task.stores:
        written = True if undefined is None else ~undefined[inside]
        if not x.field("add"):
            region.arena.store(items, value[inside], x.access, region.name, written, region.owner)
        elif undefined is not None or not region.arena.defined(items, region.owner).all():
            raise Fault(
                "uninitialised read", f"adds elements that nothing has written, or to such elements of {region.name}"
            )
        else:
            region.arena.add(items, value[inside], x.access, region.name)


# --- movement ----------------------------------------------------------------------------------------------------------------------
def _shape(x: Execution) -> list[int]:
    return x.shape(x.tile(x.field("dst")))


def _dtype(x: Execution) -> np.dtype:
    return x.tile(x.field("dst")).dtype


def _fill(x: Execution) -> None:
    x.write("dst", np.full(_shape(x), isa.imm_value(x.field("imm"), _dtype(x))))


def _iota(x: Execution) -> None:
    tile = x.tile(x.field("dst"))
    i = x.index(tile, x.field("dim")) // max(x.field("div"), 1)
    value = x.field("start") + x.field("step") * (i % x.field("mod") if x.field("mod") else i)
    x.write("dst", semantics.cast(x.ns, np.broadcast_to(value, x.shape(tile)), tile.dtype))


def _copy(x: Execution) -> None:
    x.move(["x"], lambda value: value.reshape(_shape(x)))


def _bcast(x: Execution) -> None:
    x.move(["x"], lambda value: semantics.bcast(x.ns, value, _shape(x), x.field("mask")))


def _permute(x: Execution) -> None:
    x.move(["x"], lambda value: np.transpose(value, [x.field("perm") >> (4 * d) & 15 for d in range(value.ndim)]))


def _extract(x: Execution) -> None:
    dim = x.field("dim")
    at = x.field("start") + x.field("step") * np.arange(_shape(x)[dim])
    n = x.shape(x.tile(x.field("x")))[dim]
    if len(at) and (at.min() < 0 or at.max() >= n):
        raise Fault("out-of-bounds", f"extracts index {at.max() if at.min() >= 0 else at.min()} of {n}")
    x.move(["x"], lambda value: np.take(value, at, axis=dim))


def _join(x: Execution) -> None:
    x.move([t["x"] for t in x.ready.tail], lambda *parts: np.concatenate(parts, x.field("dim")))


def _cast(x: Execution) -> None:
    x.write("dst", semantics.cast(x.ns, x.read("x"), _dtype(x)))


def _lookup(x: Execution) -> None:
    x.write("dst", semantics.lookup(x.ns, x.read("x"), x.read("y"), x.field("dim")))


# --- computation -------------------------------------------------------------------------------------------------------------------
def _unary(x: Execution) -> None:
    x.write("dst", semantics.unary(x.ns, x.ready.insn.name, x.read("x")))


def _binary(x: Execution) -> None:
    x.write("dst", semantics.binary(x.ns, x.ready.insn.name, x.read("x"), x.read("y")))


def _select(x: Execution) -> None:
    p = x.read("p")
    x.move(["x", "y"], lambda a, b: semantics.select(x.ns, p, a, b))


def _reduce(x: Execution) -> None:
    kind, value = x.ready.insn.name.removeprefix("reduce_"), x.read("x")
    out = semantics.reduce(x.ns, kind, value, tuple(d for d in range(value.ndim) if x.field("mask") >> d & 1))
    if x.field("accumulate"):
        out = semantics.combine(x.ns, kind, x.read("dst"), out)
    x.write("dst", out)


def _arg_reduce(x: Execution) -> None:
    kind, dim = x.ready.insn.name.removeprefix("arg"), x.field("dim")
    tile = x.tile(x.field("x"))
    index, value = semantics.arg_reduce(x.ns, kind, x.read("x"), dim)
    axis = tile.dims[dim][1]
    index = (index + (0 if axis == isa.NO_AXIS else x.task.axes[axis][0])).astype(_dtype(x))
    if x.field("accumulate"):
        index, value = semantics.better(x.ns, kind, index, value, x.read("dst"), x.read("y"))
    x.write("dst", index)
    x.write("y", value)


def _cumulative(x: Execution) -> None:
    value, dim = x.read("x"), x.field("dim")
    carry = x.read("y") if x.field("carry") else None
    if carry is not None and (x.field("reverse") or x.ready.insn.name not in semantics.SCANNED):
        raise Fault("mismatch", f"{x.ready.insn.name} cannot carry over steps")
    out = semantics.cumulative(x.ns, x.ready.insn.name, value, dim, bool(x.field("reverse")), carry)
    if carry is not None:
        x.write("y", np.take(out, [value.shape[dim] - 1], axis=dim).astype(value.dtype))
    x.write("dst", out.astype(value.dtype))


def _mmad(x: Execution) -> None:
    out = semantics.product(x.ns, x.read("x"), x.field("xdims"), x.read("y"), x.field("ydims"), _dtype(x))
    if x.field("accumulate"):
        out = x.read("dst") + out
    x.write("dst", out)


_BY_NAME: dict[str, Callable[[Execution], None]] = {
    "load": _load, "store": _store, "fill": _fill, "iota": _iota, "copy": _copy, "bcast": _bcast, "permute": _permute,
    "extract": _extract, "join": _join, "cast": _cast, "lookup": _lookup, "mmad": _mmad,
}  # fmt: skip
_BY_FAMILY: dict[str, Callable[[Execution], None]] = {
    "unary": _unary, "binary": _binary, "select": _select, "reduce": _reduce, "argreduce": _arg_reduce, "cumulative": _cumulative,
}  # fmt: skip
