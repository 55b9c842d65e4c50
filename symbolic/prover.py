"""The decision procedure: three-valued answers about relations, from a ``Store`` of facts."""

from __future__ import annotations

from symbolic import relations
from symbolic.answers import Answer, Disproved, Proved, Unknown
from symbolic.expr import Dim, Expr
from symbolic.functions import mod, poly_divmod
from symbolic.relations import Relation
from symbolic.store import Store


class Prover:
    """Proves relations over one store."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def reason(self, rel: Relation) -> str | None:
        """Why ``rel`` holds, or None where that was not found."""
        if rel.op == relations.EITHER:
            for r in rel.args:
                why = self.reason(r)
                if why is not None:
                    return f"{r}: {why}"
            return None
        a, b = rel.args
        if rel.op == relations.DIVIDES:
            return self._divides(a, b)
        diff = self.store.norm(b - a)
        if rel.op == relations.EQ:
            return self._zero(diff)
        if rel.op == relations.NE:
            return self._nonzero(diff)
        return self._nonneg(diff if rel.op == relations.LE else diff - 1)

    def _zero(self, d: Dim) -> str | None:
        if isinstance(d, int):
            return "both sides have the same normal form" if d == 0 else None
        if self._nonneg(d) and self._nonneg(-d):
            return "neither side is larger"
        return None

    def _nonzero(self, d: Dim) -> str | None:
        if isinstance(d, int):
            return f"the sides differ by {abs(d)}" if d else None
        if self._nonneg(d - 1) or self._nonneg(-d - 1):
            return "one side is always larger"
        return None

    def _nonneg(self, p: Dim) -> str | None:
        if self.store.nonneg(p):
            return "it follows from the ranges"
        if isinstance(p, int):
            return None
        for i in self.store.relevant(p.symbols):
            fact = self.store.inequalities[i]
            rest = p - self.store.norm(fact.expr)
            if self.store.nonneg(rest):
                return f"it follows from {fact.text}"
        return None

    def _divides(self, d: Dim, x: Dim) -> str | None:
        x, d = self.store.norm(x), self.store.norm(d)
        if x == 0:
            return "0 is a multiple of everything"
        if isinstance(d, int):
            if d == 0:
                return self._zero(x)
            return "the remainder is 0" if self.store.norm(mod(x, d)) == 0 else None
        quotient, rest = poly_divmod(x, d)
        return f"it is ({self.store.back(quotient)})*({self.store.back(d)})" if rest == 0 else None


__all__ = ["Answer", "Disproved", "Expr", "Proved", "Prover", "Unknown"]
