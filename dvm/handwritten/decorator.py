"""``@dvm.kernel``: a function that builds a kernel becomes one that runs it."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dvm.handwritten.arguments import Argument, is_number, sizes
from dvm.handwritten.kernel_object import Kernel, Parameter, size_carrier
from dvm.handwritten.kinds import checked_kind
from dvm.handwritten.vocabulary import Tensor
from dvm.program import CompiledProgram
from vm.errors import CompileError, InputError, ShapeError


def kernel(
    ktype: str | Callable[..., Any] = "split",
    dynamic: bool = True,
    *,
    dyn_shape: bool | None = None,
    tier: str = "auto",
) -> Any:
    """Makes a kernel of a function that writes one, in either of two ways.

    With arguments: ``def f(k, a, b, scale)`` gets a handle for each argument, loads them with ``k.load(a)``, and returns what ``k.store``
    returned. It is built at the first call, and again only for arguments of other dtypes or ranks (in a static kernel: other sizes).

    As a builder: ``def f(k)`` says what it takes with ``k.load(shape, dtype)`` and ``k.scalar(dtype)``; arguments come in that order,
    results in the order of ``k.store``.

    ``ktype`` is a kind of kernel (see ``Kernel``), ``dynamic`` (or ``dyn_shape``) whether sizes may differ from call to call, ``tier`` as
    for ``dvm.compile``.
    """
    if callable(ktype):
        return KernelFunction(ktype, "split", dynamic, tier)
    chosen = checked_kind(ktype)
    is_dynamic = dynamic if dyn_shape is None else dyn_shape
    return lambda fn: KernelFunction(fn, chosen, is_dynamic, tier)


class KernelFunction:
    """A function decorated with ``@dvm.kernel``: call it with NumPy or JAX arrays, numbers and lists of sizes.

    Results are NumPy arrays, or ``jax.Array``s if an argument is one; one result comes alone, several as a tuple. Raises ``CompileError``
    for what the kernel's kind forbids, ``InputError`` for a wrong count, dtype or rank, ``ShapeError`` for sizes that do not fit.
    """

    def __init__(self, fn: Callable[..., Any], ktype: str, dynamic: bool, tier: str) -> None:
        self.fn, self.ktype, self.dynamic, self.tier = fn, ktype, dynamic, tier
        functools.update_wrapper(self, fn)
        parameters = list(inspect.signature(fn).parameters.values())
        if not parameters or any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
            raise CompileError(f"kernel {self._name!r}: the function takes k, then a fixed number of arguments")
        self.signature = inspect.Signature(parameters[1:])
        self.is_builder = not parameters[1:]
        self._kernels: dict[tuple[Argument, ...], tuple[Kernel, bool]] = {}
        self._last: Kernel | None = None
        self._lock = threading.Lock()

    @property
    def _name(self) -> str:
        return getattr(self.fn, "__name__", "kernel")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the kernel."""
        if self.is_builder:
            built, single = self._built(())
            if kwargs:
                raise InputError(f"kernel {self._name!r} takes its arguments in order, not by name")
            results = built.launch(self._in_order(built, args))
        else:
            given = self._bound(args, kwargs)
            built, single = self._built(tuple(Argument.of(n, v, self.dynamic) for n, v in given.items()))
            results = built.launch([_value(p, given[p.name]) for p in built.parameters])
        return results[0] if single else tuple(results)

    def run(self, *args: Any) -> Any:
        """Runs the kernel on its arguments; arrays after them are filled with the results in order, and returned."""
        if not self.is_builder:
            count = len(self.signature.parameters)
            return self._filled(self(*args[:count]), args[count:])
        built, _ = self._built(())
        count = len(built.parameters)
        return self._filled(self(*args[:count]), args[count:])

    def _filled(self, results: Any, outs: Sequence[Any]) -> Any:
        if not outs:
            return results
        flat = results if isinstance(results, tuple) else (results,)
        if len(outs) != len(flat):
            raise InputError(f"kernel {self._name!r} has {len(flat)} results, got {len(outs)} arrays for them")
        for i, (result, out) in enumerate(zip(flat, outs, strict=True)):
            if not isinstance(out, np.ndarray) or out.dtype != result.dtype:
                got = out.dtype if isinstance(out, np.ndarray) else type(out).__name__
                raise InputError(
                    f"result {i} of kernel {self._name!r}: expected a NumPy array of {result.dtype}, got {got}"
                )
            if out.shape != result.shape:
                raise ShapeError(
                    f"result {i} of kernel {self._name!r} has shape {result.shape}, the array has {out.shape}"
                )
        for result, out in zip(flat, outs, strict=True):
            out[...] = np.asarray(result)
        return outs[0] if len(outs) == 1 else tuple(outs)

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            takes = ", ".join(self.signature.parameters)
            raise InputError(f"kernel {self._name!r} takes ({takes}): {error}") from None
        bound.apply_defaults()
        return dict(bound.arguments)

    def _in_order(self, built: Kernel, args: tuple[Any, ...]) -> list[Any]:
        if len(args) != len(built.parameters):
            names = ", ".join(p.name for p in built.parameters)
            raise InputError(
                f"kernel {self._name!r} takes {len(built.parameters)} arguments ({names}), got {len(args)}"
            )
        return [_value(p, value) for p, value in zip(built.parameters, args, strict=True)]

    def _built(self, arguments: tuple[Argument, ...]) -> tuple[Kernel, bool]:
        with self._lock:
            if arguments not in self._kernels:
                self._kernels[arguments] = self._build(arguments)
            self._last = self._kernels[arguments][0]
            return self._kernels[arguments]

    def _build(self, arguments: tuple[Argument, ...]) -> tuple[Kernel, bool]:
        k = Kernel(self.ktype, self.dynamic, tier=self.tier, name=self._name)
        returned = self.fn(k, *arguments)
        single = len(k.stores) == 1
        if returned is not None:
            found = list(returned) if isinstance(returned, (tuple, list)) else [returned]
            if any(not isinstance(r, Tensor) or not any(r is s for s in k.stores) for r in found):
                raise CompileError(f"kernel {self._name!r} must return what k.store(...) returned, not {returned!r}")
            if len(found) != len(k.stores):
                raise CompileError(f"kernel {self._name!r} stores {len(k.stores)} results and returns {len(found)}")
            order = [next(i for i, s in enumerate(k.stores) if s is r) for r in found]
            if sorted(order) != list(range(len(k.stores))):
                raise CompileError(f"kernel {self._name!r} returns a result twice")
            k.graph.outputs = [k.graph.outputs[i] for i in order]
            k.stores = [k.stores[i] for i in order]
            single = not isinstance(returned, (tuple, list))
        _ = k.program
        return k, single

    # ---- looking inside

    @property
    def kernel(self) -> Kernel:
        """The kernel of the last call; one that takes no handles is built without a call."""
        if self._last is None and self.is_builder:
            self._built(())
        if self._last is None:
            raise CompileError(f"kernel {self._name!r} is built at its first call: call it first")
        return self._last

    @property
    def program(self) -> CompiledProgram:
        """The program of the last call."""
        return self.kernel.program

    def dump(self) -> str:
        """Prints the graph, and returns the text."""
        return self.kernel.dump()

    def das(self) -> str:
        """Prints the bytecode, as ``dvm dis`` shows it, and returns the text."""
        return self.kernel.das()

    def __repr__(self) -> str:
        return f"<dvm.kernel {self._name}{self.signature} ({self.ktype})>"


def _value(parameter: Parameter, value: Any) -> Any:
    """What a launch takes for one argument."""
    if parameter.form == "sizes":
        return size_carrier(sizes(value, f"argument {parameter.name!r}", parameter.count))
    if parameter.form == "scalar" and is_number(value) and not isinstance(value, (bool, int, float)):
        return np.asarray(value, parameter.node.dtype)
    return value
