"""Symbolic dimensions: expressions, facts, proofs, deduction, and their compilation to integer code.

Reading order: ``expr`` and ``functions`` (the normal form and its rules), ``relations``, ``scope`` (what users of this package
hold), ``store`` and ``prover`` (how questions are decided), ``shapes`` (combinators for shape rules), ``solve``, ``lower``.
"""

from symbolic.answers import Answer, Disproved, Proved, Unknown
from symbolic.expr import (
    Dim,
    Expr,
    evaluate,
    is_static,
    product,
    ssum,
    substitute,
    symbol,
    symbols_of,
    to_dim,
)
from symbolic.extent import highest, limits
from symbolic.functions import broadcast_dim, ceildiv, floordiv, mod, smax, smin
from symbolic.lower import lower, lower_relation
from symbolic.parse import parse, parse_relation
from symbolic.queries import ShapeAnswer, broadcastable, equal_shapes, injective, reshapable
from symbolic.relations import Relation, divides, either, eq, ge, gt, le, lt, ne
from symbolic.scope import Fact, LaunchCheck, Scope, SymbolInfo
from symbolic.shapes import (
    broadcast,
    broadcast_pair,
    clamp_slice,
    concat_dim,
    exact_quotient,
    numel,
    pad_dim,
    require_same_shape,
    reshape,
    reshape_groups,
    same_shape,
    shape_text,
    slice_dim,
    window_dim,
)
from symbolic.solve import Solution, solve
from symbolic.text import quote

__all__ = [
    "reshapable",
    "injective",
    "equal_shapes",
    "broadcastable",
    "ShapeAnswer",
    "Answer",
    "Dim",
    "Disproved",
    "Expr",
    "Fact",
    "LaunchCheck",
    "Proved",
    "Relation",
    "Scope",
    "Solution",
    "SymbolInfo",
    "Unknown",
    "broadcast",
    "broadcast_dim",
    "broadcast_pair",
    "ceildiv",
    "clamp_slice",
    "concat_dim",
    "divides",
    "either",
    "eq",
    "evaluate",
    "exact_quotient",
    "floordiv",
    "ge",
    "gt",
    "highest",
    "is_static",
    "le",
    "limits",
    "lower",
    "lower_relation",
    "lt",
    "mod",
    "ne",
    "numel",
    "pad_dim",
    "parse",
    "parse_relation",
    "product",
    "quote",
    "require_same_shape",
    "reshape",
    "reshape_groups",
    "same_shape",
    "shape_text",
    "slice_dim",
    "smax",
    "smin",
    "solve",
    "ssum",
    "substitute",
    "symbol",
    "symbols_of",
    "to_dim",
    "window_dim",
]
