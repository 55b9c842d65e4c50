"""``dvm bench``."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dvm.cli.common import compile_options, emit, json_option, open_program, parse_sizes, program_options, table
from dvm.cli.inputs import peer_of, random_feeds

if TYPE_CHECKING:
    from dvm.options import Options


@click.command("bench", epilog="Example: dvm bench examples/softmax.onnx --at batch=2,seq=16 --at batch=1,seq=100")
@program_options
@click.option(
    "--at",
    "--shapes",
    "shapes",
    multiple=True,
    metavar="SYMBOL=SIZE,...",
    help="One set of sizes, as batch=2,seq=16; repeat it.",
)
@click.option("--repeat", type=click.IntRange(1), default=11, show_default=True, help="Warm calls a shape.")
@click.option("--seed", default=0, show_default=True, help="Of the random inputs.")
@compile_options
@json_option
def command(
    path: Path,
    dim_texts: tuple[str, ...],
    shapes: tuple[str, ...],
    repeat: int,
    seed: int,
    options: Options | None,
    as_json: bool,
) -> None:
    """Times a model: compiling once, then for every --at the first call and the median of warm calls, in wall-clock milliseconds.

    Beside it ONNX Runtime, if it is installed and the model is an ONNX file; "ratio" is our warm time over its.
    """
    start = time.perf_counter()
    program = open_program(path, dim_texts, options=options, start=True)
    compile_seconds = time.perf_counter() - start
    name, peer = peer_of(path, program)
    rows: list[dict[str, Any]] = []
    for text in shapes or ("",):
        feeds = random_feeds(program, parse_sizes([text], "--at") if text else {}, seed)
        row: dict[str, Any] = {"shapes": text}
        row["first"], row["warm"] = _times(partial(program.run, None, feeds), repeat)
        if name == "onnxruntime":
            row["peer_first"], row["peer_warm"] = _times(partial(peer, feeds), repeat)
            row["ratio"] = row["warm"] / row["peer_warm"]
        rows.append(row)
    data = {"compile_seconds": compile_seconds, "peer": name if name == "onnxruntime" else None, "rows": rows}
    columns = [c for c in ("first", "warm", "peer_first", "peer_warm") if c in rows[0]]
    titles = {"peer_first": "onnxruntime first", "peer_warm": "onnxruntime warm"}
    lines = [["shapes", *(titles.get(c, c) for c in columns), *["ratio"] * ("ratio" in rows[0])]]
    for row in rows:
        ratio = [f"{row['ratio']:.2f}"] if "ratio" in row else []
        lines.append([row["shapes"] or "-", *(f"{1e3 * row[c]:.3f}" for c in columns), *ratio])
    emit(data, f"compile {1e3 * compile_seconds:.0f} ms\n" + table(lines, indent=""), as_json)


def _times(call: Callable[[], Any], repeat: int) -> tuple[float, float]:
    """Seconds of the first call and the median of ``repeat`` more."""
    times = []
    for _ in range(repeat + 1):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times[0], statistics.median(times[1:])
