"""Which memory results live in: inputs, constants, repeated values, views of each other; no inputs read; scalars; nothing at all."""

import jax.numpy as jnp
import numpy as np
import pytest

from tests.e2e.harness import Case, Compiled, random, spec, verify

A, B = spec("a, b", a=(0, 300), b=(0, 300)), spec("b, a", a=(0, 300), b=(0, 300))
LAUNCHES = [((3, 5),), ((1, 1),), ((0, 4),), ((2, 0),)]
TABLE = np.arange(12, dtype=np.float32).reshape(3, 4)


def case(name, fn, kernels=None, specs=(A,), launches=LAUNCHES):
    return Case(name, fn, specs, launches, kernels=kernels)


CASES = [
    case("an input", lambda x: x),
    case("an input twice", lambda x: (x, x)),
    case("an input and its sum", lambda x: (x, x + 1, x)),
    case("a view of an input", lambda x: x.T),
    case("an input and views of it", lambda x: (x, x.T, x.reshape(x.shape[0], 1, x.shape[1]), jnp.flip(x, 1))),
    case("a value twice", lambda x: (lambda y: (y, y))(jnp.sin(x)), 1),
    case("a value and its reshapes", lambda x: (lambda y: (y, y[None], y[:, None], y))(jnp.sin(x))),
    case("a value and its transpose", lambda x: (lambda y: (y.T, y, y.T))(jnp.sin(x))),
    case("a reshape alone, then the value", lambda x: (lambda y: (y[:, :, None], y * 2))(jnp.sin(x))),
    case("a constant", lambda x: (jnp.asarray(TABLE), x * 2)),
    case("a constant twice, transposed", lambda x: (jnp.asarray(TABLE), jnp.asarray(TABLE), jnp.asarray(TABLE).T)),
    case("a number", lambda x: (3.0 * jnp.ones(()), jnp.float32(2), x)),
    case(
        "a size", lambda x: (jnp.asarray(x.shape[0]), jnp.asarray(x.shape[0] * x.shape[1] + 1), x.size + 0 * jnp.sum(x))
    ),
    case(
        "nothing read",
        lambda x: (jnp.zeros(x.shape), jnp.arange(x.shape[0]), jnp.ones((2, 3)), jnp.full((x.shape[1], 2), 7)),
    ),
    case("static empty", lambda x: (jnp.zeros((0, 3)), x[:, :0], jnp.concatenate([x[:, :0], x], 1))),
    case("sum of an empty", lambda x: (jnp.sum(x[:, :0], 1), jnp.sum(x[:0] * 2), jnp.prod(x[:, :0], 1))),
    case("a tree", lambda x: {"y": [x + 1, (x * 2,)], "z": None, "w": {"v": jnp.sum(x)}}),
    case("an unused input", lambda x, y: x + 1, specs=(A, B), launches=[((3, 5), (5, 3)), ((1, 1), (1, 1))]),
    case("all unused", lambda x, y: jnp.ones(3), specs=(A, B), launches=[((3, 5), (5, 3))]),
    case(
        "intermediate and final",
        lambda x: (lambda y: (y, jnp.sum(y, 1), y / (1 + jnp.sum(y * y, 1, keepdims=True))))(jnp.sin(x)),
    ),
    case(
        "slices of one value",
        lambda x: (lambda y: (y[:1], y[1:], y[::-1]))(jnp.sin(x)),
        specs=(spec("4, b", b=(0, 300)),),
        launches=[((4, 5),), ((4, 1),), ((4, 0),)],
    ),
    case("scalars in and out", lambda s: (s, s + 1, s * s, s[None]), specs=(spec(""),), launches=[((),)]),
    case("a vector of one", lambda s: (s, s[0], s.sum(), s + 1), specs=(spec("1"),), launches=[((1,),)]),
]


@pytest.mark.parametrize("item", CASES, ids=lambda c: c.name.replace(" ", "-"))
def test_words(item):
    verify(item)


def test_on_the_machine():
    """The same kinds in one program that XLA compiles: the results are apart from each other and from the inputs."""

    def fn(x):
        y = jnp.sin(x)
        return x, y, y, y.T, y[None], jnp.asarray(TABLE), x.shape[0] + jnp.sum(x) * 0, jnp.zeros((0, 3)), x

    program = Compiled(fn, A)
    held = []
    for shape in ((3, 5), (1, 1), (0, 4), (257, 129), (2, 0), (3, 5)):
        x = random(shape)
        out = program.check(x)
        copies = [np.array(o) for o in out]
        held.append((out, copies))
        x += 1
        for a, b in zip(out, copies, strict=True):
            np.testing.assert_array_equal(np.asarray(a), b)
    for out, copies in held:  # later launches leave earlier results alone
        for a, b in zip(out, copies, strict=True):
            np.testing.assert_array_equal(np.asarray(a), b)
