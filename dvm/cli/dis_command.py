"""``dvm dis``."""

from __future__ import annotations

from pathlib import Path

import click

from dvm.cli.common import emit, json_option, open_program, program_options


@click.command("dis", epilog="Example: dvm dis softmax.dvm --kernel 0")
@program_options
@click.option("--kernel", help="Only this kernel, by name or by number.")
@json_option
def command(path: Path, dim_texts: tuple[str, ...], kernel: str | None, as_json: bool) -> None:
    """Prints the instructions of a program."""
    program = open_program(path, dim_texts)
    chosen = int(kernel) if kernel is not None and kernel.isdigit() else kernel
    text = program.disassemble(chosen)
    emit({"kernel": kernel, "lines": text.splitlines()}, text, as_json)
