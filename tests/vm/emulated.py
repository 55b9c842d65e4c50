"""Programs for the tests of emulated time: compiled, never run."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

import dvm
from dvm import pipeline
from dvm.program import CompiledProgram
from vm import timing
from vm.timing import ProgramTime

EPSILON = 1e-5


def compiled(fn: Callable[..., Any], *specs: Any, **options: Any) -> CompiledProgram:
    """Without making the machine ready: nothing here needs XLA."""
    return pipeline.from_function(fn, specs, {}).compile(start=False, options=options)


def time_of(prog: CompiledProgram, exact: bool = False, **dims: int) -> ProgramTime:
    """Emulated time at these sizes."""
    return timing.emulate(prog.program, prog.bind(dims), exact=exact)


def layer_norm(x: jax.Array) -> jax.Array:
    """Over the last axis, without scale and shift."""
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + EPSILON)


def chain(x: jax.Array, y: jax.Array) -> jax.Array:
    """Ten elementwise operations."""
    return jnp.tanh(jnp.exp(-jnp.abs(x * y + x)) * y - x) * 0.5 + jnp.maximum(x, y)


@cache
def program(name: str, fused: bool = True) -> CompiledProgram:
    """One of the test programs, by name."""
    n, b, m = dvm.Dim("n", min=0, max=1 << 31), dvm.Dim("b", max=1 << 20), dvm.Dim("m", max=1 << 14)
    if name == "add":
        return compiled(jnp.add, *[dvm.spec("n", jnp.float32, n=n)] * 2, fusion=fused)
    if name == "chain":
        return compiled(chain, *[dvm.spec("n", jnp.float32, n=n)] * 2, fusion=fused)
    if name == "layer_norm":
        return compiled(layer_norm, dvm.spec("b, 1024", jnp.float32, b=b), fusion=fused)
    if name == "softmax":
        return compiled(lambda x: jax.nn.softmax(x), dvm.spec("b, 1024", jnp.float32, b=b), fusion=fused)
    wide = {"matmul": (jnp.float16, "4096"), "matmul32": (jnp.float32, "1024"), "dynamic": (jnp.float16, "k")}
    dtype, inner = wide[name]
    dims = {"k": dvm.Dim("k", max=1 << 14)} if inner == "k" else {}
    return compiled(jnp.dot, dvm.spec(f"m, {inner}", dtype, m=m, **dims), dvm.spec(f"{inner}, 4096", dtype, **dims))
