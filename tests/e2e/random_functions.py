"""Random functions for the fuzzer: a recipe is a list of operations that runs on ``jax.numpy`` (to be compiled) and on NumPy in float64
(to be compared with). Dims are symbolic while a recipe grows; an operation that JAX refuses at these dims is left out."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

import dvm
from tests.e2e.random_control import control

F32 = jnp.float32
STATIC = (1, 2, 3, 4, 8)
Operation = Callable[..., Any]  # (xp, *arrays) -> array


class TooLarge(ValueError):
    """A value of more elements than a fuzzer should wait for."""


@dataclass
class Recipe:
    """Inputs, operations with their operands' numbers, and the numbers of the results."""

    specs: list[jax.ShapeDtypeStruct]
    steps: list[tuple[str, Operation, tuple[int, ...]]] = field(default_factory=list)
    results: list[int] = field(default_factory=list)
    low: int = 1  # least size of the symbolic dims
    largest: int = 0  # elements of the largest value of the last run on NumPy

    def run(self, xp: Any, arrays: Sequence[Any], most: int | None = None) -> list[Any]:
        """Results on ``xp`` arrays. Raises ``TooLarge`` if a value on NumPy has more than ``most`` elements."""
        values = list(arrays)
        self.largest = max((np.size(x) for x in arrays if xp is np), default=0)
        for _, operation, operands in self.steps:
            values.append(operation(xp, *(values[i] for i in operands)))
            if xp is np:
                kind = next(
                    (k for i in operands if (k := type(values[i])) is not np.ndarray and issubclass(k, np.ndarray)),
                    None,
                )
                if (
                    kind is not None and np.asarray(values[-1]).dtype.kind == "f"
                ):  # control flow puts rows into arrays of its own
                    values[-1] = np.asarray(values[-1]).view(kind)
                self.largest = max(self.largest, values[-1].size)
                if most is not None and values[-1].size > most:
                    raise TooLarge(f"{values[-1].size} elements")
        return [values[i] for i in self.results]

    def __call__(self, *arrays: Any) -> list[Any]:
        return self.run(jnp, arrays)

    def __str__(self) -> str:
        n = len(self.specs)
        lines = [f"v{i}: {s.shape}" for i, s in enumerate(self.specs)]
        lines += [
            f"v{n + i} = {name}({', '.join(f'v{k}' for k in ops)})" for i, (name, _, ops) in enumerate(self.steps)
        ]
        return "\n".join([*lines, f"results {self.results}"])


def _unary(rng: random.Random, values: list[Any], pick: Callable[[], int]) -> tuple[str, Operation, tuple[int, ...]]:
    table: list[tuple[str, Operation]] = [
        ("neg", lambda xp, x: -x),
        ("abs", lambda xp, x: xp.abs(x)),
        ("tanh", lambda xp, x: xp.tanh(x)),
        ("sin", lambda xp, x: xp.sin(xp.tanh(x))),
        ("exp_neg", lambda xp, x: xp.exp(-xp.abs(x))),
        ("sqrt", lambda xp, x: xp.sqrt(xp.abs(x) + 1)),
        ("relu", lambda xp, x: xp.maximum(x, 0)),
        ("sigmoid", lambda xp, x: 1 / (1 + xp.exp(-xp.tanh(x)))),
        ("plus_size", lambda xp, x: x + (x.shape[-1] if x.ndim else 1)),
    ]
    name, fn = rng.choice(table)
    return name, fn, (pick(),)


def _binary(rng: random.Random, values: list[Any], pick: Callable[[], int]) -> tuple[str, Operation, tuple[int, ...]]:
    table: list[tuple[str, Operation]] = [
        ("add", lambda xp, x, y: x + y),
        ("sub", lambda xp, x, y: x - y),
        ("mul", lambda xp, x, y: xp.tanh(x) * y),
        ("div", lambda xp, x, y: x / (xp.abs(y) + 1)),
        ("max", lambda xp, x, y: xp.maximum(x, y)),
        ("where", lambda xp, x, y: xp.where(x > y, x, y)),
    ]
    name, fn = rng.choice(table)
    return name, fn, (pick(), pick())


def _reduce(rng: random.Random, values: list[Any], pick: Callable[[], int]) -> tuple[str, Operation, tuple[int, ...]]:
    i = pick()
    rank = len(values[i].shape)
    axes = tuple(sorted(rng.sample(range(rank), rng.randint(1, rank)))) if rank else ()
    keep, kind = rng.random() < 0.5, rng.choice(["sum", "sum", "max", "min", "prod", "var"])
    if kind == "prod":
        return f"prod{axes}{keep}", lambda xp, x: xp.prod(1 + 0.01 * xp.tanh(x), axis=axes, keepdims=keep), (i,)
    if kind == "var":
        return (
            f"var{axes}{keep}",
            lambda xp, x: xp.sum((x - xp.mean(x, axes, keepdims=True)) ** 2, axes, keepdims=keep),
            (i,),
        )
    if kind == "sum":
        return f"sum{axes}{keep}", lambda xp, x: 0.125 * xp.sum(xp.tanh(x), axis=axes, keepdims=keep), (i,)
    return f"{kind}{axes}{keep}", lambda xp, x: getattr(xp, kind)(x, axis=axes, keepdims=keep), (i,)


def _norm(rng: random.Random, values: list[Any], pick: Callable[[], int]) -> tuple[str, Operation, tuple[int, ...]]:
    i = pick()
    axis = rng.randrange(max(len(values[i].shape), 1))

    def softmax(xp: Any, x: Any) -> Any:
        e = xp.exp(x - xp.max(x, axis, keepdims=True))
        return e / xp.sum(e, axis, keepdims=True)

    def layer_norm(xp: Any, x: Any) -> Any:
        centred = x - xp.mean(x, axis, keepdims=True)
        return centred / xp.sqrt(xp.mean(centred * centred, axis, keepdims=True) + 0.1)

    def rms_norm(xp: Any, x: Any) -> Any:
        return x / xp.sqrt(xp.mean(x * x, axis, keepdims=True) + 0.1)

    name, fn = rng.choice([("softmax", softmax), ("layer_norm", layer_norm), ("rms_norm", rms_norm)])
    return f"{name}{axis}", fn, (i,)


def _matmul(rng: random.Random, values: list[Any], pick: Callable[[], int]) -> tuple[str, Operation, tuple[int, ...]]:
    i, j = pick(), pick()
    form = rng.choice(["nn", "nt", "tn", "self", "outer", "dot"])
    if form == "nn":
        return "x@y", lambda xp, x, y: xp.tanh(x) @ xp.tanh(y), (i, j)
    if form == "nt":
        return "x@y.T", lambda xp, x, y: xp.tanh(x) @ xp.swapaxes(xp.tanh(y), -1, -2), (i, j)
    if form == "tn":
        return "x.T@y", lambda xp, x, y: xp.swapaxes(x, -1, -2) @ y * 0.125, (i, j)
    if form == "self":
        return "x@x.T", lambda xp, x: x @ xp.swapaxes(x, -1, -2) * 0.125, (i,)
    if form == "outer":
        return "outer", lambda xp, x, y: xp.einsum("...i,...j->...ij", x, y), (i, j)
    return "dot_last", lambda xp, x, y: _dot_last(xp, xp.tanh(x), y), (i, j)


def _dot_last(xp: Any, x: Any, y: Any) -> Any:
    """As ``jax.numpy`` does it: an operand of size 1 is multiplied with the other one's sum, which over nothing differs if it is NaN."""
    if xp is np and x.shape[-1] != y.shape[-1]:
        return np.sum(x, -1) * np.sum(y, -1)
    return xp.einsum("...i,...i->...", x, y)


def _view(rng: random.Random, values: list[Any], pick: Callable[[], int]) -> tuple[str, Operation, tuple[int, ...]]:
    i = pick()
    shape = values[i].shape
    rank = len(shape)
    axis = rng.randrange(rank) if rank else 0
    form = rng.choice(
        [
            "transpose",
            "merge",
            "split",
            "expand",
            "squeeze",
            "slice",
            "stride",
            "flip",
            "broadcast",
            "flatten",
            "pad",
            "unit",
            "repeat",
            "roll",
            "halves",
            "grow",
        ]
    )
    if form == "transpose":
        perm = tuple(rng.sample(range(rank), rank))
        return f"transpose{perm}", lambda xp, x: xp.transpose(x, perm), (i,)
    if form == "merge":
        k = max(axis - 1, 0)
        return (
            f"merge{k}",
            lambda xp, x: xp.reshape(x, (*x.shape[:k], x.shape[k] * x.shape[k + 1], *x.shape[k + 2 :])),
            (i,),
        )
    if form == "split":
        n = rng.choice([2, 4])
        if not rank or not isinstance(shape[axis], int) or shape[axis] % n:
            n = 1
        return (
            f"split{axis},{n}",
            lambda xp, x: xp.reshape(x, (*x.shape[:axis], x.shape[axis] // n, n, *x.shape[axis + 1 :])),
            (i,),
        )
    if form == "expand":
        return f"expand{axis}", lambda xp, x: xp.expand_dims(x, axis), (i,)
    if form == "squeeze":
        return f"squeeze{axis}", lambda xp, x: xp.squeeze(x, axis), (i,)
    if form == "slice":
        lo, hi = rng.choice([(1, None), (0, -1), (0, 1), (1, 2), (0, 2)])
        return f"slice{axis},{lo}:{hi}", lambda xp, x: x[(slice(None),) * axis + (slice(lo, hi),)], (i,)
    if form == "stride":
        start = rng.choice([0, 1])
        return f"stride{axis},{start}", lambda xp, x: x[(slice(None),) * axis + (slice(start, None, 2),)], (i,)
    if form == "flip":
        return f"flip{axis}", lambda xp, x: xp.flip(x, axis), (i,)
    if form == "broadcast":
        j = pick()
        return "broadcast_like", lambda xp, x, y: xp.broadcast_to(x, y.shape), (i, j)
    if form == "flatten":
        return "flatten", lambda xp, x: xp.reshape(x, (-1,)), (i,)
    if form == "pad":
        low, high = rng.choice([(1, 0), (0, 2), (1, 1)])
        width = [(low, high) if d == axis else (0, 0) for d in range(rank)]
        value = rng.choice([0.0, 0.5])
        return f"pad{axis},{low},{high}", lambda xp, x: xp.pad(x, width, constant_values=value), (i,)
    if form == "repeat":
        if rng.random() < 0.5:
            return f"repeat{axis}", lambda xp, x: xp.repeat(x, 2, axis), (i,)
        return f"tile{axis}", lambda xp, x: xp.tile(x, [2 if d == axis else 1 for d in range(rank)]), (i,)
    if form == "roll":
        return f"roll{axis}", lambda xp, x: xp.concatenate([x[1:], x[:1]], 0), (i,)
    if form == "halves":
        k = rng.randrange(2)
        return f"half{axis},{k}", lambda xp, x: xp.split(x, 2, axis)[k], (i,)
    if form == "grow":
        return "grow", lambda xp, x: xp.broadcast_to(x, (2, *x.shape)), (i,)
    return f"unit{axis}", lambda xp, x: xp.mean(x, axis, keepdims=True) if x.ndim else x, (i,)


def _join(rng: random.Random, values: list[Any], pick: Callable[[], int]) -> tuple[str, Operation, tuple[int, ...]]:
    i, j = pick(), pick()
    axis = rng.randrange(max(len(values[i].shape), 1))
    if rng.random() < 0.3:
        return f"stack{axis}", lambda xp, x, y: xp.stack([x, y], axis), (i, j)
    if rng.random() < 0.2:
        return f"concat3,{axis}", lambda xp, x, y: xp.concatenate([x, y, x], axis), (i, j)
    return f"concat{axis}", lambda xp, x, y: xp.concatenate([x, y], axis), (i, j)


def _index(rng: random.Random, values: list[Any], pick: Callable[[], int]) -> tuple[str, Operation, tuple[int, ...]]:
    i = pick()
    shape = values[i].shape
    rank = len(shape)
    if not rank:
        raise ValueError("nothing to index")
    axis = rng.randrange(rank)
    form = rng.choice(["mask", "take", "position", "cumsum", "gather"])
    if form == "mask":
        return (
            "causal",
            lambda xp, x: xp.where(xp.arange(x.shape[-2])[:, None] >= xp.arange(x.shape[-1]), x, -1.0),
            (i,),
        )
    if form == "take":
        rows = np.array(rng.sample([0, 1, 0, 1], 3)) % (min(_least(shape[axis]), 2))
        return f"take{axis}", lambda xp, x: xp.take(x, rows, axis=axis), (i,)
    if form == "position":
        return "position", lambda xp, x: x + xp.arange(x.shape[-1]) * 0.5, (i,)
    if form == "gather":
        j = pick()

        n = min(_least(shape[0]), 2)

        def gather(xp: Any, x: Any, y: Any) -> Any:
            return xp.take(x, xp.arange(y.shape[-1]) % n, axis=0)

        return "gather", gather, (i, j)
    return f"cumsum{axis}", lambda xp, x: 0.25 * xp.cumsum(xp.tanh(x), axis), (i,)


def _least(n: Any) -> int:
    """A size if it is a number, else 1: how many indices there certainly are."""
    return max(n, 1) if isinstance(n, int) else 1


FAMILIES: tuple[tuple[Callable[..., Any], int], ...] = (
    (_unary, 3),
    (_binary, 5),
    (_reduce, 3),
    (_norm, 1),
    (_matmul, 2),
    (_view, 5),
    (_join, 2),
    (_index, 1),
    (control, 1),
)


def random_recipe(seed: int, nodes: int) -> Recipe:
    """A recipe of about ``nodes`` operations, the same for the same seed."""
    rng = random.Random(seed)
    low = rng.choice([0, 1, 1])
    dims: list[Any] = [*"abcabc", *rng.sample(STATIC, 3)]
    shapes = [[rng.choice(dims) for _ in range(rng.choice([1, 2, 2, 2, 3, 3, 4]))] for _ in range(rng.randint(1, 4))]
    letters = sorted({d for shape in shapes for d in shape if isinstance(d, str)})
    made: dict[str, Any] = {}
    if letters:
        made = dict(
            zip(
                letters,
                dvm.spec(", ".join(letters), F32, **{k: dvm.Dim(k, min=low, max=64) for k in letters}).shape,
                strict=True,
            )
        )
    specs = [jax.ShapeDtypeStruct(tuple(made.get(d, d) for d in shape), F32) for shape in shapes]
    if rng.random() < 0.3:
        specs.append(jax.ShapeDtypeStruct((), F32))
        shapes.append([])
    recipe = Recipe(specs, low=low)
    traced = made  # sizes as JAX sees them while tracing, so that what it refuses at size 0 is left out here
    if letters and low == 0:
        traced = dict(zip(letters, export.symbolic_shape(", ".join(f"{k}_ - 1" for k in letters)), strict=True))
    values: list[Any] = []

    def pick() -> int:
        recent = rng.random() < 0.6
        return rng.randrange(max(0, len(values) - 4) if recent else 0, len(values))

    def grow(*inputs: Any) -> tuple[()]:
        """Tries operations within one trace, which costs less than a trace for each."""
        values.extend(inputs)
        tries = 0
        while len(recipe.steps) < nodes and tries < nodes * 12:
            tries += 1
            family = rng.choices([f for f, _ in FAMILIES], [w for _, w in FAMILIES])[0]
            try:
                name, fn, operands = family(rng, values, pick)
                out = fn(jnp, *(values[i] for i in operands))
            except Exception:
                continue
            if len(out.shape) > 5 or out.dtype != F32:
                continue
            recipe.steps.append((name, fn, operands))
            values.append(out)
        return ()

    jax.make_jaxpr(grow)(*(jax.ShapeDtypeStruct(tuple(traced.get(d, d) for d in shape), F32) for shape in shapes))
    used = {i for _, _, ops in recipe.steps for i in ops}
    leaves = [i for i in range(len(specs), len(values)) if i not in used]
    recipe.results = leaves[-4:] + [rng.randrange(len(values)) for _ in range(rng.choice([0, 0, 1, 2]))]
    return recipe


def sizes_of(recipe: Recipe, values: dict[str, int]) -> list[tuple[int, ...]]:
    """Input shapes at concrete sizes of a, b and c."""
    return [tuple(d if isinstance(d, int) else values[_letter(d)] for d in s.shape) for s in recipe.specs]


def _letter(dim: Any) -> str:
    return next(k for k in "abc" if k in str(dim))


__all__ = ["Recipe", "random_recipe", "sizes_of"]
