"""Operands of concatenations that their producers store in place: which kernels are left, what they move, and that every size is right."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dvm.report import moved
from graph_kernel.fusion import slots
from tests.e2e import harness
from tests.e2e.harness import check, program_of, random, simulate
from vm.binder import Binder

LIMITS = dict.fromkeys("bprs", (0, 300))
F32 = jnp.float32


def spec(shape, dtype=F32):
    return harness.spec(shape, dtype, **{k: LIMITS[k] for k in LIMITS if k in shape})


def ops(program):
    return [k["ops"] for k in program.debug["kernels"]]


def copies(program):
    """Results that kernels without arithmetic write."""
    moving = {"concat", "reshape", "transpose", "slice"}
    return sum(len(k["outputs"]) for k in program.debug["kernels"] if set(k["ops"]) <= moving)


def project(x, w, heads=2):
    b, s, _ = x.shape
    return (x @ w).reshape(b, s, heads, w.shape[1] // heads).transpose(0, 2, 1, 3)


def cache(past, x, w):
    return jnp.concatenate([past, project(x, w)], 2)


def caches(pk, pv, x, wk, wv):
    return cache(pk, x, wk), cache(pv, x, wv)


def read_twice(past, x, w):
    """The operand is a result by itself, too."""
    new = project(x, w)
    return jnp.concatenate([past, new], 2), new * 2, new


def read_later(past, x, w):
    whole = cache(past, x, w)
    return whole, jnp.sum(whole * whole, 2)


def norms(x):
    def norm(y):
        return y / jnp.sqrt(1 + jnp.sum(y * y, -1, keepdims=True))

    return jnp.stack([norm(x), norm(x + 1)], 1)


def mixed(x, y, a, b):
    """A stack of two products that a third kernel reads with others of its own."""
    both = jnp.stack([x @ a, x @ b], 1)
    return jnp.sum(both * jnp.exp(y)[:, None], 1), both


def branch(p, x):
    return jax.lax.cond(p > 0, lambda x: jnp.concatenate([jnp.exp(x), x * 2], 1), lambda x: jnp.tile(x, (1, 2)), x)


PAST, NEW, W = "b, 2, p, 8", "b, s, 12", "12, 16"
CASES = {  # function, shapes, kernels, results of copies
    "stack": (lambda x: jnp.stack([jnp.exp(x), jnp.sin(x)]), ["b, s"], 1, 0),
    "stack of four, last": (lambda x: jnp.stack([x * k for k in (1.0, 2, 3, 4)], -1), ["b, s"], 1, 0),
    "norms": (norms, ["b, 48"], 1, 0),
    "two lengths": (lambda x, y: jnp.concatenate([jnp.exp(x), jnp.sin(y)], 1), ["b, s", "b, r"], 2, 0),
    "twice the same": (lambda x: jnp.concatenate([jnp.exp(x)] * 2, 1), ["b, s"], 1, 0),
    "cache": (cache, [PAST, NEW, W], 2, 1),
    "caches": (caches, [PAST, PAST, NEW, W, W], 2, 2),
    "read twice": (read_twice, [PAST, NEW, W], 2, 1),
    "read later": (read_later, [PAST, NEW, W], 3, 1),
    "new before past": (lambda p, x, w: jnp.concatenate([project(x, w), p], 2), [PAST, NEW, W], 2, 1),
    "a third kernel": (mixed, ["b, 12", "b, 16", "12, 16", "12, 16"], 2, 0),
    "inner dim": (lambda x, y, w: jnp.concatenate([y, jnp.tanh(x @ w)], -1), ["b, s, 12", "b, s, p", W], 2, 1),
    "transposed": (lambda x, y, w: jnp.concatenate([y, (x @ w).T], 1), ["b, 12", "16, p", W], 2, 1),
    "merged dims": (
        lambda x, y: jnp.concatenate([y, jnp.exp(x).reshape(x.shape[0] * x.shape[1], 6)], 0),
        ["b, s, 6", "p, 6"],
        2,
        1,
    ),
}


def sizes(shapes):
    """Launches: every symbol 0 and 1 once, and some odd ones."""
    letters = sorted({c for s in shapes for c in s if c in LIMITS})
    rows = [dict(zip(letters, (3, 7, 5, 2), strict=False)), dict(zip(letters, (2, 65, 33, 40), strict=False))]
    rows += [rows[0] | {c: n} for c in letters for n in (0, 1)]
    return [{c: n for c, n in row.items() if c in letters} for row in rows]


def arrays_of(shapes, row):
    at = [[row[t] if t in row else int(t) for t in s.replace(" ", "").split(",")] for s in shapes]
    return [random(s, seed=i) for i, s in enumerate(at)]


@pytest.mark.parametrize("name", CASES)
def test_every_size(name):
    fn, shapes, kernels, copied = CASES[name]
    program = program_of(fn, *map(spec, shapes))
    assert len(ops(program)) == kernels and copies(program) == copied, program.debug["kernels"]
    assert "concat" not in Counter(op for k in ops(program) for op in k)
    for i, row in enumerate(sizes(shapes)):
        arrays = arrays_of(shapes, row)
        want = jax.tree_util.tree_leaves(fn(*arrays))
        for tile in (None, 3)[: 1 + (i == 0)]:
            for got, expected in zip(simulate(program, *arrays, tile=tile), want, strict=True):
                check(got, np.asarray(expected), 1e-5, f"{name} at {row}, tile {tile}")


@pytest.mark.parametrize("tier", ["reference", "specialised"])
@pytest.mark.parametrize("name", ["stack", "caches", "read twice"])
def test_executors(name, tier):
    fn, shapes, *_ = CASES[name]
    compiled = harness.Compiled(
        fn, *[harness.spec(s, **{k: (0, 40) for k in LIMITS if k in s}) for s in shapes], tier=tier
    )
    for row in sizes(shapes)[:1] + sizes(shapes)[2:]:
        compiled.check(*arrays_of(shapes, row), tolerance=1e-5)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.int32, jnp.bool_])
def test_dtypes(dtype):
    def fn(x, y, y0):
        return jnp.concatenate([y, jnp.where(y0[:, None] == x, x, x != x if dtype == jnp.bool_ else x * 2)], 1)

    program = program_of(fn, spec("b, s", dtype), spec("b, p", dtype), spec("b", dtype))
    assert copies(program) == 1 and len(ops(program)) == 2
    arrays = random((3, 7), dtype, 0), random((3, 5), dtype, 1), random((3,), dtype, 2)
    check(simulate(program, *arrays)[0], np.asarray(fn(*map(jnp.asarray, arrays))))


def test_in_a_branch():
    program = program_of(branch, spec("", jnp.int32), spec("b, s"))
    for p in (0, 1):
        arrays = np.int32(p), random((3, 7))
        check(simulate(program, *arrays)[0], np.asarray(branch(*arrays)))


def program_and_traffic(fn, shapes, **dims):
    program = program_of(fn, *map(spec, shapes))
    names = [s.name for s in program.symbols]
    return program, moved(Binder(program).bind([dims[n] for n in names]))


def test_less_is_moved(monkeypatch):
    """The new keys and values are written once, where they belong; before they were also stored and read elsewhere."""
    fn, shapes, *_ = CASES["caches"]
    dims = {"b": 2, "p": 100, "s": 30}
    program, now = program_and_traffic(fn, shapes, **dims)
    assert any("store in place" in m["rule"] for m in program.debug["merges"])
    monkeypatch.setattr(slots.Slots, "run", lambda self: None)
    copied, before = program_and_traffic(fn, shapes, **dims)
    assert "concat" in [op for k in ops(copied) for op in k]
    new = 2 * 2 * 2 * 30 * 8 * 4
    assert before - now == 2 * new


def test_many_writers_are_refused(monkeypatch):
    """Kernels that write into one buffer run one after the other: three of them take longer than side by side and a copy."""

    def fn(x, y, z):
        return jnp.concatenate([jnp.exp(x), jnp.sin(y), jnp.tanh(z)], 1)

    shapes = ["b, s", "b, r", "b, p"]
    program = program_of(fn, *map(spec, shapes))
    assert ["concat"] in ops(program) and len(program.stages) == 2
    assert any("one after the other" in cut["reason"] for cut in program.debug["cuts"])
    monkeypatch.setattr(slots, "MAX_WRITERS", 9)
    mutant = program_of(fn, *map(spec, shapes))
    assert len(mutant.stages) == 3
    arrays = arrays_of(shapes, {"b": 2, "s": 3, "r": 4, "p": 5})
    for p in (program, mutant):
        check(simulate(p, *arrays)[0], np.asarray(fn(*arrays)))
