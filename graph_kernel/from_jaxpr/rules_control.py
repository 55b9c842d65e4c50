"""Rules of calls, which are inlined, and of control flow, which keeps sub-graphs."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.extend import core as jax_core

from graph_kernel.from_jaxpr.lowering import Lowering, Unsupported, rule
from graph_kernel.ir import Value
from symbolic import smax, smin

_CALLS = (
    "jit pjit closed_call core_call call remat remat2 checkpoint remat_opt custom_jvp_call custom_vjp_call "
    "custom_jvp_call_jaxpr custom_vjp_call_jaxpr custom_vmap_call composite compute_on custom_lin eval_jaxpr"
)


@rule(*_CALLS.split())
def call(low: Lowering, eqn: Any, *inputs: Value) -> list[Value]:
    """Inlined: a compiled program has no functions."""
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr", "call"):
        body = eqn.params.get(key)
        if isinstance(body, jax_core.ClosedJaxpr | jax_core.Jaxpr):
            return low.inline(body, (), inputs)
    raise Unsupported("without a jaxpr")


@rule("platform_index")
def platform_index(low: Lowering, eqn: Any) -> Value:
    """The branch of ``lax.platform_dependent`` for the CPU, where the machine lives, or the default."""
    platforms = eqn.params["platforms"]
    chosen = [i for i, p in enumerate(platforms) if p is not None and "cpu" in p]
    default = [i for i, p in enumerate(platforms) if p is None]
    if not chosen + default:
        raise Unsupported("with no branch for cpu and no default")
    return low.constant((chosen + default)[0], eqn.outvars[0].aval.dtype)


@rule("cond")
def cond(low: Lowering, eqn: Any, index: Value, *operands: Value) -> list[Value] | tuple[Value, ...]:
    """Two or more branches; an index that is known picks its branch while compiling."""
    branches = eqn.params["branches"]
    known = low.scalar_dim(index)
    if known is not None:
        chosen = low.scope.simplify(smin(smax(known, 0), len(branches) - 1))
        if isinstance(chosen, int):
            return low.inline(branches[chosen], (), operands)
    graphs = tuple(low.subgraph(b, f"branch{i}", operands) for i, b in enumerate(branches))
    return low.add_multi("cond", (index, *operands), {"branches": graphs})


@rule("while")
def while_(low: Lowering, eqn: Any, *inputs: Value) -> tuple[Value, ...]:
    """Operands: constants of the condition, constants of the body, then what is carried."""
    p = eqn.params
    nc, nb = p["cond_nconsts"], p["body_nconsts"]
    varying: list[Value | None] = [None] * (len(inputs) - nc - nb)
    attrs = {
        "cond_graph": low.subgraph(p["cond_jaxpr"], "cond", [*inputs[:nc], *varying]),
        "body_graph": low.subgraph(p["body_jaxpr"], "body", [*inputs[nc : nc + nb], *varying]),
        "cond_consts": nc,
        "body_consts": nb,
    }
    return low.add_multi("while", inputs, attrs)


@rule("scan")
def scan(low: Lowering, eqn: Any, *inputs: Value) -> tuple[Value, ...]:
    """The length may be symbolic."""
    p = eqn.params
    n_consts = p["num_consts"]
    varying: list[Value | None] = [None] * (len(inputs) - n_consts)
    attrs = {
        "body": low.subgraph(p["jaxpr"], "body", [*inputs[:n_consts], *varying]),
        "num_consts": n_consts,
        "num_carry": p["num_carry"],
        "length": low.dim(p["length"]),
        "reverse": bool(p["reverse"]),
    }
    return low.add_multi("scan", inputs, attrs)


# ---- random numbers: JAX's own algorithm is traced and inlined; only the block cipher is a host op


def _inline_function(low: Lowering, fn: Any, *args: tuple[Value, Any]) -> Value:
    """Traces ``fn`` on arrays of the given (value, JAX shape) and inlines it."""
    specs = [jax.ShapeDtypeStruct(shape, value.dtype) for value, shape in args]
    (result,) = low.inline(jax.make_jaxpr(fn)(*specs), (), [value for value, _ in args])
    return result


def _one_key(eqn: Any, impl: Any) -> None:
    if eqn.invars[0].aval.shape:
        raise Unsupported("of a batch of keys")
    if impl.name != "threefry2x32":
        raise Unsupported(f"by the generator {impl.name}")


@rule("random_wrap", "random_unwrap", "random_clone")
def random_wrap(low: Lowering, eqn: Any, x: Value) -> Value:
    """Keys are carried as their words anyway."""
    return x


@rule("random_seed")
def random_seed(low: Lowering, eqn: Any, seed: Value) -> Value:
    """A key from an integer."""
    impl = eqn.params["impl"]
    _one_key(eqn, impl)
    return _inline_function(low, impl.seed, (seed, ()))


@rule("random_bits")
def random_bits(low: Lowering, eqn: Any, key: Value) -> Value:
    """Uniform bits."""
    impl, p = eqn.invars[0].aval.dtype._impl, eqn.params
    _one_key(eqn, impl)
    return _inline_function(low, lambda k: impl.random_bits(k, p["bit_width"], p["shape"]), (key, impl.key_shape))


@rule("random_split")
def random_split(low: Lowering, eqn: Any, key: Value) -> Value:
    """New keys from one."""
    impl, p = eqn.invars[0].aval.dtype._impl, eqn.params
    _one_key(eqn, impl)
    return _inline_function(low, lambda k: impl.split(k, p["shape"]), (key, impl.key_shape))


@rule("random_fold_in")
def random_fold_in(low: Lowering, eqn: Any, key: Value, data: Value) -> Value:
    """A key mixed with an integer."""
    impl = eqn.invars[0].aval.dtype._impl
    _one_key(eqn, impl)
    return _inline_function(low, impl.fold_in, (key, impl.key_shape), (data, ()))


@rule("threefry2x32")
def threefry2x32(low: Lowering, eqn: Any, *inputs: Value) -> tuple[Value, ...]:
    """The block cipher, on the host."""
    shape = low.dim.shape(eqn.outvars[0].aval.shape)
    return low.add_multi("threefry2x32", [low.fit(x, shape) for x in inputs], {})


@rule("iota_2x32_shape")
def iota_2x32(low: Lowering, eqn: Any) -> list[Value]:
    """Row-major positions as two words; fewer than 2**32 elements, so the high word is 0."""
    shape = low.dim.shape(eqn.params["shape"])
    word = np.dtype(np.uint32)
    total = low.full(0, shape, word)
    for axis, n in enumerate(shape):
        step = low.full(1, shape, word)
        for later in shape[axis + 1 :]:
            step = low.add("mul", step, low.fit(low.dim_value(later, word), shape))
        position = low.add("iota", shape=shape, axis=axis, dtype=word)
        total = low.add("add", total, low.add("mul", position, step)) if n != 1 else total
    return [low.full(0, shape, word), total]
