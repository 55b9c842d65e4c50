"""Why a kernel never stores into an arena that it loads from: the same two kernels over one arena and over two.

    python -m benchmarks.memory_banks

Each kernel loads a block, multiplies it and stores it, in a loop inside one XLA executable whose arenas are donated, as the specialised
executor does. Times are medians of one launch of both kernels.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

BLOCK = 1 << 14  # items of one block
CAPACITY = 1 << 26  # items of an arena: 256 MiB
BLOCKS = 8  # that a kernel really touches


def scaled(source: Any, target: Any, first: int) -> Any:
    """``target`` with scaled blocks of ``source`` written at item ``first``."""

    def body(i: Any, target: Any) -> Any:
        read_from = target if source is None else source
        block = lax.dynamic_slice(read_from, (i * BLOCK,), (BLOCK,))
        return lax.dynamic_update_slice(target, block * 1.5 + jnp.sin(block), (first + i * BLOCK,))

    return lax.fori_loop(0, BLOCKS, body, target)


def measure(run: Callable[..., Sequence[Any]], arenas: list[Any], rounds: int = 15) -> float:
    """Milliseconds of one launch, median."""
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        arenas = list(jax.block_until_ready(run(*arenas)))
        times.append((time.perf_counter() - begun) * 1e3)
    return statistics.median(times[1:])


def arena() -> Any:
    """A fresh arena."""
    return jax.device_put(np.zeros(CAPACITY, np.float32), may_alias=False)


def main() -> None:
    """Prints the three ways."""
    half = CAPACITY // 2
    in_loop = jax.jit(lambda a: [scaled(None, a, half)], donate_argnums=0)
    through = jax.jit(lambda a: [scaled(a, a, half)], donate_argnums=0)
    first = jax.jit(lambda a, b: scaled(a, b, 0), donate_argnums=1)
    second = jax.jit(lambda b, a: scaled(b, a, half), donate_argnums=1)

    def banks(a: Any, b: Any) -> list[Any]:
        b = first(a, b)
        return [second(b, a), b]

    print(f"{BLOCKS} blocks of {BLOCK:,} items, arenas of {CAPACITY * 4 >> 20} MiB; ms a launch")
    print(f"one arena, loaded from inside the loop that stores     {measure(in_loop, [arena()]):8.2f}")
    print(f"one arena, loaded from as it was before the loop       {measure(through, [arena()]):8.2f}")
    print(f"two banks, two kernels, each stores where it reads not {measure(banks, [arena(), arena()]):8.2f}")


if __name__ == "__main__":
    main()
