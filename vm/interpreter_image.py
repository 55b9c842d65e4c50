"""The interpreter's image: one JAX function in which a program is data.

``image`` walks a table of rows (``vm.interpreter_ops`` has its fields). A row runs one operation over its chunks of lanes and then moves
the program counter; loops are rows that jump back. Big memories are only ever carried by loops, never by a conditional, which would copy
them: a kind of row that is not wanted is a loop of no trips, and ``switch`` returns one chunk.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from vm import cache, counters
from vm.interpreter_ops import (
    ADD,
    AFTER,
    AX,
    AXES,
    CHUNK,
    COEF,
    D0,
    DST,
    END,
    FIELDS,
    HALT,
    INTO32,
    INTO64,
    KIND,
    LEN,
    MMAD_F,
    MMAD_I,
    MMAD_L,
    N0,
    N1,
    OP,
    P0,
    P1,
    P2,
    P3,
    SCATTER32,
    SCATTER64,
    STORE32,
    STORE64,
    TARGET,
    A,
    Operations,
    View,
    X,
    Y,
    build,
    from_words,
    to_words,
)  # fmt: skip

Array = Any

CODE_ROWS = 1 << 12
TABLE_WORDS = 1 << 21
LOCAL_WORDS = 1 << 22
LOCAL_WIDE_WORDS = 1 << 20
CUBE_M, CUBE_N, CUBE_K = 32, 128, 128

SMALLEST_CLASS = 1 << 18  # words of a device memory that is hardly used
FIRST_CLASS = 1 << 21
CLASS_FACTOR = 4

# A chunk is too little work for two threads: handing it over took more processor time than the work itself.
OPTIONS: dict[str, Any] = {
    "xla_cpu_multi_thread_eigen": False,
    "xla_cpu_enable_concurrency_optimized_scheduler": False,
}

_one_at_a_time = threading.Lock()  # who comes second waits for the first one's image instead of making another
SOURCES = ("interpreter_image.py", "interpreter_ops.py", "isa.py", "semantics.py")


def capacity(words: int) -> int:
    """The class of device memory that holds ``words`` words beside the slack that an operation may read past them."""
    need, size = words + CHUNK, SMALLEST_CLASS
    if need > size:
        size = FIRST_CLASS
        while size < need:
            size *= CLASS_FACTOR
    return size


@functools.cache
def operations() -> Operations:
    """The image's operations."""
    return build()


def image(code: Array, tm: Array, gm: Array, gm64: Array, lm: Array, lm64: Array) -> tuple[Array, ...]:
    """Runs the table ``code`` (int64[CODE_ROWS, FIELDS]) with table memory ``tm`` (int64) on device memories ``gm`` (int32), ``gm64``
    (int64) and local memories ``lm`` (int32), ``lm64`` (int64); returns the four memories."""
    ops = operations()
    into32, into64 = list(ops.into32.values()), list(ops.into64.values())

    def step(state: tuple[Array, ...]) -> tuple[Array, ...]:
        pc, axes, gm, gm64, lm, lm64 = state
        row = lax.dynamic_index_in_dim(code, pc, keepdims=False)
        scalar = row[A] + jnp.sum(row[COEF : COEF + AXES] * axes)
        memory = {"tm": tm, "gm": gm, "gm64": gm64, "lm": lm, "lm64": lm64}

        def kind(which: int, name: str, trips: Array, body: Callable[[Array, dict[str, Array]], Array]) -> None:
            def run(t: Array, value: Array) -> Array:
                return body(t, {**memory, name: value})

            n = jnp.where(row[KIND] == which, trips, 0)
            memory[name] = lax.fori_loop(jnp.int64(0), n, run, memory[name])

        chunks = row[N0] * row[N1]

        def compute(fns: list[Callable[[View], Array]], name: str) -> Callable[[Array, dict[str, Array]], Array]:
            def branch(fn: Callable[[View], Array]) -> Callable[..., Array]:
                return lambda memory, row, scalar, i, j: fn(View(memory, row, scalar, i, j))

            branches = [branch(fn) for fn in fns]

            def body(t: Array, memory: dict[str, Array]) -> Array:
                i, j = t // row[N0], t % row[N0]
                value = lax.switch(row[OP].astype(jnp.int32), branches, memory, row, scalar, i, j)
                return lax.dynamic_update_slice(memory[name], value, (row[DST] + i * row[DST + 2] + j * row[D0],))

            return body

        # In this order every memory is read before it is written only where the writer needs what the reader made: otherwise XLA, which
        # knows no order but that of the data, keeps a copy of the memory for the reader.
        kind(INTO32, "lm", chunks, compute(into32, "lm"))
        for which, cls in ((MMAD_F, "f"), (MMAD_I, "i")):
            kind(which, "lm", _cube_trips(row), functools.partial(_mmad, row, "lm", cls))
        kind(INTO64, "lm64", chunks, compute(into64, "lm64"))
        kind(MMAD_L, "lm64", _cube_trips(row), functools.partial(_mmad, row, "lm64", "I"))
        for which, device, local in ((STORE32, "gm", "lm"), (STORE64, "gm64", "lm64")):
            kind(which, device, chunks, functools.partial(_store, row, scalar, device, local))
        for which, device, local in ((SCATTER32, "gm", "lm"), (SCATTER64, "gm64", "lm64")):
            kind(which, device, chunks, functools.partial(_scatter, row, device, local))
        at = axes[row[AX]] + row[ADD]
        again = at < row[END]
        axes = axes.at[row[AX]].set(jnp.where(again, at, row[AFTER]))
        pc = jnp.where(again, row[TARGET], pc + 1)
        return pc, axes, memory["gm"], memory["gm64"], memory["lm"], memory["lm64"]

    state = (jnp.int64(0), jnp.zeros(AXES, jnp.int64), gm, gm64, lm, lm64)
    state = lax.while_loop(lambda s: code[s[0], KIND] != HALT, step, state)
    return state[2:]


def _store(row: Array, scalar: Array, device: str, local: str, t: Array, memory: dict[str, Array]) -> Array:
    """One chunk of one row into device memory; lanes past the row's end keep what is there."""
    v = View(memory, row, scalar, t // row[N0], t % row[N0])
    at = scalar + v.row_offset() + v.j * CHUNK
    new = lax.dynamic_slice(memory[local], (v.at(X),), (CHUNK,))
    old = lax.dynamic_slice(memory[device], (at,), (CHUNK,))
    return lax.dynamic_update_slice(memory[device], jnp.where(v.inside(), new, old), (at,))


def _scatter(row: Array, device: str, local: str, t: Array, memory: dict[str, Array]) -> Array:
    """One chunk to the positions y, an element at a time: for stores that have no rows."""
    v = View(memory, row, row[A], t // row[N0], t % row[N0])
    at = v.words(Y, True)
    n = jnp.clip(row[LEN] - v.j * CHUNK, 0, CHUNK)
    new = lax.dynamic_slice(memory[local], (v.at(X),), (CHUNK,))

    def one(k: Array, out: Array) -> Array:
        return lax.dynamic_update_slice(out, lax.dynamic_slice(new, (k,), (1,)), (at[k],))

    return lax.fori_loop(jnp.int64(0), n, one, memory[device])


def _cube_trips(row: Array) -> Array:
    """Blocks of a product of ``[batch, m, k]`` and ``[batch, k, n]``: batch P0, m P1, n P2, k P3."""
    return row[P0] * (-(-row[P1] // CUBE_M)) * (-(-row[P2] // CUBE_N))


def _mmad(row: Array, name: str, cls: str, t: Array, memory: dict[str, Array]) -> Array:
    """One block of the result, over all k; with field A, added to what is there."""
    m, n, k = row[P1], row[P2], row[P3]
    across, down = -(-n // CUBE_N), -(-m // CUBE_M)
    b, m0, n0 = t // (across * down), t // across % down * CUBE_M, t % across * CUBE_N
    flat = memory[name]
    numbers = lax.GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(), start_index_map=(0,))

    def rows(flat: Array, base: Array, count: int, stride: Array, width: int) -> Array:
        at = (base + jnp.arange(count, dtype=jnp.int64) * stride).reshape(-1, 1)
        return from_words(lax.gather(flat, at, numbers, (width,), mode=lax.GatherScatterMode.CLIP), cls)

    def part(s: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        acc, flat = state
        k0 = s * CUBE_K
        ok = jnp.arange(CUBE_K, dtype=jnp.int64) < k - k0
        x = rows(flat, row[X] + (b * m + m0) * k + k0, CUBE_M, k, CUBE_K)
        y = rows(flat, row[Y] + (b * k + k0) * n + n0, CUBE_K, n, CUBE_N)
        x, y = jnp.where(ok[None, :], x, 0), jnp.where(ok[:, None], y, 0)
        acc = acc + lax.dot_general(x, y, (((1,), (0,)), ((), ())), preferred_element_type=acc.dtype)
        return acc, flat

    zero = jnp.zeros((CUBE_M, CUBE_N), {"f": jnp.float32, "i": jnp.int32, "I": jnp.int64}[cls])
    # The memory goes through the loop as state: XLA would copy what two loops read and the second one writes.
    acc, flat = lax.fori_loop(jnp.int64(0), -(-k // CUBE_K), part, (zero, flat))
    inside = jnp.arange(CUBE_N, dtype=jnp.int64) < n - n0

    def put(r: Array, out: Array) -> Array:
        at = row[DST] + (b * m + m0 + r) * n + n0
        old = lax.dynamic_slice(out, (at,), (CUBE_N,))
        value = lax.dynamic_slice(acc, (r, jnp.int64(0)), (1, CUBE_N))[0]
        value = jnp.where(row[A] == 0, value, from_words(old, cls) + value)
        return lax.dynamic_update_slice(out, jnp.where(inside, to_words(value), old), (at,))

    return lax.fori_loop(jnp.int64(0), jnp.minimum(m - m0, CUBE_M), put, flat)


def shapes(words: int, wide_words: int) -> list[tuple[tuple[int, ...], np.dtype]]:
    """Shapes and types of the image's arguments, for device memories of these classes."""
    i4, i8 = np.dtype(np.int32), np.dtype(np.int64)
    return [
        ((CODE_ROWS, FIELDS), i8), ((TABLE_WORDS + CHUNK,), i8), ((words,), i4), ((wide_words,), i8),
        ((LOCAL_WORDS,), i4), ((LOCAL_WIDE_WORDS,), i8),
    ]  # fmt: skip


def classes(words: int, wide_words: int) -> tuple[int, int]:
    """The classes of the device memories that hold so many words."""
    return max(capacity(words), FIRST_CLASS), capacity(wide_words)


def key_of(words: int, wide_words: int) -> str:
    """The image's name in the cache."""
    return cache.key_of(b"interpreter", repr((words, wide_words)).encode(), modules=SOURCES)


def cached(words: int, wide_words: int) -> bool:
    """Whether the image needs no compile."""
    return cache.has(key_of(words, wide_words))


def compiled(words: int, wide_words: int) -> Any:
    """The image for device memories of these classes, from the cache or compiled."""

    def make() -> Any:
        import jax

        with jax.enable_x64(True):
            counters.add("interpreter_compiles")
            arguments = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes(words, wide_words)]
            return jax.jit(image, donate_argnums=(2, 3, 4, 5)).lower(*arguments).compile(OPTIONS)

    with _one_at_a_time:
        return cache.get(key_of(words, wide_words), (0,) * 6, (0,) * 4, make)
