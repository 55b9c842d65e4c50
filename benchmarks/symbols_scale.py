"""Time and memory of the symbol engine at three sizes a case: ``python -m benchmarks.symbols_scale [--write docs/symbols.md]``."""

from __future__ import annotations

import argparse
import json
import random
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.symbols_strength import replace_section
from symbolic import Scope, eq, le, product, smax, symbol


def equalities(n: int) -> int:
    """n symbols, n equalities that tie neighbours and far ones, 5n questions, all of them true."""
    scope, rng = Scope(), random.Random(1)
    names = [scope.declare(f"s{i}") for i in range(n)]
    for i in range(n):
        a, b = names[i], names[(i + 1) % n if i % 3 else rng.randrange(n)]
        scope.assume(eq(a, b) if i % 2 else eq(4 * a, 4 * b), "tie")
    proved = 0
    for q in range(5 * n):
        a, b = names[q % n], names[(7 * q + 1) % n]
        proved += scope.proves(eq(a, b)) if q % 2 else scope.proves(le(a, a + b))
    return proved


def affine(n: int) -> int:
    """n symbols in a chain ``s[i+1] == s[i] + k``, an upper bound at every tenth, 5n comparisons."""
    scope, rng = Scope(), random.Random(2)
    names = [scope.declare(f"s{i}") for i in range(n)]
    for i in range(n - 1):
        scope.assume(eq(names[i + 1], names[i] + rng.randint(0, 3)), "chain")
    free = [scope.declare(f"f{i}") for i in range(n)]
    for i in range(0, n, 10):
        scope.assume(le(free[i], names[0] + i), "bound")
    return sum(scope.proves(le(names[q % n], names[min(n - 1, q % n + 5)])) for q in range(5 * n))


def products(n: int) -> int:
    """n facts about random products of a few symbols out of n, and n questions."""
    scope, rng = Scope(), random.Random(3)
    names = [scope.declare(f"p{i}") for i in range(n)]
    for _ in range(n):
        a, b, c, d = (rng.choice(names) for _ in range(4))
        try:
            scope.assume(eq(a * b, c * d), "same count")
        except Exception:
            continue
    return sum(scope.proves(eq(product(rng.sample(names, 3)), product(rng.sample(names, 3)))) for _ in range(n))


def concats(n: int) -> int:
    """A graph with n inputs of n distinct sizes, joined one after the other, sliced and added: passes included."""
    from graph_kernel import passes
    from graph_kernel.ir import Graph

    graph = Graph(Scope())
    dims = [graph.scope.declare(f"n{i}", min=0) for i in range(n)]
    joined = graph.add_input((dims[0], 4), np.float32, "x0")
    for i, dim in enumerate(dims[1:], 1):
        joined = graph.add("concat", joined, graph.add_input((dim, 4), np.float32, f"x{i}"), axis=0)
    doubled = graph.add("add", joined, joined)
    graph.outputs = [doubled]
    passes.optimise(graph)
    assert graph.scope.equal(graph.outputs[0].shape[0], sum(dims[1:], dims[0]))
    return len(graph.nodes)


def compiled_inputs(n: int) -> int:
    """A whole compile of a graph with n inputs of n distinct sizes: each is reduced, and the results are added."""
    from codegen import compile_graph
    from graph_kernel import passes
    from graph_kernel.ir import Graph

    graph = Graph(Scope())
    total = None
    for i in range(n):
        x = graph.add_input((graph.scope.declare(f"n{i}", min=0), 8), np.float32, f"x{i}")
        y = graph.add("reduce_sum", graph.add("mul", x, x), axes=(0,))
        total = y if total is None else graph.add("add", total, y)
    assert total is not None
    graph.outputs = [total]
    passes.optimise(graph)
    return len(compile_graph(graph, {}).symbols)


def layers(n: int) -> int:
    """Shapes of n transformer layers with a key-value cache: every shape rule of every op, checked against the mask's width."""
    from graph_kernel.ir import Graph, Value

    graph = Graph(Scope())
    b, s, past = (
        graph.scope.declare(name, min=low, max=high)
        for name, low, high in (("b", 1, 64), ("s", 1, 8192), ("past", 0, 8192))
    )
    heads, size = 14, 64
    x = graph.add_input((b, s, heads * size), np.float32, "x")
    w = graph.add_input((heads * size, heads * size), np.float32, "w")
    mask = graph.add_input((b, heads, s, past + s), np.float32, "mask")

    def project(v: Value) -> Value:
        y = graph.add("dot", v, w, contract=((2,), (0,)), batch=((), ()), dtype=np.dtype(np.float32))
        return graph.add("transpose", graph.add("reshape", y, shape=(b, s, heads, size)), perm=(0, 2, 1, 3))

    for layer in range(n):
        cache = graph.add_input((b, heads, past, size), np.float32, f"cache{layer}")
        q, k, v = (project(x) for _ in range(3))
        k = graph.add("concat", cache, k, axis=2)
        v = graph.add("concat", cache, v, axis=2)
        scores = graph.add("dot", q, k, contract=((3,), (3,)), batch=((0, 1), (0, 1)), dtype=np.dtype(np.float32))
        scores = graph.add("add", scores, mask)
        top = graph.add("reduce_max", scores, axes=(3,))
        e = graph.add("exp", graph.add("sub", scores, graph.add("broadcast", top, shape=scores.shape, dims=(0, 1, 2))))
        out = graph.add("dot", e, v, contract=((3,), (2,)), batch=((0, 1), (0, 1)), dtype=np.dtype(np.float32))
        out = graph.add("reshape", graph.add("transpose", out, perm=(0, 2, 1, 3)), shape=(b, s, heads * size))
        x = graph.add("add", x, out)
    assert not graph.scope.checks
    return len(graph.nodes)


def one_hard_question(n: int) -> int:
    """A question with n nested maxima, quotients and products: answered ``Unknown`` when its budget is used up."""
    scope = Scope()
    names = [scope.declare(f"v{i}", min=0) for i in range(n)]
    dim: Any = 0
    for i, v in enumerate(names):
        dim = dim + smax(v // (i + 2), names[i - 1] % (i + 3)) * names[i - 2]
    answer = scope.prove(le(dim, 3 * dim // 2 - names[0]))
    return int(answer.proved)


CASES: dict[str, tuple[Callable[[int], int], tuple[int, int, int]]] = {
    "symbols with as many equalities, 5 queries each": (equalities, (500, 1000, 2000)),
    "affine chain with bounds, 5 queries each": (affine, (500, 1000, 2000)),
    "products: as many facts and queries": (products, (250, 500, 1000)),
    "chain of concats of distinct inputs, all passes": (concats, (125, 250, 500)),
    "distinct input sizes in one compiled graph": (compiled_inputs, (125, 250, 500)),
    "transformer layers, every shape rule": (layers, (250, 500, 1000)),
    "one hard question over so many symbols": (one_hard_question, (40, 80, 160)),
}


def measure(run: Callable[[int], int], n: int) -> tuple[float, float]:
    """CPU seconds (without the memory tracer), and MiB at the peak."""
    begun = time.process_time()
    run(n)
    seconds = time.process_time() - begun
    tracemalloc.start()
    run(n)
    peak = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    return seconds, peak


def figures(quick: bool = False) -> list[dict[str, Any]]:
    """One row a case, with seconds and MiB at each of its sizes (a tenth of them with ``quick``)."""
    symbol("warm")
    rows = []
    for name, (run, sizes) in CASES.items():
        used = tuple(max(4, s // 10) for s in sizes) if quick else sizes
        run(max(4, used[0] // 10))
        measured = [measure(run, n) for n in used]
        rows.append({"case": name, "sizes": used, "seconds": [m[0] for m in measured], "mib": [m[1] for m in measured]})
    return rows


def markdown(rows: list[dict[str, Any]]) -> str:
    """The generated section of the documentation. ``growth`` is time at the largest size over time at the smallest, a quarter of it."""
    lines = ["| case | sizes | seconds | growth | MiB |", "| --- | --- | --- | --- | --- |"]
    for r in rows:
        seconds = " / ".join(f"{s:.3f}" for s in r["seconds"])
        memory = " / ".join(f"{m:.1f}" for m in r["mib"])
        growth = r["seconds"][-1] / max(r["seconds"][0], 1e-9)
        lines.append(f"| {r['case']} | {' / '.join(map(str, r['sizes']))} | {seconds} | {growth:.1f} | {memory} |")
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", metavar="FILE", help="replace the generated section of this file")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="a tenth of the sizes")
    args = parser.parse_args()
    rows = figures(args.quick)
    if args.write:
        replace_section(args.write, "scale", markdown(rows))
    print(json.dumps(rows, indent=1) if args.json else markdown(rows))


if __name__ == "__main__":
    main()
