"""Words with a flipped bit: the verifier refuses them, or the specialised executor gives exactly what the reference executor gives."""

from __future__ import annotations

import dataclasses
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.e2e import harness
from tests.vm.test_assembler import SCALED_SUM
from tests.vm.test_changed_loops import accepted
from vm import assembler, reference
from vm.program import Program
from vm.runtime import Executable

spec, random = harness.spec, harness.random


@cache
def programs() -> list[tuple[Program, list[np.ndarray]]]:
    return [
        (assembler.assemble(SCALED_SUM), [random((70, 8)), random((70, 8), seed=1)]),
        (harness.program_of(lambda x: jax.nn.softmax(x, -1), spec("b, s")), [random((9, 40))]),
        (
            harness.program_of(lambda a, b: jax.nn.relu(a @ b) + 1, spec("m, k"), spec("k, n")),
            [random((9, 40)), random((40, 13))],
        ),
        (harness.program_of(lambda x: (jnp.argmax(x, -1), x[:, ::2] * 2), spec("n, 6")), [random((9, 6))]),
    ]


def flipped(program: Program, rng: np.random.Generator) -> Program:
    """The program with one bit of one word changed."""
    templates = list(program.templates)
    t = int(rng.integers(len(templates)))
    words = templates[t].words.copy()
    words[rng.integers(len(words))] ^= np.uint64(1 << int(rng.integers(64)))
    templates[t] = dataclasses.replace(templates[t], words=words)
    return dataclasses.replace(program, templates=tuple(templates))


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in range(1, 60))])
def test_flipped_bits(seed: int) -> None:
    rng = np.random.default_rng(seed)
    refused = 0
    for i in range(80):
        program, arrays = programs()[i % 4]
        mutant = flipped(program, rng)
        bound = accepted(mutant, arrays)
        if bound is None:
            refused += 1
            continue
        want = reference.run(mutant, bound, arrays)  # no hazard is left
        got = Executable(mutant, "specialised").launch(arrays)
        for a, b in zip(got, want, strict=True):
            harness.check(a, b, 1e-5)
    assert refused > 40
