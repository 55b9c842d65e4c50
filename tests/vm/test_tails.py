"""Masks of blocks that overrun, and values that are costly to compute: each is made as often as needed, and the results are the same."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dvm
from tests.e2e.harness import check, random
from vm import cache, specialised
from vm.tails import Tails


def attention(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.softmax(jnp.einsum("hqd,hkd->hqk", q, k) / 4, -1) @ v


@pytest.fixture(scope="module")
def program() -> Any:
    s, t = dvm.Dim(max=200), dvm.Dim(max=300)
    specs = [dvm.spec(f"2, {n}, 16", jnp.float32, **{n: d}) for n, d in (("s", s), ("t", t), ("t", t))]
    return dvm.compile(attention, *specs, tier="specialised")


@pytest.mark.parametrize(("s", "t"), [(1, 1), (17, 127), (64, 129), (65, 300), (130, 255)])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
def test_scores_that_are_not_finite(program: Any, s: int, t: int, value: float) -> None:
    """Rows with such a score are what softmax makes of them, and no other row changes."""
    q, k, v = (random((2, n, 16), seed=i) for i, n in enumerate((s, t, t)))
    q[0, 0] = np.abs(q[0, 0])
    k[0, t // 2] = value
    q[1, s - 1] = value
    with np.errstate(all="ignore"):
        check(np.asarray(program(q, k, v)), np.asarray(jax.jit(attention)(q, k, v)), 1e-5, f"{s} x {t}")


def test_what_vanishes() -> None:
    """Only the exponential of scores less their own maximum, along the dims of the maximum."""
    scores, top, wide, below, weight = (np.zeros(1) for _ in range(5))

    def known(minuend: Any = scores, name: str = "sub", function: str = "exp") -> Tails:
        tails = Tails()
        tails.maximum(scores, top, (1,))
        tails.moved(top, wide)
        tails.binary(name, minuend, wide, below)
        tails.unary(function, below, weight)
        return tails

    assert known().vanishes(weight, (1,))
    assert not known().vanishes(weight, (0, 1))
    assert not known().vanishes(below, (1,)) and not known().vanishes(scores, (1,))
    assert not known(minuend=np.zeros(1)).vanishes(weight, (1,))
    assert not known(name="add").vanishes(weight, (1,)) and not known(function="exp2").vanishes(weight, (1,))


def jaxpr_of(fn: Any, monkeypatch: pytest.MonkeyPatch, *specs: Any) -> str:
    """What is traced for a program's kernels, in the order of their units."""
    monkeypatch.setenv("DVM_CACHE_DIR", "")
    cache.clear()
    found: list[str] = []
    trace = specialised.trace

    def noted(
        kernel: Any,
        table: Any,
        scalars: Any,
        first: int,
        buffers: Any,
        pinned: Any,
        packings: Any,
        arenas: Any,
        *rest: Any,
        **kw: Any,
    ) -> Any:
        found.append(
            str(
                jax.make_jaxpr(lambda s, p, a: trace(kernel, table, s, first, buffers, p, packings, a, *rest, **kw))(
                    scalars, pinned, arenas
                )
            )
        )
        return trace(kernel, table, scalars, first, buffers, pinned, packings, arenas, *rest, **kw)

    monkeypatch.setattr(specialised, "trace", noted)
    dvm.compile(fn, *specs, tier="specialised")
    return "\n".join(found)


def test_weights_are_not_masked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    n = dvm.Dim(max=300)
    specs = [dvm.spec("n, 24", jnp.float32, n=n)] * 2
    with monkeypatch.context() as patch:
        masks = jaxpr_of(lambda x, y: attention(x[None], y[None], y[None]), patch, *specs).count("_where")
    with monkeypatch.context() as patch:
        patch.setattr(Tails, "vanishes", lambda *_: False)
        assert jaxpr_of(lambda x, y: attention(x[None], y[None], y[None]), patch, *specs).count("_where") > masks


def test_costly_values_are_computed_before_they_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cosine of 32 angles for 8 heads: in a loop of its own, so that XLA computes it once an angle."""

    def turned(x: Any, angle: Any) -> Any:
        return x * jnp.cos(angle)[:, None, :]

    r = dvm.Dim(max=100)
    specs = [dvm.spec("r, 8, 32", jnp.float32, r=r), dvm.spec("r, 32", jnp.float32, r=r)]
    with monkeypatch.context() as patch:
        loops = jaxpr_of(turned, patch, *specs).count("while[")
    with monkeypatch.context() as patch:
        patch.setattr(specialised, "COSTLY", frozenset())
        assert jaxpr_of(turned, patch, *specs).count("while[") < loops
    x, angle = random((37, 8, 32)), random((37, 32), seed=1)
    check(np.asarray(dvm.compile(turned, *specs, tier="specialised")(x, angle)), np.asarray(turned(x, angle)), 1e-6)
