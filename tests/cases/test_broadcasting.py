"""Rows 7, 8, 21, 22: which shapes go together, and what comes out."""

from __future__ import annotations

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import dvm
from tests.cases.registry import further, value
from tests.cases.tools import Probe, Words, check_launch, f32, model, no_compile, one_compile, refused
from tests.e2e.harness import check, random


@value(7)
def test_a_symbol_against_a_number():
    m = model("f (float[B, 16] x, float[4, 16] y) => (float[N, 16] z) { z = Add(x, y) }")
    with one_compile():
        program = dvm.compile(m, dims={"B": dvm.Dim(max=64)})
        with no_compile():
            for b in (1, 4):
                check_launch(program, lambda x, y: (x + y,), random((b, 16)), random((4, 16), seed=1))
    refused(program, random((3, 16)), random((4, 16)), names=["Add", "B", "3"])
    (said,) = [line for line in program.constraints if "Add" in line]
    assert "B == 1" in said and "4" in said and said.startswith("at launch")
    with pytest.raises(dvm.CompileError, match="B"):  # JAX decides while it traces
        dvm.compile(lambda x, y: x + y, dvm.spec("B, 16"), dvm.spec("4, 16"))


def caused_by(op):
    def look(words):
        assert any(op in c.origin for c in words.graph.scope.checks), words.graph.scope.constraints

    return look


ROW_7 = [
    Probe(
        "the last axis, multiplied",
        "f (float[4, B] x, float[4, 7] y) => (float[4, N] z) { z = Mul(x, y) }",
        lambda x, y: x * y,
        good=[((4, 1), (4, 7)), ((4, 7), (4, 7))],
        bad=[((4, 3), (4, 7)), ((4, 0), (4, 7))],
        names=["Mul", "B"],
        more=caused_by("Mul"),
    ),
    Probe(
        "int32, the number on the left",
        "f (int32[5] x, int32[B] y) => (int32[N] z) { z = Max(x, y) }",
        np.maximum,
        good=[((5,), (1,)), ((5,), (5,))],
        bad=[((5,), (2,)), ((5,), (10,))],
        names=["Max", "B"],
        dtype=np.int32,
        more=caused_by("Max"),
    ),
    Probe(
        "a selection of three",
        "f (float[B, 2] x, float[3, 2] y) => (float[N, 2] z) { c = Greater(y, y2) y2 = Neg(y) z = Where(c, x, y) }".replace(
            "c = Greater(y, y2) y2 = Neg(y)", "y2 = Neg(y) c = Greater(y, y2)"
        ),
        lambda x, y: np.where(y > -y, x, y),
        good=[((1, 2), (3, 2)), ((3, 2), (3, 2))],
        bad=[((2, 2), (3, 2))],
        names=["Where", "B"],
        more=caused_by("Where"),
    ),
    Probe(
        "a batch of a product",
        "f (float[B, 2, 3] x, float[4, 3, 2] y) => (float[N, 2, 2] z) { z = MatMul(x, y) }",
        lambda x, y: x @ y,
        good=[((1, 2, 3), (4, 3, 2)), ((4, 2, 3), (4, 3, 2))],
        bad=[((3, 2, 3), (4, 3, 2))],
        names=["MatMul", "B"],
    ),
]


@further(7, "probe", ROW_7)
def test_a_symbol_against_a_number_more(probe):
    probe.check()


def by_numpy(call, want, shapes_of, dtype=np.float32):
    """Launches at all combinations of sizes: what NumPy computes, or a refusal where it has none."""
    ran = 0
    for shapes in shapes_of:
        arrays = [random(shape, dtype, seed=i) for i, shape in enumerate(shapes)]
        try:
            expected = want(*arrays)
        except ValueError:
            refused(call, *arrays)
        else:
            check(np.asarray(call(*arrays)[0]), expected, 1e-5, str(shapes))
            ran += 1
    assert ran >= 4


@value(8)
def test_three_operands_of_sizes_0_1_and_5():
    m = model("f (float[a] x, float[b] y, float[c] z) => (float[n] r) { t = Add(x, y)  r = Mul(t, z) }")
    with one_compile():
        program = dvm.compile(m, dims={name: dvm.Dim(min=0, max=9) for name in "abc"})
        with no_compile():
            sizes = itertools.product((0, 1, 5, 7), repeat=3)
            by_numpy(program, lambda x, y, z: (x + y) * z, [((a,), (b,), (c,)) for a, b, c in sizes])


ROW_8 = [
    ("Add", np.add, 1, np.float32),
    ("Mul", np.multiply, 1, np.int64),
    ("Max", np.maximum, 1, np.float32),
    ("Sub", np.subtract, 2, np.float32),
]


@further(8, "op, fn, rank, dtype", ROW_8)
def test_three_operands_more(op, fn, rank, dtype):
    text = {np.float32: "float", np.int64: "int64"}[dtype]
    dims = (lambda n: n) if rank == 1 else (lambda n: f"{n}, {n}2")
    words = Words(
        model(f"""f ({text}[{dims("a")}] x, {text}[{dims("b")}] y, {text}[c] z) => ({text}[{dims("d")}] w)
        {{ u = {op}(x, y) w = {op}(u, z) }}""")
    )
    if rank == 1:
        shapes = [((a,), (b,), (c,)) for a, b, c in itertools.product((0, 1, 5), repeat=3)]
    else:
        pairs = list(itertools.product((1, 4), (0, 1, 3)))
        shapes = [(p, q, (c,)) for p, q, c in itertools.product(pairs, pairs, (1, 3))]
    by_numpy(words, lambda x, y, z: fn(fn(x, y), z), shapes, dtype)


@value(21)
def test_one_element_spread_over_a_matrix():
    def fn(v, w, u):
        return jnp.broadcast_to(v, (4, 5)) + w, jnp.broadcast_to(u, (4, 4)), lax.broadcast_in_dim(u, (4, 4), (0,))

    def want(v, w, u):
        return np.broadcast_to(v, (4, 5)) + w, np.broadcast_to(u, (4, 4)), np.broadcast_to(u[:, None], (4, 4))

    with one_compile():
        check_launch(dvm.compile(fn, f32("1"), f32("1, 5"), f32("4")), want, random((1,)), random((1, 5)), random((4,)))


ROW_21 = [
    Probe(
        "ONNX Expand",
        """f (float[1] v, float[1, 5] w, float[4] u) => (float[4, 5] y, float[4, 4] z) {
        to = Constant<value = int64[2] {4, 5}>()  e = Expand(v, to)  y = Add(e, w)
        square = Constant<value = int64[2] {4, 4}>()  z = Expand(u, square) }""",
        lambda v, w, u: (np.broadcast_to(v, (4, 5)) + w, np.broadcast_to(u, (4, 4))),
        good=[((1,), (1, 5), (4,))],
    ),
    Probe(
        "a symbol to a square, along each axis",
        lambda s: (
            jnp.broadcast_to(s[:, None], (s.shape[0], s.shape[0])),
            jnp.broadcast_to(s, (s.shape[0], s.shape[0])).T + s,
        ),
        lambda s: (np.broadcast_to(s[:, None], (len(s), len(s))), np.broadcast_to(s, (len(s), len(s))).T + s),
        [f32("n", n=(0, 9))],
        good=[((n,),) for n in (0, 1, 4, 7)],
    ),
    Probe(
        "int32 rows in front of a size of 1",
        lambda v, w: jnp.broadcast_to(v, (3, 1, 2)) * w,
        lambda v, w: np.broadcast_to(v, (3, 1, 2)) * w,
        [dvm.spec("1, 2", np.int32), dvm.spec("n, 2", np.int32)],
        good=[((1, 2), (n, 2)) for n in (1, 5)],
        dtype=np.int32,
    ),
    Probe(
        "ONNX Expand to a shape that the input may exceed",
        """f (float[n, 1] x) => (float[a, b] y) { to = Constant<value = int64[2] {1, 3}>()  e = Expand(x, to)  y = Exp(e) }""",
        lambda x: np.exp(np.broadcast_to(x, (len(x), 3))),
        good=[((n, 1),) for n in (0, 1, 7)],
    ),
]


@further(21, "probe", ROW_21)
def test_spread_more(probe):
    probe.check()


@value(22)
def test_a_mask_that_fits_one_batch_only():
    """Aligned from the right, the mask's batch meets the heads: right where B is 1 or equal to them, refused elsewhere."""
    m = model("f (float[B, kv, rep, L, L] s, float[B, 1, L, L] mask) => (float[p, q, r, t, u] y) { y = Add(s, mask) }")
    with one_compile():
        program = dvm.compile(m, dims={n: dvm.Dim(max=8) for n in ("B", "kv", "rep", "L")})
        for b, kv, rep, n in ((1, 2, 3, 4), (1, 1, 1, 1), (2, 2, 3, 4), (3, 2, 2, 4), (2, 1, 5, 3), (2, 3, 1, 7)):
            s, mask = random((b, kv, rep, n, n)), random((b, 1, n, n), seed=1)
            try:
                want = s + mask
            except ValueError:
                refused(program, s, mask, names=["Add", "B", "kv"])
            else:
                check(np.asarray(program(s, mask)[0]), want)
    with pytest.raises(dvm.CompileError, match="B"):
        dvm.compile(lambda s, m: s + m, dvm.spec("B, k, r, L, L"), dvm.spec("B, 1, L, L"))


def masked(name, shapes, op, fn, axes):
    """A model whose second operand has a batch axis where the first has another one."""
    a, b = shapes
    rank = a.count(",") + 1
    return (
        name,
        f"f (float[{a}] s, float[{b}] m) => (float[{', '.join('opqrt'[:rank])}] y) {{ y = {op}(s, m) }}",
        fn,
        axes,
    )


ROW_22 = [
    masked(
        "heads against the batch", ("B, H, L", "B, L"), "Mul", np.multiply, [(1, 2, 3), (2, 2, 3), (2, 3, 3), (1, 1, 1)]
    ),
    masked("a bias of the batch", ("B, S, 4", "B, 4"), "Sub", np.subtract, [(1, 5), (5, 5), (2, 5), (5, 1)]),
    masked(
        "lengths against a group",
        ("B, G, R, L", "B, 1, L"),
        "Max",
        np.maximum,
        [(1, 2, 3, 4), (3, 2, 3, 4), (2, 2, 3, 4)],
    ),
]


@further(22, "name, body, fn, sizes", ROW_22)
def test_masks_more(name, body, fn, sizes):
    words = Words(model(body))
    names = [t for t in body[body.index("[") + 1 : body.index("]")].split(", ") if not t.isdigit()]
    seen = set()
    for values in sizes:
        at = dict(zip(names, values, strict=True))
        shapes = [
            tuple(int(t) if t.isdigit() else at[t] for t in part.split("]")[0].split(", "))
            for part in body.split("=>")[0].split("[")[1:]
        ]
        s, m = random(shapes[0]), random(shapes[1], seed=1)
        try:
            want = fn(s, m)
        except ValueError:
            refused(words, s, m, names=["B"])
            seen.add("refused")
        else:
            check(words(s, m)[0], want)
            seen.add("right")
    assert seen == {"refused", "right"}, name
