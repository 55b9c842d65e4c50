"""Index maps: a chain of data-movement ops over a stored tensor, as positions in that tensor.

For a value ``v`` that is a view of a stored value ``s``, ``source_map`` gives for every dim of ``s`` the position that element
``(i0, i1, ...)`` of ``v`` reads: ``start + sum(step * ((i_dim // div) % mod))``. Loads carry such maps, so the movement itself is never
executed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import numpy as np

from graph_kernel.ir import Node, Value
from symbolic import Dim, Scope, product, reshape_groups, smin


@dataclass(frozen=True)
class Part:
    """``step * ((i_dim // div) % mod)``; a ``mod`` of 0 means no modulo."""

    dim: int
    step: Dim
    div: Dim = 1
    mod: Dim = 0


@dataclass(frozen=True)
class Position:
    """Where along one source dim an element lies; outside ``bound`` = [lo, hi) it reads the map's fill value."""

    start: Dim = 0
    parts: tuple[Part, ...] = ()
    bound: tuple[Dim, Dim] | None = None


@dataclass(frozen=True)
class LoadMap:
    """``source`` and the position along each of its dims; ``fill`` is what bounded positions read outside."""

    source: Value
    positions: tuple[Position, ...]
    fill: float | int | bool | None = None


@dataclass(frozen=True)
class _State:
    positions: tuple[Position, ...]
    fill: float | int | bool | None = None


def constant_scalar(value: Value) -> np.ndarray | None:
    """The array behind a one-element constant (through broadcasts and reshapes), or None."""
    node = value.producer
    while node is not None and node.op in ("broadcast", "reshape") and node.inputs:
        value = node.inputs[0]
        node = value.producer
    if node is not None and node.op == "constant":
        array = np.asarray(node.attrs["value"])
        if array.size == 1:
            return array.reshape(())
    return None


def identity(value: Value) -> LoadMap:
    """The map of a stored value read as it is."""
    return LoadMap(value, _identity(value).positions)


def _identity(value: Value) -> _State:
    return _State(
        tuple(
            Position(0, (Part(i, 1),)) if not (isinstance(n, int) and n == 1) else Position()
            for i, n in enumerate(value.shape)
        )
    )


def source_map(value: Value, stored: Collection[Value], scope: Scope) -> LoadMap | None:
    """The map from ``value`` down to the first stored value below it, or None if some op on the way is not an index map."""
    state, current = _identity(value), value
    while current not in stored:
        node = current.producer
        rule = RULES.get(node.op) if node is not None else None
        if node is None or rule is None:
            return None
        below = rule(node, state, scope)
        if below is None:
            return None
        state, current = below, node.inputs[0]
    return LoadMap(current, state.positions, state.fill)


def _transpose(node: Node, state: _State, scope: Scope) -> _State | None:
    out: list[Position] = [Position()] * len(node.attrs["perm"])
    for j, i in enumerate(node.attrs["perm"]):
        out[i] = state.positions[j]
    return replace(state, positions=tuple(out))


def _broadcast(node: Node, state: _State, scope: Scope) -> _State | None:
    dims = node.attrs["dims"]
    if any(pos.bound is not None for j, pos in enumerate(state.positions) if j not in dims):
        return None  # a dim that the source lacks has fill values beside the repeated ones
    out = []
    for n, j in zip(node.inputs[0].shape, dims, strict=True):
        pos = state.positions[j]
        if isinstance(n, int) and n == 1:
            if pos.bound is not None:
                return None
            out.append(Position())
        elif n == node.output.shape[j] or scope.equal(n, node.output.shape[j]):
            out.append(pos)
        else:  # size 1 or the full size, known at launch: a step of 0 or 1
            if pos.bound is not None:
                return None
            keep = smin(n - 1, 1)
            out.append(Position(pos.start * keep, tuple(replace(p, step=p.step * keep) for p in pos.parts)))
    return replace(state, positions=tuple(out))


def _slice(node: Node, state: _State, scope: Scope) -> _State | None:
    out = []
    for pos, start, k in zip(state.positions, node.attrs["starts"], node.attrs["strides"], strict=True):
        bound = None if pos.bound is None else (start + pos.bound[0] * k, start + (pos.bound[1] - 1) * k + 1)
        out.append(Position(start + pos.start * k, tuple(replace(p, step=p.step * k) for p in pos.parts), bound))
    return replace(state, positions=tuple(out))


def _rev(node: Node, state: _State, scope: Scope) -> _State | None:
    out = list(state.positions)
    for axis in node.attrs["axes"]:
        pos, n = out[axis], node.inputs[0].shape[axis]
        bound = None if pos.bound is None else (n - pos.bound[1], n - pos.bound[0])
        out[axis] = Position(n - 1 - pos.start, tuple(replace(p, step=-p.step) for p in pos.parts), bound)
    return replace(state, positions=tuple(out))


def _pad(node: Node, state: _State, scope: Scope) -> _State | None:
    fill = constant_scalar(node.inputs[1])
    if fill is None or (state.fill is not None and not _same(state.fill, fill.item())):
        return None
    out = []
    for pos, n, low, high, interior in zip(
        state.positions,
        node.inputs[0].shape,
        node.attrs["low"],
        node.attrs["high"],
        node.attrs["interior"],
        strict=True,
    ):
        if interior != 0:
            return None
        if low == 0 and high == 0:
            out.append(pos)
            continue
        if pos.bound is not None:
            return None
        out.append(Position(pos.start - low, pos.parts, (0, n)))
    return _State(tuple(out), fill.item())


def _same(a: object, b: object) -> bool:
    return a == b or (a != a and b != b)


def _reshape(node: Node, state: _State, scope: Scope) -> _State | None:
    source, target = node.inputs[0].shape, node.output.shape
    if any(n == 0 for n in source):
        bounded = any(pos.bound is not None for pos in state.positions)  # then what is read are fill values
        return None if bounded else _State(tuple(Position() for _ in source), state.fill)
    groups = reshape_groups(scope, source, target)
    if groups is None:
        return None
    out: list[Position] = [Position()] * len(source)
    units = [a for a, n in enumerate(source) if n == 1]
    for pos in (state.positions[a] for a, n in enumerate(target) if n == 1):
        if pos.bound is not None:  # outside the one element there are fill values: any dim of one element can hold that
            if not units:
                return None
            out[units.pop()] = pos
    for in_axes, out_axes in groups:
        ins = [a for a in in_axes if source[a] != 1]
        outs = [a for a in out_axes if target[a] != 1]
        if len(ins) == 1 and len(outs) == 1:
            out[ins[0]] = state.positions[outs[0]]
            continue
        if any(state.positions[a].bound is not None for a in outs):
            return None
        linear = _linear([state.positions[a] for a in outs], [target[a] for a in outs])
        if len(ins) == 1:
            out[ins[0]] = linear
            continue
        split = _split(linear, [source[a] for a in ins])
        if split is None:
            return None
        for a, pos in zip(ins, split, strict=True):
            out[a] = pos
    return replace(state, positions=tuple(out))


def _linear(positions: list[Position], sizes: list[Dim]) -> Position:
    start: Dim = 0
    parts: list[Part] = []
    for k, pos in enumerate(positions):
        stride = product(sizes[k + 1 :])
        start = start + pos.start * stride
        parts += [replace(p, step=p.step * stride) for p in pos.parts]
    return Position(start, tuple(parts))


def _split(linear: Position, sizes: list[Dim]) -> list[Position] | None:
    """Positions along several dims whose row-major index is ``linear``; only a plain index can be split."""
    if not linear.parts and linear.start == 0:
        return [Position()] * len(sizes)
    if len(linear.parts) != 1 or linear.start != 0 or linear.parts[0].step != 1:
        return None
    part = linear.parts[0]
    out = []
    for j, n in enumerate(sizes):
        inner = product(sizes[j + 1 :])
        mod: Dim = n if j or part.mod != 0 else 0
        out.append(Position(0, (Part(part.dim, 1, part.div * inner, mod),)))
    return out


Rule = Callable[[Node, _State, Scope], "_State | None"]
RULES: dict[str, Rule] = {
    "transpose": _transpose,
    "broadcast": _broadcast,
    "slice": _slice,
    "rev": _rev,
    "pad": _pad,
    "reshape": _reshape,
}
VIEW_OPS = frozenset(RULES) - {"broadcast"}
