"""Softmax statistics and products of softmax weights in one pass over blocks of keys. Functions of ``codegen.lower.Lowering``.

Of every block the words compute scores s, then (m, l and every accumulator are tiles that live through the loop)

    m' = max(m, max s)    a = exp(m - m')    p = exp(s - m')    l = l * a + sum p    acc = acc * a + p . v

and behind the loop acc / l. The accumulators lie in the unified buffer: the cube cannot rescale what it accumulates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from codegen.tileir import Imm, VTile
from graph_kernel.fusion.attention import Online, Product
from graph_kernel.fusion.layout import TileDim
from graph_kernel.ir import Node
from symbolic import ge, smax
from vm import isa

if TYPE_CHECKING:
    from codegen.lower import Lowering

WIDE = np.dtype(np.float32)
LOWEST = float(np.finfo(np.float32).min)  # where the running maximum starts: see graph_kernel/fusion/attention.py


def of(lowering: Lowering, node: Node) -> Online | None:
    """The softmax that ``node`` (a reduction or product that was asked for) is to be computed with."""
    for found in lowering.softmaxes:
        if any(p.dot is node for p in found.products):
            return found
        if not found.products and node in (found.maximum, found.total):
            return found
    return None


def emit(lowering: Lowering, found: Online, node: Node) -> None:
    """Emits the pass and records the results that it has: the products that lie where ``node`` does, or maximum and sum."""
    place = lowering.loops_of(node.output)
    products = [p for p in found.products if lowering.loops_of(p.dot.output) == place]
    depth = lowering.home(place)
    rows = tuple(d for d in lowering.layout.tile_dims(found.scores) if d not in found.reduced)
    m, total = VTile(rows, WIDE), VTile(rows, WIDE)
    stages = [lowering.layout.loops[k] for k in sorted({d.loop for d in found.reduced if d.loop >= 0})]
    keys = stages[0].extent
    if not products or lowering.scope.proves(ge(keys, 1)):
        lowering.emit(depth, "fill", {"dst": total, "imm": Imm(0, WIDE)})
    else:  # a product over no keys is 0 and not 0 / 0
        none = VTile(rows, np.dtype(np.int64))
        lowering.emit(depth, "fill", {"dst": none, "imm": Imm(smax(1 - keys, 0), none.dtype)})
        lowering.emit(depth, "cast", {"dst": total, "x": none})
    accumulators = []
    for p in products:
        acc = VTile(lowering.product_dims(p.dot)[0], WIDE)
        lowering.emit(depth, "fill", {"dst": acc, "imm": Imm(0, WIDE)})
        accumulators.append(acc)
    lowering.emit(depth, "fill", {"dst": m, "imm": Imm(LOWEST, WIDE)})
    opened = lowering.open(stages, depth + 1)
    _block(lowering, found, m, total, list(zip(products, accumulators, strict=True)))
    lowering.close(opened, isa.LoopKind.REDUCE)
    memo = lowering.stack[depth].memo
    if not products:
        memo[found.maximum.output, isa.Space.UB], memo[found.total.output, isa.Space.UB] = m, total
    for p, acc in zip(products, accumulators, strict=True):
        memo[p.dot.output, isa.Space.UB] = _finish(lowering, depth, p.dot, acc, total)


def _block(lowering: Lowering, found: Online, m: VTile, total: VTile, products: list[tuple[Product, VTile]]) -> None:
    """One block of keys, in the innermost loop."""
    inner = len(lowering.stack) - 1

    def op(name: str, dst: VTile, **fields: VTile | int) -> VTile:
        lowering.emit(inner, name, {"dst": dst, **fields})
        return dst

    s = lowering.get(found.scores)
    if s.dtype != WIDE:
        s = op("cast", VTile(s.dims, WIDE), x=s)
    mask = sum(1 << s.dims.index(d) for d in found.reduced)
    before = op("copy", VTile(m.dims, WIDE), x=m)
    op("reduce_max", m, x=s, mask=mask, accumulate=1)
    fall = op("sub", VTile(m.dims, WIDE), x=before, y=m)
    scale = op("exp", VTile(m.dims, WIDE), x=fall)
    below = op("sub", VTile(s.dims, WIDE), x=s, y=_spread(lowering, inner, m, s.dims))
    p = op("exp", VTile(s.dims, WIDE), x=below)
    op("mul", total, x=total, y=scale)
    op("reduce_sum", total, x=p, mask=mask, accumulate=1)
    for product, acc in products:
        _accumulate(lowering, inner, product, acc, p, scale)


def _accumulate(lowering: Lowering, inner: int, product: Product, acc: VTile, p: VTile, scale: VTile) -> None:
    dot, weights = product.dot, product.dot.inputs[product.side]
    if weights.dtype != p.dtype:
        narrow = VTile(p.dims, weights.dtype)
        lowering.emit(inner, "cast", {"dst": narrow, "x": p})
        p = narrow
    operand = lowering.tile(weights, space=isa.Space.L1)
    lowering.emit(inner, "copy", {"dst": operand, "x": p})
    memo = lowering.stack[inner].memo
    memo[weights, isa.Space.L1] = operand
    part = VTile(acc.dims, WIDE, isa.Space.L0C)
    lowering.product(dot, part, inner, False)
    del memo[weights, isa.Space.L1]
    wide = _spread(lowering, inner, scale, acc.dims)
    lowering.emit(inner, "mul", {"dst": acc, "x": acc, "y": wide})
    new = VTile(acc.dims, WIDE)
    lowering.emit(inner, "copy", {"dst": new, "x": part})
    lowering.emit(inner, "add", {"dst": acc, "x": acc, "y": new})


def _finish(lowering: Lowering, depth: int, dot: Node, acc: VTile, total: VTile) -> VTile:
    out = VTile(acc.dims, WIDE)
    lowering.emit(depth, "div", {"dst": out, "x": acc, "y": _spread(lowering, depth, total, acc.dims)})
    if dot.output.dtype != WIDE:
        narrow = VTile(acc.dims, dot.output.dtype)
        lowering.emit(depth, "cast", {"dst": narrow, "x": out})
        out = narrow
    return lowering.arrange(depth, out, lowering.tile(dot.output))


def _spread(lowering: Lowering, depth: int, tile: VTile, dims: tuple[TileDim, ...]) -> VTile:
    """A tile repeated along the dims that it lacks."""
    if tile.dims == dims:
        return tile
    ordered = lowering.arrange(depth, tile, VTile(tuple(d for d in dims if d in tile.dims), tile.dtype))
    if ordered.dims == dims:
        return ordered
    out = VTile(dims, tile.dtype)
    mask = sum(1 << dims.index(d) for d in ordered.dims)
    lowering.emit(depth, "bcast", {"dst": out, "x": ordered, "mask": mask})
    return out
