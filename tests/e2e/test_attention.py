"""Attention is one kernel that passes over the keys once: masks of all kinds, grouped heads, caches, 16-bit types, and what falls back.

Most cases run on the tests' tile machine, with the chip's tiles and with tiles of 3 (so that running maxima change between steps), against
``jax.jit`` of the function as it is written.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.e2e.harness import (
    BFLOAT16,
    HALF_TOLERANCE,
    Case,
    Compiled,
    check,
    program_of,
    random,
    simulate,
    spec,
    verify,
)
from tests.e2e.test_layers import attention as grouped
from vm import isa, widening
from vm.decode import Kernel, Loop, decode, operations
from vm.geometry import loops_of
from vm.program import Program

S, T, ST = {"s": (1, 300)}, {"t": (0, 300)}, {"s": (1, 300), "t": (0, 300)}
LOWEST = np.finfo(np.float32).min


def scores(q: Any, k: Any) -> Any:
    return q @ jnp.swapaxes(k, -1, -2)


def softmax_by_hand(x: Any) -> Any:
    e = jnp.exp(x - jnp.max(x, -1, keepdims=True))
    return e / jnp.sum(e, -1, keepdims=True)


def causal(q: Any, k: Any, v: Any) -> Any:
    seen = jnp.arange(k.shape[0]) <= jnp.arange(q.shape[0])[:, None]
    return jax.nn.softmax(jnp.where(seen, scores(q, k) / 4, -jnp.inf), -1) @ v


def window(q: Any, k: Any, v: Any) -> Any:
    i, j = jnp.arange(q.shape[0])[:, None], jnp.arange(k.shape[0])
    return jax.nn.softmax(jnp.where((j <= i) & (i - j < 5), scores(q, k) / 4, -1e30), -1) @ v


def boolean(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return jax.nn.softmax(jnp.where(mask, scores(q, k), -jnp.inf), -1) @ v


def additive(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return jax.nn.softmax(scores(q, k) * 0.25 + mask, -1) @ v


def scaled_query(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.softmax(scores(q * 0.25, k), -1) @ v


def mixed(q: Any, k: Any, v: Any) -> Any:
    s = jnp.einsum("qd,kd->qk", q, k, preferred_element_type=jnp.float32) * 0.25
    return jax.nn.softmax(s, -1).astype(q.dtype) @ v


def swapped(q: Any, k: Any, v: Any) -> Any:
    """Weights as the second operand."""
    return jnp.einsum("kd,qk->dq", v, jax.nn.softmax(scores(q, k), -1))


def normalised_last(q: Any, k: Any, v: Any) -> Any:
    """Fits no pattern: the product is of what is not yet normalised."""
    s = scores(q, k) / 4
    e = jnp.exp(s - jnp.max(s, -1, keepdims=True, initial=-1e30))
    return (e @ v) / jnp.sum(e, -1, keepdims=True)


def weights_too(q: Any, k: Any, v: Any) -> Any:
    w = jax.nn.softmax(scores(q, k) / 4, -1)
    return w @ v, w


QKV = [spec("s, 16", **S), spec("t, 16", **T), spec("t, 16", **T)]
SQUARE = [spec("s, 16", **S)] * 3
MASK = spec("s, t", **ST)


def launches(*extra: Any) -> list[tuple[Any, ...]]:
    sizes = ((7, 13), (1, 1), (5, 0), (1, 40), (17, 129))
    return [((s, 16), (t, 16), (t, 16), *[(s, t)] * len(extra)) for s, t in sizes]


SQUARES = [((s, 16),) * 3 for s in (13, 1, 2, 40, 131)]
CASES = [
    Case("causal", causal, SQUARE, SQUARES, tolerance=1e-5, kernels=1),
    Case("window", window, SQUARE, SQUARES, tolerance=1e-5, kernels=1),
    Case("additive", additive, [*QKV, MASK], launches(1), tolerance=1e-5, kernels=1),
    Case("scaled query", scaled_query, QKV, launches(), tolerance=1e-5),
    Case("weights second", swapped, QKV, launches(), tolerance=1e-5, kernels=1),
]
BY_NAME = {case.name: case for case in CASES}


def half(dtype: Any) -> Case:
    specs = [spec("s, 16", dtype, **S), *[spec("t, 16", dtype, **T)] * 2]
    return Case(np.dtype(dtype).name, mixed, specs, launches(), [dtype] * 3)


HALVES = {case.name: case for case in map(half, (BFLOAT16, np.float16))}


def reduce_loops(program: Program) -> list[tuple[Kernel, Loop]]:
    kernels = [decode(t) for t in program.templates]
    return [(k, loop) for k in kernels for loop in loops_of(k.body) if loop.kind == isa.LoopKind.REDUCE]


@pytest.mark.parametrize("name", BY_NAME)
def test_one_pass(name: str) -> None:
    case = BY_NAME[name]
    verify(case)
    found = [(k, loop) for k, loop in reduce_loops(program_of(case.fn, *case.specs)) if _has(loop, "exp")]
    assert len(found) == 1  # scores and values in one loop
    assert _has(found[0][1], "reduce_max") and sum(op.insn.name == "mmad" for op in operations(found[0][1].body)) == 2
    assert widening.may_widen(*found[0])


def _has(loop: Loop, name: str) -> bool:
    return any(op.insn.name == name for op in operations(loop.body))


@pytest.mark.parametrize("name", HALVES)
def test_half_precision(name: str) -> None:
    verify(HALVES[name])
    loops = reduce_loops(program_of(HALVES[name].fn, *HALVES[name].specs))
    assert sum(_has(loop, "exp") for _, loop in loops) == 1


@pytest.mark.parametrize("fn", [normalised_last, weights_too])
def test_variations_that_do_not_fit_are_still_right(fn: Any) -> None:
    verify(Case(fn.__name__, fn, QKV, launches(), tolerance=1e-5))


def masks(s: int, t: int) -> dict[str, np.ndarray]:
    """Boolean masks: rows without keys, keys that only the last or the first step sees, whole steps without any."""
    j = np.arange(t)
    last, first = np.zeros((s, t), bool), np.zeros((s, t), bool)
    last[:, -1], first[:, 0] = True, True
    rows = np.broadcast_to(np.arange(s)[:, None] % 3 != 1, (s, t)) & (j % 2 == 0)
    return {
        "last": last,
        "first": first,
        "none": np.zeros((s, t), bool),
        "rows": rows,
        "gap": np.broadcast_to((j < 2) | (j > 9), (s, t)),
    }


@pytest.mark.parametrize("kind", list(masks(1, 1)))
@pytest.mark.parametrize("tile", [None, 3])
def test_masked_keys(kind: str, tile: int | None) -> None:
    """Infinite masks leave NaN in just the rows where no key is visible; lowest finite ones make these uniform."""
    program, other = _masked_programs()
    q, k, v = random((7, 16)), random((13, 16), seed=1), random((13, 16), seed=2)
    mask = masks(7, 13)[kind]
    want = np.asarray(jax.jit(boolean)(q, k, v, mask))
    assert np.isnan(want).all(-1).tolist() == (~mask.any(-1)).tolist()
    check(simulate(program, q, k, v, mask, tile=tile)[0], want, 1e-5, kind)
    for low in (np.float32(-np.inf), LOWEST):
        bias = np.where(mask, np.float32(0), low)
        check(simulate(other, q, k, v, bias, tile=tile)[0], jax.jit(additive)(q, k, v, bias), 1e-5, f"{kind}, {low}")


_programs: list[Program] = []


def _masked_programs() -> list[Program]:
    if not _programs:
        _programs.extend((program_of(boolean, *QKV, spec("s, t", bool, **ST)), program_of(additive, *QKV, MASK)))
    return _programs


def test_extreme_scores() -> None:
    """Scores of +inf and NaN spoil their row and no other; scores that grow from step to step by more than exp can say are no problem."""
    program = _masked_programs()[1]
    q, k, v = random((7, 16)), random((13, 16), seed=1), random((13, 16), seed=2)
    bias = np.zeros((7, 13), np.float32)
    bias[1, 4], bias[2, 12], bias[3, 0] = np.inf, np.nan, np.nan
    bias[4], bias[5] = np.arange(13) * 300, np.arange(13) * -300
    bias[6] = np.where(np.arange(13) % 2, 3e38, -3e38)
    want = np.asarray(jax.jit(additive)(q, k, v, bias))
    assert np.isnan(want).all(-1).tolist() == [False, True, True, True, False, False, False]
    for tile in (None, 3, 1):
        check(simulate(program, q, k, v, bias, tile=tile)[0], want, 1e-5, f"tile {tile}")


def test_softmax_over_long_rows_passes_over_them_twice() -> None:
    fn = softmax_by_hand
    wide = spec("s, t", s=(1, 300), t=(1, 300))
    verify(Case("softmax", fn, [wide], [((5, 13),), ((3, 300),), ((2, 1),)], tolerance=1e-5, kernels=1))
    program = program_of(fn, wide)
    kernel = decode(program.templates[0])
    over_keys = [
        loop for loop in loops_of(kernel.body) if _has(loop, "exp") and not any(isinstance(i, Loop) for i in loop.body)
    ]
    assert [_has(loop, "store") for loop in over_keys] == [False, True]  # maximum and sum together, then the results
    x = np.full((3, 13), -np.inf, np.float32)
    x[1, 5], x[2] = 2, np.arange(13)
    want = np.asarray(jax.jit(fn)(x))
    assert np.isnan(want[0]).all() and not np.isnan(want[1:]).any()
    check(simulate(program, x, tile=3)[0], want, 1e-5)


def test_long_heads_are_computed_once() -> None:
    """Scores with more contracted elements than may be computed again in several passes are no obstacle for one pass."""
    fn, shape = additive, "s, 320"
    program = program_of(fn, spec(shape, **S), *[spec("t, 320", **T)] * 2, MASK)
    assert len(program.debug["kernels"]) == 1, program.debug["cuts"]
    q, k, v = random((5, 320), scale=0.2), random((9, 320), seed=1, scale=0.2), random((9, 320), seed=2)
    bias = random((5, 9), seed=3)
    check(simulate(program, q, k, v, bias)[0], jax.jit(fn)(q, k, v, bias), 1e-5)


def test_executed_with_grouped_heads_and_a_cache() -> None:
    """The specialised executor, whose steps are wider than the chip's, around its block sizes."""
    limits = {"b": (1, 2), "s": (1, 200), "p": (0, 300)}
    specs = [spec("b, s, 2, 3, 16", **{k: limits[k] for k in "bs"}), *[spec("b, s + p, 2, 16", **limits)] * 2]
    program = Compiled(grouped, *specs)
    assert program.kernels == 1
    for b, s, p in ((1, 1, 0), (2, 3, 125), (1, 1, 256), (1, 200, 57), (2, 65, 0)):
        arrays = random((b, s, 2, 3, 16), scale=4), random((b, s + p, 2, 16), seed=1), random((b, s + p, 2, 16), seed=2)
        program.check(*arrays, tolerance=1e-5)


def test_executed_with_infinite_masks() -> None:
    program = Compiled(boolean, *QKV, spec("s, t", bool, **ST))
    for s, t in ((7, 13), (5, 0), (20, 300)):
        q, k, v = random((s, 16)), random((t, 16), seed=1), random((t, 16), seed=2)
        for mask in masks(s, max(t, 1)).values():
            program.check(q, k, v, mask[:, :t].copy(), tolerance=1e-5)


def test_half_precision_is_near_double() -> None:
    case = HALVES["float16"]
    q, k, v = (random(shape, np.float16, i) for i, shape in enumerate(((7, 16), (129, 16), (129, 16))))
    want = softmax_by_hand_64(q, k, v)
    got = simulate(program_of(case.fn, *case.specs), q, k, v)[0]
    assert np.abs(got.astype(np.float64) - want).max() <= HALF_TOLERANCE * np.abs(want).max()


def softmax_by_hand_64(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    s = q.astype(np.float64) @ k.astype(np.float64).T * 0.25
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ v.astype(np.float64)
