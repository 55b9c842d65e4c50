"""The structure of virtual code, so that equal kernels are planned, ordered and assembled once.

A key holds everything that ``local_memory.plan``, ``sync.insert`` and ``assemble`` look at: instructions with fields, tiles by number and
kind, loops by number and kind. Graph values are numbers in the order in which they appear; what they stand for is put back from that order.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from codegen.assemble import Assembled
from codegen.tileir import Imm, VInsn, VLoop, VTile
from graph_kernel.fusion.layout import LoopAxis
from graph_kernel.ir import Value
from symbolic import Expr
from vm import isa


class Structure:
    """The ``key`` of a kernel's virtual code and the graph ``values`` that it addresses, by number; ``more`` becomes part of the key."""

    def __init__(self, body: Sequence[VInsn | VLoop], loops: Sequence[LoopAxis], name: str, *more: Hashable) -> None:
        self.values: dict[Value, int] = {}
        self._tiles: dict[VTile, int] = {}
        shape = tuple((x.id, x.extent, x.stage, x.inner, x.atoms) for x in loops)
        self.key: Hashable = (name, more, shape, tuple(map(self._item, body)))

    def _item(self, item: VInsn | VLoop) -> Hashable:
        if isinstance(item, VLoop):
            return ("loop", item.axis.id, int(item.kind), tuple(map(self._item, item.body)))
        return (
            item.name,
            self._fields(item.fields),
            tuple(map(self._fields, item.tail)),
            tuple(item.sync.items()),
        )

    def _fields(self, fields: dict) -> Hashable:
        return tuple((name, *self._field(value)) for name, value in fields.items())

    def _field(self, value: object) -> tuple[Hashable, ...]:
        if isinstance(value, VTile):
            number = self._tiles.setdefault(value, len(self._tiles))
            return ("tile", number, value.dims, value.dtype.name, int(value.space), value.id, value.address)
        if isinstance(value, Imm):  # by bits: 0.0 and -0.0 are equal numbers
            bits = value.value if isinstance(value.value, Expr) else isa.imm_bits(value.value, value.dtype)
            return ("immediate", isinstance(value.value, Expr), bits, value.dtype.name)
        if isinstance(value, Value):
            return ("value", self.values.setdefault(value, len(self.values)), value.dtype.name)
        if isinstance(value, Expr):
            return ("size", value)
        if isinstance(value, int):
            return ("number", int(value))
        raise TypeError(f"{value!r} in virtual code")


@dataclass(frozen=True)
class Lowered:
    """A kernel's code and the bytes of unified buffer that it uses."""

    code: Assembled
    used: int

    def over(self, values: Mapping[Value, Value]) -> Lowered:
        """The same code over other values."""
        return Lowered(replace(self.code, buffers=[values[v] for v in self.code.buffers]), self.used)


@dataclass(frozen=True)
class Finished:
    """Assembled code with its values by number, the bytes of unified buffer it uses and the chip tiles of its loops."""

    code: Assembled
    numbers: tuple[int, ...]
    used: int
    tiles: tuple[int, ...]

    @classmethod
    def of(cls, code: Assembled, structure: Structure, used: int, loops: Sequence[LoopAxis]) -> Finished:
        """Keeps what was made of a structure."""
        return cls(code, tuple(structure.values[v] for v in code.buffers), used, tuple(x.tile for x in loops))

    def again(self, structure: Structure, loops: Sequence[LoopAxis]) -> Lowered:
        """The same for equal code over other values; sets the loops' tiles."""
        for loop, tile in zip(loops, self.tiles, strict=True):
            loop.tile = tile
        values = list(structure.values)
        return Lowered(Assembled(self.code.template, self.code.params, [values[n] for n in self.numbers]), self.used)
