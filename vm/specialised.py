"""The specialised executor: a template's words partially evaluated into one JAX function.

Everything fixed in the words (opcodes, tiles, static extents) is resolved while tracing; everything patched (extents, strides, offsets,
addresses) is read at run time from the bound words, which are an argument. So one XLA executable serves every shape.

A chip runs many small tiles; a CPU prefers few large ones. The words say which tile dims move with which loop, so a loop's step may be
*widened*: a parallel loop of unknown extent runs as a ladder of block sizes that covers the extent exactly (the last block of a rung is
shifted back and recomputes elements, which is harmless because iterations are independent); a reduce loop runs in blocks with the overrun
masked out of every reduction.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from vm import access, geometry, isa, products, semantics
from vm.access import SLACK_ROWS
from vm.decode import Address, Kernel, Loop, Op, Operand, Tile
from vm.errors import ProgramError
from vm.geometry import Blocks, Scalars
from vm.packing import Packing
from vm.program import LANES
from vm.tails import Tails

Array = Any
Arenas = dict[int, Array]  # by number: flat items, or [rows, 128] inside a kernel that stores whole lane rows

# LLVM at level 1 compiles a decoder block in two thirds of the time of level 3, and the code is as fast (process time, docs/executor.md).
XLA_OPTIONS: dict[str, Any] = {
    "xla_backend_optimization_level": 1,
    "xla_disable_hlo_passes": "while-loop-invariant-code-motion",
}

SETTLED_COPIES = 4  # copies of each element from which on a costly value is computed before it is repeated
COSTLY = frozenset(
    (
        "sin",
        "cos",
        "tan",
        "exp",
        "expm1",
        "log",
        "log1p",
        "tanh",
        "logistic",
        "erf",
        "erfc",
        "pow",
        "atan2",
        "sinh",
        "cosh",
    )
)

ARENA_DTYPES: dict[int, np.dtype] = {
    1: np.dtype(np.uint8),
    2: np.dtype(np.uint16),
    4: np.dtype(np.float32),
    8: np.dtype(np.int64),
}


@dataclass
class Axis:
    """The state of a loop's axis in the block being traced."""

    base: Any
    size: int
    valid: Any | None = None  # number of valid elements where the block may overrun


@dataclass(frozen=True)
class BufferRef:
    """What a step's buffer is, as far as code depends on it: which of the kernel's arenas it lies in, or which pinned argument it is."""

    arena: int | None
    dtype: np.dtype
    pinned: int | None = None


class Tracer:
    """Traces one decoded kernel for one step."""

    def __init__(
        self,
        kernel: Kernel,
        table: Scalars,
        scalars: Array,
        first: int,
        buffers: list[BufferRef],
        pinned: list[Array],
        packings: Sequence[Packing | None],
        wide: bool = False,
    ):
        self.kernel, self.table, self.buffers, self.pinned, self.packings = kernel, table, buffers, pinned, packings
        self.scalars, self.first, self.wide = scalars, first, wide
        self.ns = semantics.JaxNamespace()
        self.axes: dict[int, Axis] = {}
        self.local: dict[tuple[isa.Space, int], tuple[Array, Tile]] = {}
        self.tails = Tails()
        self.costly: dict[int, Array] = {}  # values that take costly functions to compute, by id
        self.weights: dict[
            int, tuple[Array, Array, Packing]
        ] = {}  # by id of the loaded value: it, and what it was packed as

    # --- operands ---------------------------------------------------------------------------------------------------------------
    def scalar(self, operand: Operand) -> Any:
        """A field as a Python int, or as a traced int64 of what the bound words hold."""
        return operand if isinstance(operand, int) else self.slot(self.table.slots[operand])

    def slot(self, number: int) -> Array:
        """One number of the vector of scalars, int64."""
        at = self.first + number
        return lax.squeeze(lax.slice(self.scalars, (at,), (at + 1,)), (0,))

    def sizes(self, tile: Tile) -> list[int]:
        return [size if axis == isa.NO_AXIS else self.axes[axis].size for size, axis in tile.dims]

    def dims(self, tile: Tile) -> list[access.Dim]:
        out = []
        for size, axis in tile.dims:
            if axis == isa.NO_AXIS:
                out.append(access.Dim(size))
            else:
                a = self.axes[axis]
                out.append(access.Dim(a.size, a.base, a.valid))
        return out

    def read(self, number: int) -> Array:
        tile = self.kernel.tiles[number]
        value, _ = self.local[tile.space, tile.address]
        sizes = self.sizes(tile)
        if value.dtype != tile.dtype:
            raise ProgramError(f"tile {number} is read as {tile.dtype} but holds {value.dtype}")
        return value if list(value.shape) == sizes else value.reshape(sizes)

    def write(self, number: int, value: Array) -> None:
        tile = self.kernel.tiles[number]
        sizes = self.sizes(tile)
        if list(value.shape) != sizes or value.dtype != tile.dtype:
            raise ProgramError(f"tile {number} is {tile.dtype}{sizes} but gets {value.dtype}{list(value.shape)}")
        self.local[tile.space, tile.address] = (value, tile)

    def mask(self, tile: Tile, over: Iterable[int]) -> Array | None:
        """True where the elements along the dims ``over`` are inside their extents; None if they all are."""
        found = None
        for d in over:
            _, axis = tile.dims[d]
            state = self.axes.get(axis)
            if axis != isa.NO_AXIS and state is not None and state.valid is not None:
                ok = (jnp.arange(state.size, dtype=jnp.int64) < state.valid).reshape(
                    [-1 if i == d else 1 for i in range(len(tile.dims))]
                )
                found = ok if found is None else found & ok
        return found

    # --- memory -----------------------------------------------------------------------------------------------------------------
    def groups(self, op: Op, dims: list[access.Dim]) -> list[access.Group]:
        out: list[access.Group] = []
        parts: list[access.Part] = []
        for t in op.tail:
            dim = t["dim"]
            assert isinstance(dim, int)
            if t["gather"]:
                parts.append(access.Part(0, self.scalar(t["step"]), index=self._index(t, dims)))
            elif dim != isa.NO_DIM:
                parts.append(access.Part(dim, self.scalar(t["step"]), self.scalar(t["div"]), self.scalar(t["mod"])))
            if not t["chain"]:
                start, stride, hi = (self.scalar(t[k]) for k in ("start", "stride", "hi"))
                out.append(
                    access.Group(start, stride, parts, bool(t["bounded"]), any(p.index is not None for p in parts), hi)
                )
                parts = []
        return out

    def _index(self, term: dict[str, Operand], dims: list[access.Dim]) -> Array:
        number, mask = term["index"], term["mask"]
        assert isinstance(number, int) and isinstance(mask, int)
        value = self.read(number).astype(jnp.int64)
        shape = [dims[d].size if mask >> d & 1 else 1 for d in range(len(dims))]
        return value.reshape(shape)

    def _base(self, op: Op) -> tuple[access.Offset, BufferRef]:
        address = op.fields["address"]
        assert isinstance(address, Address)
        ref = self.buffers[address.buffer]
        base = access.Offset()
        if ref.arena is not None:
            base.add(self.scalar(address), LANES)
        base.add(self.scalar(op.fields["offset"]))
        return base, ref

    def load(self, op: Op, arenas: Arenas) -> None:
        number = op.fixed("dst")
        tile = self.kernel.tiles[number]
        dims = self.dims(tile)
        if any(d.size == 0 for d in dims):
            self.write(number, jnp.zeros([d.size for d in dims], tile.dtype))
            return
        base, ref = self._base(op)
        plan = access.resolve(self.groups(op, dims), dims, base)
        if ref.arena is None:
            assert ref.pinned is not None
            memory, packing = self.pinned[ref.pinned], self.packings[ref.pinned]
            if packing is not None:
                memory = memory.reshape(packing.shape)
                value = lax.transpose(memory, [packing.dims.index(d) for d in range(len(dims))])
                self.weights[id(value)] = (value, memory, packing)
                self.write(number, value)
                return
            if memory.size == 0:
                memory = jnp.zeros((1,), memory.dtype)
            out = access.fetch(memory.reshape(-1), plan, dims, overrun=0, lane_view=False)
        else:
            memory = arenas[ref.arena]
            out = from_arena(access.fetch(memory, plan, dims, overrun=SLACK_ROWS * LANES), tile.dtype)
        if plan.mask is not None:
            bits = self.scalar(op.fields["fill"])
            fill = isa.imm_value(bits, tile.dtype) if isinstance(bits, int) else self._patched_imm(bits, tile.dtype)
            out = jnp.where(plan.mask, out, fill)
        self.write(number, out)

    def _patched_imm(self, bits: Array, dtype: np.dtype) -> Array:
        return bits.astype(dtype) if dtype.kind in "iub" else lax.bitcast_convert_type(bits, jnp.float64).astype(dtype)

    def store(self, op: Op, arenas: Arenas) -> None:
        tile = self.kernel.tiles[op.fixed("x")]
        dims = self.dims(tile)
        if any(d.size == 0 for d in dims):
            return
        base, ref = self._base(op)
        if ref.arena is None:
            raise ProgramError("a store to a read-only buffer")
        plan = access.resolve(self.groups(op, dims), dims, base)
        key = ref.arena
        arenas[key] = access.put(arenas[key], to_arena(self.read(tile.id)), plan, dims, bool(op.fixed("add")))

    # --- instructions -----------------------------------------------------------------------------------------------------------
    def execute(self, op: Op, arenas: Arenas) -> None:
        """Runs one instruction on the block being traced."""
        name, family = op.insn.name, op.insn.family
        keeps_shape = family in ("unary", "binary", "select") or name in ("copy", "cast", "permute")
        sources = (
            [self.local[t.space, t.address][0] for t in (self.kernel.tiles[n] for n in reads(op))]
            if keeps_shape
            else []
        )
        self._execute(op, name, family, arenas)
        if keeps_shape and (name in COSTLY or any(id(x) in self.costly for x in sources)):
            tile = self.kernel.tiles[op.fixed("dst")]
            value = self.local[tile.space, tile.address][0]
            self.costly[id(value)] = value

    def _execute(self, op: Op, name: str, family: str, arenas: Arenas) -> None:
        if name == "load":
            self.load(op, arenas)
        elif name == "store":
            self.store(op, arenas)
        elif family == "sync":
            pass  # one instruction after the other, in order, needs no events
        elif family == "unary":
            x = self.read(op.fixed("x"))
            out = semantics.unary(self.ns, name, x)
            self.tails.unary(name, x, out)
            self.write(op.fixed("dst"), out)
        elif family == "binary":
            x, y = self.read(op.fixed("x")), self.read(op.fixed("y"))
            out = semantics.binary(self.ns, name, x, y)
            self.tails.binary(name, x, y, out)
            self.write(op.fixed("dst"), out)
        elif family == "select":
            p, x, y = (self.read(op.fixed(k)) for k in ("p", "x", "y"))
            self.write(op.fixed("dst"), jnp.where(p, x, y))
        elif family == "reduce":
            self.reduce(op, name.removeprefix("reduce_"))
        else:
            getattr(self, f"do_{name}")(op)

    def reduce(self, op: Op, kind: str) -> None:
        tile = self.kernel.tiles[op.fixed("x")]
        x = self.read(tile.id)
        over = tuple(d for d in range(len(tile.dims)) if op.fixed("mask") >> d & 1)
        ok = self.mask(tile, over)
        if ok is not None and not (kind == "sum" and self.tails.vanishes(x, over)):
            x = jnp.where(ok, x, isa.identity(kind, tile.dtype))
            if kind == "max" and tile.dtype.kind == "f":
                self.write(tile.id, x)  # what lies outside may be anything, so also this
        out = semantics.reduce(self.ns, kind, x, over)
        if op.fixed("accumulate"):
            out = semantics.combine(self.ns, kind, self.read(op.fixed("dst")), out)
        if ok is not None and kind == "max" and tile.dtype.kind == "f":
            self.tails.maximum(x, out, over)
        self.write(op.fixed("dst"), out)

    def do_mmad(self, op: Op) -> None:
        values, roles = [], []
        for name in ("x", "y"):
            tile = self.kernel.tiles[op.fixed(name)]
            role = [op.fixed(f"{name}dims") >> (2 * d) & 3 for d in range(len(tile.dims))]
            value = self.read(tile.id)
            contracted = tuple(d for d, r in enumerate(role) if r == isa.DOT_CONTRACT)
            ok = None if self.tails.vanishes(value, contracted) else self.mask(tile, contracted)
            value = value if ok is None else jnp.where(ok, value, jnp.zeros((), value.dtype))
            values.append(value.astype(np.float32) if self.wide and value.dtype.itemsize == 2 else value)
            roles.append(role)
        dst = self.kernel.tiles[op.fixed("dst")]
        weight = self.weights.get(id(values[1]))
        if weight is not None:
            out = products.with_weight(values[0], roles[0], weight[1], roles[1], weight[2], self.one)
        else:
            out = products.product(values[0], roles[0], values[1], roles[1], dst.dtype)
        out = out.reshape(self.sizes(dst))
        if op.fixed("accumulate"):
            out = self.read(dst.id) + out
        self.write(dst.id, out)

    def settled(self, x: Array) -> Array:
        """A value that is computed here, once: XLA would compute it again for every element that it is repeated to. It does not fuse
        what enters a loop with what leaves it."""
        last = self.scalars.shape[0] - 1 - self.first
        start = (jnp.int64(0), jnp.zeros_like(x))
        return lax.while_loop(lambda state: state[0] < self.slot(last), lambda state: (state[0] + 1, x), start)[1]

    def one(self) -> Array:
        """1.0, from the last of the scalars."""
        return self.scalars[self.scalars.shape[0] - 1].astype(np.float32)

    def do_fill(self, op: Op) -> None:
        tile = self.kernel.tiles[op.fixed("dst")]
        bits = self.scalar(op.fields["imm"])
        value = isa.imm_value(bits, tile.dtype) if isinstance(bits, int) else self._patched_imm(bits, tile.dtype)
        self.write(tile.id, jnp.full(self.sizes(tile), value, tile.dtype))

    def do_iota(self, op: Op) -> None:
        tile = self.kernel.tiles[op.fixed("dst")]
        dims = self.dims(tile)
        part = access.Part(
            op.fixed("dim"),
            self.scalar(op.fields["step"]),
            self.scalar(op.fields["div"]),
            self.scalar(op.fields["mod"]),
        )
        value = access.part_positions(part, dims) + self.scalar(op.fields["start"])
        self.write(tile.id, jnp.broadcast_to(value, [d.size for d in dims]).astype(tile.dtype))

    def do_copy(self, op: Op) -> None:
        tile = self.kernel.tiles[op.fixed("dst")]
        x, sizes = self.read(op.fixed("x")), self.sizes(tile)
        self.write(tile.id, x if list(x.shape) == sizes else x.reshape(sizes))

    def do_bcast(self, op: Op) -> None:
        tile = self.kernel.tiles[op.fixed("dst")]
        dims = tuple(d for d in range(len(tile.dims)) if op.fixed("mask") >> d & 1)
        x = self.read(op.fixed("x"))
        if id(x) in self.costly and math.prod(self.sizes(tile)) >= SETTLED_COPIES * x.size:
            x = self.settled(x)
        out = lax.broadcast_in_dim(x, self.sizes(tile), dims)
        self.tails.moved(x, out)
        self.write(tile.id, out)

    def do_permute(self, op: Op) -> None:
        tile = self.kernel.tiles[op.fixed("dst")]
        perm = [op.fixed("perm") >> (4 * d) & 15 for d in range(len(tile.dims))]
        self.write(tile.id, jnp.transpose(self.read(op.fixed("x")), perm))

    def do_extract(self, op: Op) -> None:
        tile = self.kernel.tiles[op.fixed("dst")]
        dim, start, step = op.fixed("dim"), op.fixed("start"), op.fixed("step")
        n = tile.dims[dim][0]
        x = self.read(op.fixed("x"))
        if step > 0:
            out = lax.slice_in_dim(x, start, start + (n - 1) * step + 1 if n else start, step, dim)
        else:
            first = start + (n - 1) * step
            out = lax.rev(lax.slice_in_dim(x, first, start + 1 if n else first, -step, dim), (dim,))
        self.write(tile.id, out)

    def do_join(self, op: Op) -> None:
        parts = []
        for item in op.tail:
            assert isinstance(item["x"], int)
            parts.append(self.read(item["x"]))
        self.write(op.fixed("dst"), lax.concatenate(parts, op.fixed("dim")))

    def do_cast(self, op: Op) -> None:
        tile = self.kernel.tiles[op.fixed("dst")]
        self.write(tile.id, semantics.cast(self.ns, self.read(op.fixed("x")), tile.dtype))

    def do_lookup(self, op: Op) -> None:
        x, y, dim = self.read(op.fixed("x")), self.read(op.fixed("y")), op.fixed("dim")
        out = semantics.lookup(self.ns, x, y, dim)
        self.write(op.fixed("dst"), out)

    def _arg(self, op: Op, kind: str) -> None:
        tile = self.kernel.tiles[op.fixed("x")]
        index_tile, value_tile = self.kernel.tiles[op.fixed("dst")], self.kernel.tiles[op.fixed("y")]
        dim = op.fixed("dim")
        x = self.read(tile.id)
        ok = self.mask(tile, [dim])
        if ok is not None:
            x = jnp.where(ok, x, isa.identity(kind, tile.dtype))
        index, value = semantics.arg_reduce(self.ns, kind, x, dim)
        axis = tile.dims[dim][1]
        base = 0 if axis == isa.NO_AXIS else self.axes[axis].base
        index = (index + base).astype(index_tile.dtype)
        if op.fixed("accumulate"):
            old = self.read(index_tile.id), self.read(value_tile.id)
            index, value = semantics.better(self.ns, kind, index, value, *old)
        self.write(index_tile.id, index)
        self.write(value_tile.id, value)

    def do_argmax(self, op: Op) -> None:
        self._arg(op, "max")

    def do_argmin(self, op: Op) -> None:
        self._arg(op, "min")

    def _cumulative(self, op: Op) -> None:
        name, tile = op.insn.name, self.kernel.tiles[op.fixed("x")]
        x, dim = self.read(tile.id), op.fixed("dim")
        carry = None
        if op.fixed("carry"):
            if name not in semantics.SCANNED:
                raise ProgramError(f"{name} cannot carry over blocks")
            ok = self.mask(tile, [dim])
            if ok is not None:
                x = jnp.where(ok, x, isa.identity(semantics.SCANNED[name], x.dtype))
            carry = self.read(op.fixed("y"))
        out = semantics.cumulative(self.ns, name, x, dim, bool(op.fixed("reverse")), carry)
        if carry is not None:
            last = lax.slice_in_dim(out, x.shape[dim] - 1, x.shape[dim], axis=dim)
            self.write(op.fixed("y"), last.astype(x.dtype))
        self.write(op.fixed("dst"), out.astype(x.dtype))

    do_cumsum = do_cumprod = do_cummax = do_cummin = do_cumlogsumexp = _cumulative

    # --- loops ------------------------------------------------------------------------------------------------------------------
    def block(self, body: list[Op | Loop], arenas: Arenas) -> None:
        """Traces a list of instructions and loops in order."""
        for item in body:
            if isinstance(item, Loop):
                self.loop(item, arenas)
            else:
                self.execute(item, arenas)

    def loop(self, loop: Loop, arenas: Arenas) -> None:
        """Traces a loop: in one block if its extent is fixed and small, else as a JAX loop for every kind of block."""
        if self.table.whole(loop):
            if loop.extent:
                self.axes[loop.axis] = Axis(0, loop.extent)  # type: ignore[arg-type]
                self.block(loop.body, arenas)
                del self.axes[loop.axis]
            return
        slot = self.table.loops[loop.op.at]
        t = jnp.int64(0)
        for k, block in enumerate(geometry.shapes(loop.kind, self.table.rungs[loop.axis])):
            t = self._iterate(loop, t, slot + 2 * k, block, arenas)

    def _iterate(self, loop: Loop, t: Array, slot: int, block: Blocks, arenas: Arenas) -> Array:
        """Traces the blocks of one size, from block number ``t`` on; returns the number of the next block. What the vector of scalars
        holds is read where it is used: XLA runs a small kernel for everything that is computed outside of a loop."""
        stored = self._stored(loop.body)
        carried = self._carried(loop.body)
        shifted = not self.table.adds and (not block.masked or loop.kind == isa.LoopKind.PARALLEL)
        masked = (block.masked or self.table.adds) and block.size > 1
        saved = dict(self.local)

        def more(state: tuple[Array, list[Array], list[Array]]) -> Array:
            return state[0] < self.slot(slot)

        def body(state: tuple[Array, list[Array], list[Array]]) -> tuple[Array, list[Array], list[Array]]:
            t, arrays, values = state
            inner = dict(arenas)
            inner.update(zip(stored, arrays, strict=True))
            self.local = dict(saved)
            for key, value in zip(carried, values, strict=True):
                self.local[key] = (value, saved[key][1])
            n = self.scalar(loop.extent)
            at = self.slot(slot + 1) + t * block.size
            if shifted:
                at = jnp.minimum(at, n - block.size)
                at = jnp.maximum(at, 0) if masked else at
            self.axes[loop.axis] = Axis(at, block.size, n - at if masked else None)
            self.block(loop.body, inner)
            del self.axes[loop.axis]
            return t + 1, [inner[k] for k in stored], [self.local[k][0].reshape(saved[k][0].shape) for k in carried]

        end, arrays, values = lax.while_loop(
            more, body, (t, [arenas[k] for k in stored], [saved[k][0] for k in carried])
        )
        self.local = saved
        arenas.update(zip(stored, arrays, strict=True))
        for key, value in zip(carried, values, strict=True):
            self.local[key] = (value, saved[key][1])
        return end

    def stores_outside_of_loops(self) -> bool:
        """Whether some store is not inside of a JAX loop."""

        def any_in(body: list[Op | Loop]) -> bool:
            return any(
                (self.table.whole(item) and any_in(item.body)) if isinstance(item, Loop) else item.insn.name == "store"
                for item in body
            )

        return any_in(self.kernel.body)

    def as_loop(self, arenas: Arenas) -> None:
        """Traces the kernel as a loop that runs once. XLA fuses a store that stands in the open into every reader of the arena, and then
        copies the arena for each of them; what is in a loop stays there."""
        stored = self._stored(self.kernel.body)

        def body(state: tuple[Array, list[Array]]) -> tuple[Array, list[Array]]:
            inner = dict(arenas)
            inner.update(zip(stored, state[1], strict=True))
            self.block(self.kernel.body, inner)
            return state[0] + 1, [inner[k] for k in stored]

        last = self.scalars.shape[0] - 1
        start = (jnp.int64(0), [arenas[k] for k in stored])
        _, arrays = lax.while_loop(lambda state: state[0] < self.slot(last - self.first), body, start)
        arenas.update(zip(stored, arrays, strict=True))

    def _stored(self, body: list[Op | Loop]) -> list[int]:
        """The arenas into which a body stores."""
        return sorted({a for op in _ops(body) if op.insn.name == "store" and (a := self._arena_of(op)) is not None})

    def lane_arenas(self) -> list[int]:
        """Arenas into which every store of the kernel writes whole lane rows at aligned places: they are seen as rows of lanes."""
        aligned: dict[int, bool] = {}
        for op in _ops(self.kernel.body):
            if op.insn.name == "store":
                key = self._arena_of(op)
                if key is None:
                    raise ProgramError("a store to a read-only buffer")
                aligned[key] = aligned.get(key, True) and self._stores_lanes(op)
        return [key for key, ok in aligned.items() if ok]

    def _stores_lanes(self, op: Op) -> bool:
        dims = self.kernel.tiles[op.fixed("x")].dims
        coefs: dict[int, int] = {}
        for t in op.tail:
            step, stride, start, dim = t["step"], t["stride"], t["start"], t["dim"]
            if (
                t["div"] != 1
                or t["mod"] != 0
                or not all(isinstance(k, int) for k in (step, stride, start, dim))
                or start
            ):
                return False
            coefs[dim] = coefs.get(dim, 0) + step * stride  # type: ignore[index,operator,arg-type]
        sizes = {d: n if a == isa.NO_AXIS else self.table.lengths.get(a, 0) for d, (n, a) in enumerate(dims)}
        run = 1
        for d in sorted((d for d, n in sizes.items() if n > 1), key=lambda d: coefs.get(d, 0)):
            if coefs.get(d, 0) != run:
                break
            run *= sizes[d]
        offset = op.fields["offset"]
        others = [c for c in coefs.values() if c >= run]
        return (
            run % LANES == 0 and isinstance(offset, int) and offset % LANES == 0 and all(c % LANES == 0 for c in others)
        )

    def _arena_of(self, op: Op) -> int | None:
        address = op.fields["address"]
        assert isinstance(address, Address)
        ref = self.buffers[address.buffer]
        return ref.arena

    def _carried(self, body: list[Op | Loop]) -> list[tuple[isa.Space, int]]:
        """Local addresses that an iteration reads before it writes them, and writes: accumulators."""
        written: set[tuple[isa.Space, int]] = set()
        exposed: dict[tuple[isa.Space, int], None] = {}
        for op in _ops(body):
            for number in reads(op):
                tile = self.kernel.tiles[number]
                key = (tile.space, tile.address)
                if key not in written and key in self.local:
                    exposed[key] = None
            for number in writes(op):
                tile = self.kernel.tiles[number]
                written.add((tile.space, tile.address))
        return [k for k in exposed if k in written]


def reads(op: Op) -> list[int]:
    """Tiles whose old contents the instruction reads."""
    out: list[int] = []
    f, family = op.fields, op.insn.family
    for name in ("x", "y", "p"):
        value = f.get(name)
        if isinstance(value, int) and not (name == "y" and family in ("argreduce", "cumulative")):
            out.append(value)
    if f.get("accumulate"):
        out.append(op.fixed("dst"))
        if family == "argreduce":
            out.append(op.fixed("y"))
    if f.get("carry"):
        out.append(op.fixed("y"))
    for item in op.tail:
        for name in ("x", "index"):
            value = item.get(name)
            if isinstance(value, int) and (name == "x" or item.get("gather")):
                out.append(value)
    return out


def writes(op: Op) -> list[int]:
    """Tiles the instruction writes."""
    out = [op.fixed("dst")] if "dst" in op.fields else []
    if op.insn.family == "argreduce" or (op.insn.family == "cumulative" and op.fields["carry"]):
        out.append(op.fixed("y"))
    return out


def _ops(body: Iterable[Op | Loop]) -> Iterable[Op]:
    for item in body:
        if isinstance(item, Loop):
            yield from _ops(item.body)
        else:
            yield item


def from_arena(x: Array, dtype: np.dtype) -> Array:
    """A tile of an arena's carrier type as ``dtype``, bit for bit."""
    if x.dtype == dtype:
        return x
    return x != 0 if dtype == np.bool_ else lax.bitcast_convert_type(x, dtype)


def to_arena(x: Array) -> Array:
    """A tile as its arena's carrier type."""
    carrier = ARENA_DTYPES[x.dtype.itemsize]
    if x.dtype == carrier:
        return x
    return x.astype(carrier) if x.dtype == np.bool_ else lax.bitcast_convert_type(x, carrier)


def trace(
    kernel: Kernel,
    table: Scalars,
    scalars: Array,
    first: int,
    buffers: list[BufferRef],
    pinned: list[Array],
    packings: Sequence[Packing | None],
    arenas: Arenas,
    wide: bool = False,
    joined: bool = False,
) -> Arenas:
    """Runs one kernel symbolically: the arenas after it. ``scalars``, from number ``first`` on, is what ``table.fill`` makes of the
    step's bound words; the last one of them is 1. ``wide`` widens 16-bit factors of products before the product
    (``vm.hlo.narrow_products`` says why). ``joined``: other kernels are traced into the same code."""
    out = dict(arenas)
    tracer = Tracer(kernel, table, scalars, first, buffers, pinned, packings, wide)
    for key in tracer.lane_arenas():
        out[key] = out[key].reshape(-1, LANES)
    if joined and tracer.stores_outside_of_loops():
        tracer.as_loop(out)
    else:
        tracer.block(kernel.body, out)
    return {key: arena.reshape(-1) for key, arena in out.items()}
