"""``dvm explain``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dvm.cli.common import emit, json_option, open_program, program_options


@click.command("explain", epilog="Example: dvm explain softmax.dvm --prove 'batch + 1 <= 65'")
@program_options
@click.option(
    "--constraint",
    "constraints",
    multiple=True,
    metavar="RELATION",
    help="A relation that launches meet, as 'h % 8 == 0'.",
)
@click.option(
    "--prove",
    "questions",
    multiple=True,
    metavar="RELATION",
    help="Say whether this follows from the constraints, with the proof.",
)
@json_option
def command(
    path: Path, dim_texts: tuple[str, ...], constraints: tuple[str, ...], questions: tuple[str, ...], as_json: bool
) -> None:
    """Shows the symbols, every deduced relation with its cause, the launch checks, and for each kernel what it holds and rests on.

    With --prove the question is answered from the declared ranges and relations: proved with numbered steps, refuted with sizes that
    break it, or unknown with the fact that is missing.
    """
    program = _compiled(path, dim_texts, constraints) if constraints else open_program(path, dim_texts)
    data: dict[str, Any] = {
        "symbols": [
            {
                "name": s.name,
                "min": s.min,
                "max": s.max,
                "multiple_of": s.multiple_of,
                "remainder": s.remainder,
                "origin": s.origin,
            }
            for s in program.symbols.values()
        ],
        "checks": [{"message": c.message, "origin": c.origin} for c in program.program.checks],
        **program.explain().to_dict(),
    }
    if questions:
        data["answers"] = [_answer(program, text) for text in questions]
    lines = [str(program.explain()), f"launch checks: {len(data['checks'])}"]
    lines += [f"  {c['message']}" + (f"  ({c['origin']})" if c["origin"] else "") for c in data["checks"]]
    for answer in data.get("answers", ()):
        lines += [f"{answer['relation']}: {answer['answer']}", *(f"  {line}" for line in answer["why"])]
    emit(data, "\n".join(lines), as_json)


def _compiled(path: Path, dim_texts: tuple[str, ...], constraints: tuple[str, ...]) -> Any:
    from dvm.cli.common import parse_dims, progress
    from dvm.pipeline import from_onnx_model

    if path.suffix == ".dvm":
        raise click.UsageError(f"--constraint is for models; {path.name} is compiled already")
    with progress(f"compiling {path.name}"):
        return from_onnx_model(path, parse_dims(dim_texts), constraints).compile(start=False)


def _answer(program: Any, text: str) -> dict[str, Any]:
    """The answer to one question, from what the program says about its symbols."""
    from symbolic import Disproved, Proved, Scope, Unknown, parse_relation

    scope = Scope()
    for s in program.symbols.values():
        scope.declare(s.name, s.min, s.max, s.multiple_of, s.remainder, s.origin)
    for line in program.program.debug.get("facts", ()):
        rel, _, origin = line.partition("  (")
        scope.assume(parse_relation(rel), origin.rstrip(")"))
    answer = scope.prove(parse_relation(text))
    if isinstance(answer, Proved):
        return {"relation": text, "answer": "proved", "why": answer.proof().lines()}
    if isinstance(answer, Disproved):
        sizes = ", ".join(f"{n} = {v}" for n, v in answer.counterexample.items())
        return {"relation": text, "answer": "refuted", "why": [f"at {sizes}"]}
    assert isinstance(answer, Unknown)
    return {"relation": text, "answer": "unknown", "why": [f"it would follow from {answer.missing}"]}
