"""What a compiled program says about itself: kernels and the operations they hold, cuts and their reasons, passes, facts and checks.

The data is ``Program.debug``, which the compiler fills and a stripped file lacks::

    kernels  [{"name", "ops": [..], "origin": [..], "facts": [..]}]  fusion groups in launch order, with what they rest on; those that
             are run as several kernels at some sizes also have "apart": {"choice", "where", "reason", "kernels": [..]}
    speculation [{"rule", "kernel", "reason"}]           groups that could be so, and why one form is the better one at all sizes
    cuts     [{"from", "to", "value", "reason"}]         merges that fusion tried and refused
    merges   [{"from", "to", "value", "rule"}]           which rule made two one
    passes   [{"name", "before", "after", "notes"}]      those that changed something
    constraints [str]                                    ranges, deduced relations with their cause, launch checks
    jit      [str]                                       what ``dvm.jit`` kept fixed or shares, and why

Every key may be missing. What runs on the host is counted in the program's steps. Which kernels read what another one stores, and so are
cut apart, is read from the steps too; the reason of such a cut is the refused merge over that value, or that no rule merges such a pair.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from vm.binder import BoundProgram
from vm.decode import decode, stored_buffers
from vm.disassembler import kernel_steps, walk
from vm.errors import ProgramError
from vm.program import HostStep, Program
from vm.program.stages import launches

_HEADS = (("kernels", "kernel"), ("templates", "template"), ("launches", "launch"))
_MERGE_LIMIT = 40  # lines of merges in the text form; --json has all


class Kernel(NamedTuple):
    """One fusion group: its name, the operations in it in order, and where they come from."""

    name: str
    ops: tuple[str, ...] = ()
    origin: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()  # relations between sizes that its loops rest on, each with why it holds
    apart: tuple[Kernel, ...] = ()  # the kernels that are run instead ``where`` that holds
    where: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {', '.join(self.ops)}" if self.ops else self.name


@contextlib.contextmanager
def readable() -> Iterator[None]:
    """Around reading debug data, which no checksum of its own protects against a wrong writer: what is malformed is a ``ProgramError``."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProgramError(f"the program's debug data is malformed: {type(error).__name__}: {error}") from error


def kernels(program: Program) -> tuple[Kernel, ...]:
    """The program's kernels; without debug data one per template that a step launches, named by its number."""
    listed = program.debug.get("kernels")
    if listed is not None:
        with readable():
            return tuple(map(_kernel, listed))
    used = dict.fromkeys(step.template for step in kernel_steps(program.steps) if step.alternative == 0)
    return tuple(Kernel(program.templates[t].name or f"template{t}") for t in used)


def _kernel(said: Mapping[str, Any]) -> Kernel:
    apart = said.get("apart", {})
    parts = tuple(map(_kernel, apart.get("kernels", ())))
    ops, origin, facts = (_texts(said.get(part)) for part in ("ops", "origin", "facts"))
    return Kernel(str(said["name"]), ops, origin, facts, parts, str(apart.get("where", "")))


def forms(bound: BoundProgram) -> list[str]:
    """For every part of a program that has several forms: which one runs at these sizes, and why."""
    if not bound.chosen:
        return []
    with readable():
        return _forms(bound)


def _forms(bound: BoundProgram) -> list[str]:
    said: dict[int, list[Mapping[str, Any]]] = {}
    for k in bound.program.debug.get("kernels", ()):
        if "apart" in k:
            said.setdefault(k["apart"]["choice"], []).append(k)
    lines = []
    for number, chosen in enumerate(bound.chosen):
        for k in said.get(number, ()):
            apart = k["apart"]
            names = ", ".join(str(part["name"]) for part in apart["kernels"])
            what = f"{names} instead of {k['name']}" if chosen else f"{k['name']} as one kernel"
            lines.append(f"{what}: apart where {apart['where']}, for in one it takes {apart['reason']}")
        if number not in said:
            lines.append(f"choice {number}: alternative {chosen} of {bound.program.choices[number].count}")
    return lines


def _texts(items: Any) -> tuple[str, ...]:
    return tuple(str(item) for item in items or ())


def cuts(program: Program) -> list[dict[str, str]]:
    """Every place where one kernel reads what an earlier one stores: both kernels, the value, and why they are not one kernel."""
    ops = {k.name: k.ops for kernel in kernels(program) for k in (kernel, *kernel.apart)}
    refused: dict[str, list[str]] = {}
    for cut in program.debug.get("cuts", ()):
        refused.setdefault(str(cut["value"]), []).append(str(cut["reason"]))
    stored = [set(stored_buffers(decode(template))) for template in program.templates]
    writers: dict[int, dict[str, None]] = {}  # several, where each stores a part
    found: dict[tuple[str, str, str], str] = {}
    for step in kernel_steps(program.steps):
        for number, b in enumerate(step.buffers):
            place = _place(program, b)
            if number in stored[step.template]:
                part = program.buffers[b].alias is not None or step.choice is not None
                writers[place] = {**(writers.get(place, {}) if part else {}), step.name: None}
                continue
            for writer in [w for w in writers.get(place, {}) if w != step.name]:
                value = program.buffers[b].name
                reasons = dict.fromkeys(refused.get(value, ())) or [_no_rule(ops, writer, step.name)]
                found.setdefault((writer, step.name, value), "; ".join(reasons))
    return [{"from": a, "to": b, "value": value, "reason": why} for (a, b, value), why in found.items()]


_ON_HOST = "runs on the host: "


def _on_host(cut: Any) -> bool:
    return isinstance(cut, Mapping) and str(cut.get("reason", "")).startswith(_ON_HOST)


def host_operations(program: Program) -> list[dict[str, Any]]:
    """The host functions that the program's steps call, how many steps call each, and why where fusion said so."""
    counts = Counter(step.function for step in walk(program.steps) if isinstance(step, HostStep))
    reasons: dict[str, dict[str, None]] = {}
    for cut in filter(_on_host, program.debug.get("cuts", ())):
        reasons.setdefault(str(cut["to"]).split(" ")[0], {})[str(cut["reason"]).removeprefix(_ON_HOST)] = None
    return [{"op": op, "count": n, "reason": "; ".join(reasons.get(op, ()))} for op, n in counts.items()]


def _place(program: Program, b: int) -> int:
    """The buffer in whose memory buffer ``b`` lies: a reshaped value shares it with its source."""
    alias = program.buffers[b].alias
    return b if alias is None else alias


def _no_rule(ops: Mapping[str, tuple[str, ...]], producer: str, consumer: str) -> str:
    """Why no fusion rule was tried for two kernels."""
    if "dot" in ops.get(consumer, ()) and "dot" in ops.get(producer, ()):
        return "what one product makes, another one reads from memory"
    if "dot" in ops.get(producer, ()):
        return "an epilogue of a matrix product is elementwise"
    return "no fusion rule merges this pair"


class Explanation:
    """The answer of ``prog.explain()``: prints as text; ``to_dict()`` is the same as plain data."""

    def __init__(self, program: Program, constraints: Iterable[str] = (), pass_seconds: Sequence[float] = ()):
        self._program = program
        self._pass_seconds = list(pass_seconds)
        self._constraints = [str(line) for line in constraints]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        with readable():
            return self._to_dict()

    def _to_dict(self) -> dict[str, Any]:
        debug = self._program.debug
        return {
            "kernels": [
                {"name": k.name, "ops": list(k.ops), "origin": list(k.origin), "facts": list(k.facts)}
                | ({"apart": _apart(k)} if k.apart else {})
                for k in kernels(self._program)
            ],
            "speculation": [_plain(s) for s in debug.get("speculation", ())],
            "cuts": cuts(self._program) if debug else [],
            "refused": [_plain(c) for c in debug.get("cuts", ()) if not _on_host(c)],
            "merges": [_plain(m) for m in debug.get("merges", ())],
            "passes": self._passes(debug.get("passes", ())),
            "composites": [_plain(c) for c in debug.get("composites", ())],
            "nodes": _plain(debug.get("nodes", {})),
            "host": host_operations(self._program),
            "constraints": self._constraints,
            "launches": launches(self._program),
            "templates": len(self._program.templates),
            "stripped": not debug,
        }

    def _passes(self, passes: Sequence[Any]) -> list[Any]:
        """With the time that each took, where it is known: in the process that compiled."""
        times = self._pass_seconds if len(self._pass_seconds) == len(passes) else [None] * len(passes)
        return [_plain(p) | ({} if s is None else {"seconds": s}) for p, s in zip(passes, times, strict=True)]

    def __str__(self) -> str:
        with readable():
            return self._text(self.to_dict())

    def _text(self, data: dict[str, Any]) -> str:
        lines = [
            ", ".join(_number(len(data[k]) if k == "kernels" else data[k], n) for k, n in _HEADS)
            + (" (stripped: no names and no reasons are kept)" if data["stripped"] else "")
        ]
        for kernel in data["kernels"]:
            lines.append(
                f"  {kernel['name']}: {_run_lengths(kernel['ops'])}" if kernel["ops"] else f"  {kernel['name']}"
            )
            for place in _short(kernel["origin"], 3):
                lines.append(f"      from {place}")
            for fact in _short(kernel["facts"], 6):
                lines.append(f"      given {fact}")
            if "apart" in kernel:
                lines.append(f"      where {kernel['apart']['where']}, it is {len(kernel['apart']['kernels'])} kernels")
                lines += [f"        {k['name']}: {_run_lengths(k['ops'])}" for k in kernel["apart"]["kernels"]]
        _section(lines, "cuts", _counted(map(_arrow, data["cuts"])), "none")
        _section(lines, "refused merges", _short(_counted(map(_arrow, data["refused"])), _MERGE_LIMIT))
        _section(lines, "merges", _short(_counted(map(_arrow, data["merges"])), _MERGE_LIMIT))
        _section(lines, "one form is enough", _counted(map(_one_form, data["speculation"])))
        _section(lines, "host operations", [_host(h) for h in data["host"]])
        _section(lines, "constraints", data["constraints"])
        _section(lines, "composites", list(map(_composite, data["composites"])))
        _section(lines, "nodes without constants", [f"{when} {n}" for when, n in data["nodes"].items()])
        _section(lines, "passes", [_pass(p) for p in data["passes"]])
        return "\n".join(lines)

    __repr__ = __str__


def decisions(program: Program) -> str:
    """Every merge and every cut, one a line."""
    merges = [f"merged {_arrow(item)}" for item in program.debug.get("merges", ())]
    return "\n".join(merges + [f"refused {_arrow(item)}" for item in program.debug.get("cuts", ())])


def _section(lines: list[str], title: str, items: list[str], empty: str = "") -> None:
    if items or empty:
        lines.append(f"{title}:")
        lines.extend(f"  {item}" for item in items or [empty])


def _plain(item: Any) -> Any:
    return dict(item) if isinstance(item, Mapping) else str(item)


def _arrow(item: Any) -> str:
    if not isinstance(item, Mapping):
        return str(item)
    value = f" (%{item['value']})" if item.get("value") else ""
    return f"{item.get('from', '?')} | {item.get('to', '?')}{value}: {item.get('reason') or item.get('rule', '')}"


def _apart(kernel: Kernel) -> dict[str, Any]:
    return {"where": kernel.where, "kernels": [{"name": k.name, "ops": list(k.ops)} for k in kernel.apart]}


def _one_form(item: Any) -> str:
    if not isinstance(item, Mapping):
        return str(item)
    return f"{item.get('kernel', '?')} ({item.get('rule', '')}): in one kernel it takes {item.get('reason', '')}"


def _number(n: int, noun: str) -> str:
    return f"{n} {noun}" + ("" if n == 1 else "es" if noun.endswith("ch") else "s")


def _host(item: Any) -> str:
    if not isinstance(item, Mapping):
        return str(item)
    reason = f": {item['reason']}" if item.get("reason") else ""
    return f"{item.get('op', '?')} x{item.get('count', 1)}{reason}"


def _composite(item: Any) -> str:
    """``softmax axes=[1]: Softmax at node_7``; of many places the first and the last."""
    if not isinstance(item, Mapping):
        return str(item)
    places = _texts(item.get("origins"))
    where = places if len(places) <= 2 else (places[0], places[-1])
    inside = f" with {', '.join(_texts(item.get('inside')))}" if item.get("inside") else ""
    return f"{item.get('op', '?')} {item.get('parameters', '')}".rstrip() + f"{inside}: {' to '.join(where)}"


def _pass(item: Any) -> str:
    if not isinstance(item, Mapping):
        return str(item)
    notes = item.get("notes") or ""
    if isinstance(notes, Mapping):
        notes = ", ".join(f"{k} {v}" for k, v in notes.items())
    text = f"{item.get('name', '?')}: {item.get('before', '?')} -> {item.get('after', '?')} nodes"
    seconds = item.get("seconds")
    return text + (f", {seconds * 1e3:.1f} ms" if seconds is not None else "") + (f"; {notes}" if notes else "")


def _run_lengths(ops: list[str]) -> str:
    """``add, add, mul`` as ``add x2, mul``."""
    runs: list[list[Any]] = []
    for op in ops:
        if runs and runs[-1][0] == op:
            runs[-1][1] += 1
        else:
            runs.append([op, 1])
    return ", ".join(f"{op} x{n}" if n > 1 else op for op, n in runs)


def _counted(items: Iterable[str]) -> list[str]:
    """Equal lines once, with how often they occurred."""
    counts = Counter(items)
    return [item if n == 1 else f"{item} (x{n})" for item, n in counts.items()]


def _short(items: list[str], limit: int) -> list[str]:
    return items if len(items) <= limit else [*items[:limit], f"... and {len(items) - limit} more"]
