"""Proofs as data: the checker accepts what the prover wrote down, and refuses what somebody changed."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symbolic import Scope, divides, eq, le, parse_relation, symbol
from symbolic.checker import RULES, ProofError, check
from symbolic.expr import Expr
from symbolic.proof import Branch, Proof, Step
from symbolic.relations import Relation
from tests.symbolic.strategies import random_relation, random_scope
from tests.symbolic.test_scope import PROVED
from tests.symbolic.test_soundness import true_relations

seeds = st.integers(0, 2**48)


def proofs(seed: int, queries: int = 4):
    """Proofs from one random scope, each with the points of a small grid that the scope allows."""
    rng = random.Random(seed)
    scope, points = random_scope(rng)
    relations = [random_relation(rng, rng.choice([1, 2])) for _ in range(queries)] + list(true_relations(rng, 1))
    for rel in relations if points else ():
        answer = scope.prove(rel)
        if answer.proved:
            yield answer.proof(), points


def check_proofs(seed: int) -> int:
    """How many proofs of one random scope were accepted; raises where one was not."""
    count = 0
    for proof, _ in proofs(seed):
        check(proof)
        count += 1
    return count


@settings(max_examples=150, deadline=None)
@given(seeds)
def test_the_checker_accepts_every_proof(seed):
    check_proofs(seed)


@pytest.mark.slow
def test_the_checker_accepts_20000_proofs():
    count = seed = 0
    while count < 20_000:
        count += check_proofs(seed)
        seed += 1
    print(count, "proofs")


@pytest.fixture
def scope():
    sc = Scope()
    for name in "abs":
        sc.declare(name)
    sc.declare("z", min=0)
    sc.declare("y", min=0)
    sc.declare("c", multiple_of=8)
    sc.declare("k", max=16)
    return sc


@pytest.mark.parametrize("text", [line.strip() for line in PROVED.strip().splitlines()])
def test_hand_written_truths_are_accepted(scope, text):
    proof = scope.prove(parse_relation(text)).proof()
    check(proof)
    assert proof.goal == parse_relation(text)
    assert str(proof).strip().splitlines()[-1].split(") ")[1].startswith(text.split()[0][:1]) or len(proof) >= 1


def test_a_proof_reads_as_numbered_steps():
    sc = Scope()
    b, s = sc.declare("b", max=64), sc.declare("s")
    sc.assume(parse_relation("s <= 4*b"), "constraints")
    answer = sc.prove(le(s, 256))
    check(answer.proof())
    assert str(answer.proof()).splitlines() == [
        "(1) b <= 64    [declared]",
        "(2) s <= 4*b    [fact: constraints]",
        "(3) 4*b <= 256    [ranges, from (1)]",
        "(4) s <= 256    [arithmetic, from (2), (3)]",
    ]
    case = sc.prove(parse_relation("b % 2 == 0 or (b + 1) % 2 == 0"))
    assert case.proved and str(case.proof())
    assert not sc.prove(eq(b, s)).proved


def test_a_proof_uses_what_was_known_when_it_was_made(scope):
    a, b = symbol("a"), symbol("b")
    scope.assume(le(a, b), "first")
    answer = scope.prove(le(a, b + 1))
    scope.assume(le(b, 9), "later")
    proof = answer.proof()
    check(proof)
    assert [str(rel) for rel, _ in proof.facts] == ["a <= b"]


def test_facts_of_every_kind_can_be_cited(scope):
    for text in (
        "2*a == 3*b", "s % 4 == 0", "y == 0 or y == 3", "z // 4 == b", "k != 1", "a*s == 24*z", "c % 16 == 8", "z % 4 == 1",
    ):  # fmt: skip
        scope.assume(parse_relation(text), text)
    for text in (
        "a % 3 == 0", "b < a", "s >= 4", "(s + 8) % 4 == 0", "y <= 3", "y != 1", "z <= 4*b + 3", "z >= 4*b", "k >= 2",
        "a*s*b == 24*z*b", "c % 32 == 8 or c % 32 == 24", "z == 4*b + 1", "(a*s) % 24 == 0",
    ):  # fmt: skip
        answer = scope.prove(parse_relation(text))
        assert answer.proved, text
        check(answer.proof())


# --- changed proofs -----------------------------------------------------------------------------------------------------


def changed(proof: Proof, rng: random.Random) -> Proof:
    """``proof`` with one step, at any depth, or the goal altered."""
    if rng.random() < 0.15:
        goal = altered_relation(proof.goal, rng)
        steps = (*proof.steps[:-1], replace(proof.steps[-1], claim=goal))
        return replace(proof, goal=goal, steps=steps)
    return replace(proof, steps=altered_steps(proof.steps, rng))


def altered_steps(steps: tuple[Step, ...], rng: random.Random) -> tuple[Step, ...]:
    if not steps:
        return steps
    i = rng.randrange(len(steps))
    step = steps[i]
    if step.branches and rng.random() < 0.6:
        j = rng.randrange(len(step.branches))
        inner = step.branches[j]
        branch = Branch(inner.assumptions, altered_steps(inner.steps, rng))
        return (
            *steps[:i],
            replace(step, branches=(*step.branches[:j], branch, *step.branches[j + 1 :])),
            *steps[i + 1 :],
        )
    kind = rng.randrange(6)
    if kind == 0:
        return (*steps[:i], *steps[i + 1 :])
    if kind == 1:
        step = replace(step, claim=altered_relation(step.claim, rng))
    elif kind == 2:
        step = replace(step, premises=step.premises[1:])
    elif kind == 3:
        step = replace(step, rule=rng.choice(sorted(RULES)))
    elif kind == 4:
        step = replace(step, data=tuple(altered_data(d, rng) for d in step.data))
    else:
        step = replace(step, branches=step.branches[1:], premises=step.premises[::-1])
    return (*steps[:i], step, *steps[i + 1 :])


def altered_relation(rel: Relation, rng: random.Random) -> Relation:
    if rel.op == "either":
        return Relation("either", rel.args[:-1]) if rel.args else le(1, 0)
    side = rng.randrange(2)
    args = list(rel.args)
    args[side] = args[side] + rng.choice([1, -1, 2])
    return Relation(rel.op, tuple(args))


def altered_data(value, rng):
    if isinstance(value, tuple) and value:
        i = rng.randrange(len(value))
        return (*value[:i], altered_data(value[i], rng), *value[i + 1 :])
    return value + 1 if isinstance(value, int | Expr) else value


def is_true(proof: Proof, points) -> bool:
    return all(proof.goal.holds(p) for p in points)


@settings(max_examples=120, deadline=None)
@given(seeds)
def test_a_changed_proof_is_refused_or_still_true(seed):
    """Whatever is done to a proof: if the checker takes it, its goal holds wherever the declarations and facts do."""
    rng = random.Random(seed)
    for proof, points in proofs(seed, 3):
        for _ in range(12):
            other = changed(proof, rng)
            try:
                check(other)
            except ProofError:
                continue
            assert is_true(other, points), (str(other), str(other.goal))


def test_most_changes_are_refused():
    rng, refused, total = random.Random(5), 0, 0
    for seed in range(40):
        for proof, _ in proofs(seed):
            for _ in range(10):
                other = changed(proof, rng)
                if other == proof:
                    continue
                total += 1
                try:
                    check(other)
                except ProofError:
                    refused += 1
    assert total > 500 and refused > 0.75 * total, (refused, total)


def test_tampering_with_each_part_is_refused():
    sc = Scope()
    b, s = sc.declare("b", max=64), sc.declare("s")
    sc.assume(le(s, 4 * b), "user")
    proof = sc.prove(le(s, 256)).proof()
    check(proof)
    *before, last = proof.steps
    refuse(replace(proof, goal=le(s, 255)))
    refuse(replace(proof, goal=le(s, 255), steps=(*before, replace(last, claim=le(s, 255)))))
    refuse(replace(proof, facts=()))
    refuse(replace(proof, declarations=tuple(replace(d, max=65) if d.name == "b" else d for d in proof.declarations)))
    refuse(replace(proof, steps=()))
    refuse(replace(proof, steps=(*before, last, last)))
    for i, _ in enumerate(before):
        refuse(replace(proof, steps=(*before[:i], *before[i + 1 :], last)))
    forged = Step(99, "as shown", eq(b, 7), ())
    refuse(replace(proof, goal=eq(b, 7), steps=(forged,)))
    refuse(replace(proof, goal=divides(2, b), steps=(replace(forged, rule="multiple", claim=divides(2, b)),)))
    refuse(replace(proof, goal=eq(b, 7), steps=(replace(forged, rule="no such rule"),)))
    defined = Step(1, "definition", eq(b, s), (), ("b",))  # b has a meaning already
    refuse(replace(proof, goal=eq(b, s), steps=(defined,)))


def refuse(proof: Proof) -> None:
    with pytest.raises(ProofError):
        check(proof)


def test_the_checker_does_not_import_the_prover():
    import ast
    from pathlib import Path

    import symbolic

    folder = Path(symbolic.__file__).parent
    for name in ("checker", "proof"):
        tree = ast.parse((folder / f"{name}.py").read_text())
        modules = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
        used = {
            a.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module == "symbolic" for a in n.names
        }
        found = {m.split(".")[1] for m in modules if m and m.startswith("symbolic.")} | used
        assert found <= {"expr", "functions", "relations", "proof"}, name
