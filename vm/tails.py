"""What is known of a block's elements outside of their extents, so that they are masked no more often than needed."""

from __future__ import annotations

from typing import Any

Array = Any


class Tails:
    """What is known of elements outside of their extents in blocks that overrun. A reduction and a product mask them, each with a pass
    over the tile; in online softmax the mask of the maximum is enough. Once the scores outside are -inf, their weights exp(s - m) are 0,
    or NaN where m is, and then all weights of the row are: m is infinite or NaN only if a score in the row is."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[str, Array, Array, tuple[int, ...]]] = {}  # by id: kind, value, scores, dims

    def _note(self, kind: str, value: Array, scores: Array, dims: tuple[int, ...]) -> None:
        self._known[id(value)] = (kind, value, scores, dims)

    def _get(self, kind: str, value: Array) -> tuple[Array, tuple[int, ...]] | None:
        found = self._known.get(id(value))
        return found[2:] if found is not None and found[0] == kind else None

    def maximum(self, scores: Array, value: Array, dims: tuple[int, ...]) -> None:
        """``value`` is a maximum over the dims of ``scores``, which are -inf outside along these, and perhaps over other elements."""
        self._note("maximum", value, scores, dims)

    def moved(self, x: Array, value: Array) -> None:
        """``value`` is x, repeated."""
        if (found := self._get("maximum", x)) is not None:
            self._note("maximum", value, *found)

    def binary(self, name: str, x: Array, y: Array, value: Array) -> None:
        """``value`` is what an instruction makes of x and y."""
        if name == "sub" and (found := self._get("maximum", y)) is not None and found[0] is x:
            self._note("below", value, *found)

    def unary(self, name: str, x: Array, value: Array) -> None:
        """``value`` is what an instruction makes of x."""
        if name == "exp" and (found := self._get("below", x)) is not None:
            self._note("weight", value, *found)

    def vanishes(self, x: Array, dims: tuple[int, ...]) -> bool:
        """Whether elements outside along ``dims`` add nothing to a sum or product over them."""
        found = self._get("weight", x)
        return found is not None and set(dims) <= set(found[1])
