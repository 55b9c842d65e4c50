"""``dvm profile``."""

from __future__ import annotations

from pathlib import Path

import click

from dvm.cli.common import emit, json_option, open_program, parse_sizes


@click.command("profile", epilog="Example: dvm profile softmax.dvm --dim batch=2 --dim seq=128 --trace trace.json")
@click.argument("path", metavar="PROGRAM_OR_MODEL", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--dim",
    "dim_texts",
    multiple=True,
    metavar="NAME=SIZE",
    help="The size of a symbol in this call; for a model also its range, as NAME=MIN:MAX.",
)
@click.option("--trace", type=click.Path(dir_okay=False, path_type=Path), help="Write a Chrome trace (for Perfetto).")
@json_option
def command(path: Path, dim_texts: tuple[str, ...], trace: Path | None, as_json: bool) -> None:
    """Shows the emulated time of one call, kernel by kernel: cycles, bytes, arithmetic intensity, what binds, how busy each pipe is.

    Nothing is run: times are those of the emulated chip, not of this machine.
    """
    ranges = [text for text in dim_texts if ":" in text.rpartition("=")[2]]
    sizes = parse_sizes([text for text in dim_texts if text not in ranges], "--dim")
    profile = open_program(path, ranges).profile(sizes)
    if trace is not None:
        profile.save_trace(trace)
    emit(profile.json(), str(profile), as_json)
