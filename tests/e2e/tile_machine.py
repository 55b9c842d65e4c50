"""A small NumPy machine for the tests: one core, a chip tile at a time, every access checked.

It runs a program's words without XLA, so thousands of graphs can be tried, and it is strict where the JAX executor is forgiving: local
memory is by address (a tile that overlaps another one destroys it), memory starts as garbage, and an element outside its buffer is an
error. What the computing instructions mean comes from the graph ops' own NumPy reference.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from graph_kernel.ops import OPS
from vm import host, isa
from vm.binder import Binder, BoundProgram, NumberedStep
from vm.decode import Address, Hole, Kernel, Loop, Op, Operand, Tile, decode, unordered
from vm.dtypes import dtype_of, item_size
from vm.program import INPUT, LANES, CondStep, ForStep, HostStep, KernelStep, Program, WhileStep

GARBAGE = 0xA5


class MachineFault(AssertionError):
    """The words did what a correct program never does."""


class Machine:
    """A program with its memory. ``tile`` overrides the chip tile of every loop (a size that leaves tails)."""

    def __init__(self, program: Program, tile: int | None = None) -> None:
        self.program, self.tile = program, tile
        self.binder = Binder(program)
        self.kernels: dict[int, Kernel] = {}

    def run(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Results of one launch."""
        self.arrays = [np.asarray(a) for a in arrays]
        self.bound: BoundProgram = self.binder.bind_sizes(self.binder.check_inputs(self.arrays))
        self.arenas = {
            key: np.full(rows * LANES * key[1], GARBAGE, np.uint8) for key, rows in self.bound.arena_rows.items()
        }
        for b, buffer in enumerate(self.program.buffers):
            if buffer.space == INPUT and buffer.input is not None:
                self.memory(b)[...] = self.arrays[buffer.input].reshape(-1)
        self.steps(self.binder.steps)
        out: list[Any] = [None] * len(self.program.outputs)
        for b, buffer in enumerate(self.program.buffers):
            if buffer.output is not None:
                out[buffer.output] = self.memory(b).reshape(self.bound.output_shapes[buffer.output]).copy()
        return out

    def memory(self, b: int) -> np.ndarray:
        """A buffer's elements, flat and writable."""
        buffer = self.program.buffers[b]
        dtype = dtype_of(buffer.dtype)
        if buffer.offset is None:
            source = (
                self.program.constants[buffer.constant]
                if buffer.constant is not None
                else self.arrays[buffer.input or 0]
            )
            return np.ascontiguousarray(source).reshape(-1)
        item = item_size(buffer.dtype)
        start = self.bound.regs[buffer.offset] * LANES * item
        n = self.bound.regs[buffer.elements] * dtype.itemsize
        arena = self.arenas[buffer.space, item]
        if start + n > arena.size:
            raise MachineFault(f"buffer {buffer.name} ends outside its arena")
        return arena[start : start + n].view(dtype)

    def steps(self, items: Sequence[NumberedStep]) -> None:
        for item in items:
            step = item.step
            if isinstance(step, KernelStep) and item.index in self.bound.skipped:
                continue
            if isinstance(step, KernelStep):
                kernel = self.kernels.get(step.template)
                if kernel is None:
                    kernel = self.kernels[step.template] = unordered(decode(self.program.templates[step.template]))
                _Core(self, kernel, self.bound.kernel_words(item.index), step).run()
            elif isinstance(step, HostStep):
                inputs = [self.memory(b).reshape(self.bound.shape(b)) for b in step.inputs]
                results = host.call(step.function, inputs, self.bound.host_attrs[item.index])
                self.bound = self.binder.after_host(self.bound, step, results)
                for b, value in zip(step.outputs, results, strict=True):
                    if tuple(np.shape(value)) != self.bound.shape(b):
                        raise MachineFault(
                            f"host function {step.function} gave {np.shape(value)}, expected {self.bound.shape(b)}"
                        )
                    self.memory(b)[...] = np.asarray(value).reshape(-1)
            elif isinstance(step, CondStep):
                index = int(self.memory(step.selector)[0])
                self.steps(item.blocks[min(max(index, 0), len(item.blocks) - 1)])
            elif isinstance(step, WhileStep):
                self.steps(item.blocks[0])
                while bool(self.memory(step.predicate)[0]):
                    self.steps(item.blocks[1])
                    self.steps(item.blocks[0])
            elif isinstance(step, ForStep):
                count = self.bound.regs[step.count]
                for k in range(count):
                    self.memory(step.counter)[0] = count - 1 - k if step.reverse else k
                    self.steps(item.blocks[0])


class _Core:
    """One kernel being run."""

    def __init__(self, machine: Machine, kernel: Kernel, words: np.ndarray, step: KernelStep) -> None:
        self.machine, self.kernel, self.words, self.step = machine, kernel, words, step
        self.axes: dict[int, tuple[int, int]] = {}  # axis -> (first index, steps)
        self.local: dict[tuple[isa.Space, int], tuple[np.ndarray, int]] = {}  # -> (value, end address)

    def run(self) -> None:
        self.block(self.kernel.body)

    def block(self, body: list[Op | Loop]) -> None:
        for item in body:
            if isinstance(item, Loop):
                extent = self.scalar(item.extent)
                tile = self.machine.tile or self.scalar(item.op.fields["tile"])
                for base in range(0, extent, tile):
                    self.axes[item.axis] = (base, min(tile, extent - base))
                    self.block(item.body)
                self.axes.pop(item.axis, None)
            else:
                self.execute(item)

    # --- operands
    def scalar(self, operand: Operand) -> int:
        if isinstance(operand, int):
            return operand
        assert isinstance(operand, Hole)
        value = int(self.words[operand.word]) >> operand.lo & ((1 << operand.width) - 1)
        return value - (1 << operand.width) if operand.signed and value >> (operand.width - 1) else value

    def sizes(self, tile: Tile) -> list[int]:
        return [n if axis == isa.NO_AXIS else self.axes[axis][1] for n, axis in tile.dims]

    def index(self, tile: Tile, d: int) -> np.ndarray:
        n, axis = tile.dims[d]
        base, count = (0, n) if axis == isa.NO_AXIS else self.axes[axis]
        return (base + np.arange(count)).reshape([-1 if i == d else 1 for i in range(len(tile.dims))])

    def read(self, number: int) -> np.ndarray:
        tile = self.kernel.tiles[number]
        found = self.local.get((tile.space, tile.address))
        if found is None:
            raise MachineFault(f"tile {number} is read where nothing is")
        value = found[0]
        sizes = self.sizes(tile)
        if value.dtype != tile.dtype or value.size != math.prod(sizes):
            raise MachineFault(f"tile {number} is {tile.dtype}{sizes} and holds {value.dtype}{value.shape}")
        return value.reshape(sizes)

    def write(self, number: int, value: np.ndarray) -> None:
        tile = self.kernel.tiles[number]
        if list(value.shape) != self.sizes(tile):
            raise MachineFault(f"tile {number} is {self.sizes(tile)} and gets {value.shape}")
        end = tile.address + max(tile.dtype.itemsize * math.prod(n for n, _ in tile.dims), 1)
        for key, (_, other) in list(self.local.items()):
            if key[0] == tile.space and key[1] < end and tile.address < other and key[1] != tile.address:
                del self.local[key]
        self.local[tile.space, tile.address] = (np.array(value, tile.dtype), end)

    # --- memory
    def positions(self, op: Op, tile: Tile) -> tuple[np.ndarray, np.ndarray]:
        """Element offsets of a tile in its buffer, and where they are within bounds."""
        rank = len(tile.dims)
        total = np.full([1] * rank, self.scalar(op.fields["offset"]), np.int64)
        inside = np.full([1] * rank, True)
        pos, gathers = np.zeros([1] * rank, np.int64), False
        for t in op.tail:
            step = self.scalar(t["step"])
            if t["gather"]:
                index = self.read(t["index"]).astype(np.int64)
                dims = [d for d in range(rank) if t["mask"] >> d & 1]
                sizes = self.sizes(tile)
                pos = pos + step * index.reshape([sizes[d] if d in dims else 1 for d in range(rank)])
                gathers = True
            elif t["dim"] != isa.NO_DIM:
                i = self.index(tile, t["dim"])
                div, mod = self.scalar(t["div"]), self.scalar(t["mod"])
                i = i // max(div, 1)
                pos = pos + step * (i % mod if mod else i)
            if t["chain"]:
                continue
            pos = pos + self.scalar(t["start"])
            hi = self.scalar(t["hi"])
            if t["bounded"]:
                inside = inside & (pos >= 0) & (pos < hi)
            elif gathers:
                pos = np.clip(pos, 0, max(hi - 1, 0))
            total = total + pos * self.scalar(t["stride"])
            pos, gathers = np.zeros([1] * rank, np.int64), False
        shape = self.sizes(tile)
        return np.broadcast_to(total, shape), np.broadcast_to(inside, shape)

    def do_load(self, op: Op) -> None:
        tile = self.kernel.tiles[op.fixed("dst")]
        memory = self._memory(op)
        at, inside = self.positions(op, tile)
        if np.any(inside & ((at < 0) | (at >= memory.size))):
            raise MachineFault(f"load of tile {tile.id} reads outside its buffer of {memory.size} elements")
        bits = self.scalar(op.fields["fill"])
        fill = isa.imm_value(bits, tile.dtype)
        out = np.full(at.shape, fill, tile.dtype)
        out[inside] = memory[at[inside]]
        self.write(tile.id, out)

    def do_store(self, op: Op) -> None:
        tile = self.kernel.tiles[op.fixed("x")]
        memory = self._memory(op)
        at, inside = self.positions(op, tile)
        if np.any(inside & ((at < 0) | (at >= memory.size))):
            raise MachineFault(f"store of tile {tile.id} writes outside its buffer of {memory.size} elements")
        if memory.dtype != tile.dtype:
            raise MachineFault("store into a buffer of another dtype")
        memory[at[inside]] = self.read(tile.id)[inside]

    def _memory(self, op: Op) -> np.ndarray:
        address = op.fields["address"]
        assert isinstance(address, Address)
        return self.machine.memory(self.step.buffers[address.buffer])

    # --- instructions
    def execute(self, op: Op) -> None:
        name, family = op.insn.name, op.insn.family
        if family == "sync":
            return
        method = getattr(self, f"do_{name}", None) or getattr(self, f"do_{family}", None)
        if method is None:
            raise MachineFault(f"no meaning for {name}")
        with np.errstate(all="ignore"):
            method(op)

    def reference(self, name: str, operands: list[np.ndarray], **attrs: Any) -> np.ndarray:
        return np.asarray(OPS[name].evaluate(operands, attrs)[0])

    def do_unary(self, op: Op) -> None:
        self.write(op.fixed("dst"), self.reference(op.insn.name, [self.read(op.fixed("x"))]))

    def do_binary(self, op: Op) -> None:
        self.write(op.fixed("dst"), self.reference(op.insn.name, [self.read(op.fixed("x")), self.read(op.fixed("y"))]))

    def do_select(self, op: Op) -> None:
        self.write(op.fixed("dst"), np.where(*(self.read(op.fixed(k)) for k in ("p", "x", "y"))))

    def do_reduce(self, op: Op) -> None:
        x = self.read(op.fixed("x"))
        axes = tuple(d for d in range(x.ndim) if op.fixed("mask") >> d & 1)
        out = self.reference(op.insn.name, [x], axes=axes)
        if op.fixed("accumulate"):
            out = self.reference(op.insn.name, [np.stack([self.read(op.fixed("dst")), out])], axes=(0,))
        self.write(op.fixed("dst"), out)

    def do_argreduce(self, op: Op) -> None:
        kind = op.insn.name[3:]
        tile = self.kernel.tiles[op.fixed("x")]
        x, dim = self.read(tile.id), op.fixed("dim")
        dtype = self.kernel.tiles[op.fixed("dst")].dtype
        pick = self.reference(op.insn.name, [x], axis=dim, dtype=np.dtype(np.int64))
        value = np.take_along_axis(x, np.expand_dims(pick, dim), dim).squeeze(dim)
        axis = tile.dims[dim][1]
        index = pick + (0 if axis == isa.NO_AXIS else self.axes[axis][0])
        if op.fixed("accumulate"):
            old_index, old = self.read(op.fixed("dst")), self.read(op.fixed("y"))
            better = (value > old if kind == "max" else value < old) | (value != value)
            better = (better & (old == old)) | (old_index < 0)
            index, value = np.where(better, index, old_index), np.where(better, value, old)
        self.write(op.fixed("dst"), index.astype(dtype))
        self.write(op.fixed("y"), value)

    def do_cumulative(self, op: Op) -> None:
        if op.fixed("carry"):
            raise MachineFault("carried scans are not used")
        x = self.read(op.fixed("x"))
        self.write(
            op.fixed("dst"), self.reference(op.insn.name, [x], axis=op.fixed("dim"), reverse=bool(op.fixed("reverse")))
        )

    def do_mmad(self, op: Op) -> None:
        x, y = self.read(op.fixed("x")), self.read(op.fixed("y"))
        roles = [[op.fixed(n) >> (2 * d) & 3 for d in range(v.ndim)] for n, v in (("xdims", x), ("ydims", y))]

        def dims(kind: int) -> tuple[tuple[int, ...], ...]:
            return tuple(tuple(d for d, r in enumerate(role) if r == kind) for role in roles)

        dst = self.kernel.tiles[op.fixed("dst")]
        out = self.reference("dot", [x, y], contract=dims(isa.DOT_CONTRACT), batch=dims(isa.DOT_BATCH), dtype=dst.dtype)
        if op.fixed("accumulate"):
            out = self.read(dst.id) + out
        self.write(dst.id, out)

    def do_sync(self, op: Op) -> None:
        """One core runs in order: nothing to wait for."""

    def do_fill(self, op: Op) -> None:
        tile = self.kernel.tiles[op.fixed("dst")]
        self.write(tile.id, np.full(self.sizes(tile), isa.imm_value(self.scalar(op.fields["imm"]), tile.dtype)))

    def do_iota(self, op: Op) -> None:
        tile = self.kernel.tiles[op.fixed("dst")]
        div, mod = self.scalar(op.fields["div"]), self.scalar(op.fields["mod"])
        i = self.index(tile, op.fixed("dim")) // max(div, 1)
        value = self.scalar(op.fields["start"]) + self.scalar(op.fields["step"]) * (i % mod if mod else i)
        self.write(tile.id, np.broadcast_to(value, self.sizes(tile)).astype(tile.dtype))

    def do_copy(self, op: Op) -> None:
        self.write(op.fixed("dst"), self.read(op.fixed("x")).reshape(self.sizes(self.kernel.tiles[op.fixed("dst")])))

    def do_bcast(self, op: Op) -> None:
        tile = self.kernel.tiles[op.fixed("dst")]
        sizes = self.sizes(tile)
        x = self.read(op.fixed("x"))
        dims = [d for d in range(len(sizes)) if op.fixed("mask") >> d & 1]
        if [sizes[d] for d in dims] != list(x.shape):
            raise MachineFault(f"bcast of {x.shape} into dims {dims} of {sizes}")
        self.write(
            tile.id, np.broadcast_to(x.reshape([sizes[d] if d in dims else 1 for d in range(len(sizes))]), sizes)
        )

    def do_permute(self, op: Op) -> None:
        x = self.read(op.fixed("x"))
        self.write(op.fixed("dst"), np.transpose(x, [op.fixed("perm") >> (4 * d) & 15 for d in range(x.ndim)]))

    def do_extract(self, op: Op) -> None:
        tile = self.kernel.tiles[op.fixed("dst")]
        dim, n = op.fixed("dim"), tile.dims[op.fixed("dim")][0]
        at = op.fixed("start") + op.fixed("step") * np.arange(n)
        self.write(tile.id, np.take(self.read(op.fixed("x")), at, axis=dim))

    def do_join(self, op: Op) -> None:
        self.write(op.fixed("dst"), np.concatenate([self.read(item["x"]) for item in op.tail], op.fixed("dim")))

    def do_cast(self, op: Op) -> None:
        dtype = self.kernel.tiles[op.fixed("dst")].dtype
        self.write(op.fixed("dst"), self.reference("cast", [self.read(op.fixed("x"))], dtype=dtype))


def kernels(program: Program) -> Iterator[Kernel]:
    """The program's templates, decoded."""
    for template in program.templates:
        yield unordered(decode(template))
