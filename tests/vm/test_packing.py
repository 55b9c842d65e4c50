"""Weights are passed to products in the order that these read fastest: made once, right for every form, gone with their source."""

from __future__ import annotations

import gc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dvm
from tests.e2e.harness import check, random
from vm import packing
from vm.packing import Packing

ROWS = (0, 1, 2, 15, 16, 17, 31, 32, 33, 64, 127, 129, 256, 300)

# A function of an activation of symbolic rows and of a weight, and the weight's shape.
FORMS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "x @ w": (lambda x, w: x @ w, (128, 192)),
    "x @ w.T": (lambda x, w: x @ w.T, (192, 128)),
    "w @ x.T": (lambda x, w: w @ x.T, (192, 128)),
    "w.T @ x.T": (lambda x, w: w.T @ x.T, (128, 192)),
    "heads": (lambda x, w: jnp.einsum("rk,khd->rhd", x, w), (128, 6, 32)),
    "heads first": (lambda x, w: jnp.einsum("rk,hkd->hrd", x, w), (6, 128, 32)),
    "two contracted": (lambda x, w: jnp.einsum("rab,abn->rn", x.reshape(-1, 8, 16), w), (8, 16, 192)),
    "two contracted, swapped": (lambda x, w: jnp.einsum("rab,ban->rn", x.reshape(-1, 8, 16), w), (16, 8, 192)),
    "two products": (lambda x, w: jax.nn.silu(x @ w) + (x * 2) @ w, (128, 192)),
    "both ways": (lambda x, w: (x @ w) @ w.T, (128, 192)),
    "also added": (lambda x, w: (x @ w) + w.sum(0), (128, 192)),
    "a row added": (lambda x, w: (x @ w) + w[3], (128, 192)),
}


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "packed", packing.Packed())


@pytest.mark.parametrize("name", FORMS)
def test_products_with_weights(name: str) -> None:
    fn, shape = FORMS[name]
    w = random(shape, seed=1)
    spec = dvm.spec("r, 128", jnp.float32, r=dvm.Dim(min=0, max=300))
    program = dvm.compile(fn, spec, jax.ShapeDtypeStruct(shape, jnp.float32), tier="specialised")
    weight = jnp.asarray(w)
    for rows in ROWS:
        x = random((rows, 128), seed=rows)
        want = np.asarray(jax.jit(fn)(x, w))
        check(np.asarray(program(x, weight)), want, 1e-5, f"{name}, {rows} rows")
    check(
        np.asarray(program(random((17, 128), seed=17), w)), np.asarray(jax.jit(fn)(random((17, 128), seed=17), w)), 1e-5
    )


def linear() -> tuple[Any, Any]:
    spec = dvm.spec("r, 128", jnp.float32, r=dvm.Dim(max=64))
    return dvm.compile(
        lambda x, w: x @ w, spec, jax.ShapeDtypeStruct((128, 192), jnp.float32), tier="specialised"
    ), spec


def test_a_weight_is_reordered_once_and_goes_with_its_source() -> None:
    program, _ = linear()
    weight = jnp.asarray(random((128, 192), seed=1))
    for rows in (1, 5, 40):
        program(random((rows, 128)), weight)
    assert len(packing.packed._known) == 1
    program(random((5, 128)), jnp.asarray(random((128, 192), seed=2)))
    gc.collect()
    assert len(packing.packed._known) == 1  # the second one is gone
    del weight
    gc.collect()
    assert not packing.packed._known


def test_weights_can_be_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = random((5, 128)), jnp.asarray(random((128, 192), seed=1))
    packed = np.asarray(linear()[0](x, w))
    monkeypatch.setattr(packing, "packed", packing.Packed())
    monkeypatch.setenv("DVM_PACK", "0")
    program, _ = linear()
    check(np.asarray(program(x, w)), packed, 1e-5)
    assert not packing.packed._known
    assert not any(p for unit in program.executable._all_units() for p in unit.packings)


def test_a_numpy_weight_may_change() -> None:
    program, _ = linear()
    x, w = random((5, 128)), random((128, 192), seed=1)
    program(x, w)
    w[:] = random((128, 192), seed=3)
    check(np.asarray(program(x, w)), x @ w, 1e-5)
    assert not packing.packed._known


def test_two_weights_at_one_address_are_two() -> None:
    """An array that is made where another one was must not be taken for it."""
    program, _ = linear()
    x = random((5, 128))
    for seed in range(20):
        w = random((128, 192), seed=seed)
        check(np.asarray(program(x, jnp.asarray(w))), x @ w, 1e-5)


def packings_of(fn: Any, *shapes: str) -> list[Packing]:
    specs = [dvm.spec(s, jnp.float32) for s in shapes]
    executable = dvm.compile(fn, *specs, tier="specialised").executable
    return [p for unit in executable._all_units() for p in unit.packings if p is not None]


def test_which_weights_are_reordered() -> None:
    (found,) = packings_of(lambda x, w: x @ w, "r, 128", "128, 192")
    assert found.moves and found.shape == (192, 128)
    (found,) = packings_of(lambda x, w: x @ w.T, "r, 128", "192, 128")
    assert not found.moves  # it is in the right order
    assert not packings_of(
        lambda x, w: x @ w + w[0], "r, 128", "128, 192"
    )  # something else reads it in the same kernel
    assert not packings_of(lambda x, w: x @ w[:, :128], "r, 128", "128, 192")  # not all of it is read
    assert not packings_of(lambda x, w: x @ w, "r, 8", "8, 16")  # too small to be worth it


@pytest.mark.parametrize(
    ("memory", "order"),
    [((7, 300), (1, 0)), ((3, 70, 5), (0, 2, 1)), ((70, 3, 130), (2, 0, 1)), ((1, 9, 1, 4), (3, 0, 1, 2))],
)
def test_reordering(memory: tuple[int, ...], order: tuple[int, ...]) -> None:
    array = random(memory)
    out = Packing(memory, order, order, 0, 1).apply(array.reshape(-1))
    np.testing.assert_array_equal(out, array.transpose(order))
    assert out.flags.c_contiguous and out.ctypes.data % 64 == 0
