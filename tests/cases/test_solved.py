"""Rows 1, 12, 15, 25: which symbols there are, and how they are found from the sizes of the inputs."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from onnx import helper

import dvm
from tests.cases.registry import further, value
from tests.cases.tools import Probe, check_launch, f32, model, no_compile, one_compile, refused
from tests.e2e.harness import random


@value(1)
def test_equal_dims_that_only_their_doubles_show():
    fn = lambda x, y: x + y  # noqa: E731
    with one_compile():
        program = dvm.compile(
            fn, dvm.spec("2*a"), dvm.spec("2*b"), constraints=["a == b"], dims={n: dvm.Dim(min=0, max=99) for n in "ab"}
        )
        with no_compile():
            for n in (0, 2, 14, 126, 128, 130):
                check_launch(program, fn, random((n,)), random((n,), seed=1))
    refused(program, random((3,)), random((3,)), names=["x", "axis 0"])
    refused(program, random((4,)), random((6,)), names=["y"])


ROW_1 = [
    Probe(
        "thirds, multiplied and summed",
        lambda x, y: (x * y).sum(),
        lambda x, y: (x.astype(np.float64) * y).sum(),
        [f32("3*a"), f32("3*b")],
        good=[((3,), (3,)), ((21,), (21,))],
        bad=[((4,), (4,)), ((3,), (6,))],
        names=["axis 0"],
        constraints=["a == b"],
    ),
    Probe(
        "ONNX, the constraint on the model's names",
        "f (int64[k2, 3] x, int64[m2, 3] y) => (int64[o, 3] z) { z = Sub(x, y) }".replace("k2", '"2*k"').replace(
            "m2", '"2*m"'
        ),
        lambda x, y: x - y,
        good=[((2, 3), (2, 3)), ((14, 3), (14, 3))],
        bad=[((3, 3), (3, 3)), ((2, 3), (4, 3))],
        names=["axis 0"],
        dtype=np.int64,
        constraints=["k == m"],
    ),
    Probe(
        "two pairs of axes, int32",
        lambda x, y: jnp.maximum(x, y),
        np.maximum,
        [dvm.spec("a, 4*c", np.int32), dvm.spec("b, 4*d", np.int32)],
        good=[((1, 4), (1, 4)), ((5, 12), (5, 12))],
        bad=[((2, 4), (3, 4)), ((2, 4), (2, 8)), ((2, 6), (2, 6))],
        names=["axis"],
        dtype=np.int32,
        constraints=["a == b", "c == d"],
    ),
    Probe(
        "one is twice the other",
        lambda x, y: x.reshape(-1, 2).sum(1) - y,
        lambda x, y: x.reshape(-1, 2).sum(1) - y,
        [f32("2*a"), f32("b")],
        good=[((2,), (1,)), ((14,), (7,))],
        bad=[((6,), (6,)), ((7,), (3,))],
        names=["axis 0"],
        constraints=["a == b"],
    ),
]


@further(1, "probe", ROW_1)
def test_equal_dims_more(probe):
    probe.check()


@value(12)
@pytest.mark.parametrize("texts", [("2*s", "s"), ("s", "2*s")])
def test_a_double_and_its_half(texts):
    fn = lambda x, y: jnp.sum(x) * y  # noqa: E731
    with one_compile():
        program = dvm.compile(fn, *(dvm.spec(text, s=dvm.Dim(max=64)) for text in texts))
        for s in (1, 7, 33, 64):
            x, y = (random((2 * s if text == "2*s" else s,)) for text in texts)
            check_launch(program, lambda x, y: x.astype(np.float64).sum() * y, x, y, tol=1e-4)
    refused(program, *(random((9 if text == "2*s" else 4,)) for text in texts), names=["axis 0"])


ROW_12 = [
    Probe(
        "a multiple alone",
        lambda x: x.reshape(-1, 3) * 2,
        lambda x: x.reshape(-1, 3) * 2,
        [f32("3*a")],
        good=[((3,),), ((21,),)],
        bad=[((4,),)],
        names=["x", "axis 0"],
    ),
    Probe(
        "a multiple and a rest alone",
        lambda x: x * 2,
        lambda x: x * 2,
        [f32("4*a + 1")],
        good=[((5,),), ((9,),)],
        bad=[((4,),), ((6,),)],
        names=["axis 0"],
    ),
    Probe(
        "a sum of two, of which one is given",
        lambda x, y: jnp.concatenate([x[: y.shape[0]], y]).sum() + x,
        lambda x, y: np.concatenate([x[: len(y)], y]).sum() + x,
        [f32("p + s"), f32("s")],
        good=[((3,), (1,)), ((9,), (7,))],
        bad=[((3,), (3,)), ((3,), (5,))],
        names=["axis 0"],
    ),
    Probe(
        "ONNX, expressions for names",
        'f (float["3*n"] x, float["n + 1", 2] y) => (float[a] u, float[b, 2] v) { u = Neg(x) v = Exp(y) }',
        lambda x, y: (-x, np.exp(y)),
        good=[((3,), (2, 2)), ((21,), (8, 2))],
        bad=[((3,), (3, 2)), ((4,), (2, 2))],
        names=["axis 0"],
    ),
    Probe(
        "a product of two, of which one is given, twice",
        lambda x, y: x.reshape(y.shape[0], -1) * y[:, None],
        lambda x, y: x.reshape(len(y), -1) * y[:, None],
        [f32("b*s"), f32("b")],
        good=[((3,), (1,)), ((21,), (7,)), ((4,), (4,))],
        bad=[((9,), (2,))],
        names=["axis 0"],
    ),
]


@further(12, "probe", ROW_12)
def test_solved_more(probe):
    probe.check()


@value(15)
def test_two_inputs_that_name_the_same_dim():
    m = model("f (float[n] first, float[n] second) => (float[n] y) { y = Add(first, second) }")
    with one_compile():
        program = dvm.compile(m, dims={"n": dvm.Dim("n", min=0, max=200)})
        with no_compile():
            for n in (0, 1, 7, 127, 128, 129):
                check_launch(program, lambda x, y: (x + y,), random((n,)), random((n,), seed=1))
    refused(program, random((4,)), random((6,)), names=["first", "second", "4", "6"])


ROW_15 = [
    Probe(
        "both axes of a product",
        "f (float[n, m] x, float[m, n] y) => (float[n, n] z) { z = MatMul(x, y) }",
        lambda x, y: x @ y,
        good=[((2, 3), (3, 2)), ((1, 7), (7, 1))],
        bad=[((2, 3), (3, 4)), ((2, 3), (5, 2))],
        names=["x", "y"],
    ),
    Probe(
        "two axes of one input",
        "f (float[n, n] x) => (float[n, n] z) { z = Add(x, x) }",
        lambda x: x + x,
        good=[((3, 3),), ((1, 1),), ((0, 0),)],
        bad=[((2, 3),)],
        names=["x", "axis"],
    ),
    Probe(
        "three inputs, of which the last is wrong; nothing needs the sizes to agree",
        "f (int64[n] x, int64[n, 2] y, int64[k, n] z) => (int64[n] a, int64[n, 2] b, int64[k, n] c) "
        "{ a = Neg(x) b = Neg(y) c = Neg(z) }",
        lambda x, y, z: (-x, -y, -z),
        good=[((4,), (4, 2), (3, 4))],
        bad=[((4,), (4, 2), (3, 6))],
        names=["x", "z", "4", "6"],
        dtype=np.int64,
    ),
    Probe(
        "a function's specs",
        lambda x, y: (x * 2, y * 3),
        lambda x, y: (x * 2, y * 3),
        [f32("n, 2"), f32("2, n")],
        good=[((5, 2), (2, 5))],
        bad=[((4, 2), (2, 6))],
        names=["x", "y"],
    ),
]


@further(15, "probe", ROW_15)
def test_the_same_name_more(probe):
    probe.check()


@value(25)
def test_unnamed_dims_are_different():
    m = model("f (float[?, 4] x, float[?, 4] y) => (float[n, 4] z) { z = Concat<axis = 0>(x, y) }")
    with one_compile():
        program = dvm.compile(m)
        for a, b in ((3, 5), (1, 1), (0, 7), (128, 127)):
            check_launch(program, lambda x, y: (np.concatenate([x, y]),), random((a, 4)), random((b, 4), seed=1))
    assert len(program.symbols) == 2


def unnamed(op: str, rank: int) -> onnx.ModelProto:
    """Two inputs without names for their dims, each through its own node."""
    kind = onnx.TensorProto.FLOAT
    inputs = [helper.make_tensor_value_info(f"x{i}", kind, [None] * rank) for i in range(2)]
    outputs = [helper.make_tensor_value_info(f"y{i}", kind, [None] * rank) for i in range(2)]
    nodes = [helper.make_node(op, [f"x{i}"], [f"y{i}"]) for i in range(2)]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


ROW_25 = [
    Probe("exp of vectors", unnamed("Exp", 1), lambda x, y: (np.exp(x), np.exp(y)), good=[((4,), (7,)), ((0,), (1,))]),
    Probe("neg of matrices", unnamed("Neg", 2), lambda x, y: (-x, -y), good=[((4, 2), (7, 5)), ((1, 0), (2, 2))]),
    Probe("copies", unnamed("Identity", 3), lambda x, y: (x, y), good=[((4, 2, 3), (7, 5, 1))]),
    Probe(
        "a product's own sizes are checked, not assumed",
        "f (float[?, ?] x, float[?, ?] y) => (float[a, b] z) { z = MatMul(x, y) }",
        lambda x, y: x @ y,
        good=[((2, 3), (3, 5)), ((1, 1), (1, 7))],
        bad=[((2, 3), (4, 5))],
        names=["MatMul"],
    ),
]


@further(25, "probe", ROW_25)
def test_unnamed_dims_more(probe):
    assert len(probe.check().program.symbols) == 2 * len(probe.good[0][0])
