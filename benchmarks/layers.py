"""Compile time over the number of layers: a stack of equal decoder blocks (Qwen2.5-0.5B, scaled down), b and s symbolic.

    python -m benchmarks.layers 1 8 32 80

CPU seconds of this process, without XLA: tracing by JAX and conversion, graph passes, fusion and code generation. Equal blocks share their
templates, so that the file and what XLA has to compile do not grow with depth.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

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


def main() -> None:
    """Prints the table."""
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
