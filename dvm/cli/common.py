"""What all verbs share: errors as one line, ``--json``, progress, and the syntax of shapes and dims."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dvm import diagnostics
from vm.errors import DvmError, ProgramError

if TYPE_CHECKING:
    from dvm.dims import Dim
    from dvm.options import Options
    from dvm.pipeline import Traced
    from dvm.program import CompiledProgram

_MAGIC = b"\x89DVM"
_INTERNAL_ERROR = 70  # as sysexits.h: our fault, not the input's


# ---- errors and output


def guarded(ctx: click.Context, call: Callable[[click.Context], Any]) -> Any:
    """Runs ``call``; an error becomes one line on stderr (and an object on stdout with ``--json``) and an exit code that is not 0."""
    try:
        return call(ctx)
    except (click.ClickException, click.exceptions.Exit, click.Abort, KeyboardInterrupt, BrokenPipeError):
        raise
    except Exception as error:
        if diagnostics.level() > 0:
            raise
        ours = not isinstance(error, (DvmError, OSError))
        text = one_line(error)
        if ours:
            text = f"internal error: {type(error).__name__}: {text} (set DVM_DEBUG=1 for the traceback)"
        if "--json" in sys.argv[1:] or ctx.find_root().meta.get("dvm.json"):
            click.echo(json.dumps({"error": {"type": type(error).__name__, "message": str(error)}}))
        click.echo(f"error: {text}", err=True)
        ctx.exit(_INTERNAL_ERROR if ours else 1)


def one_line(error: BaseException) -> str:
    """The message without line breaks."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return "; ".join(line.strip() for line in str(error).splitlines() if line.strip()) or type(error).__name__


def json_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``--json``; the verb gets ``as_json``."""

    @click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
    @functools.wraps(function)
    def wrapped(*args: Any, as_json: bool, **kwargs: Any) -> Any:
        click.get_current_context().find_root().meta["dvm.json"] = as_json
        return function(*args, as_json=as_json, **kwargs)

    return wrapped


def emit(data: dict[str, Any], text: str, as_json: bool) -> None:
    """Prints the result of a verb."""
    click.echo(json.dumps(data, indent=2) if as_json else text)


def table(rows: Sequence[Sequence[str]], indent: str = "  ") -> str:
    """Columns aligned with spaces."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))] if rows else []
    return "\n".join(indent + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def plural(n: int, noun: str) -> str:
    """``1 kernel``, ``2 kernels``."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


@contextlib.contextmanager
def progress(title: str) -> Iterator[None]:
    """A spinner with the current stage on stderr if that is a terminal; nothing otherwise."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    from dvm import pipeline

    with Console(stderr=True).status(title) as status, pipeline.observe(lambda s: status.update(f"{title}: {s}")):
        yield


# ---- programs


def program_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Options with which every verb can take a model in place of a program."""
    function = click.option(
        "--dim",
        "dim_texts",
        multiple=True,
        metavar="NAME=MIN:MAX[:MULTIPLE]",
        help="Range of a symbol of an ONNX model, as seq=1:8192 or seq=8:8192:8; seq=1: has no maximum, seq=16 is fixed.",
    )(function)
    return click.argument("path", metavar="PROGRAM_OR_MODEL", type=click.Path(dir_okay=False, path_type=Path))(function)


def compile_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Options of the compiler, for verbs that take a model; the verb gets ``options``, a ``dvm.Options`` or None."""

    @click.option("--level", type=click.IntRange(0, 3), help="How much is optimised; 0: no pass, one kernel a node.")
    @click.option("--chip", help="The chip to compile for: 910B1 (the default) to 910B4, or the path of a description.")
    @click.option(
        "--disable",
        multiple=True,
        metavar="PASS,...",
        help="Passes to leave out, also fusion, speculation and stacking.",
    )
    @click.option(
        "--dump", type=click.Path(file_okay=False, path_type=Path), help="Folder for the graph after every pass."
    )
    @functools.wraps(function)
    def wrapped(
        *args: Any, level: int | None, chip: str | None, disable: tuple[str, ...], dump: Path | None, **kwargs: Any
    ) -> Any:
        options = None
        names = tuple(part.strip() for text in disable for part in text.split(",") if part.strip())
        given: dict[str, Any] = {"level": level, "disable": names or None, "dump": dump, "chip": chip}
        if any(value is not None for value in given.values()):
            from dvm.options import Options

            options = Options(**{name: value for name, value in given.items() if value is not None})
        return function(*args, options=options, **kwargs)

    return wrapped


def open_program(
    path: Path, dim_texts: Sequence[str], tier: str = "auto", start: bool = False, options: Options | None = None
) -> CompiledProgram:
    """Loads a ``.dvm`` program or compiles a model (ONNX, or a graph as text), whichever the file is; ``start`` as in
    ``Traced.compile``."""
    if not _is_program(path) and path.suffix != ".dvm":
        with progress(f"compiling {path.name}"):
            return open_model(path, dim_texts).compile(tier, options, start=start)
    if dim_texts:
        raise ProgramError(f"--dim declares the symbols of a model; {path.name} is compiled already")
    if options is not None:
        raise ProgramError(f"--level, --chip, --disable and --dump are for models; {path.name} is compiled already")
    from dvm.program import load

    return load(path, tier)


def _is_program(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def open_model(path: Path, dim_texts: Sequence[str] = ()) -> Traced:
    """The graph of an ONNX model, or of a text file as ``dvm opt`` writes it (its symbols are declared in the text)."""
    from dvm.pipeline import from_graph, from_onnx_model

    if _is_program(path):
        raise ProgramError(f"{path.name} is a compiled program, which holds no graph: give the model")
    if path.suffix == ".txt":
        if dim_texts:
            raise click.UsageError(f"--dim is for ONNX models; {path.name} declares its symbols itself")
        from dvm.graph_files import read_graph

        return from_graph(read_graph(path))
    return from_onnx_model(path, parse_dims(dim_texts))


def sizes_and_ranges(dim_texts: Sequence[str]) -> tuple[dict[str, int], list[str]]:
    """``--at`` of verbs that look at one call: NAME=SIZE is a size of it, NAME=MIN:MAX the range of a model's symbol."""
    parts = [part for text in dim_texts for part in text.split(",")]
    ranges = [part for part in parts if ":" in part.rpartition("=")[2]]
    return parse_sizes([part for part in parts if part not in ranges], "--at"), ranges


def call_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The path and ``--at`` of verbs that look at one call (see ``sizes_and_ranges``)."""
    function = click.option(
        "--at",
        "--dim",
        "dim_texts",
        multiple=True,
        metavar="SYMBOL=SIZE",
        help="The sizes of the call, as batch=2,seq=16; may be repeated. For a model also a symbol's range, as batch=1:64.",
    )(function)
    return click.argument("path", metavar="PROGRAM_OR_MODEL", type=click.Path(dir_okay=False, path_type=Path))(function)


# ---- syntax


def parse_dims(texts: Sequence[str]) -> dict[str, Dim]:
    """``seq=1:8192``, ``seq=8:8192:8``, ``seq=1:``, ``seq=16`` as declarations by name."""
    from dvm.dims import Dim

    dims: dict[str, Dim] = {}
    for text in texts:
        name, sign, given = text.rpartition("=")
        parts = given.split(":")
        if (
            not sign
            or not name
            or len(parts) > 3
            or not all(re.fullmatch(r"\d*", part) for part in parts)
            or not parts[0]
        ):
            raise click.UsageError(f"--dim {text}: expected NAME=MIN:MAX, NAME=MIN:MAX:MULTIPLE or NAME=SIZE")
        low = int(parts[0])
        high = low if len(parts) == 1 else int(parts[1]) if parts[1] else None
        multiple = int(parts[2]) if len(parts) == 3 and parts[2] else 1
        if name in dims:
            raise click.UsageError(f"--dim {text}: {name} is declared twice")
        dims[name] = Dim(name, low, high, multiple)
    return dims


def parse_shape(text: str, option: str) -> tuple[str, tuple[int, ...]]:
    """``x:2x128`` as a name and a shape; ``x:`` is a scalar."""
    name, sign, given = text.rpartition(":")
    if not sign or not name or not re.fullmatch(r"(\d+(x\d+)*)?", given):
        raise click.UsageError(f"{option} {text}: expected NAME:SIZExSIZE, as x:2x128 (x: is a scalar)")
    return name, tuple(int(size) for size in given.split("x") if size)


def parse_sizes(texts: Sequence[str], option: str) -> dict[str, int]:
    """``b=2`` or ``b=2,s=16`` as sizes by name."""
    sizes: dict[str, int] = {}
    for text in (part for item in texts for part in item.split(",")):
        name, sign, given = text.strip().rpartition("=")
        if not sign or not name or not given.isdigit():
            raise click.UsageError(f"{option} {text}: expected NAME=SIZE, as seq=16")
        sizes[name] = int(given)
    return sizes
