"""Virtual instructions to words: field encoding, patches for what is symbolic, relocations for addresses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from codegen.tileir import Imm, VInsn, VLoop, VTile, walk
from graph_kernel.fusion.axes import Refusal
from graph_kernel.ir import Value
from symbolic import Dim, Expr, ceildiv, smin
from vm import isa
from vm.program import Patch, Reloc, Template


@dataclass
class Assembled:
    """A template with the dims of its parameters and the values of its buffers, in order."""

    template: Template
    params: list[Dim]
    buffers: list[Value]


class _Assembler:
    def __init__(self) -> None:
        self.words: list[int] = [0, 0]
        self.patches: list[Patch] = []
        self.relocs: list[Reloc] = []
        self.params: dict[Dim, int] = {}
        self.buffers: dict[Value, int] = {}
        self.ordered: dict[int, Dim] = {}  # steps of the open ORDER and SPLIT loops, by axis

    def field(self, base: int, field: isa.Field, value: object) -> None:
        word = base + field.word
        if isinstance(value, VTile):
            isa.put(self.words, base, field, value.id)
        elif isinstance(value, Imm):
            if isinstance(value.value, Expr):
                self.patches.append(
                    Patch(word, field.lo, field.width, self.params.setdefault(value.value, len(self.params)))
                )
            else:
                isa.put(self.words, base, field, isa.imm_bits(value.value, value.dtype))
        elif isinstance(value, Value):
            self.relocs.append(Reloc(word, self.buffers.setdefault(value, len(self.buffers))))
        elif isinstance(value, Expr):
            self.patches.append(Patch(word, field.lo, field.width, self.params.setdefault(value, len(self.params))))
        elif isinstance(value, int):
            isa.put(self.words, base, field, value)
        else:
            raise TypeError(f"field {field.name}: {value!r}")

    def insn(self, name: str, fields: dict, tail: list[dict], sync: dict[str, int] | None = None) -> None:
        insn = isa.TABLE[name]
        base = len(self.words)
        length = insn.fixed_words + len(tail) * insn.tail_words
        if len(tail) > 255:
            raise Refusal("an access has too many terms")
        self.words += [0] * length
        isa.put(self.words, base, isa.HEAD_ID, insn.id)
        isa.put(self.words, base, isa.HEAD_LEN, length)
        isa.put(self.words, base, isa.HEAD_TAIL, len(tail))
        if sync is not None:
            for f in isa.SYNC:
                isa.put(self.words, base, f, sync.get(f.name, 0))
        for f in insn.fields:
            self.field(base, f, fields.get(f.name, 0))
        for i, item in enumerate(tail):
            at = base + insn.fixed_words + i * insn.tail_words
            for f in insn.tail:
                self.field(at, f, item.get(f.name, 0))

    def body(self, items: list[VInsn | VLoop]) -> None:
        for item in items:
            if isinstance(item, VLoop):
                extent: Dim = item.axis.extent
                tile: Dim = item.axis.tile if item.step is None else item.step
                outside = item.kind.divides  # around a loop over the same axis
                covered = extent if outside else smin(extent, self.ordered.get(item.axis.id, extent))
                fields = {
                    "axis": item.axis.id,
                    "kind": int(item.kind),
                    "tile": tile,
                    "trips": ceildiv(covered, tile),
                    "extent": extent,
                }
                self.insn("loop", fields, [])
                if outside:
                    self.ordered[item.axis.id] = tile
                self.body(item.body)
                if outside:
                    del self.ordered[item.axis.id]
                self.insn("endloop", {"axis": item.axis.id}, [])
            else:
                self.insn(item.name, item.fields, item.tail, item.sync)


def assemble(body: list[VInsn | VLoop], name: str) -> Assembled:
    """The template of a kernel whose tiles have addresses and whose loops have chip tiles."""
    out = _Assembler()
    tiles: dict[VTile, None] = {}
    for item in walk(body):
        if isinstance(item, VInsn):
            for tile in item.tiles():
                tiles.setdefault(tile)
    loops = {item.axis.id: item.axis for item in walk(body) if isinstance(item, VLoop)}
    if len(tiles) > 1023 or len(loops) > isa.MAX_AXES:
        raise Refusal("a kernel with too many tiles or loops")
    for i, tile in enumerate(tiles):
        tile.id = i
        if len(tile.dims) > isa.MAX_RANK:
            raise Refusal(f"a tile of rank {len(tile.dims)}")
        dims = [
            {"size": loops[d.loop].tile, "axis": d.loop} if d.loop >= 0 else {"size": d.size, "axis": isa.NO_AXIS}
            for d in tile.dims
        ]
        fields = {"id": i, "space": int(tile.space), "address": tile.address, "dtype": isa.DTYPE_CODE[tile.dtype]}
        fields["more"] = tile.places - 1
        out.insn("tile", fields, dims)
    out.body(body)
    out.words.append(0)
    if len(out.words) >= 1 << isa.ENTRY_WORDS.width:
        raise Refusal("a kernel with too many words")
    isa.put(out.words, 0, isa.ENTRY_WORDS, len(out.words))
    isa.put(out.words, 0, isa.ENTRY_MIX, int(any(isinstance(i, VInsn) and i.name == "mmad" for i in walk(body))))
    words = np.array(out.words, np.uint64)
    template = Template(words, tuple(out.patches), tuple(out.relocs), len(out.params), len(out.buffers), name)
    return Assembled(template, list(out.params), list(out.buffers))
