"""``dvm opt``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dvm.cli.common import emit, json_option, open_model, program_options
from dvm.options import LEVELS


@click.command("opt", epilog="Example: dvm opt examples/softmax.onnx -p cse,simplify,dce")
@program_options
@click.option("-p", "--passes", metavar="PASS,...", help="Run these passes, once each, in this order.")
@click.option("--level", type=click.IntRange(0, max(LEVELS)), help="Run the pipeline of this level (default 3).")
@click.option("--disable", multiple=True, metavar="PASS,...", help="Passes that the pipeline leaves out.")
@click.option("--verify", is_flag=True, help="Check the graph after every pass.")
@click.option(
    "-o",
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write before.txt and after.txt into a folder.",
)
@json_option
def command(
    path: Path,
    dim_texts: tuple[str, ...],
    passes: str | None,
    level: int | None,
    disable: tuple[str, ...],
    verify: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Runs graph passes on an ONNX model or on a graph in a text file, and prints the graph before and after.

    The text parses back: what --out writes (with large arrays in a .npz file beside it) is a model for this and every other verb.
    """
    from graph_kernel.passes import HIGHEST_LEVEL, count_nodes, find, optimise, run_passes
    from graph_kernel.text import to_text

    graph = open_model(path, dim_texts).graph
    if out is not None:
        _write(out, "before.txt", graph)
    before, nodes = to_text(graph), count_nodes(graph)
    if passes is not None:
        if level is not None or disable:
            raise click.UsageError("--level and --disable choose from the pipeline; -p names the passes themselves")
        reports = run_passes(graph, [find(name) for name in _names([passes])], verify)
    else:
        reports = optimise(graph, _names(disable), verify, HIGHEST_LEVEL if level is None else level)
    after = to_text(graph)
    if out is not None:
        _write(out, "after.txt", graph)
    data: dict[str, Any] = {"before": before, "after": after, "nodes": [nodes, count_nodes(graph)]}
    data["passes"] = [
        {
            "name": r.name,
            "group": r.group,
            "nodes": [r.nodes_before, r.nodes_after],
            "seconds": r.seconds,
            "did": r.notes,
        }
        for r in reports
    ]
    shown = [str(r) for r in reports if r.modified or passes is not None]
    emit(data, "\n".join(["// before", before, *(f"// {line}" for line in shown), "// after", after]).rstrip(), as_json)


def _names(texts: Any) -> list[str]:
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]


def _write(folder: Path, name: str, graph: Any) -> None:
    from dvm.graph_files import write_graph

    folder.mkdir(parents=True, exist_ok=True)
    write_graph(folder / name, graph)
