"""Inverse deduction: how each symbol is computed at launch from the sizes of the inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from symbolic import relations
from symbolic.expr import SYMBOL, Dim, Expr, make, substitute, symbol
from symbolic.functions import floordiv
from symbolic.relations import Relation, eq
from symbolic.scope import Scope
from vm.errors import CompileError


@dataclass
class Solution:
    """``steps``: (symbol, dim over the sizes ``@0``, ``@1``, ..) in the order found; ``sources``: which inputs each one uses.

    ``checks``: for each input dim that is not simply a symbol read from there, the relation ``@i == dim`` that the binder verifies
    once the symbols are known (it also finds inexact divisions and inputs that disagree).
    """

    steps: list[tuple[str, Dim]] = field(default_factory=list)
    sources: dict[str, tuple[int, ...]] = field(default_factory=dict)
    checks: list[tuple[int, Relation]] = field(default_factory=list)


def solve(
    scope: Scope,
    input_dims: Sequence[tuple[str, int, Dim]],
    needed: Sequence[str] = (),
    data_dependent: Sequence[str] = (),
) -> Solution:
    """A recipe for every symbol in ``input_dims`` (label, axis, dim), in the scope's launch checks and in ``needed``.

    Prefers a size that *is* the symbol; then sizes with one unknown, ``c*x + rest``; then facts; then linear elimination.
    Raises ``CompileError`` naming symbols that no input determines (data-dependent ones are left out).
    """
    wanted = dict.fromkeys(s for _, _, dim in input_dims if isinstance(dim, Expr) for s in dim.symbols)
    wanted.update(dict.fromkeys(s for check in scope.checks for s in check.rel.symbols))
    wanted.update(dict.fromkeys(needed))
    skip = {n for n in wanted if n in data_dependent or (n in scope.symbols and scope.symbols[n].data_dependent)}
    known: dict[str, Dim] = {}
    for i, (_, _, dim) in enumerate(input_dims):
        name = dim.as_symbol if isinstance(dim, Expr) else None
        if name is not None and name not in known:
            known[name] = symbol(f"@{i}")
    equations = [dim - symbol(f"@{i}") for i, (_, _, dim) in enumerate(input_dims) if isinstance(dim, Expr)]
    _fixpoint(equations, known, wanted)
    if any(n not in known and n not in skip for n in wanted):
        facts = [f.rel.args[0] - f.rel.args[1] for f in scope.facts if f.rel.op == relations.EQ]
        _fixpoint(equations + facts, known, wanted)
        _eliminate([substitute(e, known) for e in equations + facts], known, wanted)
    missing = [n for n in wanted if n not in known and n not in skip]
    if missing:
        where = [
            f"{label} axis {axis} is {dim}"
            for label, axis, dim in input_dims
            if isinstance(dim, Expr) and set(missing) & dim.symbol_set
        ]
        raise CompileError(
            f"no input size determines {', '.join(missing)}"
            + (f": {'; '.join(where)}" if where else "")
            + ". Give an input a dimension that is the symbol itself, or add a constraint that ties it to others."
        )
    result = Solution([(n, known[n]) for n in wanted if n in known])
    result.sources = {n: tuple(int(s[1:]) for s in d.symbols) if isinstance(d, Expr) else () for n, d in result.steps}
    for i, (_, _, dim) in enumerate(input_dims):
        name = dim.as_symbol if isinstance(dim, Expr) else None
        if name is None or known.get(name) != symbol(f"@{i}"):
            result.checks.append((i, eq(symbol(f"@{i}"), dim)))
    return result


def _fixpoint(equations: Sequence[Dim], known: dict[str, Dim], wanted: dict[str, None]) -> None:
    """Solves equations with one unknown until none is left; constant coefficients go first."""
    pending = [e for e in equations if isinstance(e, Expr)]
    for allow_products in (False, True):
        progress = True
        while progress:
            progress = False
            rest = []
            for equation in pending:
                unknown = [s for s in equation.symbols if not s.startswith("@") and s not in known]
                if len(unknown) > 1:
                    rest.append(equation)
                    continue
                if not unknown:
                    continue
                value = _isolate(substitute(equation, known), unknown[0], allow_products)
                if value is None:
                    rest.append(equation)
                else:
                    known[unknown[0]] = value
                    progress = True
            pending = rest


def _isolate(zero: Dim, name: str, allow_products: bool) -> Dim | None:
    """The value of ``name`` from ``zero == 0`` where it occurs linearly, else None."""
    if isinstance(zero, int):
        return None
    coefficient: dict = {}
    rest: dict = {}
    for mono, c in zero.terms.items():
        hits = [a for a in mono if name in a.symbols]
        if not hits:
            rest[mono] = c
        elif len(hits) == 1 and hits[0].op == SYMBOL:
            coefficient[tuple(a for a in mono if a is not hits[0])] = c
        else:
            return None
    c_dim, r_dim = make(coefficient), make(rest)
    if isinstance(c_dim, int):
        return floordiv(-1 * r_dim, c_dim)
    return floordiv(-1 * r_dim, c_dim) if allow_products else None


def _eliminate(equations: list[Dim], known: dict[str, Dim], wanted: dict[str, None]) -> None:
    """Gaussian elimination over unknowns with coefficient +-1, then back-substitution."""
    pivots: list[tuple[str, Dim]] = []
    pending = [e for e in equations if isinstance(e, Expr)]
    while pending:
        equation = pending.pop(0)
        pivot = next(
            (
                (m[0].args[0], c)
                for m, c in equation.ordered()
                if len(m) == 1
                and abs(c) == 1
                and m[0].op == SYMBOL
                and not m[0].args[0].startswith("@")
                and not any(m[0].args[0] in a.symbols for m2 in equation.terms if m2 != m for a in m2)
            ),
            None,
        )
        if pivot is None:
            continue
        name, c = pivot
        value = symbol(name) - equation * c
        pivots.append((name, value))
        pending = [e for e in (substitute(p, {name: value}) for p in pending) if isinstance(e, Expr)]
        for e in pending:
            unknown = [s for s in e.symbols if not s.startswith("@")]
            if len(unknown) == 1 and unknown[0] not in known:
                solved = _isolate(e, unknown[0], False)
                if solved is not None:
                    known[unknown[0]] = solved
        pending = [e for e in (substitute(p, known) for p in pending) if isinstance(e, Expr)]
    for name, value in reversed(pivots):
        final = substitute(value, known)
        if name not in known and all(s.startswith("@") for s in (final.symbols if isinstance(final, Expr) else ())):
            known[name] = final


__all__ = ["Solution", "solve"]
