"""``dvm inspect``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dvm.cli.common import compile_options, emit, json_option, open_program, program_options, table

if TYPE_CHECKING:
    from dvm.options import Options
    from dvm.program import CompiledProgram


@click.command("inspect", epilog="Example: dvm inspect softmax.dvm")
@program_options
@compile_options
@json_option
def command(path: Path, dim_texts: tuple[str, ...], options: Options | None, as_json: bool) -> None:
    """Shows what a program takes, returns, demands and holds. Nothing of it runs."""
    data = describe(open_program(path, dim_texts, options=options))
    emit(data, _text(data), as_json)


def describe(program: CompiledProgram) -> dict[str, Any]:
    """Everything ``inspect`` shows, as plain data."""
    from vm.program import HostStep, KernelStep

    raw, steps = program.program, program.steps
    constants = sum(array.nbytes for array in raw.constants)
    return {
        "chip": raw.chip,
        "stripped": not raw.debug,
        "symbols": [
            {
                "name": s.name,
                "min": s.min,
                "max": s.max,
                "multiple_of": s.multiple_of,
                "origin": s.origin,
                "range": f"{s.name} {s.min}"
                + ("" if s.max == s.min else f"..{'' if s.max is None else s.max}")
                + (f" step {s.multiple_of}" if s.multiple_of > 1 else ""),
            }
            for s in program.symbols.values()
        ],
        "inputs": [{"name": t.name, "dtype": t.dtype, "dims": list(t.text)} for t in program.inputs],
        "outputs": [{"name": t.name, "dtype": t.dtype, "dims": list(t.text)} for t in program.outputs],
        "constraints": program.constraints,
        "checks": [{"message": c.message, "origin": c.origin} for c in raw.checks],
        "kernels": [{"name": k.name, "ops": list(k.ops), "facts": list(k.facts)} for k in program.kernels],
        "steps": {
            "kernel_launches": sum(isinstance(step, KernelStep) and step.alternative == 0 for step in steps),
            "other_forms": sum(isinstance(step, KernelStep) and step.alternative > 0 for step in steps),
            "host_ops": sum(isinstance(step, HostStep) for step in steps),
            "templates": len(raw.templates),
        },
        "sizes": {
            "code_bytes": sum(8 * len(t.words) for t in raw.templates),
            "patches": sum(len(t.patches) for t in raw.templates),
            "integer_operations": len(raw.code.code) + len(raw.solve.code),
            "constant_bytes": constants,
        },
    }


def _text(data: dict[str, Any]) -> str:
    def tensors(items: list[dict[str, Any]]) -> str:
        return table([[t["name"], f"{t['dtype']}[{', '.join(t['dims'])}]"] for t in items]) or "  none"

    sizes, steps = data["sizes"], data["steps"]
    parts = [
        "symbols:\n"
        + (
            "\n".join(f"  {s['range']}" + (f"  ({s['origin']})" if s["origin"] else "") for s in data["symbols"])
            or "  none"
        ),
        "inputs:\n" + tensors(data["inputs"]),
        "outputs:\n" + tensors(data["outputs"]),
        "constraints:\n" + ("\n".join(f"  {line}" for line in data["constraints"]) or "  none"),
        f"launch checks: {len(data['checks'])}",
        f"kernels: {len(data['kernels'])}"
        + "".join(
            f"\n  {k['name']}"
            + (f": {', '.join(k['ops'])}" if k["ops"] else "")
            + "".join(f"\n    given {f}" for f in k["facts"])
            for k in data["kernels"]
        ),
        f"steps: {steps['kernel_launches']} kernels of {steps['templates']} templates, {steps['host_ops']} host ops",
        f"sizes: code {sizes['code_bytes']:,} bytes, {sizes['patches']} patches, {sizes['integer_operations']} integer operations, "
        f"constants {sizes['constant_bytes']:,} bytes",
    ]
    return "\n".join(parts)
