"""Relations as a person would write them: without common terms, common factors and known remainders."""

from __future__ import annotations

from math import gcd

from symbolic import relations
from symbolic.expr import FLOORDIV, MOD, Dim, Expr, atom_expr, content, exact_div, make
from symbolic.functions import mod, poly_divmod
from symbolic.relations import Relation, divides, either
from symbolic.store import Store


def tidy(rel: Relation, store: Store) -> Relation:
    """A relation that holds exactly where ``rel`` does (given what ``store`` knows about ranges), in a plainer form."""
    if rel.op == relations.EITHER:
        return either(*(tidy(r, store) for r in rel.args))
    if rel.op == relations.DIVIDES:
        return _tidy_divides(rel)
    a, b = rel.args
    p = a - b
    if isinstance(p, int):
        return rel
    p = _without_positive_factors(exact_div(p, content(p)), store)
    if isinstance(p, int):
        return rel
    if rel.op == relations.EQ:
        multiple = _as_multiple(p)
        if multiple is not None:
            return _tidy_divides(multiple)
    left = make({m: c for m, c in p.terms.items() if c > 0})
    right = make({m: -c for m, c in p.terms.items() if c < 0})
    if rel.op in (relations.EQ, relations.NE) and isinstance(left, int):
        left, right = right, left
    return Relation(rel.op, (left, right))


def _tidy_divides(rel: Relation) -> Relation:
    d, x = rel.args
    if isinstance(x, int):
        return rel
    if isinstance(d, Expr):
        quotient, rest = poly_divmod(x, d)
        return divides(d, rest) if not isinstance(quotient, int) or quotient else rel
    rest = mod(x, d) if d else x
    if not isinstance(rest, Expr) or len(rest.terms) != 1:
        return rel
    ((mono, c),) = rest.terms.items()
    if len(mono) != 1 or mono[0].op != MOD or not isinstance(mono[0].args[1], int) or c * mono[0].args[1] != d:
        return rel
    inner, divisor = mono[0].args
    if isinstance(inner, Expr):
        negative = sum(1 for v in inner.terms.values() if v < 0)
        if 2 * negative > len(inner.terms):
            inner = -inner
        g = gcd(content(inner), divisor)
        inner = exact_div(inner, g) if gcd(g, divisor) == 1 else inner
    return divides(divisor, inner)


def _as_multiple(p: Expr) -> Relation | None:
    """``p == 0`` as a divisibility where p is ``+-(x % d) + k`` or ``+-(x - d*(x // d)) + k``."""
    for mono, c in p.terms.items():
        if len(mono) != 1 or mono[0].op not in (FLOORDIV, MOD) or not isinstance(mono[0].args[1], int):
            continue
        x, d = mono[0].args
        if mono[0].op == MOD and abs(c) == 1:
            k = -1 * c * (p - c * atom_expr(mono[0]))
        elif mono[0].op == FLOORDIV and abs(c) == d:
            sign = -c // d
            k = x - d * atom_expr(mono[0]) - sign * p
        else:
            continue
        if isinstance(k, int) and 0 <= k < d:  # x % d == k
            return divides(d, x - k)
    return None


def _without_positive_factors(p: Dim, store: Store) -> Dim:
    """``p`` without the atoms that all its terms share and that are at least 1."""
    while isinstance(p, Expr):
        monos = list(p.terms)
        common = next((a for a in monos[0] if all(a in m for m in monos) and _positive(atom_expr(a), store)), None)
        if common is None:
            break
        p = poly_divmod(p, atom_expr(common))[0]
    return p


def _positive(dim: Expr, store: Store) -> bool:
    return store.positive(store.norm(dim))
