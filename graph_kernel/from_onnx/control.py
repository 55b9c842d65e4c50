"""If, Loop and Scan onto ``cond``, ``while`` and ``scan``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from graph_kernel.from_onnx.builder import Builder
from graph_kernel.from_onnx.registry import Call, Result, converter
from graph_kernel.from_onnx.tensor import Tensor
from graph_kernel.ir import Graph, Value
from vm.errors import CompileError, UnsupportedOp


def _body(c: Call, graph: onnx.GraphProto, builder: Builder, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Converts a sub-graph into ``builder``'s graph; its outputs."""
    from graph_kernel.from_onnx.convert import add_initializers, convert_nodes, subgraph_value

    frame = c.frame.child(builder)
    add_initializers(frame, graph)
    formal = [i.name for i in graph.input if i.name not in frame.names]
    if len(formal) != len(inputs):
        raise CompileError(f"{c.where()}: the sub-graph takes {len(formal)} inputs, {len(inputs)} are given")
    frame.names.update(zip(formal, inputs, strict=True))
    convert_nodes(frame, graph.node)
    return [subgraph_value(frame, o.name) for o in graph.output]


def _inner(c: Call, name: str) -> Builder:
    builder = Builder(Graph(c.builder.scope, name=name), parent=c.builder)
    builder.origin = c.builder.origin
    return builder


def _inputs_like(builder: Builder, values: Sequence[Value]) -> list[Tensor]:
    return [Tensor.of(builder.graph.add_input(v.shape, v.dtype), builder) for v in values]


def _take_captured(builders: Sequence[Builder], own: Sequence[Sequence[Value]]) -> list[Tensor]:
    """Gives all graphs the same leading inputs, one for every outer value that any of them uses; those values."""
    outer = list(dict.fromkeys(t for b in builders for t in b.captured))
    for b, mine in zip(builders, own, strict=True):
        lead = [b.value(t) if t in b.captured else b.graph.new_value(t.shape, t.dtype) for t in outer]
        b.graph.inputs = lead + list(mine)
    return outer


def _same_type(b: Builder, x: Value, y: Value) -> bool:
    return x.rank == y.rank and x.dtype == y.dtype and all(map(b.same_dim, x.shape, y.shape))


@converter("If")
def _if(c: Call) -> Result:
    b = c.builder
    branches = [c.attr("else_branch"), c.attr("then_branch")]
    known = c.tensor(0).known
    if known is not None and isinstance(known.reshape(-1)[0], int):
        return _body(c, branches[1 if known.reshape(-1)[0] else 0], b, [])
    builders = [_inner(c, name) for name in ("else", "then")]
    missing: list[UnsupportedOp] = []
    for builder, graph in zip(builders, branches, strict=True):
        try:
            builder.graph.outputs = [builder.value(t) for t in _body(c, graph, builder, [])]
        except UnsupportedOp as error:  # the other branch may have more to report
            missing.append(error)
    if missing:
        raise missing[0]
    for i, (x, y) in enumerate(zip(builders[0].graph.outputs, builders[1].graph.outputs, strict=True)):
        if not _same_type(b, x, y):
            raise c.unsupported(f"output {i} is {y!r} in one branch and {x!r} in the other")
    outer = _take_captured(builders, [[], []])
    index = b.cast(b.reshape(c.x(0), ()), np.int32)
    return b.ops("cond", [index, *map(b.value, outer)], branches=tuple(x.graph for x in builders))


@converter("Loop")
def _loop(c: Call) -> Result:
    """A ``scan`` where the number of trips is a dim and the condition stays true, else a ``while``."""
    b, graph = c.builder, c.attr("body")
    initial = [c.x(i) for i in range(2, len(c.inputs))]
    body = _inner(c, "body")
    trip = Tensor.of(body.graph.add_input((), np.int64), body)
    state = _inputs_like(body, initial)
    formal = [body.value(t) for t in (trip, *state)]
    # the body only ever runs while its condition is true
    again, *outs = _body(c, graph, body, [trip, Tensor.const(np.asarray(True)), *state])
    results = [body.value(t) for t in outs]
    for i, (x, y) in enumerate(zip(initial, results, strict=False)):
        if not _same_type(b, x, y):
            raise c.unsupported(f"loop variable {i} changes from {x!r} to {y!r}")
    start = c.tensor(1).known if c.has(1) else np.ones(1, dtype=object)
    trips = c.tensor(0).known if c.has(0) else None
    goes_on = again.known is not None and _is_true(again.known)
    body.graph.outputs = [body.add(formal[0], 1)]
    if goes_on and trips is not None and start is not None and _is_true(start):
        body.graph.outputs += results
        outer = _take_captured([body], [formal])
        attrs = {"body": body.graph, "num_consts": len(outer), "num_carry": 1 + len(initial), "reverse": False}
        operands = [*map(b.value, outer), b.scalar(0, np.int64), *initial]
        return b.ops("scan", operands, length=trips.reshape(-1)[0], **attrs)[1:]
    if len(results) > len(initial):
        raise c.unsupported("how many rows the scan outputs have depends on data")
    return _while(c, body, formal, body.reshape(body.value(again), ()), results, initial)


def _is_true(known: np.ndarray) -> bool:
    first = known.reshape(-1)[0]
    return isinstance(first, int) and bool(first)


def _while(
    c: Call, body: Builder, formal: list[Value], again: Value, results: list[Value], initial: list[Value]
) -> Sequence[Value]:
    """Carries (trip number, condition, state...); the limit is a constant of the condition."""
    b = c.builder
    flag = body.graph.new_value((), np.bool_)
    body.graph.outputs += [again, *results]
    outer = _take_captured([body], [[formal[0], flag, *formal[1:]]])
    test = _inner(c, "condition")
    limit = [test.graph.add_input((), np.int64)] if c.has(0) else []
    count, going = test.graph.add_input((), np.int64), test.graph.add_input((), np.bool_)
    for v in initial:
        test.graph.add_input(v.shape, v.dtype)
    test.graph.outputs = [test.op("and", going, test.op("lt", count, limit[0])) if limit else going]
    limits = [b.reshape(b.cast(c.x(0), np.int64), ())] if limit else []
    start = b.reshape(c.x(1), ()) if c.has(1) else b.scalar(True, np.bool_)
    operands = [*limits, *map(b.value, outer), b.scalar(0, np.int64), start, *initial]
    attrs = {"cond_graph": test.graph, "body_graph": body.graph, "cond_consts": len(limits), "body_consts": len(outer)}
    return b.ops("while", operands, **attrs)[2:]


@converter("Scan")
def _scan(c: Call) -> Result:
    b, graph = c.builder, c.attr("body")
    count = c.attr("num_scan_inputs")
    values = [c.x(i) for i in range(len(c.inputs))]
    states, rows = values[: len(values) - count], values[len(values) - count :]
    axes = c.attr("scan_input_axes") or [0] * count
    directions = c.attr("scan_input_directions") or [0] * count
    rows = [
        b.rev(_to_front(b, x, c.axis(a, x.rank)), *([0] if d else []))
        for x, a, d in zip(rows, axes, directions, strict=True)
    ]
    length = rows[0].shape[0]
    body = _inner(c, "body")
    params = _inputs_like(body, states)
    params += [Tensor.of(body.graph.add_input(x.shape[1:], x.dtype), body) for x in rows]
    formal = [body.value(t) for t in params]
    body.graph.outputs = [body.value(t) for t in _body(c, graph, body, params)]
    outer = _take_captured([body], [formal])
    attrs = {"num_consts": len(outer), "num_carry": len(states), "length": length, "reverse": False}
    outs = list(b.ops("scan", [*map(b.value, outer), *states, *rows], body=body.graph, **attrs))
    out_axes = c.attr("scan_output_axes") or [0] * (len(outs) - len(states))
    out_directions = c.attr("scan_output_directions") or [0] * (len(outs) - len(states))
    for i, (axis, direction) in enumerate(zip(out_axes, out_directions, strict=True), start=len(states)):
        y = b.rev(outs[i], 0) if direction else outs[i]
        outs[i] = _from_front(b, y, c.axis(axis, y.rank))
    return outs


def _to_front(b: Builder, x: Value, axis: int) -> Value:
    return b.transpose(x, [axis, *(i for i in range(x.rank) if i != axis)])


def _from_front(b: Builder, x: Value, axis: int) -> Value:
    order = list(range(1, x.rank))
    order.insert(axis, 0)
    return b.transpose(x, order)
