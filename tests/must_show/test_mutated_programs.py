"""Mutated program files end in an error, in the same result, or in what the reference executor gives for the mutated words."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BATCH = 100
SECONDS = 900  # of a batch: far more than any takes; what hangs is ended


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in range(1, 50))])
def test_a_batch(seed: int) -> None:
    command = [sys.executable, "-m", "tests.must_show.mutation_worker", str(seed), str(BATCH)]
    env = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=SECONDS)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"after {lines[-1:]}: {done.stderr[-2000:]}"
    assert len(lines) == BATCH
    assert [line for line in lines if "FAULT" in line] == []
    unmended = [line for line in lines if "as it is" in line]
    assert all("refused" in line for line in unmended if "flipped" not in line or "words" in line)
    assert 0 < sum("agrees" in line for line in lines) < BATCH / 2
