"""Chains of bfloat16 instructions round once, where the value leaves the chain."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import dvm
from vm.decode import decode, operations

BF16 = ml_dtypes.bfloat16
SIZES = [0, 1, 7, 127, 128, 129, 1000]


def values(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(n).astype(BF16)


def opcodes(program: dvm.CompiledProgram) -> list[str]:
    (template,) = program.program.templates
    return [op.insn.name for op in operations(decode(template).body)]


@pytest.mark.parametrize("tier", ["reference", "specialised"])
def test_a_chain_rounds_once(tier):
    def chain(x, y):
        return (x * y + x).astype(jnp.float32) * 3

    spec = dvm.spec("n", jnp.bfloat16, n=dvm.Dim(min=0, max=1000))
    program = dvm.compile(chain, spec, spec, tier=tier)
    for n in SIZES:
        x, y = values(n, 1), values(n, 2)
        wide_x, wide_y = x.astype(np.float32), y.astype(np.float32)
        want = (wide_x * wide_y + wide_x) * np.float32(3)
        np.testing.assert_allclose(np.asarray(program(x, y)), want, rtol=1e-6, atol=1e-6)
    assert opcodes(program).count("cast") == 2  # of the two operands


@pytest.mark.parametrize("tier", ["reference", "specialised"])
def test_a_product_with_a_bias_and_an_activation_rounds_once(tier):
    def layer(x, w, bias):
        return jax.nn.relu(x @ w + bias) * 2

    w, bias = values(64 * 32, 3).reshape(64, 32), values(32, 4)
    program = dvm.compile(layer, dvm.spec("m, 64", jnp.bfloat16, m=dvm.Dim(max=200)), w, bias, tier=tier)
    assert len(program.kernels) == 1
    for m in (1, 5, 129):
        x = values(m * 64, m).reshape(m, 64)
        exact = x.astype(np.float64) @ w.astype(np.float64) + bias.astype(np.float64)
        want = np.maximum(exact, 0) * 2
        got = np.asarray(program(x, w, bias)).astype(np.float64)
        # One rounding to 8 bits is at most 2**-8 of the value; more than one exceed it somewhere.
        assert (np.abs(got - want) <= 2.0**-8 * np.abs(want) * 1.001 + 1e-5).all()


@pytest.mark.parametrize("tier", ["reference", "specialised"])
def test_a_comparison_sees_the_rounded_value(tier):
    """1 + 2**-9 is 1 in bfloat16."""

    def compare(x, w):
        y = x @ w + x[:, :1]
        return jnp.where(y == 1, y * 4, 0.0)

    x = np.array([[1.0, 2.0**-9], [0.5, 0.5]], BF16)
    w = np.array([[0.0], [1.0]], BF16)
    program = dvm.compile(compare, dvm.spec("m, 2", jnp.bfloat16), w, tier=tier)
    np.testing.assert_array_equal(np.asarray(program(x, w)).astype(np.float32)[:, 0] > 0, [True, True])
