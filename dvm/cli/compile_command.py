"""``dvm compile``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dvm.cli.common import compile_options, emit, json_option, open_program, plural, program_options
from dvm.cli.inspect_command import describe
from vm.errors import CompileError

if TYPE_CHECKING:
    from dvm.options import Options


@click.command(
    "compile", epilog="Example: dvm compile examples/softmax.onnx -o softmax.dvm --dim batch=1:64 --dim seq=1:8192"
)
@program_options
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Default: the model's name with .dvm."
)
@click.option("--strip", is_flag=True, help="Leave out names of operations, explanations and reports.")
@compile_options
@json_option
def command(
    path: Path, dim_texts: tuple[str, ...], output: Path | None, strip: bool, options: Options | None, as_json: bool
) -> None:
    """Compiles an ONNX model into a program file that runs at every shape.

    Symbols are the model's dim_param names; one without --dim may have any size. A .dvm file is written again, as with --strip.
    """
    output = output or path.with_suffix(".dvm")
    if output.exists() and output.samefile(path):
        raise CompileError(f"{output}: the output would replace the input; give another name with -o")
    start = time.perf_counter()
    program = open_program(path, dim_texts, options=options)
    seconds = time.perf_counter() - start
    program.save(output, strip=strip)
    data: dict[str, Any] = {"output": str(output), "bytes": output.stat().st_size, "seconds": round(seconds, 3)}
    summary = describe(program)
    data |= {key: summary[key] for key in ("symbols", "inputs", "outputs", "sizes")}
    data["kernels"] = len(summary["kernels"])
    symbols = ", ".join(s["range"] for s in summary["symbols"]) or "none"
    text = f"{output}: {data['bytes']:,} bytes, {plural(data['kernels'], 'kernel')}, compiled in {seconds:.2f} s\nsymbols: {symbols}"
    emit(data, text, as_json)
