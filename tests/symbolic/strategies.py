"""Random dims, relations and scopes for the soundness tests."""

import itertools
import random

from symbolic import (
    Dim,
    Relation,
    Scope,
    broadcast_dim,
    divides,
    either,
    eq,
    floordiv,
    le,
    lt,
    mod,
    ne,
    smax,
    smin,
    symbol,
)
from vm.errors import CompileError

NAMES = ("a", "b", "c")


def random_dim(rng: random.Random, depth: int) -> Dim:
    """A dim over a, b, c with every function of the package in it sooner or later."""
    kind = rng.random()
    if depth == 0 or kind < 0.2:
        return symbol(rng.choice(NAMES)) if rng.random() < 0.75 else rng.randint(-3, 9)
    x = random_dim(rng, depth - 1)
    if kind < 0.45:
        return x + rng.choice([1, 1, -1, 2, 3]) * random_dim(rng, depth - 1)
    if kind < 0.82 and kind >= 0.55:
        divisor = rng.choice([2, 3, 4, 5, 6, 8, 12, -3]) if rng.random() < 0.8 else symbol(rng.choice(NAMES))
        return floordiv(x, divisor) if kind < 0.7 else mod(x, divisor)
    y = random_dim(rng, depth - 1)
    if kind < 0.55:
        return x * y
    return smax(x, y) if kind < 0.88 else smin(x, y) if kind < 0.94 else broadcast_dim(x, y)


def random_relation(rng: random.Random, depth: int) -> Relation:
    """A relation of any kind between random dims."""
    a, b = random_dim(rng, depth), random_dim(rng, rng.choice([1, depth]))
    kind = rng.random()
    if kind < 0.4:
        return eq(a, b) if kind < 0.3 else ne(a, b)
    if kind < 0.75:
        return le(a, b) if kind < 0.65 else lt(a, b)
    if kind < 0.92:
        return divides(rng.choice([2, 3, 4, 6, 8]) if rng.random() < 0.8 else a, b)
    return either(eq(a, b), le(b, a), eq(a, 1))


def random_scope(rng: random.Random) -> tuple[Scope, list[dict[str, int]]]:
    """A scope that declares a, b, c and has up to two facts, and the points of a small grid that it allows."""
    scope = Scope()
    values = []
    for name in NAMES:
        low, step = rng.choice([0, 0, 1, 1, 2, 3]), rng.choice([1, 1, 1, 2, 4, 3])
        remainder = rng.randint(0, step - 1)
        high = rng.choice([None, None, None, low + step + rng.randint(0, 5)])
        scope.declare(name, low, high, step, remainder)
        top = low + 14 if high is None else high
        values.append([v for v in range(low, top + 1) if v % step == remainder])
    points = [dict(zip(NAMES, p, strict=True)) for p in itertools.product(*values)]
    for _ in range(rng.choice([0, 0, 1, 1, 2])):
        fact = random_relation(rng, 1)
        allowed = [p for p in points if fact.holds(p)]
        try:
            scope.assume(fact, "a fact")
        except CompileError:
            assert not allowed, f"{fact} was refused, but {allowed[0]} meets it ({scope.constraints})"
            continue
        points = allowed
    return scope, points
