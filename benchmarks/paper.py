"""Tables 4, 5 and 6 of the DVM paper beside ours: what a new shape costs, and what running costs.

    python -m benchmarks.paper                       # all; tens of minutes, most of it torch.compile
    python -m benchmarks.paper bind                  # bind times over the full shape ranges of the paper's Table 2 (needs no arrays)
    python -m benchmarks.paper table4 --peers dvm,jit

CT is compile time: for the product the binding of sizes, for the others what a first call at a new shape takes beyond a warm one. RT is run
time, warm. Wall time in ms on this machine's CPU; the paper's numbers are of its own NPU and chips, so only ratios and orders of magnitude
compare. Table 4's runs use the part of Table 2's ranges that fits this machine, which the title states. Tables 5 and 6 are MMoE, a BERT
layer and whole decoders of 8 layers, embedding to LM head, built from the scaled-down Qwen and Llama configurations. DVM compiles
without background work and with an empty cache; ``--shapes`` takes so many of each stream's shapes.
"""

from __future__ import annotations

import itertools
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import click
import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table

import dvm
from benchmarks.peers.__main__ import TITLES, Figures, measure

WEIGHTS = [
    (4096, 4096),
    (11008, 4096),
    (4096, 11008),
    (5120, 5120),
    (13696, 5120),
    (5120, 13696),
    (8192, 8192),
    (28672, 8192),
    (8192, 28672),
]  # (n, k) of Table 2
PEERS = "dvm,jit,torch_dynamic,torch_static"
# name: (maximal CT, total CT, total RT) in ms, as the paper prints them
TABLE4 = {
    "matmul": {
        "PT-DVM": (0.11, 0.48, 123.26),
        "Inductor-r": (115.88, 4339.33, 125.92),
        "Inductor-d": (200.99, 354.53, 133.79),
    },
    "layernorm": {
        "PT-DVM": (0.10, 1.51, 271.14),
        "Inductor-r": (37802.36, 1517938.56, 282.74),
    },
}
RANGES = {"matmul": "(n, k) = (4096, 4096), m in 1..128", "layernorm": "h 2048, b*s in 1..4096"}
TABLE5 = {
    "mmoe": "PT-DVM CT/RT 7.97e-1 to 8.20e-1, Inductor-r 1.28e4 to 1.70e4",
    "bert": "PT-DVM 1.11e3 to 1.28e3, Inductor-r 3.00e3 to 9.24e3",
}
TABLE6 = {"lm8_qwen": "MS-DVM 2.81e-1 to 4.45e-2", "lm8_llama": "MS-DVM 2.55e-2 to 9.20e-2"}


def programs() -> dict[str, tuple[dvm.CompiledProgram, list[dict[str, int]]]]:
    """The four operators of Table 2, every dim symbolic, and a sample of its shapes."""
    rng = random.Random(0)

    def rows(high: int, count: int) -> list[int]:
        return [1, 2, 3, high, *(rng.randint(1, high) for _ in range(count))]

    f32 = jnp.float32

    def layernorm(x: Any, scale: Any, shift: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * scale + shift

    def if_else_add(x: Any, y: Any) -> Any:
        return jax.lax.cond(x.mean() > 0, lambda: x + y, lambda: x - y)

    products = [{"m": m, "n": n, "k": k} for (n, k), m in itertools.product(WEIGHTS, rows(8192, 6))]
    norms = [{"b": b, "s": 8192, "h": h} for h, b in itertools.product((1024, 2048, 3072, 4096), rows(60, 6))]
    adds = [{"b": b, "s": s, "f": f} for b, s, f in zip(rows(256, 36), rows(512, 36), rows(8192, 36), strict=True)]
    a, b, c = dvm.spec("m, k", f32), dvm.spec("k, n", f32), dvm.spec("m, n", f32)
    x, h = dvm.spec("b, s, h", f32), dvm.spec("h", f32)
    y = dvm.spec("b, s, f", f32)
    return {
        "matmul": (dvm.compile(lambda a, b: a @ b, a, b), products),
        "addmm": (dvm.compile(lambda a, b, c: a @ b + c, a, b, c), products),
        "LayerNorm": (dvm.compile(layernorm, x, h, h), norms),
        "if-else-add": (dvm.compile(if_else_add, y, y), adds),
    }


def bind_times() -> Iterator[tuple[str, int, float, float]]:
    """Operator, number of shapes, and median and largest time in ms to bind a shape for the first time."""
    for name, (program, shapes) in programs().items():
        program.bind(**dict.fromkeys(shapes[0], 5))  # the first bind imports modules
        times = []
        for dims in shapes:
            start = time.perf_counter()
            program.bind(**dims)
            times.append((time.perf_counter() - start) * 1e3)
        yield name, len(shapes), statistics.median(times), max(times)


def show_bind(console: Console) -> None:
    """Prints the bind times."""
    table = Table("", "shapes", "median", "worst", title="code for a new shape (bind), full ranges of Table 2, ms")
    for name, count, median, worst in bind_times():
        table.add_row(name, str(count), f"{median:.3f}", f"{worst:.3f}")
    console.print(table)


def show(console: Console, title: str, rows: list[Figures], paper: dict[str, tuple[float, ...]]) -> None:
    """Prints one workload: largest and total CT, total RT, their ratio."""
    table = Table("", "max CT", "total CT", "total RT", "CT/RT", title=title)
    for r in rows:
        first = r.first_calls - r.warm
        worst, total = (max(r.binds), sum(r.binds)) if r.binds else (r.worst_first, max(first, 0.0))
        table.add_row(TITLES[r.peer], *(f"{v:,.2f}" for v in (worst, total, r.warm)), f"{total / r.warm:.2e}")
        if r.peer == "dvm":
            table.add_row(
                "DVM, with its one compile",
                "",
                f"{total + r.prepare:,.2f}",
                f"{r.warm:,.2f}",
                f"{(total + r.prepare) / r.warm:.2e}",
            )
    for name, (worst, total, run) in paper.items():
        table.add_row(f"paper: {name}", *(f"{v:,.2f}" for v in (worst, total, run)), f"{total / run:.2e}")
    console.print(table)


@click.command(help=__doc__.split("\n")[0])
@click.argument("parts", nargs=-1, type=click.Choice(["bind", "table4", "table5", "table6"]))
@click.option("--peers", default=PEERS, show_default=True)
@click.option("--rounds", default=2, show_default=True)
@click.option("--shapes", type=click.IntRange(2), help="Shapes of each stream, spread evenly. Default: all.")
def main(parts: tuple[str, ...], peers: str, rounds: int, shapes: int | None) -> None:
    """Prints the tables; see the module's docstring."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(DVM_CACHE_DIR=folder, DVM_BACKGROUND="0", TORCHINDUCTOR_CACHE_DIR=folder)
        tables(parts, peers.split(","), rounds, shapes)


def tables(parts: tuple[str, ...], names: list[str], rounds: int, shapes: int | None) -> None:
    """Prints the tables."""
    console = Console(width=110)
    parts = parts or ("bind", "table4", "table5", "table6")
    if "bind" in parts:
        show_bind(console)
    if "table4" in parts:
        for name, paper in TABLE4.items():
            show(
                console,
                f"Table 4, {name}: {RANGES[name]}, ms",
                measure(name, names, rounds, 1, console, shapes),
                dict(paper),
            )
    for part, notes in (("table5", TABLE5), ("table6", TABLE6)):
        if part in parts:
            for name, note in notes.items():
                show(console, f"{part.title()}, {name}, ms", measure(name, names, rounds, 1, console, shapes), {})
                console.print(f"paper (compile over run): {note}\n", highlight=False)


if __name__ == "__main__":
    main()
