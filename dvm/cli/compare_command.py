"""``dvm compare``."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from dvm.cli.common import compile_options, emit, json_option, open_program, parse_sizes, program_options, table
from dvm.cli.inputs import peer_of, random_feeds
from vm.errors import DvmError

if TYPE_CHECKING:
    from dvm.options import Options


@click.command("compare", epilog="Example: dvm compare examples/softmax.onnx --at batch=2,seq=16")
@program_options
@click.option(
    "--at", "sizes", multiple=True, metavar="SYMBOL=SIZE", help="The sizes, as batch=2,seq=16; may be repeated."
)
@click.option("--seed", default=0, show_default=True, help="Of the random inputs.")
@click.option("--tolerance", default=1e-3, show_default=True, help="The largest max|a-b|/max|b| that is no failure.")
@compile_options
@json_option
def command(
    path: Path,
    dim_texts: tuple[str, ...],
    sizes: tuple[str, ...],
    seed: int,
    tolerance: float,
    options: Options | None,
    as_json: bool,
) -> None:
    """Runs a model beside ONNX Runtime (beside the reference executor where that is not installed, or for a program file) on random
    inputs, once for every --at, and prints the largest error of each output and the times of the second run.
    """
    program = open_program(path, dim_texts, options=options)
    peer_name, peer = peer_of(path, program)
    rows: list[dict[str, Any]] = []
    failed: list[str] = []
    for text in sizes or ("",):
        at = parse_sizes([text], "--at") if text else {}
        feeds = random_feeds(program, at, seed)
        ours, our_seconds = _second(partial(program.run, None, feeds))
        theirs, peer_seconds = _second(partial(peer, feeds))
        for spec, a, b in zip(program.outputs, ours, theirs, strict=True):
            error = relative_error(a, np.asarray(b))
            if not error <= tolerance:
                failed.append(f"{spec.name} at {text or 'fixed sizes'}")
            rows.append(
                {"at": at, "output": spec.name, "error": error, "seconds": our_seconds, "peer_seconds": peer_seconds}
            )
    data: dict[str, Any] = {"peer": peer_name, "rows": rows, "failed": failed}
    lines = [["at", "output", "error", "dvm ms", f"{peer_name} ms"]]
    for row in rows:
        where = ",".join(f"{k}={n}" for k, n in row["at"].items())
        times = [f"{1e3 * row[key]:.3f}" for key in ("seconds", "peer_seconds")]
        lines.append([where or "-", row["output"], f"{row['error']:.2e}", *times])
    emit(data, table(lines, indent=""), as_json)
    if failed:
        raise DvmError(f"results differ by more than {tolerance}: {', '.join(failed)}")


def _second(call: Any) -> tuple[Any, float]:
    """The result and the seconds of a second call: the first one may compile."""
    call()
    start = time.perf_counter()
    return call(), time.perf_counter() - start


def relative_error(a: np.ndarray, b: np.ndarray) -> float:
    """max|a-b|/max|b|, infinite where shapes or dtypes differ, or one has a NaN and the other not."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return float("inf")
    if a.size == 0:
        return 0.0
    kind = np.complex128 if a.dtype.kind == "c" else np.float64
    wide_a, wide_b = a.astype(kind), b.astype(kind)
    if not np.array_equal(np.isfinite(wide_a), np.isfinite(wide_b)):
        return float("inf")
    finite = np.isfinite(wide_b)
    if not np.array_equal(wide_a[~finite], wide_b[~finite], equal_nan=True):
        return float("inf")
    difference = float(np.abs(wide_a[finite] - wide_b[finite]).max(initial=0))
    scale = float(np.abs(wide_b[finite]).max(initial=0))
    return difference / scale if scale else difference
