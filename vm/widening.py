"""Which reduce loops may run in larger steps than their words say.

The steps of a REDUCE loop hand tiles on to each other. An executor that takes several steps at once must get the same, up to rounding:
what a step does to these tiles must not depend on where one step ends and the next begins. Two forms are known to be so, and everything
else runs in the words' own steps:

- *accumulation*: the only use of a tile that is handed on is as the destination of a reduction, product or arg-reduction over the
  loop's axis with ``accumulate``, of operands that depend on nothing handed on;
- *rescaled accumulation* (online softmax): a running maximum m of scores s accumulates as above; with the step's old and new maximum,
  a = exp(m_old - m_new) and p = exp(s - m_new), and other tiles are multiplied by a and then get a sum of p, or a product with p, over
  the axis added. The tile then holds sum(exp(s - m) * ...) over all elements so far, whatever the steps.

The proof is abstract interpretation of one step: every tile has a ``Kind``.
"""

from __future__ import annotations

from dataclasses import dataclass

from vm import isa
from vm.decode import Kernel, Loop, Op, Tile, operations

Key = tuple[isa.Space, int]  # of a tile: what lies at its address

FREE = "free"  # depends on nothing handed on, and on the step only through its elements
CARRIED = "carried"  # as the step before left it
SCALED = "scaled"  # ... times the scale
OLD_MAX, NEW_MAX = "old maximum", "new maximum"
FALL, SCALE = "old maximum less new maximum", "its exponential"
BELOW, WEIGHT = "scores less new maximum", "their exponential"
PART = "a product of the weights over the axis"
DONE = "accumulated"
OTHER = -1
_MOVES = frozenset(("copy", "bcast", "permute", "cast"))


@dataclass(frozen=True)
class Kind:
    """What is known of a tile; ``of`` is the running maximum that it belongs to, and ``dims`` has for every dim of the tile the dim of
    the maximum whose index it is, or ``OTHER``."""

    name: str
    of: Key | None = None
    dims: tuple[int, ...] = ()

    def named(self, name: str) -> Kind:
        """The same with another name."""
        return Kind(name, self.of, self.dims)


_FREE = Kind(FREE)


def may_widen(kernel: Kernel, loop: Loop) -> bool:
    """Whether a reduce loop's steps may be joined."""
    return _Step(kernel, loop).run()


class _Step:
    def __init__(self, kernel: Kernel, loop: Loop) -> None:
        self.kernel, self.axis = kernel, loop.axis
        self.ops = list(operations(loop.body))
        self.kinds: dict[Key, Kind] = {}
        self.carried = self._handed_on()
        self.maxima: dict[Key, Op] = {}  # running maximum -> its update
        for op in self.ops:
            if op.insn.name == "reduce_max" and op.fixed("accumulate") and self.key(op, "dst") in self.carried:
                self.maxima.setdefault(self.key(op, "dst"), op)

    def run(self) -> bool:
        for key in self.carried:
            self.kinds[key] = self._maximum(key, OLD_MAX) if key in self.maxima else Kind(CARRIED)
        for op in self.ops:
            if not self.visit(op):
                return False
        return all(self.kinds[key].name in (DONE, NEW_MAX) for key in self.carried)

    def _maximum(self, key: Key, name: str) -> Kind:
        return Kind(name, key, tuple(range(len(self.tile(self.maxima[key], "dst").dims))))

    def tile(self, op: Op, field: str) -> Tile:
        return self.kernel.tiles[op.fixed(field)]

    def key(self, op: Op, field: str) -> Key:
        tile = self.tile(op, field)
        return tile.space, tile.address

    def _keys(self, numbers: list[int]) -> list[Key]:
        return [(t.space, t.address) for t in (self.kernel.tiles[n] for n in numbers)]

    def _handed_on(self) -> set[Key]:
        """Tiles that a step reads before it writes them, and writes."""
        written: set[Key] = set()
        exposed: set[Key] = set()
        for op in self.ops:
            exposed |= set(self._keys(isa.tiles_read(op.insn, op.fields, op.tail))) - written
            written |= set(self._keys(isa.tiles_written(op.insn, op.fields)))
        return exposed & written

    def kind(self, key: Key) -> Kind:
        return self.kinds.get(key, _FREE)

    def over_axis(self, op: Op) -> bool:
        """Whether an instruction combines elements along the loop's axis."""
        family = op.insn.family
        if family == "cube":
            return any(
                axis == self.axis and op.fixed(roles) >> (2 * d) & 3 == isa.DOT_CONTRACT
                for field, roles in (("x", "xdims"), ("y", "ydims"))
                for d, (_, axis) in enumerate(self.tile(op, field).dims)
            )
        if family not in ("reduce", "argreduce", "cumulative"):
            return False
        dims = self.tile(op, "x").dims
        over = [op.fixed("dim")] if family != "reduce" else [d for d in range(len(dims)) if op.fixed("mask") >> d & 1]
        return any(dims[d][1] == self.axis for d in over)

    def visit(self, op: Op) -> bool:
        """Takes one instruction into account; False if the step is of no known form."""
        reads = self._keys(isa.tiles_read(op.insn, op.fields, op.tail))
        writes = self._keys(isa.tiles_written(op.insn, op.fields))
        if op.insn.family in ("reduce", "argreduce", "cube", "cumulative") and self.over_axis(op):
            return self._combine(op, writes)
        kinds = {self.kind(k) for k in reads}
        if kinds <= {_FREE}:
            return self._set(writes, _FREE)
        found = self._derived(op)
        return found is not None and self._set(writes, found)

    def _set(self, writes: list[Key], kind: Kind) -> bool:
        for key in writes:
            if key in self.carried and kind.name not in (SCALED, DONE, NEW_MAX):
                return False  # handed on, and overwritten by something else
            self.kinds[key] = kind
        return True

    def _combine(self, op: Op, writes: list[Key]) -> bool:
        """A reduction or product over the axis."""
        sources = [self.key(op, "x"), *([self.key(op, "y")] if op.insn.family == "cube" else [])]
        kinds = [self.kind(k) for k in sources]
        free = all(k == _FREE for k in kinds)
        if op.insn.family == "cumulative":
            return free and bool(op.fixed("carry")) and self._carry(op)
        if op.insn.family == "cube" and not op.fixed("accumulate"):
            found = self._part(op)
            return found is not None and self._set(writes, found)
        if not op.fixed("accumulate"):
            return False
        for key in writes:
            before = self.kind(key)
            if self.maxima.get(key) is op and free:
                self.kinds[key] = self._maximum(key, NEW_MAX)
            elif key in self.carried and free and before.name in (CARRIED, DONE) and before.of is None:
                self.kinds[key] = Kind(DONE)
            elif op.insn.name == "reduce_sum" and kinds[0].name == WEIGHT:
                total = self._total(op, kinds[0])
                if total is None or not self._adds(key, total):
                    return False
                self.kinds[key] = total.named(DONE)
            else:
                return False
        return True

    def _carry(self, op: Op) -> bool:
        """A scan that goes on from the step before."""
        y = self.key(op, "y")
        if y not in self.carried or self.kind(y).name != CARRIED:
            return False
        self.kinds[y] = Kind(DONE)
        return self._set([self.key(op, "dst")], _FREE)

    def _total(self, op: Op, weights: Kind) -> Kind | None:
        """A sum of weights over the axis; each summand must have the same scale."""
        mask = op.fixed("mask")
        if any(k != OTHER for d, k in enumerate(weights.dims) if mask >> d & 1):
            return None
        return Kind(PART, weights.of, tuple(k for d, k in enumerate(weights.dims) if not mask >> d & 1))

    def _part(self, op: Op) -> Kind | None:
        """A product over the axis of weights and of something free."""
        sides = [(self.kind(self.key(op, f)), op.fixed(roles)) for f, roles in (("x", "xdims"), ("y", "ydims"))]
        weights = [k for k, _ in sides if k.name == WEIGHT]
        if len(weights) != 1 or not any(k == _FREE for k, _ in sides):
            return None
        of: dict[int, list[int]] = {isa.DOT_BATCH: [], isa.DOT_FREE: []}
        for side, (kind, roles) in enumerate(sides):
            for d in range(len(self.tile(op, "xy"[side]).dims)):
                role, k = roles >> (2 * d) & 3, kind.dims[d] if kind.dims else OTHER
                if role == isa.DOT_CONTRACT and k != OTHER:
                    return None
                if role == isa.DOT_FREE or (role == isa.DOT_BATCH and kind.name == WEIGHT):
                    of[role].append(k)
        return Kind(PART, weights[0].of, (*of[isa.DOT_BATCH], *of[isa.DOT_FREE]))

    def _adds(self, key: Key, addend: Kind) -> bool:
        """Whether adding ``addend`` to a tile that is handed on keeps it a rescaled sum."""
        return key in self.carried and self.kind(key) in (addend.named(SCALED), addend.named(DONE))

    def _moved(self, op: Op, x: Kind) -> Kind | None:
        """The kind of a copy, which may have more dims or another order."""
        dst, source = self.tile(op, "dst").dims, self.tile(op, "x").dims
        if op.insn.name == "bcast":
            places = [d for d in range(len(dst)) if op.fixed("mask") >> d & 1]
            dims = [OTHER] * len(dst)
            for place, k in zip(places, x.dims, strict=True):
                dims[place] = k
            return Kind(x.name, x.of, tuple(dims))
        if op.insn.name == "permute":
            return Kind(x.name, x.of, tuple(x.dims[op.fixed("perm") >> (4 * d) & 15] for d in range(len(dst))))
        return x if dst == source else None

    def _derived(self, op: Op) -> Kind | None:
        """The kind of what an elementwise or moving instruction makes of operands that are not all free."""
        name = op.insn.name
        x = self.kind(self.key(op, "x")) if "x" in op.fields else _FREE
        if name in _MOVES:
            return self._moved(op, x) if x.name not in (CARRIED, SCALED, DONE) else None
        if name == "exp":
            return x.named(SCALE) if x.name == FALL else x.named(WEIGHT) if x.name == BELOW else None
        if op.insn.family != "binary":
            return None
        y = self.kind(self.key(op, "y"))
        if name == "sub" and y.name == NEW_MAX:
            return y.named(FALL) if x == y.named(OLD_MAX) else y.named(BELOW) if x == _FREE else None
        same = self.key(op, "dst") == self.key(op, "x")
        if name == "mul" and same and x.name == CARRIED and y.name == SCALE:
            return y.named(SCALED)
        if name == "add" and same and y.name == PART and self._adds(self.key(op, "x"), y):
            return y.named(DONE)
        return None
