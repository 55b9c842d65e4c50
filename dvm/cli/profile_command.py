"""``dvm profile``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dvm.cli.common import call_options, compile_options, emit, json_option, open_program, sizes_and_ranges

if TYPE_CHECKING:
    from dvm.options import Options


@click.command("profile", epilog="Example: dvm profile softmax.dvm --at batch=2,seq=128 --trace trace.json")
@call_options
@click.option("--trace", type=click.Path(dir_okay=False, path_type=Path), help="Write a Chrome trace (for Perfetto).")
@compile_options
@json_option
def command(path: Path, dim_texts: tuple[str, ...], trace: Path | None, options: Options | None, as_json: bool) -> None:
    """Shows the emulated time of one call, kernel by kernel: cycles, bytes, arithmetic intensity, what binds, how busy each pipe is.

    Nothing is run: times are those of the emulated chip, not of this machine.
    """
    sizes, ranges = sizes_and_ranges(dim_texts)
    profile = open_program(path, ranges, options=options).profile(sizes)
    if trace is not None:
        profile.save_trace(trace)
    emit(profile.to_dict(), str(profile), as_json)
