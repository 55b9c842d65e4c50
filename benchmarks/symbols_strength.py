"""What three systems prove about sizes: ``python -m benchmarks.symbols_strength [--write docs/symbols.md] [--json]``.

JAX is asked in a scope of ``jax.export`` in which congruences and zero sizes are written in the form that it decides best (a multiple
of 8 as ``8*c_``, a size that may be 0 as ``z_ - 1``), facts as its constraints. PyTorch is asked through a ``ShapeEnv`` (extra ``bench``):
ranges and ``torch._check`` for the facts, and once more with multiples written as ``8*c``; the better answer counts. TVM's
analyser gets ranges, multiples and facts as constraints on 64-bit variables and is asked twice: by itself, and at its highest
strength, at which the released build falls back to the solver Z3.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import warnings
from collections.abc import Callable
from typing import Any

from benchmarks.symbols_queries import FAMILIES, Query, queries
from symbolic import Relation, Scope, parse_relation
from symbolic.checker import check
from symbolic.expr import FLOORDIV, MAX, MIN, MOD, SYMBOL, Atom, Dim

PROVED, REFUTED, OPEN, WRONG, ABSENT = "proved", "refuted", "-", "wrong", "n/a"


# --- ours -------------------------------------------------------------------------------------------------------------


def scope_of(query: Query) -> Scope:
    """Declarations and facts of a query."""
    scope = Scope()
    for d in query.declared:
        scope.declare(d.name, d.min, d.max, d.multiple_of)
    for fact in query.facts:
        scope.assume(parse_relation(fact), "given")
    return scope


def ours(query: Query) -> str:
    """This package's answer; a proof counts once the checker has accepted it."""
    answer = scope_of(query).prove(parse_relation(query.relation))
    if answer.proved:
        check(answer.proof())  # type: ignore[union-attr]
        return PROVED
    return REFUTED if answer.disproved else OPEN


# --- the same dims in other systems -----------------------------------------------------------------------------------


def translate(dim: Dim, symbols: dict[str, Any], functions: dict[str, Callable[..., Any]]) -> Any:
    """A dim with another system's numbers."""
    if isinstance(dim, int):
        return dim
    total: Any = None
    for mono, c in dim.ordered():
        value: Any = c
        for i, atom in enumerate(mono):
            factor = _atom(atom, symbols, functions)
            value = factor if i == 0 and c == 1 else value * factor
        total = value if total is None else total + value
    return total


def _atom(atom: Atom, symbols: dict[str, Any], functions: dict[str, Callable[..., Any]]) -> Any:
    if atom.op == SYMBOL:
        return symbols[atom.args[0]]
    args = [translate(a, symbols, functions) for a in atom.args]
    result = args[0]
    for other in args[1:]:
        result = functions[atom.op](result, other)
    return result


def sides(text: str) -> tuple[str, str, str]:
    """Left side, sign and right side as written, so that no system is helped by our normal form."""
    found = re.fullmatch(r"(.+?)(==|!=|<=|>=|<|>)(.+)", text)
    assert found is not None
    return found[1].strip(), found[2], found[3].strip()


def evaluate(text: str, symbols: dict[str, Any], functions: dict[str, Callable[..., Any]]) -> Any:
    """The text of a dim in another system's numbers, operation by operation as written."""
    import ast

    def walk(node: ast.expr) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return symbols[node.id]
        if isinstance(node, ast.UnaryOp):
            return -walk(node.operand)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            first, *rest = map(walk, node.args)
            for other in rest:
                first = functions[node.func.id](first, other)
            return first
        assert isinstance(node, ast.BinOp)
        a, b = walk(node.left), walk(node.right)
        if isinstance(node.op, ast.Add):
            return a + b
        if isinstance(node.op, ast.Sub):
            return a - b
        if isinstance(node.op, ast.Mult):
            return a * b
        return functions[FLOORDIV](a, b) if isinstance(node.op, ast.FloorDiv) else functions[MOD](a, b)

    return walk(ast.parse(text, mode="eval").body)


def _functions(largest: Callable[..., Any], smallest: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    return {
        FLOORDIV: lambda a, b: a // b,
        MOD: lambda a, b: a % b,
        MAX: largest,
        MIN: smallest,
        "ceildiv": lambda a, b: (a + b - 1) // b,
    }


# --- JAX --------------------------------------------------------------------------------------------------------------


def jax_answer(query: Query) -> str:
    """JAX's answer."""
    from jax import core
    from jax.export import SymbolicScope, symbolic_shape

    if "broadcast" in query.relation:
        return ABSENT
    texts: dict[str, str] = {}
    ranges: list[str] = []
    for d in query.declared:
        plain = d.multiple_of == 1 and d.min > 0
        name = d.name if plain else f"{d.name}_"
        low = -(-d.min // d.multiple_of)
        scaled = name if d.multiple_of == 1 else f"{d.multiple_of}*{name}"
        texts[d.name] = scaled if low > 0 else f"{scaled} - {d.multiple_of}"
        shift = 0 if low > 0 else 1
        if low > 1:
            ranges.append(f"{name} >= {low}")
        if d.max is not None:
            ranges.append(f"{name} <= {d.max // d.multiple_of + shift}")
    try:
        draft = SymbolicScope(())
        functions = _functions(core.max_dim, core.min_dim)
        values = {n: symbolic_shape(f"({t},)", scope=draft)[0] for n, t in texts.items()}
        for fact in query.facts:
            left, sign, right = sides(fact)
            a, b = evaluate(left, values, functions), evaluate(right, values, functions)
            line = {"==": f"{a} == {b}", "<=": f"{a} <= {b}", ">=": f"{a} >= {b}", "<": f"{a} + 1 <= {b}"}
            if " or " not in fact and sign in line:
                ranges.append(line[sign])
        scope = SymbolicScope(ranges)
        values = {n: symbolic_shape(f"({t},)", scope=scope)[0] for n, t in texts.items()}
    except Exception:  # JAX takes constraints of some forms only
        scope = SymbolicScope([r for r in ranges if "mod" not in r and "floordiv" not in r and "==" not in r])
        values = {n: symbolic_shape(f"({t},)", scope=scope)[0] for n, t in texts.items()}

    def holds(text: str) -> str:
        left, sign, right = sides(text)
        try:
            a, b = evaluate(left, values, functions), evaluate(right, values, functions)
            if sign == "==":
                if bool(a == b) or _both(a, b):
                    return PROVED
                return REFUTED if _apart(a, b) else OPEN
            if sign == "!=":
                return PROVED if _apart(a, b) else REFUTED if bool(a == b) else OPEN
            truth = {"<=": lambda: b >= a, ">=": lambda: a >= b, "<": lambda: b > a, ">": lambda: a > b}[sign]()
            return PROVED if truth else REFUTED
        except Exception:  # InconclusiveDimensionOperation and what its arithmetic does not have
            return OPEN

    return _alternatives(query.relation, holds)


def _both(a: Any, b: Any) -> bool:
    try:
        return bool(a >= b) and bool(b >= a)
    except Exception:
        return False


def _apart(a: Any, b: Any) -> bool:
    """Whether the sides are proved to differ; JAX's own ``!=`` says so where it merely does not know."""
    for x, y in ((a, b), (b, a)):
        try:
            if bool(x >= y + 1):
                return True
        except Exception:
            continue
    return False


def _alternatives(relation: str, holds: Callable[[str], str]) -> str:
    answers = [holds(part.strip()) for part in relation.split(" or ")]
    if PROVED in answers:
        return PROVED
    return REFUTED if all(a == REFUTED for a in answers) else OPEN


# --- PyTorch ----------------------------------------------------------------------------------------------------------


def torch_answer(query: Query) -> str:
    """PyTorch's answer: the better one of two ways to say that a size is a multiple."""
    try:
        import torch  # noqa: F401
    except ImportError:
        return ABSENT
    if "broadcast" in query.relation:
        return ABSENT
    found = [_torch(query, scaled) for scaled in (False, True)]
    return next((a for a in found if a != OPEN), OPEN)


def _torch(query: Query, scaled: bool) -> str:
    import torch
    from torch.fx.experimental.symbolic_shapes import ShapeEnv, _constrain_range_for_size, statically_known_true

    env = ShapeEnv()
    values: dict[str, Any] = {}
    for d in query.declared:
        u = env.create_unbacked_symint()
        step = d.multiple_of if scaled else 1
        low = -(-d.min // step)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _constrain_range_for_size(u, low, None if d.max is None else d.max // step)
            torch._check(u >= low)
            if d.max is not None:
                torch._check(u <= d.max // step)
        values[d.name] = u * step if step > 1 else u
        if d.multiple_of > 1 and not scaled:
            torch._check(u % d.multiple_of == 0)
    functions = _functions(torch.sym_max, torch.sym_min)

    def truth(text: str, negated: bool = False) -> Any:
        left, sign, right = sides(text)
        a, b = evaluate(left, values, functions), evaluate(right, values, functions)
        if negated:
            sign = {"==": "!=", "!=": "==", "<=": ">", ">": "<=", "<": ">=", ">=": "<"}[sign]
        return {"==": a == b, "!=": a != b, "<=": a <= b, "<": a < b, ">=": a >= b, ">": a > b}[sign]

    for fact in query.facts:
        try:
            parts = [truth(p.strip()) for p in fact.split(" or ")]
            torch._check(parts[0] if len(parts) == 1 else torch.sym_not(torch.sym_not(parts[0] | parts[1])))
        except Exception:
            continue

    def holds(text: str) -> str:
        try:
            if statically_known_true(truth(text)):
                return PROVED
            return REFUTED if statically_known_true(truth(text, True)) else OPEN
        except Exception:
            return OPEN

    return _alternatives(query.relation, holds)


# --- TVM --------------------------------------------------------------------------------------------------------------


def tvm_answer(query: Query, with_z3: bool = False) -> str:
    """The answer of TVM's arithmetic analyser; ``with_z3`` at its highest strength, at which its build asks Z3 as well."""
    try:
        from tvm import sym, tirx
    except ImportError:
        return ABSENT
    if "broadcast" in query.relation:
        return ABSENT
    analyser = sym.Analyzer()
    values = {d.name: tirx.Var(d.name, "int64") for d in query.declared}
    functions: dict[str, Callable[..., Any]] = {
        FLOORDIV: tirx.floordiv,
        MOD: tirx.floormod,
        MAX: tirx.max,
        MIN: tirx.min,
        "ceildiv": lambda a, b: tirx.floordiv(a + b - 1, b),
    }

    def truth(text: str) -> Any:
        left, sign, right = sides(text)
        whole = tirx.const(0, "int64")  # so that two numbers compare as TVM's
        a, b = evaluate(left, values, functions) + whole, evaluate(right, values, functions) + whole
        if sign in ("==", "!="):
            return tirx.EQ(a, b) if sign == "==" else tirx.NE(a, b)
        return {"<=": a <= b, "<": a < b, ">=": a >= b, ">": a > b}[sign]

    def either(text: str) -> Any:
        parts = [truth(p.strip()) for p in text.split(" or ")]
        return parts[0] if len(parts) == 1 else tirx.any(*parts)

    with contextlib.ExitStack() as stack:
        for d in query.declared:
            var = values[d.name]
            largest = sym.ConstIntBound.POS_INF if d.max is None else d.max
            analyser.update(var, sym.ConstIntBound(d.min, largest))
            facts = [var >= d.min]
            if d.max is not None:
                facts.append(var <= d.max)
            if d.multiple_of > 1:
                analyser.update(var, sym.ModularSet(d.multiple_of, 0))
                facts.append(truth(f"{d.name} % {d.multiple_of} == 0"))
            for fact in facts:
                stack.enter_context(analyser.constraint_scope(fact))
        for text in query.facts:
            stack.enter_context(analyser.constraint_scope(either(text)))
        strength = sym.ProofStrength.SYMBOLIC_BOUND if with_z3 else sym.ProofStrength.DEFAULT
        goal = either(query.relation)
        if analyser.can_prove(goal, strength):
            return PROVED
        return REFUTED if analyser.can_prove(tirx.Not(goal), strength) else OPEN


def tvm_z3_answer(query: Query) -> str:
    """The answer of TVM's analyser and Z3 together."""
    return tvm_answer(query, with_z3=True)


# --- the table --------------------------------------------------------------------------------------------------------


SYSTEMS: dict[str, tuple[str, Callable[[Query], str]]] = {
    "jax": ("JAX", jax_answer),
    "torch": ("PyTorch", torch_answer),
    "tvm": ("TVM", tvm_answer),
    "tvm_z3": ("TVM and Z3", tvm_z3_answer),
    "ours": ("DVM", ours),
}


def table() -> list[dict[str, str]]:
    """One row a query; an answer that contradicts the family is ``wrong``."""
    rows = []
    for query in queries():
        expected = REFUTED if query.family == "false" else PROVED
        answers = {key: ask(query) for key, (_, ask) in SYSTEMS.items()}
        opposite = PROVED if expected == REFUTED else REFUTED
        shown = {k: WRONG if v == opposite else v for k, v in answers.items()}
        rows.append({"family": query.family, "query": query.text, **shown})
    return rows


def summary(rows: list[dict[str, str]]) -> list[tuple[str, ...]]:
    """Per family: how many queries, and how many each system decided."""
    out: list[tuple[str, ...]] = []
    for family in (*FAMILIES, "all"):
        own = [r for r in rows if family in (r["family"], "all")]
        decided = [str(sum(r[k] in (PROVED, REFUTED) for r in own)) for k in SYSTEMS]
        out.append((family, str(len(own)), *decided))
    return out


def markdown(rows: list[dict[str, str]]) -> str:
    """The generated section of the documentation."""
    heads, rule = " | ".join(name for name, _ in SYSTEMS.values()), " --- |" * len(SYSTEMS)
    lines = [f"| family | queries | {heads} |", f"| --- | --- |{rule}"]
    lines += [f"| {' | '.join(line)} |" for line in summary(rows)]
    open_rows = [r for r in rows if r["ours"] == OPEN]
    lines += ["", "True and not proved by DVM:", ""]
    lines += [f"- `{r['query']}`" for r in open_rows] or ["- none of these"]
    lines += ["", f"| query | {heads} |", f"| --- |{rule}"]
    family = ""
    for r in rows:
        if r["family"] != family:
            family = r["family"]
            lines.append(f"| **{family}** |{' |' * len(SYSTEMS)}")
        query = r["query"].replace("|", "\\|")
        lines.append(f"| `{query}` | {' | '.join(r[k] for k in SYSTEMS)} |")
    return "\n".join(lines)


def replace_section(path: str, name: str, text: str) -> None:
    """Writes ``text`` between the markers of the generated section ``name`` of a Markdown file."""
    with open(path, encoding="utf-8") as file:
        old = file.read()
    begin, end = f"<!-- generated: {name} -->", f"<!-- end: {name} -->"
    before, rest = old.split(begin)
    _, after = rest.split(end)
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"{before}{begin}\n{text}\n{end}{after}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--write", metavar="FILE", help="replace the generated section of this file")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = table()
    if args.write:
        replace_section(args.write, "strength", markdown(rows))
    print(json.dumps(rows, indent=1) if args.json else markdown(rows))


if __name__ == "__main__":
    main()

__all__ = ["Relation", "main", "markdown", "replace_section", "summary", "table"]
