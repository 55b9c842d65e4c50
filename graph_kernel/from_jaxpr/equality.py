"""Watches comparisons of JAX's symbolic dimensions while a function is traced.

JAX answers "different" when it cannot tell, because Python needs a bool: ``if x.shape[0] == 1`` then takes the else branch
for good, also at size 1. Here every such answer that the traced function's own code asked for is noted, and becomes a
requirement of the program: the sizes must indeed differ, which is checked at launch.

An inequality that JAX cannot decide is an error there; here our prover, which knows more about products and divisions, is asked first.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from jax._src import source_info_util
from jax._src.export import shape_poly
from jax.errors import InconclusiveDimensionOperation

from graph_kernel.from_jaxpr.dims import DimTranslator, is_symbolic
from symbolic import Scope, ge, lt, ne
from vm.errors import CompileError

_lock = threading.Lock()
_local = threading.local()
_depth = 0
_plain_eq = shape_poly._DimExpr.__eq__
_plain_geq = shape_poly._geq_decision


@dataclass(frozen=True)
class Difference:
    """Two dims that JAX called different without proof, and the line that compared them."""

    a: Any
    b: Any
    place: str


@contextlib.contextmanager
def watched(translate: DimTranslator) -> Iterator[list[Difference]]:
    """Yields a list that fills with the unproved answers of this thread; JAX is patched only meanwhile. ``translate`` gives JAX's dims
    in the scope whose prover helps out."""
    global _depth
    found: list[Difference] = []
    outer, _local.found = getattr(_local, "found", None), found
    outer_translate, _local.translate = getattr(_local, "translate", None), translate
    with _lock:
        _depth += 1
        shape_poly._DimExpr.__eq__ = _watching_eq  # type: ignore[method-assign]
        shape_poly._geq_decision = _proving_geq  # type: ignore[assignment]
    try:
        yield found
    finally:
        _local.found, _local.translate = outer, outer_translate
        with _lock:
            _depth -= 1
            if not _depth:
                shape_poly._DimExpr.__eq__ = _plain_eq  # type: ignore[method-assign]
                shape_poly._geq_decision = _plain_geq


def _proving_geq(a: Any, b: Any, text: Any) -> bool:
    """Whether ``a >= b`` at every size, or at none; JAX's own complaint if neither is proved."""
    try:
        return _plain_geq(a, b, text)
    except InconclusiveDimensionOperation:
        translate: DimTranslator | None = getattr(_local, "translate", None)
        if translate is None:
            raise
        try:
            left, right = translate(a), translate(b)
        except CompileError:
            left = None  # a dim of another scope
        if left is not None and translate.scope.proves(ge(left, right)):
            return True
        if left is not None and translate.scope.proves(lt(left, right)):
            return False
        raise


def _watching_eq(self: Any, other: Any) -> bool:
    answer = _plain_eq(self, other)
    found = getattr(_local, "found", None)
    if found is None or answer or isinstance(other, str):
        return answer
    frame = sys._getframe(1)
    if frame.f_code.co_name == "__ne__" and frame.f_back is not None:
        frame = frame.f_back
    name = frame.f_code.co_filename
    if source_info_util.is_user_filename(name) and (is_symbolic(other) or isinstance(other, int)):
        found.append(Difference(self, other, f"{PurePath(name).name}:{frame.f_lineno} ({frame.f_code.co_name})"))
    return answer


def require(differences: list[Difference], scope: Scope, translate: DimTranslator) -> None:
    """Makes every noted answer a requirement of ``scope``; what is proved costs nothing."""
    for d in differences:
        if is_symbolic(d.b) and d.b.scope is not d.a.scope:
            continue
        a, b = translate(d.a), translate(d.b)
        message = f"the function compares {a} == {b} and was traced for sizes at which they differ"
        scope.require(ne(a, b), f"== at {d.place}", message)
