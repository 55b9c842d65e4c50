"""Exported models: one compile, every case right, nothing compiled at a launch, nothing on the host; saved and loaded it is the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dvm
from tests.must_show import exported

# Runs every case of saved programs in a process of its own and says what it has imported and compiled.
FRESH = """
import json, sys
import numpy as np
import dvm

folder, names = sys.argv[1], sys.argv[2:]
report = {}
for name in names:
    program = dvm.load(f"{folder}/{name}.dvm")
    given = np.load(f"{folder}/{name}.in.npz")
    results, counts = {}, []
    for case in sorted({key.split("/")[0] for key in given.files}):
        feeds = {spec.name: given[f"{case}/{spec.name}"] for spec in program.inputs}
        for spec, array in zip(program.outputs, program.run(None, feeds)):
            results[f"{case}/{spec.name}"] = array
        counts.append(dvm.stats().xla_compiles)
    np.savez(f"{folder}/{name}.out.npz", **results)
    report[name] = counts
loaded = sorted({name.split(".")[0] for name in sys.modules})
print(json.dumps({"compiles": report, "modules": loaded, "host_ops": dvm.stats().host_ops}))
"""


@pytest.mark.parametrize("name", exported.NAMES)
def test_one_compile_and_every_case(name: str) -> None:
    before = dvm.stats()
    program = exported.compiled(name)
    assert (dvm.stats() - before).compiles <= 1  # none if another test came first
    counts = []
    for feeds, want in exported.cases(name).values():
        before = dvm.stats()
        got = program.run(None, feeds)
        used = dvm.stats() - before
        counts.append((used.xla_compiles, used.host_ops, used.launches, used.compiles))
        for spec, array in zip(program.outputs, got, strict=True):
            exported.close(array, want[spec.name])
    assert counts == [(0, 0, 1, 0)] * len(counts)  # with declared maxima not even the first launch compiles


@pytest.mark.parametrize("name", exported.NAMES)
def test_any_order_gives_the_same_bits(name: str) -> None:
    """Nothing of a launch is left for the next: what the arenas held before does not show."""
    program = exported.compiled(name)
    cases = list(exported.cases(name).values())
    first = [program.run(None, feeds) for feeds, _ in cases]
    copies = [[array.copy() for array in arrays] for arrays in first]
    for (feeds, _), wanted, held in zip(reversed(cases), reversed(copies), reversed(first), strict=True):
        for again, want, old in zip(program.run(None, feeds), wanted, held, strict=True):
            np.testing.assert_array_equal(again, want)
            np.testing.assert_array_equal(old, want)  # a result that is held is not written to


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    """All programs saved, and run in a process that has never seen the compiler."""
    folder = tmp_path_factory.mktemp("saved")
    for name in exported.NAMES:
        exported.compiled(name).save(folder / f"{name}.dvm")
        given = {f"{case}/{k}": v for case, (feeds, _) in exported.cases(name).items() for k, v in feeds.items()}
        np.savez(folder / f"{name}.in.npz", **given)
    command = [sys.executable, "-c", FRESH, str(folder), *exported.NAMES]
    done = subprocess.run(command, cwd=exported.ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


@pytest.mark.parametrize("name", exported.NAMES)
def test_loaded_in_a_fresh_process_it_gives_the_same_bits(fresh: tuple[Path, dict], name: str) -> None:
    folder, report = fresh
    assert not {"sympy", "onnx", "symbolic", "graph_kernel", "codegen"} & set(report["modules"])
    assert report["host_ops"] == 0
    assert len(set(report["compiles"][name])) == 1  # nothing after the first launch
    theirs = np.load(folder / f"{name}.out.npz")
    program = exported.compiled(name)
    for case, (feeds, _) in exported.cases(name).items():
        for spec, array in zip(program.outputs, program.run(None, feeds), strict=True):
            np.testing.assert_array_equal(theirs[f"{case}/{spec.name}"], array)
