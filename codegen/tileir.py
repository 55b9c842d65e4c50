"""Virtual instructions: the ISA's instructions before tiles have addresses and dims have bits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graph_kernel.fusion.layout import LoopAxis, TileDim
from graph_kernel.ir import Value
from symbolic import Dim
from vm import isa


@dataclass(eq=False)
class VTile:
    """A tile that has no address yet."""

    dims: tuple[TileDim, ...]
    dtype: np.dtype
    space: isa.Space = isa.Space.UB
    id: int = -1
    address: int = -1
    places: int = 1  # as of ``vm.decode.Tile``


@dataclass(frozen=True)
class Imm:
    """An immediate of a given dtype; a symbolic dim is patched in at launch."""

    value: Any
    dtype: np.dtype


@dataclass(eq=False)
class VInsn:
    """One instruction: field values are ints, dims, tiles, immediates or, for addresses, graph values."""

    name: str
    fields: dict[str, int | Dim | VTile | Imm | Value]
    tail: list[dict[str, int | Dim | VTile]] = field(default_factory=list)
    sync: dict[str, int] = field(default_factory=dict)  # fields of isa.SYNC

    def tiles(self) -> Iterator[VTile]:
        """Every tile the instruction names."""
        yield from (value for value in self.fields.values() if isinstance(value, VTile))
        for item in self.tail:
            yield from (value for value in item.values() if isinstance(value, VTile))


@dataclass(eq=False)
class VLoop:
    """A loop with its body."""

    axis: LoopAxis
    kind: isa.LoopKind
    body: list[VInsn | VLoop] = field(default_factory=list)
    step: Dim | None = None  # elements of a step that are chosen when the program is bound; None: the axis' chip tile


def walk(body: list[VInsn | VLoop]) -> Iterator[VInsn | VLoop]:
    """All instructions and loops, each loop before its body."""
    for item in body:
        yield item
        if isinstance(item, VLoop):
            yield from walk(item.body)
