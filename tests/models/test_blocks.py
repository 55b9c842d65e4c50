"""Every configuration, compiled once and launched at every shape, against ``jax.jit``.

In float32 a result may differ by 2e-5 of its largest value. In 16 bits its error against float32 may be twice that of ``jax.jit`` in the
same dtype, where an error below that of rounding a single value counts as that.
"""

import jax.numpy as jnp
import numpy as np
import pytest

import configs
import dvm
from dvm import models
from tests.models import harness

DTYPES = harness.DTYPES
# One family by default, the others with --slow: compiling their kernels takes most of a test run.
DECODERS = ["qwen2.5-0.5b", *(pytest.param(n, marks=pytest.mark.slow) for n in ("qwen3-0.6b", "llama-3.2-1b"))]


def check(config: models.Config, dtype: jnp.dtype, every: bool = False) -> None:
    """Compiles the block once and launches it at many shapes; all wrong shapes are reported together."""
    rounded = jnp.bfloat16 if dtype == jnp.float32 else dtype
    params = harness.parameters(config, rounded)
    if dtype == jnp.float32:
        params = harness.upcast(params)
    before = dvm.stats()
    program = dvm.compile(models.block(config), params, *harness.specs(config, dtype))
    wrong = []
    for dims in harness.shapes(config, every, jnp.float32 if dtype == jnp.float32 else jnp.bfloat16):
        args = harness.inputs(config, dims, rounded)
        if dtype == jnp.float32:
            args = harness.upcast(args)
        got = harness.flat(program(params, *args))
        want = harness.reference(config, dims, rounded)
        limits = [harness.FLOAT32_TOLERANCE] * len(want)
        if dtype != jnp.float32:
            own = [harness.error(a, b) for a, b in zip(harness.run_jit(config, params, args), want, strict=True)]
            limits = [2 * max(e, harness.ROUNDING[dtype]) for e in own]
        errors = [harness.error(a, b) for a, b in zip(got, want, strict=True)]
        if any(not e <= limit for e, limit in zip(errors, limits, strict=True)):
            wrong.append((dims, errors, limits))
    used = dvm.stats() - before
    assert not wrong, "\n".join(f"{dims}: errors {errors}, limits {limits}" for dims, errors, limits in wrong)
    assert used.compiles == 1
    assert used.host_ops == 0


# Every config runs in one dtype at least, and four of them in both; the other four, whose blocks are like these, in both with --slow.
IN_ONE_DTYPE = {
    ("llama-2-7b", jnp.float32),
    ("llama-3.1-8b", jnp.float32),
    ("llama-3.2-1b", jnp.bfloat16),
    ("qwen2.5-7b", jnp.bfloat16),
}
PAIRS = [
    pytest.param(
        name, dtype, id=f"{name}-{dtype.__name__}", marks=[pytest.mark.slow] if (name, dtype) in IN_ONE_DTYPE else []
    )
    for name in configs.model_names()
    for dtype in DTYPES
]


@pytest.mark.parametrize("name, dtype", PAIRS)
def test_block(name, dtype):
    check(models.scaled(models.load_config(name)), dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.__name__)
@pytest.mark.parametrize("name", configs.model_names())
def test_block_at_all_combinations(name, dtype):
    check(models.scaled(models.load_config(name)), dtype, every=True)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.__name__)
@pytest.mark.parametrize("name", configs.model_names())
def test_block_at_full_size(name, dtype):
    check(models.load_config(name), dtype)


@pytest.mark.parametrize(
    "name", ["qwen2.5-0.5b", *(pytest.param(n, marks=pytest.mark.slow) for n in ("bert-base", "mmoe"))]
)
def test_block_in_float16(name):
    check(models.scaled(models.load_config(name)), jnp.float16)


@pytest.mark.parametrize("name", DECODERS)
def test_prefill_without_cache(name):
    config = models.scaled(models.load_config(name))
    params = models.init_params(config)
    b, s = dvm.Dim("b", max=3), dvm.Dim("s", max=257)
    fn = models.prefill_block(config)
    before = dvm.stats()
    program = dvm.compile(fn, params, dvm.spec(f"b, s, {config.hidden_size}", jnp.float32, b=b, s=s))
    for dims in [(3, 257), (1, 1), (2, 7), (1, 128), (3, 33), (2, 16)]:
        x = np.random.default_rng(2).standard_normal((*dims, config.hidden_size), np.float32)
        want = np.asarray(harness.jit(fn)(params, x))
        assert harness.error(np.asarray(program(params, x)), want) <= harness.FLOAT32_TOLERANCE, dims
    used = dvm.stats() - before
    assert (used.compiles, used.host_ops) == (1, 0)


@pytest.mark.parametrize("name", DECODERS)
def test_padding_mask_and_positions(name):
    """Left padding: rows start at different slots, so positions and visible keys are given."""
    config = models.scaled(models.load_config(name))
    params = models.init_params(config)
    fn = models.block(config)
    b, s, p = dvm.Dim("b", max=3), dvm.Dim("s", max=257), dvm.Dim("p", min=0, max=64)
    positions = dvm.spec("b, s", jnp.int32, b=b, s=s)
    mask = dvm.spec("b, p + s", jnp.int32, b=b, s=s, p=p)
    before = dvm.stats()
    program = dvm.compile(fn, params, *harness.specs(config, jnp.float32), positions, mask)
    for dims in [{"b": 2, "s": 13, "p": 0}, {"b": 3, "s": 1, "p": 40}, {"b": 2, "s": 33, "p": 31}]:
        args = harness.inputs(config, dims, jnp.float32)
        padding = np.arange(dims["b"])[:, None]  # row i starts with i hidden slots
        slots = np.arange(dims["p"] + dims["s"])
        visible = (slots >= padding).astype(np.int32)
        positions = np.maximum(slots[None, dims["p"] :] - padding, 0).astype(np.int32)
        want = harness.flat(harness.jit(fn)(params, *args, positions, visible))
        got = harness.flat(program(params, *args, positions, visible))
        assert all(harness.error(a, b) <= harness.FLOAT32_TOLERANCE for a, b in zip(got, want, strict=True)), dims
    used = dvm.stats() - before
    assert (used.compiles, used.host_ops) == (1, 0)


@pytest.mark.parametrize("name", ["qwen2.5-0.5b", pytest.param("llama-2-7b", marks=pytest.mark.slow)])
def test_whole_model_prefills_and_decodes(name):
    """Embedding, two layers, LM head (tied and not): greedy decoding with one program for the prompt and for every token."""
    config = models.scaled(models.load_config(name))
    layers = 2
    params = models.init_params(config, n_layers=layers)
    fn = models.causal_lm(config, layers)
    b, s, p = dvm.Dim("b", max=2), dvm.Dim("s", max=16), dvm.Dim("p", min=0, max=32)
    cache_shape = f"b, {config.num_key_value_heads}, p, {config.head_dim}"
    cache_spec = dvm.spec(cache_shape, jnp.float32, b=b, p=p)
    before = dvm.stats()
    ids_spec = dvm.spec("b, s", jnp.int32, b=b, s=s)
    program = dvm.compile(fn, params, ids_spec, [(cache_spec, cache_spec)] * layers)
    reference = harness.jit(fn)
    ids = np.random.default_rng(3).integers(0, config.vocab_size, (2, 7), dtype=np.int32)
    empty = np.zeros((2, config.num_key_value_heads, 0, config.head_dim), np.float32)
    cache = [(empty, empty)] * layers
    for _ in range(4):
        want = reference(params, ids, cache)
        logits, cache = program(params, ids, cache)
        for a, b in zip(harness.flat((logits, cache)), harness.flat(want), strict=True):
            assert harness.error(a, b) <= harness.FLOAT32_TOLERANCE
        ids = np.asarray(logits)[:, -1:].argmax(-1).astype(np.int32)
    used = dvm.stats() - before
    assert (used.compiles, used.host_ops) == (1, 0)
