"""``dvm report``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dvm.cli.common import call_options, compile_options, emit, json_option, open_program, sizes_and_ranges

if TYPE_CHECKING:
    from dvm.options import Options


@click.command("report", epilog="Example: dvm report examples/softmax.onnx --at batch=2,seq=128")
@call_options
@compile_options
@json_option
def command(path: Path, dim_texts: tuple[str, ...], options: Options | None, as_json: bool) -> None:
    """Shows what compiling did: passes, kernels, launches, what fusion gains in emulated time, bytes moved, memory, crossings.

    Sizes that are not given are typical ones. Nothing is run. A program file knows nothing of what it was compiled from, so that the
    comparison with everything unfused is for models only.
    """
    sizes, ranges = sizes_and_ranges(dim_texts)
    report = open_program(path, ranges, options=options).report(sizes)
    emit(report.to_dict(), str(report), as_json)
