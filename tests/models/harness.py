"""What the model tests share: shapes, specs, inputs and reference results for the block of any configuration."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import dvm
from dvm import models
from tests.models.pairwise import pairwise

BATCHES, SEQUENCES, PASTS = (1, 2, 3), (1, 2, 7, 16, 33, 128, 257), (0, 1, 5, 64)
ROWS = (0, 1, 2, 3, 7, 16, 33, 128, 257)  # batch sizes of MMoE, whose batch is its only dimension

DTYPES = (jnp.float32, jnp.bfloat16)

FLOAT32_TOLERANCE = 2e-5  # of a whole block: max|a - b| / max|b|
ROUNDING = {jnp.bfloat16: 2.0**-9, jnp.float16: 2.0**-12}  # relative error of rounding one value

Dims = dict[str, int]


def factors(config: models.Config) -> dict[str, tuple[int, ...]]:
    """The block's symbolic dimensions and the sizes to test."""
    if isinstance(config, models.DecoderConfig):
        return {"b": BATCHES, "s": SEQUENCES, "p": PASTS}
    if isinstance(config, models.BertConfig):
        return {"b": BATCHES, "s": SEQUENCES}
    return {"b": ROWS}


def shapes(config: models.Config, every: bool = False, dtype: Any = None) -> list[Dims]:
    """Sizes to launch at: all combinations, or so many that every value and every pair of values occurs. With a ``dtype`` of
    ``DTYPES`` it is one of the paired factors, and the rows that fall to it are returned."""
    table = factors(config)
    if every or dtype is None:
        rows = product(*table.values()) if every else pairwise(list(table.values()))
        return [dict(zip(table, row, strict=True)) for row in rows]
    rows = pairwise([*table.values(), range(len(DTYPES))])
    return [dict(zip(table, row[:-1], strict=True)) for row in rows if row[-1] == DTYPES.index(dtype)]


def specs(config: models.Config, dtype: Any) -> list[jax.ShapeDtypeStruct]:
    """The block's inputs after the parameters, with symbolic dimensions."""
    dims = {name: dvm.Dim(name, min=min(sizes), max=max(sizes)) for name, sizes in factors(config).items()}

    def spec(shape: str, dtype: Any) -> jax.ShapeDtypeStruct:
        return dvm.spec(shape, dtype, **{name: dim for name, dim in dims.items() if name in shape.split(", ")})

    if isinstance(config, models.MMoEConfig):
        return [spec(f"b, {config.num_features}", dtype)]
    x = spec(f"b, s, {config.hidden_size}", dtype)
    if isinstance(config, models.BertConfig):
        return [x, spec("b, s", jnp.int32)]
    cache = f"b, {config.num_key_value_heads}, p, {config.head_dim}"
    return [x, spec(cache, dtype), spec(cache, dtype)]


def inputs(config: models.Config, dims: Dims, dtype: Any, seed: int = 1) -> list[np.ndarray]:
    """Random inputs after the parameters. The same seed gives the same values, rounded, in any dtype."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, np.float32).astype(dtype)

    if isinstance(config, models.MMoEConfig):
        return [normal(dims["b"], config.num_features)]
    x = normal(dims["b"], dims["s"], config.hidden_size)
    if isinstance(config, models.BertConfig):
        lengths = rng.integers(1, dims["s"] + 1, (dims["b"], 1))
        return [x, (np.arange(dims["s"]) < lengths).astype(np.int32)]
    cache = (dims["b"], config.num_key_value_heads, dims["p"], config.head_dim)
    return [x, normal(*cache), normal(*cache)]


@lru_cache(maxsize=2)
def parameters(config: models.Config, dtype: Any) -> models.Params:
    """The block's parameters, rounded to ``dtype``."""
    return models.init_params(config, seed=0, dtype=dtype)


def upcast(tree: Any) -> Any:
    """Floating-point leaves as float32."""
    return jax.tree.map(lambda a: a.astype(jnp.float32) if jnp.issubdtype(a.dtype, jnp.floating) else a, tree)


def run_jit(config: models.Config, params: models.Params, args: list[np.ndarray]) -> list[np.ndarray]:
    """What ``jax.jit`` gives, as float32 arrays."""
    return flat(jit(models.block(config))(params, *args))


def jit(fn: Any) -> Any:
    """``jax.jit`` whose machine code is not optimised: one compile a shape is most of what these tests cost."""
    return jax.jit(fn, compiler_options={"xla_backend_optimization_level": 0})


@lru_cache(maxsize=512)
def _reference(config: models.Config, dims: tuple[tuple[str, int], ...], rounded: Any) -> list[np.ndarray]:
    params, args = parameters(config, rounded), inputs(config, dict(dims), rounded)
    return run_jit(config, upcast(params), upcast(args))


def reference(config: models.Config, dims: Dims, rounded: Any = jnp.bfloat16) -> list[np.ndarray]:
    """``jax.jit`` in float32 on parameters and inputs that the dtype ``rounded`` holds exactly."""
    return _reference(config, tuple(dims.items()), rounded)


def flat(tree: Any) -> list[np.ndarray]:
    """The leaves as float32 NumPy arrays."""
    return [np.asarray(leaf).astype(np.float32) for leaf in jax.tree.leaves(tree)]


def error(got: np.ndarray, want: np.ndarray) -> float:
    """max|got - want| / max|want|; infinite for different shapes and NaNs."""
    if got.shape != want.shape or not np.isfinite(got).all():
        return float("inf")
    if want.size == 0:
        return 0.0
    return float(np.abs(got - want).max() / max(np.abs(want).max(), np.finfo(np.float32).tiny))
