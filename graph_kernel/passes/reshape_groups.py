"""How a reshape groups its axes: the finest list of (input axes, output axes) with proved-equal sizes.

Axes of size 1 never join a group: each is a group of its own, paired with an axis of size 1 on the other side where
the positions fit and alone otherwise. So ``[b, 1, 6] -> [b, 2, 3]`` is ``([0], [0]), ([1], []), ([2], [1, 2])``.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from graph_kernel.passes.match import same_dim
from symbolic import product

if TYPE_CHECKING:
    from symbolic import Dim, Scope

Groups = list[tuple[tuple[int, ...], tuple[int, ...]]]


_known: WeakKeyDictionary[Scope, dict[Hashable, Groups | None]] = WeakKeyDictionary()


def axis_groups(scope: Scope, before: Sequence[Dim], after: Sequence[Dim]) -> Groups | None:
    """The groups of ``reshape(before -> after)`` in order, or None if a product of sizes cannot be proved equal. Not to be changed: what
    has been found is kept as long as the scope knows no more facts."""
    known = _known.setdefault(scope, {})
    key = (tuple(before), tuple(after), len(scope.facts), len(scope.symbols))
    if key not in known:
        known[key] = _groups(scope, before, after)
    return known[key]


def _groups(scope: Scope, before: Sequence[Dim], after: Sequence[Dim]) -> Groups | None:
    ins = [i for i, d in enumerate(before) if d != 1]
    outs = [k for k, d in enumerate(after) if d != 1]
    big: Groups = []
    i = k = 0
    while i < len(ins) and k < len(outs):
        size = _first_match(scope, [before[a] for a in ins[i:]], [after[a] for a in outs[k:]])
        if size is None:
            return None
        big.append((tuple(ins[i : i + size[0]]), tuple(outs[k : k + size[1]])))
        i, k = i + size[0], k + size[1]
    if i < len(ins) or k < len(outs):  # what is left has product 1, which no form shows
        return None
    return _with_ones(big, before, after)


def _first_match(scope: Scope, before: Sequence[Dim], after: Sequence[Dim]) -> tuple[int, int] | None:
    """The smallest numbers of leading axes with equal products; equality by form is tried before any proof."""
    for equal in (lambda a, b: a == b, lambda a, b: same_dim(scope, a, b)):
        for total in range(2, len(before) + len(after) + 1):
            for n in range(max(1, total - len(after)), min(len(before), total - 1) + 1):
                if equal(product(before[:n]), product(after[: total - n])):
                    return n, total - n
    return None


def _with_ones(big: Groups, before: Sequence[Dim], after: Sequence[Dim]) -> Groups:
    """Puts the axes of size 1 between the groups; those inside a group of several axes come after it."""
    groups: Groups = []
    ones_in = [i for i, d in enumerate(before) if d == 1]
    ones_out = [k for k, d in enumerate(after) if d == 1]
    for ins, outs in [*big, ((len(before) + len(after),), (len(before) + len(after),))]:
        left = [i for i in ones_in if i < ins[0]]
        right = [k for k in ones_out if k < outs[0]]
        ones_in, ones_out = ones_in[len(left) :], ones_out[len(right) :]
        for n in range(max(len(left), len(right))):
            groups.append((tuple(left[n : n + 1]), tuple(right[n : n + 1])))
        groups.append((ins, outs))
    return groups[:-1]


def nontrivial(groups: Groups) -> int:
    """How many groups change anything; 0 is the identity."""
    return sum(len(ins) != 1 or len(outs) != 1 for ins, outs in groups)
