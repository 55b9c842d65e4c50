"""``dvm run``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from dvm.cli.common import (
    compile_options,
    emit,
    json_option,
    open_program,
    parse_shape,
    parse_sizes,
    program_options,
    progress,
    table,
)
from vm.errors import InputError

if TYPE_CHECKING:
    from dvm.options import Options
    from dvm.program import CompiledProgram


@click.command("run", epilog="Example: dvm run softmax.dvm --random x:2x128")
@program_options
@click.option(
    "--input",
    "files",
    multiple=True,
    metavar="NAME=FILE",
    help="An input from a .npy file; or a .npz file with several.",
)
@click.option(
    "--random", "randoms", multiple=True, metavar="NAME:SHAPE", help="A random input of this shape, as x:2x128."
)
@click.option(
    "--at",
    "sizes",
    multiple=True,
    metavar="SYMBOL=SIZE",
    help="Random inputs at these sizes for all that are not given.",
)
@click.option(
    "--range", "ranges", multiple=True, metavar="NAME=LOW:HIGH", help="Range of a random integer input, HIGH excluded."
)
@click.option(
    "--out", type=click.Path(path_type=Path), help="Write results to a .npz file, or as .npy files into a directory."
)
@click.option("--seed", default=0, show_default=True, help="Of random inputs.")
@click.option("--tier", type=click.Choice(["auto", "reference", "interpreter", "specialised"]), default="auto")
@compile_options
@json_option
def command(
    path: Path, dim_texts: tuple[str, ...], tier: str, options: Options | None, as_json: bool, **inputs: Any
) -> None:
    """Runs a program, or compiles a model and runs it, and prints what came out.

    Random floats are standard normal, random integers and bools are 0 or 1 unless --range says otherwise.
    """
    program = open_program(path, dim_texts, tier, start=True, options=options)
    feeds = _feeds(program, inputs)
    names = [spec.name for spec in program.outputs]
    with progress("running"):
        start = time.perf_counter()
        results = program.run(None, feeds)
        seconds = time.perf_counter() - start
    if inputs["out"] is not None:
        _write(inputs["out"], names, results)
    rows = [_summary(name, array) for name, array in zip(names, results, strict=True)]
    shapes = {name: list(np.shape(array)) for name, array in feeds.items()}
    data = {"inputs": shapes, "outputs": rows, "seconds": round(seconds, 6)}
    emit(data, table([_line(row) for row in rows], indent="") or "no outputs", as_json)


def _feeds(program: CompiledProgram, given: dict[str, Any]) -> dict[str, Any]:
    specs = {spec.name: spec for spec in program.inputs}
    feeds: dict[str, Any] = {}

    def put(name: str, array: Any, option: str) -> None:
        if name not in specs:
            raise InputError(f"{option}: the program has no input {name!r}; it has {', '.join(specs)}")
        if name in feeds:
            raise InputError(f"{option}: input {name!r} is given twice")
        feeds[name] = array

    for text in given["files"]:
        for name, array in _read(text, specs):
            put(name, _typed(array, specs[name].dtype) if name in specs else array, f"--input {text}")
    generator = np.random.default_rng(given["seed"])
    bounds = _ranges(given["ranges"])
    for text in given["randoms"]:
        name, shape = parse_shape(text, "--random")
        put(
            name,
            _random(generator, shape, specs[name].dtype, bounds.get(name)) if name in specs else None,
            f"--random {text}",
        )
    sizes = parse_sizes(given["sizes"], "--at")
    if sizes or not (given["randoms"] or given["files"] or _open(program)):
        shapes = program.bind(sizes).input_shapes
        for spec, shape in zip(program.inputs, shapes, strict=True):
            if spec.name not in feeds:
                put(spec.name, _random(generator, shape, spec.dtype, bounds.get(spec.name)), "--at")
    for spec in program.inputs:  # inputs of fixed shape need no --random
        if spec.name not in feeds and not sizes and (given["randoms"] or given["files"]) and _is_fixed(spec.text):
            shape = tuple(map(int, spec.text))
            put(spec.name, _random(generator, shape, spec.dtype, bounds.get(spec.name)), "--random")
    missing = [name for name in specs if name not in feeds]
    if missing:
        raise InputError(
            f"no input {', '.join(map(repr, missing))}: --at SYMBOL=SIZE makes random ones, --random NAME:SHAPE one of them, "
            "--input NAME=FILE reads one"
        )
    for name in bounds:
        if name not in specs:
            raise InputError(f"--range: the program has no input {name!r}; it has {', '.join(specs)}")
    return feeds


def _open(program: CompiledProgram) -> list[str]:
    """The symbols that may have more than one size."""
    return [name for name, s in program.symbols.items() if s.min != s.max]


def _is_fixed(dims: Sequence[str]) -> bool:
    return all(dim.isdigit() for dim in dims)


def _read(text: str, specs: dict[str, Any]) -> list[tuple[str, np.ndarray]]:
    """``x=file.npy``, or ``file.npz`` whose arrays are named after inputs (others are left out)."""
    name, sign, file = text.rpartition("=")
    path = Path(file if sign else text)
    try:
        loaded = np.load(path, allow_pickle=False)
    except OSError:
        raise
    except Exception as error:
        raise InputError(f"--input {text}: not a NumPy file: {error}") from error
    if isinstance(loaded, np.ndarray):
        if not name:
            raise InputError(f"--input {text}: say which input it is: NAME={text}")
        return [(name, loaded)]
    if name:
        if name not in loaded.files:
            raise InputError(f"--input {text}: {path} has no array {name!r}; it has {', '.join(loaded.files)}")
        return [(name, loaded[name])]
    return [(key, loaded[key]) for key in loaded.files if key in specs]


def _ranges(texts: Sequence[str]) -> dict[str, tuple[int, int]]:
    ranges = {}
    for text in texts:
        name, sign, given = text.rpartition("=")
        low, colon, high = given.partition(":")
        try:
            bounds = (int(low), int(high))
        except ValueError:
            bounds = (0, 0)
        if not (sign and name and colon) or bounds[0] >= bounds[1]:
            raise click.UsageError(f"--range {text}: expected NAME=LOW:HIGH with LOW < HIGH, as ids=0:256")
        ranges[name] = bounds
    return ranges


def _random(
    generator: np.random.Generator, shape: tuple[int, ...], dtype: str, bounds: tuple[int, int] | None
) -> np.ndarray:
    from vm.dtypes import dtype_of

    kind = dtype_of(dtype)
    if kind.kind in "iub":
        low, high = bounds or (0, 2)
        return generator.integers(low, high, shape).astype(kind)
    values = generator.standard_normal(shape)
    if kind.kind == "c":
        values = values + 1j * generator.standard_normal(shape)
    return values.astype(kind)


def _typed(array: np.ndarray, dtype: str) -> np.ndarray:
    """16-bit floats that ``.npy`` files cannot name come back from float32, or from the raw bytes."""
    from vm.dtypes import dtype_of

    wanted = dtype_of(dtype)
    if array.dtype == wanted or wanted.isbuiltin == 1:
        return array
    return array.view(wanted) if array.dtype.kind == "V" and array.itemsize == wanted.itemsize else array.astype(wanted)


def _portable(array: np.ndarray) -> np.ndarray:
    """What a ``.npy`` file can hold: types that NumPy itself lacks are widened to float32."""
    return array if array.dtype.isbuiltin == 1 else array.astype(np.float32)


def _write(out: Path, names: Sequence[str], results: Sequence[np.ndarray]) -> None:
    arrays = {name: _portable(array) for name, array in zip(names, results, strict=True)}
    if out.suffix == ".npz":
        np.savez(out, **arrays)  # type: ignore[arg-type]
        return
    out.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        np.save(out / f"{name.replace('/', '_')}.npy", array)


def _summary(name: str, array: np.ndarray) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "dtype": array.dtype.name, "shape": list(array.shape)}
    if array.size == 0 or array.dtype.kind == "c":
        return row
    wide = array.astype(np.float64)
    row["nan"] = int(np.isnan(wide).sum())
    finite = wide[np.isfinite(wide)]
    if finite.size:
        row |= {"min": float(finite.min()), "max": float(finite.max()), "mean": float(finite.mean())}
    return row


def _line(row: dict[str, Any]) -> list[str]:
    shape = f"{row['dtype']}[{', '.join(map(str, row['shape']))}]"
    values = [f"{key} {row[key]:.6g}" for key in ("min", "max", "mean") if key in row]
    nan = f"nan {row['nan']}" if row.get("nan") else ""
    return [row["name"], shape, *(values or ["", "", ""]), nan]
