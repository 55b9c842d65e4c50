"""How dims print. What is printed, ``parse`` reads back to the same object."""

import re

from symbolic.expr import FLOORDIV, MOD, SYMBOL, Atom, Dim, Expr, Mono

MAX_LENGTH = 20_000  # a longer expression (shared parts written out again and again) prints as a name made of its key
_PLAIN_NAME = re.compile(r"[A-Za-z_@][A-Za-z0-9_@.']*\Z")
_WORDS = frozenset(("max", "min", "broadcast", "ceildiv", "floordiv", "mod", "or", "and"))


def expr_text(expr: Expr) -> str:
    """The canonical text of ``expr``; inner expressions first, so that depth costs no stack."""
    inner: dict[Expr, None] = {expr: None}
    stack = [expr]
    while stack:
        for mono in stack.pop().terms:
            for atom in mono:
                for arg in atom.args if atom.op != SYMBOL else ():
                    if isinstance(arg, Expr) and arg not in inner:
                        inner[arg] = None
                        stack.append(arg)
    texts: dict[Expr, str] = {}
    for part in sorted(inner, key=_depth):
        texts[part] = _text_of(part, texts)
    return texts[expr]


def _depth(expr: Expr) -> int:
    return max(a.depth for m in expr.terms for a in m)


def _text_of(expr: Expr, texts: dict[Expr, str]) -> str:
    parts: list[str] = []
    for mono, c in expr.ordered():
        body = _mono_text(mono, abs(c), c == 1 and len(expr.terms) == 1, c < 0 and not parts, texts)
        parts.append(f" {'-' if c < 0 else '+'} {body}" if parts else (f"-{body}" if c < 0 else body))
    text = "".join(parts)
    return text if len(text) <= MAX_LENGTH else quote(f"<{expr.key}>")


def quote(name: str) -> str:
    """``name`` as the parser reads it: in backticks unless it looks like an identifier."""
    if _PLAIN_NAME.match(name) and name not in _WORDS:
        return name
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def _atom_text(atom: Atom, texts: dict[Expr, str]) -> str:
    if atom.op == SYMBOL:
        return quote(atom.args[0])
    if atom.op in (FLOORDIV, MOD):
        left, right = (_operand_text(a, texts) for a in atom.args)
        return f"{left}//{right}" if atom.op == FLOORDIV else f"{left} % {right}"
    return f"{atom.op}({', '.join(texts[a] if isinstance(a, Expr) else str(a) for a in atom.args)})"


def _operand_text(dim: Dim, texts: dict[Expr, str]) -> str:
    """``dim`` in parentheses unless it is one name, one call or a non-negative number."""
    if isinstance(dim, int):
        return str(dim) if dim >= 0 else f"({dim})"
    atom = dim.as_atom
    simple = atom is not None and atom.op not in (FLOORDIV, MOD)
    return texts[dim] if simple else f"({texts[dim]})"


def _mono_text(mono: Mono, coefficient: int, alone: bool, leads: bool, texts: dict[Expr, str]) -> str:
    """The text of ``coefficient * mono``; ``alone``: it is the whole expression; ``leads``: a minus sign comes right before."""
    if not mono:
        return str(coefficient)
    single = len(mono) == 1 and coefficient == 1
    parts = [] if coefficient == 1 else [str(coefficient)]
    for i, atom in enumerate(mono):
        if i and atom is mono[i - 1]:
            continue
        power = mono.count(atom)
        text = _atom_text(atom, texts)
        bare = single and (alone or (atom.op == FLOORDIV and not leads))
        if atom.op in (FLOORDIV, MOD) and not bare:
            text = f"({text})"
        parts.append(text if power == 1 else f"{text}**{power}")
    return "*".join(parts)
