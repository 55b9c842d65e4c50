"""Every ``raise Refusal`` of fusion's analysis: a function for which it is raised, and what becomes of that function without it.

The statement is taken out of the function that holds it. Then there is no program, or it gives wrong results; where a later stage
refuses the same merge, and the program comes out as before, the table says so.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from jax import lax

from codegen import compile_graph
from dvm import pipeline
from graph_kernel import passes
from graph_kernel.fusion import axes, layout
from tests.e2e import harness
from tests.e2e.harness import check, program_of, random, simulate
from vm import serialise
from vm.program import Program

ROOT = Path(axes.__file__).parent


def spec(shape: str) -> jax.ShapeDtypeStruct:
    dtype = jnp.int32 if shape.startswith("int") else jnp.float32
    shape = shape.removeprefix("int").strip()
    return harness.spec(shape, dtype, **{k: (0, 600) for k in "abns" if k in shape})


@dataclass(frozen=True)
class Row:
    """Where the refusal is, part of its message, a function that meets it with shapes at a launch, and what its loss does: ``broken`` or
    ``implied``."""

    where: Any
    message: str
    fn: Callable[..., Any]
    shapes: tuple[str, ...]
    at: dict[str, int]
    effect: str = "broken"
    passes: bool = True  # whether the graph is simplified first, after which no graph is known that meets the refusal


def either(a: str, b: str) -> onnx.ModelProto:
    """exp(x) + y with sizes that are equal, or one of them is 1."""
    ends = [
        onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [d]) for n, d in (("x", a), ("y", b), ("z", "c"))
    ]
    nodes = [onnx.helper.make_node("Exp", ["x"], ["e"]), onnx.helper.make_node("Add", ["e", "y"], ["z"])]
    return onnx.helper.make_model(onnx.helper.make_graph(nodes, "either", ends[:2], ends[2:]))


WALK = axes._Walk
TABLE = [
    Row(axes.find_axes, "read along two axes at once", lambda x: jnp.exp(x) + jnp.exp(x).T, ("a, a",), {"a": 5}),
    Row(WALK.mark_local, "may be longer than a tile", lambda x: jnp.cumsum(jnp.exp(x), 0), ("a, 3",), {"a": 300}),
    Row(WALK.op_reshape, "mixes dims", lambda x: jnp.exp(jnp.exp(x).reshape(3, -1)), ("a, 6",), {"a": 4}),
    Row(WALK.op_slice, "at a symbolic place", lambda x: jnp.exp(x)[1:] * 2, ("a, 3",), {"a": 5}, "implied"),
    Row(
        WALK.op_pad,
        "a pad with a computed value",
        lambda x, y: lax.pad(jnp.exp(x), jnp.sum(y), [(0, 0, 0), (1, 1, 0)]),
        ("a, 3", "3"),
        {"a": 5},
    ),
    Row(
        WALK.op_pad,
        "this pad of a computed value",
        lambda x: lax.pad(jnp.exp(x), jnp.float32(1), [(0, 0, 0), (1, 1, 1)]),
        ("a, 3",),
        {"a": 5},
    ),
    Row(
        WALK.op_pad,
        "a pad of a size-1 dim",
        lambda x: jnp.pad(jnp.sum(x, 1, keepdims=True), ((0, 0), (1, 1))),
        ("a, 3",),
        {"a": 5},
        "implied",
    ),
    Row(
        WALK.op_concat,
        "a concatenation of a size-1 dim",
        lambda x: jnp.exp(jnp.concatenate([jnp.sum(x, 1, keepdims=True), x], 1)),
        ("a, 3",),
        {"a": 5},
        "implied",
    ),
    Row(WALK.op_take, "the table of a take", lambda x, i: jnp.exp(x)[i], ("9, 3", "int n"), {"n": 4}),
    Row(
        WALK.op_take_along,
        "the table of a take",
        lambda x, i: jnp.take_along_axis(jnp.exp(x), i, 0),
        ("9, 3", "int a, 3"),
        {"a": 5},
    ),
    Row(
        WALK.op_dynamic_slice,
        "the operand of a dynamic slice",
        lambda x, i: lax.dynamic_slice(jnp.exp(x), (i, i), (2, 3)),
        ("7, 3", "int"),
        {},
    ),
    Row(
        WALK.op_dynamic_update_slice,
        "the update of a dynamic update slice",
        lambda x, y, i: lax.dynamic_update_slice(x, jnp.exp(y), (i, i)),
        ("7, 3", "2, 3", "int"),
        {},
    ),
    Row(
        layout._stage_loops,
        "two different dynamic dims",
        lambda x: jnp.sum(jnp.pad(x, 1)) - jnp.prod(x),
        ("a",),
        {"a": 5},
    ),
    Row(
        axes._Classes.refine,
        "is split in two different ways",
        lambda x: jnp.exp(x).reshape(-1, 4, 6).sum(2).sum(1) + jnp.exp(x).reshape(-1, 6, 4).sum(1).max(1),
        ("a, 24",),
        {"a": 5},
        passes=False,
    ),
    Row(
        layout.value_parts,
        "divided and split again",
        lambda x, w: jnp.exp(jnp.repeat(x, 2, 1)).reshape(-1, 4, 5) * w,
        ("a, 10", "4, 5"),
        {"a": 5},
        passes=False,
    ),
    Row(
        WALK.op_broadcast,
        "only known at launch and the operand is not stored",
        either("a", "b"),
        ("a", "b"),
        {"a": 1, "b": 5},
    ),
]


def compiled(row: Row) -> Program:
    if not row.passes:
        return compile_graph(pipeline.from_function(row.fn, tuple(map(spec, row.shapes)), {}).graph, {})
    if not isinstance(row.fn, onnx.ModelProto):
        return program_of(row.fn, *map(spec, row.shapes))
    graph = pipeline.from_onnx_model(row.fn).graph
    passes.optimise(graph)
    return compile_graph(graph, {})


def drop(patch: pytest.MonkeyPatch, function: Any, message: str) -> None:
    """Takes the ``raise`` with this message out of a function, wherever that is used."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    found = [n for n in ast.walk(tree) if isinstance(n, ast.Raise) and message in ast.unparse(n)]
    assert found, message

    class Without(ast.NodeTransformer):
        def visit_Raise(self, node: ast.Raise) -> ast.AST:
            return ast.copy_location(ast.Pass(), node) if node in found else node

    names: dict[str, Any] = {}
    exec(
        compile(ast.fix_missing_locations(Without().visit(tree)), function.__code__.co_filename, "exec"),
        function.__globals__,
        names,
    )
    patch.setattr(function, "__code__", names[function.__name__].__code__)


def inputs(row: Row) -> list[np.ndarray]:
    arrays = []
    for i, text in enumerate(row.shapes):
        dims = text.removeprefix("int").replace(" ", "").split(",")
        shape = [row.at[d] if d in row.at else int(d) for d in dims if d]
        arrays.append(np.ones(shape, np.int32) if text.startswith("int") else random(shape, seed=i))
    return arrays


def expected(row: Row, arrays: list[np.ndarray]) -> list[Any]:
    if isinstance(row.fn, onnx.ModelProto):
        return [np.exp(arrays[0]) + arrays[1]]
    return jax.tree_util.tree_leaves(row.fn(*arrays))


def right(row: Row) -> bytes:
    """The program, which must give what JAX gives."""
    program = compiled(row)
    arrays = inputs(row)
    for got, want in zip(simulate(program, *arrays), expected(row, arrays), strict=True):
        check(got, np.asarray(want), 1e-5)
    return serialise.dumps(program, strip=True)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.where.__qualname__}: {row.message}")
def test_without_the_refusal(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(axes.Refusal, "__init__", lambda self, reason: met.append(reason))
        before = right(row)
    assert any(row.message in reason for reason in met)
    drop(monkeypatch, row.where, row.message)
    if row.effect == "implied":
        assert right(row) == before
    else:
        with pytest.raises(Exception):  # noqa: B017  no program, an access outside of a buffer, or wrong values
            right(row)
