"""Reads shapes such as ``"b, 2*(s + 1), 4096"`` as JAX dimensions. JAX's own reader knows no brackets and no ``//``."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jax.export import SymbolicScope

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}


def read_shape(text: str, scope: SymbolicScope) -> tuple[Any, ...]:
    """The dims that ``text`` lists, ints or expressions of ``scope``.

    Operators are ``+ - * // % **`` with Python's precedences; functions ``max``, ``min``, ``mod`` and ``floordiv``. Raises ``ValueError``.
    """
    if not text.strip():
        return ()
    try:
        tree = ast.parse(f"({text.replace('^', '**').strip().removesuffix(',')},)", mode="eval")
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(getattr(error, "msg", str(error))) from None
    assert isinstance(tree.body, ast.Tuple)
    dims = tree.body.elts
    if len(dims) == 1 and isinstance(dims[0], ast.Tuple):  # the text had brackets of its own
        dims = dims[0].elts
    return tuple(_dim(node, scope) for node in dims)


def _dim(node: ast.expr, scope: SymbolicScope) -> Any:
    from jax.export import symbolic_shape

    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        return symbolic_shape(node.id, scope=scope)[0]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        value = _dim(node.operand, scope)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        left, right = _dim(node.left, scope), _dim(node.right, scope)
        if isinstance(node.op, (ast.FloorDiv, ast.Mod)) and isinstance(right, int) and right == 0:
            raise ValueError("division by zero")
        return _BINARY[type(node.op)](left, right)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 2 and not node.keywords:
        return _call(node.func.id, *(_dim(arg, scope) for arg in node.args))
    raise ValueError(
        f"{ast.unparse(node)!r} is not a size: write integers, names, + - * // % ** and max(a, b), min(a, b)"
    )


def _call(name: str, a: Any, b: Any) -> Any:
    import jax

    functions = {"max": jax.core.max_dim, "min": jax.core.min_dim, "mod": operator.mod, "floordiv": operator.floordiv}
    if name not in functions:
        raise ValueError(f"unknown function {name!r}; there are {', '.join(functions)}")
    return functions[name](a, b)
