"""Exported models through the interpreter: no compile but that of the image, the expected results, and those of specialised code."""

from __future__ import annotations

import numpy as np
import pytest

import dvm
from tests.must_show import exported

TIERS = 2e-6  # what the tiers may differ by, relative to the largest element, for one kernel; a model is many


@pytest.mark.slow
@pytest.mark.parametrize("name", exported.NAMES)
def test_every_case(name: str) -> None:
    program = dvm.compile(exported.MODELS / f"{name}.onnx", dims=exported.DIMS[name], tier="interpreter")
    for feeds, want in exported.cases(name).values():
        before = dvm.stats()
        got = program.run(None, feeds)
        used = dvm.stats() - before
        assert used.specialised_compiles == 0 and used.interpreter_launches == 1
        for spec, array, same in zip(program.outputs, got, exported.compiled(name).run(None, feeds), strict=True):
            exported.close(array, want[spec.name])
            assert np.abs(array - same).max(initial=0) <= 10 * TIERS * np.abs(same).max(initial=1)
