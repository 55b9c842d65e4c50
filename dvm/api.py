"""``dvm.compile``: a JAX function, a closed jaxpr or an ONNX model becomes a program that runs at every shape."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dvm import pipeline
from dvm.dims import Dim
from dvm.options import Options
from dvm.program import TIERS, CompiledProgram
from vm.errors import CompileError

if TYPE_CHECKING:
    import onnx
    from jax.extend.core import ClosedJaxpr


def compile(
    model: Callable[..., Any] | ClosedJaxpr | str | os.PathLike[str] | onnx.ModelProto,
    /,
    *avals: Any,
    dims: Mapping[str, Dim] | None = None,
    constraints: Sequence[str] = (),
    tier: str = "auto",
    options: Options | Mapping[str, Any] | None = None,
    **kw_avals: Any,
) -> CompiledProgram:
    """Compiles ``model`` once, for every shape that its specs allow.

    ``model`` is one of

    * a JAX function. ``avals`` and ``kw_avals`` are its arguments: pytrees of ``jax.ShapeDtypeStruct`` (``dvm.spec``, or with dims from
      ``jax.export.symbolic_shape``), or of arrays, whose shapes are then fixed;
    * a ``jax.extend.core.ClosedJaxpr``, with symbolic dims or not;
    * an ONNX model: a path or an ``onnx.ModelProto``.

    ``dims`` declares ranges by name, also for dims that a spec does not declare; ``constraints`` are relations such as
    ``"past + s <= 4096"`` or ``"a == b"`` that launches must meet and the compiler may use. ``tier`` is ``auto``, ``reference``,
    ``interpreter`` or ``specialised``; ``options`` say which passes run and what is written about them (``dvm.Options``).

    Raises ``CompileError`` (contradictory dims, or a graph that has no valid shapes) and ``UnsupportedOp`` (lists all missing operators).
    """
    if tier not in TIERS:
        raise CompileError(f"unknown tier {tier!r}; there are {', '.join(TIERS)}")
    if isinstance(constraints, str):
        constraints = (constraints,)
    return _trace(model, avals, kw_avals, dims, constraints).compile(tier, options)


def _trace(
    model: Any, avals: tuple[Any, ...], kw_avals: Mapping[str, Any], dims: pipeline.Dims, constraints: Sequence[str]
) -> pipeline.Traced:
    is_path, is_model = isinstance(model, (str, os.PathLike)), _is_model_proto(model)
    if not is_path and not is_model and callable(model):
        return pipeline.from_function(model, avals, kw_avals, dims, constraints)
    if avals or kw_avals:
        raise CompileError(
            "only a function takes specs of its arguments; use dims= to declare the dims of a model or jaxpr"
        )
    if is_path or is_model:
        return pipeline.from_onnx_model(model, dims, constraints)
    if _is_closed_jaxpr(model):
        return pipeline.from_closed_jaxpr(model, dims, constraints)
    raise CompileError(
        f"compile takes a JAX function, a ClosedJaxpr, or an ONNX model or its path, not a {type(model).__name__}"
    )


def _is_model_proto(model: Any) -> bool:
    """Whether ``model`` is an ``onnx.ModelProto``, without importing onnx for things that are not."""
    return type(model).__name__ == "ModelProto" and hasattr(model, "graph")


def _is_closed_jaxpr(model: Any) -> bool:
    from jax.extend.core import ClosedJaxpr

    return isinstance(model, ClosedJaxpr)
