"""Large inputs are read where the caller has them: nothing outside of them is touched, and the results are those of copied inputs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dvm
from vm import runtime

# Inputs that end where memory ends: what reads further dies of it, which is why this runs in a process of its own.
GUARDED = """
import ctypes, mmap
import jax, jax.numpy as jnp, numpy as np
import dvm
from vm import runtime

runtime.IN_PLACE = 1
PAGE = mmap.PAGESIZE
kept = []

def at_the_end(values):
    n = -(-values.nbytes // 64) * 64
    size = (-(-n // PAGE) + 1) * PAGE
    memory = mmap.mmap(-1, size + PAGE)
    whole = np.frombuffer(memory, np.uint8)
    kept.append((memory, whole))
    for guard in (whole.ctypes.data, whole.ctypes.data + size):
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(guard), PAGE, 0) == 0
    out = whole[size - n : size - n + values.nbytes].view(values.dtype).reshape(values.shape)
    out[...] = values
    return out

def norm(x):
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)

weight = np.random.default_rng(3).standard_normal((64, 96)).astype(np.float32)
n, m = dvm.Dim(max=70000), dvm.Dim(max=700)
cases = {
    "chain": (lambda x, y: jnp.tanh(x) * y + x, ["n", "n"], dict(n=n), [(70000,), (16385,), (8193,), (8192,), (5,)]),
    "norm": (norm, ["m, 64"], dict(m=m), [(700, 64), (257, 64), (16, 64), (1, 64)]),
    "product": (lambda x: jax.nn.relu(x @ weight), ["m, 64"], dict(m=m), [(700, 64), (257, 64), (17, 64), (1, 64)]),
    "moved": (lambda x: jnp.pad(x.T[::-1], ((0, 1), (2, 0)))[:, 1:], ["m, 24"], dict(m=m), [(699, 24), (64, 24), (1, 24)]),
    "columns": (lambda x: x.sum(0), ["m, 64"], dict(m=m), [(700, 64), (3, 64)]),
}
rng = np.random.default_rng(0)
for name, (fn, specs, dims, shapes) in cases.items():
    program = dvm.compile(fn, *[dvm.spec(text, jnp.float32, **dims) for text in specs], tier="specialised")
    used = 0
    for shape in shapes:
        arrays = [at_the_end(rng.standard_normal(shape).astype(np.float32)) for _ in specs]
        got, want = program(*arrays), fn(*[jnp.asarray(a.copy()) for a in arrays])
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5, err_msg=f"{name} {shape}")
        addresses = {a.ctypes.data for a in arrays}
        used += any(addresses & set(known) for known in program.executable.in_place.values())
    print(name, used, len(shapes))
"""


def test_nothing_outside_of_inputs_is_read() -> None:
    done = subprocess.run([sys.executable, "-c", GUARDED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-2000:]}"
    used = {name: (int(n), int(of)) for name, n, of in map(str.split, done.stdout.splitlines())}
    assert used["chain"] == (4, 5)  # 5 elements are less than a block: a copy
    assert all(used[name][0] >= least for name, least in (("norm", 2), ("product", 4), ("moved", 1))), used


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setattr(runtime, "IN_PLACE", 1)
    return dvm.compile(lambda x, y: x * 2 + y, *[dvm.spec("n", n=dvm.Dim(max=20000))] * 2, tier="specialised")


def test_an_input_may_be_passed_twice_change_and_go_away(program: Any) -> None:
    several = [jax.device_put(np.full(9000 + k, k, np.float32)) for k in range(12)]
    while several:
        k, x = len(several) - 1, several.pop()
        np.testing.assert_array_equal(program(x, x), np.full(9000 + k, 3 * k))
        del x
    memory = runtime.Staging(80, 4).host[:9000]
    for value in (1, 5):
        memory[:] = value
        np.testing.assert_array_equal(program(memory, memory), np.full(9000, 3 * value))
    assert [len(known) for known in program.executable.in_place.values()] == [runtime.KNOWN_ARRAYS] * 2


def test_what_cannot_be_read_in_place_is_copied(program: Any) -> None:
    memory = runtime.Staging(160, 4).host[:20001]
    memory[:] = np.arange(20001)
    for x in (memory[1:9001], memory[0:20000:2], memory[9000::-1], memory[:7]):
        np.testing.assert_array_equal(program(x, x), np.asarray(x) * 3)
    assert not any(program.executable.in_place.values())
    np.testing.assert_array_equal(program(memory[:9000], memory[1:9001]), memory[:9000] * 2 + memory[1:9001])
    assert [len(known) for known in program.executable.in_place.values()] == [1]


def test_results_do_not_change_when_their_memory_is_used_again() -> None:
    program = dvm.compile(lambda x: x + 1, dvm.spec("n", n=dvm.Dim(max=1 << 20)), tier="specialised")
    kept = [program(np.full(n, n, np.float32)) for n in (50_000, 50_001, 50_000)]
    del kept[0]
    later = [program(np.full(n, 7, np.float32)) for n in (50_000, 50_001, 49_999)]
    for got, value in zip([*kept, *later], [50_002, 50_001, 8, 8, 8], strict=True):
        assert np.unique(np.asarray(got)) == value


@pytest.mark.usefixtures("program")
def test_integers_and_halves_are_read_in_place() -> None:
    for dtype in (jnp.int32, jnp.bfloat16, jnp.bool_):
        other = dvm.compile(lambda x: x == x[::-1], dvm.spec("n", dtype, n=dvm.Dim(max=16384)), tier="specialised")
        x = jnp.arange(16384) % 3
        x = x.astype(dtype)
        np.testing.assert_array_equal(other(x), np.asarray(x == x[::-1]))
        assert any(other.executable.in_place.values())


def test_small_inputs_after_growth() -> None:
    """Where an input of known sizes is copied to changes when memory grows."""
    n = dvm.Dim()
    program = dvm.compile(lambda x: x * 2 + 1, dvm.spec("n", jnp.float32, n=n), tier="specialised")
    rng = np.random.default_rng(4)
    for size in (5, 5, 3 << 20, 5, 5):
        x = rng.standard_normal(size).astype(np.float32)
        got = program(x)
        np.testing.assert_array_equal(got, x * 2 + 1)


def test_same_sizes_in_other_memory_orders() -> None:
    """What is remembered of an input's sizes says nothing about its memory."""
    n, m = dvm.Dim(max=300), dvm.Dim(max=300)
    program = dvm.compile(lambda x: x * 2 + 1, dvm.spec("n, m", jnp.float32, n=n, m=m), tier="specialised")
    x = np.random.default_rng(5).standard_normal((24, 10)).astype(np.float32)
    held = []
    for a in (x, np.asfortranarray(x), np.repeat(x, 2, 1)[:, ::2], jnp.asarray(x), x[::-1], x.T.copy().T):
        held.append((program(a), np.asarray(a) * 2 + 1))
    for got, want in held:
        np.testing.assert_array_equal(got, want)
