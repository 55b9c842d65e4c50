"""What the fuzzing lane has found, as small functions: fused and not, with the chip's tiles and with small ones, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.e2e import harness
from tests.e2e.harness import check, program_of, random
from tests.e2e.tile_machine import Machine
from vm import serialise
from vm.errors import CompileError
from vm.verifier import BoundCheck


def spec(shape: str) -> jax.ShapeDtypeStruct:
    return harness.spec(shape, **{k: (0, 64) for k in "ab" if k in shape})


def a_kernel_reaches_back(x: Any, y: Any) -> Any:
    """A group that begins before the last member of another one and reads what comes behind it: the two may not grow into a cycle."""
    t = (-x).T
    number = y / y
    rows = number + t[jnp.array([1, 0, 0])]
    return number, rows, jax.nn.softmax(rows, 1), jnp.where(number > t, number, t)


FOUND: dict[str, tuple[Callable[..., Any], list[str], list[list[tuple[int, ...]]]]] = {
    "padding beside a repeated dim": (lambda x: jnp.pad(jnp.repeat(x, 2, 0), 1), ["1"], [[(1,)]]),
    "padding of a dim that the source lacks": (
        lambda x: jnp.pad(jnp.broadcast_to(x, (2, x.shape[0])), ((1, 1), (0, 0))) * 2,
        ["a"],
        [[(0,)], [(1,)], [(5,)]],
    ),
    "padding of repeated rows before a product": (
        lambda x, w: jnp.pad(jnp.broadcast_to(x, (3, x.shape[0])), ((1, 0), (0, 0))) @ w,
        ["a", "a, 3"],
        [[(1,), (1, 3)], [(5,), (5, 3)]],
    ),
    "a number that the host reads, in a file": (
        lambda x: lax.pad(jnp.exp(x), np.float32(1), [(0, 0, 0), (1, 1, 1)]),
        ["a, 3"],
        [[(2, 3)]],
    ),
    "rows of one element, each stored once": (
        lambda x, y: jnp.einsum("...i,...j->...ij", y, x),
        ["b, 4, b", "a"],
        [[(1, 4, 1), (17,)], [(3, 4, 3), (5,)]],
    ),
    "digits of which one is of size 1": (
        lambda x: (jnp.exp(x).transpose(1, 2, 0, 3), jnp.exp(x)[None].transpose(1, 2, 4, 0, 3)),
        ["b, 4, 4, b"],
        [[(1, 4, 4, 1)], [(3, 4, 4, 3)]],
    ),
    "a loop over no rows": (
        lambda x: lax.scan(lambda c, row: (jnp.tanh(c) + row, c * row), jnp.zeros(x.shape[1:], x.dtype), x),
        ["a, 3"],
        [[(0, 3)], [(4, 3)]],
    ),
    "padding of nothing": (lambda x: jnp.pad(x, ((0, 0), (1, 1))), ["8, b"], [[(8, 0)], [(8, 3)]]),
    "a kernel that reaches back": (a_kernel_reaches_back, ["a, 8", ""], [[(3, 8), ()], [(1, 8), ()]]),
}


# Loops of a symbolic number of steps that read what they count. At size 0 JAX refuses to trace them, and the error says what helps.
COUNTED: dict[str, tuple[Callable[..., Any], list[str], list[list[tuple[int, ...]]]]] = {
    "a row": (
        lambda x: lax.fori_loop(0, x.shape[0], lambda i, c: jnp.tanh(c) + x[i], jnp.zeros(3, x.dtype)),
        ["a, 3"],
        [[(1, 3)], [(4, 3)]],
    ),
    "the next row": (
        lambda x: lax.fori_loop(0, x.shape[0] - 1, lambda i, c: jnp.tanh(c) + x[i + 1] - x[i], jnp.zeros(3, x.dtype)),
        ["a, 3"],
        [[(1, 3)], [(2, 3)], [(5, 3)]],
    ),
    "rows that are written": (
        lambda x: lax.fori_loop(0, x.shape[0], lambda i, c: c.at[i].set(x[i] * 2), jnp.zeros_like(x)),
        ["a, 3"],
        [[(1, 3)], [(7, 3)]],
    ),
    "under a guard": (
        lambda x: lax.while_loop(
            lambda s: s[0] + 1 < x.shape[0], lambda s: (s[0] + 1, s[1] + x[s[0] + 1]), (jnp.int32(0), jnp.float32(0))
        )[1],
        ["a"],
        [[(1,)], [(7,)]],
    ),
}


@pytest.mark.parametrize("fusion", [True, False])
@pytest.mark.parametrize("name", COUNTED)
def test_loops_that_read_what_they_count(name: str, fusion: bool) -> None:
    fn, specs, launches = COUNTED[name]
    runs(fn, [harness.spec(text, a=(1, 64)) for text in specs], launches, fusion, name)


def test_a_loop_that_reads_what_it_counts_at_size_0() -> None:
    fn, specs, _ = COUNTED["a row"]
    with pytest.raises(CompileError, match=r'Dim\("a", min=1\) makes it true'):
        program_of(fn, *map(spec, specs))


@pytest.mark.parametrize("fusion", [True, False])
@pytest.mark.parametrize("name", FOUND)
def test_found(name: str, fusion: bool) -> None:
    fn, specs, launches = FOUND[name]
    runs(fn, list(map(spec, specs)), launches, fusion, name)


def runs(
    fn: Callable[..., Any], specs: list[Any], launches: list[list[tuple[int, ...]]], fusion: bool, name: str
) -> None:
    """The program as it is read from its file, every binding put to the verifier, against the function."""
    program = serialise.loads(serialise.dumps(program_of(fn, *specs, fusion=fusion)))
    for shapes in launches:
        arrays = [random(shape, seed=i) for i, shape in enumerate(shapes)]
        want = jax.tree_util.tree_leaves(fn(*map(jnp.asarray, arrays)))
        for tile in (None, 2):
            machine = Machine(program, tile)
            machine.binder.check = BoundCheck(program)
            for got, expected in zip(machine.run(arrays), want, strict=True):
                check(got, np.asarray(expected), label=f"{name} at {shapes}, tile {tile}")
