"""Emulated time of whole models and of the paper's Table 3 kernels: everything unfused, fused, fused and stacked.

    python -m benchmarks.emulated            # all tables
    python -m benchmarks.emulated --json

Nothing is run: every figure is time on the emulated chip (docs/timing.md) and says nothing about this machine. "Unfused" is the same
program with one kernel a node (option ``fusion`` off, every intermediate goes through global memory), "fused" runs one kernel after the
other, "stacked" is what the product does: independent kernels side by side. "Traffic" is what the bytes alone predict of a fusion gain.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table

import dvm
from dvm import models, pipeline
from dvm.program import CompiledProgram
from vm import timing
from vm.chip import Chip
from vm.timing import ProgramTime

MODELS = Path(__file__).parents[1] / "tests" / "data" / "models"
SIZES: dict[str, dict[str, int]] = {
    "bert": {"batch": 8, "seq": 128},
    "llama": {"batch": 4, "seq": 32, "past": 96, "total": 128},
    "mmoe": {"batch": 512},
    "qwen2": {"batch": 4, "seq": 128},
}
BLOCK = [{"b": 1, "s": 128}, {"b": 4, "s": 512}, {"b": 1, "s": 1}]  # of Qwen2.5-0.5B
LAYER_NORM = [(1, 1024), (8, 1024), (60, 1024), (8, 4096)]  # b, h of [b, 8192, h]
WEIGHTS = [(4096, 4096), (4096, 11008), (8192, 8192)]  # n, k
ROWS = (1, 128, 4096)
DEEP = [
    (128, 4096),
    (128, 16384),
    (256, 4096),
    (256, 16384),
    (512, 4096),
    (512, 16384),
]  # n, k of few results of long sums
FEW_ROWS = (1, 16, 64, 128, 256, 1024)


@dataclass(frozen=True)
class Row:
    """One case; times in emulated microseconds."""

    case: str
    kernels_unfused: int
    kernels: int
    stages: int
    launches: int
    unfused_us: float
    fused_us: float
    stacked_us: float
    traffic_gain: float

    @property
    def fusion_gain(self) -> float:
        """Unfused over fused."""
        return self.unfused_us / self.fused_us

    @property
    def gain(self) -> float:
        """Unfused over fused and stacked."""
        return self.unfused_us / self.stacked_us


Compile = Callable[[bool], CompiledProgram]


def of_function(fn: Callable[..., Any], *specs: Any) -> Compile:
    """Compiles a function, fused or not, for no executor."""
    return lambda fused: pipeline.from_function(fn, specs, {}).compile(start=False, options={"fusion": fused})


def of_model(path: Path) -> Compile:
    """The same for an ONNX model."""
    return lambda fused: pipeline.from_onnx_model(path, None, ()).compile(start=False, options={"fusion": fused})


def rows(case: str, compile_: Compile, sizes: list[dict[str, int]]) -> Iterator[Row]:
    """One row for each of the sizes."""
    unfused, fused = compile_(False), compile_(True)
    plain = replace(fused.program, stages=())
    alone = replace(unfused.program, stages=())
    for dims in sizes:
        times = [
            timing.emulate(alone, unfused.bind(dims)),
            timing.emulate(plain, fused.bind(dims)),
            timing.emulate(fused.program, fused.bind(dims)),
        ]
        at = ", ".join(f"{k} {v}" for k, v in dims.items())
        yield Row(
            f"{case} ({at})" if at else case,
            len(times[0].kernels),
            len(times[1].kernels),
            len(times[2].stages),
            fused.launches,
            times[0].us,
            times[1].us,
            times[2].us,
            moved(times[0]) / moved(times[1]),
        )


def moved(result: ProgramTime) -> float:
    """Bytes that all kernels move."""
    return sum(kernel.moved * kernel.count for kernel in result.kernels)


def layer_norm(x: jax.Array, scale: jax.Array, shift: jax.Array) -> jax.Array:
    """Over the last axis."""
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5) * scale + shift


def model_rows() -> Iterator[Row]:
    """The exported models, and a decoder block of full size."""
    for name, dims in SIZES.items():
        yield from rows(name, of_model(MODELS / f"{name}.onnx"), [dims])
    config = models.load_config("qwen2.5-0.5b")
    assert isinstance(config, models.DecoderConfig)
    params = models.init_params(config)
    x = dvm.spec(f"b, s, {config.hidden_size}", jnp.float32, b=dvm.Dim(max=4), s=dvm.Dim(max=512))
    yield from rows("qwen2.5-0.5b block", of_function(models.prefill_block(config), params, x), BLOCK)


def kernel_rows() -> Iterator[Row]:
    """LayerNorm and addmm over part of the paper's Table 2."""
    b, m = dvm.Dim("b", max=60), dvm.Dim("m", max=8192)
    for h in dict.fromkeys(h for _, h in LAYER_NORM):
        specs = (dvm.spec(f"b, 8192, {h}", jnp.float32, b=b), *[dvm.spec(f"{h}", jnp.float32)] * 2)
        sizes = [{"b": n} for n, width in LAYER_NORM if width == h]
        yield from rows(f"LayerNorm 8192 x {h}", of_function(layer_norm, *specs), sizes)
    for n, k in WEIGHTS:
        specs = (
            dvm.spec(f"m, {k}", jnp.float16, m=m),
            dvm.spec(f"{k}, {n}", jnp.float16),
            dvm.spec(f"m, {n}", jnp.float16, m=m),
        )
        fn = of_function(lambda x, w, y: x @ w + y, *specs)
        yield from rows(f"addmm k {k}, n {n}", fn, [{"m": size} for size in ROWS])


def large_kernels() -> Iterator[dict[str, Any]]:
    """How near large kernels come to the peaks of each chip's model, and what binds. ``cube`` is the share of the multiply-adds that all
    cube cores could do in that time."""
    m, n = dvm.Dim("m", max=8192), dvm.Dim("n", max=1 << 30)
    add = jnp.add, (dvm.spec("n", jnp.float32, n=n),) * 2
    product = jnp.dot, (dvm.spec("m, 4096", jnp.float16, m=m), dvm.spec("4096, 4096", jnp.float16))
    for chip in CHIPS:
        found = Chip.load(chip)
        peak = found.cube_cores * found.cube.m * found.cube.n * found.cube_k(2)
        for name, (fn, specs), sizes in (
            ("add, 2^28 float32", add, {"n": 1 << 28}),
            ("matmul 4096^3 float16", product, {"m": 4096}),
            ("matmul 8192 x 4096 x 4096 float16", product, {"m": 8192}),
        ):
            prog = pipeline.from_function(fn, specs, {}).compile(start=False, options={"chip": chip})
            (kernel,) = timing.emulate(prog.program, prog.bind(sizes)).kernels
            busy = {k: kernel.utilisation[k] for k in BUSY}
            cube = kernel.flops / 2 / kernel.cycles / peak if kernel.utilisation["M"] else 0.0
            yield {"case": name, "chip": chip, "us": kernel.us, "bound": kernel.bound, "cube": cube, **busy}


def deep_products() -> Iterator[dict[str, Any]]:
    """Products of few results over long sums: as one kernel, and as the compiler has them (docs/speculation.md)."""
    m = dvm.Dim("m", max=4096)
    for dtype in (jnp.float32, jnp.float16):
        for n, k in DEEP:
            specs = (dvm.spec(f"m, {k}", dtype, m=m), dvm.spec(f"{k}, {n}", dtype))
            one, chosen = (
                pipeline.from_function(jnp.dot, specs, {}).compile(start=False, options={"disable": off})
                for off in (("speculation",), ())
            )
            for rows_ in FEW_ROWS:
                times = [timing.emulate(p.program, p.bind({"m": rows_})) for p in (one, chosen)]
                whole, mine = (time.us for time in times)
                yield {
                    "case": f"{jnp.dtype(dtype)}, n {n}, k {k}",
                    "m": rows_,
                    "whole_us": whole,
                    "chosen_us": mine,
                    "kernels": len(times[1].kernels),
                    "gain": whole / mine,
                }


CHIPS = ("910B1", "910B2", "910B3", "910B4")
BUSY = ("HBM", "L2", "M", "MTE1", "MTE2", "V")


def table(title: str, found: list[Row]) -> Table:
    """The rows as people read them."""
    out = Table(title=title)
    out.add_column("case")
    for name in (
        "kernels",
        "fused",
        "stages",
        "launches",
        "unfused us",
        "fused us",
        "stacked us",
        "traffic",
        "fusion",
        "gain",
    ):
        out.add_column(name, justify="right")
    for row in found:
        counts = (row.kernels_unfused, row.kernels, row.stages, row.launches)
        times = (row.unfused_us, row.fused_us, row.stacked_us)
        gains = (row.traffic_gain, row.fusion_gain, row.gain)
        out.add_row(row.case, *map(str, counts), *(f"{t:,.1f}" for t in times), *(f"{g:.2f}x" for g in gains))
    return out


def deep_table(found: list[dict[str, Any]]) -> Table:
    """A line a product, a column a number of rows: us as one kernel, then as it is run."""
    out = Table(title="emulated time, few results of long sums: us as one kernel, us as chosen")
    out.add_column("case")
    for m in FEW_ROWS:
        out.add_column(f"m {m}", justify="right")
    for case in dict.fromkeys(one["case"] for one in found):
        times = ((one["whole_us"], one["chosen_us"]) for one in found if one["case"] == case)
        out.add_row(case, *(f"{whole:,.1f} {chosen:,.1f}" for whole, chosen in times))
    return out


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def main(as_json: bool) -> None:
    """Prints emulated times."""
    console = Console(width=150, stderr=as_json)
    data: dict[str, Any] = {"time": "emulated"}
    parts = (("models", "whole models", model_rows), ("kernels", "kernels of the paper's Table 3", kernel_rows))
    for key, title, make in parts:
        found = list(make())
        data[key] = [{**asdict(row), "fusion_gain": row.fusion_gain, "gain": row.gain} for row in found]
        if not as_json:
            console.print(table(f"emulated time, {title}", found))
    data["large"] = list(large_kernels())
    data["deep"] = list(deep_products())
    if as_json:
        click.echo(json.dumps(data, indent=2))
        return
    busy = Table(title="emulated time, share of the model's peaks")
    for name in ("case", "chip", "us", "bound", *(f"{k} %" for k in ("cube", *BUSY))):
        busy.add_column(name)
    for one in data["large"]:
        shares = (f"{100 * one[k]:.0f}" for k in ("cube", *BUSY))
        busy.add_row(one["case"], one["chip"], f"{one['us']:,.1f}", one["bound"], *shares)
    console.print(busy)
    console.print(deep_table(data["deep"]))


if __name__ == "__main__":
    main()
