"""JAX's complaints about symbolic dimensions, said in the user's terms."""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePath

from jax._src import source_info_util
from jax.errors import (
    ConcretizationTypeError,
    InconclusiveDimensionOperation,
    NonConcreteBooleanIndexError,
    TracerArrayConversionError,
)
from jax.export import SymbolicScope

from graph_kernel.from_jaxpr.dims import DimTranslator, Plan, Variable, parse_jax
from symbolic import Dim, Expr, Relation, eq, le
from symbolic.expr import MAX, MIN
from vm.errors import CompileError

_COMPARISON = re.compile(r"comparison '(?P<a>.*?)' (?P<op>>=|<=|==|!=|>|<) '(?P<b>.*?)' is inconclusive")
_DIVISION = re.compile(r"remainder mod\((?P<what>.*), -? ?(?P<by>\d+)\) should be 0")
_SPLIT = re.compile(r"rest is mod\((?P<what>.*), (?P<by>\d+)\)")
_SHAPE = re.compile(r"\(((?:[^()]|\([^()]*\))*)\)")
_JOINED = re.compile(r"concatenating along dimension (\d+)")
_NUMBER = re.compile(
    r"not '_DimExpr'|'_DimExpr' object cannot be interpreted|expected a sequence of integers|used in a context that requires a constant"
)
_INSTEAD = (
    "jax.lax.cond and jax.numpy.where take the place of a Python if, jax.lax.while_loop that of a Python while; "
    "operations whose result's size depends on data want their size= argument, and a mask is applied by jax.numpy.where(mask, x, 0)"
)


@contextlib.contextmanager
def translated(plan: Plan) -> Iterator[None]:
    """Turns an exception of JAX that is about symbolic dimensions into a ``CompileError``; others pass."""
    try:
        yield
    except CompileError:
        raise
    except Exception as err:
        message = explain(err, plan)
        if message is None:
            raise
        raise CompileError(message) from err


def explain(err: Exception, plan: Plan) -> str | None:
    """The message for the user, or None if ``err`` is not about symbolic dimensions."""
    text = str(err).split("\nThis error arises")[0].strip()
    variables = plan.translate.variables
    mentioned = [v for name, v in variables.items() if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)]
    where = _where(err)
    if "mixing of symbolic scopes" in text:
        return (
            f"the function uses a dimension of another symbolic scope{where}: a dimension that a function closes over "
            "must come from the scope of its arguments; take it from the shape of an argument instead"
        )
    if isinstance(
        err, ConcretizationTypeError | NonConcreteBooleanIndexError
    ):  # a Python bool of a tracer is one of these
        return (
            f"the function needs a value while it is traced that only the data tells{where}. No declaration of sizes helps: {_INSTEAD}. "
            f"(JAX: {text.splitlines()[0]})"
        )
    if isinstance(err, TracerArrayConversionError):
        return (
            f"NumPy is asked to compute with an array that is only traced{where}: use jax.numpy in its place. "
            f"(JAX: {text.splitlines()[0]})"
        )
    if isinstance(err, TypeError | InconclusiveDimensionOperation) and mentioned and _NUMBER.search(text):
        return _used_as_number(where, text)
    if isinstance(err, InconclusiveDimensionOperation):
        return _inconclusive(text, plan, where)
    if isinstance(err, ValueError) and (found := _SPLIT.search(text)):
        what = _dim(found["what"], plan.jax_scope, plan.translate)
        return _indivisible("an equal split", what, found["by"], where) if isinstance(what, Expr) else None
    if isinstance(err, TypeError) and _NUMBER.search(text):
        return _used_as_number(where, text)
    if isinstance(err, TypeError | ValueError) and mentioned and ("shape" in text or "sizes" in text):
        dims = list(dict.fromkeys(str(v.dim) for v in mentioned))
        cannot = f"JAX cannot trace this at every size of {', '.join(dims)}{where}: {rename(text, variables)} "
        facts = _making_equal(text, plan) or [" == ".join(dims)] * (len(dims) == 2)
        quoted = ", ".join(f'"{fact}"' for fact in facts)
        declare = f"declare it: constraints=[{quoted}]"
        if any("==" not in fact for fact in facts):
            return f"{cannot}If that is always so, {declare}."
        fact = f", or {declare}" if facts else ""
        return f"{cannot}If the sizes are always equal, give them one dimension name or a fixed size{fact}."
    return None


def _making_equal(text: str, plan: Plan) -> list[str]:
    """The facts that make two shapes in JAX's complaint fit; none where there are not two shapes in it."""
    shapes = [_split(found[1]) for found in _SHAPE.finditer(text) if "," in found[1]]
    if len(shapes) != 2:
        return []
    a, b = shapes
    if "broadcast" in text:  # axes are counted from the last one
        n = min(len(a), len(b))
        a, b = a[len(a) - n :], b[len(b) - n :]
    elif (joined := _JOINED.search(text)) and len(a) == len(b):
        a, b = ([side for i, side in enumerate(s) if i != int(joined[1])] for s in (a, b))
    facts: dict[str, None] = {}
    for pair in zip(a, b, strict=False):
        x, y = (_dim(side, plan.jax_scope, plan.translate) for side in pair)
        if x is None or y is None or len(a) != len(b):
            return []
        if x != y and 1 not in (x, y):
            facts.update(dict.fromkeys(map(str, _equal_if(x, y))))
    return list(facts)


def _split(text: str) -> list[str]:
    """The parts of ``text`` between commas that are in no parentheses."""
    return [part.strip() for part in re.split(r",(?![^()]*\))", text) if part.strip()]


def _equal_if(x: Dim, y: Dim) -> list[Relation]:
    """Relations that together make ``x == y``: ``min(a, y) == y`` where ``y <= a``."""
    for whole, part in ((x, y), (y, x)):
        atom = whole.as_atom if isinstance(whole, Expr) else None
        if atom is not None and atom.op in (MIN, MAX) and part in atom.args:
            others = [a for a in atom.args if a != part]
            return [le(part, a) if atom.op == MIN else le(a, part) for a in others]
    return [eq(x, y)]


def _used_as_number(where: str, text: str) -> str:
    return (
        f"a symbolic dimension is used as a number{where}: jax.numpy.array(x.shape[0]) makes a tensor of it, "
        f"jax.lax.fori_loop and jax.lax.scan take the place of a Python loop over it. ({text})"
    )


def rename(text: str, variables: Mapping[str, Variable]) -> str:
    """``text`` with the names that JAX was given replaced by the dimensions that users know."""
    for name, variable in variables.items():
        if variable == Variable(variable.dim) and str(variable.dim) == name:
            continue
        text = text.replace(variable.text(name), str(variable.dim))
        value = str(variable.value())
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", value if " " not in value else f"({value})", text)
    return text


def _where(err: Exception) -> str:
    """`` at file.py:12 (fn)`` for the innermost frame of the user's that raised ``err``."""
    place = ""
    for frame, line in traceback.walk_tb(err.__traceback__):
        name = frame.f_code.co_filename
        if (
            source_info_util.is_user_filename(name)
            and frame.f_globals.get("__name__", "").split(".")[0] != "graph_kernel"
        ):
            place = f" at {PurePath(name).name}:{line} ({frame.f_code.co_name})"
    return place


def _dim(text: str, scope: SymbolicScope | None, translate: DimTranslator) -> Dim | None:
    if scope is None:
        return None
    try:
        return translate(parse_jax(text, scope))
    except (ValueError, TypeError, CompileError):
        return None


def _inconclusive(text: str, plan: Plan, where: str) -> str:
    variables = plan.translate.variables
    if found := _COMPARISON.search(text):
        a, b = (_dim(found[side], plan.jax_scope, plan.translate) for side in "ab")
        if a is not None and b is not None:
            return (
                f"JAX cannot decide {a} {found['op']} {b} for every size{where}. {_help(a, found['op'], b)} "
                "In the function's own code, jax.core.max_dim and min_dim take the place of Python's max and min."
            )
    if found := _DIVISION.search(text):
        what = _dim(found["what"], plan.jax_scope, plan.translate)
        if isinstance(what, Expr):
            return _indivisible("a reshape", what, found["by"], where)
    return f"JAX cannot decide a question about sizes{where}: {rename(text, variables)}"


def _indivisible(who: str, what: Expr, by: str, where: str) -> str:
    help_ = " or ".join(f'Dim("{n}", multiple_of={by})' for n in what.symbols)
    return f"{who} needs {what} to be a multiple of {by}{where}. Declare it: {help_}."


def _help(a: Dim, op: str, b: Dim) -> str:
    """Which declaration would decide ``a op b``."""
    difference = a - b
    symbols = difference.symbols if isinstance(difference, Expr) else ()
    if op not in (">=", ">", "<", "<=") or len(symbols) != 1 or not isinstance(difference, Expr):
        opposite = {">=": "<", ">": "<=", "<": ">=", "<=": ">"}.get(op)
        if opposite is None:
            return f"A constraint between {', '.join(symbols)} would: constraints=[...]."
        return f'constraints=["{a} {op} {b}"] makes it true, constraints=["{a} {opposite} {b}"] makes it false.'
    (name,) = symbols
    wanted: Callable[[int], bool] = {
        ">=": lambda v: v >= 0,
        ">": lambda v: v > 0,
        "<": lambda v: v < 0,
        "<=": lambda v: v <= 0,
    }[op]
    values = [difference.evaluate({name: n}) for n in range(3)]
    step = values[1] - values[0]
    if values[2] - values[1] != step or not step:
        return f"A narrower range of {name} may decide it: Dim({name!r}, min=..., max=..., multiple_of=...)."
    root = -values[0] // step  # the largest n with difference on the same side as at minus infinity, or near it
    flip = next(
        (
            n
            for n in range(root - 1, root + 3)
            if wanted(difference.evaluate({name: n})) != wanted(difference.evaluate({name: n - 1}))
        ),
        root,
    )
    always = f'Dim("{name}", min={flip})'
    never = f'Dim("{name}", max={flip - 1})'
    truth = ("true", "false") if wanted(difference.evaluate({name: flip})) else ("false", "true")
    if flip <= 1:
        return f"{always} makes it {truth[0]}."
    return f"{always} makes it {truth[0]}, {never} makes it {truth[1]}."
