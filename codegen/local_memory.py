"""Chip tile sizes and the local-memory plan of a kernel: liveness and first-fit within each memory's real capacity."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from codegen.tileir import VInsn, VLoop, VTile, walk
from graph_kernel.fusion.axes import Refusal
from graph_kernel.fusion.layout import LoopAxis
from vm import isa
from vm.chip import Chip

ALIGN = 32  # bytes, the unified buffer's block
VECTOR_SPAN, VECTOR_ROWS = 512, 4096
CUBE_SPAN, CUBE_ROWS, CUBE_DEPTH = 256, 128, 512  # the first two fill L0C with float32
PLACES = (4, 2)  # of a product's operands in L1: two hide a load behind a product, more also the latency of memory


@dataclass
class Interval:
    """A tile and the positions of its first definition and last use."""

    tile: VTile
    first: int
    last: int
    over: list[Interval] = field(default_factory=list)  # operands of its first definition that it may be written over


def tile_bytes(tile: VTile, loops: list[LoopAxis]) -> int:
    """Bytes of a tile at the loops' chip tile sizes, rounded up to blocks."""
    n = tile.dtype.itemsize
    for d in tile.dims:
        size = loops[d.loop].tile if d.loop >= 0 else d.size
        assert isinstance(size, int)
        n *= max(size, 1)
    return -(-n // ALIGN) * ALIGN


def intervals(body: list[VInsn | VLoop]) -> list[Interval]:
    """Live intervals over a linear numbering; a tile from outside a loop that is used in it lives to the loop's end."""
    found: dict[VTile, Interval] = {}
    loaded: set[VTile] = set()
    clock = 0

    def visit(items: list[VInsn | VLoop]) -> Iterator[None]:
        nonlocal clock
        for item in items:
            clock += 1
            if isinstance(item, VLoop):
                begin = clock
                yield from visit(item.body)
                clock += 1
                for outer in found.values():
                    if outer.first < begin <= outer.last:
                        outer.last = clock
                continue
            for tile in item.tiles():
                live = found.get(tile)
                if live is None:
                    found[tile] = Interval(tile, clock, clock)
                else:
                    live.last = clock
            _note_in_place(item, found, loaded, clock)
        yield

    for _ in visit(body):
        pass
    return sorted(found.values(), key=lambda live: live.first)


def _note_in_place(insn: VInsn, found: dict[VTile, Interval], loaded: set[VTile], clock: int) -> None:
    """Notes which operands an elementwise result may be written over. Not over what is loaded: the next load of that tile would then
    wait for the store of the result."""
    dst = insn.fields.get("dst")
    if not isinstance(dst, VTile):
        return
    if insn.name == "load":
        loaded.add(dst)
    if isa.TABLE[insn.name].family not in ("unary", "binary", "select") or found[dst].first != clock:
        return
    for name in ("x", "y"):
        x = insn.fields.get(name)
        same = isinstance(x, VTile) and x.dims == dst.dims and x.dtype.itemsize == dst.dtype.itemsize
        if same and x.space == dst.space and x not in loaded:  # type: ignore[union-attr]
            found[dst].over.append(found[x])  # type: ignore[index]


def turning(body: list[VInsn | VLoop]) -> list[VTile]:
    """Tiles that can have several places: each is loaded into L1 by one instruction of an innermost loop and read only there, behind it."""
    found: list[VTile] = []

    def visit(items: list[VInsn | VLoop], looped: bool) -> None:
        inner = [item for item in items if isinstance(item, VLoop)]
        for item in inner:
            visit(item.body, True)
        if inner or not looped:
            return
        loads = {x.fields["dst"]: i for i, x in enumerate(items) if isinstance(x, VInsn) and x.name == "load"}
        for tile, at in loads.items():
            assert isinstance(tile, VTile)
            uses = [i for i, x in enumerate(items) if isinstance(x, VInsn) and tile in x.tiles()]
            if tile.space == isa.Space.L1 and len(uses) == count[tile] and uses[0] == at:
                found.append(tile)

    count: dict[VTile, int] = {}
    for item in walk(body):
        for tile in dict.fromkeys(item.tiles()) if isinstance(item, VInsn) else ():
            count[tile] = count.get(tile, 0) + 1
    visit(body, False)
    return found


def assign(live: list[Interval], loops: list[LoopAxis], capacity: dict[isa.Space, int], reuse: bool = False) -> bool:
    """Gives every tile an address; False if a memory overflows. With ``reuse`` results are written over operands that they are the last
    to need."""
    active: dict[isa.Space, list[tuple[int, int, int]]] = {s: [] for s in capacity}  # (address, end, last use)
    for item in live:
        space = item.tile.space
        size = tile_bytes(item.tile, loops) * item.tile.places
        blocks = sorted(b for b in active[space] if b[2] >= item.first)
        address = _in_place(item, blocks) if reuse else -1
        if address < 0:
            address = 0
            for begin, end, _ in blocks:
                if begin - address >= size:
                    break
                address = max(address, end)
        if address + size > capacity[space]:
            return False
        item.tile.address = address
        blocks.append((address, address + size, item.last))
        active[space] = blocks
    return True


def _in_place(item: Interval, blocks: list[tuple[int, int, int]]) -> int:
    """The address of an operand that ends where ``item`` begins; -1 if there is none."""
    held = [(begin, last) for begin, _, last in blocks]
    for x in item.over:
        at = x.tile.address
        if x.last == item.first and [last for begin, last in held if begin == at] == [x.last]:
            return at
    return -1


def _grow(
    limits: list[tuple[LoopAxis, int]],
    live: list[Interval],
    loops: list[LoopAxis],
    capacity: dict[isa.Space, int],
    reuse: bool,
) -> None:
    """Doubles the tiles of these loops in turn, each up to its limit, while everything fits: a product moves least for the work it does
    when its tile is about as high as it is wide."""
    while limits:
        left = []
        for loop, limit in limits:
            old, top = loop.tile, min(limit, loop.extent) if isinstance(loop.extent, int) else limit
            loop.tile = min(max(top, old), old * 2)
            if not assign(live, loops, capacity, reuse):
                loop.tile = old
            elif loop.tile > old:
                left.append((loop, limit))
        limits = left


def plan(body: list[VInsn | VLoop], loops: list[LoopAxis], chip: Chip) -> int:
    """Chooses the loops' chip tiles and all addresses; returns the bytes of unified buffer used.

    Tiles grow by doubling while everything fits: those of vector code innermost loops first, those of products in turn. Operands of a
    product get several places in L1 where that leaves room for tiles of results as large as without: the next ones are loaded while the
    cube works. Raises ``Refusal`` if not even single elements fit.
    """
    live = intervals(body)
    capacity = {
        isa.Space.UB: chip.ub_bytes - chip.ub_reserved_bytes,
        isa.Space.L1: chip.l1_bytes,
        isa.Space.L0C: chip.l0c_bytes,
    }
    cube = any(isinstance(item, VInsn) and item.name == "mmad" for item in walk(body))
    _tile(live, loops, capacity, cube)
    many = turning(body) if cube else []
    if many:
        _add_places(many, live, loops, capacity)
    return max(
        (item.tile.address + tile_bytes(item.tile, loops) for item in live if item.tile.space == isa.Space.UB),
        default=0,
    )


def _add_places(many: list[VTile], live: list[Interval], loops: list[LoopAxis], capacity: dict[isa.Space, int]) -> None:
    """Gives these tiles as many places as there is room for, from the beginning of the kernel to its end."""
    before, size = [loop.tile for loop in loops], _result(loops)
    end = max(item.last for item in live)
    longer = [replace(item, first=0, last=end) if item.tile in many else item for item in live]
    longer.sort(key=lambda item: item.first)
    for places in PLACES:
        for tile in many:
            tile.places = places
        try:
            _tile(longer, loops, capacity, True)
        except Refusal:
            continue
        if _result(loops) >= size:
            return
    for tile in many:
        tile.places = 1
    for loop, n in zip(loops, before, strict=True):
        loop.tile = n
    assign(live, loops, capacity, True)


def _result(loops: list[LoopAxis]) -> int:
    """Elements of a step of all parallel loops."""
    return math.prod(loop.tile for loop in loops if not loop.stage)


def _tile(live: list[Interval], loops: list[LoopAxis], capacity: dict[isa.Space, int], cube: bool) -> None:
    """Chooses the loops' chip tiles and the addresses."""
    for loop in loops:
        loop.tile = 1
    if not assign(live, loops, capacity, cube):
        raise Refusal("one element of every loop does not fit in local memory")
    parallel, stages = [x for x in loops if not x.stage], [x for x in loops if x.stage]
    inner, rows = [x for x in parallel if x.inner], [x for x in parallel if not x.inner]
    if not inner:
        inner, rows = parallel[-1:], parallel[:-1] if cube else parallel
    if cube:
        limits = [(x, CUBE_SPAN) for x in inner] + [(x, CUBE_ROWS) for x in rows[-1:]]
        _grow([*limits, *((x, CUBE_DEPTH) for x in stages)], live, loops, capacity, True)
    else:
        for one in [(x, VECTOR_SPAN) for x in inner + stages] + [(x, VECTOR_ROWS) for x in rows]:
            _grow([one], live, loops, capacity, False)
    assign(live, loops, capacity, cube)
