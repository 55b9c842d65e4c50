"""Control flow; the branches and bodies are graphs in the attributes, callables when evaluated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graph_kernel.ir import Graph, Origin, Value
from graph_kernel.ops.base import Attrs, OpDef, Pattern, Type, fail, register, same_shape_of
from symbolic import Scope


def match_parameters(scope: Scope, what: str, params: Sequence[Value], args: Sequence[Value], origin: Origin) -> None:
    """An error unless ``args`` fit the inputs ``params`` of a sub-graph; sizes that are not proved equal become launch checks."""
    if len(params) != len(args):
        raise fail(origin, f"{what} takes {len(params)} values, got {len(args)}")
    for param, arg in zip(params, args, strict=True):
        if param.dtype != arg.dtype:
            raise fail(origin, f"{what} takes {param!r}, got {arg!r}")
        same_shape_of(scope, (param, arg), origin, f"a parameter and an argument of {what}")


def _infer_cond(scope: Scope, inputs: tuple[Value, ...], attrs: Attrs, origin: Origin) -> list[Type]:
    index, *operands = inputs
    branches: tuple[Graph, ...] = attrs["branches"]
    if index.shape or index.dtype.kind not in "iub":
        raise fail(origin, f"a branch index must be an integer or bool scalar, not {index!r}")
    for branch in branches:
        match_parameters(scope, "a branch", branch.inputs, operands, origin)
        match_parameters(scope, "a branch's result", branches[0].outputs, branch.outputs, origin)
    return [(v.shape, v.dtype) for v in branches[0].outputs]


def _evaluate_cond(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    branches = attrs["branches"]
    return branches[min(max(int(xs[0]), 0), len(branches) - 1)](*xs[1:])


register(
    OpDef(
        "cond",
        Pattern.CONTROL,
        None,
        _infer_cond,
        _evaluate_cond,
        doc="runs branches[index] on the operands; the index clamps, a bool false is 0",
    )
)


def _infer_while(scope: Scope, inputs: tuple[Value, ...], attrs: Attrs, origin: Origin) -> list[Type]:
    nc, nb = attrs["cond_consts"], attrs["body_consts"]
    cond_graph, body_graph = attrs["cond_graph"], attrs["body_graph"]
    carry = inputs[nc + nb :]
    match_parameters(scope, "the loop condition", cond_graph.inputs, (*inputs[:nc], *carry), origin)
    match_parameters(scope, "the loop body", body_graph.inputs, (*inputs[nc : nc + nb], *carry), origin)
    match_parameters(scope, "the loop carry", carry, body_graph.outputs, origin)
    if len(cond_graph.outputs) != 1 or cond_graph.outputs[0].shape or cond_graph.outputs[0].dtype != np.bool_:
        raise fail(origin, "the loop condition must give one bool scalar")
    return [(v.shape, v.dtype) for v in carry]


def _evaluate_while(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    nc, nb = attrs["cond_consts"], attrs["body_consts"]
    cond_consts, body_consts, carry = xs[:nc], xs[nc : nc + nb], list(xs[nc + nb :])
    while bool(attrs["cond_graph"](*cond_consts, *carry)[0]):
        carry = list(attrs["body_graph"](*body_consts, *carry))
    return carry


register(
    OpDef(
        "while",
        Pattern.CONTROL,
        None,
        _infer_while,
        _evaluate_while,
        doc="lax.while_p: inputs are cond_consts constants of the condition, body_consts of the body, then the carry",
    )
)


def _infer_scan(scope: Scope, inputs: tuple[Value, ...], attrs: Attrs, origin: Origin) -> list[Type]:
    n_consts, n_carry, length, body = attrs["num_consts"], attrs["num_carry"], attrs["length"], attrs["body"]
    xs = inputs[n_consts + n_carry :]
    rows = []
    for x in xs:
        if not x.shape:
            raise fail(origin, f"scan needs an axis to go along, got {x!r}")
        rows.append(Value((length, *x.shape[1:]), x.dtype))
        same_shape_of(scope, (rows[-1], x), origin, "the scan length and an operand")
    params = [Value(r.shape[1:], r.dtype) for r in rows]
    match_parameters(scope, "the scan body", body.inputs, (*inputs[: n_consts + n_carry], *params), origin)
    match_parameters(scope, "the scan carry", inputs[n_consts : n_consts + n_carry], body.outputs[:n_carry], origin)
    carry = [(v.shape, v.dtype) for v in inputs[n_consts : n_consts + n_carry]]
    return carry + [((length, *v.shape), v.dtype) for v in body.outputs[n_carry:]]


def _evaluate_scan(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    n_consts, n_carry, length = attrs["num_consts"], attrs["num_carry"], attrs["length"]
    consts, carry, rows = xs[:n_consts], list(xs[n_consts : n_consts + n_carry]), xs[n_consts + n_carry :]
    stacked: list[list[np.ndarray]] = []
    order = range(length - 1, -1, -1) if attrs["reverse"] else range(length)
    for i in order:
        out = attrs["body"](*consts, *carry, *(x[i] for x in rows))
        carry = list(out[:n_carry])
        stacked.append(list(out[n_carry:]))
    if attrs["reverse"]:
        stacked.reverse()
    if not stacked:
        return carry + [np.zeros((0, *shape), dtype) for shape, dtype in attrs["body"].output_types()[n_carry:]]
    return carry + [np.stack([row[i] for row in stacked]) for i in range(len(stacked[0]))]


register(
    OpDef(
        "scan",
        Pattern.CONTROL,
        None,
        _infer_scan,
        _evaluate_scan,
        doc="lax.scan_p: inputs are num_consts constants, num_carry carried values, then arrays whose rows are consumed",
    )
)


def _infer_call(scope: Scope, inputs: tuple[Value, ...], attrs: Attrs, origin: Origin) -> list[Type]:
    body: Graph = attrs["body"]
    match_parameters(scope, "the body", body.inputs, inputs, origin)
    return [(v.shape, v.dtype) for v in body.outputs]


def _evaluate_call(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    return attrs["body"](*xs)


register(
    OpDef(
        "call",
        Pattern.CONTROL,
        None,
        _infer_call,
        _evaluate_call,
        doc="runs the body, which several nodes may share: it is optimised and fused once",
    )
)
