"""How dims print. What is printed, ``parse`` reads back to the same object."""

import re

from symbolic.expr import FLOORDIV, MOD, SYMBOL, Atom, Dim, Expr, Mono

_PLAIN_NAME = re.compile(r"[A-Za-z_@][A-Za-z0-9_@.']*\Z")
_WORDS = frozenset(("max", "min", "broadcast", "ceildiv", "floordiv", "mod", "or", "and"))


def expr_text(expr: Expr) -> str:
    """The canonical text of ``expr``."""
    parts: list[str] = []
    for mono, c in expr.ordered():
        body = _mono_text(mono, abs(c), alone=c == 1 and len(expr.terms) == 1, leads=c < 0 and not parts)
        parts.append(f" {'-' if c < 0 else '+'} {body}" if parts else (f"-{body}" if c < 0 else body))
    return "".join(parts)


def quote(name: str) -> str:
    """``name`` as the parser reads it: in backticks unless it looks like an identifier."""
    if _PLAIN_NAME.match(name) and name not in _WORDS:
        return name
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def _atom_text(atom: Atom) -> str:
    if atom.op == SYMBOL:
        return quote(atom.args[0])
    if atom.op in (FLOORDIV, MOD):
        left, right = (_operand_text(a) for a in atom.args)
        return f"{left}//{right}" if atom.op == FLOORDIV else f"{left} % {right}"
    return f"{atom.op}({', '.join(map(str, atom.args))})"


def _operand_text(dim: Dim) -> str:
    """``dim`` in parentheses unless it is one name, one call or a non-negative number."""
    if isinstance(dim, int):
        return str(dim) if dim >= 0 else f"({dim})"
    atom = dim.as_atom
    simple = atom is not None and atom.op not in (FLOORDIV, MOD)
    return str(dim) if simple else f"({dim})"


def _mono_text(mono: Mono, coefficient: int, alone: bool, leads: bool) -> str:
    """The text of ``coefficient * mono``; ``alone``: it is the whole expression; ``leads``: a minus sign comes right before."""
    if not mono:
        return str(coefficient)
    single = len(mono) == 1 and coefficient == 1
    parts = [] if coefficient == 1 else [str(coefficient)]
    for i, atom in enumerate(mono):
        if i and atom is mono[i - 1]:
            continue
        power = mono.count(atom)
        text = _atom_text(atom)
        bare = single and (alone or (atom.op == FLOORDIV and not leads))
        if atom.op in (FLOORDIV, MOD) and not bare:
            text = f"({text})"
        parts.append(text if power == 1 else f"{text}**{power}")
    return "*".join(parts)
