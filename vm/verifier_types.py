"""What each instruction demands of its operands: element types, dims, memories."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

from vm import isa
from vm.decode import Op, Tile
from vm.errors import ProgramError
from vm.isa import Space

Dims = tuple[tuple[int, int], ...]

MAX_REACH = 1 << 48  # elements
_COMPARE = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))
_PREDICATES = frozenset(("is_finite", "is_nan", "is_inf"))
_BITWISE = frozenset(("and", "or", "xor", "not", "reduce_and", "reduce_or"))
_INTEGERS = frozenset(("shift_left", "shift_right_logical", "shift_right_arithmetic"))
_EVERYTHING = frozenset(("abs", "sign", "neg", "square", "add", "sub", "mul", "div", "rem", "pow", "max", "min"))
_BOOL = np.dtype(bool)
_HALF = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


class _Rules:
    """One instruction with its tiles; ``want`` refuses it."""

    def __init__(self, op: Op, tiles: dict[int, Tile]) -> None:
        self.op, self.tiles, self.name = op, tiles, op.insn.name

    def want(self, ok: bool, what: str) -> None:
        if not ok:
            raise ProgramError(f"word {self.op.at}: {self.name} {what}")

    def tile(self, field: str) -> Tile:
        return self.tiles[self.op.fixed(field)]

    def number(self, field: str) -> int:
        return self.op.fixed(field)

    def same(self, *fields: str, dtype: bool = True) -> None:
        """Tiles of equal dims (and types)."""
        first = self.tile(fields[0])
        for field in fields[1:]:
            other = self.tile(field)
            self.want(first.dims == other.dims, f"wants equal dims of {fields[0]} and {field}")
            self.want(not dtype or first.dtype == other.dtype, f"wants equal types of {fields[0]} and {field}")

    def in_ub(self, *fields: str) -> None:
        for field in fields:
            self.want(self.tile(field).space == Space.UB, f"wants {field} in the unified buffer")

    def dim(self, of: Tile, fixed: bool) -> int:
        d = self.number("dim")
        self.want(d < len(of.dims), f"names dim {d} of a tile of rank {len(of.dims)}")
        self.want(not fixed or of.dims[d][1] == isa.NO_AXIS, f"wants dim {d} to be fixed")
        return d

    def mask(self, of: Tile) -> list[int]:
        mask = self.number("mask")
        self.want(mask >> len(of.dims) == 0, f"names dims beyond rank {len(of.dims)}")
        return [d for d in range(len(of.dims)) if mask >> d & 1]


def check(op: Op, tiles: dict[int, Tile]) -> None:
    """Raises ``ProgramError`` unless the operands of ``op`` are what the instruction wants."""
    rule = _BY_NAME.get(op.insn.name) or _BY_FAMILY.get(op.insn.family)
    if rule is None:
        raise ProgramError(f"word {op.at}: {op.insn.name} cannot stand here")
    rule(_Rules(op, tiles))


def _element_type(r: _Rules, dtype: np.dtype) -> None:
    """Whether the function exists for the type."""
    name, kind = r.name, dtype.kind
    if name in _COMPARE or name in _PREDICATES or name in ("max", "min"):
        return
    if name in _BITWISE:
        r.want(kind in "iub", f"has no meaning for {dtype}")
    elif name in _INTEGERS:
        r.want(kind in "iu", f"has no meaning for {dtype}")
    elif name in _EVERYTHING:
        r.want(kind != "b", f"has no meaning for {dtype}")
    else:
        r.want(kind not in "iub", f"has no meaning for {dtype}")


def _load(r: _Rules) -> None:
    dst = r.tile("dst")
    r.want(dst.space in (Space.UB, Space.L1), "goes to the unified buffer or L1")
    _terms(r, dst)


def _store(r: _Rules) -> None:
    r.in_ub("x")
    _terms(r, r.tile("x"))
    r.want(not any(t["bounded"] for t in r.op.tail), "has no bounded terms")
    if r.number("add"):
        r.want(r.tile("x").dtype == np.float32, "adds float32 only")
        r.want(not any(t["gather"] for t in r.op.tail), "adds at no places that data gives")


def _terms(r: _Rules, tile: Tile) -> None:
    rank = len(tile.dims)
    r.want(not r.op.tail or not r.op.tail[-1]["chain"], "ends with a chained term")
    _reach(r)
    for t in r.op.tail:
        dim, gather, mask = t["dim"], t["gather"], t["mask"]
        r.want(isinstance(dim, int) and isinstance(gather, int) and isinstance(mask, int), "has patched term dims")
        assert isinstance(dim, int) and isinstance(mask, int)
        r.want(isinstance(t["bounded"], int) and isinstance(t["chain"], int), "has patched term flags")
        if not gather:
            r.want(dim < rank or dim == isa.NO_DIM, f"names dim {dim} of a tile of rank {rank}")
            continue
        number = t["index"]
        assert isinstance(number, int)
        index = r.tiles[number]
        r.want(mask >> rank == 0, f"names dims beyond rank {rank}")
        r.want(index.dtype.kind in "iu" and index.space == Space.UB, "wants integer indices in the unified buffer")
        r.want(
            index.dims == tuple(d for i, d in enumerate(tile.dims) if mask >> i & 1), "wants indices of the masked dims"
        )


def _reach(r: _Rules) -> None:
    """Fixed numbers of an address and their products lie within what addresses can name, so that 64 bits hold any sum of them. Patched
    ones are checked when they are bound."""
    far = [r.op.fields["offset"]]
    steps: list[object] = []
    for t in r.op.tail:
        steps += [t["step"], t["start"]]
        if not t["chain"]:
            stride = t["stride"]
            far += [n * stride for n in steps if isinstance(n, int) and isinstance(stride, int)]
            steps = []
    r.want(all(abs(n) < MAX_REACH for n in far if isinstance(n, int)), "reaches beyond what addresses can name")


def _fill(r: _Rules) -> None:
    r.want(r.tile("dst").space in (Space.UB, Space.L0C), "fills the unified buffer or L0C")


def _iota(r: _Rules) -> None:
    r.in_ub("dst")
    r.dim(r.tile("dst"), fixed=False)
    r.want(r.tile("dst").dtype != _BOOL, "has no meaning for bool")


def _moves(r: _Rules) -> None:
    dst, x = r.tile("dst").space, r.tile("x").space
    r.want(
        (x, dst) in ((Space.UB, Space.UB), (Space.L0C, Space.UB), (Space.UB, Space.L1)),
        f"cannot go from {x.name} to {dst.name}",
    )


def _copy(r: _Rules) -> None:
    _moves(r)
    dst, x = r.tile("dst"), r.tile("x")
    r.want(dst.dtype == x.dtype, "wants equal types")

    def form(dims: Dims) -> tuple[int, list[int]]:
        fixed = 1
        for size, axis in dims:
            fixed *= size if axis == isa.NO_AXIS else 1
        return fixed, [axis for _, axis in dims if axis != isa.NO_AXIS]

    r.want(form(dst.dims) == form(x.dims), "wants equally many elements")


def _cast(r: _Rules) -> None:
    _moves(r)
    r.same("dst", "x", dtype=False)


def _bcast(r: _Rules) -> None:
    r.in_ub("dst", "x")
    dst, x = r.tile("dst"), r.tile("x")
    r.want(
        dst.dtype == x.dtype and x.dims == tuple(dst.dims[d] for d in r.mask(dst)),
        "wants x to be the masked dims of dst",
    )


def _permute(r: _Rules) -> None:
    r.in_ub("dst", "x")
    dst, x = r.tile("dst"), r.tile("x")
    rank = len(x.dims)
    perm = [r.number("perm") >> (4 * d) & 15 for d in range(rank)]
    r.want(sorted(perm) == list(range(rank)) and r.number("perm") >> (4 * rank) == 0, "wants a permutation")
    r.want(dst.dtype == x.dtype and dst.dims == tuple(x.dims[p] for p in perm), "wants dst to be x permuted")


def _others(r: _Rules, a: Tile, b: Tile, d: int) -> None:
    r.want(a.dtype == b.dtype and len(a.dims) == len(b.dims), "wants tiles of one rank and type")
    r.want(a.dims[:d] == b.dims[:d] and a.dims[d + 1 :] == b.dims[d + 1 :], f"wants dims other than {d} to be equal")
    r.want(b.dims[d][1] == isa.NO_AXIS, f"wants dim {d} to be fixed")


def _extract(r: _Rules) -> None:
    r.in_ub("dst", "x")
    dst, x = r.tile("dst"), r.tile("x")
    d = r.dim(dst, fixed=True)
    _others(r, dst, x, d)
    n, first = dst.dims[d][0], r.number("start")
    last = first + r.number("step") * (n - 1)
    r.want(n == 0 or 0 <= min(first, last) <= max(first, last) < x.dims[d][0], "reaches beyond x")
    r.want(r.number("step") != 0, "wants a step")


def _join(r: _Rules) -> None:
    r.in_ub("dst")
    dst, total = r.tile("dst"), 0
    d = r.dim(dst, fixed=True)
    r.want(len(r.op.tail) > 0, "wants tiles to join")
    for item in r.op.tail:
        number = item["x"]
        assert isinstance(number, int)
        _others(r, dst, r.tiles[number], d)
        r.want(r.tiles[number].space == Space.UB, "wants tiles in the unified buffer")
        total += r.tiles[number].dims[d][0]
    r.want(total == dst.dims[d][0], f"joins {total} elements into {dst.dims[d][0]}")


def _lookup(r: _Rules) -> None:
    r.in_ub("dst", "x", "y")
    dst, x, y = r.tile("dst"), r.tile("x"), r.tile("y")
    d = r.dim(x, fixed=True)
    r.want(y.dtype.kind in "iu" and dst.dims == y.dims, "wants integer indices of dst's dims")
    r.want(dst.dtype == x.dtype and x.dims[d][0] > 0, "wants something of dst's type to look up")
    others = len(x.dims) == len(y.dims) and x.dims[:d] + x.dims[d + 1 :] == y.dims[:d] + y.dims[d + 1 :]
    r.want(len(x.dims) == 1 or others, "wants equal other dims")


def _unary(r: _Rules) -> None:
    r.in_ub("dst", "x")
    r.same("dst", "x", dtype=r.name not in _PREDICATES)
    r.want(r.name not in _PREDICATES or r.tile("dst").dtype == _BOOL, "gives bool")
    _element_type(r, r.tile("x").dtype)


def _binary(r: _Rules) -> None:
    r.in_ub("dst", "x", "y")
    r.same("x", "y")
    r.same("x", "dst", dtype=r.name not in _COMPARE)
    r.want(r.name not in _COMPARE or r.tile("dst").dtype == _BOOL, "gives bool")
    _element_type(r, r.tile("x").dtype)


def _select(r: _Rules) -> None:
    r.in_ub("dst", "x", "y", "p")
    r.same("dst", "x", "y")
    r.same("dst", "p", dtype=False)
    r.want(r.tile("p").dtype == _BOOL, "wants a bool p")


def _reduce(r: _Rules) -> None:
    r.in_ub("dst", "x")
    dst, x = r.tile("dst"), r.tile("x")
    over = r.mask(x)
    r.want(
        dst.dtype == x.dtype and dst.dims == tuple(n for d, n in enumerate(x.dims) if d not in over),
        "wants dst to be x's other dims",
    )
    if r.name in ("reduce_and", "reduce_or"):
        _element_type(r, x.dtype)


def _arg_reduce(r: _Rules) -> None:
    r.in_ub("dst", "x", "y")
    dst, x, y = r.tile("dst"), r.tile("x"), r.tile("y")
    d = r.dim(x, fixed=False)
    rest = x.dims[:d] + x.dims[d + 1 :]
    r.want(
        dst.dims == rest == y.dims and y.dtype == x.dtype and dst.dtype.kind in "iu",
        "wants indices and values of x's other dims",
    )
    r.want(r.number("dst") != r.number("y") and x.dims[d][0] > 0, "wants two results of something")


def _cumulative(r: _Rules) -> None:
    r.in_ub("dst", "x")
    r.same("dst", "x")
    x = r.tile("x")
    d = r.dim(x, fixed=not r.number("carry"))
    r.want(x.dtype != _BOOL, "has no meaning for bool")
    if r.number("carry"):
        y = r.tile("y")
        r.want(not r.number("reverse") and r.name != "cumlogsumexp", "cannot carry")
        r.want(
            y.dtype == x.dtype and y.dims == (*x.dims[:d], (1, isa.NO_AXIS), *x.dims[d + 1 :]),
            "wants a carry of one element",
        )


def _mmad(r: _Rules) -> None:
    dst, x, y = r.tile("dst"), r.tile("x"), r.tile("y")
    r.want(
        (dst.space, x.space, y.space) == (Space.L0C, Space.L1, Space.L1), "wants operands in L1 and its result in L0C"
    )
    r.want(x.dtype == y.dtype and x.dtype != _BOOL, "wants operands of one type")
    half = x.dtype in _HALF and dst.dtype == np.float32
    whole = x.dtype.kind in "iu" and dst.dtype.kind in "iu" and dst.dtype.itemsize >= x.dtype.itemsize
    r.want(dst.dtype == x.dtype or half or whole, f"cannot accumulate {x.dtype} in {dst.dtype}")
    sides = []
    for tile, field in ((x, "xdims"), (y, "ydims")):
        roles = [r.number(field) >> (2 * d) & 3 for d in range(len(tile.dims))]
        r.want(r.number(field) >> (2 * len(tile.dims)) == 0 and 3 not in roles, f"has malformed {field}")
        sides.append([tuple(n for n, role in zip(tile.dims, roles, strict=True) if role == kind) for kind in range(3)])
    (x_batch, x_free, x_sum), (y_batch, y_free, y_sum) = sides
    r.want(x_batch == y_batch and x_sum == y_sum, "wants equal batch and contracted dims")
    r.want(dst.dims == (*x_batch, *x_free, *y_free), "wants dst to have batch, x's free and y's free dims")


def _any(r: _Rules) -> None:
    pass


_BY_NAME: dict[str, Callable[[_Rules], None]] = {
    "load": _load, "store": _store, "fill": _fill, "iota": _iota, "copy": _copy, "bcast": _bcast, "permute": _permute,
    "extract": _extract, "join": _join, "cast": _cast, "lookup": _lookup, "mmad": _mmad,
}  # fmt: skip
_BY_FAMILY: dict[str, Callable[[_Rules], None]] = {
    "unary": _unary, "binary": _binary, "select": _select, "reduce": _reduce, "argreduce": _arg_reduce, "cumulative": _cumulative,
    "sync": _any,
}  # fmt: skip
