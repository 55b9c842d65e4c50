"""What one bound instruction costs on its pipe, in emulated cycles: a function of the chip's tables and of the extents of its tiles.

Sources, by section of the public chip documentation: transfers and vector operations follow "instruction cost constants", rates of the
memories "memory rates". Operations that the vector unit has no instruction for are sequences of those that it has (``SEQUENCES``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vm import isa
from vm.chip import Chip
from vm.decode import Tile

L0_HALF_BYTES = 32768  # half of L0A or L0B: the other half is filled meanwhile


@dataclass(frozen=True)
class Transfer:
    """A move between global and local memory: ``bursts`` runs of ``burst_bytes`` each, and the rate of the local memory."""

    bytes: int
    bursts: int
    burst_bytes: int
    local_bytes_per_cycle: float


@dataclass(frozen=True)
class Vector:
    """``issue`` cycles in which the pipe takes nothing else, then ``delay`` until the result is there."""

    issue: float
    delay: float


@dataclass(frozen=True)
class Product:
    """A product as parts that go through the halves of L0: cycles of L1 -> L0 and of the cube for each of ``parts`` equal parts."""

    parts: int
    move: float
    multiply: float
    flops: int


# Vector operations without an instruction of their own, as sequences of cost kinds (see ``_kind``).
SEQUENCES: dict[str, tuple[str, ...]] = {
    "neg": ("mul",),
    "sign": ("max", "max", "add"),
    "floor": ("cast", "cast"),
    "ceil": ("cast", "cast"),
    "round": ("cast", "cast"),
    "trunc": ("cast", "cast"),
    "exp2": ("mul", "exp"),
    "log1p": ("add", "log"),
    "expm1": ("exp", "add"),
    "cbrt": ("log", "mul", "exp"),
    "reciprocal": ("rsqrt",),
    "square": ("mul",),
    "sin": ("mul", "cast", "cast", *("mul", "add") * 5),
    "cos": ("add", "mul", "cast", "cast", *("mul", "add") * 5),
    "tan": ("mul", "cast", "cast", *("mul", "add") * 8, "div"),
    "asin": ("mul", "add", "sqrt", *("mul", "add") * 6),
    "acos": ("mul", "add", "sqrt", *("mul", "add") * 6, "add"),
    "atan": ("div", *("mul", "add") * 6),
    "sinh": ("exp", "rsqrt", "add", "mul"),
    "cosh": ("exp", "rsqrt", "add", "mul"),
    "tanh": ("mul", "exp", "add", "add", "div"),
    "asinh": ("mul", "add", "sqrt", "add", "log"),
    "acosh": ("mul", "add", "sqrt", "add", "log"),
    "atanh": ("add", "add", "div", "log", "mul"),
    "erf": ("max", "max", *("mul", "add") * 8, "div"),
    "erfc": ("max", "max", *("mul", "add") * 8, "div", "add"),
    "erf_inv": ("log", "sqrt", *("mul", "add") * 9, "select"),
    "logistic": ("mul", "exp", "add", "rsqrt"),
    "is_finite": ("max", "max", "select"),
    "is_nan": ("max", "select"),
    "is_inf": ("max", "max", "select"),
    "not": ("max",),
    "sub": ("add",),
    "rem": ("div", "cast", "mul", "add"),
    "pow": ("log", "mul", "exp"),
    "atan2": ("div", *("mul", "add") * 6, "select", "add"),
    "min": ("max",),
    "abs": ("max",),
    **dict.fromkeys(("and", "or", "xor"), ("max",)),
    **dict.fromkeys(("shift_left", "shift_right_logical", "shift_right_arithmetic"), ("max",)),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), ("max", "select")),
}

_NARROW = ("div", "exp", "log", "sqrt")  # cost kinds that differ between float16 and float32


def extents(tile: Tile, steps: Mapping[int, int]) -> list[int]:
    """A tile's extents where the current step of axis ``a`` covers ``steps[a]`` elements."""
    return [size if axis == isa.NO_AXIS else steps[axis] for size, axis in tile.dims]


def transfer(
    chip: Chip, tile: Tile, shape: Sequence[int], tail: Sequence[Mapping[str, int]], into: bool = True
) -> Transfer:
    """A load into (``into``) or a store from a tile of these extents."""
    n, item = math.prod(shape), tile.dtype.itemsize
    run = _run(shape, tail)
    rate = chip.bandwidth
    local = rate.ub_bytes_per_cycle if tile.space == isa.Space.UB else rate.l1_write_bytes_per_cycle
    if not into:
        local = min(local, rate.ub_to_l2_bytes_per_cycle)
    return Transfer(n * item, n // run if run else 0, run * item, local)


def _run(shape: Sequence[int], tail: Sequence[Mapping[str, int]]) -> int:
    """Elements that lie one after the other in global memory as they do in the tile."""
    if not all(shape):
        return 0
    strides: dict[int, int] = {}
    for item in tail:
        plain = not item["gather"] and not item["mod"] and item["div"] == 1 and item["dim"] < len(shape)
        if plain and item["dim"] not in strides:
            strides[item["dim"]] = item["step"] * item["stride"]
        elif item["dim"] < len(shape):
            strides[item["dim"]] = 0  # not a constant distance
    run = 1
    for d in range(len(shape) - 1, -1, -1):
        if shape[d] == 1:
            continue
        if strides.get(d) != run:
            break
        run *= shape[d]
    return run


def vector(
    chip: Chip, insn: isa.Insn, fields: Mapping[str, Any], tiles: Mapping[int, Tile], steps: Mapping[int, int]
) -> Vector:
    """An operation of the vector unit. Its cost follows its widest operand."""
    dst = tiles[fields["dst"]]
    x = tiles[fields["x"]] if "x" in fields else dst
    shape = extents(dst, steps)
    if insn.family == "reduce":
        return _reduce(chip, insn.name, fields["mask"], x, extents(x, steps))
    if insn.family == "argreduce":
        base = _reduce(chip, "reduce_max", 1 << fields["dim"], x, extents(x, steps))
        extra = _sequence(chip, ("select", "add"), x.dtype, math.prod(extents(x, steps)))
        return Vector(base.issue + extra.issue, base.delay + extra.delay)
    if insn.family == "cumulative":  # one addition for every row, each after the one before
        n = extents(x, steps)[fields["dim"]]
        row = _sequence(chip, ("add",), x.dtype, math.prod(shape) // max(n, 1))
        return Vector(n * (row.issue + row.delay), row.delay)
    if insn.family in ("unary", "binary", "select"):
        kinds = SEQUENCES.get(insn.name, (insn.name,))
        return _sequence(chip, kinds, x.dtype, math.prod(shape))
    if insn.name == "cast":
        widest = max((dst.dtype, x.dtype), key=lambda d: d.itemsize)
        return _sequence(chip, ("cast",), widest, math.prod(shape))
    if insn.name == "iota":
        return _sequence(chip, ("add", "mul"), dst.dtype, math.prod(shape))
    return _sequence(chip, ("broadcast" if insn.name == "bcast" else "copy",), dst.dtype, math.prod(shape))


def _kind(kind: str, dtype: np.dtype) -> str:
    """The name of a cost in the chip's table for an operation on ``dtype``."""
    floating = dtype.kind not in "iub"
    if kind == "add":
        return "add_float" if floating else "add_int"
    if kind == "mul":
        return "mul_float" if floating else "mul_int16" if dtype.itemsize == 2 else "mul_int32"
    if kind in _NARROW:
        return f"{kind}_float16" if dtype == np.float16 else f"{kind}_float32"
    return kind


def _sequence(chip: Chip, kinds: Sequence[str], dtype: np.dtype, n: int) -> Vector:
    """The kinds one after the other on ``n`` elements. bfloat16 is computed as float32, between two casts."""
    if dtype.name == "bfloat16" and any(k not in ("cast", "copy", "broadcast") for k in kinds):
        kinds, dtype = ("cast", *kinds, "cast"), np.dtype(np.float32)
    issue = delay = 0.0
    repeats = -(-n * dtype.itemsize // chip.vector.repeat_bytes)
    for k, kind in enumerate(kinds):
        cost = chip.vector_cost(_kind(kind, dtype))
        if k:
            issue += delay
        issue += repeats * math.ceil(chip.vector.repeat_bytes / cost.bytes_per_cycle) * cost.passes
        delay = cost.delay_cycles + chip.vector.pipeline_cycles
    return Vector(issue, delay)


def _reduce(chip: Chip, name: str, mask: int, x: Tile, shape: Sequence[int]) -> Vector:
    """Along outer dims a reduction is a row operation; along the lead dim rows are folded to one repeat, and that across lanes."""
    dims = [d for d in range(len(shape)) if mask >> d & 1]
    additive = name in ("reduce_sum", "reduce_prod")
    rows = _sequence(chip, ("add" if additive else "max",), x.dtype, math.prod(shape))
    lead = max((d for d in range(len(shape)) if shape[d] != 1), default=0)
    if lead not in dims:
        return rows
    lanes = chip.vector.repeat_bytes // x.dtype.itemsize
    kept = math.prod(n for d, n in enumerate(shape) if d not in dims)
    cost = chip.vector_cost("reduce_add" if additive else "reduce_max")
    across = kept * min(1.0, shape[lead] / lanes) * cost.passes
    return Vector(rows.issue + math.ceil(across), rows.delay + cost.delay_cycles)


def product(chip: Chip, x: Tile, y: Tile, fields: Mapping[str, int], steps: Mapping[int, int]) -> Product:
    """A product on the cube, its operands moved from L1 to L0 in parts that fit half of L0."""
    sizes = dict.fromkeys((isa.DOT_BATCH, isa.DOT_FREE, isa.DOT_CONTRACT), 1)
    other = 1
    for d, n in enumerate(extents(x, steps)):
        sizes[fields["xdims"] >> 2 * d & 3] *= n
    for d, n in enumerate(extents(y, steps)):
        if fields["ydims"] >> 2 * d & 3 == isa.DOT_FREE:
            other *= n
    b, m, k, n = sizes[isa.DOT_BATCH], sizes[isa.DOT_FREE], sizes[isa.DOT_CONTRACT], other
    if not b * m * k * n:
        return Product(0, 0.0, 0.0, 0)
    item, cube, rate = min(x.dtype.itemsize, 4), chip.cube, chip.bandwidth
    step = chip.cube_k(item)
    m_blocks, n_blocks, k_steps = -(-m // cube.m), -(-n // cube.n), -(-k // step)
    widest = max(m_blocks * cube.m, n_blocks * cube.n)
    k_part = max(1, L0_HALF_BYTES // (widest * item * step))
    parts = -(-k_steps // k_part)
    part_bytes = item * step * k_steps / parts
    move = (
        m_blocks * cube.m * part_bytes / rate.l0a_write_bytes_per_cycle
        + n_blocks * cube.n * part_bytes / rate.l0b_write_bytes_per_cycle
        + cube.l1_to_l0_2d_cycles
        + cube.l1_to_l0_base_cycles
    )
    return Product(b * parts, move, m_blocks * n_blocks * k_steps / parts, 2 * b * m * n * k)


def drain(chip: Chip, tile: Tile, shape: Sequence[int]) -> float:
    """Cycles of L0C -> local through FIX, row by row."""
    rows, lead = math.prod(shape[:-1]), shape[-1] if shape else 1
    rate = chip.bandwidth
    return rows * max(
        math.ceil(lead * tile.dtype.itemsize / rate.core_ddr_bytes_per_cycle),
        math.ceil(lead * 4 / rate.l0c_read_bytes_per_cycle),
    )


def decode_cycles(chip: Chip, words: int) -> int:
    """Cycles that the scalar unit takes to fetch and take apart an instruction of so many words."""
    return chip.latency.scalar_load_cycles + words * chip.latency.scalar_alu_cycles
