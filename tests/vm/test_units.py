"""Kernels that follow each other share an executable; none is compiled more often for it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dvm
from vm import cache, runtime, specialised, unit_code
from vm.hlo import copies_arenas, narrow_products
from vm.units import MOST, lengths


@pytest.mark.parametrize(
    ("kernels", "expected"),
    [
        ("", []),
        ("a", [1]),
        ("abcdef", [6]),
        ("abcdefgh", [MOST, 2]),
        ("xabcdabcdy", [1, 4, 4, 1]),  # two equal layers
        ("xyabababz", [2, 2, 2, 2, 1]),
        ("abcad", [1, 2, 1, 1]),  # what comes twice stays alone
        ("aaaa", [1, 1, 1, 1]),
        ("abacabac", [1] * 8),
    ],
)
def test_lengths(kernels: str, expected: list[int]) -> None:
    assert lengths(kernels, Counter(kernels)) == expected


@pytest.mark.parametrize("seed", range(40))
def test_no_kernel_is_compiled_more_often(seed: int) -> None:
    rng = np.random.default_rng(seed)
    layer = list(rng.integers(0, 6, rng.integers(1, 9)))
    kernels = [*rng.integers(0, 9, 4), *layer * int(rng.integers(1, 5)), *rng.integers(0, 9, 3), *layer]
    at, units = 0, set()
    for n in lengths(kernels, Counter(kernels)):
        assert 1 <= n <= MOST
        units.add(tuple(kernels[at : at + n]))
        at += n
    assert at == len(kernels)
    assert sorted(k for unit in units for k in unit) == sorted(set(kernels))


def test_copies_of_arenas_are_found() -> None:
    def code(fn: Any) -> str:
        text = jax.jit(fn, donate_argnums=0).lower(jnp.zeros(64 * 128)).compile().as_text()
        assert text is not None
        return text

    two = code(lambda a: (a.at[:2].set(1.0), a.at[5:9].set(2.0)))  # one can be in place, not both
    assert copies_arenas(two, [64]) and not copies_arenas(two, [65])
    assert not copies_arenas(code(lambda a: a.at[:2].set(1.0)), [64])
    assert copies_arenas("%copy.1 = f32[64,128]{1,0} copy(%bitcast)", [64])


def layers(x: Any, *weights: Any) -> Any:
    for w in weights:
        x = jnp.tanh(x @ w) @ w + x  # a product that reads a product: two kernels
    return x


def compiled(n: int, hidden: int) -> tuple[Any, list[np.ndarray], int]:
    weights = [np.random.default_rng(k).standard_normal((hidden, hidden)).astype(np.float32) / 9 for k in range(n)]
    rows = dvm.spec(f"m, {hidden}", m=dvm.Dim(min=0, max=40))
    before = dvm.stats()
    program = dvm.compile(layers, rows, *[dvm.spec(f"{hidden}, {hidden}")] * n, tier="specialised")
    return program, weights, (dvm.stats() - before).specialised_compiles


def check(program: Any, weights: list[np.ndarray], hidden: int) -> None:
    before = dvm.stats()
    for m in (0, 1, 17, 40):
        x = np.random.default_rng(m).standard_normal((m, hidden)).astype(np.float32)
        want = x.astype(np.float64)
        for w in weights:
            want = np.tanh(want @ w) @ w + want
        np.testing.assert_allclose(program(x, *weights), want, rtol=2e-4, atol=2e-4)
    assert (dvm.stats() - before).xla_compiles == 0


def test_kernels_share_an_executable() -> None:
    program, weights, built = compiled(2, 24)
    units = list(program.executable._all_units())
    assert built <= len(units) < sum(len(unit.parts) for unit in units)
    check(program, weights, 24)


def test_a_unit_whose_arenas_would_be_copied_is_compiled_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DVM_CACHE_DIR", "")  # what is cached is not looked at again
    cache.clear()
    monkeypatch.setattr(unit_code.hlo, "copies_arenas", lambda hlo, rows: True)
    program, weights, built = compiled(1, 28)
    (unit,) = program.executable._all_units()
    assert len(unit.parts) == 2 and built == 3
    check(program, weights, 28)
    assert unit.code is runtime.APART


HLO = """%fused (p: bf16[8,4]) -> f32[8,4] {
  %p = bf16[8,4]{1,0} parameter(0)
  ROOT %d = f32[8,4]{1,0} dot(%p, %p), lhs_contracting_dims={1}
}

ENTRY %main (a: bf16[8,4]) -> f32[8,4] {
  %a = bf16[8,4]{1,0} parameter(0)
  %w = f32[8,4]{1,0} convert(%a)
  %f = f32[8,4]{1,0} fusion(%a), kind=kCustom, calls=%fused
  ROOT %e = f32[8,4]{1,0} dot(%w, %f), lhs_contracting_dims={1}
}
"""


def test_products_of_16_bits_that_xla_leaves_over_are_found():
    assert not narrow_products(HLO) and narrow_products(HLO.replace("dot(%w, %f)", "dot(%a, %f)"))


def of_fixed_sizes(x: Any, a: Any, b: Any, c: Any) -> Any:
    h = jax.nn.softmax(x @ a, -1)
    y = h @ b + x
    return jax.nn.gelu(y) @ c, y


def test_kernels_without_loops_share_an_executable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores that stand in the open would be fused into every reader of the arena, which is then copied for each of them."""
    monkeypatch.setenv("DVM_CACHE_DIR", "")
    shapes = [(1, 256), *[(256, 256)] * 3]
    specs = [jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes]
    arrays = [np.random.default_rng(i).standard_normal(s, np.float32) / 8 for i, s in enumerate(shapes)]

    def code() -> tuple[int, set[Any]]:
        cache.clear()
        program = dvm.compile(of_fixed_sizes, *specs, tier="specialised")
        for got, want in zip(program(*arrays), of_fixed_sizes(*map(jnp.asarray, arrays)), strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
        return len(program.kernels), {unit.code for unit in program.executable.plan}

    kernels, together = code()
    assert kernels > 1 and len(together) == 1 and runtime.APART not in together
    monkeypatch.setattr(specialised.Tracer, "stores_outside_of_loops", lambda self: False)
    assert code()[1] == {runtime.APART}
