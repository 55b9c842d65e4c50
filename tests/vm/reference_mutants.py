"""Single faults put into compiled programs, and what the reference executor makes of them.

Programs are compiled for a chip with small memories, so that small arrays take several steps of every loop; one core runs all of them.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from codegen import compile_graph, local_memory
from dvm import pipeline
from graph_kernel import passes
from vm import isa, reference, reference_core, verifier
from vm.binder import Binder
from vm.chip import Chip
from vm.errors import Hazard, ProgramError
from vm.isa import Pipe
from vm.program import Program, Template

FIELD = {f.name: f for f in isa.SYNC}


@cache
def small_chip(ub: int = 8192, cube: int = 8192, l2: int | None = None) -> Chip:
    """The 910B1 with little local memory (and, given ``l2``, so many bytes of L2)."""
    chip = Chip.load("910B1")
    memory = dataclasses.replace(chip.memory, ub_bytes=ub + chip.ub_reserved_bytes, l1_bytes=2 * cube, l0c_bytes=cube)
    memory = dataclasses.replace(memory, l2_bytes=l2 or chip.l2_bytes)
    return dataclasses.replace(chip, memory=memory)


@dataclass(eq=False)
class Case:
    """A program with inputs of several sizes, its chip, and the right results."""

    name: str
    program: Program
    inputs: list[list[np.ndarray]]
    chip: Chip
    right: list[np.ndarray]

    def run(self, program: Program, chip: Chip | None = None) -> list[np.ndarray]:
        """The results for all inputs, one after the other."""
        binder = Binder(program)
        out: list[np.ndarray] = []
        for arrays in self.inputs:
            bound = binder.bind_sizes(binder.check_inputs(arrays))
            out += reference.run(program, bound, arrays, chip or self.chip, cores=1)
        return out


def compiled(
    name: str,
    fn: Callable[..., Any],
    specs: Sequence[Any],
    inputs: list[list[np.ndarray]],
    monkeypatch: Any,
    **memory: int,
) -> Case:
    """``fn`` compiled for a small chip."""
    chip = small_chip(**memory)
    with monkeypatch.context() as patch:
        patch.setattr(Chip, "load", staticmethod(lambda name: chip))
        for span in ("VECTOR_SPAN", "VECTOR_ROWS", "CUBE_SPAN", "CUBE_ROWS", "CUBE_DEPTH"):
            patch.setattr(local_memory, span, 32)
        traced = pipeline.from_function(fn, specs, {})
        passes.optimise(traced.graph)
        program = compile_graph(traced.graph, {})
    case = Case(name, program, inputs, chip, [])
    case.right = case.run(program)
    return case


def with_words(program: Program, template: int, words: np.ndarray) -> Program:
    """The program with other words in one template."""
    templates = list(program.templates)
    templates[template] = dataclasses.replace(templates[template], words=words)
    return dataclasses.replace(program, templates=tuple(templates))


def instructions(template: Template) -> Iterator[tuple[int, isa.Insn]]:
    """Places and instructions of a template."""
    at = isa.HEAD_WORDS
    while template.words[at]:
        yield at, isa.BY_ID[isa.get(template.words, at, isa.HEAD_ID)]
        at += isa.get(template.words, at, isa.HEAD_LEN)


Edit = tuple[str, Callable[[np.ndarray], None]]


def _put(at: int, field: isa.Field, value: int) -> Callable[[np.ndarray], None]:
    return lambda words: isa.put(words, at, field, value)


def _silence(at: int) -> Callable[[np.ndarray], None]:
    """A sync instruction becomes a barrier on the pipe from L0C, which needs none."""

    def edit(words: np.ndarray) -> None:
        isa.put(words, at, isa.HEAD_ID, isa.TABLE["barrier"].id)
        words[at + 1] = int(Pipe.FIX)

    return edit


def sync_mutants(template: Template) -> Iterator[Edit]:
    """Every set, wait and barrier removed; every event number changed to the next one."""
    words = template.words
    for at, insn in instructions(template):
        for name in ("set", "wait", "back_set", "back_wait"):
            if isa.get(words, at, FIELD[f"{name}_pipe"]):
                event = FIELD[f"{name}_event"]
                yield f"{at} {insn.name}: no {name}", _put(at, FIELD[f"{name}_pipe"], 0)
                yield f"{at} {insn.name}: other {name}", _put(at, event, (isa.get(words, at, event) + 1) % isa.EVENTS)
        if isa.get(words, at, FIELD["barrier"]):
            yield f"{at} {insn.name}: no barrier", _put(at, FIELD["barrier"], 0)
        if insn.family == "sync":
            yield f"{at} {insn.name}: gone", _silence(at)
            if insn.name != "barrier":
                event = insn.fields[2]
                yield f"{at} {insn.name}: other event", _put(at, event, (isa.get(words, at, event) + 1) % isa.EVENTS)


def address_mutants(template: Template) -> Iterator[Edit]:
    """Every tile moved by a block and by an item, every access by an element."""
    words = template.words
    for at, insn in instructions(template):
        for f in insn.fields:
            if insn.name == "tile" and f.name == "address":
                old = isa.get(words, at, f)
                for shift in (32, -32, 4):
                    if old + shift >= 0:
                        yield (
                            f"{at} tile {isa.get(words, at, insn.fields[0])} moved by {shift}",
                            _put(at, f, old + shift),
                        )
            if f.name == "offset" and not any(p.word == at + f.word for p in template.patches):
                old = isa.get(words, at, f)
                for shift in (1, -1):
                    yield f"{at} {insn.name} shifted by {shift}", _put(at, f, old + shift)


def shrink_mutants(template: Template) -> Iterator[Edit]:
    """Every tile declared one element smaller in every dim of more than one."""
    for at, insn in instructions(template):
        if insn.name == "tile":
            for k in range(isa.get(template.words, at, isa.HEAD_TAIL)):
                base = at + insn.fixed_words + k * insn.tail_words
                n = isa.get(template.words, base, insn.tail[0])
                if n > 1:
                    yield f"{at} tile dim {k} of {n - 1}", _put(base, insn.tail[0], n - 1)


@dataclass(eq=False)
class Outcome:
    """What became of one mutant: the hazard's kind, ``refused``, ``harmless`` (same result) or ``silent`` (another result)."""

    case: str
    kernel: str
    what: str
    kind: str
    detail: str = ""


def try_out(case: Case, kernel: str, what: str, run: Callable[[], list[np.ndarray]]) -> Outcome:
    """Runs a mutant."""
    try:
        got = run()
    except Hazard as hazard:
        return Outcome(case.name, kernel, what, hazard.kind, str(hazard))
    except ProgramError as error:
        return Outcome(case.name, kernel, what, "refused", str(error))
    same = all(np.array_equal(a, b, equal_nan=a.dtype.kind not in "iub") for a, b in zip(got, case.right, strict=True))
    return Outcome(case.name, kernel, what, "harmless" if same else "silent")


def mutate(case: Case, edits: Callable[[Template], Iterator[Edit]], verified: bool = False) -> list[Outcome]:
    """All mutants of a case; with ``verified``, the verifier looks at them first."""

    def run(mutant: Program, template: int) -> list[np.ndarray]:
        if verified:
            verifier.verify_template(mutant.templates[template], case.chip)
        return case.run(mutant)

    out = []
    for t, template in enumerate(case.program.templates):
        for what, edit in edits(template):
            words = template.words.copy()
            edit(words)
            mutant = with_words(case.program, t, words)
            out.append(try_out(case, template.name, what, partial(run, mutant, t)))
    return out


def edges(case: Case) -> dict[int, list[tuple[tuple[int, bool], ...]]]:
    """For every template the pairs of a set and its wait that a run uses, each a place and whether it is loop-carried."""
    found: dict[int, dict[tuple, None]] = {}
    current = [0]
    prepared, run_core = reference._Launch.prepared, reference_core.Cores.run_core
    execute = reference_core.Pipes._execute

    def prepare(self: Any, numbered: Any) -> Any:
        cores, *rest = prepared(self, numbered)
        cores.template = numbered.step.template  # type: ignore[attr-defined]
        return cores, *rest

    def run(self: Any, core: int) -> None:
        current[0] = self.template
        run_core(self, core)

    def traced(self: Any, task: Any) -> None:
        for event in self._waits(task):
            _, source = self.events[event][0]
            back = next(b for e, b in task.ready.waits if e == event)
            found.setdefault(current[0], {})[source.ready.at, task.ready.at, event, back] = None
        execute(self, task)

    reference._Launch.prepared, reference_core.Cores.run_core = prepare, run  # type: ignore[method-assign]
    reference_core.Pipes._execute = traced  # type: ignore[method-assign]
    try:
        case.run(case.program)
    finally:
        reference._Launch.prepared, reference_core.Cores.run_core = prepared, run_core  # type: ignore[method-assign]
        reference_core.Pipes._execute = execute  # type: ignore[method-assign]
    return {t: list(pairs) for t, pairs in found.items()}


def without_edge(template: Template, source: int, target: int, event: Any, back: bool) -> np.ndarray:
    """The words without one set and its wait."""
    words = template.words.copy()
    for at, kind, other in ((source, "set", event[1]), (target, "wait", event[0])):
        insn = isa.BY_ID[isa.get(words, at, isa.HEAD_ID)]
        name = f"{'back_' if back else ''}{kind}"
        if insn.name == kind:
            _silence(at)(words)
        elif isa.get(words, at, FIELD[f"{name}_pipe"]) == int(other):
            isa.put(words, at, FIELD[f"{name}_pipe"], 0)
        else:
            raise AssertionError(f"word {at} has no {name}")
    return words


def edge_mutants(case: Case) -> list[Outcome]:
    """Every dependency left out: a set together with its wait, so that no event is left over."""
    out = []
    for t, pairs in edges(case).items():
        template = case.program.templates[t]
        for source, target, event, back in pairs:
            mutant = with_words(case.program, t, without_edge(template, source, target, event, back))
            what = f"no {event[0].name}->{event[1].name} event {event[2]} from word {source} to {target}{' (back)' if back else ''}"
            out.append(try_out(case, template.name, what, partial(case.run, mutant)))
    return out


def report(outcomes: Sequence[Outcome]) -> str:
    """Counts by kind, and every mutant that was not found."""
    counts = Counter(o.kind for o in outcomes)
    lines = [f"{len(outcomes)} mutants: " + ", ".join(f"{n} {kind}" for kind, n in counts.most_common())]
    lines += [f"  {o.kind}: {o.case} {o.kernel}: {o.what}" for o in outcomes if o.kind in ("harmless", "silent")]
    return "\n".join(lines)
