"""Legality of the rules about products and siblings: for each condition, functions for which exactly it fails, and a mutant without it.

A refusal is worth a test only if it matters: with the condition switched off, the program must be wrong, or code generation must refuse
what was merged, or work must be repeated.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graph_kernel.fusion import fuse, layout, waste
from tests.e2e import harness
from tests.e2e.harness import check, program_of, random, simulate
from vm.errors import CompileError

LIMITS = dict.fromkeys("bpsr", (0, 300))
SIZES = (0, 1, 7, 64, 65, 129)


def spec(shape):
    """A spec whose letters are symbols that may be 0."""
    return harness.spec(shape, **{k: LIMITS[k] for k in LIMITS if k in shape})


def norm(x):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def ops(program):
    return [k["ops"] for k in program.debug["kernels"]]


def products(program):
    """Products of each kernel."""
    return [kernel.count("dot") for kernel in ops(program)]


def compare(fn, program, *shapes, tile=None, tolerance=1e-5):
    arrays = [random(s, seed=i) for i, s in enumerate(shapes)]
    want = jax.tree_util.tree_leaves(fn(*arrays))
    for got, expected in zip(simulate(program, *arrays, tile=tile), want, strict=True):
        check(got, np.asarray(expected), tolerance, f"{shapes}")


def qkv(x, wq, wk, wv):
    h = norm(x)
    return h @ wq, h @ wk + 1, jnp.tanh(h @ wv)


def gated(x, wg, wu):
    h = norm(x)
    return jax.nn.silu(h @ wg) * (h @ wu)


CASES = {
    "siblings": (lambda x, a, b: (x @ a, jnp.tanh(x @ b)), [(160, 300), (160, 48)]),
    "siblings under a norm": (qkv, [(160, 300), (160, 48), (160, 130)]),
    "gate and up": (gated, [(160, 300), (160, 300)]),
    "prologue of one": (lambda x, w: norm(x) @ w, [(160, 300)]),
    "a prologue that is a result too": (lambda x, w: (norm(x), norm(x) @ w), [(160, 300)]),
    "elementwise prologue": (lambda x, w: (x * 2 + 1) @ w, [(160, 300)]),
}


@pytest.mark.parametrize("name", CASES)
def test_one_kernel(name):
    fn, weights = CASES[name]
    program = program_of(fn, spec("b, 160"), *[spec(f"{k}, {n}") for k, n in weights])
    assert len(ops(program)) == 1, program.debug["cuts"]
    assert sum(products(program)) == len(weights)
    for n in SIZES:
        compare(fn, program, (n, 160), *weights, tile=None if n > 7 else 3)


def test_a_dependent_product_is_no_sibling():
    """Both products read ``x``, but one needs the other's whole result."""

    def fn(x, a, b):
        y = x @ a
        return y, x @ b + jnp.sum(y, axis=0)[:48]

    program = program_of(fn, spec("b, 160"), spec("160, 300"), spec("160, 48"))
    assert len(ops(program)) > 1
    for n in SIZES:
        compare(fn, program, (n, 160), (160, 300), (160, 48))


def test_rows_that_are_equal_only_at_some_sizes_are_no_siblings():
    """``w`` is read by both products, whose rows are b and s: one loop over rows would be wrong wherever b != s."""

    def fn(x, y, w):
        return x @ w, y @ w

    program = program_of(fn, spec("b, 160"), spec("s, 160"), spec("160, 48"))
    assert products(program) == [1, 1]
    assert any("iteration space" in cut["reason"] for cut in program.debug["cuts"])
    for b, s in ((3, 3), (1, 7), (65, 2)):
        compare(fn, program, (b, 160), (s, 160), (160, 48))


def columns(x, w):
    """The norm is of the right operand's columns: it would be computed again for every block of rows."""
    h = w * jax.lax.rsqrt(jnp.sum(w * w, 0, keepdims=True) + 1e-6)
    return x @ h


def test_a_prologue_is_not_repeated(monkeypatch):
    specs = spec("b, 160"), spec("160, s")
    program = program_of(columns, *specs)
    assert len(ops(program)) == 2
    assert any("computed again" in cut["reason"] for cut in program.debug["cuts"])
    for b, s in ((1, 1), (7, 65), (65, 7)):
        compare(columns, program, (b, 160), (160, s))
    monkeypatch.setattr(fuse, "wasteful", lambda *_: "")
    assert len(ops(program_of(columns, *specs))) == 1  # without the condition it is


def rope(x, w):
    """The angles vary with s alone: repeated for every b, 8 functions beside 160 * 48 multiply-adds."""
    return (x @ w) * jnp.cos(jnp.arange(x.shape[1], dtype=jnp.float32))[:, None]


def dear(x, w):
    """The same beside a product of 4 * 3."""
    return (x @ w) * jnp.cos(jnp.arange(x.shape[1], dtype=jnp.float32))[:, None]


def test_little_work_may_be_repeated_and_much_may_not(monkeypatch):
    cheap = spec("b, s, 160"), spec("160, 48")
    program = program_of(rope, *cheap)
    assert len(ops(program)) == 1
    for b, s in ((1, 1), (3, 7), (2, 65)):
        compare(rope, program, (b, s, 160), (160, 48))
    small = spec("b, s, 4"), spec("4, 3")
    assert len(ops(program_of(dear, *small))) == 2
    monkeypatch.setattr(waste, "FREE_SHARE", 0)
    assert len(ops(program_of(dear, *small))) == 1


def test_rows_without_room_stay_a_kernel(monkeypatch):
    """A row of the norm and columns of weights must fit beside each other; without the limits there is no code."""

    def fn(x, w):
        return norm(x) @ w

    def specs(k):
        return spec(f"b, {k}"), spec(f"{k}, 64")

    assert len(ops(program_of(fn, *specs(512)))) == 1
    assert len(ops(program_of(fn, *specs(100_000), speculation=False))) == 2
    monkeypatch.setattr(layout, "ROW_BYTES", 1 << 40)
    monkeypatch.setattr(layout, "OPERAND_BYTES", 1 << 40)
    with pytest.raises(CompileError, match="does not fit in local memory"):
        program_of(fn, *specs(100_000))


def caches(pk, k, pv, v):
    return jnp.concatenate([pk, k], 1), jnp.concatenate([pv, v], 1)


def test_caches_are_one_kernel():
    shapes = ["b, p, 64", "b, s, 64"]
    program = program_of(caches, *[spec(s) for s in shapes * 2])
    assert ops(program) == [["concat", "concat"]]
    for b, p, s in ((0, 1, 1), (1, 0, 1), (2, 7, 0), (3, 65, 16), (1, 1, 1)):
        compare(caches, program, *[(b, p, 64), (b, s, 64)] * 2)


def test_caches_of_different_lengths_are_two(monkeypatch):
    """The lengths p + s and p + r agree only where s = r."""
    shapes = ["b, p, 64", "b, s, 64", "b, p, 64", "b, r, 64"]
    specs = [spec(s) for s in shapes]
    program = program_of(caches, *specs)
    assert len(ops(program)) == 2
    for b, p, s, r in ((2, 3, 4, 4), (2, 3, 4, 9), (1, 0, 1, 0)):
        compare(caches, program, (b, p, 64), (b, s, 64), (b, p, 64), (b, r, 64))
    monkeypatch.setattr(fuse, "same_shape", lambda *_: True)
    mutant = program_of(caches, *specs)
    assert len(ops(mutant)) == 1
    with pytest.raises(Exception):  # noqa: B017  wrong values, or an access outside of its buffer
        compare(caches, mutant, (2, 3, 64), (2, 4, 64), (2, 3, 64), (2, 9, 64))
