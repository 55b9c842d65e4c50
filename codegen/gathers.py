"""Loads whose positions are data: takes and dynamic slices. Functions of ``codegen.lower.Lowering``, which has them as methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from codegen.tileir import Imm, VTile
from graph_kernel.fusion.axes import Refusal
from graph_kernel.fusion.layout import IndexPart, collapse, strides, value_parts
from graph_kernel.fusion.views import LoadMap, Part
from graph_kernel.ir import Node, Value
from symbolic import Dim

if TYPE_CHECKING:
    from codegen.lower import Lowering

TERM: dict[str, Any] = {
    "dim": 0, "bounded": 0, "gather": 0, "chain": 0, "index": 0, "mask": 0, "step": 0, "div": 1, "mod": 0, "start": 0, "stride": 0, "hi": 0,
}  # fmt: skip


def take(lowering: Lowering, node: Node, depth: int) -> VTile:
    """``take``: a load whose position along one dim comes from an index tile."""
    table, index = node.inputs
    found = lowering.piece(table)
    assert found is not None
    axis, n_index = node.attrs["axis"], index.rank
    tile, index_tile = lowering.tile(node.output), lowering.get(index)
    mask = 0
    for d in index_tile.dims:
        mask |= 1 << tile.dims.index(d)
    gather = {"index": index_tile, "mask": mask, "hi": table.shape[axis]}
    fill: Any = 0
    if node.attrs.get("mode") == "fill":
        gather["bounded"] = 1
        fill = node.attrs.get("fill")
        fill = (np.nan if tile.dtype.kind not in "iub" else 0) if fill is None else fill
    check_gather(found, axis)

    def convert(part: Part) -> list[IndexPart]:
        d = part.dim if part.dim < axis else part.dim + n_index - 1
        return value_parts(lowering.layout, node.output, Part(d, part.step, part.div, part.mod), lowering.scope)

    if table.shape[axis] == 1:  # the map has no part along a size-1 dim
        lowering.load(depth, tile, LoadMap(found.source, found.positions, None), convert)
        return tile
    lowering.load(depth, tile, LoadMap(found.source, found.positions, fill), convert, {axis: gather})
    return tile


def check_gather(found: LoadMap, axis: int) -> None:
    """A gathered index must be the plain position along one source dim."""
    hits = [p for p in found.positions if any(q.dim == axis for q in p.parts)]
    for pos in hits:
        if (
            len(pos.parts) != 1
            or pos.parts[0].step != 1
            or pos.start != 0
            or pos.parts[0].div != 1
            or pos.parts[0].mod != 0
        ):
            raise Refusal("a take along a dim that is itself moved")


def take_along(lowering: Lowering, node: Node, depth: int) -> VTile:
    """``take_along``: as ``take``, with an index of the result's shape."""
    table, index = node.inputs
    found = lowering.piece(table)
    assert found is not None
    axis = node.attrs["axis"]
    tile, index_tile = lowering.tile(node.output), lowering.get(index)
    check_gather(found, axis)
    gather = {"index": index_tile, "mask": (1 << len(tile.dims)) - 1, "hi": table.shape[axis]}

    def convert(part: Part) -> list[IndexPart]:
        return value_parts(lowering.layout, node.output, part, lowering.scope)

    gathers = {axis: gather} if table.shape[axis] != 1 else None
    lowering.load(depth, tile, found, convert, gathers)
    return tile


def clamped_start(lowering: Lowering, depth: int, start: Value, room: Dim) -> VTile:
    """A scalar index tile: the start, clamped to [0, room]."""
    raw = lowering.get(start)
    wide = np.dtype(np.int64)
    tile = VTile((), wide)
    lowering.emit(depth, "cast", {"dst": tile, "x": raw})
    for name, bound in (("min", room), ("max", 0)):
        limit, out = VTile((), wide), VTile((), wide)
        lowering.emit(depth, "fill", {"dst": limit, "imm": Imm(bound, wide)})
        lowering.emit(depth, name, {"dst": out, "x": tile, "y": limit})
        tile = out
    return tile


def dynamic_slice(lowering: Lowering, node: Node, depth: int) -> VTile:
    """``dynamic_slice``: a load from clamped starts that are data."""
    source, starts, out = node.inputs[0], node.inputs[1:], node.output
    found = lowering.piece(source)
    assert found is not None
    tile = lowering.tile(out)
    tail: list[dict[str, Any]] = []
    offset: Dim = 0
    for pos, stride in zip(found.positions, strides(found.source.shape), strict=True):
        offset = offset + pos.start * stride
        for part in pos.parts:
            if part.div != 1 or part.mod != 0 or pos.bound is not None:
                raise Refusal("a dynamic slice of a merged dim")
            start = clamped_start(lowering, depth, starts[part.dim], source.shape[part.dim] - out.shape[part.dim])
            hi = source.shape[part.dim]
            group = [{**TERM, "gather": 1, "index": start, "mask": 0, "step": 1}]
            if out.shape[part.dim] != 1:
                for q in value_parts(lowering.layout, out, Part(part.dim, 1), lowering.scope):
                    group.append(
                        {**TERM, "dim": tile.dims.index(q.dim), "step": q.coefficient, "div": q.div, "mod": q.mod}
                    )
            for item in group[:-1]:
                item["chain"] = 1
            group[-1].update(start=0, stride=part.step * stride, hi=hi)
            tail += group
    lowering.emit(
        depth, "load", {"dst": tile, "address": found.source, "offset": offset, "fill": Imm(0, tile.dtype)}, tail
    )
    return tile


def dynamic_update_slice(lowering: Lowering, node: Node, depth: int) -> VTile:
    """``dynamic_update_slice``: the update where it lies, the old value elsewhere."""
    x, update, starts = node.inputs[0], node.inputs[1], node.inputs[2:]
    found = lowering.piece(update)
    assert found is not None
    current = lowering.get(x)
    tile = lowering.tile(node.output, update.dtype)
    tail: list[dict[str, Any]] = []
    offset: Dim = 0
    inside: VTile | None = None
    wide, flag = np.dtype(np.int64), np.dtype(np.bool_)
    clamped = {}
    for d in range(x.rank):
        if x.shape[d] == 1:
            continue
        start = clamped[d] = clamped_start(lowering, depth, starts[d], x.shape[d] - update.shape[d])
        parts = collapse(value_parts(lowering.layout, node.output, Part(d, 1), lowering.scope), lowering.scope)
        index = lowering.iota(depth, tile.dims, parts, 0, wide)
        spread, size = VTile(tile.dims, wide), VTile(tile.dims, wide)
        relative, above, below = VTile(tile.dims, wide), VTile(tile.dims, flag), VTile(tile.dims, flag)
        zero = VTile(tile.dims, wide)
        lowering.emit(depth, "bcast", {"dst": spread, "x": start, "mask": 0})
        lowering.emit(depth, "sub", {"dst": relative, "x": index, "y": spread})
        lowering.emit(depth, "fill", {"dst": zero, "imm": Imm(0, wide)})
        lowering.emit(depth, "fill", {"dst": size, "imm": Imm(update.shape[d], wide)})
        lowering.emit(depth, "ge", {"dst": above, "x": relative, "y": zero})
        lowering.emit(depth, "lt", {"dst": below, "x": relative, "y": size})
        for condition in (above, below):
            if inside is None:
                inside = condition
            else:
                both = VTile(tile.dims, flag)
                lowering.emit(depth, "and", {"dst": both, "x": inside, "y": condition})
                inside = both
    for pos, stride in zip(found.positions, strides(found.source.shape), strict=True):
        offset = offset + pos.start * stride
        for part in pos.parts:
            if part.div != 1 or part.mod != 0 or pos.bound is not None:
                raise Refusal("the update of a dynamic update slice is a merged dim")
            group = [{**TERM, "gather": 1, "index": clamped[part.dim], "mask": 0, "step": -1}]
            for q in value_parts(lowering.layout, node.output, Part(part.dim, 1), lowering.scope):
                group.append({**TERM, "dim": tile.dims.index(q.dim), "step": q.coefficient, "div": q.div, "mod": q.mod})
            for item in group[:-1]:
                item["chain"] = 1
            group[-1].update(start=0, stride=part.step * stride, hi=update.shape[part.dim])
            for item in group:
                item["bounded"] = 1
            tail += group
    lowering.emit(
        depth, "load", {"dst": tile, "address": found.source, "offset": offset, "fill": Imm(0, tile.dtype)}, tail
    )
    if inside is None:
        return tile
    out = lowering.tile(node.output)
    lowering.emit(depth, "select", {"dst": out, "p": inside, "x": tile, "y": current})
    return out
