"""The text form: every kind of value prints and parses back, and a wrong text is refused with its line."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from graph_kernel.ir import Graph, Origin
from graph_kernel.text import INLINE, parse, same_graph, to_text
from graph_kernel.verifier import verify
from symbolic import Scope, divides, le, symbol
from vm.errors import CompileError


def round_trip(graph: Graph) -> tuple[str, Graph]:
    """The text, and the graph that it parses to; checks that both say the same."""
    blobs: dict[str, np.ndarray] = {}
    text = to_text(graph, blobs)
    again = parse(text, blobs)
    assert to_text(again) == text and same_graph(graph, again)
    verify(again)
    return text, again


def test_a_small_graph_reads_like_this() -> None:
    scope = Scope()
    s = scope.declare("s", max=4096, origin="input x axis 0")
    graph = Graph(scope)
    x = graph.add_input((s, 8), np.float32, "x")
    y = graph.add("reduce_sum", x, axes=(1,), origin=Origin("ReduceSum", "node_3"), name="y")
    graph.outputs = [y]
    text, again = round_trip(graph)
    assert text == (
        "graph main {\n"
        '  symbol s [1, 4096] "input x axis 0"\n'
        "  input %x: float32[s, 8]\n"
        "  %y: float32[s] = reduce_sum(%x) axes=[1] // ReduceSum at node_3\n"
        "  output %y\n"
        "}\n"
    )
    assert again.nodes[0].origin == Origin("ReduceSum", "node_3")


def test_scope_lines() -> None:
    scope = Scope()
    scope.declare("b", 0)
    scope.declare("s", 8, 512, multiple_of=8)
    scope.declare("batch size", 1, origin='odd "name"')
    scope.fresh("n", 0, "nonzero")
    scope.assume(le(symbol("b"), symbol("s")), "told so")
    scope.require(divides(4, symbol("b")), "a node", "rows come in fours")
    graph = Graph(scope)
    graph.outputs = [graph.add_input((symbol("b") * 2 + symbol("s"), symbol("batch size")), np.float32, "x")]
    text, again = round_trip(graph)
    assert '  symbol `batch size` [1, inf] "odd \\"name\\""\n' in text
    assert "  symbol s [8, 512] step 8 + 0\n" in text and '  symbol n [0, inf] data "nonzero"\n' in text
    assert '  check b % 4 == 0 "a node" "rows come in fours"\n' in text
    assert again.scope.symbols == scope.symbols
    assert again.scope.proves(le(symbol("b"), symbol("s"))) and again.scope.proves(divides(4, symbol("b")))
    assert again.scope.checks == scope.checks


ARRAYS = [
    np.array(True),
    np.array([1, -2, 127], np.int8),
    np.array([2**63, 0], np.uint64),
    np.array([[1.5, -0.0], [np.inf, -np.inf]], np.float32),
    np.array([0.1, 1 / 3], np.float64),
    np.array([1e-7, 65504], np.float16),
    np.array([3.14159, 1e38], ml_dtypes.bfloat16),
    np.array([np.nan, 1.0], np.float32),
    np.array([1 + 2j], np.complex64),
    np.zeros((0, 3), np.float32),
    np.arange(INLINE + 1, dtype=np.int64),
    np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: f"{a.dtype}{list(a.shape)}")
def test_constants_are_exact(array: np.ndarray) -> None:
    graph = Graph(Scope())
    graph.outputs = [graph.constant(array)]
    _, again = round_trip(graph)
    found = again.nodes[0].attrs["value"]
    assert found.dtype == array.dtype and found.shape == array.shape and found.tobytes() == array.tobytes()


def test_large_constants_need_the_table() -> None:
    graph = Graph(Scope())
    graph.outputs = [graph.constant(np.arange(100))]
    text = to_text(graph)
    assert "blob<int64[100]: " in text and len(text) < 200
    with pytest.raises(CompileError, match=r"line 2: the array [0-9a-f]{16} is not in the table"):
        parse(text)


def test_names_of_front_ends() -> None:
    graph = Graph(Scope())
    x = graph.add_input((2,), np.float32, "params['q_proj'] bias")
    y = graph.add("neg", x, name="layers.0/attn:0-out")
    graph.outputs = [y, y, x]
    text, again = round_trip(graph)
    assert "%\"params['q_proj'] bias\": float32[2]" in text
    assert [v.name for v in again.outputs] == [y.name, y.name, x.name]
    fresh = again.add("neg", again.outputs[0])
    assert fresh.name not in (x.name, y.name)


def test_numbers_of_parsed_graphs_stay_unique() -> None:
    graph = parse("graph main {\n  input %3: float32[]\n  %7: float32[] = neg(%3)\n  output %7\n}")
    assert graph.add("neg", graph.outputs[0]).name == "8"


def test_sub_graphs_and_several_results() -> None:
    text = """graph main {
  symbol b [0, inf]
  input %p: int32[]
  input %x: float32[b, 4]
  %y: float32[b, 4], %z: float32[4] = cond(%p, %x) branches=[graph first {
    input %a: float32[b, 4]
    %s: float32[4] = reduce_sum(%a) axes=[0]
    output %a, %s
  }, graph second {
    input %a: float32[b, 4]
    %c: float32[4] = constant value=dense<float32[4]: 1.0, 2.0, 3.0, 4.0>
    output %a, %c
  }] // cond at file.py:3 (f)
  output %z, %y
}
"""
    graph = parse(text)
    verify(graph)
    assert to_text(graph) == text
    assert all(sub.scope is graph.scope for sub in graph.subgraphs())


def test_every_attribute_kind() -> None:
    text = (
        "graph main {\n  symbol s [1, inf]\n  input %x: float32[s]\n"
        '  %y: float32[s] = anything(%x) a=1 b=-2.5 c=true d=none e="two\\nlines" f=!bfloat16 g=<2*s + 1> h=[[], [1, <s>]] i=inf\n'
        "  output %y\n}\n"
    )
    graph = parse(text)
    assert to_text(graph) == text
    attrs = graph.nodes[0].attrs
    assert (
        attrs["h"] == ((), (1, symbol("s")))
        and attrs["f"] == np.dtype(ml_dtypes.bfloat16)
        and attrs["i"] == float("inf")
    )


BROKEN = {
    "no closing": ("graph main {\n  input %x: float32[2]\n", "line 3"),
    "undefined": ("graph main {\n  output %x\n}", "line 2: %x is not defined"),
    "defined twice": (
        "graph main {\n  input %x: float32[2]\n  input %x: float32[2]\n  output %x\n}",
        "%x is defined twice",
    ),
    "dtype": ("graph main {\n  input %x: float33[2]\n  output %x\n}", "no dtype 'float33'"),
    "dim": ("graph main {\n  input %x: float32[2 +]\n  output %x\n}", "cannot read '2 \\+'"),
    "value": (
        "graph main {\n  input %x: float32[2]\n  %y: float32[2] = neg(%x) a=what\n  output %y\n}",
        "value 'what'",
    ),
    "symbol": ("graph main {\n  symbol s 1 to 4\n  output\n}", "cannot read the symbol"),
    "rest": ("graph main {\n  output\n}\nmore", "expected the end"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_text_is_refused(name: str) -> None:
    text, message = BROKEN[name]
    with pytest.raises(CompileError, match=message):
        parse(text)
