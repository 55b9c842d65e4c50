"""Instructions of bound words as rows of the interpreter's table: computation and movement. Global memory is in ``interpreter_access``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from vm import interpreter_ops as io
from vm import isa, semantics
from vm.decode import Op
from vm.interpreter_access import Access, collapse, lattice, strides_of
from vm.interpreter_ops import CHUNK

if TYPE_CHECKING:
    from vm.interpreter_code import Local, _Planner

ROW_RUN = 256  # a run of this many elements is moved as a row, shorter ones element by element
LONG_ROW = 64  # rows of this length are reduced one by one, shorter ones all at once, an element at a time


class Lowering:
    """Writes rows for one instruction after the other into a planner."""

    def __init__(self, planner: _Planner) -> None:
        self.p = planner
        self.access = Access(planner, self)

    def execute(self, op: Op) -> None:
        """Rows for one instruction in the current block."""
        name, family = op.insn.name, op.insn.family
        if family == "sync":
            return
        if name in ("load", "store"):
            getattr(self.access, name)(op)
        elif family in ("unary", "binary"):
            self.elementwise(op, name)
        elif family == "reduce":
            self.reduce_insn(op, name.removeprefix("reduce_"))
        elif family == "argreduce":
            self.arg_reduce(op, name.removeprefix("arg"))
        elif family == "cumulative":
            self.cumulative(op, name)
        else:
            getattr(self, f"do_{name}")(op)

    # --- helpers ------------------------------------------------------------------------------------------------------------------
    def tile(self, op: Op, field: str) -> Local:
        """The tile operand in ``field``."""
        return self.p.local(op.fixed(field))

    def narrow(self, dtype: np.dtype, at: int, n: int) -> None:
        """Brings computed words back to a type that is narrower than its class."""
        if dtype in io.NARROW:
            self.p.operation(f"narrow.{dtype}", False, n, DST=at, X=at)

    def copy(self, dst: int, x: int, n: int, wide: bool) -> None:
        """``n`` words."""
        if dst != x and n:
            self.p.operation(_wide("row", wide), wide, n, DST=dst, X=x)

    def fill(self, dst: int, n: int, wide: bool, word: int) -> None:
        """``n`` equal words."""
        if n:
            self.p.operation(_wide("fill", wide), wide, n, DST=dst, A=word)

    def move(self, dst: int, x: int, sizes: Sequence[int], strides: Sequence[int], wide: bool) -> None:
        """dst[i] = x[sum(i * strides)], dst in row-major order."""
        n = math.prod(sizes)
        if not n:
            return
        dims = collapse(sizes, strides)
        run, stride = dims[-1] if dims else (1, 1)
        if stride in (0, 1) and (run >= ROW_RUN or len(dims) <= 1):
            rows = lattice([d for d, _ in dims[:-1]], [s for _, s in dims[:-1]])
            name = "row" if stride else "splat"
            self.p.operation(
                _wide(name, wide),
                wide,
                run,
                DST=dst,
                X=x,
                N1=len(rows),
                D1=run,
                T=self.p.table.put(rows),
                X0=CHUNK if stride else 0,
            )
            return
        table = lattice([d for d, _ in dims], [s for _, s in dims])
        self.p.operation(_wide("gather", wide), wide, n, DST=dst, X=x, T=self.p.table.put(table))

    def moved(self, dst: Local, x: Local, strides: Sequence[int], start: int = 0) -> None:
        """``move`` between tiles, also where both have one place."""
        if dst.at == x.at:
            spare = self.p.scratch(x.n, x.wide)
            self.copy(spare, x.at, x.n, x.wide)
            self.move(dst.at, spare + start, dst.sizes, strides, x.wide)
        else:
            self.move(dst.at, x.at + start, dst.sizes, strides, x.wide)

    # --- elementwise --------------------------------------------------------------------------------------------------------------
    def elementwise(self, op: Op, name: str) -> None:
        dst, x = self.tile(op, "dst"), self.tile(op, "x")
        cls, n = _class(x.tile.dtype), x.n
        if not n:
            return
        y = self.tile(op, "y") if "y" in op.fields else None
        places = {"X": x.at} if y is None else {"X": x.at, "Y": y.at}
        if name == "is_finite" and cls != "f":
            self.fill(dst.at, n, False, 1)
            return
        if name == "abs" and x.tile.dtype.kind == "u":
            self.copy(dst.at, x.at, n, x.wide)
            return
        if name.startswith("shift_right") and x.tile.dtype.itemsize < 4:
            # A word holds the value; these two want its bits extended with zeros or with the sign.
            kind = "uint" if name == "shift_right_logical" else "int"
            spare = self.p.scratch(n, False)
            self.p.operation(f"narrow.{kind}{8 * x.tile.dtype.itemsize}", False, n, DST=spare, X=x.at)
            places["X"] = spare
        self.p.operation(io.elementwise(name, cls), dst.wide, n, DST=dst.at, **places)
        if dst.tile.dtype == x.tile.dtype:
            self.narrow(dst.tile.dtype, dst.at, n)

    def do_select(self, op: Op) -> None:
        dst, x, y, p = (self.tile(op, k) for k in ("dst", "x", "y", "p"))
        if dst.n:
            self.p.operation(_wide("select", dst.wide), dst.wide, dst.n, DST=dst.at, X=x.at, Y=y.at, Z=p.at)

    def do_cast(self, op: Op) -> None:
        dst, x = self.tile(op, "dst"), self.tile(op, "x")
        self.cast(dst.at, dst.tile.dtype, x.at, x.tile.dtype, x.n)

    def cast(self, dst: int, to: np.dtype, x: int, source: np.dtype, n: int) -> None:
        """``n`` elements of one type as another."""
        if not n:
            return
        wide, cls = to.itemsize == 8, _class(source)
        name = io.cast_name(cls, to)
        if name is None:
            self.copy(dst, x, n, wide)
        else:
            self.p.operation(name, wide, n, DST=dst, X=x)
        if cls != "f" or to.kind not in "iu":
            self.narrow(to, dst, n)

    def do_fill(self, op: Op) -> None:
        dst = self.tile(op, "dst")
        bits = self.p.value(op.fields["imm"])
        self.fill(dst.at, dst.n, dst.wide, word_of(isa.imm_value(bits, dst.tile.dtype)))

    # --- movement -----------------------------------------------------------------------------------------------------------------
    def do_copy(self, op: Op) -> None:
        dst, x = self.tile(op, "dst"), self.tile(op, "x")
        self.copy(dst.at, x.at, x.n, x.wide)

    def do_bcast(self, op: Op) -> None:
        dst, x = self.tile(op, "dst"), self.tile(op, "x")
        inner = iter(strides_of(x.sizes))
        mask = op.fixed("mask")
        self.moved(dst, x, [next(inner) if mask >> d & 1 else 0 for d in range(len(dst.sizes))])

    def do_permute(self, op: Op) -> None:
        dst, x = self.tile(op, "dst"), self.tile(op, "x")
        strides = strides_of(x.sizes)
        self.moved(dst, x, [strides[op.fixed("perm") >> (4 * d) & 15] for d in range(len(dst.sizes))])

    def do_extract(self, op: Op) -> None:
        dst, x = self.tile(op, "dst"), self.tile(op, "x")
        strides, dim = strides_of(x.sizes), op.fixed("dim")
        start = op.fixed("start") * strides[dim]
        strides[dim] *= op.fixed("step")
        self.moved(dst, x, strides, start)

    def do_join(self, op: Op) -> None:
        dst, dim = self.tile(op, "dst"), op.fixed("dim")
        parts = [self.p.local(item["x"]) for item in op.tail]  # type: ignore[arg-type]
        inner = math.prod(dst.sizes[dim + 1 :])
        outer, width, start = math.prod(dst.sizes[:dim]), dst.sizes[dim] * inner, 0
        target = self.p.scratch(dst.n, dst.wide) if any(x.at == dst.at for x in parts) else dst.at
        if min(x.sizes[dim] * inner for x in parts) >= ROW_RUN or outer == 1:
            for x in parts:
                run = x.sizes[dim] * inner
                if run and outer:
                    rows = self.p.table.put(np.arange(outer) * run)
                    self.p.operation(
                        _wide("row_inside", dst.wide),
                        dst.wide,
                        run,
                        DST=target + start,
                        D1=width,
                        X=x.at,
                        N1=outer,
                        T=rows,
                    )
                start += run
        elif dst.n:
            at = np.concatenate([x.at + np.arange(x.n).reshape(outer, -1) for x in parts], axis=1)
            self.p.operation(_wide("gather", dst.wide), dst.wide, dst.n, DST=target, X=0, T=self.p.table.put(at))
        self.copy(dst.at, target, dst.n, dst.wide)

    def do_iota(self, op: Op) -> None:
        dst, dim, p = self.tile(op, "dst"), op.fixed("dim"), self.p
        if not dst.n:
            return
        start, step, div, mod = (p.value(op.fields[k]) for k in ("start", "step", "div", "mod"))
        value = p.scratch(dst.n, True)
        self.fill(value, dst.n, True, start)
        self.access.term(value, dst, dim, step, div, mod)
        self.cast(dst.at, dst.tile.dtype, value, np.dtype(np.int64), dst.n)

    def do_lookup(self, op: Op) -> None:
        dst, x, y = (self.tile(op, k) for k in ("dst", "x", "y"))
        if not dst.n:
            return
        dim, strides, p = op.fixed("dim"), strides_of(x.sizes), self.p
        index = p.scratch(y.n, False)
        self.index32(index, y)
        if len(x.sizes) == 1:
            table = np.zeros(dst.n, np.int64)
        else:
            table = lattice(dst.sizes, [0 if d == dim else s for d, s in enumerate(strides)])
        target = p.scratch(dst.n, dst.wide) if dst.at == x.at and dst.wide == x.wide else dst.at
        p.operation(
            _wide("lookup", dst.wide), dst.wide, dst.n, DST=target, X=x.at, Y=index, T=p.table.put(table),
            P0=x.sizes[dim] - 1, P1=strides[dim],
        )  # fmt: skip
        self.copy(dst.at, target, dst.n, dst.wide)

    def index32(self, at: int, y: Local) -> None:
        """Indices as int32 words, clamped: no tile has that many elements."""
        cls, p = _class(y.tile.dtype), self.p
        if cls in ("i", "b"):
            self.copy(at, y.at, y.n, False)
            return
        top, spare = p.scratch(y.n, y.wide), p.scratch(y.n, y.wide)
        self.fill(top, y.n, y.wide, 1 << 30)
        p.operation(io.elementwise("min", cls), y.wide, y.n, DST=spare, X=y.at, Y=top)
        if not y.wide:
            self.copy(at, spare, y.n, False)
            return
        if cls == "I":
            self.fill(top, y.n, True, -1)
            p.operation("I.max", True, y.n, DST=spare, X=spare, Y=top)
        p.operation("cast.I.int32", False, y.n, DST=at, X=spare)

    # --- along a dim --------------------------------------------------------------------------------------------------------------
    def arranged(self, x: Local, kept: list[int], over: list[int], rows: bool) -> int:
        """x with the dims ``over`` last (``rows``) or first, as an address."""
        order = kept + over if rows else over + kept
        if [d for d in order if x.sizes[d] != 1] == [d for d in range(len(x.sizes)) if x.sizes[d] != 1]:
            return x.at
        spare, strides = self.p.scratch(x.n, x.wide), strides_of(x.sizes)
        self.move(spare, x.at, [x.sizes[d] for d in order], [strides[d] for d in order], x.wide)
        return spare

    def reduce(self, kind: str, dtype: np.dtype, x: Local, over: list[int], target: int) -> None:
        """x reduced over dims, as words at ``target`` that are not narrowed."""
        if dtype == np.bool_:
            kind = "max" if kind in ("sum", "max", "or") else "min"
        cls = _class(dtype) if dtype != np.bool_ else "i"
        if kind not in ("max", "min") and cls in "uU":
            cls = {"u": "i", "U": "I"}[cls]
        kept = [d for d in range(len(x.sizes)) if d not in over]
        length, count = math.prod(x.sizes[d] for d in over), math.prod(x.sizes[d] for d in kept)
        if not count:
            return
        if not length:
            self.fill(target, count, x.wide, word_of(isa.identity(kind, dtype)))
            return
        p = self.p
        outer = [d for d in over + kept if x.sizes[d] != 1] == [d for d in range(len(x.sizes)) if x.sizes[d] != 1]
        if length < LONG_ROW or (outer and count >= LONG_ROW):
            at = self.arranged(x, kept, over, rows=False)
            self.copy(target, at, count, x.wide)
            name = {"sum": "add", "prod": "mul"}.get(kind, kind)
            if length > 1:
                p.operation(f"{cls}.{name}", x.wide, count, DST=target, X=target, Y=at + count, Y1=count, N1=length - 1)
            return
        at = self.arranged(x, kept, over, rows=True)
        p.operation(f"{cls}.reduce_{kind}", x.wide, length, DST=target, D0=0, D1=1, X=at, X1=length, N1=count)

    def reduce_insn(self, op: Op, kind: str) -> None:
        dst, x = self.tile(op, "dst"), self.tile(op, "x")
        over = [d for d in range(len(x.sizes)) if op.fixed("mask") >> d & 1]
        dtype = x.tile.dtype
        accumulate = bool(op.fixed("accumulate"))
        target = self.p.scratch(dst.n, dst.wide) if accumulate or dst.at == x.at else dst.at
        self.reduce(kind, dtype, x, over, target)
        if not dst.n:
            return
        self.narrow(dtype, target, dst.n)
        if accumulate:
            if dtype == np.bool_:
                kind = {"sum": "or", "prod": "and", "max": "or", "min": "and"}.get(kind, kind)
            name = io.elementwise({"sum": "add", "prod": "mul"}.get(kind, kind), _class(dtype))
            self.p.operation(name, dst.wide, dst.n, DST=dst.at, X=dst.at, Y=target)
            self.narrow(dtype, dst.at, dst.n)
        else:
            self.copy(dst.at, target, dst.n, dst.wide)

    def arg_reduce(self, op: Op, kind: str) -> None:
        """The value by a reduction; the index is the least at which the value stands."""
        p = self.p
        dst, value, x, dim = self.tile(op, "dst"), self.tile(op, "y"), self.tile(op, "x"), op.fixed("dim")
        if not dst.n:
            return
        dtype, n = x.tile.dtype, x.n
        cls = "i" if dtype == np.bool_ else _class(dtype)
        best = p.scratch(dst.n, x.wide)
        self.reduce(kind, dtype, x, [dim], best)
        strides = strides_of(value.sizes)
        strides.insert(dim, 0)
        spread, same = p.scratch(n, x.wide), p.scratch(n, False)
        self.move(spread, best, x.sizes, strides, x.wide)
        p.operation(f"{cls}.match", False, n, DST=same, X=x.at, Y=spread)
        where, at, never = p.scratch(n, True), p.scratch(n, True), p.scratch(n, True)
        self.fill(at, n, True, 0)
        self.access.term(at, x, dim, 1, 1, 0)
        self.fill(never, n, True, (1 << 62))
        p.operation("wide.select", True, n, DST=where, X=at, Y=never, Z=same)
        found = p.scratch(dst.n, True)
        from vm.interpreter_code import Local

        long = Local(where, x.sizes, x.tile)
        self._least(long, dim, found)
        index = p.scratch(dst.n, dst.wide)
        self.cast(index, dst.tile.dtype, found, np.dtype(np.int64), dst.n)
        if op.fixed("accumulate"):
            old = p.scratch(dst.n, False)
            self.cast(old, np.dtype(np.int32), dst.at, dst.tile.dtype, dst.n)
            pick = p.scratch(dst.n, False)
            p.operation(f"{cls}.better_{kind}", False, dst.n, DST=pick, X=best, Y=value.at, Z=old)
            p.operation(_wide("select", dst.wide), dst.wide, dst.n, DST=dst.at, X=index, Y=dst.at, Z=pick)
            p.operation(_wide("select", x.wide), x.wide, dst.n, DST=value.at, X=best, Y=value.at, Z=pick)
        else:
            self.copy(dst.at, index, dst.n, dst.wide)
            self.copy(value.at, best, dst.n, x.wide)

    def _least(self, x: Local, dim: int, target: int) -> None:
        """The minimum of int64 words along a dim."""
        p, sizes = self.p, x.sizes
        strides = strides_of(sizes)
        kept = [d for d in range(len(sizes)) if d != dim]
        count, length = math.prod(sizes[d] for d in kept), sizes[dim]
        if length < LONG_ROW:
            at = p.scratch(count * length, True)
            order = [dim, *kept]
            self.move(at, x.at, [sizes[d] for d in order], [strides[d] for d in order], True)
            self.copy(target, at, count, True)
            if length > 1:
                p.operation("I.min", True, count, DST=target, X=target, Y=at + count, Y1=count, N1=length - 1)
            return
        at = p.scratch(count * length, True)
        order = [*kept, dim]
        self.move(at, x.at, [sizes[d] for d in order], [strides[d] for d in order], True)
        p.operation("I.reduce_min", True, length, DST=target, D0=0, D1=1, X=at, X1=length, N1=count)

    def cumulative(self, op: Op, name: str) -> None:
        """Step by step along the dim, each step over all other elements at once."""
        p = self.p
        dst, x, dim = self.tile(op, "dst"), self.tile(op, "x"), op.fixed("dim")
        if not x.n:
            return
        dtype, sizes = x.tile.dtype, x.sizes
        kept = [d for d in range(len(sizes)) if d != dim]
        length, count = sizes[dim], math.prod(sizes[d] for d in kept)
        source = self.arranged(x, kept, [dim], rows=False)
        out = p.scratch(x.n, x.wide)
        body = "f.logaddexp" if name == "cumlogsumexp" else ""
        if not body:
            kind = semantics.SCANNED[name]
            body = io.elementwise({"sum": "add", "prod": "mul"}.get(kind, kind), _class(dtype))
        first, step = (length - 1, -1) if op.fixed("reverse") else (0, 1)
        begin = out + first * count
        carry = self.tile(op, "y") if op.fixed("carry") else None
        if carry is None:
            self.copy(begin, source + first * count, count, x.wide)
        else:
            p.operation(body, x.wide, count, DST=begin, X=carry.at, Y=source)
        if length > 1:
            move = step * count
            p.operation(
                body, x.wide, count, DST=begin + move, D1=move, X=begin, X1=move, Y=source + first * count + move, Y1=move,
                N1=length - 1,
            )  # fmt: skip
        if carry is not None:
            self.copy(carry.at, out + (length - 1) * count, count, x.wide)
            self.narrow(dtype, carry.at, count)
        order = [dim, *kept]
        strides = dict(zip(order, strides_of([sizes[d] for d in order]), strict=True))
        self.move(dst.at, out, sizes, [strides[d] for d in range(len(sizes))], x.wide)
        self.narrow(dtype, dst.at, x.n)

    # --- products -----------------------------------------------------------------------------------------------------------------
    def do_mmad(self, op: Op) -> None:
        p = self.p
        dst, x, y = (self.tile(op, k) for k in ("dst", "x", "y"))
        if not dst.n:
            return
        roles = [[op.fixed(f) >> (2 * d) & 3 for d in range(len(t.sizes))] for f, t in (("xdims", x), ("ydims", y))]

        def dims(side: int, role: int) -> list[int]:
            return [d for d, r in enumerate(roles[side]) if r == role]

        def size(t: Local, which: list[int]) -> int:
            return math.prod(t.sizes[d] for d in which)

        batch, contract = size(x, dims(0, isa.DOT_BATCH)), size(x, dims(0, isa.DOT_CONTRACT))
        m, n = size(x, dims(0, isa.DOT_FREE)), size(y, dims(1, isa.DOT_FREE))
        left = self._ordered(x, dims(0, isa.DOT_BATCH) + dims(0, isa.DOT_FREE) + dims(0, isa.DOT_CONTRACT))
        right = self._ordered(y, dims(1, isa.DOT_BATCH) + dims(1, isa.DOT_CONTRACT) + dims(1, isa.DOT_FREE))
        if dst.wide and not x.wide:
            left, right = (self._widened(at, t) for at, t in ((left, x), (right, y)))
        accumulate = int(bool(op.fixed("accumulate")))
        kind = io.MMAD_L if dst.wide else io.MMAD_F if _class(dst.tile.dtype) == "f" else io.MMAD_I
        p.row(kind, DST=dst.at, X=left, Y=right, A=accumulate, P0=batch, P1=m, P2=n, P3=contract)
        self.narrow(dst.tile.dtype, dst.at, dst.n)

    def _ordered(self, x: Local, order: list[int]) -> int:
        return self.arranged(x, order, [], rows=True)

    def _widened(self, at: int, x: Local) -> int:
        out = self.p.scratch(x.n, True)
        self.cast(out, np.dtype(np.int64), at, x.tile.dtype, x.n)
        return out


def word_of(value: np.ndarray) -> int:
    """A scalar as its carrier word."""
    value = np.asarray(value)
    if value.dtype.kind in "iub":
        bits = int(value)
        if value.dtype.itemsize == 8:
            return bits - (1 << 64) if bits >> 63 and bits > 0 else bits
        return bits - (1 << 32) if bits >= 1 << 31 else bits
    return int(np.asarray(value, np.float32).view(np.int32))


def _wide(name: str, wide: bool) -> str:
    return f"wide.{name}" if wide else name


def _class(dtype: np.dtype) -> str:
    from vm.interpreter_code import class_of

    return class_of(dtype)
