"""softmax(q . k * scale + mask) . v becomes one ``attention``, with the softmax inside it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from graph_kernel.ir import Node, Value
from graph_kernel.ops.matmul import free_axes
from graph_kernel.passes.composite_parts import factored, number, pairs
from graph_kernel.passes.composites import Finder, Match, Recogniser
from graph_kernel.passes.match import splat_is
from graph_kernel.passes.recognise_norms import source


@dataclass
class Scores:
    """The way from a softmax down to the product of queries and keys."""

    dot: Node | None = None
    scale: float = 1.0
    masks: dict[str, Value] = field(default_factory=dict)  # "add" or "select" -> what hides keys
    leaves: list[Value] = field(default_factory=list)


@dataclass(frozen=True)
class RecogniseAttention(Recogniser):
    """The softmax has to run along the one axis that the keys give the first product and that the second one sums over with the values;
    both products share their batch axes. Queries may have further axes (heads that share keys and values). Nothing else may read the
    scores or the weights. Runs after ``recognise_softmax``, whose nodes it looks for."""

    name: ClassVar[str] = "recognise_attention"
    op: ClassVar[str] = "attention"
    anchors: ClassVar[frozenset[str]] = frozenset(("dot",))

    def match(self, finder: Finder, node: Node) -> Match | None:
        for side in (0, 1):
            found = self._from_weights(finder, node, side)
            if found is not None:
                return found
        return None

    def _from_weights(self, finder: Finder, node: Node, side: int) -> Match | None:
        softmax, guarded = _softmax(finder, node.inputs[side], node)
        if softmax is None or len(softmax.attrs["axes"]) != 1:
            return None
        (axis,) = softmax.attrs["axes"]
        if tuple(node.attrs["contract"][side]) != (axis,):
            return None
        scores = Scores()
        if not _descend(finder, softmax.inputs[0], softmax, scores) or scores.dot is None:
            return None
        sides = _queries_and_keys(scores.dot, axis)
        if sides is None or sorted(node.attrs["batch"][side]) != list(range(len(scores.dot.attrs["batch"][0]))):
            return None
        q, k = (_unscaled(finder, v, scores) for v in sides)
        causal = any(hides_later_keys(mask, axis, softmax.inputs[0].rank) for mask in scores.masks.values())
        attrs = {
            "scale": scores.scale,
            "mask": "+".join(sorted(scores.masks)) or "none",
            "causal": causal,
            "guarded": guarded,
        }
        return Match(node.output, (q, k, node.inputs[1 - side], *scores.leaves), attrs)


def _softmax(finder: Finder, value: Value, reader: Node) -> tuple[Node | None, bool]:
    """The softmax whose result ``value`` is, but for casts and a guard that turns NaN into 0; and whether there is the guard."""
    guarded = False
    while (node := value.producer) is not None:
        if node.op == "softmax":
            return (node if finder.only_reader(value) is reader or guarded else None), guarded
        if node.op == "cast" and finder.only_reader(value) is reader:
            value, reader = node.inputs[0], node
            continue
        if node.op != "select" or guarded or finder.only_reader(value) is not reader:
            break
        inner, nan = node.inputs[2], node.inputs[0].producer
        if nan is None or not _is_nan(nan, inner) or not splat_is(node.inputs[1], 0):
            break
        if inner in finder.outputs or set(finder.readers(inner)) != {nan, node}:
            break
        value, reader, guarded = inner, node, True
    return None, guarded


def _is_nan(node: Node, value: Value) -> bool:
    return node.op in ("is_nan", "ne") and all(v is value for v in node.inputs)


def _descend(finder: Finder, value: Value, reader: Node, scores: Scores) -> bool:
    """Follows the scores from the softmax to their product; False if this is no way there."""
    node = value.producer
    if node is None or finder.only_reader(value) is not reader:
        return False
    if node.op == "dot":
        scores.dot = node
        return True
    if node.op == "cast":
        return _descend(finder, node.inputs[0], node, scores)
    if node.op in ("mul", "div"):
        for inner, other in pairs(node) if node.op == "mul" else (node.inputs,):
            factor = number(other)
            if factor and _descend(finder, inner, node, scores):
                scores.scale *= factor if node.op == "mul" else 1 / factor
                return True
        return False
    if node.op == "add" and "add" not in scores.masks:
        return any(
            _descend(finder, inner, node, scores) and _hide(scores, "add", mask, mask) for inner, mask in pairs(node)
        )
    if node.op == "select" and "select" not in scores.masks:
        pred, kept, fill = node.inputs
        if number(fill) is None:
            kept, fill = fill, kept
        return number(fill) is not None and _descend(finder, kept, node, scores) and _hide(scores, "select", pred, pred)
    return False


def _hide(scores: Scores, how: str, mask: Value, leaf: Value) -> bool:
    scores.masks[how] = mask
    if number(leaf) is None:
        scores.leaves.append(source(leaf))
    return True


def _queries_and_keys(dot: Node, axis: int) -> tuple[Value, Value] | None:
    """(q, k): the operand that gives the product its ``axis``, and nothing else of its own, holds the keys."""
    contract, batch = dot.attrs["contract"], dot.attrs["batch"]
    a, b = dot.inputs
    free_a, free_b = (len(free_axes(v.rank, c, s)) for v, c, s in zip(dot.inputs, contract, batch, strict=True))
    first = len(batch[0])
    if free_b == 1 and axis == first + free_a:
        return a, b
    return (b, a) if free_a == 1 and axis == first else None


def _unscaled(finder: Finder, value: Value, scores: Scores) -> Value:
    """An operand before it was multiplied by a number, where nobody else wants it multiplied."""
    node = value.producer
    if node is None or finder.only_reader(value) is None or node.op not in ("mul", "div"):
        return value
    inner = next((a for a, b in pairs(node) if number(b) is not None), None)
    base, factor = factored(value)
    if inner is not base or not factor:
        return value
    scores.scale *= factor
    return base


# --- what a mask hides ------------------------------------------------------------------------------------------------------------


def hides_later_keys(mask: Value, axis: int, rank: int) -> bool:
    """Whether a mask hides every key whose index along ``axis`` is above the query's index plus what does not depend on the two."""
    return mask.rank == rank and _causal(mask, list(range(rank)), axis)


def _causal(value: Value, axes: list[int], keys: int) -> bool:
    """``axes[i]`` is the axis of the scores that axis i of ``value`` goes to."""
    node = value.producer
    if node is None:
        return False
    if node.op == "broadcast":
        return _causal(node.inputs[0], [axes[k] for k in node.attrs["dims"]], keys)
    if node.op == "and":
        return any(_causal(v, axes, keys) for v in node.inputs)
    if node.op == "select":
        hidden = number(node.inputs[2])
        return number(node.inputs[1]) == 0 and hidden is not None and hidden < 0 and _causal(node.inputs[0], axes, keys)
    if node.op in ("le", "lt", "ge", "gt"):
        low, high = node.inputs if node.op in ("le", "lt") else node.inputs[::-1]
        at, limit = _index(low, axes), _index(high, axes)
        return at == keys and limit is not None and limit != keys
    return False


def _index(value: Value, axes: list[int]) -> int | None:
    """The axis along which ``value`` is the index, plus what is the same everywhere."""
    node = value.producer
    if node is None:
        return None
    if node.op == "broadcast":
        return _index(node.inputs[0], [axes[k] for k in node.attrs["dims"]])
    if node.op == "cast":
        return _index(node.inputs[0], axes)
    if node.op == "iota":
        return axes[node.attrs["axis"]]
    if node.op in ("add", "sub"):
        found = [(a, b) for a, b in (pairs(node) if node.op == "add" else (node.inputs,)) if _uniform(b)]
        return _index(found[0][0], axes) if found else None
    return None


def _uniform(value: Value) -> bool:
    """Whether ``value`` is one number everywhere, at launch at the latest."""
    node = value.producer
    while node is not None and node.op in ("broadcast", "cast") and value.shape:
        value = node.inputs[0]
        node = value.producer
    return not value.shape
