"""Questions about whole shapes and index maps, with the three answers of ``Scope.prove``. Nothing is required, nothing is learned."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from symbolic.answers import Answer, Disproved, Proved, Unknown
from symbolic.expr import FLOORDIV, MOD, Dim, Expr, evaluate, is_static, make, product, symbol
from symbolic.functions import broadcast_dim, mod
from symbolic.relations import Relation, either, eq, le, ne
from symbolic.scope import Scope
from symbolic.shapes import reshape_groups, shape_text
from vm.errors import CompileError

Shape = tuple[Dim, ...]
Groups = list[tuple[tuple[int, ...], tuple[int, ...]]]
MAX_POINTS = 4096  # of an index space that is searched for two equal images


@dataclass(frozen=True)
class ShapeAnswer:
    """``answer``, and what follows where it is ``Proved``: the broadcast ``shape``, or the ``groups`` of a reshape."""

    answer: Answer
    shape: Shape | None = None
    groups: Groups | None = None


def equal_shapes(scope: Scope, a: Sequence[Dim], b: Sequence[Dim]) -> Answer:
    """Whether the shapes are equal, axis by axis."""
    if len(a) != len(b):
        return Disproved(_example(scope, (*a, *b)))
    return _all(scope, [eq(x, y) for x, y in zip(a, b, strict=True)])


def broadcastable(scope: Scope, *shapes: Sequence[Dim]) -> ShapeAnswer:
    """Whether NumPy's broadcasting takes the shapes, and with which result."""
    rank = max((len(s) for s in shapes), default=0)
    result: list[Dim] = []
    needed: list[Relation] = []
    for axis in range(rank):
        dims = [s[axis - rank + len(s)] for s in shapes if axis - rank + len(s) >= 0]
        size: Dim = 1
        for dim in dims:
            size, relation = _pair(scope, size, dim)
            if relation is not None:
                needed.append(relation)
        result.append(size)
    answer = _all(scope, needed)
    return ShapeAnswer(answer, tuple(result) if answer.proved else None)


def _pair(scope: Scope, a: Dim, b: Dim) -> tuple[Dim, Relation | None]:
    if scope.equal(a, 1):
        return b, None
    if scope.equal(b, 1) or scope.equal(a, b):
        return a, None
    relation = either(eq(a, b), eq(a, 1), eq(b, 1))
    if scope.proves(ne(a, 1)):
        return a, relation
    return (b if scope.proves(ne(b, 1)) else scope.simplify(broadcast_dim(a, b))), relation


def reshapable(scope: Scope, source: Sequence[Dim], target: Sequence[Dim]) -> ShapeAnswer:
    """Whether both shapes have the same number of elements, and which axes make up which (the finest grouping)."""
    groups = reshape_groups(scope, source, target)
    if groups is not None:
        lines = [f"{_axes(source, i)} == {_axes(target, j)}" for i, j in groups]
        return ShapeAnswer(Proved("the products agree group by group: " + ", ".join(lines)), groups=groups)
    return ShapeAnswer(scope.prove(eq(product(source), product(target))))


def _axes(shape: Sequence[Dim], axes: Sequence[int]) -> str:
    return shape_text([shape[i] for i in axes])


def _all(scope: Scope, relations: Sequence[Relation]) -> Answer:
    answers = [scope.prove(r) for r in relations]
    for answer in answers:
        if answer.disproved:
            return answer
    missing = [a.missing for a in answers if isinstance(a, Unknown)]
    if missing:
        return Unknown(" and ".join(dict.fromkeys(missing)))
    reasons = [f"{r}: {a.reason}" for r, a in zip(relations, answers, strict=True) if isinstance(a, Proved)]
    return Proved("; ".join(reasons) or "nothing is left to show")


def _example(scope: Scope, dims: Sequence[Dim]) -> dict[str, int]:
    """Any values of the symbols that the facts allow."""
    names = sorted({s for d in dims if isinstance(d, Expr) for s in d.symbols})
    return next(iter(scope.examples(names)), {})


# --- index maps -----------------------------------------------------------------------------------------------------------


def injective(scope: Scope, extents: Mapping[str, Dim], images: Sequence[Dim]) -> Answer:
    """Whether different indices have different images.

    ``extents`` gives the range ``0 <= i < extent`` of each index by its name, which no symbol of the scope has; ``images`` are the
    coordinates of an index's image, such as the offset ``i*s + j``, or the pair ``i // 8, i % 8``. A counterexample holds the dims and
    two indices, the second one with a prime: ``{"s": 2, "i": 0, "i'": 1, ..}``. An index space without a second point is injective.
    """
    dims = [*extents.values(), *images]
    names = [s for d in dims if isinstance(d, Expr) for s in d.symbols if s not in extents]
    inside = scope.restricted(names)
    try:
        for name, extent in extents.items():
            inside.declare(name, min=0, origin="index")
            inside.assume(le(symbol(name), extent - 1), "index")
    except CompileError:
        return Proved("there is no index")
    left = dict.fromkeys(extents)
    reasons: list[str] = []
    missing = ""
    parts = _joined([inside.simplify(i) for i in images])
    progress = True
    while left and progress:
        progress = False
        for image in parts:
            coefficients = _linear_in(image, left)
            if not coefficients:
                continue
            reason, lacks = _mixed_radix(inside, {n: extents[n] for n in coefficients}, coefficients)
            if reason is not None:
                reasons.append(f"{image} gives {', '.join(coefficients)}: {reason}" if reason else f"{image} gives it")
                for name in coefficients:
                    del left[name]
                progress = True
                break
            missing = missing or lacks
    for name in list(left):
        if inside.proves(le(extents[name], 1)):
            reasons.append(f"{name} has one value only")
            del left[name]
    if not left:
        return Proved("; ".join(reasons) or "there is one index only")
    example = _collision(scope, extents, images)
    if example is not None:
        return Disproved(example)
    return Unknown(missing or f"another coordinate that tells {', '.join(left)} apart")


def _joined(images: list[Dim]) -> list[Dim]:
    """``x // d`` and ``x % d`` together are ``x``."""
    out = list(images)
    for image in images:
        atom = image.as_atom if isinstance(image, Expr) else None
        if atom is None or atom.op != FLOORDIV:
            continue
        x, d = atom.args
        if mod(x, d) in out:
            out.append(x)
    return out


def _linear_in(image: Dim, left: Mapping[str, None]) -> dict[str, Dim]:
    """Coefficients of the indices that are still to be found, or nothing where they occur in another way."""
    if isinstance(image, int):
        return {}
    found: dict[str, dict] = {}
    for mono, c in image.terms.items():
        hits = [a for a in mono if not a.symbols.isdisjoint(left)]
        if not hits:
            continue
        if len(hits) > 1 or hits[0].op in (FLOORDIV, MOD) or len(hits[0].symbols) > 1 or hits[0].args[0] not in left:
            return {}
        found.setdefault(hits[0].args[0], {})[tuple(a for a in mono if a is not hits[0])] = c
    return {name: make(terms) for name, terms in found.items()}


def _mixed_radix(scope: Scope, extents: Mapping[str, Dim], strides: Mapping[str, Dim]) -> tuple[str | None, str]:
    """Why ``sum(stride * index)`` tells the indices apart: each stride is larger than all that the smaller ones reach."""
    first = ""
    for order in itertools.permutations(strides) if len(strides) <= 5 else (tuple(strides),):
        span: Dim = 1
        reasons: list[str] = []
        for name in order:
            stride = strides[name]
            size = -stride if isinstance(stride, int) and stride < 0 else stride
            needed = le(scope.simplify(span), scope.simplify(size))
            if not scope.proves(needed):
                if len(reasons) == len(order) - 1:
                    first = first or str(needed)
                break
            reasons.append(str(needed))
            span = span + size * (extents[name] - 1)
        else:
            return ", ".join(reasons), ""
    return None, first


def _collision(scope: Scope, extents: Mapping[str, Dim], images: Sequence[Dim]) -> dict[str, int] | None:
    """Two indices with one image, at some sizes that the scope allows."""
    names = sorted({s for d in (*extents.values(), *images) if isinstance(d, Expr) for s in d.symbols} - set(extents))
    for sizes in itertools.islice(scope.examples(names), 12):
        ranges = [range(evaluate(e, sizes)) for e in extents.values()]
        if any(len(r) > MAX_POINTS for r in ranges):
            continue
        seen: dict[tuple[int, ...], tuple[int, ...]] = {}
        for point in itertools.islice(_points(ranges), MAX_POINTS):
            at = {**sizes, **dict(zip(extents, point, strict=True))}
            image = tuple(evaluate(i, at) for i in images)
            other = seen.setdefault(image, point)
            if other != point:
                first = dict(zip(extents, other, strict=True))
                second = {f"{n}'": v for n, v in zip(extents, point, strict=True)}
                return {**sizes, **first, **second}
    return None


def _points(ranges: Sequence[range]) -> Iterator[tuple[int, ...]]:
    return itertools.product(*ranges)


__all__ = ["ShapeAnswer", "broadcastable", "equal_shapes", "injective", "is_static", "reshapable"]
