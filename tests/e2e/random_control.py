"""Control flow for the fuzzer: operations that are ``lax`` loops and branches on ``jax.numpy`` and Python's own on NumPy.

Predicates compare with numbers that sums of random data hardly come near, so that rounding does not choose another branch.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
from jax import lax

Body = Callable[[Any, Any, Any], Any]  # (xp, x, y) -> of x's shape
Operation = Callable[..., Any]
EDGES = (-0.3141, 0.3141, 1.7183)


def select(xp: Any, index: Any, branches: list[Callable[..., Any]], *operands: Any) -> Any:
    """``lax.switch``, and ``lax.cond`` for two branches; the index is clipped."""
    if xp is np:
        return branches[min(max(int(index), 0), len(branches) - 1)](*operands)
    if len(branches) == 2:
        return lax.cond(index > 0, branches[1], branches[0], *operands)
    return lax.switch(index, branches, *operands)


def repeat(xp: Any, trips: Any, body: Callable[[Any, Any], Any], start: Any) -> Any:
    """``lax.fori_loop`` from 0."""
    if xp is np:
        for i in range(int(trips)):
            start = body(i, start)
        return start
    return lax.fori_loop(0, trips, body, start)


def scan(xp: Any, step: Callable[..., Any], start: Any, rows: Any, reverse: bool) -> tuple[Any, Any]:
    """``lax.scan``: ``step(carry, row) -> (carry, result)``."""
    if xp is not np:
        return lax.scan(step, start, rows, reverse=reverse)
    n = rows.shape[0]
    made: list[Any] = [None] * n
    for i in reversed(range(n)) if reverse else range(n):
        start, made[i] = step(start, rows[i])
    return start, np.stack(made) if made else np.zeros((0, *np.shape(start)))


BODIES: tuple[tuple[str, Body], ...] = (
    ("half", lambda xp, x, y: 0.5 * x + 1),
    ("tanh", lambda xp, x, y: xp.tanh(x + y)),
    ("less", lambda xp, x, y: x - 0.25 * y),
    ("larger", lambda xp, x, y: xp.maximum(x, y)),
    ("same", lambda xp, x, y: x),
    ("other", lambda xp, x, y: y),
    ("rms", lambda xp, x, y: x / xp.sqrt(xp.mean(x * x, -1, keepdims=True) + 0.1) + 0 * y),
    ("flip", lambda xp, x, y: xp.flip(x, -1) * 0.5),
    ("sum", lambda xp, x, y: xp.tanh(x) + 0.1 * xp.sum(xp.tanh(y), 0, keepdims=True)),
    ("gram", lambda xp, x, y: 0.125 * xp.matmul(xp.matmul(xp.tanh(x), xp.swapaxes(xp.tanh(y), -1, -2)), xp.tanh(y))),
)


def control(rng: random.Random, values: list[Any], pick: Callable[[], int]) -> tuple[str, Operation, tuple[int, ...]]:
    """A loop or a branch over a value and another one of its shape."""
    i = pick()
    shape = values[i].shape
    j = rng.choice([k for k, v in enumerate(values) if v.shape == shape])
    edge, trips, reverse = rng.choice(EDGES), rng.choice([0, 1, 2, 3]), rng.random() < 0.3
    (a, f), (b, g), (c, h) = (rng.choice(BODIES) for _ in range(3))
    form = rng.choice(["cond", "cond", "by size", "switch", "for", "sized for", "while", "scan", "scan", "nested"])
    if form in ("cond", "by size", "switch"):
        bodies = [f, g, h][: 3 if form == "switch" else 2]

        def branch(xp: Any, x: Any, y: Any) -> Any:
            if form == "by size":
                index = xp.asarray(x.shape[0] % 2)
            else:
                total = xp.sum(xp.tanh(x))
                index = xp.asarray(total > edge).astype(np.int32)
                if form == "switch":
                    index = index + xp.asarray(total > edge + 1).astype(np.int32)
            return select(xp, index, [lambda p, q, body=body: body(xp, p, q) for body in bodies], x, y)

        return f"{form} {a},{b},{c} {edge}", branch, (i, j)
    if form in ("for", "sized for"):

        def loop(xp: Any, x: Any, y: Any) -> Any:
            n = x.shape[0] if form == "sized for" else trips
            return repeat(xp, n, lambda k, v: f(xp, 0.5 * xp.tanh(v), y) + 0.125 * k, x)

        return f"{form} {trips} {a}", loop, (i, j)
    if form == "while":

        def until(xp: Any, x: Any, y: Any) -> Any:
            def more(v: Any) -> Any:
                return xp.sum(v * v) > 1.01718

            def body(v: Any) -> Any:
                return 0.4 * v

            if xp is not np:
                return lax.while_loop(more, body, x) + y
            while more(x):
                x = body(x)
            return x + y

        return "while", until, (i, j)
    if form == "scan":
        what = rng.choice(["carry", "rows", "both"])

        def rows(xp: Any, x: Any, y: Any) -> Any:
            def step(carry: Any, pair: Any) -> Any:
                carry = 0.5 * xp.tanh(carry) + pair
                return carry, carry * pair

            zero = xp.zeros(x.shape[1:], x.dtype)
            carry, made = scan(xp, step, zero, x + y, reverse)
            return carry if what == "carry" else made if what == "rows" else made + carry

        return f"scan {what} reverse {reverse}", rows, (i, j)

    def nested(xp: Any, x: Any, y: Any) -> Any:
        def body(k: Any, v: Any) -> Any:
            index = xp.asarray(k % 2)
            return select(xp, index, [lambda p, q: f(xp, xp.tanh(p), q), lambda p, q: g(xp, xp.tanh(p), q)], v, y)

        return repeat(xp, trips, body, x)

    return f"nested {trips} {a},{b}", nested, (i, j)
