"""Every fusion rule and condition in one table, each with a function for which it matters, and a compiler without it.

The original refuses (the reason is in its record), or keeps apart what it must; what the mutant makes is worse by something
that is counted: it has no program, its results are wrong, it takes more emulated time, computes more elements, or has more
kernels. Conditions whose loss changes nothing, because the analysis of the merged kernel refuses the same graphs, are listed
with a test that this is so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from codegen import choices
from graph_kernel.fusion import attention, axes, fuse, layout, rules, slots, waste
from graph_kernel.fusion.rules import SPECULATIVE, Rule, elementwise, has_product
from tests.e2e import harness, tile_machine
from tests.e2e.harness import check, program_of, random, simulate
from vm.binder import Binder
from vm.errors import CompileError
from vm.timing import emulate

Mutation = Callable[[pytest.MonkeyPatch], None]
ANY = "any rule"


def spec(shape: str) -> jax.ShapeDtypeStruct:
    return harness.spec(shape, **{k: (0, 20_000) for k in "bprs" if k in shape})


def rule(name: str, **changes: Any) -> Mutation:
    """The rule without a condition."""

    def mutate(patch: pytest.MonkeyPatch) -> None:
        def changed(r: Rule) -> Rule:
            return replace(r, **changes) if r.name == name else r

        for table in ("RULES", "LATE_RULES"):
            patch.setattr(fuse, table, tuple(map(changed, getattr(fuse, table))))
        patch.setattr(fuse, "SIBLINGS", changed(fuse.SIBLINGS))
        patch.setattr(fuse, "SPECULATIVE", changed(fuse.SPECULATIVE))
        patch.setattr(fuse, "MOVEMENT", changed(fuse.MOVEMENT))
        patch.setattr(slots, "JOINED", changed(slots.JOINED))

    return mutate


def without(owner: Any, name: str, value: Any) -> Mutation:
    return lambda patch: patch.setattr(owner, name, value)


@dataclass(frozen=True)
class Row:
    """A condition: the rule that has it, what it says, a function for which exactly it fails, what dropping it does (``effect``: ``time``,
    ``kernels``, ``work``: elements of ``counted``, ``no program``, ``wrong``, or ``none``), and at which sizes."""

    rule: str
    condition: str
    fn: Callable[..., Any]
    shapes: tuple[str, ...]
    mutation: Mutation
    effect: str
    dims: dict[str, int]
    reason: str = ""  # part of the original's record
    counted: tuple[str, ...] = ("cos",)
    speculation: bool = False  # whether a program may have two forms of a part


def columns(x, w):
    """A norm of the right operand's columns: as a prologue it is computed again for every block of rows."""
    return x @ (w * jax.lax.rsqrt(jnp.sum(w * w, 0, keepdims=True) + 1e-6))


def scaled(x, w):
    return x @ (w * 2 + 1)


def softmax(x, w):
    return jax.nn.softmax(x @ w, -1)


def chain(x, a, b):
    return jnp.tanh(x @ a) @ b


def angles(x, w):
    """The angles vary with s alone; beside a product of 4 * 3 to repeat them for every b is dear."""
    return (x @ w) * jnp.cos(jnp.arange(x.shape[1], dtype=jnp.float32))[:, None]


def long_products(x, w, v):
    scores = x @ w
    return jax.nn.relu(scores - jnp.sum(scores, -1, keepdims=True)) @ v


def dependent(x, a, b):
    """Both products read x; the second one needs running sums over all rows of the first."""
    y = x @ a
    return y, x @ b + jnp.cumsum(y, 0)


def experts(x, y, z, t, a, b, c, d):
    return jnp.stack([x @ a, y @ b, z @ c, t @ d], 1)


def norm(x, w):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) @ w


def lengths(pk, k, pv, v):
    return jnp.concatenate([pk, k], 1), jnp.concatenate([pv, v], 1)


def caches(*parts):
    """Past and new keys and values of 12 layers."""
    return [jnp.concatenate(parts[i : i + 2], 1) for i in range(0, len(parts), 2)]


def many(x):
    for _ in range(250):
        x = jnp.tanh(x)
    return x


LARGE, WIDE, CHAIN = {"b": 4096}, ("b, 256", "256, 1024"), ("b, 160", "160, 300", "300, 48")
EXPERTS = ("b, 160",) * 4 + ("160, 48",) * 4
TABLE = [
    Row(
        ANY,
        "no other kernel lies between the two",
        lambda x, w: jnp.exp(x) + jnp.exp(x) @ w,
        ("b, 48", "48, 48"),
        without(fuse.Fuser, "_cycle", lambda *_: False),
        "no program",
        {"b": 5},
    ),
    Row(
        ANY,
        "a kernel has at most 128 nodes",
        many,
        ("b, 16",),
        without(fuse, "MAX_GROUP", 1 << 30),
        "no program",
        {"b": 5},
        "more than 128 nodes",
    ),
    Row(
        ANY,
        "the results share one iteration space",
        lambda x, y, w: (x @ w, y @ w),
        ("b, 160", "s, 160", "160, 48"),
        without(layout, "_same_domain", lambda *_: None),
        "time",
        {"b": 300, "s": 70},
        "share one iteration space",
    ),
    Row(
        ANY,
        "nothing dear is computed twice",
        columns,
        WIDE,
        without(fuse, "wasteful", lambda *_: ""),
        "time",
        LARGE,
        "computed again",
    ),
    Row(
        ANY,
        "what is repeated is a 16th of the product's work",
        angles,
        ("b, s, 4", "4, 3"),
        without(waste, "FREE_SHARE", 0),
        "work",
        {"b": 9, "s": 7},
        "computed again",
    ),
    Row(
        ANY,
        "movement within a tile is along a dim that fits",
        lambda x, y: jnp.sum(jnp.flip(jnp.exp(x), 1) * y, 1),
        ("b, s", "b, s"),
        without(axes._Walk, "mark_local", lambda *_: None),
        "kernels",
        {"b": 5, "s": 30},
        "longer than a tile",
    ),
    Row(
        ANY,
        "whole rows fit in local memory",
        norm,
        ("b, 100000", "100000, 64"),
        lambda patch: [patch.setattr(layout, n, 1 << 40) for n in ("ROW_BYTES", "OPERAND_BYTES")],
        "no program",
        LARGE,
    ),
    Row(
        "attention",
        "long products are not computed in every pass",
        long_products,
        ("b, 640", "640, s", "s, 64"),
        without(attention, "_recomputation", lambda *_: None),
        "time",
        {"b": 4096, "s": 300},
        "would be computed",
    ),
    Row(
        "elementwise",
        "the consumer is elementwise",
        scaled,
        WIDE,
        rule("elementwise", allowed=lambda _, p, c: elementwise(p)),
        "time",
        LARGE,
    ),
    Row(
        "elementwise",
        "the producer is elementwise",
        softmax,
        ("b, 2048", "2048, 768"),
        rule("elementwise", allowed=lambda _, p, c: not has_product(c)),
        "time",
        LARGE,
    ),
    Row(
        "reduce",
        "the consumer has no product",
        scaled,
        WIDE,
        rule("reduce", allowed=lambda _, p, c: elementwise(p)),
        "time",
        LARGE,
    ),
    Row(
        "reduce",
        "the producer is elementwise",
        softmax,
        ("b, 2048", "2048, 768"),
        rule("reduce", allowed=lambda _, p, c: not has_product(c)),
        "time",
        LARGE,
    ),
    Row(
        "post-reduce",
        "the producer has no product",
        softmax,
        ("b, 2048", "2048, 768"),
        rule("post-reduce", allowed=lambda _, p, c: not has_product(c)),
        "time",
        LARGE,
    ),
    Row(
        "post-reduce",
        "the consumer has no product",
        columns,
        WIDE,
        rule("post-reduce", allowed=lambda _, p, c: not has_product(p)),
        "none",
        LARGE,
        "computed again",
    ),
    Row(
        "matmul epilogue",
        "the consumer is elementwise",
        softmax,
        ("b, 2048", "2048, 768"),
        rule("matmul epilogue", allowed=lambda _, p, c: has_product(p) and not has_product(c)),
        "time",
        LARGE,
    ),
    Row(
        "matmul epilogue",
        "the producer has a product",
        scaled,
        WIDE,
        rule("matmul epilogue", allowed=lambda _, p, c: elementwise(c)),
        "none",
        LARGE,
    ),
    Row(
        "joined products",
        "no product feeds the other",
        chain,
        CHAIN,
        without(fuse.Fuser, "feeds_product", lambda *_: False),
        "time",
        LARGE,
    ),
    Row(
        "sibling products",
        "they do not depend on each other",
        dependent,
        ("b, 16", "16, 48", "16, 48"),
        without(fuse.Fuser, "_cycle", lambda *_: False),
        "no program",
        {"b": 9},
    ),
    Row(
        "sibling products",
        "their rows are the same",
        lambda x, y, w: (x @ w, y @ w),
        ("b, 160", "s, 160", "160, 48"),
        without(layout, "_same_domain", lambda *_: None),
        "time",
        {"b": 300, "s": 70},
        "share one iteration space",
    ),
    Row(
        "sibling products",
        "both are products",
        lambda x, a, b: (x @ a, jax.nn.softmax(x @ b, -1)),
        ("b, 160", "160, 300", "160, 48"),
        rule("sibling products", allowed=lambda *_: True),
        "none",
        LARGE,
    ),
    Row(
        "matmul prologue",
        "strict: not even cheap work is repeated",
        scaled,
        WIDE,
        rule("matmul prologue", strict=False),
        "time",
        LARGE,
        "computed again",
    ),
    Row(
        "matmul prologue",
        "the producer has no product",
        chain,
        CHAIN,
        rule("matmul prologue", allowed=lambda _, p, c: has_product(c)),
        "time",
        LARGE,
    ),
    Row(
        "product post-reduce",
        "a row is short: whole in a tile anyway",
        softmax,
        ("b, 2048", "2048, 768"),
        without(rules, "CUBE_SPAN", 1024),
        "time",
        LARGE,
    ),
    Row(
        "speculative post-reduce",
        "the parts are run where they are faster",
        softmax,
        ("b, 2048", "2048, 768"),
        without(choices.Speculation, "decide", lambda *_: choices.Decision(False, "")),
        "time",
        LARGE,
        speculation=True,
    ),
    Row(
        "speculative post-reduce",
        "rows of symbolic length fit",
        softmax,
        ("b, 64", "64, s"),
        without(choices, "FITTING", 4096),
        "work",
        {"b": 9, "s": 200},
        counted=("dot",),
        speculation=True,
    ),
    Row(
        "matmul prologue",
        "the parts are run where they are much faster",
        norm,
        ("b, 896", "896, 2048"),
        without(choices.Speculation, "decide", lambda *_: choices.Decision(False, "")),
        "time",
        LARGE,
        speculation=True,
    ),
    Row(
        "joined operands",
        "no products: those run side by side",
        experts,
        EXPERTS,
        rule("joined operands", allowed=lambda *_: True),
        "time",
        {"b": 16},
    ),
    Row(
        "store in place",
        "few kernels write one buffer",
        experts,
        EXPERTS,
        without(slots, "MAX_WRITERS", 9),
        "time",
        {"b": 16},
        "one after the other",
    ),
    Row(
        "sibling movement",
        "at most 8 results",
        caches,
        ("b, p, 8", "b, s, 8") * 24,
        without(rules, "MAX_MOVED", 1000),
        "time",
        {"b": 4, "p": 50, "s": 7},
    ),
    Row(
        "sibling movement",
        "the shapes are equal at every size",
        lengths,
        ("b, p, 8", "b, s, 8", "b, p, 8", "b, r, 8"),
        without(fuse, "same_shape", lambda *_: True),
        "wrong",
        {"b": 2, "p": 3, "s": 4, "r": 9},
    ),
]


def inputs(row: Row) -> list[np.ndarray]:
    at = [[row.dims[t] if t in row.dims else int(t) for t in s.replace(" ", "").split(",")] for s in row.shapes]
    return [random(s, seed=i) for i, s in enumerate(at)]


def measured(row: Row, patch: pytest.MonkeyPatch) -> Any:
    """What the effect is counted in, of the compiler as it is now."""
    program = program_of(row.fn, *map(spec, row.shapes), speculation=row.speculation)
    if row.effect in ("time", "none"):
        return emulate(program, Binder(program).bind([row.dims[s.name] for s in program.symbols])).us
    if row.effect == "kernels":
        return len(program.debug["kernels"])
    if row.effect == "no program":
        return 1
    done = 0
    real = tile_machine._Core.reference

    def counted(self: Any, name: str, operands: list[np.ndarray], **attrs: Any) -> np.ndarray:
        nonlocal done
        out = real(self, name, operands, **attrs)
        done += out.size if name in row.counted else 0
        return out

    arrays = inputs(row)
    patch.setattr(tile_machine._Core, "reference", counted)
    results = simulate(program, *arrays)
    patch.setattr(tile_machine._Core, "reference", real)
    for got, want in zip(results, jax.tree_util.tree_leaves(row.fn(*arrays)), strict=True):
        check(got, np.asarray(want), 1e-5)
    return done


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.rule}: {row.condition}")
def test_without_the_condition(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    if row.reason:
        cuts = program_of(row.fn, *map(spec, row.shapes)).debug["cuts"]
        assert any(row.reason in cut["reason"] for cut in cuts), cuts
    before = measured(row, monkeypatch)
    row.mutation(monkeypatch)
    if row.effect == "no program":
        with pytest.raises(
            (CompileError, AssertionError, RecursionError), match="does not fit|form a cycle|recursion depth"
        ):
            measured(row, monkeypatch)
    elif row.effect == "wrong":
        with pytest.raises(Exception):  # noqa: B017  wrong values, or an access outside of its buffer
            measured(row, monkeypatch)
    elif row.effect == "none":
        assert measured(row, monkeypatch) == before  # then the condition is implied, and says only which rule it is
    else:
        assert measured(row, monkeypatch) > 1.1 * before


def layer_norm(x, w, r):
    y = x @ w + r
    mean = y.mean(-1, keepdims=True)
    return (y - mean) * jax.lax.rsqrt(((y - mean) ** 2).mean(-1, keepdims=True) + 1e-6)


@pytest.mark.parametrize("fn, shapes", [(softmax, ("b, 256", "256, 8")), (layer_norm, ("b, 128", "128, 64", "b, 64"))])
def test_short_rows_are_reduced_in_the_product_s_kernel(fn, shapes, monkeypatch: pytest.MonkeyPatch) -> None:
    """One kernel, right at every size, and never slower than the two."""
    program = program_of(fn, *map(spec, shapes))
    assert len(program.debug["kernels"]) == 1
    for b in (0, 1, 7, 65):
        row = Row("", "", fn, shapes, lambda patch: None, "", {"b": b})
        for got in simulate(program, *inputs(row), tile=3 if b == 7 else None):
            check(got, np.asarray(fn(*inputs(row))), 2e-5)
    monkeypatch.setattr(fuse, "LATE_RULES", tuple(r for r in fuse.LATE_RULES if r.name != "product post-reduce"))
    two = program_of(fn, *map(spec, shapes), speculation=False)
    assert len(two.debug["kernels"]) == 2
    for b in (1, 64, 512, 4096, 16384):
        times = [emulate(p, Binder(p).bind([b])).us for p in (program, two)]
        assert times[0] < times[1], (b, times)


def test_every_rule_is_in_the_table() -> None:
    """A new rule needs a row; rules that merge on request only, or pair nodes before any rule, are named here."""
    names = {r.name for r in (*fuse.RULES, *fuse.LATE_RULES, fuse.SIBLINGS, fuse.MOVEMENT, SPECULATIVE, slots.JOINED)}
    in_table = {row.rule for row in TABLE} - {ANY, "store in place", "attention"}
    assert in_table == names
    assert all(
        isinstance(value, Rule) is (name in {"SIBLINGS", "JOINED", "MOVEMENT", "SPECULATIVE"})
        for name, value in vars(rules).items()
        if name.isupper()
    )
    shown = {row.rule for row in TABLE if row.effect != "none"}
    assert shown >= names, "every rule has a condition whose loss shows"
