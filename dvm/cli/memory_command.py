"""``dvm memory``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from dvm.cli.common import emit, json_option, open_program, parse_sizes, program_options


@click.command("memory", epilog="Example: dvm memory examples/softmax.onnx --at batch=2,seq=128")
@program_options
@click.option("--at", "sizes", multiple=True, metavar="SYMBOL=SIZE", help="The sizes, as seq=128 or batch=2,seq=128.")
@json_option
def command(path: Path, dim_texts: tuple[str, ...], sizes: tuple[str, ...], as_json: bool) -> None:
    """Shows the device memory that a program needs at given sizes, each buffer with its lifetime, and what sharing saves.

    A --dim that is one size, as seq=128, is a size too: the model is compiled for it alone.
    """
    program = open_program(path, dim_texts)
    memory = program.memory(_fixed(program.symbols) | parse_sizes(sizes, "--at"))
    emit(memory.to_dict(), str(memory), as_json)


def _fixed(symbols: Mapping[str, Any]) -> dict[str, int]:
    """Symbols that can have one size only."""
    return {name: s.min for name, s in symbols.items() if s.max == s.min}
