"""RNN, GRU and LSTM: the products with the inputs for all times at once, then a ``scan`` over time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from graph_kernel.from_onnx.builder import Builder
from graph_kernel.from_onnx.registry import Call, Result, converter
from graph_kernel.from_onnx.tensor import Tensor
from graph_kernel.ir import Graph, Value

ACTIVATIONS = {"sigmoid": "logistic", "tanh": "tanh"}
DEFAULTS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


@dataclass
class Cell:
    """What one direction computes with; values of the outer graph except in ``step``."""

    kind: str
    hidden: int
    functions: list[str]
    recurrent: Value  # [gates * hidden, hidden]
    bias: Value | None  # of the recurrent product, where it cannot be added to the inputs' ahead of time
    peepholes: Value | None  # [3 * hidden]
    linear_before_reset: bool

    def act(self, b: Builder, i: int, x: Value) -> Value:
        """Activation function i."""
        name = self.functions[i].lower()
        return b.maximum(x, 0) if name == "relu" else b.unary(ACTIVATIONS[name], x)

    def gate(self, b: Builder, x: Value, i: int) -> Value:
        """Columns of gate i."""
        return b.slice_axis(x, x.rank - 1, i * self.hidden, (i + 1) * self.hidden)

    def step(self, b: Builder, x: Value, state: list[Value], outer: Builder) -> list[Value]:
        """The next state; x holds the inputs' share of all gates, [batch, gates * hidden]."""

        def take(value: Value) -> Value:
            return b.value(Tensor.of(value, outer))

        h = state[0]
        weights = take(self.recurrent)
        if self.kind == "GRU":
            return [self._gru(b, x, h, weights, take)]
        mixed = b.add(x, b.dot(h, weights, ((1,), (1,))))
        if self.kind == "RNN":
            return [self.act(b, 0, mixed)]
        return self._lstm(b, mixed, state, take(self.peepholes) if self.peepholes is not None else None)

    def _gru(self, b: Builder, x: Value, h: Value, weights: Value, take: Callable[[Value], Value]) -> Value:
        size = self.hidden
        both = b.dot(h, b.slice_axis(weights, 0, 0, 2 * size), ((1,), (1,)))
        z = self.act(b, 0, b.add(self.gate(b, x, 0), self.gate(b, both, 0)))
        r = self.act(b, 0, b.add(self.gate(b, x, 1), self.gate(b, both, 1)))
        last = b.slice_axis(weights, 0, 2 * size, 3 * size)
        if self.linear_before_reset:
            product = b.dot(h, last, ((1,), (1,)))
            product = product if self.bias is None else b.add(product, take(self.bias))
            product = b.mul(r, product)
        else:
            product = b.dot(b.mul(r, h), last, ((1,), (1,)))
        new = self.act(b, 1, b.add(self.gate(b, x, 2), product))
        return b.add(b.mul(b.sub(1.0, z), new), b.mul(z, h))

    def _lstm(self, b: Builder, mixed: Value, state: list[Value], peepholes: Value | None) -> list[Value]:
        cell = state[1]
        i, o, f, new = (self.gate(b, mixed, k) for k in range(4))
        if peepholes is not None:
            i = b.add(i, b.mul(self.gate(b, peepholes, 0), cell))
            f = b.add(f, b.mul(self.gate(b, peepholes, 2), cell))
        cell = b.add(b.mul(self.act(b, 0, f), cell), b.mul(self.act(b, 0, i), self.act(b, 1, new)))
        if peepholes is not None:
            o = b.add(o, b.mul(self.gate(b, peepholes, 1), cell))
        return [b.mul(self.act(b, 0, o), self.act(b, 2, cell)), cell]


@converter("RNN", "GRU", "LSTM")
def _recurrent(c: Call) -> Result:
    """Y[time, direction, batch, hidden] and the last states; ``layout`` 1 has the batch first."""
    b, kind = c.builder, c.node.op_type
    weights = c.x(1)
    directions, hidden = weights.shape[0], c.attr("hidden_size", None)
    hidden = c.x(2).shape[2] if hidden is None else hidden
    functions = c.attr("activations") or DEFAULTS[kind] * 2
    known = all(f.lower() in (*ACTIVATIONS, "relu") for f in functions)
    if not known or c.attr("clip", None) is not None or c.attr("input_forget", 0):
        raise c.unsupported("other activations, clip and input_forget are not supported")
    if not isinstance(directions, int) or not isinstance(hidden, int) or directions not in (1, 2):
        raise c.unsupported("the number of directions and the hidden size have to be numbers")
    batch_first = bool(c.attr("layout", 0))
    x = b.transpose(c.x(0), (1, 0, 2)) if batch_first else c.x(0)
    per_direction = len(DEFAULTS[kind])
    found = []
    for d in range(directions):
        reverse = d == 1 or c.attr("direction", "forward") == "reverse"
        chosen = functions[d * per_direction :][:per_direction] or functions[:per_direction]
        found.append(_run_direction(c, x, d, hidden, chosen, reverse, batch_first))
    rows, *states = ([f[i] for f in found] for i in range(len(found[0])))
    y = b.concat([b.unsqueeze(v, 1) for v in rows], 1)
    last = [b.concat([b.unsqueeze(v, 0) for v in vs], 0) for vs in states]
    if batch_first:
        y, last = b.transpose(y, (2, 0, 1, 3)), [b.transpose(v, (1, 0, 2)) for v in last]
    return [y, *last]


def _of_direction(b: Builder, value: Value, d: int, axis: int = 0) -> Value:
    part = b.slice_axis(value, axis, d, d + 1)
    return b.reshape(part, [n for i, n in enumerate(part.shape) if i != axis])


def _run_direction(
    c: Call, x: Value, d: int, hidden: int, functions: list[str], reverse: bool, batch_first: bool
) -> list[Value]:
    """(all hidden states, last state...) of one direction."""
    b, kind = c.builder, c.node.op_type
    size, before_reset = GATES[kind] * hidden, bool(c.attr("linear_before_reset", 0))
    inputs = b.dot(x, _of_direction(b, c.x(1), d), ((2,), (1,)))
    late: Value | None = None
    if c.has(3):
        bias = _of_direction(b, c.x(3), d)
        first, second = b.slice_axis(bias, 0, 0, size), b.slice_axis(bias, 0, size, 2 * size)
        if kind == "GRU" and before_reset:
            late = b.slice_axis(second, 0, 2 * hidden, 3 * hidden)
            second = b.pad(b.slice_axis(second, 0, 0, 2 * hidden), (0,), (hidden,))
        inputs = b.add(inputs, b.add(first, second))
    peepholes = _of_direction(b, c.x(7), d) if kind == "LSTM" and c.has(7) else None
    cell = Cell(kind, hidden, functions, _of_direction(b, c.x(2), d), late, peepholes, before_reset)
    states = [
        _of_direction(b, c.x(i), d, 1 if batch_first else 0) if c.has(i) else b.full((x.shape[1], hidden), 0, x.dtype)
        for i in ((5, 6) if kind == "LSTM" else (5,))
    ]
    lengths = b.cast(c.x(4), np.int64) if c.has(4) else None
    return _scan(b, cell, inputs, states, lengths, reverse)


def _scan(
    b: Builder, cell: Cell, inputs: Value, states: list[Value], lengths: Value | None, reverse: bool
) -> list[Value]:
    body = Builder(Graph(b.scope, name="cell"), parent=b)
    body.origin = b.origin
    olds = [body.graph.new_value(s.shape, s.dtype) for s in states]
    row = body.graph.new_value(inputs.shape[1:], inputs.dtype)
    time = body.graph.new_value((), np.int64)
    news = cell.step(body, row, olds, b)
    shown = news[0]
    if lengths is not None:  # a sequence that has ended keeps its state and shows zeros
        going = body.binary("lt", time, body.value(Tensor.of(lengths, b)))
        going = body.unsqueeze(going, 1)
        shown = body.select(going, shown, 0)
        news = [body.select(going, new, old) for new, old in zip(news, olds, strict=True)]
    consts = [b.value(t) for t in body.captured]
    body.graph.inputs += [*olds, row, time]
    body.graph.outputs = [*news, shown]
    length = inputs.shape[0]
    attrs = {"num_consts": len(consts), "num_carry": len(states), "length": length, "reverse": reverse}
    outs = b.ops("scan", [*consts, *states, inputs, b.iota((length,), 0)], body=body.graph, **attrs)
    return [outs[-1], *outs[:-1]]
