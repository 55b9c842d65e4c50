"""Tiers: the interpreter answers while specialised code is built, then launches switch; submitted launches overlap with binding."""

from __future__ import annotations

import itertools
import os
import pathlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dvm
from tests.e2e.harness import check, random
from vm import background, interpreter_image, runtime

ROOT = pathlib.Path(__file__).parent.parent.parent
_fresh = itertools.count(1)


def function() -> Callable[[Any], Any]:
    """A function whose words no other test has: its code is in no cache."""
    number = next(_fresh) + 0.03125
    return lambda x: jnp.tanh(x) * number + x.sum(-1, keepdims=True)


@pytest.fixture
def active(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """Background work is on, the image is at hand, and the disk holds no specialised code."""
    dvm.stats()
    interpreter_image.compiled(interpreter_image.FIRST_CLASS, interpreter_image.SMALLEST_CLASS)
    monkeypatch.setenv("DVM_BACKGROUND", "1")
    monkeypatch.setenv("DVM_CACHE_DIR", str(tmp_path))


@pytest.fixture
def gate(active: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Jobs in the background begin when this event is set."""
    event, submit = threading.Event(), background.submit

    def later(job: Callable[[], None]) -> Any:
        def held() -> None:
            assert event.wait(120)
            job()

        return submit(held)

    monkeypatch.setattr(background, "submit", later)
    yield event
    event.set()


SPECS = {"with a maximum": dvm.Dim("n", min=0, max=64), "without": dvm.Dim("n", min=0)}


@pytest.mark.parametrize("dim", SPECS)
def test_the_interpreter_answers_until_code_is_ready(dim: str, gate: threading.Event) -> None:
    fn, before = function(), dvm.stats()
    program = dvm.compile(fn, dvm.spec("n, 33", n=SPECS[dim]))
    for n in (3, 64):
        x = random((n, 33))
        check(program(x), jax.jit(fn)(x))
    done = dvm.stats() - before
    assert done["interpreter_launches"] == 2 and done.specialised_compiles == 0
    gate.set()
    program.wait()
    built = dvm.stats()
    assert (built - before).specialised_compiles == 1
    arrays = [random((n, 33)) for n in (0, 1, 50)]
    results = [program(x) for x in arrays]
    after = dvm.stats() - built
    assert after["interpreter_launches"] == 0 and after.xla_compiles == 0
    for x, got in zip(arrays, results, strict=True):
        check(got, fn(x))


def test_the_first_result_needs_no_xla_compile(gate: threading.Event) -> None:
    fn = function()
    x, f = random((5, 33)), dvm.jit(fn)
    before = dvm.stats()
    got = f(x)
    assert (dvm.stats() - before).xla_compiles == 0
    check(got, fn(x))
    gate.set()
    for program in f.programs:
        program.wait()
    before = dvm.stats()
    got = f(x)
    assert (dvm.stats() - before).xla_compiles == 0 and (dvm.stats() - before)["interpreter_launches"] == 0
    check(got, fn(x))


def test_without_an_image_code_is_built_at_once_and_an_image_beside(
    active: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    images: list[tuple[int, int]] = []
    monkeypatch.setattr(interpreter_image, "cached", lambda *classes: False)
    monkeypatch.setattr(background, "build_image", images.append)
    before = dvm.stats()
    program = dvm.compile(function(), dvm.spec("n, 33", n=dvm.Dim(max=64)))
    assert (dvm.stats() - before).specialised_compiles == 1
    assert images == [(interpreter_image.FIRST_CLASS, interpreter_image.SMALLEST_CLASS)]
    program(random((5, 33)))
    assert (dvm.stats() - before)["interpreter_launches"] == 0


def test_cached_code_is_used_directly(active: None, monkeypatch: pytest.MonkeyPatch) -> None:
    fn = function()
    dvm.compile(fn, dvm.spec("n, 33", n=dvm.Dim(max=64)), tier="specialised")
    monkeypatch.setattr(background, "submit", lambda job: pytest.fail("nothing is to be built"))
    before = dvm.stats()
    dvm.compile(fn, dvm.spec("n, 33", n=dvm.Dim(max=64)))(random((5, 33)))
    assert (dvm.stats() - before)["interpreter_launches"] == 0 and (dvm.stats() - before).specialised_compiles == 0


def test_switched_off_code_is_built_ahead(active: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DVM_BACKGROUND", "0")
    before = dvm.stats()
    program = dvm.compile(function(), dvm.spec("n, 33", n=dvm.Dim(max=64)))
    built = dvm.stats()
    assert (built - before).specialised_compiles == 1
    program(random((5, 33)))
    program.wait()
    assert (dvm.stats() - built).xla_compiles == 0 and (dvm.stats() - built)["interpreter_launches"] == 0


def test_what_fails_in_the_background_is_told(gate: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("no code today")

    program = dvm.compile(function(), dvm.spec("n, 33", n=dvm.Dim(max=64)))
    program(random((5, 33)))
    with monkeypatch.context() as patch:
        patch.setattr(runtime.Executable, "_compile", broken)
        gate.set()
        with pytest.raises(RuntimeError, match="no code today"):
            program.wait()
    program(random((5, 33)))  # compiles now


EXIT = """
import numpy as np, dvm, sys
from vm import interpreter_image
interpreter_image.cached = lambda *classes: True
def fn(x):
    return sum(np.float32(k) * x ** 2 / (x + k) for k in range(1, 40))

f = dvm.compile(fn, dvm.spec("n, 7", n=dvm.Dim(max=9)), options={"fusion": False})
assert f.executable._job is not None and not f.executable._job.done()
print("done")
"""


def test_a_process_exits_cleanly_while_code_is_built(tmp_path: pathlib.Path) -> None:
    environment = {**os.environ, "DVM_BACKGROUND": "1", "DVM_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", EXIT], env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_submitted_launches_overlap_with_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call is bound, and a third one refused, while the first one is held up in its launch."""
    program = dvm.compile(lambda x: x * 2, dvm.spec("n, 3", n=dvm.Dim(max=64)))
    events: list[str] = []
    go, launch, bind = threading.Event(), runtime.Executable.launch, runtime.Executable.bind

    def held(self: Any, arrays: Any, bound: Any = None) -> Any:
        events.append(f"launch {len(arrays[0])}")
        assert go.wait(120)
        return launch(self, arrays, bound)

    def noted(self: Any, arrays: Any) -> Any:
        events.append(f"bind {len(arrays[0])}")
        return bind(self, arrays)

    monkeypatch.setattr(runtime.Executable, "launch", held)
    monkeypatch.setattr(runtime.Executable, "bind", noted)
    first = program.submit(np.ones((1, 3), np.float32))
    second = program.submit(np.ones((2, 3), np.float32))
    with pytest.raises(dvm.ShapeError):
        program.submit(np.ones((65, 3), np.float32))
    assert not first.done() and "launch 2" not in events
    assert [e for e in events if e.startswith("bind")] == ["bind 1", "bind 2", "bind 65"]
    go.set()
    assert isinstance(first.result(), jax.Array)
    np.testing.assert_array_equal(second.result(), np.full((2, 3), 2))
    assert events[-1] == "launch 2"


def test_eight_threads_get_their_own_results(active: None) -> None:
    """Four on one program, four on others; the programs switch tiers meanwhile."""
    functions = [function() for _ in range(4)]
    programs = [dvm.compile(fn, dvm.spec("n, 33", n=dvm.Dim(max=64))) for fn in functions]
    wrong: list[BaseException] = []

    def run(k: int) -> None:
        which = k % 4 if k >= 4 else 0
        try:
            for n in range(k + 1, 60, 12):
                x = random((n, 33), seed=k)
                check(np.asarray(programs[which](x)), np.asarray(functions[which](x)), 1e-5)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for program in programs:
        program.wait()
    assert not wrong, wrong


def test_an_image_is_made_by_one_process_for_others() -> None:
    """A process of its own finds what this one put into the cache."""
    interpreter_image.compiled(interpreter_image.FIRST_CLASS, interpreter_image.SMALLEST_CLASS)
    code = (
        "import dvm, numpy as np; p = dvm.compile(lambda x: x * 3, dvm.spec('n, 3'), tier='interpreter'); "
        "b = dvm.stats(); print(np.asarray(p(np.ones((2, 3), np.float32))).sum(), (dvm.stats() - b).xla_compiles)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.stdout == "18.0 0\n", done.stderr
