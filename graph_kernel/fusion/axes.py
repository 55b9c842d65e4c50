"""Axes of a group of nodes: which dims of which values are the same index, found by walking the ops' dim correspondences.

Every dim of every value gets a list of *atoms* (index variables). Elementwise ops, broadcasts, transposes, reductions and products unify
dims; a reshape inside the group splits a dim into several atoms. Size-1 dims have no atom. Dims that an op moves within (slices,
concatenations of computed values) must be held whole in a tile: their atoms are *local*.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from graph_kernel.fusion.views import VIEW_OPS, LoadMap, constant_scalar, identity, source_map
from graph_kernel.ir import Node, Value
from graph_kernel.ops import OPS
from graph_kernel.ops.base import Pattern
from symbolic import Dim, Scope, product, reshape_groups

CUMULATIVE = frozenset(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"))
REDUCTIONS = frozenset(("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or"))
ARG = frozenset(("argmax", "argmin"))


class Refusal(Exception):
    """Why a set of nodes cannot be one kernel."""


@dataclass
class Atom:
    """One index variable: its extent, whether it must be whole in a tile, and whether some op reduces over it."""

    id: int
    size: Dim
    local: bool = False
    reduced: bool = False

    @property
    def static(self) -> bool:
        """Whether the extent is a number."""
        return isinstance(self.size, int)


@dataclass
class Axes:
    """The result: atoms, the atoms of each value's dims, and how values that are not computed here are loaded."""

    atoms: list[Atom]
    dims: dict[Value, tuple[tuple[int, ...], ...]]
    loads: dict[Value, LoadMap]
    computed: list[Node] = field(default_factory=list)  # nodes that run in the kernel, in order

    def of(self, value: Value) -> list[int]:
        """Atoms of a value, outermost first."""
        return [a for dim in self.dims[value] for a in dim]


class _Classes:
    """Union-find over dims, with classes that are products of other classes."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.parent: list[int] = []
        self.size: list[Dim] = []
        self.local: list[bool] = []
        self.reduced: list[bool] = []
        self.split: dict[int, list[int]] = {}

    def new(self, size: Dim) -> int:
        self.parent.append(len(self.parent))
        self.size.append(size)
        self.local.append(False)
        self.reduced.append(False)
        return len(self.parent) - 1

    def find(self, x: int) -> int:
        while self.parent[x] != x:
            self.parent[x] = self.parent[self.parent[x]]
            x = self.parent[x]
        return x

    def union(self, a: int | None, b: int | None) -> None:
        if a is None or b is None:
            return
        a, b = self.find(a), self.find(b)
        if a == b:
            return
        if b < a:
            a, b = b, a
        self.parent[b] = a
        if self.size[a] != self.size[b]:
            self.scope.equal(
                self.size[a], self.size[b]
            )  # known since the op's shape rule; asked so that a recording has it
        if not isinstance(self.size[a], int):
            self.size[a] = self.size[b] if isinstance(self.size[b], int) else self.size[a]
        self.local[a] |= self.local[b]
        self.reduced[a] |= self.reduced[b]
        theirs = self.split.pop(b, None)
        if theirs is not None:
            self.refine(a, theirs)

    def refine(self, x: int, children: list[int]) -> None:
        x = self.find(x)
        if len(children) == 1:
            self.union(x, children[0])
            return
        mine = self.split.get(x)
        if mine is None:
            self.split[x] = children
            return
        if len(mine) != len(children) or not all(
            self.scope.equal(self.size[self.find(p)], self.size[self.find(q)])
            for p, q in zip(mine, children, strict=True)
        ):
            raise Refusal(f"an axis of size {self.size[x]} is split in two different ways")
        for p, q in zip(mine, children, strict=True):
            self.union(p, q)

    def atoms(self, x: int, seen: tuple[int, ...] = ()) -> list[int]:
        x = self.find(x)
        if x in seen:
            raise Refusal("an axis is split into itself")
        children = self.split.get(x)
        if children is None:
            return [x]
        return [a for c in children for a in self.atoms(c, (*seen, x))]


class _Walk:
    def __init__(self, nodes: list[Node], stored: Collection[Value], scope: Scope) -> None:
        self.nodes, self.stored, self.scope = nodes, stored, scope
        self.inside = {v for n in nodes for v in n.outputs}
        self.classes = _Classes(scope)
        self.labels: dict[Value, list[int | None]] = {}
        self.loads: dict[Value, LoadMap] = {}
        self.computed: list[Node] = []

    def label(self, value: Value) -> list[int | None]:
        """Labels of a value's dims, made on first use; a value from outside must be stored or a view of a stored one."""
        found = self.labels.get(value)
        if found is None:
            if value not in self.inside:
                if value not in self.stored:
                    raise Refusal(f"%{value.name} is not stored")
                self.loads[value] = identity(value)
            found = self.labels[value] = [None if n == 1 else self.classes.new(n) for n in value.shape]
        return found

    def unify(self, a: list[int | None], b: list[int | None]) -> None:
        for p, q in zip(a, b, strict=True):
            self.classes.union(p, q)

    def mark_local(self, label: int | None, why: str) -> None:
        if label is None:
            return
        root = self.classes.find(label)
        if not isinstance(self.classes.size[root], int):
            raise Refusal(
                f"{why} along a dim of symbolic size {self.classes.size[root]}, which may be longer than a tile"
            )
        self.classes.local[root] = True

    def mark_reduced(self, label: int | None) -> None:
        if label is not None:
            self.classes.reduced[self.classes.find(label)] = True

    # --- one method a family of ops ----------------------------------------------------------------------------------------------
    def run(self) -> None:
        for node in self.nodes:
            if node.op == "constant":
                self.constant(node)
                continue
            if node.op in VIEW_OPS:
                found = source_map(node.output, self.stored, self.scope)
                if found is not None:
                    self.loads[node.output] = found
                    self.label(node.output)
                    continue
            self.computed.append(node)
            method = getattr(self, f"op_{node.op}", None)
            if method is not None:
                method(node)
            elif node.op in REDUCTIONS:
                self.reduction(node, node.attrs["axes"])
            elif node.op in ARG:
                self.reduction(node, (node.attrs["axis"],))
            elif node.op in CUMULATIVE:
                self.cumulative(node)
            elif OPS[node.op].pattern is Pattern.ELEMENTWISE:
                for value in (*node.inputs, *node.outputs):
                    self.unify(self.label(node.inputs[0]), self.label(value))
            else:
                raise Refusal(f"{node.op} has no kernel form")

    def constant(self, node: Node) -> None:
        if np.asarray(node.attrs["value"]).size == 1:
            self.computed.append(node)
            self.label(node.output)
            return
        if node.output not in self.stored:
            raise Refusal(f"constant %{node.output.name} is not stored")
        self.loads[node.output] = identity(node.output)
        self.label(node.output)

    def op_iota(self, node: Node) -> None:
        self.label(node.output)

    def op_dim(self, node: Node) -> None:
        self.label(node.output)

    def op_broadcast(self, node: Node) -> None:
        source, out = self.label(node.inputs[0]), self.label(node.output)
        for i, j in enumerate(node.attrs["dims"]):
            n, m = node.inputs[0].shape[i], node.output.shape[j]
            if n == 1:
                continue
            if n != m and not self.scope.equal(n, m):
                found = source_map(node.output, self.stored, self.scope)
                if found is None:
                    raise Refusal(f"whether {n} is 1 or {m} is only known at launch and the operand is not stored")
                self.computed.pop()
                self.loads[node.output] = found
                self.labels[node.output] = [None if k == 1 else self.classes.new(k) for k in node.output.shape]
                return
            self.classes.union(source[i], out[j])

    def op_transpose(self, node: Node) -> None:
        source, out = self.label(node.inputs[0]), self.label(node.output)
        for j, i in enumerate(node.attrs["perm"]):
            self.classes.union(source[i], out[j])

    def op_reshape(self, node: Node) -> None:
        value, result = node.inputs[0], node.output
        source, out = self.label(value), self.label(result)
        groups = reshape_groups(self.scope, value.shape, result.shape)
        if groups is None:
            raise Refusal(
                f"reshape {list(map(str, value.shape))} to {list(map(str, result.shape))} of a computed value mixes dims"
            )
        for in_axes, out_axes in groups:
            ins = [x for a in in_axes if (x := source[a]) is not None]
            outs = [x for a in out_axes if (x := out[a]) is not None]
            if not ins and not outs:
                continue
            if len(ins) == 1:
                self.classes.refine(ins[0], outs)
            elif len(outs) == 1:
                self.classes.refine(outs[0], ins)
            else:
                raise Refusal(
                    f"reshape {list(map(str, value.shape))} to {list(map(str, result.shape))} of a computed value mixes dims"
                )

    def op_slice(self, node: Node) -> None:
        source, out = self.label(node.inputs[0]), self.label(node.output)
        for d, (start, stride) in enumerate(zip(node.attrs["starts"], node.attrs["strides"], strict=True)):
            n, m = node.inputs[0].shape[d], node.output.shape[d]
            if start == 0 and stride == 1 and (n == m or self.scope.equal(n, m)):
                self.classes.union(source[d], out[d])
            else:
                if not isinstance(start, int) or not isinstance(n, int) or not isinstance(m, int):
                    raise Refusal("a slice of a computed value at a symbolic place")
                self.mark_local(source[d], "slice")
                self.mark_local(out[d], "slice")

    def op_rev(self, node: Node) -> None:
        source, out = self.label(node.inputs[0]), self.label(node.output)
        for d in range(len(source)):
            self.classes.union(source[d], out[d])
        for d in node.attrs["axes"]:
            self.mark_local(source[d], "rev")

    def op_pad(self, node: Node) -> None:
        source, out = self.label(node.inputs[0]), self.label(node.output)
        if constant_scalar(node.inputs[1]) is None:
            raise Refusal("a pad with a computed value")
        for d, (low, high, interior) in enumerate(
            zip(node.attrs["low"], node.attrs["high"], node.attrs["interior"], strict=True)
        ):
            if low == 0 and high == 0 and interior == 0:
                self.classes.union(source[d], out[d])
                continue
            if not all(isinstance(k, int) for k in (low, high, interior)) or low < 0 or high < 0 or interior:
                raise Refusal("this pad of a computed value has no kernel form")
            self.mark_local(source[d], "pad")
            self.mark_local(out[d], "pad")
            if source[d] is None:
                raise Refusal("a pad of a size-1 dim of a computed value")

    def op_concat(self, node: Node) -> None:
        axis = node.attrs["axis"]
        out = self.label(node.output)
        maps = [self.piece(v) for v in node.inputs]
        if all(m is not None for m in maps):
            return  # loaded piece by piece, each within its bounds
        for value in node.inputs:
            source = self.label(value)
            for d in range(len(out)):
                if d != axis:
                    self.classes.union(source[d], out[d])
                elif source[d] is None and value.shape[d] == 1:
                    raise Refusal("a concatenation of a size-1 dim of a computed value")
                else:
                    self.mark_local(source[d], "concatenation")
        self.mark_local(out[axis], "concatenation")

    def piece(self, value: Value) -> LoadMap | None:
        """How an operand of a concatenation is read from memory, or None if it is computed."""
        if value in self.stored:
            return identity(value)
        if value.producer is not None and value.producer.op in VIEW_OPS:
            found = source_map(value, self.stored, self.scope)
            return found if found is not None and found.fill is None else None
        return None

    def op_take(self, node: Node) -> None:
        table, index = node.inputs
        if self.piece(table) is None:
            raise Refusal("the table of a take is not stored")
        axis = node.attrs["axis"]
        out, index_labels = self.label(node.output), self.label(index)
        self.unify(index_labels, out[axis : axis + index.rank])

    def op_take_along(self, node: Node) -> None:
        table, index = node.inputs
        if self.piece(table) is None:
            raise Refusal("the table of a take is not stored")
        self.unify(self.label(index), self.label(node.output))

    def op_dynamic_slice(self, node: Node) -> None:
        if self.piece(node.inputs[0]) is None:
            raise Refusal("the operand of a dynamic slice is not stored")
        for value in (*node.inputs[1:], node.output):
            self.label(value)

    def op_dynamic_update_slice(self, node: Node) -> None:
        x, update = node.inputs[:2]
        if self.piece(update) is None:
            raise Refusal("the update of a dynamic update slice is not stored")
        self.unify(self.label(x), self.label(node.output))
        for value in node.inputs[2:]:
            self.label(value)

    def op_dot(self, node: Node) -> None:
        a, b = node.inputs
        (ca, cb), (ba, bb) = node.attrs["contract"], node.attrs["batch"]
        la, lb, out = self.label(a), self.label(b), self.label(node.output)
        for i, j in zip(ca, cb, strict=True):
            self.classes.union(la[i], lb[j])
            self.mark_reduced(la[i])
            self.mark_reduced(lb[j])
        free_a = [i for i in range(a.rank) if i not in ca and i not in ba]
        free_b = [i for i in range(b.rank) if i not in cb and i not in bb]
        for k, (i, j) in enumerate(zip(ba, bb, strict=True)):
            self.classes.union(la[i], out[k])
            self.classes.union(lb[j], out[k])
        self.unify([la[i] for i in free_a] + [lb[i] for i in free_b], out[len(ba) :])

    def reduction(self, node: Node, axes: tuple[int, ...]) -> None:
        source = self.label(node.inputs[0])
        for d in axes:
            self.mark_reduced(source[d])
        self.unify([x for d, x in enumerate(source) if d not in axes], self.label(node.output))

    def cumulative(self, node: Node) -> None:
        source = self.label(node.inputs[0])
        self.unify(source, self.label(node.output))
        self.mark_local(source[node.attrs["axis"]], node.op)


Tied = tuple[tuple[Value, Value], ...]
"""Pairs of values with equal shapes whose indices are to be the same though no operator connects them."""


def find_axes(nodes: list[Node], stored: Collection[Value], scope: Scope, tied: Tied = ()) -> Axes:
    """The axes of a group. ``stored`` are the values in memory that it may load. Raises ``Refusal`` with the reason."""
    walk = _Walk(nodes, stored, scope)
    walk.run()
    for a, b in tied:
        walk.unify(walk.label(a), walk.label(b))
    atoms: list[Atom] = []
    number: dict[int, int] = {}
    dims: dict[Value, tuple[tuple[int, ...], ...]] = {}
    classes = walk.classes
    for value, labels in walk.labels.items():
        out = []
        for label in labels:
            roots = [] if label is None else classes.atoms(label)
            for root in roots:
                if root not in number:
                    number[root] = len(atoms)
                    atoms.append(Atom(len(atoms), classes.size[root]))
            out.append(tuple(number[r] for r in roots))
        dims[value] = tuple(out)
        flat = [a for group in out for a in group]
        if len(set(flat)) != len(flat):
            raise Refusal(f"%{value.name} is read along two axes at once")
    for label in range(len(classes.parent)):  # flags of a split class hold for its parts
        root = classes.find(label)
        if root != label or not (classes.local[root] or classes.reduced[root]):
            continue
        for part in classes.atoms(root):
            if part in number:
                atom = atoms[number[part]]
                atom.local |= classes.local[root]
                atom.reduced |= classes.reduced[root]
    return Axes(atoms, dims, walk.loads, walk.computed)


def total(axes: Axes, value: Value) -> Dim:
    """Number of elements of a value by its atoms."""
    return product([axes.atoms[a].size for a in axes.of(value)])
