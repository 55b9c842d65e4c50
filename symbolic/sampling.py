"""Points that meet the facts about a few root symbols: patterns and pseudo-random picks, then small repairs. Deterministic."""

from __future__ import annotations

from collections.abc import Iterator

from symbolic import relations
from symbolic.expr import SYMBOL, Expr
from symbolic.learn import Knowledge
from symbolic.relations import Relation

MAX_FACTS = 160
_STEPS = (0, 1, 2, 3, 5, 7, 4, 6, 12, 16, 31, 64, 8, 9, 10, 127)
_REPAIRS = 16


class Sampler:
    """Samples values of ``roots``; only facts that mention no other root are looked at."""

    def __init__(self, store: Knowledge, roots: tuple[str, ...]) -> None:
        self.store, self.roots = store, roots
        self.dims = self._inequalities()
        self.alternatives = self._alternatives()

    def _inequalities(self) -> list[Expr]:
        store, inside = self.store, set(self.roots)
        indices = sorted({i for name in self.roots for i in store.by_symbol.get(name, ())[:MAX_FACTS]})
        dims = [store.sub.apply(store.inequalities[i].expr) for i in indices]
        for zero in dict.fromkeys(z for name in self.roots for z in store.rule_zeros(name)):
            dims += [zero, -zero]
        return [d for d in dims if isinstance(d, Expr) and d.symbol_set <= inside]

    def _alternatives(self) -> list[list[Relation]]:
        store, inside = self.store, set(self.roots)
        indices = sorted({i for name in self.roots for i in store.alternatives_of.get(name, ())[:MAX_FACTS]})
        lists = [[_over_roots(store, r) for r in store.alternatives[i].parts] for i in indices]
        return [parts for parts in lists if all(r.symbol_set <= inside for r in parts)]

    def points(self, trials: int, wanted: int) -> Iterator[dict[str, int]]:
        """At most ``wanted`` different points, from at most ``trials`` attempts."""
        state = 12345
        found: set[tuple[int, ...]] = set()
        for trial in range(trials):
            point: dict[str, int] = {}
            for i, name in enumerate(self.roots):
                state = (state * 1103515245 + 12345) % 2**31
                point[name] = self._pick(name, trial, i, state >> 8)
            if self._repair(point, trial):
                key = tuple(point.values())
                if key not in found:
                    found.add(key)
                    yield point
                    if len(found) >= wanted:
                        return

    def _pick(self, name: str, trial: int, i: int, noise: int) -> int:
        """A first value: all at their lower bounds; all different; the first few different and the rest 1, or one size and 1
        (which all broadcast); then at random."""
        lo, hi = self.store.ranges[name]
        if trial == 0:
            step = 0
        elif trial == 1:
            step = i + 2
        elif trial < 9 and lo is not None:
            one = max(1 - lo, 0)
            if trial < 4:
                step = (i + 2) * (i + trial - 2) if i < 3 else one
            else:
                step = trial - 1 if noise % 2 else one
        else:
            step = _STEPS[noise % (2 + min(trial, len(_STEPS) - 2))]
        if lo is None:
            return hi - step if hi is not None else step if noise % 3 else -step
        if hi is None:
            return lo + step
        if noise % 7 == 0:
            return max(lo, hi - step)
        return lo + step % (hi - lo + 1)

    def _repair(self, point: dict[str, int], trial: int) -> bool:
        """Moves ``point`` until all facts hold; False where a few steps do not reach that."""
        for attempt in range(_REPAIRS):
            broken = next((d for d in self.dims if d.evaluate(point) < 0), None)
            if broken is not None:
                if not self._raise(point, broken):
                    return False
                continue
            parts = next((ps for ps in self.alternatives if not any(r.holds(point) for r in ps)), None)
            if parts is None:
                return True
            if not any(self._satisfy(point, parts[(trial + attempt + k) % len(parts)]) for k in range(len(parts))):
                return False
        return False

    def _satisfy(self, point: dict[str, int], rel: Relation) -> bool:
        """Changes one symbol so that ``rel`` holds, if that is easy."""
        if rel.op not in (relations.EQ, relations.LE, relations.LT):
            return False
        p = rel.args[1] - rel.args[0] - (rel.op == relations.LT)
        if isinstance(p, int):
            return False
        if rel.op != relations.EQ or p.evaluate(point) < 0:
            return self._raise(point, p)
        return self._raise(point, -p)

    def _raise(self, point: dict[str, int], dim: Expr) -> bool:
        """Changes one symbol so that the linear part of ``dim`` becomes non-negative, if a range allows that."""
        need = -dim.evaluate(point)
        for mono, c in dim.ordered():
            if len(mono) != 1 or mono[0].op != SYMBOL:
                continue
            name = mono[0].args[0]
            step = -(-need // abs(c)) * (1 if c > 0 else -1)
            lo, hi = self.store.ranges[name]
            value = point[name] + step
            if (lo is None or value >= lo) and (hi is None or value <= hi):
                point[name] = value
                return True
        return False


def _over_roots(store: Knowledge, rel: Relation) -> Relation:
    args = tuple(_over_roots(store, a) if isinstance(a, Relation) else store.sub.apply(a) for a in rel.args)
    return Relation(rel.op, args)
