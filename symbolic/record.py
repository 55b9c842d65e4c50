"""Writes a proof down while the prover runs: ``record`` repeats a question in a store of its own, with a ``Recorder`` listening.

``Recorder`` answers the notes that ``Knowledge`` leaves when it learns (each names what has just become known) and justifies what the
store decides silently: normal forms and intervals. ``RecordingProver`` adds the steps of the search. All of it ends up as ``Step``s,
which ``checker`` accepts or refuses on its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from symbolic import functions, relations
from symbolic.checker import not_negative
from symbolic.expr import BROADCAST, FLOORDIV, MOD, SYMBOL, Atom, Dim, Expr, Mono, atom_expr, content, make, symbol
from symbolic.functions import Range, poly_divmod
from symbolic.learn import Contradiction, Knowledge
from symbolic.proof import FALSE, Branch, Declaration, Step
from symbolic.relations import Relation, divides, either, eq, le, ne
from symbolic.store import rounded

Key = tuple[Any, ...]
Equal = tuple[Dim, int | None]  # a multiplier and the step that says what is zero; None: nothing


class Gap(Exception):
    """A step could not be written down: a defect of this file, never of the answer."""


class _Frame:
    def __init__(self, table: dict[Key, int], assumptions: tuple[tuple[int, Relation], ...]) -> None:
        self.table = table
        self.assumptions = assumptions
        self.steps: list[Step] = []

    def branch(self, *more: Step) -> Branch:
        return Branch(self.assumptions, (*self.steps, *more))


class Recorder:
    """Steps so far, and where each thing that the store knows was shown."""

    def __init__(self, store: Knowledge) -> None:
        self.store = store
        self.count = 0
        self.frames = [_Frame({}, ())]
        self.closed: _Frame | None = None
        self.numerators: dict[tuple[Dim, int], Dim] = {}  # (x - x % d, d) -> x
        self.pending: list[tuple[Relation, int, list[tuple[Relation | None, _Frame]]]] = []
        store.log = self
        store.sub.compressed = self._compressed

    # --- steps ----------------------------------------------------------------------------------------------------------

    @property
    def table(self) -> dict[Key, int]:
        """Where things were shown, as far as it holds here."""
        return self.frames[-1].table

    def step(
        self,
        rule: str,
        claim: Relation,
        premises: Iterable[int | None] = (),
        data: tuple[Any, ...] = (),
        branches: tuple[Branch, ...] = (),
    ) -> Step:
        """A step that is not in the list yet."""
        self.count += 1
        return Step(self.count, rule, claim, tuple(p for p in premises if p is not None), data, branches)

    def add(self, *args: Any, **kwargs: Any) -> int:
        """A new last step; its id."""
        step = self.step(*args, **kwargs)
        self.frames[-1].steps.append(step)
        return step.id

    def sums(
        self,
        claim: Relation,
        nonneg: Sequence[tuple[int, tuple[int, ...]]] = (),
        equal: Sequence[Equal] = (),
        den: int = 1,
    ) -> int:
        """An arithmetic step: ``den * claim`` is the weighted sum of products, plus multiples of equalities, plus less than den."""
        equal = [(m, i) for m, i in equal if i is not None]
        premises = [i for _, ids in nonneg for i in ids] + [i for _, i in equal]
        return self.add("arithmetic", claim, premises, (den, tuple(nonneg), tuple(equal)))

    def get(self, *key: Any) -> int:
        """Where ``key`` was shown. Raises ``Gap``."""
        found = self.table.get(key)
        if found is None:
            raise Gap(f"nothing shows {key[0]} {', '.join(map(str, key[1:]))}")
        return found

    def enter(self, rels: Sequence[Relation]) -> None:
        """A case begins."""
        assumptions = []
        table = dict(self.table)
        for rel in rels:
            self.count += 1
            assumptions.append((self.count, rel))
            table["rel", rel] = self.count
        self.frames.append(_Frame(table, tuple(assumptions)))

    def leave(self) -> None:
        """The case is over; ``closed`` keeps what it showed."""
        self.closed = self.frames.pop()

    # --- equalities of forms ----------------------------------------------------------------------------------------------

    def norm(self, dim: Dim) -> int | None:
        """Where ``dim == norm(dim)`` is shown; None if they are the same."""
        for _ in range(2):
            target = self.store.norm(dim)
            found = self._chain(dim, target)
            if found is not False:
                return None if found is True else found
            self.store.changed()
        raise Gap(f"{dim} does not become {target}")

    def _chain(self, dim: Dim, target: Dim) -> int | bool:
        """The step ``dim == target``; True if there is nothing to show, False where the steps lead elsewhere. Mirrors ``Store.norm``."""
        if dim == target:
            return True
        assert isinstance(dim, Expr)
        key = ("norm", dim, target)
        if key in self.table:
            return self.table[key]
        store, links = self.store, []
        current: Dim = store.sub.apply(dim)
        if current != dim:
            names = [s for s in dim.symbols if s in store.sub.map]
            links.append(self.add("replacement", eq(dim, current), [self.get("sub", s) for s in names]))
        for _ in range(4):
            before = current
            if isinstance(current, Expr) and any(a.op != SYMBOL for m in current.terms for a in m):
                current = self._rebuilt(current, links)
            current = self._products(current, links)
            if current == before or isinstance(current, int):
                break
        if current != target:
            return False
        found = links[0] if len(links) == 1 else self.sums(eq(dim, target), equal=[(1, i) for i in links])
        self.table[key] = found
        return found

    def _rebuilt(self, dim: Expr, links: list[int]) -> Dim:
        found: dict[Atom, Dim] = {}

        def replace(atom: Atom) -> Dim | None:
            value = self.store._rewrite(atom)
            if value is not None:
                found[atom] = value
            return value

        new = dim.rebuild(replace)
        if new != dim:
            premises = [self._atom(atom, value) for atom, value in found.items()]
            links.append(self.add("replacement", eq(dim, new), premises))
        return new

    def _products(self, dim: Dim, links: list[int]) -> Dim:
        """Mirrors ``Store._reduce_products``."""
        store = self.store
        if not store.products or isinstance(dim, int):
            return dim
        for _ in range(16):
            if isinstance(dim, int) or len(dim.terms) > 256:
                return dim
            for mono, c in dim.ordered():
                hit = store._product_rule(mono)
                if hit is None:
                    continue
                quotient, value = hit
                lead = next(k for k in store.rules_of_mono(mono) if functions.mono_quotient(mono, k) == quotient)
                times = c * make({quotient: 1})
                new = dim - make({mono: c}) + times * value
                links.append(self.sums(eq(dim, new), equal=[(times, self.get("rule", lead))]))
                dim = new
                break
            else:
                return dim
        return dim

    def _atom(self, atom: Atom, value: Dim) -> int:
        """The step ``atom == value``. Mirrors ``Store._rewrite``."""
        key = ("atom", atom, value)
        if key not in self.table:
            self.table[key] = self._atom_new(atom, value)
        return self.table[key]

    def _atom_new(self, atom: Atom, value: Dim) -> int:
        store, claim = self.store, eq(atom_expr(atom), value)
        if store.products:
            links: list[list[int]] = [[] for _ in atom.args]
            args = [self._products(a, ls) for a, ls in zip(atom.args, links, strict=True)]
            if args != list(atom.args):
                premises = [
                    ls[0] if len(ls) == 1 else self.sums(eq(a, new), equal=[(1, i) for i in ls])
                    for a, new, ls in zip(atom.args, args, links, strict=True)
                    if ls
                ]
                return self.add("equal arguments", claim, premises)
        if atom.op == FLOORDIV:
            return self._quotient(claim, atom, value)
        if atom.op == MOD:
            return self._remainder(claim, atom, value)
        if atom.op == BROADCAST:
            gaps = [g for a in atom.args for g in (a - 1, a - 2, -1 * a) if store.nonneg(g) and isinstance(g, Expr)]
            return self.add("broadcast", claim, [self.nonneg(g) for g in gaps])
        return self._extremum(claim, atom)

    def _quotient(self, claim: Relation, atom: Atom, value: Dim) -> int:
        store = self.store
        x, d = atom.args
        below, above = x - d * value, d * value + d - 1 - x
        if store.nonneg(below) and store.nonneg(above):
            return self.add("division", claim, [self.nonneg(below), self.nonneg(above)], (x, d))
        premise = [self.positive(d)]
        q, r = poly_divmod(x, d)
        top = x.as_atom if isinstance(x, Expr) else None
        if top is not None and top.op == MOD and isinstance(top.args[1], Expr):
            k, rest = poly_divmod(top.args[1], d)
            if isinstance(rest, int) and rest == 0 and store.positive(k):
                return self.add("quotient of a remainder", claim, [*premise, self.positive(k)], (top.args[0], d, k))
        if q != 0:
            return self.add("multiple pulled out", claim, premise, (q, r, d))
        factors, y, e = self._common(x, d)
        if factors:
            return self.add("common factor", claim, [self.positive(f) for f in factors], (tuple(factors), y, e))
        assert isinstance(x, Expr)
        inner = (x - x.constant).as_atom  # type: ignore[union-attr]
        assert inner is not None
        y, e = inner.args
        return self.add("nested division", claim, [self.positive(e), *premise], (y, e, x.constant, d))

    def _remainder(self, claim: Relation, atom: Atom, value: Dim) -> int:
        store = self.store
        x, d = atom.args
        k, rest = poly_divmod(x - value, d) if isinstance(d, Expr) else _exact(x - value, d)
        if rest == 0 and store.nonneg(value) and store.nonneg(d - 1 - value):
            return self.add("remainder", claim, [self.nonneg(value), self.nonneg(d - 1 - value)], (x, d, k))
        factors, y, e = self._common(x, d)
        return self.add("common factor", claim, [self.positive(f) for f in factors], (tuple(factors), y, e))

    def _common(self, x: Dim, d: Dim) -> tuple[list[Expr], Dim, Dim]:
        """The positive atoms that ``Store._cancel`` drops, and what is left."""
        factors: list[Expr] = []
        while isinstance(x, Expr) and isinstance(d, Expr):
            monos = [*x.terms, *d.terms]
            common = next(
                (a for a in monos[0] if all(a in m for m in monos) and self.store.positive(atom_expr(a))), None
            )
            if common is None:
                break
            factors.append(atom_expr(common))
            x, d = poly_divmod(x, atom_expr(common))[0], poly_divmod(d, atom_expr(common))[0]
        return factors, x, d

    def _extremum(self, claim: Relation, atom: Atom) -> int:
        store, sign = self.store, 1 if atom.op == "max" else -1
        alive, beaten_by = list(atom.args), {}
        for arg in atom.args:
            other = next((o for o in alive if o is not arg and store.nonneg(sign * (o - arg))), None)
            if len(alive) > 1 and other is not None:
                alive.remove(arg)
                beaten_by[arg] = other
        premises = []
        for arg in beaten_by:
            winner, links = arg, []
            while winner in beaten_by:  # what beat it may have been beaten later
                links.append((1, (self.nonneg(sign * (beaten_by[winner] - winner)),)))
                winner = beaten_by[winner]
            single = len(links) == 1
            premises.append(links[0][1][0] if single else self.sums(le(0, sign * (winner - arg)), links))
        return self.add("dominated", claim, premises, (tuple(alive),))

    # --- what is not negative ---------------------------------------------------------------------------------------------

    def positive(self, dim: Dim) -> int:
        """The step ``dim >= 1``."""
        return self.nonneg(dim - 1)

    def nonneg(self, dim: Dim) -> int:
        """The step ``dim >= 0``. Mirrors ``Store.nonneg``."""
        key = ("nonneg", dim)
        if key not in self.table:
            self.table[key] = self._nonneg_new(dim)
        return self.table[key]

    def _nonneg_new(self, dim: Dim) -> int:
        store, claim = self.store, le(0, dim)
        if isinstance(dim, int):
            return self.add("ranges", claim)
        lo = store.bounds(dim)[0]
        if (lo is not None and lo >= 0) or store._shifted_nonneg(dim):
            return self.add("ranges", claim, self._ranges(dim))
        plain, g = rounded(dim), content(dim, with_constant=False)
        for index in store.relevant(dim.symbols, 8) if store._use_facts else ():
            rest = plain - store.fact(index)
            lo = store.bounds(rest)[0]
            if lo is not None and lo >= 0:
                return self.sums(claim, [(g, (self.fact(index),)), (g, (self.nonneg(rest),))])
        worst = store._remainders_at_most(dim)
        if worst is None:
            raise Gap(f"{dim} >= 0")
        return self._with_remainder(claim, dim, worst)

    def _with_remainder(self, claim: Relation, dim: Expr, worst: Dim) -> int:
        for mono, c in dim.ordered():
            for atom in mono if c < 0 else ():
                if atom.op != MOD or isinstance(atom.args[1], int):
                    continue
                rest = list(mono)
                rest.remove(atom)
                d = atom.args[1]
                if dim - make({mono: c}) + c * (make({tuple(rest): 1}) * (d - 1)) == worst:
                    law = self.add("law", le(0, d - 1 - atom_expr(atom)), [self.positive(d)], (atom,))
                    factors = tuple(self.nonneg(atom_expr(a)) for a in rest)
                    return self.sums(claim, [(1, (self.nonneg(worst),)), (-c, (*factors, law))])
        raise Gap(f"{dim} >= 0")

    def _ranges(self, dim: Expr) -> list[int]:
        """The bounds of symbols that ``dim >= 0`` rests on, none in vain."""
        keys = [(end, s) for s in dim.symbols for end in ("hi", "lo") if (end, s) in self.table]
        for key in list(keys):
            fewer = [k for k in keys if k != key]
            if not not_negative(dim, self._intervals(fewer)):
                keys = fewer
        return [self.table[key] for key in reversed(keys)]

    def _intervals(self, keys: Sequence[tuple[str, str]]) -> dict[str, Range]:
        found: dict[str, Range] = {}
        for end, name in keys:
            lo, hi = self.store.ranges[name]
            known = found.get(name, (None, None))
            found[name] = (lo, known[1]) if end == "lo" else (known[0], hi)
        return found

    def fact(self, index: int) -> int:
        """The step ``store.fact(index) >= 0``."""
        store = self.store
        expr, dim = store.inequalities[index].expr, store.fact(index)
        key = ("plain", index, dim)
        if key not in self.table:
            outer, store._use_facts = store._use_facts, False
            try:
                link = self._chain(expr, dim)
            finally:
                store._use_facts = outer
            if link is False:
                raise Gap(f"the fact {expr} >= 0 does not become {dim}")
            equal: list[Equal] = [] if link is True else [(1, int(link))]
            self.table[key] = self.sums(le(0, dim), [(1, (self.get("ineq", index),))], equal)
        return self.table[key]

    # --- notes: symbols -----------------------------------------------------------------------------------------------------

    def declared(self, d: Declaration) -> None:
        """The symbol as declared is a root for now."""
        low, *rest = d.relations()
        self.table["lo", d.name] = self.add("declared", low)
        if d.max is not None:
            self.table["hi", d.name] = self.add("declared", rest[0])
        if d.multiple_of > 1:
            self.table["divides", d.multiple_of, symbol(d.name) - d.remainder] = self.add("declared", rest[-1])

    def congruent(self, d: Declaration, root: str, lo: int | None, hi: int | None) -> None:
        """A declared remainder: the symbol is ``multiple_of * root + remainder``."""
        h, s = symbol(root), symbol(d.name)
        known = self.get("divides", d.multiple_of, s - d.remainder)
        found = self.add("exact quotient", eq(d.multiple_of * h, s - d.remainder), [known], (root, d.multiple_of))
        self.table["sub", d.name] = self.sums(eq(s, d.multiple_of * h + d.remainder), equal=[(-1, found)])
        if lo is not None:
            low = [(1, (self.get("lo", d.name),))]
            self.table["lo", root] = self.sums(le(lo, h), low, [(-1, found)], d.multiple_of)
        if hi is not None:
            high = [(1, (self.get("hi", d.name),))]
            self.table["hi", root] = self.sums(le(h, hi), high, [(1, found)], d.multiple_of)

    def fact_given(self, rel: Relation) -> None:
        """A fact is about to be learned."""
        self.table["rel", rel] = self.add("fact", rel)

    def hidden(self, name: str, meaning: Dim, lo: int | None, hi: int | None, d: int) -> None:
        """``d * name == meaning`` from now on, within the bounds."""
        h = symbol(name)
        if d == 1:
            found = self.add("definition", eq(h, meaning), (), (name,))
            self.table["let", name] = found
            if lo is not None:
                self.table["lo", name] = self.sums(le(lo, h), [(1, (self.nonneg(meaning - lo),))], [(-1, found)])
            if hi is not None:
                self.table["hi", name] = self.sums(le(h, hi), [(1, (self.nonneg(hi - meaning),))], [(1, found)])
            return
        found = self.add("exact quotient", eq(d * h, meaning), [self._divisible(d, meaning)], (name, d))
        self.table["quotient", name] = found
        if lo is None and hi is None:
            return
        # name == meaning // d, whose bounds follow from ranges
        x = self._whole(meaning, d)
        quotient = functions.floordiv(x, d)
        same = self._is_quotient(h, d, meaning, x, found)
        if lo is not None:
            self.table["lo", name] = self.sums(le(lo, h), [(1, (self.nonneg(quotient - lo),))], [(-1, same)])
        if hi is not None:
            self.table["hi", name] = self.sums(le(h, hi), [(1, (self.nonneg(hi - quotient),))], [(1, same)])

    def _divisible(self, d: int, x: Dim) -> int:
        return self.get("divides", d, x)

    def _whole(self, meaning: Dim, d: int) -> Dim:
        """The numerator whose quotient bounds the hidden symbol: ``x`` where the meaning is ``x - x % d``."""
        return self.numerators.get((meaning, d), meaning)

    def _is_quotient(self, h: Expr, d: int, meaning: Dim, x: Dim, found: int) -> int:
        """The step ``h == x // d``."""
        below = self._sum_or_known(x - d * h, [(1, found)], x - meaning)
        above = self._sum_or_known(d * h + d - 1 - x, [(-1, found)], d - 1 - (x - meaning))
        same = self.add("division", eq(functions.floordiv(x, d), h), [below, above], (x, d))
        return self.sums(eq(h, functions.floordiv(x, d)), equal=[(-1, same)])

    def _sum_or_known(self, dim: Dim, equal: list[Equal], rest: Dim) -> int:
        nonneg = [] if isinstance(rest, int) else [(1, (self.get("nonneg", rest),))]
        return self.sums(le(0, dim), nonneg, equal)

    def _compressed(self, name: str, old: Dim, new: Dim) -> None:
        assert isinstance(old, Expr)
        inner = [self.get("sub", s) for s in old.symbols if s in self.store.sub.map]
        link = self.add("replacement", eq(old, new), inner)
        self.table["sub", name] = self.sums(eq(symbol(name), new), equal=[(1, self.get("sub", name)), (1, link)])

    # --- notes: relations -----------------------------------------------------------------------------------------------------

    def relation(self, rel: Relation, p: Dim) -> None:
        """``rel`` is learned as something about ``p``, the normal form of its sides' difference."""
        a, b = rel.args
        given, link = self.get("rel", rel), self.norm(b - a)
        if rel.op == relations.EQ:
            self.table["zero", p] = self.sums(eq(0, p), equal=[(1, given), (1, link)])
        elif rel.op == relations.NE:
            self.table["unequal", p] = self.add("not zero", ne(0, p), [given, link])
        else:
            dim = p if rel.op == relations.LE else p - 1
            self.table["nonneg", dim] = self.sums(le(0, dim), [(1, (given,))], [(1, link)])

    def divides(self, rel: Relation) -> None:
        """A divisibility is learned, with both sides in normal form."""
        a, b = rel.args
        d, x = self.store.norm(a), self.store.norm(b)
        links = [self.norm(a), self.norm(b)]
        if ("divides", d, x) not in self.table:
            self.table["divides", d, x] = self.add("multiple", divides(d, x), [self.get("rel", rel), *links])

    def absurd(self, key: Key) -> None:
        """What ``key`` says is impossible."""
        self.add("contradiction", FALSE, [self.get(*key)])

    def scaled_zero(self, p: Expr, reduced: Expr) -> None:
        """``p == 0`` without its common factor."""
        if reduced != p:
            c = next(iter(p.terms.values())) // next(iter(reduced.terms.values()))
            sign = 1 if c > 0 else -1
            self.table["zero", reduced] = self.sums(eq(0, reduced), equal=[(sign, self.get("zero", p))], den=abs(c))

    def solved(self, name: str, value: Dim, p: Expr, c: int) -> None:
        """``name == value`` because ``p == 0``."""
        self.table["sub", name] = self.sums(eq(symbol(name), value), equal=[(-c, self.get("zero", p))])

    def defined(self, name: str, value: Dim, k: Expr) -> None:
        """``name == value`` because the hidden ``k`` is defined that way."""
        self.table["sub", name] = self.sums(eq(symbol(name), value), equal=[(-1, self.get("let", k.as_symbol))])

    def zero_norm(self, dim: Dim, known: Key | None = None) -> None:
        """``dim == 0`` in normal form."""
        p = self.store.norm(dim)
        if ("zero", dim) not in self.table and known is not None:
            self.table["zero", dim] = self.sums(eq(0, dim), equal=[(1, self.get(*known))])
        self.table["zero", p] = self.sums(eq(0, p), equal=[(1, self.get("zero", dim)), (1, self.norm(dim))])

    def nonneg_norm(self, dim: Dim, known: Key | None = None) -> None:
        """``dim >= 0`` in normal form."""
        p = self.store.norm(dim)
        given = self.get(*known) if known is not None else self.get("nonneg", dim)
        if p != dim or known is not None:
            self.table["nonneg", p] = self.sums(le(0, p), [(1, (given,))], [(1, self.norm(dim))])

    def bounds_moved(self, lead: Expr, value: Dim, lo: int | None, hi: int | None, key: Key) -> None:
        """The bounds of ``lead`` are bounds of ``value``."""
        same = self.get(*key)
        name = lead.as_symbol
        if lo is not None:
            low = self.get("lo", name) if name is not None else self.nonneg(lead - lo)
            self.table["nonneg", value - lo] = self.sums(le(0, value - lo), [(1, (low,))], [(1, same)])
        if hi is not None:
            high = self.get("hi", name) if name is not None else self.nonneg(hi - lead)
            self.table["nonneg", hi - value] = self.sums(le(0, hi - value), [(1, (high,))], [(-1, same)])

    def rule_added(self, mono: Mono, lead: Dim, value: Dim, p: Expr, c: int, lo: int | None, hi: int | None) -> None:
        """``lead`` is replaced by ``value`` because ``p == 0``."""
        self.table["rule", mono] = self.sums(eq(lead, value), equal=[(-c, self.get("zero", p))])
        assert isinstance(lead, Expr)
        low = None if lo is None else self.nonneg(lead - lo)
        high = None if hi is None else self.nonneg(hi - lead)
        same = self.table["rule", mono]
        if low is not None and lo is not None:
            self.table["nonneg", value - lo] = self.sums(le(0, value - lo), [(1, (low,))], [(1, same)])
        if high is not None and hi is not None:
            self.table["nonneg", hi - value] = self.sums(le(0, hi - value), [(1, (high,))], [(-1, same)])

    def rule_dropped(self, mono: Mono, rule: Dim) -> None:
        """A rule is to be learned again after an elimination."""
        self.table["zero", rule] = self.sums(eq(0, rule), equal=[(-1, self.get("rule", mono))])

    def equal_from_zero(self, atom: Expr, value: Dim, p: Expr, c: int) -> None:
        """``atom == value`` because ``p == 0``."""
        self.table["equal", atom, value] = self.sums(eq(atom, value), equal=[(-c, self.get("zero", p))])

    def both_signs(self, p: Expr) -> None:
        """``p == 0`` as two inequalities."""
        index, zero = len(self.store.inequalities), self.get("zero", p)
        self.table["ineq", index] = self.sums(le(0, p), equal=[(1, zero)])
        self.table["ineq", index + 1] = self.sums(le(0, -p), equal=[(-1, zero)])

    def split(self, name: str, value: Dim, plain: Dim, x: Expr, d: int, q: Expr, r: Expr, c: int) -> None:
        """``name == value`` because ``x == d*q + r``, with q and r the quotient and the remainder."""
        whole = self._division_law(x, d)
        zero = self.sums(
            eq(0, x - d * q - r),
            equal=[(-1, whole), (d, self.get("let", q.as_symbol)), (1, self.get("let", r.as_symbol))],
        )
        raw = self.sums(eq(symbol(name), value), equal=[(-c, zero)])
        self.table["sub", name] = self.sums(eq(symbol(name), plain), equal=[(1, raw), (1, self.norm(value))])

    def _division_law(self, x: Dim, d: int) -> int:
        """The step ``x == d*(x // d) + x % d``."""
        return self.add("law", eq(x, d * functions.floordiv(x, d) + functions.mod(x, d)), (), (x, d))

    def quotient_known(self, atom: Atom, value: Dim, part: Expr) -> None:
        """``x - d*value - part == 0`` because ``x // d == value`` and part is the remainder."""
        x, d = atom.args
        whole, same = self._division_law(x, d), self.get("equal", atom_expr(atom), value)
        dim = x - d * value - part
        self.table["zero", dim] = self.sums(
            eq(0, dim), equal=[(-1, whole), (-d, same), (1, self.get("let", part.as_symbol))]
        )
        self.zero_norm(dim)

    def remainder_known(self, atom: Atom, value: Dim) -> None:
        """``d`` divides ``x - value`` because ``x % d == value``, and the value is a remainder."""
        x, d = atom.args
        this, same = atom_expr(atom), self.get("equal", atom_expr(atom), value)
        self.table["divides", d, x - value] = self.add("multiple", divides(d, x - value), [same])
        low = self.add("law", le(0, this), (), (atom,))
        high = self.add("law", le(0, d - 1 - this), (), (atom,))
        self.table["nonneg", value] = self.sums(le(0, value), [(1, (low,))], [(1, same)])
        self.table["nonneg", d - 1 - value] = self.sums(le(0, d - 1 - value), [(1, (high,))], [(-1, same)])
        self.numerators[x - value, d] = x

    def divides_by_zero(self, x: Dim) -> None:
        """0 divides only 0."""
        self.table["zero", x] = self.add("no remainder", eq(x, 0), [self.get("divides", 0, x)])
        self.table["zero", x] = self.sums(eq(0, x), equal=[(-1, self.table["zero", x])])

    def no_remainder(self, d: int, x: Expr, rest: Dim) -> None:
        """``x % d``, in normal form ``rest``, is 0."""
        value = functions.mod(x, d)
        zero = self.add("no remainder", eq(value, 0), [self.get("divides", d, x)])
        self.table["zero", rest] = self.sums(eq(0, rest), equal=[(-1, zero), (1, self.norm(value))])

    def smaller_multiple(self, atom: Atom, c: int, rest: Expr) -> None:
        """``c * (y % e) == 0``, so e divides y."""
        y, e = atom.args
        sign = -1 if c > 0 else 1
        zero = self.sums(eq(atom_expr(atom), 0), equal=[(sign, self.get("zero", rest))], den=abs(c))
        self.table["divides", e, y] = self.add("multiple", divides(e, y), [zero])

    def exact(self, x: Dim, d: Dim, quotient: Expr) -> None:
        """``x - d*quotient == 0``."""
        dim, name = x - d * quotient, quotient.as_symbol
        if isinstance(d, int):
            self.table["zero", dim] = self.sums(eq(0, dim), equal=[(1, self.get("quotient", name))])
        else:
            whole = self.add("no remainder", eq(d * functions.floordiv(x, d), x), [self.get("divides", d, x)])
            self.table["zero", dim] = self.sums(eq(0, dim), equal=[(1, whole), (d, self.get("let", name))])
        self.zero_norm(dim)

    # --- notes: inequalities ----------------------------------------------------------------------------------------------------

    def scaled_nonneg(self, p: Expr, reduced: Expr, g: int) -> None:
        """``p >= 0`` without its common factor, rounded."""
        self.table["nonneg", reduced] = self.sums(le(0, reduced), [(1, (self.get("nonneg", p),))], den=g)

    def below_zero(self, p: Expr, hi: int) -> None:
        """``p >= 0`` cannot be: it is at most ``hi``."""
        top = self.add("ranges", le(0, hi - p), self._ranges(p))
        self.add("contradiction", FALSE, [self.sums(le(0, hi), [(1, (top,)), (1, (self.get("nonneg", p),))])])

    def inequality(self, index: int, p: Expr) -> None:
        """``p >= 0`` is kept as an inequality."""
        self.table["ineq", index] = self.get("nonneg", p)

    def range_from(self, p: Expr, name: str, c: int, bound: int) -> None:
        """A bound of a symbol from ``p >= 0``."""
        self._bound(name, c, bound, [(1, (self.get("nonneg", p),))])

    def _bound(self, name: str, c: int, bound: int, nonneg: list[tuple[int, tuple[int, ...]]]) -> None:
        claim = le(bound, symbol(name)) if c > 0 else le(symbol(name), bound)
        self.table["lo" if c > 0 else "hi", name] = self.sums(claim, nonneg, den=abs(c))

    def propagated(self, index: int, p: Expr, name: str, c: int, top: int, limit: int) -> None:
        """A bound from an inequality and the ranges of its other symbols."""
        rest = top - (p - c * symbol(name))
        nonneg: list[tuple[int, tuple[int, ...]]] = [(1, (self.get("plain", index, p),))]
        if isinstance(rest, Expr):
            nonneg.append((1, (self.add("ranges", le(0, rest), self._ranges(rest)),)))
        self._bound(name, c, limit, nonneg)

    def empty_range(self, name: str) -> None:
        """The lower bound is above the upper one."""
        low, high = self.get("lo", name), self.get("hi", name)
        width = self._claim(high).args[1] - self._claim(low).args[0]
        self.add("contradiction", FALSE, [self.sums(le(0, width), [(1, (low,)), (1, (high,))])])

    def _claim(self, key: int) -> Relation:
        return next(s.claim for f in reversed(self.frames) for s in reversed(f.steps) if s.id == key)

    def pinned(self, name: str, value: int) -> None:
        """Both bounds agree."""
        s = symbol(name)
        low = self.sums(le(0, s - value), [(1, (self.get("lo", name),))])
        high = self.sums(le(0, value - s), [(1, (self.get("hi", name),))])
        self.table["sub", name] = self.add("neither is larger", eq(s, value), [low, high])

    def not_zero(self, p: Expr, signed: Expr | None) -> None:
        """``p != 0`` where its sign is known (``signed`` is not negative), or as two cases."""
        given = self.get("unequal", p)
        if signed is not None:
            claim = le(0, signed - 1)
            self.table["nonneg", signed - 1] = self.add("not zero", claim, [given, self.nonneg(signed)])
            return
        claim = either(relations.lt(p, 0), relations.lt(0, p))
        self.table["rel", claim] = self.add("not zero", claim, [given])

    # --- notes: alternatives ----------------------------------------------------------------------------------------------------

    def begin_cases(self, rel: Relation) -> None:
        """Each part of ``rel`` is tried."""
        self.pending.append((rel, self.get("rel", rel), []))

    def possible(self, part: Relation, names: Sequence[str], spans: Sequence[Range]) -> None:
        """The case does not clash; inside it the symbols lie within ``spans``."""
        for name, (lo, hi) in zip(names, spans, strict=True):
            s = symbol(name)
            link = self._sub_link(s)
            value = self.store.sub.apply(s)
            if lo is not None:
                self.table["span lo", name] = self.sums(le(0, s - lo), self._or_number(value - lo), [(-1, link)])
            if hi is not None:
                self.table["span hi", name] = self.sums(le(0, hi - s), self._or_number(hi - value), [(1, link)])
        self.pending[-1][2].append((part, self.frames[-1]))

    def _or_number(self, dim: Dim) -> list[tuple[int, tuple[int, ...]]]:
        return [] if isinstance(dim, int) else [(1, (self.nonneg(dim),))]

    def _sub_link(self, s: Expr) -> int | None:
        name = s.as_symbol
        if name not in self.store.sub.map:
            return None
        self.store.sub.apply(s)
        return self.get("sub", name)

    def case_closed(self) -> None:
        """The case is over; if it clashed it ended with a contradiction."""
        assert self.closed is not None
        cases = self.pending[-1][2]
        if not cases or cases[-1][1] is not self.closed:
            cases.append((None, self.closed))

    def remaining(self, possible: tuple[Relation, ...], names: Sequence[str], spans: Sequence[Sequence[Range]]) -> None:
        """What is left of the alternatives, and the bounds that all of it shares."""
        rel, given, cases = self.pending.pop()
        claim = either(*possible)
        if claim != rel:
            branches = []
            for part, frame in cases:
                if part is None:
                    branches.append(frame.branch())
                    continue
                rule = "as shown" if claim == part else "alternative"
                branches.append(frame.branch(self.step(rule, claim, [frame.assumptions[0][0]])))
            self.table["rel", claim] = self.add("cases", claim, [given], (), tuple(branches))
        if len(possible) < 2:
            if claim == FALSE:
                self.add("contradiction", FALSE, [self.table["rel", claim]])
            return
        for name, ranges in zip(names, zip(*spans, strict=True), strict=True):
            lows, highs = [lo for lo, _ in ranges], [hi for _, hi in ranges]
            s = symbol(name)
            if None not in lows:
                self._shared(given, cases, ("span lo", name), s - min(lows))
            if None not in highs:
                self._shared(given, cases, ("span hi", name), max(highs) - s)

    def _shared(self, given: int, cases: list[tuple[Relation | None, _Frame]], key: Key, dim: Dim) -> None:
        claim = le(0, dim)
        branches = []
        for part, frame in cases:
            if part is None:
                branches.append(frame.branch())
                continue
            inner = frame.table[key]
            branches.append(frame.branch(self.step("arithmetic", claim, [inner], (1, ((1, (inner,)),), ()))))
        self.table["nonneg", dim] = self.add("cases", claim, [given], (), tuple(branches))

    def alternatives(self, index: int, parts: tuple[Relation, ...]) -> None:
        """The alternatives are kept; ``remaining`` has shown them under their own name."""


def _exact(dim: Dim, d: int) -> tuple[Dim, Dim]:
    """Quotient and rest, coefficient by coefficient."""
    if isinstance(dim, int):
        return dim // d, dim % d
    return make({m: c // d for m, c in dim.terms.items() if c // d}), make(
        {m: c % d for m, c in dim.terms.items() if c % d}
    )


__all__ = ["Contradiction", "Gap", "Recorder"]
