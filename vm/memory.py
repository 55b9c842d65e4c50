"""Device memory: arenas in capacity classes, staging of inputs, and pooled output arenas whose results are views.

An arena is a flat buffer of lane rows of 128 items. TEMP and OUTPUT arenas belong to XLA and are donated to every launch, so stores are in
place. INPUT arenas are host memory that JAX reads without a copy: the caller's own,
or a copy of it. A result is a view of an output arena; the arena goes back to the pool
when the last view is gone, because donating memory that somebody still sees would copy all of it.
"""

from __future__ import annotations

import functools
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
Place = tuple[
    int, ...
]  # the same of an arena; of an input, which has an arena of its own: (space, item size, number of the input)

ALIGNMENT = 64  # of memory that JAX reads without a copy, in bytes

LENT = (
    2  # output sets that small results may keep: a caller who holds the last result while the next is computed has two
)

CLASS_FACTOR = 4
SHARED_COPY = 1 << 20  # bytes from which on two threads share a copy: one alone does not use the memory's bandwidth
FRESH = 1 << 15  # bytes up to which the allocator has memory at hand
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
    """Uninitialised host memory of ``rows`` lane rows, flat, aligned for JAX (what JAX reads without a copy)."""
    n = rows * LANES * dtype.itemsize
    raw = np.empty(n + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
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


class Recycled:
    """Host memory for copies of results. It is used again when the last view of a copy is gone, because memory that is fresh from the
    system costs a fault a page. At most ``keep`` bytes are kept free."""

    def __init__(self, keep: int = 1 << 26) -> None:
        self.keep, self.kept = keep, 0
        self.free: dict[int, list[np.ndarray]] = {}
        self.lock = threading.RLock()  # a collection that runs here may give back others

    def empty(self, n: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Memory for a copy of an array of ``n`` bytes, aligned for JAX."""
        if n <= FRESH:
            raw = np.empty(n + ALIGNMENT, np.uint8)
            first = -raw.__array_interface__["data"][0] % ALIGNMENT
            return np.ndarray(shape, dtype, raw, first)
        unit = max(1 << max(n.bit_length() - 3, 0), LANES)  # sizes are rounded up by a quarter at most
        size = -(-n // unit) * unit
        with self.lock:
            found = self.free.get(size)
            taken = found.pop() if found else None
            self.kept -= size if taken is not None else 0
        if taken is None:
            taken = aligned_empty(-(-size // LANES), np.dtype(np.uint8))[:size]
        lease = Lease(taken, self.give)
        return Region(taken.__array_interface__["data"][0], size, lease).view(0, shape, dtype)

    def give(self, memory: np.ndarray) -> None:
        """Takes back the memory of a copy."""
        with self.lock:
            if self.kept + memory.nbytes <= self.keep:
                self.kept += memory.nbytes
                self.free.setdefault(memory.nbytes, []).append(memory)


copies = Recycled()  # of all programs


class Staging:
    """The arena of an input that is copied: host memory and the JAX array that aliases it."""

    def __init__(self, rows: int, item: int) -> None:
        self.host = aligned_empty(rows + SLACK_ROWS, ARENA_DTYPES[item])
        self.bytes = self.host.view(np.uint8)
        self.device = _aliased(self.host)


def array_at(address: int, rows: int, item: int) -> Any:
    """An arena of ``rows`` lane rows at an aligned address, as a JAX array. Making it touches no memory, of which less may be there:
    what is not there must not be read."""
    dtype = ARENA_DTYPES[item]
    shape = ((rows + SLACK_ROWS) * LANES,)
    return _aliased(Region(address, shape[0] * dtype.itemsize, None).view(0, shape, dtype))


def _aliased(memory: np.ndarray) -> Any:
    import jax

    with jax.enable_x64(True):
        found = jax.dlpack.from_dlpack(memory)
    if found.unsafe_buffer_pointer() != memory.__array_interface__["data"][0]:
        raise AssertionError("JAX copied an input arena instead of reading it in place")
    return found


class OutputSet:
    """The output arenas of one launch; ``lease`` hands out views."""

    def __init__(self, arenas: dict[Place, Any]) -> None:
        self.arenas = arenas
        self.nbytes: int = sum(arena.nbytes for arena in arenas.values())
        self._memory: dict[Place, tuple[int, np.ndarray]] = {}

    def memory(self, key: Place) -> np.ndarray:
        """The bytes of an arena, to look at until the next launch. Which they are is remembered as long as it stays where it is."""
        arena = self.arenas[key]
        address = arena.unsafe_buffer_pointer()
        known = self._memory.get(key)
        if known is None or known[0] != address:
            known = self._memory[key] = (address, np.asarray(Region(address, arena.nbytes, None)))
        return known[1]


class Lease:
    """Keeps memory away from its pool while results that view it are alive."""

    def __init__(self, held: Any, give_back: Callable[[Any], None]) -> None:
        self.held, self.give_back = held, give_back

    def __del__(self) -> None:
        self.give_back(self.held)


class Pool:
    """Free output sets. ``make`` allocates a new one."""

    def __init__(self, make: Callable[[], OutputSet], keep: int = 4) -> None:
        self.make, self.keep = make, keep
        self.free: list[OutputSet] = []
        self.lent = 0  # sets that results much smaller than they are keep away
        self.lock = threading.RLock()  # a collection that runs here may give back others

    def take(self) -> OutputSet:
        """A set that nobody sees."""
        with self.lock:
            if self.free:
                return self.free.pop()
        return self.make()

    def lend(self) -> bool:
        """Whether a result that is small beside its set may keep it: ``LENT`` sets at most are kept so. It comes back by ``take_back``."""
        with self.lock:
            if self.lent >= LENT:
                return False
            self.lent += 1
            return True

    def take_back(self, item: OutputSet) -> None:
        """Returns a set that was lent."""
        with self.lock:
            self.lent -= 1
        self.give(item)

    def give(self, item: OutputSet) -> None:
        """Returns a set; more than ``keep`` free ones are dropped."""
        with self.lock:
            if len(self.free) < self.keep:
                self.free.append(item)


@functools.cache
def importer() -> Callable[..., Any] | None:
    """What ``jax.dlpack.from_dlpack`` calls in the end, a sixteenth of whose time this is (4 us; ``device_put`` takes 76): all that
    stands before it is known here. It takes a DLPack capsule, the device and None. None if this JAX has it no more, or in another form."""
    import jax

    try:
        from jax._src.lib import _jax

        take: Callable[..., Any] = _jax.dlpack_managed_tensor_to_buffer
        probe = take(np.arange(3, dtype=np.float32).__dlpack__(), jax.devices("cpu")[0], None)
        return take if isinstance(probe, jax.Array) and probe.tolist() == [0, 1, 2] else None
    except Exception:  # whatever an internal function may come to raise, there is a public one
        return None


def on_device(numbers: np.ndarray) -> Any:
    """An int64 array that nobody changes any more, on the device: a launch passes it faster than one of the host."""
    import jax

    take, device = importer(), jax.devices("cpu")[0]
    if take is not None:
        return take(numbers.__dlpack__(), device, None)
    with jax.enable_x64(True):
        return jax.device_put(numbers, device)


@functools.cache
def array_type() -> type:
    """The type of JAX's arrays; tracers, which only claim to be some, have others."""
    import jax

    return type(jax.device_put(np.zeros((), np.float32), jax.devices("cpu")[0]))


def device_arena(rows: int, item: int) -> Any:
    """A zeroed XLA buffer for an arena of at least ``rows`` lane rows. Compiles nothing."""
    import jax

    array = np.zeros((rows + SLACK_ROWS) * LANES, ARENA_DTYPES[item])
    with jax.enable_x64(True):
        return jax.device_put(array, jax.devices("cpu")[0], may_alias=False)
