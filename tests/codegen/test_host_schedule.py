"""Steps are ordered so that control passes between device and host as seldom as possible."""

from __future__ import annotations

from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import dvm
from codegen.host_schedule import DEVICE, HOST, _exhaust
from dvm import pipeline


def two_chains(x: jax.Array, y: jax.Array) -> jax.Array:
    """Two independent chains, each device, host (sort), device, host, device, written one after the other."""
    out = []
    for v in (x, y):
        out.append(jnp.sort(jnp.cos(jnp.sort(jnp.sin(v)))) * 2)
    return out[0] + out[1]


def test_independent_chains_cross_together() -> None:
    specs = (dvm.spec("n", jnp.float32, n=dvm.Dim(max=99)), dvm.spec("n", jnp.float32, n=dvm.Dim(max=99)))
    compiled = pipeline.from_function(two_chains, specs, {}).compile("reference", start=False)
    crossings = compiled.report(n=9).to_dict()["crossings"]
    assert crossings["after"] == 4 < crossings["before"]
    x, y = np.random.default_rng(0).standard_normal((2, 17)).astype(np.float32)
    np.testing.assert_allclose(compiled(x, y), two_chains(x, y), rtol=1e-6, atol=1e-6)


def fewest(sides: list[str], after: list[set[int]]) -> int:
    """The fewest changes of side over all orders, by a search over (what is done, which side)."""
    best: dict[tuple[int, str], int] = {}
    todo: deque[tuple[int, str, int]] = deque([(0, DEVICE, 0), (0, HOST, 0)])
    while todo:
        done, side, cost = todo.popleft()
        if best.get((done, side), 99) <= cost:
            continue
        best[done, side] = cost
        todo.append((done, HOST if side == DEVICE else DEVICE, cost + (done > 0)))
        for i, of in enumerate(sides):
            if of == side and not done >> i & 1 and all(done >> j & 1 for j in after[i]):
                todo.append((done | 1 << i, side, cost))
    return min(best[(1 << len(sides)) - 1, side] for side in (DEVICE, HOST) if ((1 << len(sides)) - 1, side) in best)


@given(st.data())
def test_no_order_has_fewer_crossings(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 7))
    sides = data.draw(st.lists(st.sampled_from([DEVICE, HOST]), min_size=n, max_size=n))
    after = [set(data.draw(st.lists(st.integers(0, i - 1), max_size=3))) if i else set() for i in range(n)]
    orders = [_exhaust(sides, after, first) for first in (DEVICE, HOST)]
    for order in orders:
        assert sorted(order) == list(range(n))
        assert all(order.index(j) < order.index(i) for i in range(n) for j in after[i])
    found = min(sum(sides[a] != sides[b] for a, b in zip(o, o[1:], strict=False)) for o in orders)
    assert found == fewest(sides, after)
