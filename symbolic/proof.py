"""A proof as data: declarations, facts, a goal, and steps that ``checker.check`` accepts without knowing how they were found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from symbolic import relations
from symbolic.expr import Dim, Expr, make
from symbolic.relations import Relation

FALSE = Relation(relations.EITHER, ())  # no alternative is left: the end of a case that cannot happen


@dataclass(frozen=True)
class Branch:
    """One case: what it assumes (with the ids under which its steps refer to that), and steps of which the last one is the claim."""

    assumptions: tuple[tuple[int, Relation], ...]
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Step:
    """``claim`` follows from the claims of ``premises`` by ``rule``; ``data`` is what the rule needs to be checked without search."""

    id: int
    rule: str
    claim: Relation
    premises: tuple[int, ...] = ()
    data: tuple[Any, ...] = ()
    branches: tuple[Branch, ...] = ()

    def uses(self) -> Iterator[int]:
        """Ids of all steps that this one relies on, those inside its cases included."""
        yield from self.premises
        for branch in self.branches:
            for step in branch.steps:
                yield from step.uses()


@dataclass(frozen=True)
class Declaration:
    """``min <= name <= max`` and ``name % multiple_of == remainder``."""

    name: str
    min: int
    max: int | None = None
    multiple_of: int = 1
    remainder: int = 0

    def relations(self) -> tuple[Relation, ...]:
        """What the declaration says."""
        from symbolic.expr import symbol

        s = symbol(self.name)
        found = [relations.le(self.min, s)]
        if self.max is not None:
            found.append(relations.le(s, self.max))
        if self.multiple_of > 1:
            found.append(relations.divides(self.multiple_of, s - self.remainder))
        return tuple(found)


@dataclass(frozen=True)
class Proof:
    """``goal`` follows from ``declarations`` and ``facts`` (each with who said so) by ``steps``."""

    goal: Relation
    declarations: tuple[Declaration, ...]
    facts: tuple[tuple[Relation, str], ...]
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """Numbered lines that a person can follow: every claim with its rule and what it rests on."""
        return list(_lines(self.steps, self, {}, {}, "", ""))

    def __len__(self) -> int:
        return sum(_size(step) for step in self.steps)


def _size(step: Step) -> int:
    return 1 + sum(_size(s) for b in step.branches for s in b.steps)


def _lines(
    steps: tuple[Step, ...], proof: Proof, numbers: dict[int, str], texts: dict[int, str], prefix: str, indent: str
) -> Iterator[str]:
    i = 0
    for step in steps:
        again = texts.get(step.premises[0]) if len(step.premises) == 1 and not step.branches else None
        if again == shown(step.claim) and (i or prefix):
            numbers[step.id] = numbers[step.premises[0]]  # the same in another form: nothing to read
            texts[step.id] = again
            continue
        i += 1
        number = f"{prefix}{i}"
        numbers[step.id] = number
        for k, branch in enumerate(step.branches):
            here = f"{number}{'abcdefghijklmnopqrstuvwxyz'[k] if k < 26 else f'[{k}]'}"
            for j, (key, rel) in enumerate(branch.assumptions):
                numbers[key] = f"{here}{j}" if len(branch.assumptions) > 1 else here
                texts[key] = shown(rel)
                yield f"{indent}  case {numbers[key]}: {shown(rel)}"
            yield from _lines(branch.steps, proof, numbers, texts, f"{here}.", indent + "    ")
        texts[step.id] = shown(step.claim)
        origin = next((o for rel, o in proof.facts if step.rule == "fact" and rel == step.claim), "")
        of = [f"({numbers.get(p, '?')})" for p in dict.fromkeys(step.premises)]
        why = step.rule + (f", from {', '.join(of)}" if of else "") + (f": {origin}" if origin else "")
        yield f"{indent}({number}) {shown(step.claim)}    [{why}]"


def shown(rel: Relation) -> str:
    """A relation as a person writes it: no differences with zero."""
    if rel == FALSE:
        return "impossible"
    if rel.op == relations.EITHER:
        return " or ".join(map(shown, rel.args))
    a, b = rel.args
    if rel.op in (relations.EQ, relations.NE, relations.LE, relations.LT) and (a == 0 or b == 0):
        left, right = _sides(b - a)
        return str(Relation(rel.op, (left, right)))
    return str(rel)


def _sides(p: Dim) -> tuple[Dim, Dim]:
    if not isinstance(p, Expr):
        return (-p, 0) if p < 0 else (0, p)
    left = make({m: -c for m, c in p.terms.items() if c < 0})
    right = make({m: c for m, c in p.terms.items() if c > 0})
    return left, right


def pruned(proof: Proof) -> Proof:
    """Without the steps that the goal does not rest on."""
    return replace(proof, steps=_prune(proof.steps, set()))


def _prune(steps: tuple[Step, ...], wanted: set[int]) -> tuple[Step, ...]:
    kept: list[Step] = []
    for step in reversed(steps):
        if not kept or step.id in wanted:
            inner = tuple(replace(b, steps=_prune(b.steps, wanted)) for b in step.branches)
            step = replace(step, branches=inner)
            wanted.update(step.uses())
            kept.append(step)
    return tuple(reversed(kept))
