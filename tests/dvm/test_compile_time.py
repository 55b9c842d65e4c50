"""What a compile does for the sake of its own time: no garbage collection, and the interpreter's image is loaded meanwhile."""

from __future__ import annotations

import gc
import threading

import jax.numpy as jnp
import pytest

import dvm
from benchmarks.layers import stack
from dvm import pipeline
from vm import background, interpreter_image
from vm.binder import Binder
from vm.errors import CompileError
from vm.interpreter import Interpreter


def test_the_collector_is_off_during_a_compile_and_as_it_was_afterwards() -> None:
    seen = []

    def fn(x: jnp.ndarray) -> jnp.ndarray:
        seen.append(gc.isenabled())
        return x + 1

    def bad(x: jnp.ndarray) -> jnp.ndarray:
        raise ValueError("not this one")

    assert gc.isenabled()
    dvm.compile(fn, dvm.spec("n"), tier="reference")
    assert seen == [False] * len(seen) != [] and gc.isenabled()
    with pytest.raises((ValueError, CompileError)):
        dvm.compile(bad, dvm.spec("n"))
    assert gc.isenabled()
    gc.disable()
    try:
        dvm.compile(fn, dvm.spec("n"), tier="reference")
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_collector_stays_off_until_the_last_compile_is_done() -> None:
    first, second = pipeline.uncollected(), pipeline.uncollected()
    with first:
        with second:
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_the_image_that_a_program_needs_is_loaded_beside_its_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[tuple[int, int]] = []
    done = threading.Event()

    def compiled(*classes: int) -> None:
        loaded.append(classes)  # type: ignore[arg-type]
        done.set()

    monkeypatch.setattr(interpreter_image, "compiled", compiled)
    monkeypatch.setattr(interpreter_image, "cached", lambda *classes: True)
    traced = stack(8)
    assert len(traced.graph.nodes) >= pipeline.DEEP
    words = pipeline._pinned_words(traced.graph)
    background.load_image(*words)
    assert not loaded  # tests run without background work
    monkeypatch.setenv("DVM_BACKGROUND", "1")
    background.load_image(*words)
    assert done.wait(60)
    program = traced.compile(start=False).program
    assert loaded == [Interpreter(program, Binder(program)).smallest()]


def test_an_image_that_is_not_cached_is_not_made_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DVM_BACKGROUND", "1")
    monkeypatch.setattr(interpreter_image, "cached", lambda *classes: False)
    monkeypatch.setattr(threading, "Thread", None)  # an attempt to start one fails
    background.load_image(1, 1)
