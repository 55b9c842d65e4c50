"""Writes ``docs/ops.md`` from the op table: ``python -m scripts.make_ops_page`` (with ``--check``: says whether it is stale)."""

from __future__ import annotations

import sys
from pathlib import Path

from graph_kernel.ops import OPS, OpDef, Pattern

PAGE = Path(__file__).parents[1] / "docs" / "ops.md"

INTRODUCTION = """\
# The operators of the graph

Made from the table in `graph_kernel/ops` by `scripts/make_ops_page.py`; a test fails if it is stale. Front ends map jaxpr primitives and
ONNX operators onto these and nothing else. The pattern is all that fusion asks of an operator; its shape rule, value rule and NumPy
meaning stand with it in one declaration. An operator of the chip becomes instructions (see [isa.md](isa.md)); one of the host calls a
NumPy function between kernels, which `dvm.stats().host_ops` counts. float64 and complex operands are always the host's, and so is what no
kernel can hold at these sizes, as a cumulative operator along an axis of symbolic size; `prog.explain()` lists such operations and why.
"""

PATTERNS = {
    Pattern.ELEMENTWISE: "every result element from the operands' elements at the same place",
    Pattern.BROADCAST: "repeats elements or makes them from their index",
    Pattern.REDUCE: "combines elements along axes",
    Pattern.MATMUL: "contracts two operands on the cube",
    Pattern.VIEW: "moves data; becomes an index map of a load or a store",
    Pattern.SHAPE: "a dimension as data",
    Pattern.CONTROL: "holds sub-graphs",
    Pattern.HOST: "a NumPy function",
    Pattern.COMPOSITE: "found in the graph by the recognise passes; a graph of other operators, which stands in for it before fusion",
}


def row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def op_row(op: OpDef) -> str:
    where = (
        "expanded"
        if op.pattern is Pattern.COMPOSITE
        else "chip"
        if op.chip
        else f"host (`{op.host or op.name}`)"
        if op.pattern is not Pattern.CONTROL
        else "driven from the host"
    )
    inputs = "any" if op.n_inputs is None else str(op.n_inputs)
    return row(f"`{op.name}`", inputs, where, " ".join(op.doc.split()))


def page() -> str:
    """The page's text."""
    lines = [INTRODUCTION]
    for pattern, what in PATTERNS.items():
        ops = sorted((op for op in OPS.values() if op.pattern is pattern), key=lambda op: op.name)
        lines += [f"## {pattern.value}", "", f"{len(ops)} operators: {what}.", ""]
        lines += [row("operator", "inputs", "runs on", "meaning"), row(*["---"] * 4), *map(op_row, ops), ""]
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    if "--check" in sys.argv:
        sys.exit(PAGE.read_text() != page() and f"{PAGE.name} is stale: run python -m scripts.make_ops_page")
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
