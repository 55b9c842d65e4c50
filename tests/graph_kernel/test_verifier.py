"""The verifier finds each kind of damage and names the node; sound graphs pass and change nothing in the scope."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from graph_kernel.ir import Graph, Node, Origin
from graph_kernel.ops import OPS, Pattern
from graph_kernel.text import parse
from graph_kernel.verifier import ATTRIBUTES, verify
from symbolic import Scope, symbol
from vm.errors import CompileError


def sample() -> Graph:
    """A sound graph of a few nodes."""
    scope = Scope()
    s = scope.declare("s", 0)
    graph = Graph(scope)
    x = graph.add_input((s, 8), np.float32, "x")
    y = graph.add("exp", x, name="y", origin=Origin("Exp", "node_1"))
    z = graph.add("reduce_sum", y, axes=(1,), name="z")
    graph.outputs = [graph.add("transpose", y, perm=(1, 0), name="t"), z]
    return graph


def use_before_definition(g: Graph) -> None:
    g.nodes.reverse()


def duplicate_name(g: Graph) -> None:
    g.nodes[1].output.name = "y"


def wrong_producer(g: Graph) -> None:
    g.nodes[1].output.producer = g.nodes[0]


def produced_input(g: Graph) -> None:
    g.inputs[0].producer = g.nodes[0]


def undefined_output(g: Graph) -> None:
    g.outputs.append(g.new_value((), np.float32, "nowhere"))


def unknown_op(g: Graph) -> None:
    g.nodes[0].op = "explode"


def input_count(g: Graph) -> None:
    g.nodes[0].inputs *= 2


def missing_attribute(g: Graph) -> None:
    g.nodes[1].attrs = {}


def extra_attribute(g: Graph) -> None:
    g.nodes[0].attrs["speed"] = 11


def attribute_kind(g: Graph) -> None:
    g.nodes[1].attrs["axes"] = {1}


def wrong_shape(g: Graph) -> None:
    g.nodes[1].output.shape = (8,)


def wrong_dtype(g: Graph) -> None:
    g.nodes[1].output.dtype = np.dtype(np.float16)


def wrong_rank(g: Graph) -> None:
    g.nodes[2].output.shape = (8,)


def bad_axis(g: Graph) -> None:
    g.nodes[1].attrs["axes"] = (2,)


def undeclared_symbol(g: Graph) -> None:
    g.nodes[1].output.shape = (symbol("q"),)


def unproved(g: Graph) -> None:
    r = g.scope.declare("r", 0)
    other = g.new_value((r, 8), np.float32, "other")
    g.inputs.append(other)
    node = Node("add", (g.inputs[0], other), (g.new_value(g.inputs[0].shape, np.float32, "sum"),))
    node.output.producer = node
    g.nodes.append(node)


DAMAGE: list[tuple[Callable[[Graph], None], str]] = [
    (use_before_definition, "node %t = transpose.*reads %y.*not defined before it"),
    (duplicate_name, "the name %y is defined twice"),
    (wrong_producer, "says it is made by %y = exp"),
    (produced_input, "input %x.*is also made by"),
    (undefined_output, "output %nowhere.*is not defined"),
    (unknown_op, r"%y = explode\(%x\) \(Exp at node_1\): there is no op 'explode'"),
    (input_count, r"\(Exp at node_1\): it has 2 inputs, not 1"),
    (missing_attribute, r"%z = reduce_sum.*\['axes'\] are missing"),
    (extra_attribute, r"%y = exp.*\['speed'\] are unknown"),
    (attribute_kind, r"%z = reduce_sum.*\['axes'\] are not plain data"),
    (wrong_shape, r"%z = reduce_sum.*should be float32\[s\]"),
    (wrong_dtype, r"%z = reduce_sum.*should be float32\[s\]"),
    (wrong_rank, r"%t = transpose.*should be float32\[8, s\]"),
    (bad_axis, "axis 2"),
    (undeclared_symbol, "'q' of %z.*is not declared"),
    (unproved, "%sum = add.*neither proved nor checked at launch"),
]


def test_a_sound_graph_passes_and_stays() -> None:
    graph = sample()
    verify(graph)
    assert not graph.scope.checks and not graph.scope.facts


@pytest.mark.parametrize(("damage", "message"), DAMAGE, ids=lambda d: getattr(d, "__name__", ""))
def test_damage_is_found(damage: Callable[[Graph], None], message: str) -> None:
    graph = sample()
    damage(graph)
    with pytest.raises(CompileError, match=message):
        verify(graph)


def test_damage_in_a_sub_graph_is_found() -> None:
    graph = parse("""graph main {
      input %p: bool[]
      input %x: float32[4]
      %y: float32[4] = cond(%p, %x) branches=[graph inner {
        input %a: float32[4]
        %n: float32[4] = neg(%a) why=1
        output %n
      }]
      output %y
    }""")
    with pytest.raises(CompileError, match="graph inner, node %n = neg.*'why'"):
        verify(graph)


def test_the_signature_of_a_branch_has_to_fit() -> None:
    graph = parse("""graph main {
      input %p: bool[]
      input %x: float32[4]
      %y: float32[4] = cond(%p, %x) branches=[graph inner {
        input %a: float16[4]
        %n: float32[4] = cast(%a) dtype=!float32
        output %n
      }]
      output %y
    }""")
    with pytest.raises(CompileError, match="a branch takes %a: float16"):
        verify(graph)


def test_equal_shapes_may_be_written_differently() -> None:
    graph = parse("""graph main {
      symbol a [0, inf]
      symbol b [0, inf]
      fact a == 2*b
      input %x: float32[a]
      %y: float32[2*b] = neg(%x)
      output %y
    }""")
    verify(graph)


def test_the_attribute_table_covers_the_op_table() -> None:
    plain = {Pattern.ELEMENTWISE, Pattern.HOST}
    assert {name for name, op in OPS.items() if op.pattern not in plain} <= ATTRIBUTES.keys()
    assert ATTRIBUTES.keys() <= OPS.keys()
