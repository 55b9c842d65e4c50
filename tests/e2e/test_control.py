"""Control flow driven from the host: cond, switch, while, fori, scan, nested, at any shape."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.e2e.harness import Case, Compiled, random, spec, verify

X = spec("a, b", a=(0, 300), b=(0, 300))
X1 = spec("a, b", a=(1, 300), b=(1, 300))
LAUNCHES = [((3, 5),), ((1, 1),), ((0, 4),)]
POSITIVE = [((3, 5),), ((1, 1),), ((2, 7),)]


def rnn(x, w):
    def step(h, row):
        h = jnp.tanh(row @ w + h)
        return h, h

    return lax.scan(step, jnp.zeros((w.shape[1],)), x)


def nested(x):
    def outer(i, acc):
        return lax.cond(i % 2 == 0, lambda a: a + x, lambda a: lax.fori_loop(0, 2, lambda j, b: b * 0.5 + 1, a), acc)

    return lax.fori_loop(0, 4, outer, x)


def scans(x):
    total, rows = lax.scan(lambda c, r: (c + r, jnp.sum(c * r)), x[0], x, reverse=True)
    _, pairs = lax.scan(lambda c, r: (c + 1, (r[0] * c, r[1])), 0.0, (x, x.T.T))
    return total, rows, pairs


CASES = [
    Case("cond", lambda x: lax.cond(jnp.sum(x) > 0, lambda: x + 1, lambda: x * 2), [X], LAUNCHES),
    Case(
        "cond with operands",
        lambda x, p: lax.cond(p, lambda a: (a, a * 2), lambda a: (a * 3, a), x),
        [X, spec("", np.bool_)],
        [((3, 5), True), ((3, 5), False)],
    ),
    Case(
        "switch",
        lambda x, i: lax.switch(i, [lambda a: a, lambda a: a + 1, lambda a: a * a], x),
        [X, spec("", np.int32)],
        [((3, 5), np.int32(i)) for i in (-1, 0, 1, 2, 7)],
    ),
    Case(
        "while", lambda x: lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 1.5), (0, x)), [X], LAUNCHES
    ),
    Case("while on data", lambda x: lax.while_loop(lambda y: jnp.sum(y * y) > 1, lambda y: y * 0.5, x), [X], LAUNCHES),
    Case(
        "while swap",
        lambda x: lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[2], s[1]), (0, x, x + 1)),
        [X],
        LAUNCHES,
    ),
    Case("fori over a size", lambda x: lax.fori_loop(0, x.shape[0], lambda i, a: a + i, x), [X1], POSITIVE),
    Case(
        "scan",
        rnn,
        [spec("a, 6", a=(0, 300)), spec("6, 6")],
        [((3, 6), (6, 6)), ((1, 6), (6, 6)), ((0, 6), (6, 6))],
        tolerance=1e-5,
    ),
    Case("scans", scans, [X1], POSITIVE, tolerance=1e-5),
    Case(
        "scan without inputs",
        lambda x: lax.scan(lambda c, _: (c * 0.5, jnp.sum(c)), x, None, length=3),
        [X],
        LAUNCHES,
        tolerance=1e-5,
    ),
    Case("nested", nested, [X], LAUNCHES),
    Case("map", lambda x: lax.map(lambda r: r * jnp.sum(r), x), [X1], POSITIVE, tolerance=1e-5),
    Case(
        "cond of the same value", lambda x: lax.cond(jnp.sum(x) > 0, lambda: (x, x), lambda: (x + 1, x)), [X], LAUNCHES
    ),
    Case("cond then kernel", lambda x: jnp.sin(lax.cond(jnp.sum(x) > 0, lambda: x + 1, lambda: -x)).T, [X], LAUNCHES),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name.replace(" ", "-"))
def test_words(case):
    verify(case)


def test_on_the_machine():
    """A loop in a branch, and a scan over a dynamic axis."""

    def fn(x, w):
        y = lax.cond(jnp.mean(x) > 0, lambda: lax.fori_loop(0, 3, lambda i, a: a * 0.5 + i, x), lambda: -x)
        return y, rnn(x, w)

    program = Compiled(fn, spec("s, 6", s=(1, 300)), spec("6, 6"))
    for s in (1, 2, 17, 5):
        for sign in (1, -1):
            program.check(np.abs(random((s, 6))) * sign, random((6, 6), scale=0.3), tolerance=1e-5)
    assert jax.device_count() >= 1
