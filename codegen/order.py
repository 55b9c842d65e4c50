"""What is decided about a product's tiles when sizes are known: how large they are, and in which order the cores visit them.

Tiles hold as much as local memory has room for, which is best where there are many. Where there are few, some cores would have none, or
one more than others: steps of rows and columns are then smaller (``_balanced``).

Row blocks outside, column blocks inside, every core reads all columns' operand for each of its row blocks. That is right as long as both
operands fit L2. Where they do not, tiles are visited in groups of rows and columns whose operands do (*swizzling*): for a group of columns
all groups of rows, for each of these its tiles. Within a group everything is read from HBM once. With ``a`` and ``b`` the bytes that a row
and a column need, ``L`` the bytes of L2, and R rows and G columns a group, R a + G b <= L:

- if all rows take at most 3/4 of L: all rows, and the columns that still fit (all of them, where everything fits);
- else if all columns take at most 3/4 of L: all columns, and the rows that still fit;
- else the rows take 1/4 and the columns 3/4: a group's columns stay while the rows pass, once for every group of columns.

R and G are integer code over the launch's sizes: nothing is searched when a program is bound.
"""

from __future__ import annotations

from codegen.tileir import VInsn, VLoop, VTile, walk
from graph_kernel.fusion.layout import LoopAxis
from symbolic import Dim, Scope, ceildiv, floordiv, smax, smin
from vm import isa
from vm.chip import Chip

Item = VInsn | VLoop
FRACTAL = 16  # rows and columns that the cube multiplies at once
NARROWEST = 64  # columns of a tile that is made smaller so that more cores have one
LONGEST = (1 << 24) - 4096  # elements of a step that a loop's field can hold, rounded up to a tile


def swizzled(body: list[Item], loops: list[LoopAxis], chip: Chip, scope: Scope) -> list[Item]:
    """``body`` with the steps of a product's rows and columns, and in ORDER loops where its operands may be too large for L2."""
    nest = _nest(body)
    if nest is None:
        alone = _rows_alone(body)
        if alone is not None:
            take_steps(alone, _balanced(alone.axis, None, chip.cube_cores)[0])
        return body
    rows, columns = nest
    a, b = (_bytes(rows, loops, mine, other) for mine, other in ((rows, columns), (columns, rows)))
    most = scope.bounds(rows.axis.extent * a + columns.axis.extent * b)[1]
    for loop, step in zip((rows, columns), _balanced(rows.axis, columns.axis, chip.cube_cores), strict=True):
        take_steps(loop, step)
    if most is not None and most <= chip.l2_bytes:
        return body
    r, g = _groups(rows.axis, columns.axis, a, b, chip)
    ordered = VLoop(columns.axis, isa.LoopKind.ORDER, [VLoop(rows.axis, isa.LoopKind.ORDER, [rows], step=r)], step=g)
    return [ordered if item is rows else item for item in body]


def take_steps(loop: VLoop, step: Dim) -> None:
    """Sets the step of a parallel loop. One that is known now is what the tiles hold; one that is bound is at most that."""
    if isinstance(step, int):
        loop.axis.tile = min(loop.axis.tile, step)
    else:
        loop.step = step


def _nest(body: list[Item]) -> tuple[VLoop, VLoop] | None:
    """The loops over rows and columns of a kernel that is a product and nothing else outside of them."""
    rows = _only_loop(body)
    columns = _only_loop(rows.body) if rows is not None else None
    if (
        rows is None
        or columns is None
        or not any(isinstance(x, VInsn) and x.name == "mmad" for x in walk(columns.body))
    ):
        return None
    inner = (x for x in walk(columns.body) if isinstance(x, VLoop))
    if any(x.kind != isa.LoopKind.PARALLEL for x in (rows, columns)) or any(
        x.kind != isa.LoopKind.REDUCE for x in inner
    ):
        return None
    return rows, columns


def _rows_alone(body: list[Item]) -> VLoop | None:
    """The loop over rows of a product whose columns are no loop."""
    found = [item for item in body if isinstance(item, VLoop)]
    if len(found) != 1 or found[0].kind != isa.LoopKind.PARALLEL:
        return None
    inner = list(walk(found[0].body))
    product = any(isinstance(x, VInsn) and x.name == "mmad" for x in inner)
    return found[0] if product and not any(isinstance(x, VLoop) and x.kind == found[0].kind for x in inner) else None


def _only_loop(body: list[Item]) -> VLoop | None:
    """The only thing in a body beside events, if that is a loop."""
    found = [item for item in body if isinstance(item, VLoop) or isa.TABLE[item.name].family != "sync"]
    return found[0] if len(found) == 1 and isinstance(found[0], VLoop) else None


def _bytes(nest: VLoop, loops: list[LoopAxis], mine: VLoop, other: VLoop) -> Dim:
    """Bytes of operands that a step of one element along a loop's axis loads, of those that do not move with the other one."""
    total: Dim = 0
    for item in walk(nest.body):
        tile = item.fields["dst"] if isinstance(item, VInsn) and item.name == "load" else None
        axes = [d.loop for d in tile.dims] if isinstance(tile, VTile) else []
        if isinstance(tile, VTile) and mine.axis.id in axes and other.axis.id not in axes:
            n: Dim = tile.dtype.itemsize
            for d in tile.dims:
                if d.loop != mine.axis.id:
                    n = n * (loops[d.loop].extent if d.loop >= 0 else d.size)
            total = total + n
    return total


def _balanced(rows: LoopAxis, columns: LoopAxis | None, cores: int) -> tuple[Dim, Dim]:
    """Steps of rows and columns with which all cores have about as much to do: where there are fewer tiles than cores, narrower ones; then
    as many blocks of rows as the rounds that the cores need have room for."""
    high = smax(1, ceildiv(rows.extent, rows.tile))
    c: Dim = 1
    across: Dim = 1
    if columns is not None:
        wide, narrow = (smax(1, ceildiv(columns.extent, n)) for n in (columns.tile, NARROWEST))
        c = _whole(columns, smax(wide, smin(floordiv(cores, high), narrow)))
        across = smax(1, ceildiv(columns.extent, c))
    rounds = ceildiv(high * across, cores)
    down = smax(high, floordiv(rounds * cores, across))
    return _whole(rows, down), c


def _whole(axis: LoopAxis, steps: Dim) -> Dim:
    """The step that divides an axis into so many, rounded up to fractals; at most a tile."""
    return smin(axis.tile, smax(1, ceildiv(ceildiv(axis.extent, steps), FRACTAL)) * FRACTAL)


def _groups(rows: LoopAxis, columns: LoopAxis, a: Dim, b: Dim, chip: Chip) -> tuple[Dim, Dim]:
    """Rows and columns of a group, whole tiles of both."""
    a, b, l2 = smax(a, 1), smax(b, 1), chip.l2_bytes
    room = smax(l2 - a * rows.tile - b * columns.tile, l2 // 8)  # what rounding up to whole tiles may take is set aside
    most = floordiv(room * 3, 4)
    all_rows, all_columns = rows.extent * a, columns.extent * b
    too_many = smin(1, floordiv(all_rows, most + 1))  # 0 or 1
    for_rows = all_rows - too_many * (all_rows - smin(all_rows, room - smin(all_columns, most)))
    high = smax(1, ceildiv(smin(floordiv(for_rows, a), LONGEST), rows.tile))  # tiles of a group, down and across
    across = smax(1, ceildiv(smin(floordiv(room - for_rows, b), LONGEST), columns.tile))
    # Several groups of rows: as many tiles as all cores do in whole rounds, in one round at least, though it be more than L2 holds.
    several = smin(1, floordiv(rows.extent, high * rows.tile + 1))
    rounds = smax(1, floordiv(high * across, chip.cube_cores))
    busy = smax(1, floordiv(rounds * chip.cube_cores, across))
    return (high - several * (high - busy)) * rows.tile, across * columns.tile
