"""The product, ``jax.jit``, ``jax.jit`` on padded inputs, PyTorch and ONNX Runtime over streams of shapes, side by side.

    python -m benchmarks.peers                                  # everything; some 15 minutes, most of it torch.compile
    python -m benchmarks.peers qwen_block decode --peers dvm,jit,ort
    python -m benchmarks.peers --json > figures.json

Each peer lives in a process of its own with both cores; they take turns, so that all see the same machine. Float32 everywhere.
Per peer: what is done once (compile or load), the worst first call at a new shape beyond its warm time, all first calls, all warm
runs (sums over the stream; a shape's warm time is the median over rounds), and the product's warm time as a part of the peer's.
Wall time in ms, from finished arrays to finished arrays. A peer whose result differs from ``jax.jit``'s fails the run.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass, field

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.peers.worker import Worker

PEERS = ["dvm", "jit", "jit_pow2", "eager", "torch_dynamic", "ort"]
TITLES = {
    "dvm": "DVM",
    "jit": "jax.jit",
    "jit_pow2": "jit + pow2 pad",
    "eager": "PyTorch eager",
    "torch_dynamic": "torch.compile dynamic",
    "torch_static": "torch.compile static",
    "ort": "ONNX Runtime",
}


@dataclass
class Figures:
    """One peer on one workload; ms."""

    peer: str
    prepare: float
    worst_first: float
    first_calls: float
    warm: float
    error: float
    warm_of_shape: list[float]
    binds: list[float] = field(
        default_factory=list
    )  # of the first calls, what binding the sizes took; the product only


def error(got: list[np.ndarray], want: list[np.ndarray]) -> float:
    """The largest max|a - b| / max|b| over the results; infinite for another shape."""
    worst = 0.0
    for a, b in zip(got, want, strict=True):
        if a.shape != b.shape:
            return float("inf")
        worst = max(worst, float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)))
    return worst


def measure(
    workload: str, peers: list[str], rounds: int, calls: int, log: Console, shapes: int | None = None
) -> list[Figures]:
    """All peers on one workload, taking turns; on ``shapes`` of its shapes, spread evenly, if given."""
    from benchmarks.peers.workloads import WORKLOADS

    made = WORKLOADS[workload]()
    count = len(made.stream)
    order = list(range(count)) if shapes is None else sorted({k * (count - 1) // (shapes - 1) for k in range(shapes)})
    random.Random(0).shuffle(order)
    log.print(f"{made.title}: {len(order)} shapes", highlight=False)
    workers = {peer: Worker(workload, peer) for peer in peers}
    try:
        prepared = {peer: w.ask("prepare") for peer, w in workers.items()}
        first = {peer: [0.0] * count for peer in peers}
        binds: dict[str, list[float]] = {peer: [] for peer in peers}
        for k in order:
            for peer, w in workers.items():
                if peer == "dvm":
                    binds[peer].append(w.ask("bind", k))
                first[peer][k] = w.ask("call", k) + sum(binds[peer][-1:])
        errors = dict.fromkeys(peers, 0.0)
        if "jit" in peers:
            for k in order[:: max(1, len(order) // 4)]:
                want = workers["jit"].ask("result", k)
                for peer, w in workers.items():
                    errors[peer] = max(errors[peer], error(w.ask("result", k), want))
        times: dict[str, list[list[float]]] = {peer: [[] for _ in range(count)] for peer in peers}
        for turn in range(rounds):
            for k in order:
                for peer, w in list(workers.items())[:: 1 if turn % 2 else -1]:
                    times[peer][k].append(statistics.median(w.ask("call", k) for _ in range(calls)))
    finally:
        for w in workers.values():
            w.stop()
    found = []
    for peer in peers:
        warm = {k: statistics.median(times[peer][k]) for k in sorted(order)}
        worst = max(first[peer][k] - t for k, t in warm.items())
        total, values = sum(first[peer]), list(warm.values())
        found.append(Figures(peer, prepared[peer], worst, total, sum(values), errors[peer], values, binds[peer]))
    return found


def table(title: str, rows: list[Figures]) -> Table:
    """The figures of one workload."""
    out = Table("", "once", "worst first", "all first", "all warm", "DVM's warm / its", "error", title=title)
    for column in out.columns[1:]:
        column.justify = "right"
    own = next((r.warm for r in rows if r.peer == "dvm"), float("nan"))
    for r in rows:
        ratio = "" if r.peer == "dvm" else f"{own / r.warm:.2f}"
        cells = [f"{v:,.1f}" for v in (r.prepare, r.worst_first, r.first_calls, r.warm)]
        out.add_row(TITLES[r.peer], *cells, ratio, f"{r.error:.0e}")
    return out


def _names(_: click.Context, __: click.Parameter, text: str) -> list[str]:
    names = text.split(",")
    unknown = [n for n in names if n not in TITLES]
    if unknown:
        raise click.BadParameter(f"unknown peers {', '.join(unknown)}; known are {', '.join(TITLES)}")
    return names


@click.command(help=__doc__.split("\n")[0])
@click.argument("workloads", nargs=-1)
@click.option("--peers", callback=_names, default=",".join(PEERS), show_default=True)
@click.option("--rounds", default=3, show_default=True, help="Warm rounds over the stream.")
@click.option("--calls", default=3, show_default=True, help="Calls of a peer per turn; their median counts.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(workloads: tuple[str, ...], peers: list[str], rounds: int, calls: int, as_json: bool) -> None:
    """Runs the comparison; see the module's docstring."""
    from benchmarks.peers.workloads import WORKLOADS

    unknown = [w for w in workloads if w not in WORKLOADS]
    if unknown:
        raise click.BadParameter(f"unknown workloads {', '.join(unknown)}; known are {', '.join(WORKLOADS)}")
    log = Console(stderr=True, quiet=not sys.stderr.isatty())
    results: dict[str, list[Figures]] = {}
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("DVM_CACHE_DIR", folder)
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", folder)
        for name in workloads or list(WORKLOADS):
            made = WORKLOADS[name]()
            results[name] = measure(name, peers, rounds, calls, log)
            failed += [f"{name}: {r.peer} ({r.error:.1e})" for r in results[name] if not r.error <= made.tolerance]
            if not as_json:
                Console(width=120).print(table(f"{made.title} ({len(made.stream)} shapes), ms", results[name]))
    if as_json:
        print(json.dumps({name: [asdict(r) for r in rows] for name, rows in results.items()}, indent=1))
    if failed:
        print("results that differ from jax.jit's: " + "; ".join(failed), file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
