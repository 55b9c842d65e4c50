"""Random layers for the fuzzer: programs of the parts that models are made of (attention in its variants, gates, norms before products,
residual chains, several products of one operand), so that the rules of fusion meet in one program. A recipe as in ``random_functions``."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

import dvm
from tests.e2e.random_functions import Recipe

F32 = jnp.float32
WIDTHS = (1, 2, 4, 8)


@dataclass
class LayerRecipe(Recipe):
    """A recipe with the tolerance that its products in 16-bit types need."""

    tolerance: float = 5e-5


@dataclass
class Layers:
    """Grows a recipe: values are rows ``(s, d)`` or ``(b, s, d)``, or ``(t, d)`` for keys, with static widths ``d``."""

    rng: random.Random
    recipe: LayerRecipe
    shapes: list[tuple[Any, ...]] = field(default_factory=list)

    def add(self, name: str, fn: Callable[..., Any], *operands: int) -> int:
        """A step; raises what JAX raises."""
        out = jax.eval_shape(lambda *xs: fn(jnp, *xs), *(jax.ShapeDtypeStruct(self.shapes[i], F32) for i in operands))
        assert out.dtype == F32, (name, out.dtype)
        self.recipe.steps.append((name, fn, operands))
        self.shapes.append(tuple(out.shape))
        return len(self.shapes) - 1

    def constant(self, shape: tuple[int, ...]) -> Any:
        return np.random.default_rng(self.rng.randrange(1 << 30)).standard_normal(shape).astype(np.float32)

    def pick(self, rank: int | None = None, last: bool = True) -> int:
        """A value, the recent ones preferred."""
        known = [
            i
            for i, s in enumerate(self.shapes)
            if len(s) >= 2 and (rank is None or len(s) == rank) and (not last or isinstance(s[-1], int))
        ]
        return self.rng.choice(known[-4:] if self.rng.random() < 0.6 else known)

    def like(self, i: int) -> int:
        """Another value of the same shape, or the same one."""
        same = [k for k, s in enumerate(self.shapes) if s == self.shapes[i]]
        return self.rng.choice(same)


def weight(layers: Layers, i: int, out: int | None = None) -> tuple[Any, int]:
    d = layers.shapes[i][-1]
    e = layers.rng.choice(WIDTHS) if out is None else out
    return layers.constant((d, e)), e


def product(layers: Layers) -> None:
    i = layers.pick()
    w, _ = weight(layers, i)
    epilogue = layers.rng.choice(["", "relu", "tanh", "bias", "int", "sum", "scale", "softmax"])
    bias = layers.constant((w.shape[1],))

    def fn(xp: Any, x: Any) -> Any:
        y = xp.matmul(x, w.astype(x.dtype))
        if epilogue == "relu":
            return xp.maximum(y, 0)
        if epilogue == "tanh":
            return xp.tanh(y)
        if epilogue == "bias":
            return y + bias
        if epilogue == "int":
            return (xp.floor(1e3 * xp.tanh(y)).astype(xp.int32).astype(x.dtype)) * 1e-6
        if epilogue == "sum":
            return y + xp.sum(y, -1, keepdims=True)
        if epilogue == "scale":
            return y * xp.tanh(xp.mean(xp.tanh(x), -1, keepdims=True))
        if epilogue == "softmax":
            return softmax(xp, y)
        return y

    layers.add(f"product {epilogue}", fn, i)


def softmax(xp: Any, x: Any, axis: int = -1, spelling: int = 0) -> Any:
    m = xp.max(x, axis, keepdims=True, initial=-xp.inf)
    e = xp.exp(x - m)
    if spelling == 1:
        return e * (1 / xp.sum(e, axis, keepdims=True))
    return e / xp.sum(e, axis, keepdims=True)


def sibling_products(layers: Layers) -> None:
    i = layers.pick()
    n, e = layers.rng.choice([2, 2, 3]), layers.rng.choice(WIDTHS)
    ends: list[Callable[..., Any]] = [
        lambda xp, y: y,
        lambda xp, y: xp.maximum(y, 0.5),
        lambda xp, y: xp.tanh(y),
        lambda xp, y: y * 0.5 + 1,
        lambda xp, y: y / (1 + xp.abs(y)),
    ]
    made = []
    for _ in range(n):
        w, _ = weight(layers, i, e if layers.rng.random() < 0.8 else None)
        end = layers.rng.choice(ends)
        pre = layers.rng.choice([None, None, None, lambda xp, x: x * 0.5, lambda xp, x: xp.tanh(x)])

        def fn(xp: Any, x: Any, w: Any = w, end: Any = end, pre: Any = pre) -> Any:
            return end(xp, xp.matmul(x if pre is None else pre(xp, x), w))

        made.append(layers.add("sibling", fn, i))
    a, b = made[0], made[1]
    if layers.shapes[a] == layers.shapes[b]:
        joins: list[tuple[str, Callable[..., Any]]] = [
            ("gate", lambda xp, x, y: x / (1 + xp.exp(-xp.tanh(x))) * y),
            ("max", lambda xp, x, y: xp.maximum(x, y)),
            ("where", lambda xp, x, y: xp.where(x > y, x - y, 0.5 * (y - x))),
            ("sub", lambda xp, x, y: x - y),
            ("concat", lambda xp, x, y: xp.concatenate([x, y], -1)),
            ("concat0", lambda xp, x, y: xp.concatenate([x, y], 0)),
            ("rows", lambda xp, x, y: x + xp.mean(y, -1, keepdims=True)),
        ]
        layers.add(*layers.rng.choice(joins), a, b)


def norm(layers: Layers) -> int:
    i = layers.pick()
    kind, axis = layers.rng.choice(["rms", "layer", "soft", "l1"]), layers.rng.choice([-1, -1, -1, -2])
    scale = layers.constant((layers.shapes[i][-1],))

    def fn(xp: Any, x: Any) -> Any:
        if kind == "rms":
            return x / xp.sqrt(xp.mean(x * x, axis, keepdims=True) + 0.1) * scale
        if kind == "layer":
            c = x - xp.mean(x, axis, keepdims=True)
            return c / xp.sqrt(xp.mean(c * c, axis, keepdims=True) + 0.1) * scale
        if kind == "l1":
            return x / (1 + xp.sum(xp.abs(x), axis, keepdims=True))
        return softmax(xp, x, axis)

    return layers.add(f"norm {kind} {axis}", fn, i)


def norm_product(layers: Layers) -> None:
    i = norm(layers)
    w, _ = weight(layers, i)
    layers.add("product of norm", lambda xp, x: xp.matmul(x, w), i)
    if layers.rng.random() < 0.4:
        layers.add("use of norm", lambda xp, x: xp.tanh(x) + 1, i)
    if layers.rng.random() < 0.3:
        layers.add("sum of norm", lambda xp, x: xp.sum(x, -1, keepdims=True) * 0.5, i)
    if layers.rng.random() < 0.3:
        w2, _ = weight(layers, i)
        layers.add("second product of norm", lambda xp, x: xp.maximum(xp.matmul(x, w2), 0), i)


def residual(layers: Layers) -> None:
    i = layers.pick()
    d = layers.shapes[i][-1]
    w1, e = weight(layers, i)
    w2 = layers.constant((e, d))
    act = layers.rng.choice(["relu", "silu"])

    def fn(xp: Any, x: Any) -> Any:
        h = xp.matmul(xp.tanh(x), w1)
        h = xp.maximum(h, 0) if act == "relu" else h / (1 + xp.exp(-h))
        return x + xp.matmul(h, w2) * 0.25

    layers.add("residual", fn, i)
    if layers.rng.random() < 0.3:
        layers.add("residual again", fn, len(layers.shapes) - 1)


def attention(layers: Layers) -> None:
    rng = layers.rng
    q = layers.pick()
    rank, d = len(layers.shapes[q]), layers.shapes[q][-1]
    keys = [
        k
        for k, s in enumerate(layers.shapes)
        if len(s) == rank and s[-1] == d and (rank == 2 or s[0] == layers.shapes[q][0])
    ]
    k = rng.choice(keys)
    values = [
        v
        for v, s in enumerate(layers.shapes)
        if len(s) == rank and s[:-1] == layers.shapes[k][:-1] and isinstance(s[-1], int)
    ]
    v = rng.choice(values)
    mask = rng.choice(["", "", "causal", "window", "alibi", "lowest", "shift"])
    cap, sink, axis = rng.random() < 0.2, rng.random() < 0.15, rng.choice([-1] * 8 + [-2])
    spelling, tail = rng.choice([0, 0, 0, 1]), rng.choice(["", "", "", "q", "tanh", "scale", "dot", "late"])
    wide = layers.constant((layers.shapes[v][-1], rng.choice(WIDTHS)))

    def scores(xp: Any, q: Any, k: Any) -> Any:
        s = xp.matmul(q, xp.swapaxes(k, -1, -2)) * 0.5
        if cap:
            s = 3 * xp.tanh(s / 3)
        i, j = xp.arange(s.shape[-2])[:, None], xp.arange(s.shape[-1])
        if mask == "causal":
            s = xp.where(j <= i, s, -1e30)
        elif mask == "window":
            s = xp.where((j <= i) & (i - j < 3), s, -xp.inf)
        elif mask == "alibi":
            s = s - 0.25 * xp.abs(i - j)
        elif mask == "lowest":
            s = xp.where(j <= i, s, np.finfo(np.float32).min)
        elif mask == "shift":
            s = xp.where(j <= i + s.shape[-1] - s.shape[-2], s, -1e9)
        return s

    def weights(xp: Any, s: Any) -> Any:
        if sink:
            m = xp.maximum(xp.max(s, axis, keepdims=True, initial=-xp.inf), 0.5)
            e = xp.exp(s - m)
            return e / (xp.sum(e, axis, keepdims=True) + xp.exp(0.5 - m))
        return softmax(xp, s, axis, spelling)

    form = rng.choice(["one", "one", "one", "scores out", "weights out", "two values", "shared keys"])
    if form == "one":

        def whole(xp: Any, q: Any, k: Any, v: Any) -> Any:
            if tail == "late":
                s = scores(xp, q, k)
                e = xp.exp(s - xp.max(s, -1, keepdims=True, initial=-xp.inf))
                return xp.matmul(e, v) / xp.sum(e, -1, keepdims=True)
            o = xp.matmul(weights(xp, scores(xp, q, k)), v)
            if tail == "q":
                return o + xp.mean(q, -1, keepdims=True)
            if tail == "tanh":
                return xp.tanh(o)
            if tail == "dot":
                return xp.matmul(o, wide)
            return o * 0.5 if tail == "scale" else o

        layers.add(f"attention {mask} cap {cap} sink {sink} {axis} {spelling} {tail}", whole, q, k, v)
        return
    s = layers.add(f"scores {mask}", scores, q, k)
    w = layers.add(f"weights {axis} sink {sink}", lambda xp, s: weights(xp, s), s)
    layers.add("attended", lambda xp, w, v: xp.matmul(w, v), w, v)
    if form == "scores out":
        layers.recipe.results.append(s)
    elif form == "weights out":
        layers.recipe.results.append(w)
    elif form == "two values":
        layers.add("attended twice", lambda xp, w, v: xp.matmul(w, xp.tanh(v)), w, rng.choice(values))
    else:
        q2 = layers.like(q)
        layers.add(
            "second attention", lambda xp, q, k, v: xp.matmul(softmax(xp, scores(xp, xp.sin(q), k)), v), q2, k, v
        )


def heads(layers: Layers) -> None:
    """Attention of several heads, keys and values shared by groups of them."""
    rng = layers.rng
    i = layers.pick(2)
    n, groups, d = rng.choice([(2, 1), (2, 2), (4, 2)]) + (rng.choice([2, 4]),)
    wq, wk, wv = (weight(layers, i, e * d)[0] for e in (n, groups, groups))
    wo = layers.constant((n * d, layers.shapes[i][-1]))
    causal, form, residual = rng.random() < 0.5, rng.choice(["einsum", "repeat"]), rng.random() < 0.5

    def fn(xp: Any, x: Any) -> Any:
        s = x.shape[0]
        h = x / xp.sqrt(xp.mean(x * x, -1, keepdims=True) + 0.1)
        q = xp.reshape(xp.matmul(h, wq), (s, n, d))
        k, v = (xp.reshape(xp.matmul(h, w), (s, groups, d)) for w in (wk, wv))
        if form == "repeat":
            k, v = xp.repeat(k, n // groups, 1), xp.repeat(v, n // groups, 1)
            a = xp.einsum("shd,thd->hst", q, k)
        else:
            q = xp.reshape(q, (s, groups, n // groups, d))
            a = xp.einsum("sgnd,tgd->gnst", q, k)
        if causal:
            a = xp.where(xp.arange(s)[:, None] >= xp.arange(s), a, -1e30)
        w = softmax(xp, a * 0.5)
        o = xp.einsum("hst,thd->shd", w, v) if form == "repeat" else xp.einsum("gnst,tgd->sgnd", w, v)
        o = xp.matmul(xp.reshape(o, (s, n * d)), wo)
        return x + o if residual else o

    layers.add(f"heads {n},{groups},{d} {form} causal {causal}", fn, i)


def small(layers: Layers) -> None:
    """Elementwise, reductions, views."""
    rng = layers.rng
    i = layers.pick(last=False)
    table: list[tuple[str, Callable[..., Any]]] = [
        ("tanh", lambda xp, x: xp.tanh(x)),
        ("half", lambda xp, x: 0.5 * x + 1),
        ("max rows", lambda xp, x: x - xp.max(x, -1, keepdims=True))
        if isinstance(layers.shapes[i][-1], int)
        else ("neg", lambda xp, x: -x),
        ("swap twice", lambda xp, x: xp.swapaxes(xp.tanh(xp.swapaxes(x, -1, -2)), -1, -2)),
        ("swap", lambda xp, x: xp.swapaxes(x, -1, -2)),
        ("flip", lambda xp, x: xp.flip(x, -2)),
        ("cumsum", lambda xp, x: 0.25 * xp.cumsum(xp.tanh(x), -2)),
        ("concat", lambda xp, x: xp.concatenate([x, xp.tanh(x)], -1)),
        ("flat", lambda xp, x: xp.reshape(x, (-1, x.shape[-1]))),
        ("column", lambda xp, x: xp.sum(x, -2, keepdims=True) * 0.1 + x),
        ("gram", lambda xp, x: xp.matmul(xp.swapaxes(xp.tanh(x), -1, -2), xp.tanh(x)) * 0.1),
        ("self", lambda xp, x: xp.matmul(xp.tanh(x), xp.swapaxes(xp.tanh(x), -1, -2)) * 0.1),
        (
            "project",
            lambda xp, x: xp.tanh(
                xp.matmul(xp.matmul(xp.swapaxes(x, -1, -2), xp.tanh(x)), xp.swapaxes(x, -1, -2)) * 0.1
            ),
        ),
    ]
    if rng.random() < 0.4:
        layers.add("add", lambda xp, x, y: x + y, i, layers.like(i))
    else:
        layers.add(*rng.choice(table), i)


def reduced_product(layers: Layers) -> None:
    i = layers.pick()
    w, _ = weight(layers, i)
    kind, axis = layers.rng.choice(["sum", "max", "mean", "square"]), layers.rng.choice([-1, -2])

    def fn(xp: Any, x: Any) -> Any:
        y = xp.matmul(xp.tanh(x), w)
        if kind == "square":
            return x + xp.sum(y * y, -1, keepdims=True)
        if kind == "max":
            return xp.max(y, -1, keepdims=True) + 0 * x
        return getattr(xp, kind)(y, axis, keepdims=True) * 0.25 + xp.tanh(x[..., :1])

    layers.add(f"reduced product {kind} {axis}", fn, i)


def rounded(layers: Layers) -> None:
    """A product in a 16-bit type."""
    i = layers.pick()
    w, _ = weight(layers, i)
    kind = layers.rng.choice([ml_dtypes.bfloat16, np.float16])
    layers.recipe.tolerance = 3e-2

    def fn(xp: Any, x: Any) -> Any:
        if xp is np:
            return xp.matmul(np.tanh(x), w)
        return xp.matmul(xp.tanh(x).astype(kind), w.astype(kind)).astype(F32)

    layers.add(f"product in {np.dtype(kind)}", fn, i)


PARTS: tuple[tuple[Callable[[Layers], Any], int], ...] = (
    (product, 3),
    (sibling_products, 3),
    (norm, 2),
    (norm_product, 3),
    (residual, 2),
    (attention, 5),
    (heads, 1),
    (small, 5),
    (reduced_product, 2),
    (rounded, 1),
)


def random_layers(seed: int, parts: int) -> LayerRecipe:
    """A recipe of about ``parts`` parts, the same for the same seed."""
    rng = random.Random(seed)
    low = rng.choice([0, 1, 1, 1])
    d = rng.choice(WIDTHS[1:])
    choices = [("s", d), ("t", d), ("s", d), ("b", "s", d), ("b", "t", d), ("s", d), (1, "s", d), ("b", 1, d)]
    named: list[tuple[Any, ...]] = [("s", d), *rng.sample(choices, rng.randint(1, 3))]
    letters = sorted({n for shape in named for n in shape if isinstance(n, str)})
    made = dvm.spec(", ".join(letters), F32, **{k: dvm.Dim(k, min=low, max=160) for k in letters}).shape
    dims = dict(zip(letters, made, strict=True))
    shapes = [tuple(dims.get(n, n) for n in shape) for shape in named]
    recipe = LayerRecipe([jax.ShapeDtypeStruct(x, F32) for x in shapes], low=low)
    layers = Layers(rng, recipe, [tuple(x) for x in shapes])
    families = [f for f, n in PARTS for _ in range(n)]
    tries = 0
    while len(recipe.steps) < parts and tries < 8 * parts:
        tries += 1
        kept = len(recipe.steps), len(layers.shapes), len(recipe.results)
        try:
            rng.choice(families)(layers)
        except Exception:
            del recipe.steps[kept[0] :], layers.shapes[kept[1] :], recipe.results[kept[2] :]
    used = {i for _, _, operands in recipe.steps for i in operands}
    n = len(recipe.specs)
    leaves = [i for i in range(n, len(layers.shapes)) if i not in used]
    extra = [rng.randrange(len(layers.shapes)) for _ in range(rng.choice([0, 0, 1, 2]))]
    recipe.results = [*leaves[-4:], *recipe.results[:2], *extra]
    return recipe


def _letter(dim: Any) -> str:
    return next(k for k in "stb" if k in str(dim))


def layer_sizes(recipe: Recipe, sizes: dict[str, int]) -> list[tuple[int, ...]]:
    """Input shapes at sizes of s, t and b."""
    return [tuple(d if isinstance(d, int) else sizes[_letter(d)] for d in x.shape) for x in recipe.specs]
