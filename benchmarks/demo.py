"""The main job: one decoder block, compiled once, launched at many shapes in random order, next to ``jax.jit``.

    python -m benchmarks.demo                    # a table on a terminal, plain text in a pipe
    python -m benchmarks.demo --json             # the same numbers for a program
    python -m benchmarks.demo --config path/to/config.json --shapes 1x7,4x100

Times are wall time in ms, arrays in to arrays out. Both sides get the same ``jax.Array``s, weights are arguments, and warm times are
medians of alternating rounds. DVM's disk cache of executables is off, so that its compile is as cold as ``jax.jit``'s. Exits with 1
if a result is wrong or anything was compiled during the launches.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import dvm
from dvm import models

# Batch and sequence: 1, primes, and sizes below, at and above powers of two.
SHAPES = [
    (1, 1),
    (3, 1),
    (1, 7),
    (2, 16),
    (1, 33),
    (4, 31),
    (2, 63),
    (1, 127),
    (1, 128),
    (3, 65),
    (1, 257),
    (2, 200),
    (4, 128),
    (1, 512),
]
MAX_BATCH, MAX_SEQUENCE = 4, 512
TOLERANCE = 2e-5  # max|a - b| / max|b|, float32, whole block


@dataclass(frozen=True)
class Row:
    """One shape. Times in ms; ``error`` is max|a - b| / max|b| against ``jax.jit``."""

    batch: int
    sequence: int
    bind: float
    launch: float
    warm: float
    jit_compile: float
    jit_run: float
    jit_warm: float
    error: float
    xla_compiles: int
    jit_bytes: int


@dataclass(frozen=True)
class Totals:
    """Sums over the shapes (ms, bytes) and what was counted while the program ran."""

    first_calls: float
    warm: float
    jit_first_calls: float
    jit_warm: float
    compile: float
    overhead_median: float
    largest_error: float
    graph_compiles: int
    xla_compiles: int
    host_ops: int
    program_bytes: dict[str, int]
    jit_bytes: int

    @property
    def good(self) -> bool:
        """What the demo promises."""
        return (self.graph_compiles, self.xla_compiles) == (1, 0) and self.largest_error <= TOLERANCE


class Timer:
    """``with Timer() as t``: ``t.ms`` is how long the body took."""

    def __enter__(self) -> Timer:
        self._start = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.ms = (time.perf_counter() - self._start) * 1e3


class Demo:
    """The block of one configuration, compiled by DVM, and ``jax.jit`` to compare it with."""

    def __init__(self, config: models.Config, seed: int, rounds: int, batch: int, sequence: int) -> None:
        self.config = models.as_decoder(config)
        self.rounds = rounds
        self.rng = np.random.default_rng(seed)
        self.fn = models.prefill_block(config)
        self.params = jax.block_until_ready(models.init_params(config, seed))
        self.before = dvm.stats()
        spec = dvm.spec(
            f"b, s, {self.config.hidden_size}", jnp.float32, b=dvm.Dim("b", max=batch), s=dvm.Dim("s", max=sequence)
        )
        with Timer() as timer:
            self.program = dvm.compile(self.fn, self.params, spec)
            self.program.wait()
        self.compile_ms = timer.ms

    def measure(self, batch: int, sequence: int) -> Row:
        """Binds and launches at a shape, compiles and runs ``jax.jit`` for it, then alternates warm runs of both."""
        x = jax.device_put(self.rng.standard_normal((batch, sequence, self.config.hidden_size), np.float32))
        xla = dvm.stats().xla_compiles
        with Timer() as bind:
            self.program.bind(b=batch, s=sequence)
        with Timer() as launch:
            got = jax.block_until_ready(self.program(self.params, x))
        xla = dvm.stats().xla_compiles - xla

        with Timer() as jit_compile:
            compiled = jax.jit(self.fn).lower(self.params, x).compile()
        with Timer() as jit_run:
            want = jax.block_until_ready(compiled(self.params, x))
        error = relative_error(np.asarray(got), np.asarray(want))
        del got, want  # results are views of device memory that the next launch wants back

        warm: list[float] = []
        jit_warm: list[float] = []
        for _ in range(self.rounds):
            count = dvm.stats().xla_compiles
            for fn, times in ((self.program, warm), (compiled, jit_warm)):
                times.append(run(fn, self.params, x))
            xla += dvm.stats().xla_compiles - count
        return Row(
            batch=batch,
            sequence=sequence,
            bind=bind.ms,
            launch=launch.ms,
            warm=statistics.median(warm),
            jit_compile=jit_compile.ms,
            jit_run=jit_run.ms,
            jit_warm=statistics.median(jit_warm),
            error=error,
            xla_compiles=xla,
            jit_bytes=executable_bytes(compiled),
        )

    def totals(self, rows: list[Row]) -> Totals:
        """Sums over the measured shapes."""
        used = dvm.stats() - self.before
        return Totals(
            first_calls=sum(r.bind + r.launch for r in rows),
            warm=sum(r.warm for r in rows),
            jit_first_calls=sum(r.jit_compile + r.jit_run for r in rows),
            jit_warm=sum(r.jit_warm for r in rows),
            compile=self.compile_ms,
            overhead_median=statistics.median(r.bind + r.launch - r.warm for r in rows),
            largest_error=max(r.error for r in rows),
            graph_compiles=used.compiles,
            xla_compiles=sum(r.xla_compiles for r in rows),
            host_ops=used.host_ops,
            program_bytes=program_bytes(self.program),
            jit_bytes=sum(r.jit_bytes for r in rows),
        )


def run(fn: Callable[..., Any], *args: Any) -> float:
    """Milliseconds of one call; the result is dropped afterwards."""
    with Timer() as timer:
        result = jax.block_until_ready(fn(*args))
    del result
    return timer.ms


def relative_error(got: np.ndarray, want: np.ndarray) -> float:
    """max|got - want| / max|want|; infinite for another shape or a NaN."""
    if got.shape != want.shape or not np.isfinite(got).all():
        return float("inf")
    return float(np.abs(got - want).max() / np.abs(want).max())


def program_bytes(program: dvm.CompiledProgram) -> dict[str, int]:
    """Size of the saved program, stripped: code (words), constants, and the rest (patches, integer code, buffers, tables)."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "block.dvm"
        program.save(path, strip=True)
        total = path.stat().st_size
    code = sum(t.words.nbytes for t in program.program.templates)
    constants = sum(c.nbytes for c in program.program.constants)
    return {"code": code, "constants": constants, "patches": total - code - constants, "total": total}


def executable_bytes(compiled: jax.stages.Compiled) -> int:
    """Size of XLA's serialised executable, which holds its machine code and buffer tables; JAX's own size counter says 0 on the CPU."""
    executable = compiled.runtime_executable()
    return len(executable.serialize()) if executable is not None else 0


# Output --------------------------------------------------------------------------------------------------------------

HEADINGS = ["shape", "bind", "launch", "warm", "jit compile", "jit run", "jit warm", "error"]


def cells(r: Row) -> list[str]:
    """A row as text, in the order of ``HEADINGS``."""
    times = (r.bind, r.launch, r.warm, r.jit_compile, r.jit_run, r.jit_warm)
    return [f"{r.batch}x{r.sequence}", *(f"{t:.2f}" for t in times), f"{r.error:.1e}"]


def summary(t: Totals, shapes: int) -> list[str]:
    """The lines under the table."""
    size = t.program_bytes
    return [
        f"DVM      one compile {t.compile:,.0f} ms, first calls at {shapes} shapes {t.first_calls:,.0f} ms, warm {t.warm:,.0f} ms",
        f"jax.jit  first calls {t.jit_first_calls:,.0f} ms, warm {t.jit_warm:,.0f} ms (DVM's warm time is {t.warm / t.jit_warm:.2f} of it)",
        f"a shape never seen before costs {t.overhead_median:.2f} ms more than a warm one (median); largest error {t.largest_error:.1e}",
        f"graph compiles {t.graph_compiles}, XLA compiles during the launches {t.xla_compiles}, host ops {t.host_ops}",
        f"program {size['total']:,} bytes (code {size['code']:,}, patches and tables {size['patches']:,}, constants {size['constants']:,}),"
        f" jax.jit's {shapes} executables {t.jit_bytes:,} bytes",
    ]


def show(title: str, rows: Iterator[Row], count: int) -> list[Row]:
    """Prints the rows: a table after a progress bar on a terminal, lines as they come in a pipe."""
    console = Console()
    print(title)
    if not console.is_terminal:
        widths = [max(9, len(h)) for h in HEADINGS]
        print("  ".join(h.rjust(w) for h, w in zip(HEADINGS, widths, strict=True)))
        done = []
        for row in rows:
            print("  ".join(c.rjust(w) for c, w in zip(cells(row), widths, strict=True)), flush=True)
            done.append(row)
        return done
    with Progress(console=console, transient=True) as progress:
        done = list(progress.track(rows, total=count, description="shapes"))
    table = Table(*HEADINGS)
    for column in table.columns:
        column.justify = "right"
    for row in done:
        table.add_row(*cells(row))
    console.print(table)
    return done


def parse_shapes(_: click.Context, __: click.Parameter, text: str | None) -> list[tuple[int, int]]:
    """``1x7,4x100`` as pairs of batch and sequence."""
    if text is None:
        return list(SHAPES)
    try:
        pairs = [tuple(int(n) for n in item.split("x")) for item in text.split(",")]
        return [(b, s) for b, s in pairs]
    except ValueError:
        raise click.BadParameter(f"expected BATCHxSEQUENCE,..., got {text!r}") from None


@click.command(help=__doc__.split("\n")[0])
@click.option(
    "--config", default="qwen2.5-0.5b", show_default=True, help="A model configuration: a name or a config.json."
)
@click.option("--shapes", callback=parse_shapes, help="Shapes as BATCHxSEQUENCE,...; 14 of them by default.")
@click.option("--rounds", default=5, show_default=True, help="Warm runs of each side at each shape.")
@click.option("--seed", default=0, show_default=True, help="Of the order, the weights and the inputs.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(config: str, shapes: list[tuple[int, int]], rounds: int, seed: int, as_json: bool) -> None:
    """Runs the demo; see the module's docstring."""
    os.environ.setdefault("DVM_CACHE_DIR", "")
    shapes = list(shapes)
    random.Random(seed).shuffle(shapes)
    batch = max(MAX_BATCH, *(b for b, _ in shapes))
    sequence = max(MAX_SEQUENCE, *(s for _, s in shapes))
    demo = Demo(models.load_config(config), seed, rounds, batch, sequence)
    measured = (demo.measure(*shape) for shape in shapes)
    if as_json:
        rows = list(measured)
        totals = demo.totals(rows)
        print(
            json.dumps(
                {"config": demo.config.name, "rows": [asdict(r) for r in rows], "totals": asdict(totals)}, indent=1
            )
        )
    else:
        title = f"{demo.config.name} decoder block, float32, b <= {batch}, s <= {sequence}; times in ms, shapes in random order"
        rows = show(title, measured, len(shapes))
        totals = demo.totals(rows)
        print("\n" + "\n".join(summary(totals, len(rows))))
    if not totals.good:
        print(
            "the demo did not keep its promise: one graph compile, no XLA compile, results as jax.jit's",
            file=sys.stderr,
        )
        sys.exit(1)


if __name__ == "__main__":
    main()
