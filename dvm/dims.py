"""Declared dimensions: ``dvm.Dim`` and ``dvm.spec``.

A declaration belongs to the JAX symbolic scope of the shape that names it. A shape keeps its scope through anything JAX does with it
(``jax.tree.map``, ``jax.eval_shape``, rebuilding a ``ShapeDtypeStruct``), so ``declared`` finds the declarations of any specs again.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from dvm.shape_text import read_shape
from vm.errors import CompileError

if TYPE_CHECKING:
    import jax
    from jax.export import SymbolicScope

_lock = threading.Lock()
_declared: WeakKeyDictionary[SymbolicScope, dict[str, Dim]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Dim:
    """A symbolic dimension: an integer in ``[min, max]`` (``max`` None: unbounded) that ``multiple_of`` divides.

    ``name`` may be left out where the place of use names it (``dvm.spec(..., s=Dim(max=8192))``, ``dims={"s": Dim()}``). Raises
    ``CompileError`` if no integer fits or an argument is not a whole number.
    """

    name: str | None = None
    min: int = 1
    max: int | None = None
    multiple_of: int = 1

    def __post_init__(self) -> None:
        if self.name is not None and (not isinstance(self.name, str) or not self.name):
            raise CompileError(f"Dim: the name must be a non-empty string, not {self.name!r}")
        label = f"Dim {self.name or '(unnamed)'}"
        object.__setattr__(self, "min", _whole(self.min, f"{label}: min"))
        object.__setattr__(self, "multiple_of", _whole(self.multiple_of, f"{label}: multiple_of"))
        if self.max is not None:
            object.__setattr__(self, "max", _whole(self.max, f"{label}: max"))
        if self.min < 0:
            raise CompileError(f"{label}: a dimension cannot be negative, min is {self.min}")
        if self.multiple_of < 1:
            raise CompileError(f"{label}: multiple_of must be at least 1, not {self.multiple_of}")
        smallest = -(-self.min // self.multiple_of) * self.multiple_of
        if self.max is not None and smallest > self.max:
            what = f" that is a multiple of {self.multiple_of}" if self.multiple_of > 1 else ""
            raise CompileError(f"{label}: there is no size{what} from {self.min} to {self.max}")

    def named(self, name: str) -> Dim:
        """This declaration under ``name``; a ``CompileError`` if it already has another name."""
        if self.name is not None and self.name != name:
            raise CompileError(f"dimension {name!r} is declared with Dim({self.name!r}, ...): the names differ")
        return replace(self, name=name)

    @property
    def range_text(self) -> str:
        """The declared range as a person would write it, as ``1 <= s <= 8192, multiple of 8``."""
        upper = f" <= {self.max}" if self.max is not None else ""
        multiple = f", multiple of {self.multiple_of}" if self.multiple_of > 1 else ""
        return f"{self.min} <= {self.name or '?'}{upper}{multiple}"


def _whole(value: Any, what: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise CompileError(f"{what} must be a whole number, not {value!r}") from None


def spec(shape: str | Sequence[int | str | Dim] | int, dtype: Any = None, /, **dims: Dim) -> jax.ShapeDtypeStruct:
    """A ``jax.ShapeDtypeStruct`` whose dimensions may be symbols.

    ``shape`` is text as ``"b, 2*s + 1, 4096"`` (``""`` is a scalar) or a sequence of ints, such texts and named ``Dim``s; ``dtype``
    defaults to float32. Keyword arguments declare symbols of the shape: ``dvm.spec("b, s", s=dvm.Dim(max=8192))``. A symbol without a
    declaration is any size from 1 up. Raises ``CompileError`` for a shape or a dtype that cannot be read, a ``Dim`` that the shape does not
    use, or a name that contradicts itself.
    """
    import jax
    import numpy as np
    from jax import export

    declared_here = {name: checked(dim, name) for name, dim in dims.items()}
    text = _shape_text(shape, declared_here)
    try:
        scope = export.SymbolicScope(range_constraints(declared_here.values()))
        shape_dims = read_shape(text, scope)
    except Exception as error:
        raise CompileError(f"spec: cannot read the shape {text!r}: {_first_line(error)}") from error
    for dim in shape_dims:
        if isinstance(dim, int) and dim < 0:
            raise CompileError(f"spec: the shape {text!r} has a negative size")
    used = symbol_names(shape_dims)
    for name in declared_here:
        if name not in used:
            raise CompileError(f"spec: the shape {text!r} does not use the declared dimension {name!r}")
    attach(scope, declared_here)
    try:
        return jax.ShapeDtypeStruct(shape_dims, np.dtype(np.float32 if dtype is None else dtype))
    except TypeError as error:
        raise CompileError(f"spec: {dtype!r} is no dtype: {error}") from error


def checked(dim: Any, name: str) -> Dim:
    """``dim`` under ``name``; a ``CompileError`` if it is neither that nor a size, or has another name."""
    if isinstance(dim, int) and not isinstance(dim, bool):
        return Dim(name, dim, dim)
    if not isinstance(dim, Dim):
        raise CompileError(f"dimension {name!r}: expected a dvm.Dim, got {dim!r}")
    return dim.named(name)


def _shape_text(shape: str | Sequence[int | str | Dim] | int, found: dict[str, Dim]) -> str:
    """The shape as text; named ``Dim``s in it are added to ``found``."""
    if isinstance(shape, str):
        return shape
    parts = []
    for dim in (shape,) if isinstance(shape, (int, Dim)) else shape:
        if not isinstance(dim, Dim):
            parts.append(dim if isinstance(dim, str) else str(_whole(dim, "spec: a size")))
            continue
        if dim.name is None:
            raise CompileError("spec: a Dim inside a shape needs a name")
        if found.setdefault(dim.name, dim) != dim:
            raise conflict(dim.name, found[dim.name], dim)
        parts.append(dim.name)
    return ", ".join(parts)


def range_constraints(dims: Iterable[Dim]) -> list[str]:
    """Ranges as JAX constraints. JAX's symbols start at 1, so only a larger minimum is worth saying."""
    lines = []
    for dim in dims:
        if dim.min > 1:
            lines.append(f"{dim.name} >= {dim.min}")
        if dim.max is not None and dim.max >= 1:
            lines.append(f"{dim.name} <= {dim.max}")
    return lines


def attach(scope: SymbolicScope, dims: Mapping[str, Dim]) -> None:
    """Remembers the declarations ``dims`` for every shape of the JAX scope ``scope``."""
    with _lock:
        _declared.setdefault(scope, {}).update(dims)


def symbol_names(dims: Iterable[Any]) -> list[str]:
    """Names of the symbols in JAX dimensions, sorted."""
    return sorted({name for dim in dims if not isinstance(dim, int) for name in _names_of(dim)})


def _names_of(dim: Any) -> Iterable[str]:
    from jax.export import is_symbolic_dim

    return dim.get_vars() if is_symbolic_dim(dim) else ()


def scopes(shapes: Iterable[Sequence[Any]]) -> Iterator[SymbolicScope]:
    """The JAX scopes of the symbolic dims in ``shapes``, in order."""
    from jax.export import is_symbolic_dim

    seen: list[SymbolicScope] = []
    for dim in (d for shape in shapes for d in shape):
        if is_symbolic_dim(dim) and not any(dim.scope is s for s in seen):
            seen.append(dim.scope)
            yield dim.scope


def declared(shapes: Iterable[Sequence[Any]], extra: Mapping[str, Dim] | None = None) -> dict[str, Dim]:
    """The declarations that belong to ``shapes`` (JAX shapes) and ``extra`` (the ``dims`` argument of ``compile``), by name.

    Raises ``CompileError`` where one name is declared twice and differently, or ``extra`` has a name that no shape uses.
    """
    shapes = list(shapes)
    found: dict[str, Dim] = {}
    for scope in scopes(shapes):
        for name, dim in _declared.get(scope, {}).items():
            if found.setdefault(name, dim) != dim:
                raise conflict(name, found[name], dim)
    names = symbol_names(d for shape in shapes for d in shape)
    for name, dim in (extra or {}).items():
        dim = checked(dim, name)
        if name not in names:
            raise CompileError(
                f"dims: no input has a dimension {name!r}; the inputs have {', '.join(names) or 'no symbols'}"
            )
        if found.setdefault(name, dim) != dim:
            raise conflict(name, found[name], dim)
    return {name: found[name] for name in sorted(found)}


def conflict(name: str, one: Dim, other: Dim) -> CompileError:
    """The error for two declarations of one name."""
    return CompileError(
        f"dimension {name!r} is declared twice and differently: {one.range_text}; and {other.range_text}. "
        "Within one compile a dimension's name is its identity: use one Dim, or another name"
    )


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
