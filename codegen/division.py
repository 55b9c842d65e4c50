"""Products whose sum is shared out among cores (split-K): their code, the number of parts, and which products are worth comparing.

A product of few tiles leaves cores idle however its tiles are chosen, and the longer its sum, the longer the others take. Each core can sum
up a part of it instead and add that to the result in memory, which a kernel before sets to zero (``graph_kernel.fusion.division``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from codegen.order import FRACTAL, LONGEST, NARROWEST, take_steps
from codegen.tileir import VInsn, VLoop, walk
from graph_kernel.fusion.axes import Refusal
from graph_kernel.fusion.division import DIVIDED, product_of
from graph_kernel.fusion.layout import Sharing
from graph_kernel.fusion.rules import SPECULATIVE, Group
from symbolic import Dim, Scope, ceildiv, floordiv, product, smax, smin
from vm import isa
from vm.chip import Chip

Item = VInsn | VLoop
COLUMNS = 128  # of a tile: wider ones leave more parts, and every part adds the whole tile to memory
LEAST = 128  # summands of a part
SHORTEST = 1024  # summands: the undivided product of fewer takes hardly longer than to begin two more kernels


def divided(body: list[Item]) -> list[Item]:
    """The body of a product with a SPLIT loop around the loop over its summands, and a store that adds. Raises ``Refusal`` if it is more
    than that."""
    loops = [item for item in body if isinstance(item, VLoop)]
    if len(loops) != 1:
        raise Refusal("a product whose summands are no loop of their own")
    loop = loops[0]
    if loop.kind == isa.LoopKind.PARALLEL and len(body) == 1:
        return [VLoop(loop.axis, loop.kind, divided(loop.body))]
    names = [item.name for item in body if isinstance(item, VInsn)]
    nested = any(isinstance(item, VLoop) for item in loop.body)
    if nested or loop.kind != isa.LoopKind.REDUCE or names != ["fill", "copy", "store"]:
        raise Refusal("a sum that more is done to than to store it")
    for item in body:
        if isinstance(item, VInsn) and item.name == "store":
            item.fields["add"] = 1
    return [VLoop(loop.axis, isa.LoopKind.SPLIT, body)]


def share(body: list[Item], sharing: Sharing, chip: Chip) -> None:
    """Sets the steps of loops so that every core has something to do: rows, or tiles and parts of their sums."""
    loops = list(_loops(body, isa.LoopKind.PARALLEL))
    if sharing is Sharing.ROWS:
        if loops:
            axis = loops[0].axis
            take_steps(loops[0], smin(axis.tile, smax(1, ceildiv(axis.extent, chip.vector_cores))))
        return
    tiles: Dim = 1
    for loop in loops:
        most = min(loop.axis.tile, COLUMNS) if loop is loops[-1] else loop.axis.tile
        blocks = smax(1, ceildiv(loop.axis.extent, most))
        take_steps(loop, smin(most, smax(1, ceildiv(ceildiv(loop.axis.extent, blocks), FRACTAL)) * FRACTAL))
        tiles = tiles * blocks
    (split,) = _loops(body, isa.LoopKind.SPLIT)
    summands = split.axis.extent
    parts = smax(1, smin(floordiv(chip.cube_cores, tiles), ceildiv(summands, LEAST)))
    split.step = smin(LONGEST, smax(1, ceildiv(ceildiv(summands, parts), FRACTAL)) * FRACTAL)


def _loops(body: list[Item], kind: isa.LoopKind) -> Iterator[VLoop]:
    return (item for item in walk(body) if isinstance(item, VLoop) and item.kind == kind)


def summands(group: Group) -> Dim:
    """How many products each element of the group's product is the sum of."""
    dot = product_of(group)
    assert dot is not None
    return product([dot.inputs[0].shape[axis] for axis in dot.attrs["contract"][0]])


def candidates(groups: Sequence[Group], scope: Scope, chip: Chip, most: int | None) -> list[Group]:
    """Groups whose product could be faster divided at some sizes, by bounds alone: nothing is built for the others. At the least sizes
    their tiles leave cores idle, and at the largest the sum is long. The program may have ``most`` kernels (None: any number)."""
    count = sum(len(group.apart) if group.apart and group.rule is SPECULATIVE else 1 for group in groups)
    if most is not None and count > most:
        most = None  # it has more in any case
    return [g for g in groups if not g.apart and (most is None or count + _more(g) <= most) and _idle(g, scope, chip)]


def _more(group: Group) -> int:
    """How many kernels a divided product has more than one."""
    dot = product_of(group)
    return 1 if dot is not None and len(group.nodes) == 1 and dot.output.dtype.itemsize == 4 else 2


def _idle(group: Group, scope: Scope, chip: Chip) -> bool:
    if product_of(group) is None or group.layout is None:
        return False
    longest = scope.bounds(summands(group))[1]
    if longest is not None and longest < SHORTEST:
        return False
    loops = group.layout.outer()
    if sum(not isinstance(loop.extent, int) for loop in loops) > 1:
        return False  # few results may be of many shapes
    widths = [*(loop.tile for loop in loops[:-1]), NARROWEST]
    least = [max(scope.bounds(loop.extent)[0] or 0, 1) for loop in loops]
    tiles = math.prod(-(-n // width) for n, width in zip(least, widths, strict=False))
    return tiles * DIVIDED.patience <= chip.cube_cores
