"""The interpreter beside the specialised executor: ``python -m benchmarks.tiers``.

Prints wall and processor time of warm launches of LayerNorm and of a chain of ten elementwise operations at 4M elements on both, how long
the image takes to compile and to load, and how many XLA compiles the first result of a new function needs once the image is cached.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

ROWS, COLUMNS = 2048, 2048
LAUNCHES = 9


def layer_norm(x: Any, g: Any, b: Any) -> Any:
    """LayerNorm over the last axis."""
    import jax

    m = x.mean(-1, keepdims=True)
    return (x - m) * jax.lax.rsqrt(((x - m) ** 2).mean(-1, keepdims=True) + 1e-5) * g + b


def chain(x: Any, y: Any) -> Any:
    """Ten elementwise operations."""
    import jax.numpy as jnp

    z = x * y + x
    z = jnp.maximum(z, 0.1) - y
    z = jnp.abs(z * z) + x
    return jnp.sqrt(z) * y - x


def measure(run: Callable[[], Any]) -> tuple[float, float]:
    """Medians of the wall and the processor milliseconds of a launch."""
    wall, cpu = [], []
    for k in range(LAUNCHES + 2):
        start, begun = time.perf_counter(), time.process_time()
        run()
        if k >= 2:
            wall.append(1e3 * (time.perf_counter() - start))
            cpu.append(1e3 * (time.process_time() - begun))
    return statistics.median(wall), statistics.median(cpu)


def launches() -> None:
    """Prints the table of times."""
    import jax
    import numpy as np

    import dvm

    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((ROWS, COLUMNS)).astype(np.float32) for _ in range(2))
    row = rng.standard_normal(COLUMNS).astype(np.float32)
    cases: dict[str, tuple[Callable[..., Any], Any, Any]] = {
        "LayerNorm": (
            layer_norm,
            (dvm.spec(f"n, {COLUMNS}"), dvm.spec(f"{COLUMNS}"), dvm.spec(f"{COLUMNS}")),
            (x, row, row),
        ),
        "ten-op chain": (chain, (dvm.spec("n, d"), dvm.spec("n, d")), (x, y)),
    }
    for name, (fn, specs, arrays) in cases.items():
        times = {}
        for tier in ("specialised", "interpreter"):
            program = dvm.compile(fn, *specs, tier=tier)

            def run(program: dvm.CompiledProgram = program, arrays: Any = arrays) -> Any:
                return jax.block_until_ready(program(*arrays))

            times[tier] = measure(run)
        print(f"{name}, {ROWS * COLUMNS:,} elements, ms of wall and processor time:")
        for tier, (wall, cpu) in times.items():
            print(f"  {tier:<12} {wall:8.1f} {cpu:8.1f}")
        wall, cpu = (a / b for a, b in zip(times["interpreter"], times["specialised"], strict=True))
        print(f"  {'ratio':<12} {wall:8.1f} {cpu:8.1f}")


def image() -> None:
    """Prints what making or loading the image and then the first result of a new function take."""
    import numpy as np

    import dvm
    from vm import interpreter_image

    dvm.stats()
    start, begun = time.perf_counter(), time.process_time()
    interpreter_image.compiled(interpreter_image.FIRST_CLASS, interpreter_image.SMALLEST_CLASS)
    compiled = dvm.stats().xla_compiles
    print(
        f"image: {time.perf_counter() - start:.2f} s, {time.process_time() - begun:.2f} s of processor; XLA compiles: {compiled}"
    )
    program = dvm.compile(layer_norm, dvm.spec("n, d"), dvm.spec("d"), dvm.spec("d"), tier="interpreter")
    row = np.ones(33, np.float32)
    start = time.perf_counter()
    np.asarray(program(np.ones((7, 33), np.float32), row, row))
    print(
        f"first result of a new function: {1e3 * (time.perf_counter() - start):.0f} ms; XLA compiles: {dvm.stats().xla_compiles - compiled}"
    )


def main() -> None:
    """Times the image in processes of their own with a fresh cache, then the launches."""
    if sys.argv[1:] == ["image"]:
        image()
        return
    with tempfile.TemporaryDirectory() as folder:
        for what in ("nothing cached", "image cached"):
            print(f"{what}:")
            subprocess.run(
                [sys.executable, "-m", "benchmarks.tiers", "image"],
                check=True,
                env={**os.environ, "DVM_CACHE_DIR": folder},
            )
    launches()


if __name__ == "__main__":
    main()
