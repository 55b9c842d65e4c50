"""The executable of a unit: its kernels traced one after the other into one function, which XLA compiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from vm import counters, hlo, specialised
from vm.access import SLACK_ROWS
from vm.dtypes import dtype_of
from vm.program import LANES
from vm.units import Unit

_WIDE = 4  # number of the argument that says whether 16-bit factors are widened


class Copied(Exception):
    """XLA copies whole arenas between the kernels of a unit."""


def build(unit: Unit, pinned: Sequence[tuple[tuple[int, ...], np.dtype]], capacity: Sequence[int]) -> Any:
    """The compiled code of a unit: ``code(scalars, pinned, arenas read, arenas written) -> arenas written``, the last donated.

    ``pinned`` are the shapes and dtypes of its pinned arguments, ``capacity`` the lane rows of each arena that it uses. Raises ``Copied``
    if its kernels are better compiled apart."""

    def run(scalars: Any, pinned: list[Any], read: list[Any], written: list[Any], wide: bool) -> list[Any]:
        arenas = dict(zip(unit.read, read, strict=True)) | dict(zip(unit.written, written, strict=True))
        first, left = 0, list(pinned)
        for part, numbers in zip(unit.parts, unit.local, strict=True):
            refs = [specialised.BufferRef(arena, dtype_of(dtype), place) for arena, dtype, place in part.refs]
            own = specialised.trace(
                part.kernel,
                part.table,
                scalars,
                first,
                refs,
                left[: len(part.pinned)],
                part.packings,
                {k: arenas[n] for k, n in enumerate(numbers)},
                wide,
                joined=len(unit.parts) > 1,
            )
            arenas.update((n, own[k]) for k, n in enumerate(numbers))
            first, left = first + part.table.size, left[len(part.pinned) :]
        return [arenas[n] for n in unit.written]

    struct = jax.ShapeDtypeStruct

    def arenas(numbers: Sequence[int]) -> list[Any]:
        dtypes = [specialised.ARENA_DTYPES[unit.places[n][1]] for n in numbers]
        return [struct(((capacity[n] + SLACK_ROWS) * LANES,), d) for n, d in zip(numbers, dtypes, strict=True)]

    with jax.enable_x64(True):
        scalars = struct((sum(part.table.size for part in unit.parts) + 1,), np.int64)
        arguments = (scalars, [struct(*p) for p in pinned], arenas(unit.read), arenas(unit.written))
        counters.add("specialised_compiles")
        lower = jax.jit(run, donate_argnums=(3,), static_argnums=(_WIDE,)).lower
        code = lower(*arguments, False).compile(specialised.XLA_OPTIONS)
        if any(part.kernel.in_16_bits for part in unit.parts) and hlo.narrow_products(code.as_text() or ""):
            code = lower(*arguments, True).compile(specialised.XLA_OPTIONS)
        rows = (capacity[n] + SLACK_ROWS for n in unit.written)
        if len(unit.parts) > 1 and hlo.copies_arenas(code.as_text() or "", rows):
            raise Copied
        return code
