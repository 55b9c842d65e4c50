"""Runs a batch of mutated program files and prints one line for each: what was done to it and how it ended.

``python -m tests.must_show.mutation_worker SEED COUNT``, in a process of its own, so that a crash or a hang is seen from outside.
"""

from __future__ import annotations

import functools
import struct
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import dvm
from tests.e2e import harness
from tests.vm.test_assembler import SCALED_SUM
from vm import assembler, serialise
from vm.errors import DvmError
from vm.program import Program

HEADER, ENTRY = 64, 48  # bytes of the file's header and of an entry of its table
spec, random = harness.spec, harness.random


@functools.cache
def programs() -> list[tuple[bytes, list[np.ndarray]]]:
    """Files and the arrays that they run on."""
    softmax = harness.program_of(lambda x: jax.nn.softmax(x, -1), spec("b, s"))
    product = harness.program_of(lambda a, b: jax.nn.relu(a @ b) + 1, spec("m, k"), spec("k, n"))
    chosen = harness.program_of(lambda x: (jnp.argmax(x, -1), x[:, ::2] * 2), spec("n, 6"))
    made: list[tuple[Program, list[np.ndarray]]] = [
        (assembler.assemble(SCALED_SUM), [random((70, 8)), random((70, 8), seed=1)]),
        (softmax, [random((9, 40))]),
        (product, [random((9, 40)), random((40, 13))]),
        (chosen, [random((9, 6))]),
    ]
    return [(serialise.dumps(program), arrays) for program, arrays in made]


def flipped(data: bytearray, rng: np.random.Generator) -> bytearray:
    """One to three bits changed, mostly in what the machine reads: structure and words."""
    for _ in range(int(rng.integers(1, 4))):
        data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
    return data


def words_flipped(data: bytearray, rng: np.random.Generator) -> bytearray:
    """A bit changed in the section of words."""
    start, size = section(data, 1)
    data[start + int(rng.integers(size))] ^= 1 << int(rng.integers(8))
    return data


def cut(data: bytearray, rng: np.random.Generator) -> bytearray:
    """The end missing."""
    return data[: int(rng.integers(len(data)))]


def swapped(data: bytearray, rng: np.random.Generator) -> bytearray:
    """Two sections, or two stretches of one, in each other's place."""
    if rng.random() < 0.5:
        i, j = (HEADER + ENTRY * int(k) for k in rng.choice(3, 2, replace=False))
        half = slice(16, 32) if rng.random() < 0.5 else slice(0, 16)  # offset and length, or the name
        a, b = (slice(k + half.start, k + half.stop) for k in (i, j))
    else:
        start, size = section(data, int(rng.integers(2)))
        n = min(8 * int(rng.integers(1, 5)), size // 2)
        i, j = sorted(int(k) for k in rng.choice(max(1, (size - n) // 8), 2, replace=True))
        a, b = slice(start + 8 * i, start + 8 * i + n), slice(start + 8 * j, start + 8 * j + n)
    data[a], data[b] = bytes(data[b]), bytes(data[a])
    return data


def section(data: bytearray, k: int) -> tuple[int, int]:
    """Offset and length of a section."""
    start, size = struct.unpack_from("<QQ", data, HEADER + ENTRY * k + 16)
    return start, size


def results(path: Path, tier: str, arrays: list[np.ndarray]) -> list[np.ndarray] | str:
    """What a file gives, or its error."""
    try:
        program = dvm.load(path, tier=tier)
        feeds = dict(zip([s.name for s in program.inputs], arrays, strict=False))
        return program.run(None, feeds)
    except DvmError as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    except Exception as error:
        return f"FAULT: {type(error).__name__}: {error}".splitlines()[0]


def agree(got: list[np.ndarray], want: list[np.ndarray]) -> bool:
    """Whether two executors' results are equal up to rounding."""
    try:
        for a, b in zip(got, want, strict=True):
            harness.check(a, b, 1e-5)
    except (AssertionError, ValueError):
        return False
    return True


def verdict(path: Path, mended: bool, arrays: list[np.ndarray], original: list[np.ndarray]) -> str:
    """``refused``, ``same`` or ``agrees``; anything else is a fault."""
    got = results(path, "specialised", arrays)
    if isinstance(got, str):
        return f"refused {got}"
    if not mended:
        return "same" if agree(got, original) else "FAULT: an unnoticed change"
    want = results(path, "reference", arrays)
    if isinstance(want, str):
        return f"FAULT: the reference executor says {want}"
    return "agrees" if agree(got, want) else "FAULT: the executors differ"


def main(seed: int, count: int) -> None:
    """Prints ``kind mended verdict`` for each of ``count`` mutants."""
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mutant.dvm"
        originals = []
        for data, arrays in programs():
            path.write_bytes(data)
            originals.append(results(path, "reference", arrays))
        for i in range(count):
            (data, arrays), original = programs()[i % 4], originals[i % 4]
            change = (flipped, words_flipped, cut, swapped, words_flipped)[i % 5]
            mended = bool(rng.random() < 0.6)
            mutant = bytes(change(bytearray(data), rng))
            print(change.__name__, "mended" if mended else "as it is", end=": ", flush=True)
            if mended:
                try:
                    mutant = serialise.mend(mutant)
                except DvmError as error:
                    print(f"refused {type(error).__name__} while mending")
                    continue
            path.write_bytes(mutant)
            print(verdict(path, mended, arrays, original), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
