"""What a front end can ask of fusion: to cut at a barrier, and to merge siblings."""

from __future__ import annotations

import numpy as np
import pytest

from codegen import compile_graph
from graph_kernel import passes
from graph_kernel.builder import GraphBuilder
from graph_kernel.ir import Graph
from symbolic import Scope
from vm.binder import Binder
from vm.disassembler import kernel_steps
from vm.reference import Executable


def graph(body):
    g = Graph(Scope())
    x = g.add_input((g.scope.declare("m", min=0), g.scope.declare("n", min=0)), np.float32, "x")
    g.outputs = list(body(GraphBuilder(g), x))
    return g


def kernels(g, **options):
    passes.optimise(g, verify=True)
    program = compile_graph(g, options)
    assert Binder(program)
    return program, len(list(kernel_steps(program.steps)))


def test_a_barrier_cuts():
    def body(b, x, cut):
        y = b.unary("exp", x)
        return [
            b.add(b.op("barrier", y) if cut else y, 1.0),
            b.reduce("reduce_sum", b.op("barrier", y) if cut else y, (1,)),
        ]

    assert kernels(graph(lambda b, x: body(b, x, False)))[1] < 3
    program, count = kernels(graph(lambda b, x: body(b, x, True)))
    assert count == 3
    for shape in [(0, 3), (1, 1), (5, 7)]:
        x = np.random.default_rng(0).random(shape, np.float32)
        first, second = Executable(program).launch([x])
        np.testing.assert_allclose(first, np.exp(x) + 1, rtol=1e-6)
        np.testing.assert_allclose(second, np.exp(x).sum(1), rtol=1e-5)


def test_a_barrier_after_an_input_or_a_view_is_the_same_memory():
    program, _ = kernels(graph(lambda b, x: [b.unary("exp", b.op("barrier", b.op("barrier", b.transpose(x, (1, 0)))))]))
    x = np.random.default_rng(0).random((5, 7), np.float32)
    np.testing.assert_allclose(Executable(program).launch([x])[0], np.exp(x.T), rtol=1e-6)
    program, count = kernels(graph(lambda b, x: [b.unary("exp", b.op("barrier", x))]))
    assert count == 1
    np.testing.assert_allclose(Executable(program).launch([x])[0], np.exp(x), rtol=1e-6)


def test_siblings_are_merged_where_they_are_wanted_and_can_be():
    def body(b, x):
        return [b.unary("exp", x), b.unary("sqrt", x), b.reduce("reduce_sum", x, (1,))]

    assert kernels(graph(body))[1] == 3
    assert kernels(graph(body), siblings=lambda a, b: False)[1] == 3
    program, count = kernels(graph(body), siblings=lambda a, b: True)
    assert count == 1
    x = np.random.default_rng(0).random((5, 7), np.float32)
    for got, want in zip(Executable(program).launch([x]), [np.exp(x), np.sqrt(x), x.sum(1)], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)

    apart, count = kernels(
        graph(lambda b, x: [b.unary("exp", x), b.unary("sqrt", b.transpose(x, (1, 0)))]), siblings=lambda a, b: True
    )
    for got, want in zip(Executable(apart).launch([x]), [np.exp(x), np.sqrt(x).T], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("shape", [(2, 4, 3, 18), (1, 4, 3, 18), (3, 7, 64, 128), (1, 130, 3, 130), (2, 1, 3, 5)])
def test_a_result_is_stored_once_where_others_vary_over_more_axes(shape):
    """The reference executor refuses a kernel of which several cores store one element."""
    b, h, m, n = shape
    g = Graph(Scope())
    builder = GraphBuilder(g)
    x, w = g.add_input((b, 1, m, n), np.float32, "x"), g.add_input(shape, np.float32, "w")
    small = builder.add(x, x)
    g.outputs = [small, builder.mul(small, w)]
    program, _ = kernels(g)
    rng = np.random.default_rng(0)
    arrays = [rng.random((b, 1, m, n), np.float32), rng.random(shape, np.float32)]
    first, second = Executable(program).launch(arrays)
    np.testing.assert_array_equal(first, 2 * arrays[0])
    np.testing.assert_allclose(second, 2 * arrays[0] * arrays[1], rtol=1e-6)
