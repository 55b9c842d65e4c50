"""How far rounding may take a result: NumPy in float64 in which every operation errs as one in float32 might.

``Rounded`` is an array whose operations multiply their results (and the terms of their sums) by random numbers within 2**-23 of 1. What
several such runs differ from the exact one by is the graph's own sensitivity to rounding at these inputs; a compiled program may differ
by a few times that, and by the tolerance of executors against each other. A wrong element differs by its size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

EPSILON = 2.0**-23
EXECUTORS = 2e-6  # of the largest element: what two executors may differ by in float32
SPREADS = 4  # rounding in another order of sums, and in functions that are good to a few units in the last place
RUNS = 3
MORE_RUNS = 24  # where a result is off by more than that shows
LARGEST = 1e18  # of float32's 3e38: squares are taken
_SUMS = {"sum", "mean", "prod", "cumsum", "cumprod", "einsum", "matmul", "dot", "var"}


class OutOfRange(ArithmeticError):
    """A value that float32 may not hold."""


class Rounded(np.ndarray):
    """float64 with the errors of float32. Comparisons and integers are exact."""

    rng: np.random.Generator = np.random.default_rng(0)  # of the run under way

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **kwargs: Any) -> Any:
        terms = method != "__call__" or ufunc is np.matmul
        plain = [noisy(_plain(x)) if terms else _plain(x) for x in inputs]
        if out is not None:
            kwargs["out"] = tuple(_plain(x) for x in out)
        if "where" in kwargs:
            kwargs["where"] = _plain(kwargs["where"])
        made = getattr(ufunc, method)(*plain, **kwargs)
        return tuple(map(rounded, made)) if isinstance(made, tuple) else rounded(made)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        terms = func.__name__ in _SUMS
        args, kwargs = _mapped(args, terms), _mapped(kwargs, terms)
        made = func(*args, **kwargs)
        if func is np.prod:  # equal factors round the same way every time
            factors = np.size(args[0]) / max(np.size(made), 1)
            made = made * (1 + factors * EPSILON / 2 * Rounded.rng.uniform(-1, 1, np.shape(made)))
        if isinstance(made, list | tuple):
            return [x.view(Rounded) if isinstance(x, np.ndarray) else x for x in made]
        return rounded(made) if terms else np.asarray(made).view(Rounded) if _is_float(made) else made


def _is_float(x: Any) -> bool:
    return isinstance(x, np.ndarray | np.floating) and x.dtype.kind == "f"


def _plain(x: Any) -> Any:
    return x.view(np.ndarray) if isinstance(x, Rounded) else x


def _mapped(x: Any, terms: bool) -> Any:
    if isinstance(x, Rounded):
        return noisy(_plain(x)) if terms else _plain(x)
    if isinstance(x, list | tuple):
        return type(x)(_mapped(item, terms) for item in x)
    return {k: _mapped(v, terms) for k, v in x.items()} if isinstance(x, dict) else x


def noisy(x: Any) -> Any:
    """With a random relative error."""
    if not _is_float(x):
        return x
    return x * (1 + EPSILON * Rounded.rng.uniform(-1, 1, np.shape(x)))


def rounded(x: Any) -> Any:
    """A result of an operation: with an error, and within float32's range."""
    if not _is_float(x):
        return x
    size = np.abs(x)
    if np.any((size > LARGEST) & (size < np.inf)):
        raise OutOfRange(f"{size[size < np.inf].max() if size.ndim else size:.3g}")
    return np.asarray(noisy(x)).view(Rounded)


def tolerances(
    fn: Callable[[Sequence[Any]], Sequence[Any]], arrays: Sequence[np.ndarray], want: Sequence[Any], runs: int = RUNS
) -> list[float]:
    """How much each result of ``fn`` in float32 may differ from ``want``, the results in float64: absolute numbers. Raises
    ``OutOfRange`` where float32 may overflow though float64 does not."""
    spreads = [0.0] * len(want)
    for run in range(runs):
        Rounded.rng = np.random.default_rng(run)
        made = fn([np.asarray(a, np.float64).view(Rounded) for a in arrays])
        for i, (got, exact) in enumerate(zip(made, want, strict=True)):
            away = np.abs(_plain(np.asarray(got)) - np.asarray(exact))
            spreads[i] = max(spreads[i], away[np.isfinite(away)].max(initial=0.0))
    limits = []
    for x, spread in zip(map(np.asarray, want), spreads, strict=True):
        largest = np.abs(x[np.isfinite(x)]).max(initial=0.0)
        # Of a result without a correct digit, such as the variance of equal numbers, errors may enter squared.
        times = SPREADS if largest > spread else SPREADS**2
        limits.append(EXECUTORS * largest + times * spread + 1e-30)
    return limits
