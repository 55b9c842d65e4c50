"""``dvm memory``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dvm.cli.common import call_options, compile_options, emit, json_option, open_program, sizes_and_ranges

if TYPE_CHECKING:
    from dvm.options import Options


@click.command("memory", epilog="Example: dvm memory examples/softmax.onnx --at batch=2,seq=128")
@call_options
@compile_options
@json_option
def command(path: Path, dim_texts: tuple[str, ...], options: Options | None, as_json: bool) -> None:
    """Shows the device memory of one call, each buffer with its place and its lifetime, and what sharing saves. Nothing is run."""
    sizes, ranges = sizes_and_ranges(dim_texts)
    memory = open_program(path, ranges, options=options).memory(sizes)
    emit(memory.to_dict(), str(memory), as_json)
