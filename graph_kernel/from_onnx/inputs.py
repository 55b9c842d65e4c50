"""The dimensions of a model's inputs: which symbols its ``dim_param`` texts mean, and what is declared about them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import onnx

import symbolic
from symbolic import Dim, Relation, Scope
from vm.errors import CompileError

_PLAIN = re.compile(r"[^\W\d]\w*\Z")
_LOOKS_LIKE_SUM = re.compile(r"[*(]|//|\s[+-]\s|\A\d+\s*[-+*]|[-+]\s*\d+\Z")


class DimSpec(Protocol):
    """What is declared about a dimension; ``dvm.Dim`` is one."""

    @property
    def name(self) -> str | None: ...
    @property
    def min(self) -> int: ...
    @property
    def max(self) -> int | None: ...
    @property
    def multiple_of(self) -> int: ...


class InputDims:
    """Turns the dims of input types into symbols of a scope, each declared once."""

    def __init__(self, scope: Scope, specs: Mapping[str, DimSpec | int], infos: Sequence[onnx.ValueInfoProto]) -> None:
        self.scope = scope
        self.specs = specs
        self.used: list[str] = []
        self._values: dict[str, Dim] = {}
        texts = [d.dim_param for info in infos for d in info.type.tensor_type.shape.dim if d.dim_param]
        self._plain = {t for t in texts if _PLAIN.match(t)} | {str(k) for k in specs}
        self._taken = set(texts)

    def shape(self, info: onnx.ValueInfoProto) -> tuple[Dim, ...]:
        """The shape of an input. Raises CompileError if it has none, or a negative size."""
        if not info.type.tensor_type.HasField("shape"):
            raise CompileError(f"input {info.name!r} has no shape, not even a rank; add one to the model")
        return tuple(self._dim(info.name, i, d) for i, d in enumerate(info.type.tensor_type.shape.dim))

    def _dim(self, name: str, axis: int, dim: onnx.TensorShapeProto.Dimension) -> Dim:
        where = f"input {name!r} axis {axis}"
        if dim.HasField("dim_value"):
            if dim.dim_value < 0:
                raise CompileError(f"{where} has the size {dim.dim_value}")
            return dim.dim_value
        if not dim.dim_param:
            return self.symbol(self._unnamed(f"{name}_{axis}"), where)
        return self.read(dim.dim_param, where)

    def _unnamed(self, hint: str) -> str:
        name, count = hint, 0
        while name in self._taken:
            count += 1
            name = f"{hint}_{count}"
        self._taken.add(name)
        return name

    def read(self, text: str, where: str) -> Dim:
        """A ``dim_param``: an expression of other names, or a name, however odd."""
        expression = self._expression(text)
        if expression is None:
            return self.symbol(text, where)
        values = {name: self.symbol(name, where) for name in symbolic.symbols_of(expression)}
        return symbolic.substitute(expression, values)

    def _expression(self, text: str) -> Dim | None:
        if _PLAIN.match(text) or text in self.specs:
            return None
        try:
            parsed = symbolic.parse(plain_floor(text))
        except CompileError:
            return None
        names = set(symbolic.symbols_of(parsed))
        # `batch-size` is a name, unless there is a `batch` and a `size`
        return parsed if names and (names <= self._plain or _LOOKS_LIKE_SUM.search(text)) else None

    def symbol(self, name: str, where: str) -> Dim:
        """The symbol of a name, declared on first use: [0, infinity) unless there is a spec."""
        if name not in self._values:
            self.used.append(name)
            self._values[name] = self._declare(name, where)
        return self._values[name]

    def _declare(self, name: str, where: str) -> Dim:
        spec = self.specs.get(name)
        if spec is None:
            return self.scope.declare(name, min=0, origin=where)
        if isinstance(spec, int):
            if spec < 0:
                raise CompileError(f"dims[{name!r}] is {spec}, a size cannot be negative")
            return spec
        if spec.name and spec.name != name:
            raise CompileError(f"dims[{name!r}] is a Dim of another name, {spec.name!r}")
        origin = f"{where}, declared in dims"
        return self.scope.declare(name, min=spec.min, max=spec.max, multiple_of=spec.multiple_of, origin=origin)

    def check_specs(self) -> None:
        """Raises CompileError for a declared dim that no input has."""
        unknown = [str(k) for k in self.specs if k not in self._values]
        if unknown:
            known = ", ".join(map(repr, self.used)) or "none"
            raise CompileError(
                f"no input has a dimension {', '.join(map(repr, unknown))}; the model's dimensions are {known}"
            )

    def assume(self, constraints: Iterable[str | Relation]) -> None:
        """Takes the user's constraints as facts that are checked at launch."""
        for constraint in constraints:
            relation = symbolic.parse_relation(constraint) if isinstance(constraint, str) else constraint
            unknown = [s for s in relation.symbols if s not in self._values]
            if unknown:
                raise CompileError(
                    f"the constraint {constraint!s} names {', '.join(unknown)}; the model's dimensions are "
                    f"{', '.join(self.used) or 'none'}"
                )
            numbers = {n: v for n, v in self._values.items() if isinstance(v, int)}
            self.scope.require(relation.subs(numbers), "constraint", f"declared constraint {constraint}")


def plain_floor(text: str) -> str:
    """``floor(a/b)``, ``Max``, ``Min`` and ``Mod`` as exporters that print SymPy write them, in our own notation."""
    text = re.sub(r"\b(Max|Min|Mod)\(", lambda m: m.group(1).lower() + "(", text)
    for name, ours in (("floor(", "floordiv("), ("ceiling(", "ceildiv(")):
        at = text.find(name)
        while at >= 0:
            end = _closing(text, at + len(name))
            inner = text[at + len(name) : end]
            cut = _top_level_slash(inner)
            if cut < 0:
                break
            text = f"{text[:at]}{ours}({inner[:cut]}), ({inner[cut + 1 :]}){text[end:]}"
            at = text.find(name, at)
    return text


def _closing(text: str, start: int) -> int:
    depth = 1
    for i in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        if depth == 0:
            return i
    return len(text)


def _top_level_slash(text: str) -> int:
    depth = 0
    for i, char in enumerate(text):
        depth += {"(": 1, ")": -1}.get(char, 0)
        if char == "/" and depth == 0 and text[i - 1 : i] != "/" and text[i + 1 : i + 2] != "/":
            return i
    return -1
