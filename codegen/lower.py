"""From a group of nodes to virtual instructions in loops.

Values are emitted on demand. A value's place is the outermost open loop nest that covers the loops its tile moves with, so what does not
vary in a loop is computed outside it. A reduction over a stage loop opens that loop as a pass: its accumulator is set before, the pass
recomputes what the reduction reads, and reductions of the same level share the pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from codegen import attention, gathers
from codegen.gathers import TERM
from codegen.tileir import Imm, VInsn, VLoop, VTile
from graph_kernel.fusion.attention import find
from graph_kernel.fusion.axes import ARG, CUMULATIVE, REDUCTIONS, Axes, Refusal
from graph_kernel.fusion.layout import (
    IndexPart,
    Layout,
    LoopAxis,
    TileDim,
    collapse,
    product_roles,
    strides,
    value_dims,
    value_parts,
)
from graph_kernel.fusion.slots import Slot, whole
from graph_kernel.fusion.views import LoadMap, Part, Position, constant_scalar, identity, source_map
from graph_kernel.ir import Node, Value
from graph_kernel.ops import OPS
from graph_kernel.ops.base import HALF, Pattern
from symbolic import Dim, Scope
from vm import isa

Places = Callable[[Value], tuple[Slot, ...]]
Convert = Callable[[Part], list[IndexPart]]


@dataclass(eq=False)
class Context:
    """An open loop nest: code of the innermost loop and what has been emitted into it."""

    loop: LoopAxis | None
    code: list[VInsn | VLoop]
    memo: dict[Any, VTile] = field(default_factory=dict)


class Lowering:
    """Lowers one group. ``stored`` are the values in memory, ``outputs`` the ones that this group stores."""

    def __init__(
        self,
        axes: Axes,
        layout: Layout,
        outputs: list[Value],
        stored: set[Value],
        scope: Scope,
        places: Places = lambda value: (whole(value),),
    ):
        self.axes, self.layout, self.outputs, self.stored, self.scope = axes, layout, outputs, stored, scope
        self.places = places
        self.root = Context(None, [])
        self.stack = [self.root]
        self.node_of = {v: n for n in axes.computed for v in n.outputs}
        self.levels: dict[Node, int] = {}
        self.stages = {loop.id for loop in layout.loops if loop.stage}
        self.softmaxes = find(axes, layout, outputs)
        self.canonical: set[Value] = set()  # loaded operands of products whose tiles are not as in memory
        self.pair_operands()
        self.made: set[Node] = set()  # products computed so far, and those of the nest of loops being written
        self.made_here: set[Node] = set()

    # --- contexts ---------------------------------------------------------------------------------------------------------------
    def run(self) -> list[VInsn | VLoop]:
        """The kernel's body."""
        loops: list[VLoop] = []
        for loop in self.layout.outer():
            vloop = VLoop(loop, isa.LoopKind.PARALLEL)
            loops.append(vloop)
            self.stack.append(Context(loop, vloop.body))
        shared = {vloop.axis.id for vloop in loops}
        nests: dict[tuple[int, ...], list[Value]] = {(): []}
        for value in self.outputs:
            nests.setdefault(tuple(sorted(self.loops_of(value) - shared, key=self.layout.depth)), []).append(value)
        for key, values in nests.items():
            opened = self.open([self.layout.loops[k] for k in key], len(self.stack))
            self.made_here = set()
            for value in values:
                self.store(value)
            twice = self.made_here & self.made
            if twice:
                raise Refusal(f"{next(iter(twice)).op} would be computed again for every result that needs it")
            self.made |= self.made_here
            self.close(opened, isa.LoopKind.PARALLEL)
        for vloop, context in zip(reversed(loops), reversed(self.stack[:-1]), strict=True):
            context.code.append(vloop)
        return self.root.code

    def open(self, loops: list[LoopAxis], depth: int) -> tuple[list[Context], list[Context]]:
        """Opens loops below the first ``depth`` contexts; returns (contexts set aside, contexts opened)."""
        aside, self.stack = self.stack[depth:], self.stack[:depth]
        if any(context.loop in loops for context in self.stack):
            raise Refusal("a sum would be computed again in every step of a loop over what it runs over")
        new = [Context(loop, []) for loop in loops]
        self.stack = self.stack + new
        return aside, new

    def close(self, opened: tuple[list[Context], list[Context]], kind: isa.LoopKind) -> None:
        """Closes what ``open`` opened and puts the loops into the code around them."""
        aside, new = opened
        outer = self.stack[: len(self.stack) - len(new)]
        for i in range(len(new) - 1, -1, -1):
            parent = new[i - 1] if i else outer[-1]
            loop = new[i].loop
            assert loop is not None
            parent.code.append(VLoop(loop, kind, new[i].code))
        self.stack = outer + aside

    def loops_of(self, value: Value) -> set[int]:
        """Loops that a value's tile moves with."""
        return {d.loop for d in self.layout.tile_dims(value) if d.loop >= 0}

    def home(self, loops: set[int]) -> int:
        """Index of the outermost context that has all ``loops`` open."""
        missing = set(loops)
        for i, context in enumerate(self.stack):
            if context.loop is not None:
                missing.discard(context.loop.id)
            if not missing:
                return i
        raise Refusal("a value is needed outside the loop that computes it")

    def emit(self, depth: int, name: str, fields: dict[str, Any], tail: list[dict[str, Any]] | None = None) -> None:
        """Appends an instruction to the context at ``depth``."""
        self.stack[depth].code.append(VInsn(name, fields, tail or []))

    # --- values -----------------------------------------------------------------------------------------------------------------
    def tile(self, value: Value, dtype: np.dtype | None = None, space: isa.Space = isa.Space.UB) -> VTile:
        """A new tile of a value's shape."""
        return VTile(self.layout.tile_dims(value), dtype or value.dtype, space)

    def get(self, value: Value, space: isa.Space = isa.Space.UB) -> VTile:
        """The tile of a value in the current loops, emitting what is needed."""
        depth = self.home(self.loops_of(value))
        for context in self.stack[: depth + 1]:
            found = context.memo.get((value, space))
            if found is not None:
                return found
        tile = self.compute(value, depth, space)
        self.stack[depth].memo[value, space] = tile
        return tile

    def compute(self, value: Value, depth: int, space: isa.Space) -> VTile:
        """Emits the instructions that make a value's tile in ``space`` (UB, or L1 for operands of the cube)."""
        if value in self.axes.loads:
            tile = self.tile(value, space=space)
            if space == isa.Space.L1:
                tile.dims = self.operand_dims(value)
            self.load(depth, tile, self.axes.loads[value], lambda p: value_parts(self.layout, value, p, self.scope))
            return tile
        if space != isa.Space.UB:
            source = self.get(value)
            tile = self.tile(value, space=space)
            self.emit(depth, "copy", {"dst": tile, "x": source})
            return tile
        node = self.node_of[value]
        method = getattr(self, f"op_{node.op}", None)
        if method is not None:
            return method(node, depth)
        if node.op in REDUCTIONS or node.op in ARG:
            return self.reduction(node)
        if node.op in CUMULATIVE:
            return self.cumulative(node, depth)
        if OPS[node.op].pattern is Pattern.ELEMENTWISE:
            return self.elementwise(node, depth)
        raise Refusal(f"{node.op} has no kernel form")

    def elementwise(self, node: Node, depth: int) -> VTile:
        names = ("p", "x", "y") if node.op == "select" else ("x", "y")
        operands = {k: self.get(v) for k, v in zip(names, node.inputs, strict=False)}
        tile = self.tile(node.output)
        self.emit(depth, node.op, {"dst": tile, **operands})
        return tile

    def op_constant(self, node: Node, depth: int) -> VTile:
        tile = self.tile(node.output)
        self.emit(
            depth, "fill", {"dst": tile, "imm": Imm(np.asarray(node.attrs["value"]).reshape(())[()], node.output.dtype)}
        )
        return tile

    def op_dim(self, node: Node, depth: int) -> VTile:
        exact = node.output.dtype if node.output.dtype.kind in "iu" else np.dtype(np.int64)
        tile = self.tile(node.output, exact)
        self.emit(depth, "fill", {"dst": tile, "imm": Imm(node.attrs["expr"], exact)})
        if exact == node.output.dtype:
            return tile
        out = self.tile(node.output)
        self.emit(depth, "cast", {"dst": out, "x": tile})
        return out

    def op_iota(self, node: Node, depth: int) -> VTile:
        value = node.output
        exact = value.dtype if value.dtype.kind in "iuf" and value.dtype.itemsize >= 4 else np.dtype(np.int32)
        parts = (
            value_parts(self.layout, value, Part(node.attrs["axis"], 1), self.scope)
            if value.shape[node.attrs["axis"]] != 1
            else []
        )
        tile = self.iota(depth, self.layout.tile_dims(value), collapse(parts, self.scope), 0, exact)
        if exact == value.dtype:
            return tile
        out = self.tile(value)
        self.emit(depth, "cast", {"dst": out, "x": tile})
        return out

    def iota(self, depth: int, dims: tuple[TileDim, ...], parts: list[IndexPart], start: Dim, dtype: np.dtype) -> VTile:
        """``start + sum of the parts`` at every element."""
        total: VTile | None = None
        for part in parts:
            tile = VTile(dims, dtype)
            fields = {"dst": tile, "dim": dims.index(part.dim), "start": start if total is None else 0}
            self.emit(depth, "iota", {**fields, "step": part.coefficient, "div": part.div, "mod": part.mod})
            if total is not None:
                both = VTile(dims, dtype)
                self.emit(depth, "add", {"dst": both, "x": total, "y": tile})
                tile = both
            total = tile
        if total is None:
            total = VTile(dims, dtype)
            self.emit(depth, "fill", {"dst": total, "imm": Imm(start, dtype)})
        return total

    def op_broadcast(self, node: Node, depth: int) -> VTile:
        source, out = node.inputs[0], node.output
        scalar = constant_scalar(source)
        if scalar is not None:
            tile = self.tile(out)
            self.emit(depth, "fill", {"dst": tile, "imm": Imm(scalar[()], out.dtype)})
            return tile
        x = self.get(source)
        tile = self.tile(out)
        if x.dims == tile.dims:
            return x
        mask = 0
        for d in x.dims:
            mask |= 1 << tile.dims.index(d)
        self.emit(depth, "bcast", {"dst": tile, "x": x, "mask": mask})
        return tile

    def op_transpose(self, node: Node, depth: int) -> VTile:
        return self.get(node.inputs[0])  # tiles are in canonical order whatever the order of the value's dims

    def op_reshape(self, node: Node, depth: int) -> VTile:
        return self.get(node.inputs[0])  # the atoms are the same

    # --- movement inside a tile ----------------------------------------------------------------------------------------------------
    def local_dim(self, value: Value, axis: int, dims: tuple[TileDim, ...]) -> int:
        """The place of a value's (local, whole) dim in a tile."""
        atoms = self.axes.dims[value][axis]
        if len(atoms) != 1:
            raise Refusal("movement along a dim that is split")
        for i, d in enumerate(dims):
            if d.atom == atoms[0]:
                return i
        raise Refusal("movement along a dim that is a loop")

    def op_slice(self, node: Node, depth: int) -> VTile:
        source, out = node.inputs[0], node.output
        current, shape = self.get(source), list(source.shape)
        final = self.tile(out)
        moved = [d for d in range(out.rank) if self.axes.dims[source][d] != self.axes.dims[out][d]]
        for d in moved:
            if not self.axes.dims[source][d]:
                continue
            at = self.local_dim(source, d, current.dims)
            n = out.shape[d]
            assert isinstance(n, int)
            start, step = node.attrs["starts"][d], node.attrs["strides"][d]
            new_atom = self.axes.dims[out][d]
            if len(new_atom) > 1:
                raise Refusal("movement along a dim that is split")
            dims = list(current.dims)
            dims[at] = TileDim(-1, new_atom[0] if new_atom else -2 - d, n)
            nxt = VTile(tuple(dims), out.dtype)
            self.emit(depth, "extract", {"dst": nxt, "x": current, "dim": at, "start": start, "step": step})
            current, shape[d] = nxt, n
        return self.arrange(depth, current, final)

    def arrange(self, depth: int, tile: VTile, final: VTile) -> VTile:
        """Puts a tile's dims into the order of ``final``; dims of one element that ``final`` lacks vanish."""
        if tile.dims == final.dims:
            return tile
        kept = [d for d in tile.dims if d in final.dims]
        if len(kept) != len(final.dims):
            raise Refusal("movement within a tile changes its dims")
        if tuple(kept) == final.dims:
            self.emit(depth, "copy", {"dst": final, "x": tile})
            return final
        if len(kept) != len(tile.dims):
            squeezed = VTile(tuple(kept), tile.dtype)
            self.emit(depth, "copy", {"dst": squeezed, "x": tile})
            tile = squeezed
        perm = 0
        for j, d in enumerate(final.dims):
            perm |= tile.dims.index(d) << (4 * j)
        self.emit(depth, "permute", {"dst": final, "x": tile, "perm": perm})
        return final

    def op_rev(self, node: Node, depth: int) -> VTile:
        current = self.get(node.inputs[0])
        for axis in node.attrs["axes"]:
            if not self.axes.dims[node.output][axis]:
                continue
            at = self.local_dim(node.output, axis, current.dims)
            n = node.output.shape[axis]
            assert isinstance(n, int)
            nxt = VTile(current.dims, current.dtype)
            self.emit(depth, "extract", {"dst": nxt, "x": current, "dim": at, "start": n - 1, "step": -1})
            current = nxt
        return current

    def op_pad(self, node: Node, depth: int) -> VTile:
        source, out = node.inputs[0], node.output
        fill = constant_scalar(node.inputs[1])
        assert fill is not None
        current = self.get(source)
        for axis in range(out.rank):
            low, high = node.attrs["low"][axis], node.attrs["high"][axis]
            if low == 0 and high == 0:
                continue
            at = self.local_dim(source, axis, current.dims)
            if len(self.axes.dims[out][axis]) != 1:
                raise Refusal("movement along a dim that is split")
            dims = list(current.dims)
            pieces = [current]
            for n, place in ((low, 0), (high, len(pieces))):
                if n:
                    dims[at] = TileDim(-1, -2 - axis, n)
                    edge = VTile(tuple(dims), out.dtype)
                    self.emit(depth, "fill", {"dst": edge, "imm": Imm(fill[()], out.dtype)})
                    pieces.insert(0 if place == 0 else len(pieces), edge)
            dims[at] = TileDim(-1, self.axes.dims[out][axis][0], out.shape[axis])
            joined = VTile(tuple(dims), out.dtype)
            self.emit(depth, "join", {"dst": joined, "dim": at}, [{"x": p} for p in pieces])
            current = joined
        return self.arrange(depth, current, self.tile(out))

    def op_concat(self, node: Node, depth: int) -> VTile:
        maps = [self.piece(v) for v in node.inputs]
        if all(m is not None for m in maps):
            return self.concat_loads(node, depth, [m for m in maps if m is not None])
        axis, out = node.attrs["axis"], self.tile(node.output)
        at = self.local_dim(node.output, axis, out.dims)
        pieces = []
        for value in node.inputs:
            if value.shape[axis] == 0:
                continue
            piece = self.get(value)
            want = list(out.dims)
            want[at] = piece.dims[self.local_dim(value, axis, piece.dims)]
            pieces.append(self.arrange(depth, piece, VTile(tuple(want), out.dtype)))
        self.emit(depth, "join", {"dst": out, "dim": at}, [{"x": p} for p in pieces])
        return out

    def concat_loads(self, node: Node, depth: int, maps: list[LoadMap]) -> VTile:
        """Each operand is loaded where the index falls into it; a select joins them."""
        out, axis = node.output, node.attrs["axis"]
        pieces: list[tuple[VTile, Dim]] = []
        offset: Dim = 0
        for value, found in zip(node.inputs, maps, strict=True):
            n = value.shape[axis]
            if n == 0:
                continue
            tile = self.tile(out)
            shifted = self.shift(value, found, axis, offset)
            self.load(depth, tile, shifted, lambda p: value_parts(self.layout, out, p, self.scope))
            offset = offset + n
            pieces.append((tile, offset))
        result = pieces[-1][0]
        if len(pieces) == 1:
            return result
        parts = collapse(value_parts(self.layout, out, Part(axis, 1), self.scope), self.scope)
        index = self.iota(depth, self.layout.tile_dims(out), parts, 0, np.dtype(np.int32))
        for tile, end in reversed(pieces[:-1]):
            bound, below, joined = (
                VTile(tile.dims, np.dtype(np.int32)),
                VTile(tile.dims, np.dtype(np.bool_)),
                self.tile(out),
            )
            self.emit(depth, "fill", {"dst": bound, "imm": Imm(end, np.dtype(np.int32))})
            self.emit(depth, "lt", {"dst": below, "x": index, "y": bound})
            self.emit(depth, "select", {"dst": joined, "p": below, "x": tile, "y": result})
            result = joined
        return result

    def shift(self, value: Value, found: LoadMap, axis: int, offset: Dim) -> LoadMap:
        """A map over ``value`` as one over a longer dim in which ``value`` begins at ``offset``; outside it reads 0."""
        if value.shape[axis] == 1:
            positions = tuple(Position(p.start, (*p.parts,), p.bound) for p in found.positions)
            return LoadMap(found.source, positions, 0)
        out = []
        for pos in found.positions:
            if not any(p.dim == axis for p in pos.parts):
                out.append(pos)
                continue
            part = pos.parts[0]
            if len(pos.parts) != 1 or part.div != 1 or part.mod != 0 or pos.bound is not None:
                raise Refusal("an operand of a concatenation has no simple index along the axis")
            n = value.shape[axis]
            lo, hi = (pos.start, pos.start + (n - 1) * part.step + 1)
            if not isinstance(part.step, int) or part.step < 1:
                raise Refusal("an operand of a concatenation runs backwards")
            out.append(Position(pos.start - offset * part.step, pos.parts, (lo, hi)))
        return LoadMap(found.source, tuple(out), 0)

    def piece(self, value: Value) -> LoadMap | None:
        """How a value is read from memory without computing it, or None."""
        if value in self.stored:
            return identity(value)
        found = source_map(value, self.stored, self.scope)
        return found if found is not None and found.fill is None else None

    # --- memory -------------------------------------------------------------------------------------------------------------------
    def load(
        self,
        depth: int,
        tile: VTile,
        found: LoadMap,
        convert: Convert,
        gathers: dict[int, dict[str, Any]] | None = None,
    ) -> None:
        """Emits a load of ``tile`` through a map; ``convert`` turns a map part into parts over tile dims, ``gathers`` gives
        the term fields of value dims whose index is data."""
        offset: Dim = 0
        plain: list[IndexPart] = []
        tail: list[dict[str, Any]] = []
        for pos, stride in zip(found.positions, strides(found.source.shape), strict=True):
            gathered = gathers is not None and any(p.dim in gathers for p in pos.parts)
            if pos.bound is None and not gathered:
                offset = offset + pos.start * stride
                for part in pos.parts:
                    for q in convert(part):
                        plain.append(IndexPart(q.dim, q.coefficient * stride, q.div, q.mod))
                continue
            start: Dim = pos.start
            hi: Dim = 0
            shift: Dim = 0
            if pos.bound is not None:
                lo, top = pos.bound
                start, hi, shift = pos.start - lo, top - lo, lo
            group: list[dict[str, Any]] = []
            for part in pos.parts:
                if gathers is not None and part.dim in gathers:
                    extra = dict(gathers[part.dim])
                    hi = extra.pop("hi", hi)
                    group.append({**TERM, **extra, "gather": 1, "step": part.step})
                    continue
                for q in collapse(convert(part), self.scope):
                    group.append(
                        {**TERM, "dim": tile.dims.index(q.dim), "step": q.coefficient, "div": q.div, "mod": q.mod}
                    )
            if not group:
                group.append({**TERM, "dim": isa.NO_DIM, "step": 0})
            for item in group[:-1]:
                item["chain"] = 1
            group[-1].update(start=start, stride=stride, hi=hi)
            if pos.bound is not None or any(g.get("bounded") for g in group):
                for item in group:
                    item["bounded"] = 1
            offset = offset + shift * stride
            tail += group
        for q in collapse(plain, self.scope):
            tail.append(
                {**TERM, "dim": tile.dims.index(q.dim), "step": q.coefficient, "div": q.div, "mod": q.mod, "stride": 1}
            )
        fill = Imm(found.fill if found.fill is not None else 0, tile.dtype)
        self.emit(depth, "load", {"dst": tile, "address": found.source, "offset": offset, "fill": fill}, tail)

    def store(self, value: Value) -> None:
        """Emits a value and its stores into the innermost open loop that it varies with."""
        tile = self.get(value)
        depth = self.home(self.loops_of(value))
        if tile.dtype != value.dtype:
            raise AssertionError("a value's tile must have its dtype")
        self.check_domain(value)
        for slot in self.places(value):
            parts: list[IndexPart] = []
            for d, stride in enumerate(slot.strides):
                if value.shape[d] != 1:
                    for q in value_parts(self.layout, value, Part(d, 1), self.scope):
                        parts.append(IndexPart(q.dim, q.coefficient * stride, q.div, q.mod))
            tail = [
                {**TERM, "dim": tile.dims.index(q.dim), "step": q.coefficient, "div": q.div, "mod": q.mod, "stride": 1}
                for q in collapse(parts, self.scope)
            ]
            self.emit(depth, "store", {"x": tile, "address": slot.name, "offset": slot.offset}, tail)

    def check_domain(self, value: Value) -> None:
        """Raises ``Refusal`` if a loop runs over an axis that a result lacks: cores would store one element several times."""
        loops, mine = self.loops_of(value), set(self.layout.axes.of(value))
        around = {c.loop.id for c in self.stack[: self.home(loops) + 1] if c.loop is not None} - self.stages
        if any(a not in mine for k in loops | around for a in self.layout.loops[k].atoms):
            raise Refusal("a result has fewer elements than the loops that compute it")

    op_take = gathers.take
    op_take_along = gathers.take_along
    op_dynamic_slice = gathers.dynamic_slice
    op_dynamic_update_slice = gathers.dynamic_update_slice

    # --- reductions ---------------------------------------------------------------------------------------------------------------
    def level(self, node: Node) -> int:
        """How many passes over stage loops lie below a reduction."""
        found = self.levels.get(node)
        if found is None:
            found = self.levels[node] = 1 + max((self.value_level(v) for v in node.inputs), default=0)
        return found

    def value_level(self, value: Value) -> int:
        node = self.node_of.get(value)
        if node is None or value in self.axes.loads:
            return 0
        if self.passes(node):
            return self.level(node)
        if node not in self.levels:
            self.levels[node] = max((self.value_level(v) for v in node.inputs), default=0)
        return self.levels[node]

    def passes(self, node: Node) -> list[LoopAxis]:
        """Stage loops that a reduction or product runs over."""
        if not (node.op in REDUCTIONS or node.op in ARG or node.op == "dot"):
            return []
        found = self.loops_of(node.inputs[0]) & self.stages
        return [self.layout.loops[k] for k in sorted(found - self.loops_of(node.output))]

    def reduction(self, node: Node) -> VTile:
        loops = self.passes(node)
        softmax = attention.of(self, node)
        if softmax is not None:
            attention.emit(self, softmax, node)
        else:
            self.together([node], loops) if not loops else self.together(self.siblings(node, loops), loops)
        depth = self.home(self.loops_of(node.output))
        return self.stack[depth].memo[node.output, isa.Space.UB]

    def siblings(self, node: Node, loops: list[LoopAxis]) -> list[Node]:
        """Reductions that can share the pass: same loops, same level, results in the same place."""
        place, level = self.home(self.loops_of(node.output)), self.level(node)
        out = []
        for other in self.axes.computed:
            if other is node:
                out.append(other)
            elif (other.op in REDUCTIONS or other.op in ARG or other.op == "dot") and self.passes(other) == loops:
                reach = self.loops_of(other.output)
                opened = {c.loop.id for c in self.stack if c.loop is not None}
                done = any((other.output, isa.Space.UB) in c.memo for c in self.stack)
                done = done or attention.of(self, other) is not None
                if not done and self.level(other) == level and reach <= opened and self.home(reach) == place:
                    out.append(other)
        return out

    def together(self, nodes: list[Node], loops: list[LoopAxis]) -> None:
        """Emits reductions in one pass over ``loops`` (none: in place) and records their results."""
        depth = self.home(self.loops_of(nodes[0].output))
        self.made_here.update(n for n in nodes if n.op == "dot")
        accumulators = [self.start(n, depth, bool(loops)) for n in nodes]
        if loops:
            opened = self.open(loops, depth + 1)
        else:
            opened = None
        inner = len(self.stack) - 1 if loops else depth
        for node, acc in zip(nodes, accumulators, strict=True):
            self.step(node, acc, inner, bool(loops))
        if opened is not None:
            self.close(opened, isa.LoopKind.REDUCE)
        for node, acc in zip(nodes, accumulators, strict=True):
            self.stack[depth].memo[node.output, isa.Space.UB] = self.finish(node, acc, depth)

    def start(self, node: Node, depth: int, looped: bool) -> tuple[VTile, ...]:
        value = node.output
        if node.op == "dot":
            dims, canonical = self.product_dims(node)
            wide = np.dtype(np.float32) if value.dtype in HALF else value.dtype
            acc = VTile(dims, wide, isa.Space.L0C)
            if looped:
                self.emit(depth, "fill", {"dst": acc, "imm": Imm(0, wide)})
            return (acc, VTile(canonical, value.dtype))
        x = node.inputs[0]
        if node.op in ARG:
            index, best = self.tile(value), VTile(self.layout.tile_dims(value), x.dtype)
            if looped:
                kind = node.op[3:]
                self.emit(depth, "fill", {"dst": index, "imm": Imm(-1, index.dtype)})
                self.emit(depth, "fill", {"dst": best, "imm": Imm(isa.identity(kind, x.dtype), x.dtype)})
            return (index, best)
        kind = node.op.removeprefix("reduce_")
        wide = np.dtype(np.float32) if value.dtype in HALF and kind in ("sum", "prod") else value.dtype
        acc = self.tile(value, wide)
        if looped:
            self.emit(depth, "fill", {"dst": acc, "imm": Imm(isa.identity(kind, wide), wide)})
        return (acc,)

    def step(self, node: Node, acc: tuple[VTile, ...], depth: int, looped: bool) -> None:
        if node.op == "dot":
            self.product(node, acc[0], depth, looped)
            return
        x = self.get(node.inputs[0])
        place = depth if looped else self.home(self.loops_of(node.inputs[0]))
        dims = {d for a in self.reduced_axes(node) for d in value_dims(self.layout, node.inputs[0], a)}
        if node.op in ARG:
            d = next(iter(dims), None)
            if d is None:  # over a size-1 dim
                self.emit(place, "fill", {"dst": acc[0], "imm": Imm(0, acc[0].dtype)})
                return
            at = x.dims.index(d)
            self.emit(place, node.op, {"dst": acc[0], "x": x, "y": acc[1], "dim": at, "accumulate": int(looped)})
            return
        if x.dtype != acc[0].dtype:
            wide = VTile(x.dims, acc[0].dtype)
            self.emit(place, "cast", {"dst": wide, "x": x})
            x = wide
        mask = sum(1 << x.dims.index(d) for d in dims)
        self.emit(place, node.op, {"dst": acc[0], "x": x, "mask": mask, "accumulate": int(looped)})

    def finish(self, node: Node, acc: tuple[VTile, ...], depth: int) -> VTile:
        value = node.output
        if node.op == "dot":
            out = VTile(acc[0].dims, value.dtype)
            self.emit(depth, "cast" if value.dtype != acc[0].dtype else "copy", {"dst": out, "x": acc[0]})
            return self.arrange(depth, out, acc[1])
        if acc[0].dtype != value.dtype:
            out = self.tile(value)
            self.emit(depth, "cast", {"dst": out, "x": acc[0]})
            return out
        return acc[0]

    def reduced_axes(self, node: Node) -> tuple[int, ...]:
        return (node.attrs["axis"],) if node.op in ARG else node.attrs["axes"]

    # --- products -----------------------------------------------------------------------------------------------------------------
    def operand_dims(self, value: Value) -> tuple[TileDim, ...]:
        """Tile dims of a product's operand: as in memory where it is loaded, so that nothing is transposed, else canonical."""
        if value not in self.axes.loads or value in self.canonical:
            return self.layout.tile_dims(value)
        out: list[TileDim] = []
        for axis in range(value.rank):
            out += [d for d in value_dims(self.layout, value, axis) if d not in out]
        return tuple(out)

    def pair_operands(self) -> None:
        """Finds the loaded operands that need canonical order: ``mmad`` pairs contracted dims, and batch dims, in the order in which each
        operand has them, and memory may have them in two orders."""
        dots = [n for n in self.axes.computed if n.op == "dot"]
        while (
            found := {v for d in dots if not self._paired(d) for v in d.inputs if v in self.axes.loads} - self.canonical
        ):
            self.canonical |= found

    def _paired(self, dot: Node) -> bool:
        x, y = self.product_roles(dot)
        return all(
            [d for d, r in x if r == role] == [d for d, r in y if r == role]
            for role in (isa.DOT_BATCH, isa.DOT_CONTRACT)
        )

    def product_roles(self, node: Node) -> list[list[tuple[TileDim, int]]]:
        """Roles of both operands' dims, in the order of their tiles."""
        sides = []
        for value, side in zip(node.inputs, product_roles(self.layout, node), strict=True):
            roles = dict(side)
            sides.append([(d, roles[d]) for d in self.operand_dims(value)])
        return sides

    def product_dims(self, node: Node) -> tuple[tuple[TileDim, ...], tuple[TileDim, ...]]:
        """Dims of the cube's result (batch, x free, y free) and of the value's tile."""
        x, y = self.product_roles(node)
        dims = (
            [d for d, r in x if r == isa.DOT_BATCH]
            + [d for d, r in x if r == isa.DOT_FREE]
            + [d for d, r in y if r == isa.DOT_FREE]
        )
        return tuple(dims), self.layout.tile_dims(node.output)

    def product(self, node: Node, acc: VTile, depth: int, looped: bool) -> None:
        x, y = (self.get(v, isa.Space.L1) for v in node.inputs)
        rx, ry = ([r for _, r in side] for side in self.product_roles(node))
        place = depth if looped else self.home({d.loop for d in (*x.dims, *y.dims) if d.loop >= 0})
        pack = [sum(r << (2 * i) for i, r in enumerate(roles)) for roles in (rx, ry)]
        self.emit(
            place, "mmad", {"dst": acc, "x": x, "y": y, "accumulate": int(looped), "xdims": pack[0], "ydims": pack[1]}
        )

    def op_dot(self, node: Node, depth: int) -> VTile:
        return self.reduction(node)

    def cumulative(self, node: Node, depth: int) -> VTile:
        x = self.get(node.inputs[0])
        tile = self.tile(node.output)
        axis = node.attrs["axis"]
        if not self.axes.dims[node.output][axis]:
            return x
        at = self.local_dim(node.output, axis, x.dims)
        self.emit(
            depth,
            node.op,
            {"dst": tile, "x": x, "y": 0, "dim": at, "reverse": int(bool(node.attrs.get("reverse"))), "carry": 0},
        )
        return tile
