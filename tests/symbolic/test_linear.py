"""Linear certificates: found by the simplex method, checked by arithmetic, and true."""

import itertools
import random

from symbolic import Expr, evaluate, symbol
from symbolic.linear import Certificate, certificate, verify

NAMES = ("a", "b", "c")
SYMBOLS = [symbol(n) for n in NAMES]


def random_linear(rng: random.Random) -> Expr:
    while True:
        dim = sum((rng.randint(-3, 3) * s for s in SYMBOLS), rng.randint(-4, 4))
        if isinstance(dim, Expr):
            return dim


def test_certificates_are_true_and_verified():
    rng = random.Random(3)
    found = 0
    for _ in range(400):
        facts, goal = [random_linear(rng) for _ in range(rng.randint(0, 5))], random_linear(rng)
        free = [next(iter(SYMBOLS[0].terms))] if rng.random() < 0.4 else []
        proof = certificate(goal, facts, free)
        if proof is None:
            continue
        found += 1
        assert verify(proof, goal, facts, free)
        for values in itertools.product(range(-6 if free else 0, 7), range(7), range(7)):
            point = dict(zip(NAMES, values, strict=True))
            if all(evaluate(f, point) >= 0 for f in facts):
                assert evaluate(goal, point) >= 0, (str(goal), list(map(str, facts)), point)
    assert found > 80


def test_a_wrong_certificate_is_refused():
    a, b, _ = SYMBOLS
    assert verify(Certificate(1, ((0, 1),)), a + b, [a - 1], [])
    assert not verify(Certificate(1, ((0, 2),)), a + b, [a - 1], [])
    assert not verify(Certificate(1, ((0, -1),)), a + b, [a - 1], [])
    assert not verify(Certificate(1, ()), a - 1, [], [])


def test_rounding_uses_that_dims_are_integers():
    a, b, _ = SYMBOLS
    proof = certificate(a - b, [2 * a - 2 * b + 1], [])
    assert proof is not None and verify(proof, a - b, [2 * a - 2 * b + 1], [])
