"""Weights in the order that XLA's matrix products read without bringing them into another one first.

XLA's product of [rows, k] with [k, n] reorders the right operand on every call, which takes as long as some forty rows do; with the
contracted dim last, [n, k], it needs not. A weight that a kernel reads whole, and for products alone, is therefore passed to its code
in the order batch, free, contracted dims. What it takes is known from the words; the array is reordered once.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vm import isa
from vm.decode import Address, Kernel, Op, operations
from vm.program import LANES

SMALLEST = 1 << 14  # elements of a weight that is worth it
DTYPE = "float32"  # 16-bit products go to a library with an order of its own
_STRIP = 64  # rows that are reordered at a time: they stay in the cache


@dataclass(frozen=True)
class Packing:
    """How an array is reordered: it is taken as of shape ``memory``, and its dims are put in the order ``order``. Dim i of the outcome
    is dim ``dims[i]`` of the tile that the words load it into; the first ``batch`` are batch dims, the last ``contract`` are contracted."""

    memory: tuple[int, ...]
    order: tuple[int, ...]
    dims: tuple[int, ...]
    batch: int
    contract: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the outcome."""
        return tuple(self.memory[d] for d in self.order)

    @property
    def moves(self) -> bool:
        """Whether elements change places."""
        wide = [d for d in self.order if self.memory[d] > 1]
        return wide != sorted(wide)

    def apply(self, array: np.ndarray) -> np.ndarray:
        """The reordered array."""
        source = array.reshape(self.memory).transpose(self.order)
        if not self.moves:
            return source
        raw = np.empty(source.nbytes + LANES, np.uint8)
        start = -raw.ctypes.data % LANES  # what JAX takes without another copy
        out = raw[start : start + source.nbytes].view(array.dtype).reshape(source.shape)
        # Strips of what was the slowest dim in memory: each is read in order, and written within a few cache lines.
        axis = self.order.index(next(d for d, n in enumerate(self.memory) if n > 1))
        for i in range(0, source.shape[axis], _STRIP):
            strip = (slice(None),) * axis + (slice(i, i + _STRIP),)
            out[strip] = source[strip]
        return out


def packings(
    kernel: Kernel, lengths: Mapping[int, int], pinned: Mapping[int, int], elements: Sequence[int]
) -> dict[int, Packing]:
    """The packing of each pinned argument that has one (none with ``DVM_PACK=0``). ``lengths`` are the sizes of axes that always move as
    one block, ``pinned`` maps a buffer of the kernel to its argument, ``elements`` are the arguments' sizes."""
    if os.environ.get("DVM_PACK", "1") == "0":
        return {}
    loads: dict[int, list[Op]] = {}
    others: set[int] = set()  # tiles that something other than a product reads
    products: dict[int, list[tuple[Op, str]]] = {}
    written: dict[tuple[isa.Space, int], set[int]] = {}
    for op in operations(kernel.body):
        address = op.fields.get("address")
        if isinstance(address, Address) and address.buffer in pinned:
            loads.setdefault(pinned[address.buffer], []).append(op)
        product = op.insn.name == "mmad"
        for name in ("x", "y", "p"):
            number = op.fields.get(name)
            if isinstance(number, int) and number in kernel.tiles:
                if product:
                    products.setdefault(number, []).append((op, name))
                else:
                    others.add(number)
        for item in op.tail:
            others.update(n for k in ("x", "index") if isinstance(n := item.get(k), int))
        number = op.fields.get("dst")
        if isinstance(number, int) and number in kernel.tiles:
            tile = kernel.tiles[number]
            written.setdefault((tile.space, tile.address), set()).add(number)
    found: dict[int, Packing] = {}
    for argument, ops in loads.items():
        made = {_packing(op, kernel, lengths, products, others, written, elements[argument]) for op in ops}
        if len(made) == 1 and (packing := made.pop()) is not None:
            found[argument] = packing
    return found


def _packing(
    op: Op,
    kernel: Kernel,
    lengths: Mapping[int, int],
    products: Mapping[int, list[tuple[Op, str]]],
    others: set[int],
    written: Mapping[tuple[isa.Space, int], set[int]],
    elements: int,
) -> Packing | None:
    number = op.fields["dst"] if op.insn.name == "load" else None
    if not isinstance(number, int) or number in others or number not in products or elements < SMALLEST:
        return None
    tile = kernel.tiles[number]
    # Nothing reads it under the number of another tile that lies there.
    there = [n for n, t in kernel.tiles.items() if (t.space, t.address) == (tile.space, tile.address)]
    if tile.dtype != DTYPE or any(
        n not in written[tile.space, tile.address] and (n in others or n in products) for n in there
    ):
        return None
    memory = _memory(op, [n if axis == isa.NO_AXIS else lengths.get(axis, 0) for n, axis in tile.dims], elements)
    roles = {
        tuple(product.fixed(f"{name}dims") >> (2 * d) & 3 for d in range(len(tile.dims)))
        for product, name in products[number]
    }
    if memory is None or len(roles) != 1:
        return None
    (role,) = roles
    dims = [d for kind in (isa.DOT_BATCH, isa.DOT_FREE, isa.DOT_CONTRACT) for d, r in enumerate(role) if r == kind]
    sizes = dict(memory)
    places = [d for d, _ in memory]
    return Packing(
        tuple(sizes[d] for d in places),
        tuple(places.index(d) for d in dims),
        tuple(dims),
        role.count(isa.DOT_BATCH),
        role.count(isa.DOT_CONTRACT),
    )


def _memory(op: Op, sizes: list[int], elements: int) -> list[tuple[int, int]] | None:
    """(dim, size) of a load's tile in the order of memory, slowest first, if it is an array of ``elements`` elements, all of it."""
    if op.fields["offset"] != 0 or math.prod(sizes) != elements:
        return None
    strides: dict[int, int] = {}
    for term in op.tail:
        dim, step, stride = term["dim"], term["step"], term["stride"]
        fixed = all(isinstance(v, int) for v in (dim, step, stride)) and term["start"] == 0
        if not fixed or term["div"] != 1 or term["mod"] != 0 or term["gather"] or term["bounded"] or dim in strides:
            return None
        strides[dim] = step * stride  # type: ignore[index,operator]
    out: list[tuple[int, int]] = []
    run = 1
    for dim in sorted(range(len(sizes)), key=lambda d: (strides.get(d, 0), -d)):
        if sizes[dim] > 1:
            if strides.get(dim) != run:
                return None
            run *= sizes[dim]
        out.append((dim, sizes[dim]))
    return out[::-1]


class Packed:
    """Reordered arrays of JAX arrays, each made once and kept as long as its source is alive. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[int, Packing], tuple[Any, Any]] = {}  # by id: (weak reference to the source, outcome)

    def get(self, array: Any, packing: Packing) -> Any:
        """``array`` (a ``jax.Array``) reordered, on the device."""
        key = (id(array), packing)
        known = self._known.get(key)
        if known is not None and known[0]() is array:
            return known[1]
        out = on_device(np.asarray(array), packing)
        with self._lock:
            self._known[key] = (weakref.ref(array, lambda _: self._known.pop(key, None)), out)
        return out


def on_device(array: np.ndarray, packing: Packing) -> Any:
    """An array of the host, reordered, on the device."""
    import jax

    return jax.device_put(packing.apply(array), jax.devices("cpu")[0])


packed = Packed()
