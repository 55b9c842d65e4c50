"""Device memory: arenas in capacity classes, staging of inputs, and pooled output arenas whose results are views.

An arena is a flat buffer of lane rows of 128 items. TEMP and OUTPUT arenas belong to XLA and are donated to every launch, so stores are in
place. INPUT arenas are host memory that JAX reads without a copy. A result is a view of an output arena; the arena goes back to the pool
when the last view is gone, because donating memory that somebody still sees would copy all of it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from vm.access import SLACK_ROWS
from vm.program import LANES
from vm.specialised import ARENA_DTYPES

Key = tuple[int, int]  # (space, item size)

CLASS_FACTOR = 4
SHARED_COPY = 1 << 20  # bytes from which on two threads share a copy: one alone does not use the memory's bandwidth
SMALLEST_CLASS = 1 << 14  # lane rows: 8 MiB of 4-byte items, so that small programs never grow


def capacity_class(rows: int) -> int:
    """The capacity in lane rows of the class that holds ``rows``."""
    capacity = SMALLEST_CLASS
    while capacity < rows:
        capacity *= CLASS_FACTOR
    return capacity


def exact_capacity(rows: int) -> int:
    """A capacity for a known maximum of ``rows``; small ones are all alike, so that equal kernels of a program share code."""
    return SMALLEST_CLASS * max(1, -(-rows // SMALLEST_CLASS))


def aligned_empty(rows: int, dtype: np.dtype) -> np.ndarray:
    """Uninitialised host memory of ``rows`` lane rows, flat, at a 64-byte boundary (what JAX reads without a copy)."""
    n = rows * LANES * dtype.itemsize
    raw = np.empty(n + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + n].view(dtype)


_helper: ThreadPoolExecutor | None = None
_helper_lock = threading.Lock()


def _second_thread() -> ThreadPoolExecutor:
    global _helper
    with _helper_lock:
        if _helper is None:
            _helper = ThreadPoolExecutor(1, "dvm-copy")
        return _helper


def copy_into(target: np.ndarray, source: np.ndarray) -> None:
    """``target[...] = source`` for flat or equally shaped arrays of one dtype; ``target`` is contiguous."""
    if source.nbytes < SHARED_COPY or not source.flags.c_contiguous or (os.cpu_count() or 1) < 2:
        target.reshape(source.shape)[...] = source
        return
    a, b = target.reshape(-1), source.reshape(-1)
    half = len(b) // 2
    other = _second_thread().submit(np.copyto, a[:half], b[:half])
    try:
        np.copyto(a[half:], b[half:])
    finally:
        other.result()


def copied(source: np.ndarray) -> np.ndarray:
    """A copy of a contiguous array."""
    out = np.empty(source.shape, source.dtype)
    copy_into(out, source)
    return out


class Region:
    """Memory at an address, seen by NumPy; whatever views it keeps ``owner`` alive."""

    def __init__(self, address: int, n_bytes: int, owner: Any) -> None:
        self.owner = owner
        self.__array_interface__ = {"shape": (n_bytes,), "typestr": "|u1", "data": (address, False), "version": 3}

    def view(self, start: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An array of ``shape`` that begins ``start`` bytes into the region."""
        n = dtype.itemsize
        for d in shape:
            n *= d
        return np.asarray(self)[start : start + n].view(dtype).reshape(shape)


class Staging:
    """One input arena: host memory and the JAX array that aliases it."""

    def __init__(self, rows: int, item: int) -> None:
        import jax

        self.host = aligned_empty(rows + SLACK_ROWS, ARENA_DTYPES[item])
        self.bytes = self.host.view(np.uint8)
        with jax.enable_x64(True):
            self.device = jax.dlpack.from_dlpack(self.host)
        if self.device.unsafe_buffer_pointer() != self.host.ctypes.data:
            raise AssertionError("JAX copied an input arena instead of reading it in place")


class OutputSet:
    """The output arenas of one launch; ``lease`` hands out views."""

    def __init__(self, arenas: dict[Key, Any]) -> None:
        self.arenas = arenas


class Lease:
    """Keeps an output set away from the pool while results that view it are alive."""

    def __init__(self, held: OutputSet, give_back: Callable[[OutputSet], None]) -> None:
        self.held, self.give_back = held, give_back

    def __del__(self) -> None:
        self.give_back(self.held)


class Pool:
    """Free output sets. ``make`` allocates a new one."""

    def __init__(self, make: Callable[[], OutputSet], keep: int = 4) -> None:
        self.make, self.keep = make, keep
        self.free: list[OutputSet] = []
        self.lock = threading.Lock()

    def take(self) -> OutputSet:
        """A set that nobody sees."""
        with self.lock:
            if self.free:
                return self.free.pop()
        return self.make()

    def give(self, item: OutputSet) -> None:
        """Returns a set; more than ``keep`` free ones are dropped."""
        with self.lock:
            if len(self.free) < self.keep:
                self.free.append(item)


def device_arena(rows: int, item: int) -> Any:
    """A zeroed XLA buffer for an arena of at least ``rows`` lane rows. Compiles nothing."""
    import jax

    array = np.zeros((rows + SLACK_ROWS) * LANES, ARENA_DTYPES[item])
    with jax.enable_x64(True):
        return jax.device_put(array, jax.devices("cpu")[0], may_alias=False)
