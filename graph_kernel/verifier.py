"""The IR verifier: what every graph must satisfy between passes.

Checked for the graph and its sub-graphs: every value is defined once, before its use, under a name of its own;
every op is in the op table and has the attributes of ``ATTRIBUTES`` and nothing else; every node's shapes and
dtypes are those its op's shape rule gives (equal by form, or proved); and no node needs a launch check that the
scope does not have. The first failure raises ``CompileError`` that names the node and where it came from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from graph_kernel.ir import Graph, Node, Value
from graph_kernel.ops import OPS, Pattern
from vm.errors import CompileError

if TYPE_CHECKING:
    from symbolic import Dim, Scope

# op -> attributes; a name that ends in ? may be missing. Ops of pattern elementwise that are not listed have none.
ATTRIBUTES: dict[str, str] = {
    "barrier": "",
    "cast": "dtype",
    "broadcast": "shape dims",
    "reshape": "shape",
    "transpose": "perm",
    "slice": "starts limits strides",
    "rev": "axes",
    "pad": "low high interior",
    "concat": "axis",
    "iota": "shape axis dtype",
    "constant": "value",
    "dim": "expr dtype",
    "dot": "contract batch dtype",
    "take": "axis mode fill?",
    "take_along": "axis",
    "dynamic_slice": "sizes",
    "dynamic_update_slice": "",
    "argmax": "axis dtype",
    "argmin": "axis dtype",
    "call": "body",
    "cond": "branches",
    "while": "cond_graph body_graph cond_consts body_consts",
    "scan": "body num_consts num_carry length reverse",
    "attention": "scale mask causal guarded body",
    "gelu": "form body",
    "layer_norm": "axes eps variance affine body",
    "linear": "body",
    "relu": "body",
    "rms_norm": "axes eps body",
    "rope": "axis form body",
    "silu": "beta body",
    "softmax": "axes body",
    **dict.fromkeys(("reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "reduce_and", "reduce_or"), "axes"),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"), "axis reverse"),
}
NEW_SYMBOLS = frozenset({"nonzero", "unique"})  # their shape rule makes a symbol each time it is asked


def verify(graph: Graph) -> None:
    """Raises ``CompileError`` for the first thing that is wrong with ``graph`` or a sub-graph."""
    defined = _check_values(graph)
    for node in graph.nodes:
        for value in node.inputs:
            if value not in defined:
                raise _error(graph, node, f"reads {value!r}, which is not defined before it")
        for check in CHECKS:
            message = check(graph.scope, node)
            if message:
                raise _error(graph, node, message)
        defined.update(node.outputs)
    for value in graph.outputs:
        if value not in defined:
            raise CompileError(f"graph {graph.name}: output {value!r} is not defined in it")
    for sub in graph.subgraphs():
        verify(sub)


def _check_values(graph: Graph) -> set[Value]:
    """Each value has one definition and a name of its own. Returns the graph's inputs."""
    names: dict[str, Value] = {}
    for value in graph.inputs:
        if value.producer is not None:
            raise CompileError(f"graph {graph.name}: input {value!r} is also made by {value.producer!r}")
        _claim(graph, names, value)
    for node in graph.nodes:
        for value in node.outputs:
            if value.producer is not node:
                raise _error(graph, node, f"its output {value!r} says it is made by {value.producer!r}")
            _claim(graph, names, value)
    return set(graph.inputs)


def _claim(graph: Graph, names: dict[str, Value], value: Value) -> None:
    if value.name in names:
        raise CompileError(f"graph {graph.name}: the name %{value.name} is defined twice")
    names[value.name] = value


def _error(graph: Graph, node: Node, message: str) -> CompileError:
    where = f" ({node.origin})" if str(node.origin) else ""
    return CompileError(f"graph {graph.name}, node {node!r}{where}: {message}")


def known_op(scope: Scope, node: Node) -> str:
    """The op is in the table and has as many inputs as it says."""
    if node.op not in OPS:
        return f"there is no op {node.op!r}"
    count = OPS[node.op].n_inputs
    return f"it has {len(node.inputs)} inputs, not {count}" if count not in (None, len(node.inputs)) else ""


def attributes(scope: Scope, node: Node) -> str:
    """The attributes are those of the table, and hold plain data."""
    names = ATTRIBUTES.get(node.op)
    if names is None and OPS[node.op].pattern is Pattern.HOST:
        return ""
    allowed = [n.rstrip("?") for n in (names or "").split()]
    needed = [n for n in (names or "").split() if not n.endswith("?")]
    extra = [n for n in node.attrs if n not in allowed]
    missing = [n for n in needed if n not in node.attrs]
    if extra or missing:
        return f"attributes {extra} are unknown, {missing} are missing"
    bad = [n for n, v in node.attrs.items() if not _plain(v)]
    return f"attributes {bad} are not plain data" if bad else ""


def _plain(value: Any) -> bool:
    from symbolic import Expr

    if isinstance(value, tuple | list):
        return all(_plain(v) for v in value)
    if isinstance(value, type):
        return issubclass(value, np.generic)
    return value is None or isinstance(
        value, bool | int | float | complex | str | np.dtype | np.ndarray | np.generic | Graph | Expr
    )


def types(scope: Scope, node: Node) -> str:
    """Shapes and dtypes are what the shape rule gives, without a launch check that is not there yet."""
    if node.op in NEW_SYMBOLS:
        return ""
    checks = len(scope.checks)
    found = OPS[node.op].infer(scope, node.inputs, node.attrs, node.origin)
    if len(scope.checks) > checks:
        return f"it needs {scope.checks[-1].rel}, which is neither proved nor checked at launch"
    if len(found) != len(node.outputs):
        return f"it has {len(node.outputs)} outputs, its op gives {len(found)}"
    for value, (shape, dtype) in zip(node.outputs, found, strict=True):
        if value.dtype != dtype or not _same(scope, value.shape, shape):
            return f"output {value!r} should be {dtype}[{', '.join(map(str, shape))}]"
        if any(not isinstance(d, int) and not getattr(d, "symbols", ()) for d in value.shape):
            return f"a constant dimension of {value!r} is not a plain int"
    return ""


def _same(scope: Scope, a: tuple[Dim, ...], b: tuple[Dim, ...]) -> bool:
    return len(a) == len(b) and all(x == y or scope.equal(x, y) for x, y in zip(a, b, strict=True))


def unknown_symbols(scope: Scope, node: Node) -> str:
    """Every symbol of a shape is declared."""
    for value in node.outputs:
        for dim in value.shape:
            for name in getattr(dim, "symbols", ()):
                if name not in scope.symbols:
                    return f"the symbol {name!r} of {value!r} is not declared"
    return ""


CHECKS: tuple[Callable[[Scope, Node], str], ...] = (known_op, attributes, unknown_symbols, types)
