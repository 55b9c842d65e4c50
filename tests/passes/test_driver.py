"""The driver: reports, options, sub-graphs, names, and time that grows with the size of the graph."""

from __future__ import annotations

import time

import numpy as np
import pytest

from graph_kernel.evaluate import evaluate
from graph_kernel.ir import Graph, Origin
from graph_kernel.passes import PASSES, count_nodes, default_pipeline, find, optimise
from graph_kernel.passes.cse import ConstantPool
from graph_kernel.text import parse, to_text
from graph_kernel.verifier import verify
from symbolic import Scope
from vm.errors import CompileError


def norm_stack(layers: int) -> Graph:
    """``layers`` RMS norms and projections with heads that are split and merged."""
    scope = Scope()
    b, s = scope.declare("b"), scope.declare("s")
    g = Graph(scope)
    x = g.add_input((b, s, 8), np.float32, "x")
    rng = np.random.default_rng(0)
    for _ in range(layers):
        mean = g.add("reduce_sum", g.add("mul", x, x), axes=(2,))
        kept = g.add("reshape", mean, shape=(b, s, 1))
        eps = g.add("broadcast", g.constant(1e-6, np.float32), shape=(b, s, 1), dims=())
        root = g.add("sqrt", g.add("add", kept, eps))
        x = g.add("div", x, g.add("broadcast", root, shape=(b, s, 8), dims=(0, 1, 2)))
        w = g.constant(rng.standard_normal((8, 8)), np.float32)
        y = g.add("dot", x, w, contract=((2,), (0,)), batch=((), ()), dtype=np.dtype(np.float32))
        heads = g.add("transpose", g.add("reshape", y, shape=(b, s, 2, 4)), perm=(0, 2, 1, 3))
        back = g.add("transpose", g.add("exp", heads), perm=(0, 2, 1, 3))
        x = g.add("add", x, g.add("reshape", back, shape=(b, s, 8)))
    g.outputs = [x]
    return g


def test_reports_say_what_each_pass_did() -> None:
    graph = norm_stack(2)
    before = count_nodes(graph)
    reports = optimise(graph)
    assert reports[0].nodes_before == before and reports[-1].nodes_after == count_nodes(graph)
    assert all(a.nodes_after == b.nodes_before for a, b in zip(reports, reports[1:], strict=False))
    assert {r.name for r in reports} == set(PASSES)
    assert any(r.notes.get("over_broadcast_sqrt") or r.notes.get("over_sqrt") for r in reports)
    assert not any(r.modified for r in reports[-len(PASSES) :])
    assert "axis_splitting: " in "\n".join(map(str, reports))
    assert {n.op for n in graph.nodes}.isdisjoint({"transpose", "sqrt", "div"})


def test_a_pass_can_be_left_out() -> None:
    graph = norm_stack(1)
    reports = optimise(graph, disable=["axis_splitting", "simplify"])
    assert {r.name for r in reports} == set(PASSES) - {"axis_splitting", "simplify"}
    assert "div" in {n.op for n in graph.nodes}


def test_an_unknown_pass_is_named() -> None:
    with pytest.raises(CompileError, match="no pass 'cleverness'; passes are dce, cse"):
        default_pipeline(disable=["cleverness"])
    with pytest.raises(CompileError, match="cleverness"):
        find("cleverness")


def test_origins_and_output_names_are_kept() -> None:
    scope = Scope()
    g = Graph(scope)
    x = g.add_input((4, 1), np.float32, "x")
    root = g.add("sqrt", x, origin=Origin("Sqrt", "node_7"))
    y = g.add("reciprocal", root, origin=Origin("Reciprocal", "node_8"), name="result")
    g.outputs = [y]
    optimise(g)
    (out,) = g.outputs
    assert out.name == "result" and out.producer is not None
    assert (out.producer.op, str(out.producer.origin)) == ("rsqrt", "Reciprocal at node_8")


def test_outputs_keep_their_names_where_a_value_has_one() -> None:
    scope = Scope()
    g = Graph(scope)
    x = g.add_input((4,), np.float32, "x")
    a = g.add("exp", x, name="inner")
    b = g.add("neg", g.add("neg", a), name="result")
    c = g.add("transpose", x, perm=(0,), name="same")
    g.outputs = [b, c, b]
    optimise(g)
    assert [v.name for v in g.outputs] == ["result", "x", "result"]
    verify(g)


def test_passes_run_in_sub_graphs() -> None:
    text = """graph main {
      input %p: bool[]
      input %x: float32[4]
      %y: float32[4] = cond(%p, %x) branches=[graph no {
        input %a: float32[4]
        %n: float32[4] = neg(%a)
        %m: float32[4] = neg(%n)
        output %m
      }, graph yes {
        input %a: float32[4]
        %s: float32[4] = square(%a)
        %d: float32[4] = exp(%a)
        output %s
      }]
      output %y
    }"""
    graph = parse(text)
    assert count_nodes(graph) == 5
    reports = optimise(graph, verify=True)
    assert count_nodes(graph) == 2 and any(r.notes.get("twice") for r in reports)
    x = np.arange(4, dtype=np.float32)
    for p, want in ((False, x), (True, x * x)):
        np.testing.assert_array_equal(evaluate(graph, [np.asarray(p), x], {})[0], want)


def test_equal_branches_are_not_merged_with_others() -> None:
    """CSE leaves nodes with sub-graphs alone and the graph stays valid."""
    text = """graph main {
      input %p: bool[]
      input %x: float32[4]
      %y: float32[4] = cond(%p, %x) branches=[graph no {
        input %a: float32[4]
        output %a
      }]
      %z: float32[4] = cond(%p, %x) branches=[graph no {
        input %a: float32[4]
        output %a
      }]
      output %y, %z
    }"""
    graph = parse(text)
    assert not find("cse").run(graph)
    verify(graph)


@pytest.mark.slow  # a ratio of times, which a busy machine can spoil
def test_time_grows_linearly_with_the_number_of_layers() -> None:
    def seconds(layers: int) -> float:
        graph = norm_stack(layers)
        start = time.process_time()
        optimise(graph)
        return time.process_time() - start

    seconds(2)
    small, large = seconds(10), seconds(80)
    assert large < 8 * small * 3, (small, large)


def test_large_constants_are_compared_by_content() -> None:
    pool = ConstantPool()
    a = np.random.default_rng(0).standard_normal((200, 300)).astype(np.float32)
    b = a.copy()
    b[150, 7] += 1
    assert pool.number(a) == pool.number(a.copy()) != pool.number(b)
    assert pool.number(a.T) != pool.number(a)
    assert pool.number(np.float32([0.0])) != pool.number(np.float32([-0.0]))
    assert pool.number(np.zeros((0, 3), np.float32)) != pool.number(np.zeros((3, 0), np.float32))


def test_a_graph_of_nothing() -> None:
    graph = Graph(Scope())
    assert not any(r.modified for r in optimise(graph, verify=True))
    assert to_text(graph) == "graph main {\n  output\n}\n"
