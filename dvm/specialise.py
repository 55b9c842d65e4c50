"""Which dims of a ``dvm.jit`` function become symbols: pure logic on sizes, without JAX.

``History`` sees the sizes of the calls that no program accepted so far. Dims that were equal in all of them form a *class*; a class
whose size never changed is fixed, every other one can be a symbol. ``search`` looks for the most general ``Plan`` that can be traced:

1. every changed class is a symbol of its own, of any size from 0;
2. a class is tied to others by a relation that held in every call (``mask = past + s``), because the function needs it;
3. sizes are multiples of what divided them so far;
4. a class stays fixed, because the function decides something by its size.

Each step first lets sizes start at 0 and, where that cannot be traced, at 1 for dims that were never 0.

Some dims become symbols before they change, because they usually will and a compile costs more than a symbol: the first axis of inputs
that have another axis that changed (a batch), and sizes 0 and 1 (a batch of one, one token, an empty cache). Where the function
cannot be traced with all of these *candidates*, they are tried one by one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

_ROWS = 64  # calls that are remembered to look for relations
_MAX_RELATIONS = 8
_MAX_ATTEMPTS = 32
_MAX_CANDIDATES = 6

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Site:
    """One dim: axis ``axis`` of flat input ``leaf``. ``label`` is for messages, ``name`` for naming a symbol."""

    leaf: int
    axis: int
    label: str = ""
    name: str = ""


@dataclass(frozen=True)
class Relation:
    """Class ``target`` is ``product(factors) + sum(terms) + constant``; ``scale`` times a single factor is written as ``scale``."""

    target: int
    terms: tuple[int, ...] = ()
    factors: tuple[int, ...] = ()
    scale: int = 1
    constant: int = 0

    @property
    def sources(self) -> tuple[int, ...]:
        """The classes that the target is computed from."""
        return self.terms + self.factors

    def value(self, sizes: Callable[[int], int]) -> int:
        """The target's size, given those of the sources."""
        product = math.prod(sizes(c) for c in self.factors) * self.scale if self.factors else 0
        return product + sum(sizes(c) for c in self.terms) + self.constant

    def text(self, names: Callable[[int], str]) -> str:
        """The relation's right side as a dim expression."""
        parts = [names(c) for c in self.terms]
        if self.factors:
            parts.append("*".join([str(self.scale)] * (self.scale != 1) + [names(c) for c in self.factors]))
        text = " + ".join(parts)
        return text if not self.constant else f"{text} {'+' if self.constant > 0 else '-'} {abs(self.constant)}"


@dataclass(frozen=True)
class Variable:
    """A symbol of a plan."""

    name: str
    min: int = 0
    multiple_of: int = 1


@dataclass(frozen=True)
class Plan:
    """What each class of dims is: a fixed size, a symbol, or an expression of symbols. ``kind`` says which step of the search made it."""

    sites: tuple[Site, ...]
    classes: tuple[int, ...]  # class of each site
    fixed: dict[int, int]  # class -> size
    variables: dict[int, Variable]  # class -> symbol
    relations: dict[int, Relation]  # class -> how it is computed
    pinned: tuple[int, ...] = ()  # fixed although they changed
    early: tuple[int, ...] = ()  # symbols although they have not changed
    kind: tuple[Any, ...] = ("independent",)

    def dims(self) -> tuple[int | str, ...]:
        """For every site a size or the text of a dim expression."""
        return tuple(self.fixed[c] if c in self.fixed else self._text(c) for c in self.classes)

    def _text(self, cls: int) -> str:
        if cls in self.variables:
            return self.variables[cls].name
        return self.relations[cls].text(lambda c: self.variables[c].name)

    def accepts(self, sizes: Sequence[int]) -> bool:
        """Whether a call with these sizes may run the program of this plan."""
        found: dict[int, int] = {}
        for cls, size in zip(self.classes, sizes):
            if found.setdefault(cls, size) != size:
                return False
        for cls, size in self.fixed.items():
            if found.get(cls, size) != size:
                return False
        for cls, variable in self.variables.items():
            if found[cls] < variable.min or found[cls] % variable.multiple_of:
                return False
        return all(found[c] == relation.value(found.__getitem__) for c, relation in self.relations.items())

    def notes(self, reason: str = "") -> list[str]:
        """Lines for ``prog.constraints``: what is shared, derived and fixed, and why. ``reason`` is why a more general plan failed."""
        because = f"; without this: {reason}" if reason else ""
        lines = []
        for cls, variable in self.variables.items():
            members = self._members(cls)
            if len(members) > 1 and cls not in self.early:
                lines.append(
                    f"{' == '.join(members)}: equal in every call so far, so they share {variable.name}; checked at launch"
                )
            if cls in self.early:
                lines.append(f"{' == '.join(members)}: {variable.name} may change, although it has not changed so far")
            if variable.multiple_of > 1:
                lines.append(
                    f"{variable.name} is a multiple of {variable.multiple_of}, as in every call so far{because}"
                )
            if variable.min > 0 and reason:
                lines.append(f"{variable.name} >= {variable.min}{because}")
        for cls in self.relations:
            lines.append(
                f"{self._members(cls)[0]} == {self._text(cls)}: held in every call so far, checked at launch{because}"
            )
        for cls in self.pinned:
            lines.append(
                f"{' == '.join(self._members(cls))} is fixed at {self.fixed[cls]}, other sizes get their own program{because}"
            )
        pinned = set(self.pinned)
        by_leaf: dict[int, list[str]] = {}
        for site, cls in zip(self.sites, self.classes, strict=True):
            if cls in self.fixed and cls not in pinned:
                by_leaf.setdefault(site.leaf, []).append(f"axis {site.axis} = {self.fixed[cls]}")
        first = {site.leaf: site.label for site in reversed(self.sites)}
        for leaf, axes in by_leaf.items():
            lines.append(f"{first[leaf]}: {', '.join(axes)}: fixed, the same in every call so far")
        return lines

    def _members(self, cls: int) -> list[str]:
        found = [f"{s.label} axis {s.axis}" for s, c in zip(self.sites, self.classes, strict=True) if c == cls]
        return found if len(found) <= 6 else [*found[:5], f"{len(found) - 5} more"]


@dataclass
class History:
    """Sizes seen so far. ``classes`` numbers the class of each site; classes only ever split.

    ``record`` replaces its fields and changes none in place, so that a shallow copy is a copy.
    """

    sites: tuple[Site, ...]
    rows: list[Sizes] = field(default_factory=list)
    classes: tuple[int, ...] = ()
    _first: Sizes = ()
    _changed: list[bool] = field(default_factory=list)
    _min: list[int] = field(default_factory=list)
    _gcd: list[int] = field(default_factory=list)

    def record(self, sizes: Sizes) -> None:
        """Takes in one more call."""
        if not self._first and not self.rows:
            self._first, self._min, self._gcd = sizes, list(sizes), list(sizes)
            self._changed = [False] * len(sizes)
            self.classes = _numbered(sizes)
        else:
            self.classes = _numbered(tuple(zip(self.classes, sizes, strict=True)))
            self._changed = [c or s != f for c, s, f in zip(self._changed, sizes, self._first, strict=True)]
            self._min = [min(a, b) for a, b in zip(self._min, sizes, strict=True)]
            self._gcd = [math.gcd(a, b) for a, b in zip(self._gcd, sizes, strict=True)]
        if sizes not in self.rows:
            self.rows = [*self.rows[-_ROWS + 1 :], sizes]

    @property
    def first_sites(self) -> dict[int, int]:
        """Class -> its first site. All sites of a class have the same history."""
        return _first_sites(self.classes)

    def changed_classes(self) -> list[int]:
        """Classes whose size changed, in order."""
        return [cls for cls, i in self.first_sites.items() if self._changed[i]]

    def plan(
        self,
        sizes: Sizes,
        minima: dict[int, int],
        relations: Sequence[Relation] = (),
        multiples: bool = False,
        pinned: Sequence[int] = (),
        kind: tuple[Any, ...] = ("independent",),
        early: Sequence[tuple[int, ...]] = (),
    ) -> Plan:
        """The plan with these choices; ``sizes`` are those of the call that is to run, which fixes what is fixed.

        ``early`` are candidates (groups of sites) that become classes, and symbols, of their own.
        """
        classes = list(self.classes)
        early_classes = range(len(classes), len(classes) + len(early))
        for cls, group in zip(early_classes, early, strict=True):
            for site in group:
                classes[site] = cls
        first, related = _first_sites(classes), {r.target: r for r in relations}
        symbolic = [c for c in self.changed_classes() if c not in pinned] + list(early_classes)
        names = _names(self.sites, [first[c] for c in symbolic])
        variables = {
            c: Variable(
                name, minima.get(c, 0), max(1, self._gcd[first[c]]) if multiples and c not in early_classes else 1
            )
            for c, name in zip(symbolic, names, strict=True)
            if c not in related
        }
        fixed = {c: sizes[i] for c, i in first.items() if c not in symbolic}
        return Plan(self.sites, tuple(classes), fixed, variables, related, tuple(pinned), tuple(early_classes), kind)

    def may_start_at_1(self, plan: Plan) -> dict[int, int]:
        """Minimum 1 for every symbol of ``plan`` whose size was never 0."""
        first = _first_sites(plan.classes)
        return {c: 1 for c in plan.variables if self._min[first[c]] > 0}

    def candidates(self) -> list[tuple[int, ...]]:
        """Groups of unchanged sites that may become symbols early: equal sizes along equal axes go together."""
        alive = {site.leaf for site, changed in zip(self.sites, self._changed, strict=True) if changed}
        groups: dict[tuple[int, int], list[int]] = {}
        for i, (site, cls) in enumerate(zip(self.sites, self.classes, strict=True)):
            if not self._changed[i]:
                groups.setdefault((cls, site.axis), []).append(i)
        chosen = []
        for (_, axis), group in groups.items():
            leads = axis == 0 and any(self.sites[i].leaf in alive for i in group)
            if leads or self._first[group[0]] <= 1:
                chosen.append(tuple(group))
        return chosen[:_MAX_CANDIDATES]

    def relations(self, pinned: Sequence[int] = ()) -> list[Relation]:
        """Relations between changed classes that held in every remembered call, the plainest first."""
        classes = [c for c in self.changed_classes() if c not in pinned]
        first = self.first_sites
        columns = {c: [row[first[c]] for row in self.rows] for c in classes}
        found = [r for target in classes for r in _candidates(target, classes) if _holds(r, columns)]
        for target in classes:
            for other in classes:
                found += _fitted(target, other, columns)
        return found[:_MAX_RELATIONS]


def _first_sites(classes: Sequence[int]) -> dict[int, int]:
    found: dict[int, int] = {}
    for i, cls in enumerate(classes):
        found.setdefault(cls, i)
    return found


def _numbered(keys: Sequence[Any]) -> tuple[int, ...]:
    seen: dict[Any, int] = {}
    return tuple(seen.setdefault(key, len(seen)) for key in keys)


def _names(sites: Sequence[Site], firsts: Sequence[int]) -> list[str]:
    """One identifier per class, made from the argument's name and the axis of its first site."""
    taken: set[str] = set()
    names = []
    for i in firsts:
        site = sites[i]
        base = re.sub(r"\W+", "_", site.name, flags=re.ASCII).strip("_") or f"arg{site.leaf}"
        name = base = f"{'a' * base[0].isdigit()}{base}_{site.axis}"
        while name in taken:
            name += "x"
        taken.add(name)
        names.append(name)
    return names


def _candidates(target: int, classes: Sequence[int]) -> Iterator[Relation]:
    others = [c for c in classes if c != target]
    pairs = [(a, b) for i, a in enumerate(others) for b in others[i + 1 :]]
    yield from (Relation(target, terms=pair) for pair in pairs)
    yield from (Relation(target, factors=pair) for pair in pairs)
    yield from (Relation(target, terms=pair, constant=k) for pair in pairs for k in (1, -1))


def _fitted(target: int, other: int, columns: dict[int, list[int]]) -> Iterator[Relation]:
    """``target = other + k`` and ``target = m * other`` with constants from the sizes."""
    if target == other:
        return
    wanted, given = columns[target], columns[other]
    if any(given) and (scale := max(wanted) // max(given)) > 1:
        relation = Relation(target, factors=(other,), scale=scale)
        if _holds(relation, columns):
            yield relation
    constant = wanted[0] - given[0]
    if constant > 0 and _holds(relation := Relation(target, terms=(other,), constant=constant), columns):
        yield relation


def _holds(relation: Relation, columns: dict[int, list[int]]) -> bool:
    rows = range(len(columns[relation.target]))
    return all(columns[relation.target][i] == relation.value(lambda c, i=i: columns[c][i]) for i in rows)  # type: ignore[misc]


@dataclass
class Found:
    """The result of a search: the plan, what ``attempt`` returned for it, and why a more general one failed ("" if none was)."""

    plan: Plan
    result: Any
    reason: str = ""


def search(
    history: History, sizes: Sizes, attempt: Callable[[Plan], Any], prefer: tuple[Any, ...] | None = None
) -> Found:
    """The most general plan for which ``attempt`` (trace the function) does not raise.

    ``prefer`` is the kind of the plan that was found last time and is tried first. If only fixed sizes can be traced, the plan fixes all;
    if not even those, the function is wrong for these sizes and its own error is raised.
    """
    if not history.changed_classes():
        plan = history.plan(sizes, {}, kind=("fixed",))
        return Found(plan, attempt(plan))
    errors: list[Exception] = []
    fixed: Found | None = None

    def try_(plan: Plan) -> Found | None:
        nonlocal fixed
        if len(errors) >= _MAX_ATTEMPTS:
            return None
        try:
            return Found(plan, attempt(plan), _reason(errors))
        except Exception as error:
            errors.append(error)
        if fixed is None:  # whether the function works for these sizes at all decides if looking further makes sense
            everything = history.plan(sizes, {}, pinned=history.changed_classes(), kind=("fixed",))
            fixed = Found(everything, attempt(everything), _reason(errors))
        return None

    for choice in _choices(history, prefer):
        found = _most_general(history, sizes, choice, try_)
        if found is not None:
            return found
    assert fixed is not None
    return fixed


def _choices(history: History, prefer: tuple[Any, ...] | None) -> list[dict[str, Any]]:
    """Arguments of ``History.plan`` in the order of generality."""
    choices: list[dict[str, Any]] = [{"kind": ("independent",)}]
    first = history.first_sites  # kinds name classes by site: their numbers change when classes split

    def key(relation: Relation) -> tuple[int, ...]:
        classes = (relation.target, *relation.terms, *relation.factors)
        return (*(first[c] for c in classes), relation.scale, relation.constant)

    def add_relations(pinned: Sequence[int] = ()) -> None:
        relations = history.relations(pinned)
        together = _compatible(relations)
        for group in [[r] for r in relations] + [together] * (len(together) > 1):
            choices.append(
                {
                    "relations": group,
                    "pinned": pinned,
                    "kind": ("related", *map(key, group), *(first[c] for c in pinned)),
                }
            )

    add_relations()
    choices.append({"multiples": True, "kind": ("multiples",)})
    changed = history.changed_classes()
    if len(changed) > 1:
        for cls in changed:
            choices.append({"pinned": (cls,), "kind": ("pinned", first[cls])})
        for cls in changed:
            add_relations((cls,))
    return sorted(choices, key=lambda choice: choice["kind"] != prefer)


def _compatible(relations: Sequence[Relation]) -> list[Relation]:
    """The first relation of each target whose sources are not targets themselves."""
    chosen: list[Relation] = []
    for relation in relations:
        targets = {r.target for r in chosen}
        sources = {c for r in chosen for c in r.sources}
        if relation.target not in targets | sources and not targets.intersection(relation.sources):
            chosen.append(relation)
    return chosen


def _most_general(
    history: History, sizes: Sizes, choice: dict[str, Any], try_: Callable[[Plan], Found | None]
) -> Found | None:
    """With all candidates; or else without, and then with each that works."""
    candidates = history.candidates()
    found = _least_minima(history, sizes, {**choice, "early": candidates}, try_)
    if found is not None or not candidates:
        return found
    found = _least_minima(history, sizes, choice, try_)
    if found is None or len(candidates) == 1:
        return found
    chosen: list[tuple[int, ...]] = []
    for candidate in candidates:
        ones = {c: v.min for c, v in found.plan.variables.items() if c not in found.plan.early}
        wider = try_(history.plan(sizes, ones, **choice, early=[*chosen, candidate]))
        if wider is not None:
            found, chosen = wider, [*chosen, candidate]
    return found


def _least_minima(
    history: History, sizes: Sizes, choice: dict[str, Any], try_: Callable[[Plan], Found | None]
) -> Found | None:
    """Sizes from 0; or else from 1 where that is needed, one class after the other."""
    plan = history.plan(sizes, {}, **choice)
    found = try_(plan)
    ones = history.may_start_at_1(plan)
    if found is not None or not ones:
        return found
    found = try_(history.plan(sizes, ones, **choice))
    if found is None or len(ones) == 1:
        return found
    for cls in list(ones):
        if cls not in found.plan.variables:
            continue
        fewer = {c: 1 for c in ones if c != cls}
        relaxed = try_(history.plan(sizes, fewer, **choice))
        if relaxed is not None:
            found, ones = relaxed, fewer
    return found


def _reason(errors: Sequence[Exception]) -> str:
    """Why the first attempt failed, in one line."""
    if not errors:
        return ""
    lines = [line.strip() for line in str(errors[0]).splitlines() if line.strip()]
    return f"{type(errors[0]).__name__}: {lines[0][:200]}" if lines else type(errors[0]).__name__
