"""Global memory in the interpreter: which elements the terms of a load or store name, as rows, tables or positions.

Where a block begins is linear in the loops' axes and goes into the row's scalar. What is the same in every block is a table that is made
here. What is neither (a division of an index that moves, a lookup, a bound) is computed by the image, term by term.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vm import interpreter_ops as io
from vm import isa
from vm.decode import Address, Op
from vm.errors import Unfit
from vm.interpreter_ops import CHUNK

if TYPE_CHECKING:
    from vm.interpreter_code import Local, Place, _Planner
    from vm.interpreter_lower import Lowering

STORE_RUN = 8  # shorter runs are stored element by element


def strides_of(sizes: Sequence[int]) -> list[int]:
    """Row-major strides."""
    out = [1] * len(sizes)
    for d in range(len(sizes) - 2, -1, -1):
        out[d] = out[d + 1] * sizes[d + 1]
    return out


def collapse(sizes: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """(size, stride) of the dims that are left when those of size 1 go and neighbours that continue each other join."""
    out: list[tuple[int, int]] = []
    for n, s in zip(sizes, strides, strict=True):
        if n == 1:
            continue
        if out and out[-1][1] == s * n:
            out[-1] = (out[-1][0] * n, s)
        else:
            out.append((n, s))
    return out


def lattice(sizes: Sequence[int], strides: Sequence[int]) -> np.ndarray:
    """All sums of index * stride in row-major order, int64."""
    return outer_sum([np.arange(n, dtype=np.int64) * s for n, s in zip(sizes, strides, strict=True)])


def outer_sum(parts: Sequence[np.ndarray]) -> np.ndarray:
    """All sums of one element of each part, in row-major order."""
    total = np.zeros(1, np.int64)
    for part in parts:
        total = (total[:, None] + part[None, :]).reshape(-1)
    return total


@dataclass
class Moving:
    """Positions along one source dim that only the image can compute."""

    start: int
    stride: int
    hi: int
    bounded: bool
    clamped: bool
    terms: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Resolved:
    """An access of a buffer: scalar base (``const``, with the buffer's first word, and a coefficient per axis), an offset array per dim,
    what else is known, what is not."""

    buffer: int
    const: int
    coefs: dict[int, int]
    along: list[np.ndarray]
    extra: np.ndarray | None
    masked: bool
    moving: list[Moving]

    def strides(self) -> list[int] | None:
        """The strides of all dims, if every dim has one."""
        out = []
        for a in self.along:
            step = int(a[1] - a[0]) if len(a) > 1 else 0
            if len(a) > 2 and (np.diff(a) != step).any():
                return None
            out.append(step)
        return out


class Access:
    """Writes the rows of loads and stores."""

    def __init__(self, planner: _Planner, lowering: Lowering) -> None:
        self.p, self.lowering = planner, lowering

    # --- what the terms mean ------------------------------------------------------------------------------------------------------
    def resolve(self, op: Op, tile: Local) -> tuple[Resolved, Place]:
        """The access of a load or store in the current block."""
        p = self.p
        address = op.fields["address"]
        assert isinstance(address, Address)
        place = p.places[address.buffer]
        along = [np.zeros(n, np.int64) for n in tile.sizes]
        r = Resolved(address.buffer, place.start + p.value(op.fields["offset"]), {}, along, None, False, [])
        group: list[dict[str, Any]] = []
        for raw in op.tail:
            term = {k: p.value(v) for k, v in raw.items()}
            group.append(term)
            if not term["chain"]:
                self._group(r, tile, group)
                group = []
        return r, place

    def _group(self, r: Resolved, tile: Local, group: list[dict[str, Any]]) -> None:
        """Adds the terms of one source dim."""
        last = group[-1]
        start, stride, hi = last["start"], last["stride"], last["hi"]
        bounded, gathers = bool(last["bounded"]), any(t["gather"] for t in group)
        parts = [t for t in group if t["gather"] or t["dim"] != isa.NO_DIM]
        if bounded or gathers:
            if gathers or any(self._base(tile, t["dim"]) is None for t in parts):
                r.moving.append(Moving(start, stride, hi, bounded, True, parts))
                r.masked |= bounded
                return
            shape = [1] * len(tile.sizes)
            at = np.full(shape, start, np.int64)
            for t in parts:
                at = at + self._along(tile, t, self._base(tile, t["dim"]) or 0)
            inside = (at >= 0) & (at < hi)
            at = np.clip(at, 0, max(hi - 1, 0)) * stride
            if bounded and not inside.all():
                at = np.where(inside, at, io.OUTSIDE)
                r.masked = True
            r.extra = at if r.extra is None else r.extra + at
            return
        r.const += start * stride
        for t in parts:
            self._free(r, tile, t, stride)

    def _free(self, r: Resolved, tile: Local, t: dict[str, Any], stride: int) -> None:
        """A term without bounds."""
        d, base = t["dim"], self._base(tile, t["dim"])
        axis = tile.tile.dims[d][1]
        extent = tile.sizes[d] if axis == isa.NO_AXIS else self.p.axes[axis].extent
        linear = t["div"] <= 1 and (t["mod"] == 0 or extent <= t["mod"])
        if base is not None:
            r.along[d] = r.along[d] + self._along(tile, t, base).reshape(-1) * stride
        elif linear:
            factor = t["step"] * stride
            r.along[d] = r.along[d] + np.arange(tile.sizes[d], dtype=np.int64) * factor
            r.coefs[axis] = r.coefs.get(axis, 0) + factor
        else:
            r.moving.append(Moving(0, stride, 0, False, False, [t]))

    def _base(self, tile: Local, d: int) -> int | None:
        """The index of a dim's first element, if it is known."""
        axis = tile.tile.dims[d][1]
        return 0 if axis == isa.NO_AXIS else self.p.axes[axis].base

    def _along(self, tile: Local, t: dict[str, Any], base: int) -> np.ndarray:
        """``step * ((i // div) % mod)`` along the term's dim, shaped to broadcast."""
        d = t["dim"]
        i = (base + np.arange(tile.sizes[d], dtype=np.int64)) // max(t["div"], 1)
        i = i % t["mod"] if t["mod"] else i
        return (i * t["step"]).reshape([-1 if k == d else 1 for k in range(len(tile.sizes))])

    # --- rows ---------------------------------------------------------------------------------------------------------------------
    def scalar(self, row: list[int], r: Resolved) -> None:
        """The block's base as the scalar of ``row``, the last one."""
        self.p.addressed.append((len(self.p.rows) - 1, r.buffer))
        row[io.A] = r.const
        for axis, factor in r.coefs.items():
            row[io.COEF + axis] = factor

    def table(self, r: Resolved, tile: Local) -> int:
        """The known offsets of all elements, in table memory."""
        total = outer_sum(r.along)
        if r.extra is not None:
            total = total + np.broadcast_to(r.extra, tile.sizes).reshape(-1)
        return self.p.table.put(total)

    def positions(self, r: Resolved, tile: Local) -> int:
        """Positions of all elements as 64-bit words; negative ones are out of bounds."""
        p, n = self.p, tile.n
        at = p.scratch(n, True)
        self.scalar(p.operation("at.table", True, n, DST=at, T=self.table(r, tile)), r)
        for m in r.moving:
            along = p.scratch(n, True)
            self.lowering.fill(along, n, True, m.start)
            for t in m.terms:
                if t["gather"]:
                    self._indexed(along, tile, t)
                else:
                    self.term(along, tile, t["dim"], t["step"], t["div"], t["mod"])
            p.operation(
                "at.close", True, n, DST=at, Y=along, Z=at, P0=m.hi, P1=m.stride, P2=int(m.bounded), P3=int(m.clamped)
            )
        return at

    def term(self, at: int, tile: Local, dim: int, step: int, div: int, mod: int) -> None:
        """Adds ``step * ((i // div) % mod)`` to 64-bit words, i the global index along a dim."""
        p = self.p
        strides = [int(d == dim) for d in range(len(tile.sizes))]
        row = p.operation(
            "at.term", True, tile.n, DST=at, Y=at, T=p.table.put(lattice(tile.sizes, strides)), P0=step, P1=div, P2=mod
        )
        axis = tile.tile.dims[dim][1]
        if axis == isa.NO_AXIS:
            return
        base = p.axes[axis].base
        if base is None:
            row[io.COEF + axis] = 1
        else:
            row[io.A] = base

    def _indexed(self, at: int, tile: Local, t: dict[str, Any]) -> None:
        p = self.p
        index = p.local(t["index"])
        inner = iter(strides_of(index.sizes))
        strides = [next(inner) if t["mask"] >> d & 1 else 0 for d in range(len(tile.sizes))]
        table = p.table.put(lattice(tile.sizes, strides))
        start = index.at
        if index.tile.dtype == np.uint32:  # its words are signed
            start = p.scratch(index.n, True)
            p.operation("cast.u.int64", True, index.n, DST=start, X=index.at)
        wide = index.wide or index.tile.dtype == np.uint32
        p.operation("at.index64" if wide else "at.index", True, tile.n, DST=at, Y=at, X=start, T=table, P0=t["step"])

    # --- instructions -------------------------------------------------------------------------------------------------------------
    def load(self, op: Op) -> None:
        dst = self.p.local(op.fixed("dst"))
        if dst.n:
            self._fetch(op, dst)

    def _fetch(self, op: Op, dst: Local) -> None:
        """Rows that bring what a load or store names into ``dst``."""
        p = self.p
        r, place = self.resolve(op, dst)
        _same_words(place, dst)
        wide, n = dst.wide, dst.n
        prefix = "wide." if wide else ""
        if r.moving or r.masked:
            from vm.interpreter_lower import word_of

            fill = word_of(isa.imm_value(p.value(op.fields.get("fill", 0)) & isa.MASK64, dst.tile.dtype))
            at = self.positions(r, dst)
            p.operation(f"{prefix}load_at", wide, n, DST=dst.at, Y=at, P0=fill)
            return
        strides = r.strides() if r.extra is None else None
        dims = collapse(dst.sizes, strides) if strides is not None else None
        if dims is not None:
            r.const += sum(int(a[0]) for a in r.along)
            run, stride = dims[-1] if dims else (1, 1)
            from vm.interpreter_lower import ROW_RUN

            if stride in (0, 1) and (run >= ROW_RUN or len(dims) <= 1):
                rows = p.table.put(lattice([d for d, _ in dims[:-1]], [s for _, s in dims[:-1]]))
                count = math.prod(d for d, _ in dims[:-1])
                name = "load" if stride else "load_splat"
                row = p.operation(f"{prefix}{name}", wide, run, DST=dst.at, D1=run, N1=count, T=rows)
                self.scalar(row, r)
                return
            table = p.table.put(lattice([d for d, _ in dims], [s for _, s in dims]))
        else:
            table = self.table(r, dst)
        self.scalar(p.operation(f"{prefix}load_table", wide, n, DST=dst.at, T=table), r)

    def store(self, op: Op) -> None:
        p = self.p
        x = p.local(op.fixed("x"))
        if not x.n:
            return
        if op.fixed("add"):
            held = self.p.scratch(x.n, False)
            self._fetch(op, replace(x, at=held))
            self.p.operation(io.elementwise("add", "f"), False, x.n, DST=held, X=held, Y=x.at)
            x = replace(x, at=held)
        r, place = self.resolve(op, x)
        _same_words(place, x)
        strides = r.strides() if r.extra is None and not r.moving else None
        dims = collapse(x.sizes, strides) if strides is not None else None
        if dims is not None and (not dims or dims[-1][1] == 1):
            run = dims[-1][0] if dims else 1
            if run >= STORE_RUN or len(dims) <= 1:
                r.const += sum(int(a[0]) for a in r.along)
                rows = p.table.put(lattice([d for d, _ in dims[:-1]], [s for _, s in dims[:-1]]))
                row = p.row(
                    io.STORE64 if x.wide else io.STORE32, X=x.at, X0=CHUNK, X1=run, N0=-(-run // CHUNK),
                    N1=math.prod(d for d, _ in dims[:-1]), LEN=run, T=rows,
                )  # fmt: skip
                self.scalar(row, r)
                return
        at = self.positions(r, x)
        p.row(io.SCATTER64 if x.wide else io.SCATTER32, X=x.at, X0=CHUNK, Y=at, Y0=CHUNK, N0=-(-x.n // CHUNK), LEN=x.n)


def _same_words(place: Place, tile: Local) -> None:
    """A tile may see a buffer as another type of equal words only."""
    a, b = place.dtype, tile.tile.dtype
    if a == b:
        return
    if a.itemsize != b.itemsize or a.itemsize < 4:
        raise Unfit(f"a buffer of {a} is accessed as {b}")
