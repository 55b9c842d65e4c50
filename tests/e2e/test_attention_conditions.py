"""The conditions under which a softmax becomes one pass over its axis: a function that meets each, and what becomes of it without.

A condition's ``return None`` is taken out of the matcher. Then there is no program, or it gives wrong results; where it does not, the
table says so.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graph_kernel.fusion import attention
from tests.e2e import harness
from tests.e2e.harness import check, program_of, random, simulate
from vm import serialise

Weights = Callable[[Any, Any], Any]  # of scores and their maximum: what is multiplied with the values
MATCHER = attention._Matcher

# Condition: what the weights are (or a list of some), and what dropping it does: "broken", "implied" (the same program) or "cautious" (a
# program that is right all the same: no function is known for which it would not be).
TABLE: dict[str, tuple[Weights, str]] = {
    "maximum.op != 'reduce_max'": (lambda s, m: jax.nn.softmax(s, -1), "broken"),
    "len(stages) != 1": (lambda s, m: jnp.exp(s - s.max((1, 2), keepdims=True)), "implied"),
    "not self.subtracts(sub, scores, maximum)": (lambda s, m: over_sum(jnp.exp(s * 0.5 - m)), "broken"),
    "n.op != 'exp'": (lambda s, m: over_sum(jnp.exp2(s - m)), "broken"),
    "len(sums) != 1": (lambda s, m: jnp.exp(s - m) * 2, "broken"),
    "set(divides) != set(quotients)": (
        lambda s, m: [over_sum(jnp.exp(s - m)), s * jnp.exp(s - m).sum(-1, keepdims=True)],
        "cautious",
    ),
    "numerator not in exp_values": (lambda s, m: jnp.exp(s - m).sum(-1, keepdims=True) / jnp.exp(s - m), "broken"),
    "v.dtype != FLOAT32": (lambda s, m: jax.nn.softmax(s.astype(jnp.float16), -1).astype(jnp.float32), "implied"),
}  # fmt: skip


def over_sum(e: Any) -> Any:
    return e / e.sum(-1, keepdims=True)


def right(weights: Weights, tolerance: float) -> bytes:
    """The program, which must give what JAX gives at a long axis, whose steps hand their sums on."""

    def attend(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("hqd,hkd->hqk", q, k)
        made = weights(scores, scores.max(-1, keepdims=True))
        return sum(w @ v for w in (made if isinstance(made, list) else [made]))

    specs = [harness.spec(f"2, {n}, 8", **{n: (1, 600)}) for n in "stt"]
    program = program_of(attend, *specs)
    for s, t, tile in ((5, 200, None), (3, 1, None), (4, 50, 7)):
        arrays = [random((2, n, 8), seed=i) for i, n in enumerate((s, t, t))]
        (got,) = simulate(program, *arrays, tile=tile)
        check(np.asarray(got), np.asarray(attend(*map(jnp.asarray, arrays))), tolerance)
    return serialise.dumps(program, strip=True)


def drop(patch: pytest.MonkeyPatch, condition: str) -> None:
    """Takes the ``return None`` under this condition out of the matcher."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(MATCHER.match)))
    found = [n for n in ast.walk(tree) if isinstance(n, ast.If) and condition in ast.unparse(n.test)]
    assert len(found) == 1, condition
    found[0].body = [ast.copy_location(ast.Pass(), found[0].body[0])]
    names: dict[str, Any] = {}
    code = compile(ast.fix_missing_locations(tree), MATCHER.match.__code__.co_filename, "exec")
    exec(code, MATCHER.match.__globals__, names)
    patch.setattr(MATCHER.match, "__code__", names["match"].__code__)


@pytest.mark.parametrize("condition", TABLE)
def test_without_the_condition(condition: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, effect = TABLE[condition]
    tolerance = 1e-2 if "FLOAT32" in condition else 2e-5  # that one is about 16-bit scores
    before = right(weights, tolerance)
    drop(monkeypatch, condition)
    if effect != "broken":
        assert right(weights, tolerance) == before or effect == "cautious"
    else:
        with pytest.raises(Exception):  # noqa: B017  no program, or wrong values
            right(weights, tolerance)


def test_every_condition_is_in_the_table() -> None:
    tree = ast.parse(textwrap.dedent(inspect.getsource(MATCHER.match)))
    tests = [ast.unparse(n.test) for n in ast.walk(tree) if isinstance(n, ast.If) and isinstance(n.body[0], ast.Return)]
    assert all(any(condition in test for condition in TABLE) for test in tests), tests
