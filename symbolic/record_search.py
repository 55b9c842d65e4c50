"""The prover's search, written down: see ``record``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from symbolic import relations
from symbolic.expr import FLOORDIV, MAX, MIN, MOD, Atom, Dim, Expr, atom_expr, content, symbol
from symbolic.functions import floordiv, mod, poly_divmod
from symbolic.learn import Contradiction, Knowledge
from symbolic.linear import Certificate
from symbolic.proof import FALSE, Branch, Declaration, Proof, Step, pruned
from symbolic.prover import MULTIPLE, NONNEG, NONZERO, ZERO, Goal, Prover, goal_of
from symbolic.record import Gap, Recorder
from symbolic.relations import Relation, divides, either, eq, le, ne

if TYPE_CHECKING:
    from symbolic.scope import Fact, SymbolInfo

ROOM = 50  # times the usual budget: what was found once is found again


def goal_claim(goal: Goal) -> Relation:
    """What a goal says, as a relation."""
    if goal.kind == MULTIPLE:
        return divides(goal.divisor, goal.dim)
    return {ZERO: eq, NONNEG: le, NONZERO: ne}[goal.kind](0, goal.dim)


class RecordingProver(Prover):
    """Leaves a step for every goal that it proves, at ``("goal", goal)`` or ``("goals", goals)`` in the recorder's table."""

    def __init__(self, store: Knowledge, log: Recorder) -> None:
        super().__init__(store)
        self.log = log

    def _mark(self, goal: Goal, step: int) -> None:
        self.log.table["goal", goal] = step

    # --- quick answers ------------------------------------------------------------------------------------------------

    def _quick(self, goal: Goal) -> str | None:
        why = super()._quick(goal)
        if why is not None and ("goal", goal) not in self.log.table:
            self._mark(goal, self._quick_step(goal))
        return why

    def _quick_step(self, goal: Goal) -> int:
        log, store, claim = self.log, self.store, goal_claim(goal)
        d, link = store.norm(goal.dim), log.norm(goal.dim)
        if goal.kind == ZERO:
            return log.sums(claim, equal=[(-1, link)])
        if goal.kind == NONNEG:
            return log.sums(claim, [(1, (log.nonneg(d),))], [(-1, link)])
        if goal.kind == NONZERO:
            premises = [link]
            if isinstance(d, Expr) and not d.constant % content(d, with_constant=False):
                premises.append(log.nonneg(d - 1 if store.nonneg(d - 1) else -d - 1))
            return log.add("different", claim, premises)
        return self._moved_multiple(goal, self._quick_multiple_step(d, store.norm(goal.divisor)))

    def _quick_multiple_step(self, x: Dim, d: Dim) -> int:
        log = self.log
        if isinstance(x, int) and (x == 0 or isinstance(d, int)):
            return log.add("multiple", divides(d, x))
        if isinstance(d, int):
            rest = log.norm(mod(x, d))
            zero = None if rest is None else log.sums(eq(mod(x, d), 0), equal=[(1, rest)])
            if zero is None:
                zero = log.sums(eq(mod(x, d), 0))
            return log.add("multiple", divides(d, x), [zero])
        quotient = poly_divmod(x, d)[0]
        whole = log.sums(eq(x, d * quotient))
        return log.add("multiple", divides(d, x), [whole], (quotient,))

    def _moved_multiple(self, goal: Goal, step: int) -> int:
        """From the normal forms of a divisibility to its own sides."""
        log = self.log
        premises: list[int] = [step]
        for own in (goal.divisor, goal.dim):
            link = log.norm(own)
            if link is not None:
                premises.append(log.sums(eq(self.store.norm(own), own), equal=[(-1, link)]))
        return step if len(premises) == 1 else log.add("multiple", goal_claim(goal), premises)

    # --- direct proofs ------------------------------------------------------------------------------------------------

    def _direct(self, goal: Goal) -> str | None:
        why = super()._direct(goal)
        if why is not None and ("goal", goal) not in self.log.table:
            self._mark(goal, self._direct_step(goal))
        return why

    def _direct_step(self, goal: Goal) -> int:
        log, store, claim = self.log, self.store, goal_claim(goal)
        d, link = store.norm(goal.dim), log.norm(goal.dim)
        if goal.kind == MULTIPLE:
            return self._moved_multiple(goal, self._multiple_step(d, store.norm(goal.divisor)))
        assert isinstance(d, Expr)
        if goal.kind == NONNEG:
            return log.sums(claim, [(1, (log.get("nonneg", d),))], [(-1, link)])
        if goal.kind == NONZERO:
            side = next(s for s in (d - 1, -d - 1) if ("nonneg", s) in log.table)
            return log.add("different", claim, [link, log.get("nonneg", side)])
        zero = log.add("neither is larger", eq(0, d), [log.get("nonneg", d), log.get("nonneg", -d)])
        return log.sums(claim, equal=[(1, zero), (-1, link)])

    def _multiple_step(self, x: Dim, d: Dim) -> int:
        log = self.log
        if isinstance(d, int) and d == 0:
            zero = log.get("goal", Goal(ZERO, x))
            return log.add("multiple", divides(0, x), [log.sums(eq(x, 0), equal=[(-1, zero)])], (0,))
        if isinstance(d, int):
            zero = log.get("goal", Goal(ZERO, mod(x, d)))
            return log.add("multiple", divides(d, x), [log.sums(eq(mod(x, d), 0), equal=[(-1, zero)])])
        quotient = floordiv(x, d)
        zero = log.get("goal", Goal(ZERO, x - d * quotient))
        return log.add("multiple", divides(d, x), [log.sums(eq(x, d * quotient), equal=[(-1, zero)])], (quotient,))

    def _at_least_zero(self, goal: Dim) -> str | None:
        log = self.log
        why = super()._at_least_zero(goal)
        if why is None or isinstance(goal, int) or ("nonneg", goal) in log.table:
            return why
        for d in dict.fromkeys(a.args[1] for m in goal.terms for a in m if a.op == FLOORDIV):
            larger = d * goal + d - 1 if isinstance(d, Expr) else 0
            known = isinstance(larger, Expr) and log.table.get(("nonneg", self.store.norm(larger)))
            if known and isinstance(larger, Expr):
                moved = log.sums(le(0, larger), [(1, (known,))], [(-1, log.norm(larger))])
                claim = le(0, goal)
                log.table["nonneg", goal] = log.add("positive factor", claim, [log.positive(d), moved], (d,))
                return why
        raise Gap(f"{goal} >= 0")

    def _linear(self, goal: Dim) -> str | None:
        if isinstance(goal, int) and goal >= 0:
            self.log.nonneg(goal)
        why = super()._linear(goal)
        if why is not None and ("nonneg", goal) not in self.log.table:
            self.log.nonneg(goal)
        return why

    def _found(
        self, goal: Expr, found: Certificate, facts: list[Expr], shifted: list[Expr], lows: dict[Atom, int | None]
    ) -> None:
        log = self.log
        if ("nonneg", goal) in log.table:
            return
        nonneg = []
        rest: Dim = goal * found.denominator
        for index, weight in found.weights:
            fact, used = facts[index], _unshifted(shifted[index], lows)
            step = self._fact_step(fact)
            if used != fact:
                scale = content(self._shift(fact, lows), with_constant=False)  # type: ignore[arg-type]
                step = log.sums(le(0, used), [(1, (step,))], den=scale)
            nonneg.append((weight, (step,)))
            rest = rest - used * weight
        if isinstance(rest, Expr):
            moved = self._shift(rest, lows)
            slack = rest - (moved if isinstance(moved, int) else moved.constant)
            if isinstance(slack, Expr):
                nonneg.append((1, (log.add("ranges", le(0, slack), log._ranges(slack)),)))
        log.table["nonneg", goal] = log.sums(le(0, goal), nonneg, den=found.denominator)

    def _fact_step(self, fact: Expr) -> int:
        """The step ``fact >= 0`` for something that ``_facts_for`` offered."""
        log, why = self.log, self.sources[fact]
        if why[0] == "fact":
            return log.fact(why[1])
        if why[0] == "product":
            _, other, atom = why
            return log.sums(le(0, fact), [(1, (self._fact_step(other), log.nonneg(atom_expr(atom))))])
        if why[0] == "square":
            return log.add("law", le(0, fact), (), (why[1],))
        return self._law_step(why[1], fact)

    def _law_step(self, atom: Atom, fact: Expr) -> int:
        log, this = self.log, atom_expr(atom)
        if self.store.nonneg(fact):
            return log.nonneg(fact)
        if atom.op not in (FLOORDIV, MOD, MAX, MIN):
            return log.nonneg(fact)
        if atom.op in (MAX, MIN):
            laws = [s * (this - a) for a in atom.args for s in (1, -1)]
            return log.add("law", le(0, fact), (), (atom,)) if fact in laws else log.nonneg(fact)
        x, d = atom.args
        given = [] if isinstance(d, int) else [log.positive(d)]
        if atom.op == FLOORDIV:
            laws = [x - d * this, d * this + d - 1 - x]
            return log.add("law", le(0, fact), given, (atom,)) if fact in laws else log.nonneg(fact)
        if fact == d - 1 - this:
            return log.add("law", le(0, fact), given, (atom,))
        if fact == x - this and self.store.nonneg(x):
            return log.add("law", le(0, fact), [*given, log.nonneg(x)], (atom,))
        quotient = floordiv(x, d)
        plain = self.store.norm(quotient)
        for sign in (1, -1):
            if fact == sign * (x - this - d * plain):
                whole = log.add("law", eq(x, d * quotient + this), given, (atom,))
                return log.sums(le(0, fact), equal=[(-sign, whole), (-sign * d, log.norm(quotient))])
        return log.nonneg(fact)

    # --- cases --------------------------------------------------------------------------------------------------------

    def _prove(self, goals: tuple[Goal, ...], depth: int) -> str | None:
        why = super()._prove(goals, depth)
        log = self.log
        if why is not None and ("goals", goals) not in log.table:
            done = next(g for g in goals if ("goal", g) in log.table)
            step = log.get("goal", done)
            if len(goals) > 1:
                step = log.add("alternative", _goals_claim(goals), [step])
            log.table["goals", goals] = step
        return why

    def _all_cases(self, goals: tuple[Goal, ...], cases: list[Relation], depth: int) -> bool:
        log, claim = self.log, _goals_claim(goals)
        exhaustive = either(*cases)
        branches: list[Branch] = []
        for case in cases:
            self.fuel -= 1
            if self._exhausted():
                return False
            try:
                with self.store.assuming(case):
                    if self._prove(goals, depth + 1) is None:
                        return False
                    inner = log.get("goals", goals)
                    log.add("as shown", claim, [inner])
            except Contradiction:
                pass
            assert log.closed is not None
            branches.append(log.closed.branch())
        known = log.table.get(("rel", exhaustive))
        given = log.add("one of", exhaustive) if known is None else known
        log.table["goals", goals] = log.add("cases", claim, [given], (), tuple(branches))
        if len(goals) == 1:
            self._mark(goals[0], log.table["goals", goals])
        return True

    def _by_exclusion(self, rel: Relation) -> str | None:
        log = self.log
        for part in rel.args[-3:]:
            others = [relations.negation(r) for r in rel.args if r is not part]
            if not all(others):
                continue
            try:
                with self.store.assuming(*(n for ns in others for n in ns)):
                    if self._prove((goal_of(part),), 1) is None:
                        continue
                    self.conclude(part)
            except Contradiction:
                pass
            assert log.closed is not None
            index = rel.args.index(part)
            log.table["rel", rel] = log.add("exclusion", rel, (), (index,), (log.closed.branch(),))
            return "by exclusion"
        return None

    # --- the relation itself --------------------------------------------------------------------------------------------

    def conclude(self, rel: Relation) -> int:
        """The step that says ``rel``, after ``quick`` or ``reason`` found it. Raises ``Gap``."""
        log = self.log
        if rel.op != relations.EITHER:
            return log.add(*self._relation_step(rel, log.get("goal", goal_of(rel))))
        goals = tuple(goal_of(r) for r in rel.args)
        for part, goal in zip(rel.args, goals, strict=True):
            if ("goal", goal) in log.table:
                return log.add("alternative", rel, [self.conclude(part)])
        found = log.table.get(("goals", goals))
        if found is None:
            return log.add("as shown", rel, [log.get("rel", rel)])
        branches = []
        for part, goal in zip(rel.args, goals, strict=True):
            log.enter([goal_claim(goal)])
            own = log.add(*self._relation_step(part, log.frames[-1].assumptions[0][0]))
            log.add("alternative", rel, [own])
            log.leave()
            assert log.closed is not None
            branches.append(log.closed.branch())
        return log.add("cases", rel, [found], (), tuple(branches))

    def _relation_step(self, rel: Relation, step: int) -> tuple:
        if rel.op == relations.DIVIDES:
            return "as shown", rel, [step]
        if rel.op == relations.NE:
            return "different", rel, [step]
        if rel.op == relations.EQ:
            return "arithmetic", rel, [step], (1, (), ((1, step),))
        return "arithmetic", rel, [step], (1, ((1, (step,)),), ())


def _goals_claim(goals: tuple[Goal, ...]) -> Relation:
    claims = [goal_claim(g) for g in goals]
    return claims[0] if len(claims) == 1 else Relation(relations.EITHER, tuple(claims))


def _unshifted(dim: Expr, lows: dict[Atom, int | None]) -> Dim:
    total: Dim = 0
    for mono, c in dim.terms.items():
        value: Dim = c
        for atom in mono:
            value = value * (atom_expr(atom) - (lows[atom] or 0))
        total = total + value
    return total


def record(rel: Relation, symbols: Sequence[SymbolInfo], facts: Sequence[Fact]) -> Proof:
    """A proof of ``rel`` from declarations and facts. Raises ``Gap`` where it is not found again."""
    store = Knowledge()
    log = Recorder(store)
    prover = RecordingProver(store, log)
    declarations = tuple(Declaration(i.name, i.min, i.max, i.multiple_of, i.remainder) for i in symbols)
    for declaration in declarations:
        _declare(store, log, declaration)
    proof = Proof(rel, declarations, tuple((f.rel, f.origin) for f in facts), ())
    try:
        for fact in facts:
            if prover.quick(fact.rel) is None:
                log.fact_given(fact.rel)
                store.learn(fact.rel, str(fact))
        store.changed()
        if prover.quick(rel) is None and prover.reason(rel, fuel=60 * ROOM) is None:
            raise Gap(f"{rel} is not proved again")
        prover.conclude(rel)
    except Contradiction:  # the facts clash, so everything follows
        log.add("as shown", rel, [log.frames[-1].steps[-1].id])
    return pruned(Proof(rel, proof.declarations, proof.facts, tuple(log.frames[0].steps)))


def _declare(store: Knowledge, log: Recorder, d: Declaration) -> None:
    """As ``Scope`` adds a symbol."""
    step, r, s = d.multiple_of, d.remainder, d.name
    lo = -((r - d.min) // step)
    hi = None if d.max is None else (d.max - r) // step
    store.add_symbol(s, d.min, d.max)
    log.declared(d)
    root, value = s, symbol(s)
    if step > 1:
        root = store.hide(s, value - r, lo, hi, step)
        log.congruent(d, root, lo, hi)
        store.sub.define(s, step * symbol(root) + r)
    if lo == hi and lo is not None:
        log.pinned(root, lo)
        store.sub.define(root, lo)
    store.changed()


__all__ = ["FALSE", "RecordingProver", "Step", "record"]
