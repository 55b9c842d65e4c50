"""Flipped bits in programs with ORDER and SPLIT loops, bound steps, stores that add and tiles of several places: what the verifier lets
through runs without a race, a deadlock or an access out of bounds on the reference executor, and gives the same on the interpreter."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest

from tests.e2e import harness
from tests.vm import test_adds, test_order, test_places
from vm import assembler, interpreter_image, reference, runtime, verifier
from vm.binder import Binder, BoundProgram
from vm.errors import Hazard, ProgramError
from vm.program import Program

CASES = {
    "adds": (test_adds.text(), test_adds.operands(9, 300, 20)),
    "order": (test_order.text(), [harness.random((17,)), harness.random((50,), seed=1)]),
    "places": (test_places.text(), [harness.random((100,))]),
}


def flipped(program: Program, rng: np.random.Generator) -> Program:
    """The program with one or two bits of a template's instructions turned over."""
    number = int(rng.integers(len(program.templates)))
    words = program.templates[number].words.copy()
    for _ in range(int(rng.integers(1, 3))):
        words[rng.integers(2, len(words) - 1)] ^= np.uint64(1) << np.uint64(rng.integers(64))
    templates = list(program.templates)
    templates[number] = dataclasses.replace(templates[number], words=words)
    return dataclasses.replace(program, templates=tuple(templates))


def accepted(program: Program, arrays: list[np.ndarray]) -> BoundProgram | None:
    """The binding that the verifier lets through, or None."""
    try:
        verifier.verify(program)
        binder = Binder(program)
        bound = binder.bind_sizes(binder.check_inputs(arrays))
        verifier.BoundCheck(program)(bound)
    except ProgramError:
        return None
    return bound


@pytest.mark.parametrize("name", CASES)
def test_flipped_bits_are_refused_or_mean_one_thing(name: str, request: pytest.FixtureRequest) -> None:
    written, arrays = CASES[name]
    program, rng = assembler.assemble(written), np.random.default_rng(len(name))
    interpreter_image.compiled(interpreter_image.FIRST_CLASS, interpreter_image.SMALLEST_CLASS)
    seen: Counter[str] = Counter()
    for _ in range(3000 if request.config.getoption("--slow") else 60):
        mutant = flipped(program, rng)
        bound = accepted(mutant, arrays)
        seen["refused" if bound is None else "accepted"] += 1
        if bound is None:
            continue
        try:
            want = reference.run(mutant, bound, arrays, cores=3)
        except Hazard as hazard:  # whether all of a buffer has been written is no matter of the words alone
            assert hazard.kind == "uninitialised read", hazard
            seen["unwritten"] += 1
            continue
        got = runtime.Executable(mutant, "interpreter").launch(arrays)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(np.asarray(a), b, rtol=1e-4, atol=1e-4)
    assert seen["refused"] and seen["accepted"], seen
