"""Rows 19, 23, 24, 26: what depends on shapes, expressions that others get wrong, and branches on data."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import dvm
from symbolic import Scope, lower, parse
from tests.cases.registry import further, value
from tests.cases.tools import Probe, check_launch, f32, model, no_compile, one_compile
from tests.e2e.harness import check, random, simulate
from tests.e2e.harness import program_of as words_of
from vm.intcode import Builder

MASK = lambda n, k: (np.arange(n) < k).astype(np.float32)  # noqa: E731


@value(19)
def test_shapes_used_by_two_branches():
    m = model("""f (float[b, s] x, float[s, k] w) => (float[i, j] y, float[t] z) {
        h = Shape(x)  one = Constant<value = int64[1] {1}>()  s1 = Gather(h, one)  u = Exp(x)  v = MatMul(u, w)
        l = Shape(w)  k1 = Gather(l, one)  n = Add(s1, k1)  f = ConstantOfShape(n)  z = Add(f, f)
        m2 = Constant<value = int64[1] {-1}>()  g = Concat<axis = 0>(m2, k1)  y = Reshape(v, g) }""")
    with one_compile():
        program = dvm.compile(m, dims={n: dvm.Dim(max=64) for n in "bsk"})
        with no_compile():
            for b, s, k in ((1, 1, 1), (3, 5, 2), (2, 7, 64)):
                want = lambda x, w: (np.exp(x) @ w, np.zeros(x.shape[1] + w.shape[1]))  # noqa: E731
                check_launch(program, want, random((b, s)), random((s, k), seed=1))


ROW_19 = [
    Probe(
        "numbers of a size that the data gives, before and after its mask",
        """f (float[n] x, float[n] m) => (float[k] y, int64[1] count, float[n] z, float[k] w) {
        one = Constant<value = int64[1] {1}>()  i = NonZero(m)  s = Shape(i)  count = Gather(s, one)
        f = ConstantOfShape<value = float[1] {2.5}>(count)  y = Exp(f)  z = Exp(x)  w = Mul(y, y) }""",
        lambda x, m: (
            np.exp(np.full(int(m.sum()), 2.5)),
            np.asarray([int(m.sum())]),
            np.exp(x),
            np.exp(np.full(int(m.sum()), 5.0)),
        ),
        good=[((5, 0),), ((5, 3),), ((0, 0),), ((130, 129),)],
        inputs=lambda at: (random((at[0],)), MASK(*at)),
    ),
    Probe(
        "positions up to a sum of sizes, read by a lookup and by a comparison",
        """f (float[a, 2] x, float[b, 2] y) => (float[c, 2] u, bool[c] v) {
        j = Concat<axis = 0>(x, y)  h = Shape<end = 1>(j)  z = Constant<value = int64 {0}>()  o = Constant<value = int64 {1}>()
        n = Squeeze(h)  r = Range(z, n, o)  l = Sub(n, o)  q = Sub(l, r)  u = Gather(j, q)  v = Less(r, q) }""",
        lambda x, y: (np.concatenate([x, y])[::-1], np.arange(len(x) + len(y)) < np.arange(len(x) + len(y))[::-1]),
        good=[((1, 2), (1, 2)), ((3, 2), (4, 2))],
    ),
    Probe(
        "a size as a number in two branches that join again",
        lambda x: (jnp.sum(x, 0) / x.shape[0] + jnp.max(x, 0) * x.shape[1], x * x.shape[0]),
        lambda x: (x.sum(0) / len(x) + x.max(0) * x.shape[1], x * len(x)),
        [f32("s, t")],
        good=[((1, 1),), ((7, 3),), ((65, 2),)],
    ),
]


@further(19, "probe", ROW_19)
def test_order_more(probe):
    probe.check()


def same_everywhere(text, python, points):
    """The expression, its integer code and a program that has it as a size agree with Python's own integers."""
    dim = parse(text)
    names = list(dim.symbols)
    builder = Builder(len(names))
    reg = lower(dim, builder, dict(zip(names, range(len(names)), strict=True)))
    code = builder.finish()
    scope = Scope()
    for name in names:
        scope.declare(name, 0)
    for point in points:
        want = python(*point)
        at = dict(zip(names, point, strict=True))
        assert type(dim.evaluate(at)) is int
        assert dim.evaluate(at) == code.run(point)[reg] == want, (text, at)
        low, high = scope.bounds(dim)
        assert (low is None or low <= want) and (high is None or want <= high)


def sized(text, names):
    """A program whose result has ``text`` as its size."""
    fn = lambda *xs: jnp.ones((eval(text, {n: x.shape[0] for n, x in zip(names, xs, strict=True)}) + 1,))  # noqa: E731
    return words_of(fn, *(dvm.spec(n) for n in names))


@value(23)
def test_modulo_of_a_multiple_of_a_modulo():
    same_everywhere("mod(8*mod(x//64, 4), 64)", lambda x: 8 * (x // 64 % 4) % 64, [(148,), *((x,) for x in range(600))])
    assert parse("mod(8*mod(x//64, 4), 64)").evaluate({"x": 148}) == 16
    program = sized("8*(x//64 % 4) % 64", "x")
    (got,) = simulate(program, random((148,)))
    check(got, np.ones(17, np.float32))


ROW_23 = [
    ("mod(6*mod(x//5, 7), 9)", lambda x: 6 * (x // 5 % 7) % 9),
    ("mod(mod(x, 12), 8)", lambda x: x % 12 % 8),
    ("mod(4*mod(x, 6) + x, 8)", lambda x: (4 * (x % 6) + x) % 8),
    ("(16*mod(x//8, 4))//24", lambda x: 16 * (x // 8 % 4) // 24),
    ("mod(x//2*2 + mod(x, 2), 6)", lambda x: x % 6),
]


@further(23, "text, python", ROW_23)
def test_modulo_more(text, python):
    same_everywhere(text, python, [(x,) for x in range(500)])
    plain = text.replace("mod(", "m(")
    fn = lambda x: jnp.ones((eval(plain, {"x": x.shape[0], "m": lambda a, b: a % b}) + 1,))  # noqa: E731
    program = words_of(fn, dvm.spec("x"))
    for x in (1, 13, 148):
        check(simulate(program, random((x,)))[0], np.ones(python(x) + 1, np.float32))


GRID = list(itertools.product((0, 1, 2, 5, 11, 21), (1, 7, 63, 64, 2016), (1, 5, 32, 64, 700)))


@value(24)
def test_an_integer_at_every_point():
    text = "((24*a + 672)*(b*c//2016) + 21)//22"
    same_everywhere(text, lambda a, b, c: ((24 * a + 672) * (b * c // 2016) + 21) // 22, GRID)
    (got,) = simulate(sized(text, "abc"), random((2,)), random((63,)), random((64,)))
    check(got, np.ones(((24 * 2 + 672) * 2 + 21) // 22 + 1, np.float32))


ROW_24 = [
    ("(3*a*(b//2) + 1)//6", lambda a, b: (3 * a * (b // 2) + 1) // 6),
    ("((10*a + 15)*(b//7) + 4)//25", lambda a, b: ((10 * a + 15) * (b // 7) + 4) // 25),
    ("(a//3 + b//6)//2 - (a + b)//12", lambda a, b: (a // 3 + b // 6) // 2 - (a + b) // 12),
    ("(6*(a*b//4) - 3)//9 + (a*b)//6", lambda a, b: (6 * (a * b // 4) - 3) // 9 + a * b // 6),
]


@further(24, "text, python", ROW_24)
def test_integers_more(text, python):
    same_everywhere(text, python, list(itertools.product(range(14), range(30))))


BRANCHES = lambda x, y: lax.cond(x.mean() > 0, lambda: x + y, lambda: x - y)  # noqa: E731


@value(26)
def test_both_branches_in_one_program():
    spec = f32("b, s, f", b=(1, 9), s=(1, 99), f=(1, 99))
    before = dvm.stats()
    program = dvm.compile(BRANCHES, spec, spec)
    with no_compile():
        for shape, sign in itertools.product(((1, 1, 1), (2, 7, 5), (3, 17, 16), (9, 99, 1)), (1, -1)):
            x = np.abs(random(shape)) * np.float32(sign)
            check_launch(program, lambda x, y: x + y if x.mean() > 0 else x - y, x, random(shape, seed=1))
    assert (dvm.stats() - before).compiles == 1


def signed(shapes):
    """Inputs for both outcomes."""
    return [(shape, sign) for shape in shapes for sign in (1, -1)]


SIGNED = lambda at, _=None: (np.abs(random(at[0])) * np.float32(at[1]), random(at[0], seed=1))  # noqa: E731
ROW_26 = [
    Probe(
        "products in the branches",
        lambda x, y: lax.cond(x.sum() > 0, lambda: jnp.sin(x) @ y.T, lambda: x @ y.T),
        lambda x, y: (np.sin(x) if x.sum() > 0 else x) @ y.T,
        [f32("b, f"), f32("b, f")],
        good=[(at,) for at in signed([(1, 1), (5, 7)])],
        inputs=SIGNED,
    ),
    Probe(
        "pairs, swapped",
        lambda x, y: lax.cond(x.shape[0] * x.sum() > 0, lambda: (x, y + 1), lambda: (y, x)),
        lambda x, y: (x, y + 1) if x.sum() > 0 else (y, x),
        [f32("b, f"), f32("b, f")],
        good=[(at,) for at in signed([(1, 1), (5, 7)])],
        inputs=SIGNED,
    ),
    Probe(
        "one of three",
        lambda x, y: lax.switch((x.sum() > 0).astype(int) + (x.sum() > 2), [lambda: x, lambda: y * 2, lambda: x * y]),
        lambda x, y: [x, y * 2, x * y][int(x.sum() > 0) + int(x.sum() > 2)],
        [f32("b"), f32("b")],
        good=[(at,) for at in (((1,), 1), ((1,), -1), ((9,), 1), ((9,), -1))],
        inputs=SIGNED,
    ),
    Probe(
        "ONNX If, the branches see the outer values",
        """f (float[b, f] x, float[b, f] y) => (float[b, f] z) {
        k = Constant<value = float {0.0}>()  s = ReduceSum<keepdims = 0>(x)  c = Greater(s, k)
        z = If (c) < then_branch = g () => (float[b, f] p) { p = Add(x, y) },
                     else_branch = h () => (float[b, f] q) { q = Sub(x, y) } > }""",
        lambda x, y: x + y if x.sum() > 0 else x - y,
        good=[(at,) for at in signed([(1, 1), (2, 7), (17, 3)])],
        inputs=SIGNED,
    ),
]


@further(26, "probe", ROW_26)
def test_branches_more(probe):
    assert len(jax.tree_util.tree_leaves(probe.specs)) in (0, 2)
    probe.check()
