"""Global memory accesses of a tile, as JAX array operations: which elements a term list means, and how to fetch them in few pieces."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from vm.program import LANES

SLACK_ROWS = 8192  # lane rows past an arena's end that a masked overrun may read
UNROLLED_SLICES = 8  # a load of as many slices or fewer is unrolled
UNROLLED_PIECES = 16  # a store in this many pieces or fewer is unrolled

Array = Any
Scalar = Any  # a Python int or a traced int64


@dataclass
class Offset:
    """A scalar element offset ``const + sum(value * multiplier)`` whose alignment is known while tracing."""

    const: int = 0
    parts: list[tuple[Array, int]] = field(default_factory=list)

    def add(self, value: Scalar, multiplier: int = 1) -> None:
        """Adds ``value * multiplier``."""
        if isinstance(value, int):
            self.const += value * multiplier
        elif multiplier:
            self.parts.append((value, multiplier))

    @property
    def alignment(self) -> int:
        """A number that divides the offset whatever the traced values are (0 if the offset is 0)."""
        return math.gcd(self.const, *(m for _, m in self.parts))

    def value(self, unit: int = 1) -> Scalar:
        """The offset in units of ``unit`` elements, which must divide ``alignment``."""
        total: Scalar = jnp.int64(self.const // unit)
        for v, m in self.parts:
            total = total + v * (m // unit)
        return total


@dataclass
class Dim:
    """One dim of the tile: its block size, the global index of its first element, and the valid count where it may overrun."""

    size: int
    base: Scalar = 0
    valid: Scalar | None = None

    def index(self) -> Array:
        """Global indices along the dim, int64[size]."""
        return self.base + jnp.arange(self.size, dtype=jnp.int64)


@dataclass
class Part:
    """One term's use of a tile dim: ``step * ((i // div) % mod)``; ``index`` holds gathered positions instead."""

    dim: int
    step: Scalar
    div: Scalar = 1
    mod: Scalar = 0
    index: Array | None = None

    @property
    def linear(self) -> bool:
        """Whether the index is used as it is."""
        return (
            self.index is None
            and isinstance(self.div, int)
            and self.div <= 1
            and isinstance(self.mod, int)
            and self.mod == 0
        )


@dataclass
class Group:
    """All terms of one source dim."""

    start: Scalar
    stride: Scalar
    parts: list[Part]
    bounded: bool = False
    gather: bool = False
    hi: Scalar = 0


def _times(a: Scalar, b: Scalar) -> Scalar:
    return a * b


def _shaped(x: Array, dims: list[int], rank: int) -> Array:
    """Puts a 1-D array on dim ``dims[0]`` of a rank-``rank`` result."""
    shape = [1] * rank
    shape[dims[0]] = x.shape[0]
    return x.reshape(shape)


def part_positions(part: Part, dims: list[Dim]) -> Array:
    """``step * ((i // div) % mod)`` along the part's dim, shaped to broadcast over all dims."""
    if part.index is not None:
        return part.index * part.step
    i = dims[part.dim].index()
    if not (isinstance(part.div, int) and part.div <= 1):
        i = i // jnp.maximum(part.div, 1)
    if not (isinstance(part.mod, int) and part.mod == 0):
        i = i % jnp.maximum(part.mod, 1)
    return _shaped(i * part.step, [part.dim], len(dims))


@dataclass
class Plan:
    """A resolved access: element offset = base + per-dim coefficients + extra (broadcastable array); mask tells valid elements."""

    base: Offset
    coefs: list[Scalar]  # per dim, int where known
    extra: Array | None
    extra_dims: set[int]
    mask: Array | None


def resolve(groups: list[Group], dims: list[Dim], base: Offset) -> Plan:
    """Splits the terms into a scalar base, linear coefficients and whatever needs index arrays."""
    coefs: list[Scalar] = [0] * len(dims)
    extra: Array | None = None
    extra_dims: set[int] = set()
    mask: Array | None = None
    for g in groups:
        if not (g.bounded or g.gather):
            if isinstance(g.stride, int):
                base.add(g.start, g.stride)
            else:
                base.add(_times(g.start, g.stride))
            for p in g.parts:
                factor = _times(p.step, g.stride)
                if p.linear:
                    coefs[p.dim] = coefs[p.dim] + factor
                elif dims[p.dim].size == 1 and p.index is None:
                    base.add(
                        part_positions(Part(p.dim, 1, p.div, p.mod), dims).reshape(()),
                        factor if isinstance(factor, int) else 1,
                    ) if isinstance(factor, int) else base.add(
                        part_positions(Part(p.dim, 1, p.div, p.mod), dims).reshape(()) * factor
                    )
                else:
                    extra = _plus(extra, part_positions(p, dims) * g.stride)
                    extra_dims.add(p.dim)
            continue
        pos: Array = jnp.full((1,) * len(dims), g.start, jnp.int64)
        for p in g.parts:
            pos = pos + part_positions(p, dims)
            if p.index is None:
                extra_dims.add(p.dim)
            else:
                extra_dims.update(d for d in range(len(dims)) if p.index.shape[d] > 1)
        if g.bounded:
            ok = (pos >= 0) & (pos < g.hi)
            mask = ok if mask is None else mask & ok
        pos = jnp.clip(pos, 0, jnp.maximum(g.hi - 1, 0))
        extra = _plus(extra, pos * g.stride)
    for d, dim in enumerate(dims):
        c = coefs[d]
        if not (isinstance(c, int) and c == 0):
            base.add(dim.base, c) if isinstance(c, int) else base.add(_times(dim.base, c))
    extra_dims = {d for d in extra_dims if dims[d].size > 1}
    if extra is not None and extra.size == 1:
        base.add(extra.reshape(()))
        extra, extra_dims = None, set()
    return Plan(base, coefs, extra, extra_dims, mask)


def _plus(a: Array | None, b: Array) -> Array:
    return b if a is None else a + b


def run_dims(plan: Plan, dims: list[Dim], overrun: int) -> tuple[list[int], int]:
    """The dims (innermost last) that form one contiguous run in memory, and its length. A dim that may overrun its extent joins only if
    the elements read past the end stay below ``overrun``."""
    order = [
        d
        for d in range(len(dims))
        if dims[d].size > 1 and d not in plan.extra_dims and isinstance(plan.coefs[d], int) and plan.coefs[d] > 0
    ]
    order.sort(key=lambda d: (plan.coefs[d], -d))
    run, chosen = 1, []
    for d in order:
        if plan.coefs[d] != run or (dims[d].valid is not None and run * dims[d].size > overrun):
            break
        chosen.append(d)
        run *= dims[d].size
    return chosen[::-1], run


def rest_offsets(plan: Plan, dims: list[Dim], rest: list[int]) -> Array:
    """Element offsets (relative to the base) over the dims that are not part of the run, int64[sizes of rest]."""
    total: Array = jnp.zeros((1,) * len(dims), jnp.int64)
    for d in rest:
        if not (isinstance(plan.coefs[d], int) and plan.coefs[d] == 0):
            total = total + _shaped(jnp.arange(dims[d].size, dtype=jnp.int64) * plan.coefs[d], [d], len(dims))
    if plan.extra is not None:
        total = total + plan.extra
    shape = [dims[d].size if d in rest else 1 for d in range(len(dims))]
    return jnp.broadcast_to(total, shape).reshape([dims[d].size for d in rest])


def fetch(memory: Array, plan: Plan, dims: list[Dim], overrun: int, lane_view: bool = True) -> Array:
    """The tile's elements from ``memory`` ([rows, 128] or flat), in the dims' order. ``lane_view``: it is a whole number of lane rows.
    Elements outside the mask are arbitrary."""
    chosen, run = run_dims(plan, dims, overrun)
    rest = [d for d in range(len(dims)) if d not in chosen and dims[d].size > 1]
    flat = memory.reshape(-1)
    if flat.shape[0] < run:  # a block larger than the whole array: traced, never run
        flat = jnp.pad(flat, (0, run - flat.shape[0]))
    shape = [dims[d].size for d in rest] + [dims[d].size for d in chosen]
    if not rest:
        # Flat, whatever is stored in rows of lanes: memory is then indexed linearly in the tile's own dims, which XLA vectorises.
        out = flat if run == flat.shape[0] else lax.dynamic_slice(flat, (plan.base.value(),), (run,))
    else:
        offsets = (rest_offsets(plan, dims, rest) + plan.base.value()).reshape(-1, 1)
        lanes = lane_view and run % LANES == 0 and plan.base.alignment % LANES == 0 and plan.extra is None
        lanes = lanes and all(isinstance(plan.coefs[d], int) and plan.coefs[d] % LANES == 0 for d in rest)
        if len(offsets) <= UNROLLED_SLICES:
            # XLA takes a gather for as much work as its whole memory, and hands half of the smallest one to another thread.
            out = jnp.concatenate([lax.dynamic_slice(flat, (offset[0],), (run,)) for offset in offsets])
        elif lanes:
            out = _rows(memory.reshape(-1, LANES), offsets // LANES, run // LANES)
        else:
            out = _slices(flat, offsets, run)
    out = out.reshape(shape)
    perm = rest + chosen
    if perm != sorted(perm):
        out = jnp.transpose(out, [perm.index(d) for d in sorted(perm)])
    return out.reshape([d.size for d in dims])


def _slices(flat: Array, offsets: Array, run: int) -> Array:
    numbers = lax.GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(), start_index_map=(0,))
    return lax.gather(flat, offsets, numbers, (run,), mode=lax.GatherScatterMode.CLIP)


def _rows(memory: Array, rows: Array, n: int) -> Array:
    numbers = lax.GatherDimensionNumbers(offset_dims=(1, 2), collapsed_slice_dims=(), start_index_map=(0,))
    return lax.gather(memory, rows, numbers, (n, LANES), mode=lax.GatherScatterMode.CLIP)


def valid_elements(dims: list[Dim]) -> Array | None:
    """True for the elements of a tile that lie inside their extents, broadcastable over the dims; None if all do."""
    found: Array | None = None
    for d, dim in enumerate(dims):
        if dim.valid is not None:
            ok = _shaped(jnp.arange(dim.size, dtype=jnp.int64) < dim.valid, [d], len(dims))
            found = ok if found is None else found & ok
    return found


def put(memory: Array, value: Array, plan: Plan, dims: list[Dim], add: bool = False) -> Array:
    """``memory`` (flat, or [rows, 128] where everything is aligned to lane rows) with the tile ``value`` written in, or added to what it
    holds. Elements beyond a dim's valid count keep what the memory holds."""
    chosen, run = run_dims(plan, dims, SLACK_ROWS * LANES)
    rest = [d for d in range(len(dims)) if d not in chosen and dims[d].size > 1]
    perm = rest + chosen
    n = int(np.prod([dims[d].size for d in rest]))

    def arranged(x: Array) -> Array:
        kept = x.reshape([dims[d].size for d in sorted(perm)])
        return (jnp.transpose(kept, [sorted(perm).index(d) for d in perm]) if perm != sorted(perm) else kept).reshape(
            n, run
        )

    pieces = arranged(value)
    valid = valid_elements(dims)
    inside = None if valid is None else arranged(jnp.broadcast_to(valid, [d.size for d in dims]))
    offsets = rest_offsets(plan, dims, rest).reshape(-1) + plan.base.value() if rest else plan.base.value().reshape(1)
    shape = (run // LANES, LANES) if memory.ndim == 2 else (run,)

    def piece(x: Array, i: Any) -> Array:
        return (x if n == 1 else lax.dynamic_slice(x, (i, jnp.int32(0)), (1, run))).reshape(shape)

    def write(i: Any, memory: Array) -> Array:
        at = (offsets[i] // LANES, jnp.int64(0)) if memory.ndim == 2 else (offsets[i],)
        new = piece(pieces, i)
        if add:
            new = new + lax.dynamic_slice(memory, at, shape)
        if inside is not None:
            new = jnp.where(piece(inside, i), new, lax.dynamic_slice(memory, at, shape))
        return lax.dynamic_update_slice(memory, new, at)

    if n <= UNROLLED_PIECES:
        for i in range(n):
            memory = write(jnp.int32(i), memory)
        return memory
    return lax.fori_loop(jnp.int32(0), jnp.int32(n), write, memory)
