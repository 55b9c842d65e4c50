"""Fills the outputs shown in ``docs/architecture.md``: ``python -m scripts.make_tour`` (with ``--check``: says whether they are stale).

A line ``<!-- output: NAME -->`` in the page stands before a fenced block, whose text is replaced by what the stage NAME really gives for
``examples/layer.py``.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np

import dvm
from dvm import pipeline
from examples import layer as example
from graph_kernel import passes
from graph_kernel.text import to_text
from vm import isa
from vm.decode import decode, unordered
from vm.disassembler import instructions, kernel_steps
from vm.geometry import Scalars, loops_of

PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
SHAPES = ({"b": 2, "s": 7}, {"b": 16, "s": 300})

OUTPUTS: dict[str, Callable[[], str]] = {}


def output(fn: Callable[[], str]) -> Callable[[], str]:
    """Registers a stage under the function's name."""
    OUTPUTS[fn.__name__] = fn
    return fn


@cache
def traced() -> tuple[str, str, str]:
    """The graph as the front end made it, what the passes did, and the graph after them."""
    traced = pipeline.from_function(example.layer, example.specs, {})
    before = to_text(traced.graph)
    reports = passes.optimise(traced.graph, verify=True)
    did = [
        f"{r.name}: {r.nodes_before} -> {r.nodes_after} nodes; "
        + ", ".join(f"{k} {v}" for k, v in dict(r.notes).items())
        for r in reports
        if r.modified
    ]
    return before, "\n".join(did), to_text(traced.graph)


@cache
def program() -> dvm.CompiledProgram:
    return pipeline.from_function(example.layer, example.specs, {}).compile(start=False)


def bound(dims: dict[str, int]) -> Any:
    return program().bind(dims)


def title(dims: dict[str, int]) -> str:
    return ", ".join(f"{k} = {v}" for k, v in dims.items())


@output
def source() -> str:
    lines = inspect.getsource(example).split('if __name__ == "__main__":')[0]
    return lines[lines.index("def layer") :].strip()


@output
def jaxpr() -> str:
    b, s = jax.export.symbolic_shape("b, s")
    shapes = ((128, 64), (b, s, 128))
    return str(jax.make_jaxpr(example.layer)(*(jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes)))


@output
def graph() -> str:
    return traced()[0].strip()


@output
def pass_reports() -> str:
    return traced()[1]


@output
def optimised_graph() -> str:
    return traced()[2].strip()


@output
def symbols() -> str:
    raw = program().program
    lines = program().constraints
    lines += [f"input size {i} gives {symbol.name}" for i, symbol in zip(solved_from(), raw.symbols, strict=True)]
    return "\n".join(lines)


def solved_from() -> list[str]:
    """From which input axis each symbol is read."""
    raw = program().program
    axes = [f"{spec.name!r} axis {i}" for spec in raw.inputs for i in range(len(spec.dims))]
    return [axes[reg] if reg < len(axes) else f"(computed in register {reg})" for reg in raw.solved]


@output
def kernels() -> str:
    data = program().explain().to_dict()
    lines = [f"{k['name']}: {', '.join(k['ops'])}" for k in data["kernels"]]
    lines += [f"cut   {c['from']} | {c['to']} (%{c['value']}): {c['reason']}" for c in data["cuts"]]
    lines += [f"merge {m['from']} | {m['to']}: {m['rule']}" for m in data["merges"]]
    return "\n".join(lines)


@output
def loops() -> str:
    lines = []
    for kernel in program().program.debug["kernels"]:
        lines.append(f"{kernel['name']}: {'; '.join(kernel['loops'])}; {kernel['local_bytes']:,} bytes of local memory")
    return "\n".join(lines)


@output
def first_kernel() -> str:
    return program().disassemble(0)


def patched_words() -> Iterator[tuple[int, str]]:
    """Words of the first kernel that binding changes, and what the hole in them is."""
    template = program().program.templates[0]
    for patch in template.patches:
        yield patch.word, f"bits [{patch.lo}:{patch.lo + patch.width}] = p{patch.param}"
    for reloc in template.relocs:
        yield reloc.word, f"address of #{reloc.buffer}"


@output
def words() -> str:
    """The loop head and the words after it, as stored and as bound at two shapes."""
    template = program().program.templates[0]
    listing = {int(line.split()[0]): line.strip() for line in instructions(template) if line.split()[0].isdigit()}
    holes: dict[int, list[str]] = {}
    for word, what in patched_words():
        holes.setdefault(word, []).append(what)
    at = min(holes)
    begin = max(place for place in listing if place <= at)
    columns = [bound(dims).kernel_words(0) for dims in SHAPES]
    lines = [f"word  {'in the template':18}" + "".join(f"{title(d):18}" for d in SHAPES).rstrip()]
    for word in range(begin, begin + 8):
        values = [template.words, *columns]
        note = "; ".join(holes.get(word, [])) or (listing[word].split(maxsplit=1)[1] if word in listing else "")
        lines.append(f"{word:4}  " + "".join(f"{int(w[word]):016x}  " for w in values) + note)
    return "\n".join(line.rstrip() for line in lines)


@output
def one_instruction() -> str:
    """One instruction taken apart."""
    template = program().program.templates[0]
    at = next(int(line.split()[0]) for line in instructions(template) if line.split()[1:2] == ["rsqrt"])
    insn = isa.TABLE["rsqrt"]
    head = {f.name: isa.get(template.words, at, f) for f in (isa.HEAD_ID, isa.HEAD_LEN, isa.HEAD_TAIL)}
    fields = {f.name: isa.get(template.words, at, f) for f in insn.fields}
    text = ", ".join(f"{k} {v}" for k, v in (head | fields).items())
    return "\n".join(
        [
            f"word {at}: {int(template.words[at]):016x}",
            f"word {at + 1}: {int(template.words[at + 1]):016x}",
            f"{insn.name}: {text}",
        ]
    )


@output
def binding() -> str:
    lines = []
    raw = program().program
    for dims in SHAPES:
        at = bound(dims)
        lines.append(title(dims))
        for k, step in enumerate(kernel_steps(raw.steps)):
            values = ", ".join(f"p{i} = {v}" for i, v in enumerate(at.values(step.params)))
            kernel = unordered(decode(raw.templates[step.template]))
            table = Scalars(kernel)
            trips = table.trips(at.kernel_words(k))
            runs = [f"axis {loop.axis}: {trips.get(loop.op.at, 1)} blocks" for loop in loops_of(kernel.body)]
            lines.append(f"  {step.name}: {values}; the executor runs {', '.join(runs) or 'no loop'}")
        rows = ", ".join(f"{SPACES[space]} {n}" for (space, _), n in at.arena_rows.items())
        lines.append(f"  lane rows: {rows}; result {at.output_shapes[0]}")
    return "\n".join(lines)


def _spaces() -> dict[int, str]:
    from vm.program import SPACE_NAMES

    return dict(enumerate(SPACE_NAMES))


SPACES = _spaces()


@output
def launch() -> str:
    compiled = dvm.compile(example.layer, *example.specs).wait()
    rng = np.random.default_rng(0)
    w = rng.standard_normal((128, 64), np.float32)
    lines, compiles = [], 0
    for dims in (*SHAPES, {"b": 1, "s": 1}):
        x = rng.standard_normal((dims["b"], dims["s"], 128), np.float32)
        before = dvm.stats()
        y = np.asarray(compiled(w, x))
        compiles += (dvm.stats() - before).xla_compiles
        same = np.allclose(y, example.layer(w, x), rtol=1e-5, atol=1e-5)
        lines.append(f"{title(dims)}: {y.dtype}{list(y.shape)}, {'equal to' if same else 'NOT'} what JAX computes")
    return "\n".join([*lines, f"XLA compiles in these launches: {compiles}"])


BLOCK = re.compile(r"(<!-- output: (\w+) -->\n```\w*\n).*?(```)", re.DOTALL)


def page(text: str) -> str:
    """``text`` with every output block filled in."""
    return BLOCK.sub(lambda m: f"{m[1]}{OUTPUTS[m[2]]()}\n{m[3]}", text)


def main() -> None:
    text = PAGE.read_text()
    new = page(text)
    if "--check" in sys.argv:
        sys.exit(text != new and f"{PAGE.name} is stale: run python -m scripts.make_tour")
    PAGE.write_text(new)


if __name__ == "__main__":
    main()
