"""Compile time over the number of layers: a stack of equal decoder blocks (Qwen2.5-0.5B, scaled down), b and s symbolic.

    python -m benchmarks.layers 1 8 32 80
    python -m benchmarks.layers first 32

The table has CPU seconds of this process, without XLA: tracing by JAX and conversion, graph passes, fusion and code generation. Equal
blocks share their templates, so that the file and what XLA has to compile do not grow with depth.

``first`` times a decoder with so many layers, embedding to LM head, at b = 2 and s = 16: from ``dvm.compile`` (b and s symbolic, tier
auto, only the interpreter's image in the cache) to the first result, and from ``jax.jit`` to its first result, in fresh processes that
take turns.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import dvm
from dvm import models, pipeline
from vm.program import Program

COLUMNS = ("layers", "trace", "passes", "code", "ms a layer", "kernels", "templates", "integer operations")


def stack(n: int) -> pipeline.Traced:
    """``n`` equal blocks one after the other, each with parameters of its own."""
    config = models.as_decoder(models.scaled(models.load_config("qwen2.5-0.5b")))
    block = models.prefill_block(config)

    def blocks(params: list[Any], x: Any) -> Any:
        for one in params:
            x = block(one, x)
        return x

    x = dvm.spec(f"b, s, {config.hidden_size}", jnp.float32, b=dvm.Dim(max=4), s=dvm.Dim(max=128))
    return pipeline.from_function(blocks, ([models.param_specs(config)] * n, x), {})


def measure(n: int) -> tuple[list[float], Program]:
    """CPU seconds of the three parts, and the program."""
    from codegen import compile_graph
    from graph_kernel import passes

    seconds: list[float] = []

    def timed(call: Callable[[], Any]) -> Any:
        start = time.process_time()
        result = call()
        seconds.append(time.process_time() - start)
        return result

    traced = timed(lambda: stack(n))
    timed(lambda: passes.optimise(traced.graph))
    return seconds, timed(lambda: compile_graph(traced.graph, {}))


def language_model(n: int) -> tuple[Any, Any, Any]:
    """A function of parameters and token ids, the parameters on the device, and ids[2, 16]."""
    config = models.as_decoder(models.scaled(models.load_config("qwen2.5-0.5b")))
    run = models.causal_lm(config, n)

    def lm(params: Any, ids: Any) -> Any:
        empty = jnp.zeros((ids.shape[0], config.num_key_value_heads, 0, config.head_dim), jnp.float32)
        return run(params, ids, [(empty, empty)] * n)[0]

    params = jax.tree.map(jax.device_put, models.init_params(config, n_layers=n))
    ids = jax.device_put(np.arange(32, dtype=np.int32).reshape(2, 16))
    return lm, *jax.block_until_ready((params, ids))


def one_first(who: str, n: int, folder: str) -> None:
    """Prints wall and CPU seconds to the first result, as a process of its own does; keeps the result in ``folder``."""
    fn, params, ids = language_model(n)
    start, begun = time.perf_counter(), time.process_time()
    if who == "jit":
        result = jax.block_until_ready(jax.jit(fn)(params, ids))
    else:
        tier = "interpreter" if who == "image" else "auto"
        spec = dvm.spec("b, s", jnp.int32, b=dvm.Dim(max=4), s=dvm.Dim(max=64))
        result = jax.block_until_ready(dvm.compile(fn, params, spec, tier=tier)(params, ids))
    wall, cpu = time.perf_counter() - start, time.process_time() - begun
    np.save(pathlib.Path(folder) / f"{who}.npy", np.asarray(result))
    print(f"{wall} {cpu} {dvm.stats().xla_compiles}", flush=True)
    os._exit(0)  # not before what is built in the background is done


def first(n: int, rounds: int = 5) -> None:
    """Prints how long both take to a first result."""
    with tempfile.TemporaryDirectory() as folder:
        env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        env["PYTHONPYCACHEPREFIX"] = f"{folder}/bytecode"  # as of an installed package

        def child(who: str, cache: str) -> list[float]:
            command = [sys.executable, "-m", "benchmarks.layers", "one-first", who, str(n), folder]
            run = subprocess.run(
                command, env={**env, "DVM_CACHE_DIR": cache}, check=True, capture_output=True, text=True
            )
            return [float(word) for word in run.stdout.split()]

        child("image", f"{folder}/image")
        times: dict[str, list[list[float]]] = {"dvm": [], "jit": []}
        for turn in range(rounds):
            for who in ("dvm", "jit"):
                shutil.copytree(f"{folder}/image", f"{folder}/{turn}{who}")
                times[who].append(child(who, f"{folder}/{turn}{who}"))
        got, want = (np.load(f"{folder}/{who}.npy") for who in ("dvm", "jit"))
    print(
        f"{n} layers, seconds to the first result, medians of {rounds} turns; error {np.abs(got - want).max() / np.abs(want).max():.0e}"
    )
    for who, rows in times.items():
        wall, cpu, compiles = (statistics.median(column) for column in zip(*rows, strict=True))
        print(f"  {who}: wall {wall:.2f}, CPU {cpu:.2f}" + (f", XLA compiles {compiles:.0f}" if who == "dvm" else ""))


def main() -> None:
    """Prints the table, or the times to the first result."""
    if sys.argv[1:2] == ["one-first"]:
        one_first(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    if sys.argv[1:2] == ["first"]:
        for text in sys.argv[2:] or ["32"]:
            first(int(text))
        return
    counts = [int(text) for text in sys.argv[1:]] or [1, 8, 32, 80]
    measure(1)  # imports and caches
    print("".join(column.rjust(len(column) + 3) for column in COLUMNS))
    for n in counts:
        seconds, program = measure(n)
        cells = [str(n), *(f"{s:.2f}" for s in seconds), f"{1e3 * sum(seconds) / n:.0f}"]
        cells += [str(len(program.debug["kernels"])), str(len(program.templates)), str(len(program.code.code))]
        print("".join(cell.rjust(len(column) + 3) for cell, column in zip(cells, COLUMNS, strict=True)), flush=True)


if __name__ == "__main__":
    main()
