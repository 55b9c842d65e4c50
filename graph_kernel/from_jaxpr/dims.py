"""Between JAX's symbolic dimensions and ours: the only file that looks inside JAX's dimension expressions."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from jax._src.export import shape_poly
from jax.export import SymbolicScope, symbolic_shape

from symbolic import Dim, Relation, Scope, divides, eq, ge, le, smax, smin, symbol
from vm.errors import CompileError


class DimSpec(Protocol):
    """What the front end reads of a declared dimension: its values are the multiples of ``multiple_of`` in [min, max]."""

    @property
    def name(self) -> str:
        """The dimension's name; its identity within one compile."""

    @property
    def min(self) -> int:
        """Least value."""

    @property
    def max(self) -> int | None:
        """Largest value, or None."""

    @property
    def multiple_of(self) -> int:
        """Every value is divisible by this."""


@dataclass(frozen=True)
class Variable:
    """What JAX's variable means: ``dim == scale * variable + offset``, with ``dim`` the dimension users know."""

    dim: Dim
    scale: int = 1
    offset: int = 0

    def value(self) -> Dim:
        """The JAX variable, in terms of ``dim``."""
        return (self.dim - self.offset) // self.scale

    def text(self, name: str) -> str:
        """``dim`` in JAX's syntax, given the variable's JAX name."""
        scaled = name if self.scale == 1 else f"{self.scale}*{name}"
        return scaled if not self.offset else f"{scaled} - {-self.offset}"


def is_symbolic(dim: Any) -> bool:
    """Whether ``dim`` is one of JAX's dimension expressions (and not a plain integer)."""
    return shape_poly.is_symbolic_dim(dim)


def scope_of(dim: Any) -> SymbolicScope:
    """The JAX scope of a symbolic dimension."""
    return dim.scope


def variables_in(dims: Iterable[Any]) -> list[str]:
    """The names of the JAX variables in ``dims``, in order of first occurrence."""

    def walk(dim: Any) -> Iterator[str]:
        if not is_symbolic(dim):
            return
        for term, _ in reversed(dim._sorted_terms):
            for factor, _ in term._factors:
                if factor.var is not None:
                    yield factor.var
                for operand in factor.operands:
                    yield from walk(operand)

    return list(dict.fromkeys(itertools.chain.from_iterable(map(walk, dims))))


class DimTranslator:
    """Translates JAX dims to ours, given what each JAX variable stands for."""

    def __init__(self, scope: Scope, variables: Mapping[str, Dim | Variable]) -> None:
        self.scope = scope
        self.variables = {k: v if isinstance(v, Variable) else Variable(v) for k, v in variables.items()}
        self._memo: dict[str, Dim] = {}
        self._seen: dict[
            int, tuple[Any, Dim]
        ] = {}  # by identity, which stays as long as the object: JAX hands the same ones around

    def __call__(self, dim: Any) -> Dim:
        """The dimension as an int or an ``Expr`` of our scope."""
        if type(dim) is int:
            return dim
        if (seen := self._seen.get(id(dim))) is not None:
            return seen[1]
        if not is_symbolic(dim):
            return operator.index(dim)
        key = str(dim)
        if key not in self._memo:
            self._memo[key] = self.scope.simplify(self._expression(dim))
        self._seen[id(dim)] = (dim, self._memo[key])
        return self._memo[key]

    def shape(self, dims: Sequence[Any]) -> tuple[Dim, ...]:
        """All of ``dims``."""
        return tuple(self(d) for d in dims)

    def _expression(self, dim: Any) -> Dim:
        if not is_symbolic(dim):
            return operator.index(dim)
        total: Dim = 0
        for term, coefficient in dim._sorted_terms:
            total = total + self._term(term, coefficient)
        return total

    def _term(self, term: Any, coefficient: int) -> Dim:
        product: Dim = 1
        for factor, power in term._factors:
            for _ in range(power):
                variable = self.variables.get(factor.var) if factor.var is not None else None
                if variable is not None and coefficient % variable.scale == 0:  # 8*b_ is b: no division needed
                    coefficient //= variable.scale
                    product = product * (variable.dim - variable.offset)
                else:
                    product = product * self._factor(factor)
        return coefficient * product

    def _factor(self, factor: Any) -> Dim:
        if factor.var is not None:
            if factor.var not in self.variables:
                known = ", ".join(self.variables) or "none"
                raise CompileError(
                    f"dimension {factor.var!r} is not in the shape of any argument (known: {known}): "
                    "take sizes from the shapes of the function's arguments"
                )
            return self.variables[factor.var].value()
        a, b = (self._expression(operand) for operand in factor.operands)
        if factor.operation == "floordiv":
            return a // b
        if factor.operation == "mod":
            return a % b
        return smax(a, b) if factor.operation == "max" else smin(a, b)


def parse_jax(text: str, scope: SymbolicScope) -> Any:
    """The JAX dimension that ``text`` prints, in ``scope``; raises ``ValueError`` if it is none."""
    (dim,) = symbolic_shape(f"({text},)", scope=scope)
    return dim


def constraint_strings(scope: SymbolicScope) -> list[tuple[Any, str, Any]]:
    """The scope's declared constraints as (left, ``==`` or ``>=``, right)."""
    return [(c.e1, "==" if c.cmp is shape_poly.Comparator.EQ else ">=", c.e2) for c in scope._explicit_constraints]


@dataclass
class Plan:
    """How a set of argument shapes is traced: the JAX scope, and what its variables mean in ours."""

    jax_scope: SymbolicScope | None
    translate: DimTranslator
    replace: Mapping[str, Any] | None  # variable -> JAX dim of jax_scope; None: the dims are used as they are

    def jax_dim(self, dim: Any) -> Any:
        """``dim`` in the scope that is traced in."""
        return dim._evaluate(self.replace) if self.replace is not None and is_symbolic(dim) else dim


def plan(
    dims: Sequence[Any], specs: Mapping[str, DimSpec] | None, scope: Scope, said: Mapping[Relation, str] | None = None
) -> Plan:
    """Decides how ``dims`` (all dimensions of all arguments) are traced, and declares their symbols in ``scope``.

    Dims of one JAX scope, with no declared ranges, are traced as they are. Otherwise they are rebuilt by name in a fresh
    JAX scope, in which declared divisors and ranges show: a multiple of 8 is ``8*b_``, a size that may be 0 is ``b_ - 1``.
    ``said`` has the user's words for constraints, which JAX writes in another form.
    """
    specs, said = specs or {}, said or {}
    names = variables_in(dims)
    scopes: list[SymbolicScope] = []
    for dim in dims:
        if is_symbolic(dim) and not any(s is dim.scope for s in scopes):
            scopes.append(dim.scope)
    for name, spec in specs.items():
        if spec.name and spec.name != name:
            raise CompileError(f"dimension {name!r} was given as Dim({spec.name!r}): the names must agree")
    for name in specs:
        if name not in names:
            _meaning(name, scopes, names)
    if not names:
        return Plan(None, DimTranslator(scope, {}), None)
    declared = [n for n, spec in specs.items() if not _is_plain(spec)]
    constraints = [(c, s) for s in scopes for c in constraint_strings(s)]
    if len(scopes) == 1 and not declared:
        variables = {n: Variable(scope.declare(n)) for n in names}
        translator = DimTranslator(scope, variables)
        _assume(scope, translator, [c for c, _ in constraints], names, said)
        return Plan(scopes[0], translator, None)
    return _rebuild(names, specs, [c for c, _ in constraints], scope, scopes, said)


def _is_plain(spec: DimSpec) -> bool:
    return spec.min == 1 and spec.max is None and spec.multiple_of == 1


def _assume(
    scope: Scope,
    translate: DimTranslator,
    constraints: Sequence[tuple[Any, str, Any]],
    names: Sequence[str],
    said: Mapping[Relation, str],
) -> None:
    for left, comparison, right in constraints:
        if not set(variables_in([left, right])) <= set(names):
            continue  # about a variable that no argument has
        a, b = translate(left), translate(right)
        relation = eq(a, b) if comparison == "==" else ge(a, b)
        scope.assume(relation, f"the constraint {said.get(relation) or relation}")


def _meaning(name: str, scopes: Sequence[SymbolicScope], names: Sequence[str]) -> Any:
    """The JAX dim that ``name``, which is in no shape, is equal to by a constraint; ``CompileError`` if there is none."""
    for scope in scopes:
        dim = parse_jax(name, scope)
        if set(variables_in([dim])) <= set(names):
            return dim
    raise CompileError(f"no argument has a dimension named {name!r} (there are: {', '.join(names) or 'none'})")


def _assume_range(scope: Scope, spec: DimSpec, dim: Dim) -> None:
    origin = f'Dim("{spec.name}")'
    scope.assume(ge(dim, spec.min), origin)
    if spec.max is not None:
        scope.assume(le(dim, spec.max), origin)
    if spec.multiple_of > 1:
        scope.assume(divides(spec.multiple_of, dim), origin)


def _rebuild(
    names: Sequence[str],
    specs: Mapping[str, DimSpec],
    constraints: Sequence[tuple[Any, str, Any]],
    scope: Scope,
    scopes: Sequence[SymbolicScope],
    said: Mapping[Relation, str],
) -> Plan:
    taken = {*names, *specs}
    vanished = [n for n in specs if n not in names]  # by an equality among JAX's constraints
    variables: dict[str, Variable] = {}
    texts: dict[str, str] = {}
    ranges: list[str] = []
    for name in names:
        spec = specs.get(name)
        if spec is None:
            variables[name], texts[name] = Variable(scope.declare(name)), name
            continue
        low, scale = -(-max(spec.min, 0) // spec.multiple_of) * spec.multiple_of, spec.multiple_of
        dim = scope.declare(name, min=spec.min, max=spec.max, multiple_of=scale, origin=f'Dim("{name}")')
        variable = Variable(dim, scale, -scale if low == 0 else 0)
        alias = name
        while variable.text(name) != name and alias in taken:
            alias += "_"
        taken.add(alias)
        variables[alias], texts[name] = variable, variable.text(alias)
        if low > scale:
            ranges.append(f"{alias} >= {low // scale}")
        if spec.max is not None:
            ranges.append(f"{alias} <= {(spec.max - variable.offset) // scale}")
    draft = SymbolicScope(())
    rebuilt = {n: parse_jax(texts[n], draft) for n in names}
    for left, comparison, right in constraints:
        if set(variables_in([left, right])) <= set(names):
            sides = (d._evaluate(rebuilt) if is_symbolic(d) else d for d in (left, right))
            ranges.append(f" {comparison} ".join(map(str, sides)))
    jax_scope = SymbolicScope(ranges)
    replace = {n: parse_jax(texts[n], jax_scope) for n in names}
    translator = DimTranslator(scope, variables)
    by_name = DimTranslator(scope, {n: Variable(symbol(n)) for n in names})
    _assume(scope, by_name, constraints, names, said)
    for name in vanished:
        _assume_range(scope, specs[name], by_name(_meaning(name, scopes, names)))
    return Plan(jax_scope, translator, replace)
