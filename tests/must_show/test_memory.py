"""Memory stays flat over launches at random shapes once the largest shape has been seen, results held or dropped."""

from __future__ import annotations

import gc
import os
import random
from collections import deque
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import dvm
from dvm import models
from vm.memory import LENT, OutputSet
from vm.results import LENT_RESULT

MAX_BATCH, MAX_SEQUENCE = 4, 96
STATM = Path("/proc/self/statm")
ALLOWED = 8 << 20  # bytes; a leak of one input or result per launch would be many times this

needs_statm = pytest.mark.skipif(not STATM.exists(), reason="resident memory is read from /proc")


def resident() -> int:
    """Bytes of this process in memory."""
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Block:
    """A small decoder block and random inputs for it."""

    def __init__(self) -> None:
        self.config = models.as_decoder(models.scaled(models.load_config("qwen2.5-0.5b")))
        self.params = models.init_params(self.config)
        x = dvm.spec(
            f"b, s, {self.config.hidden_size}", jnp.float32, b=dvm.Dim(max=MAX_BATCH), s=dvm.Dim(max=MAX_SEQUENCE)
        )
        self.program = dvm.compile(models.prefill_block(self.config), self.params, x)
        self.rng = np.random.default_rng(0)
        self.choose = random.Random(0)

    def launch(self, batch: int, sequence: int) -> object:
        return self.program(
            self.params, self.rng.standard_normal((batch, sequence, self.config.hidden_size), np.float32)
        )

    def random_launch(self) -> object:
        return self.launch(self.choose.randint(1, MAX_BATCH), self.choose.randint(1, MAX_SEQUENCE))


@pytest.fixture(scope="module")
def block() -> Block:
    return Block()


@needs_statm
@pytest.mark.parametrize("held", [0, 3], ids=["dropped", "held"])
@pytest.mark.parametrize("launches", [300, pytest.param(2000, marks=pytest.mark.slow)])
def test_memory_is_flat(block: Block, launches: int, held: int) -> None:
    results: deque[object] = deque(maxlen=held)
    for _ in range(held + 20):  # the largest shape, with as many results held as later
        results.append(block.launch(MAX_BATCH, MAX_SEQUENCE))
    counts = dvm.stats()
    before, highest = resident(), 0
    for _ in range(launches):
        results.append(block.random_launch())
        highest = max(highest, resident())
    used = dvm.stats() - counts
    assert (used.launches, used.xla_compiles, used.compiles) == (launches, 0, 0)
    assert highest - before < ALLOWED, f"{(highest - before) / 2**20:.1f} MiB more after {launches} launches"


def pointers(block: Block) -> dict[object, int]:
    """Where the arenas that belong to the program, not to results, lie."""
    executable = block.program.executable
    found = {("temp", key): array.unsafe_buffer_pointer() for key, array in executable.temps.items()}
    found |= {("input", key): staging.host.ctypes.data for key, staging in executable.staging.items()}
    return found


def test_arenas_stay_where_they_are_while_results_are_held(block: Block) -> None:
    """A donated arena that somebody still sees is copied by XLA, silently; its pointer would change."""
    kept = [block.launch(2, 7), block.launch(3, 40)]
    copies = [np.array(array) for array in kept]
    at: dict[object, int] = {}
    outputs: dict[OutputSet, list[int]] = {}  # JAX frees a result a little late, so that two sets take turns
    for i in range(104):
        result = block.random_launch()
        del result
        assert pointers(block) == at or not i
        at = pointers(block)
        for free in block.program.executable.pool.free:
            now = [array.unsafe_buffer_pointer() for array in free.arenas.values()]
            assert outputs.setdefault(free, now) == now
    assert len(outputs) <= 4
    for array, copy in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_results_of_medium_size_keep_few_arenas() -> None:
    """They are views while few of them are held; more of them are copies, and all keep their values."""
    program = dvm.compile(lambda x: x * 2, dvm.spec("n")).wait()
    n = (LENT_RESULT // 4) + 5
    arrays = [np.arange(n, dtype=np.float32) + i for i in range(7)]
    program(arrays[0])
    made = dvm.stats()
    pool = program.executable.pool
    sets: list[OutputSet] = []
    make = pool.make

    def counted() -> OutputSet:
        sets.append(make())
        return sets[-1]

    pool.make = counted
    held = [program(array) for array in arrays]
    assert pool.lent == LENT
    assert len(sets) <= LENT + 1  # those that are kept, and the one that the others are copied from
    for array, result in zip(arrays, held, strict=True):
        np.testing.assert_array_equal(result, array * 2)
    small = [program(array[: LENT_RESULT // 4 - 1]) for array in arrays]
    assert pool.lent == LENT
    for array, result in zip(arrays, held, strict=True):
        np.testing.assert_array_equal(result, array * 2)
    del held, result
    for _ in range(3):  # JAX frees a result a little late
        small.append(program(arrays[0][:9]))
    gc.collect()
    assert pool.lent == 0
    view = program(arrays[1])
    assert pool.lent == 1
    np.testing.assert_array_equal(view, arrays[1] * 2)
    assert (dvm.stats() - made).xla_compiles == 0


def test_a_result_outlives_the_program() -> None:
    program = dvm.compile(lambda x: x * 2, dvm.spec("n", n=dvm.Dim(max=64)))
    result = program(np.arange(9, dtype=np.float32))
    part = np.asarray(result)[3:5]
    del program, result
    np.testing.assert_array_equal(part, [6, 8])
