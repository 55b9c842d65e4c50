"""How the axes of an op's operands and results belong together, and how its attributes read after axes have moved.

Two tables that passes share which change a whole region of a graph at once (``axis_splitting``,
``transpose_sinking``):

* ``ties(node)`` lists classes of axes that must be treated alike, as (slot, axis): slots count the inputs, then the
  outputs. An axis that is in no class cannot be touched.
* ``respell(node, maps, shape)`` gives the attributes after axis i of slot k has become the axes ``maps[k][i]``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from graph_kernel.ir import Node
from graph_kernel.passes.match import ELEMENTWISE, REDUCES, SCANS, same_dim

if TYPE_CHECKING:
    from symbolic import Dim, Scope

Place = tuple[int, int]
Classes = list[list[Place]]
Map = tuple[tuple[int, ...], ...]
ARG = ("argmax", "argmin")


def identity_map(rank: int) -> Map:
    """The map that moves nothing."""
    return tuple((i,) for i in range(rank))


def _aligned(node: Node, slots: Sequence[int], skip: Sequence[int] = ()) -> Classes:
    return [[(k, axis) for k in slots] for axis in range(node.output.rank) if axis not in skip]


def _elementwise(scope: Scope, node: Node) -> Classes:
    return _aligned(node, range(len(node.inputs) + 1))


def _transpose(scope: Scope, node: Node) -> Classes:
    return [[(0, p), (1, i)] for i, p in enumerate(node.attrs["perm"])]


def _broadcast(scope: Scope, node: Node) -> Classes:
    (x,) = node.inputs
    classes: Classes = []
    tied = set()
    for i, k in enumerate(node.attrs["dims"]):
        if same_dim(scope, x.shape[i], node.output.shape[k]):
            classes.append([(0, i), (1, k)])
            tied.add(k)
        elif x.shape[i] == 1:
            classes.append([(0, i)])
            classes.append([(1, k)])
            tied.add(k)
        else:
            tied.add(k)  # equal or grown, which of the two is only known at launch
    classes.extend([(1, k)] for k in range(node.output.rank) if k not in tied)
    return classes


def _reduce(scope: Scope, node: Node) -> Classes:
    axes = node.attrs["axes"] if node.op in REDUCES else ()
    dropped = axes if node.op in REDUCES else (node.attrs["axis"],)
    kept = [i for i in range(node.inputs[0].rank) if i not in dropped]
    return [[(0, i), (1, k)] for k, i in enumerate(kept)] + [[(0, i)] for i in axes]


def _scan(scope: Scope, node: Node) -> Classes:
    return _aligned(node, (0, 1), (node.attrs["axis"],))


def _concat(scope: Scope, node: Node) -> Classes:
    return _aligned(node, range(len(node.inputs) + 1), (node.attrs["axis"],))


def _rev(scope: Scope, node: Node) -> Classes:
    return _aligned(node, (0, 1), node.attrs["axes"])


def _slice(scope: Scope, node: Node) -> Classes:
    parts = zip(node.attrs["starts"], node.attrs["limits"], node.attrs["strides"], node.inputs[0].shape, strict=True)
    cut = [i for i, (a, b, s, n) in enumerate(parts) if not (a == 0 and s == 1 and same_dim(scope, b, n))]
    return _aligned(node, (0, 1), cut)


def _pad(scope: Scope, node: Node) -> Classes:
    padded = [i for i in range(node.output.rank) if any(node.attrs[k][i] != 0 for k in ("low", "high", "interior"))]
    return _aligned(node, (0, 2), padded)


def _iota(scope: Scope, node: Node) -> Classes:
    return _aligned(node, (0,), (node.attrs["axis"],))


def _constant(scope: Scope, node: Node) -> Classes:
    return _aligned(node, (0,))


def _dot(scope: Scope, node: Node) -> Classes:
    (ca, cb), (ba, bb) = node.attrs["contract"], node.attrs["batch"]
    classes: Classes = [[(0, i), (1, j), (2, k)] for k, (i, j) in enumerate(zip(ba, bb, strict=True))]
    classes += [[(0, i), (1, j)] for i, j in zip(ca, cb, strict=True)]
    place = len(ba)
    for slot, used in ((0, (*ca, *ba)), (1, (*cb, *bb))):
        for axis in range(node.inputs[slot].rank):
            if axis not in used:
                classes.append([(slot, axis), (2, place)])
                place += 1
    return classes


def _take(scope: Scope, node: Node) -> Classes:
    axis, (x, index) = node.attrs["axis"], node.inputs
    classes: Classes = [[(0, i), (2, i)] for i in range(axis)]
    classes += [[(1, i), (2, axis + i)] for i in range(index.rank)]
    return classes + [[(0, i), (2, i + index.rank - 1)] for i in range(axis + 1, x.rank)]


_TIES: dict[str, Callable[[Scope, Node], Classes]] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys((*REDUCES, *ARG), _reduce),
    **dict.fromkeys(SCANS, _scan),
    "transpose": _transpose,
    "broadcast": _broadcast,
    "concat": _concat,
    "rev": _rev,
    "slice": _slice,
    "pad": _pad,
    "iota": _iota,
    "constant": _constant,
    "dot": _dot,
    "take": _take,
}


def ties(scope: Scope, node: Node) -> Classes:
    """Classes of (slot, axis) that stand or fall together; an op that is not in the table has none."""
    rule = _TIES.get(node.op)
    return rule(scope, node) if rule else []


def _same(node: Node, maps: Sequence[Map], shape: Sequence[Dim]) -> dict[str, Any]:
    return dict(node.attrs)


def _flat(places: Map, axes: Sequence[int]) -> tuple[int, ...]:
    return tuple(new for axis in axes for new in places[axis])


def _respell_transpose(node: Node, maps: Sequence[Map], shape: Sequence[Dim]) -> dict[str, Any]:
    perm = [0] * len(shape)
    for i, p in enumerate(node.attrs["perm"]):
        for new_out, new_in in zip(maps[1][i], maps[0][p], strict=True):
            perm[new_out] = new_in
    return {"perm": tuple(perm)}


def _respell_broadcast(node: Node, maps: Sequence[Map], shape: Sequence[Dim]) -> dict[str, Any]:
    dims: dict[int, int] = {}
    for i, k in enumerate(node.attrs["dims"]):
        dims.update(zip(maps[0][i], maps[1][k], strict=False))
    return {"shape": tuple(shape), "dims": tuple(dims[i] for i in range(len(dims)))}


def _respell_axes(node: Node, maps: Sequence[Map], shape: Sequence[Dim]) -> dict[str, Any]:
    return dict(node.attrs) | {"axes": tuple(sorted(_flat(maps[0], node.attrs["axes"])))}


def _respell_axis(node: Node, maps: Sequence[Map], shape: Sequence[Dim]) -> dict[str, Any]:
    (axis,) = maps[0][node.attrs["axis"]]
    return dict(node.attrs) | {"axis": axis}


def _respell_slice(node: Node, maps: Sequence[Map], shape: Sequence[Dim]) -> dict[str, Any]:
    starts: list[Dim] = [0] * len(shape)
    limits: list[Dim] = list(shape)
    strides = [1] * len(shape)
    for i, new in enumerate(maps[0]):
        if len(new) == 1:
            starts[new[0]], limits[new[0]], strides[new[0]] = (
                node.attrs[k][i] for k in ("starts", "limits", "strides")
            )
    return {"starts": tuple(starts), "limits": tuple(limits), "strides": tuple(strides)}


def _respell_pad(node: Node, maps: Sequence[Map], shape: Sequence[Dim]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key in ("low", "high", "interior"):
        values = [0] * len(shape)
        for i, new in enumerate(maps[0]):
            if len(new) == 1:
                values[new[0]] = node.attrs[key][i]
        out[key] = tuple(values)
    return out


def _respell_iota(node: Node, maps: Sequence[Map], shape: Sequence[Dim]) -> dict[str, Any]:
    (axis,) = maps[0][node.attrs["axis"]]
    return dict(node.attrs) | {"axis": axis, "shape": tuple(shape)}


def _respell_dot(node: Node, maps: Sequence[Map], shape: Sequence[Dim]) -> dict[str, Any]:
    pairs = {k: tuple(_flat(maps[i], node.attrs[k][i]) for i in (0, 1)) for k in ("contract", "batch")}
    return dict(node.attrs) | pairs


def _respell_reshape(node: Node, maps: Sequence[Map], shape: Sequence[Dim]) -> dict[str, Any]:
    return {"shape": tuple(shape)}


_RESPELL: dict[str, Callable[[Node, Sequence[Map], Sequence[Dim]], dict[str, Any]]] = {
    **dict.fromkeys(ELEMENTWISE, _same),
    **dict.fromkeys((*REDUCES, "rev"), _respell_axes),
    **dict.fromkeys((*SCANS, *ARG, "concat", "take"), _respell_axis),
    "transpose": _respell_transpose,
    "broadcast": _respell_broadcast,
    "slice": _respell_slice,
    "pad": _respell_pad,
    "iota": _respell_iota,
    "dot": _respell_dot,
    "reshape": _respell_reshape,
}


def respell(node: Node, maps: Sequence[Map], shape: Sequence[Dim]) -> dict[str, Any]:
    """Attributes of ``node`` when axis i of slot k has become ``maps[k][i]`` and its (first) output has ``shape``."""
    return _RESPELL[node.op](node, maps, shape)
