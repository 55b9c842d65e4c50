"""The blocks and their compiled programs against Hugging Face ``transformers``.

``tests/data/hf`` is made by ``scripts/make_hf_golden.py``. The tolerance is between PyTorch and XLA: 1e-5 of the largest value.
"""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import dvm
from dvm import models
from tests.models.harness import error, jit

FOLDER = Path(__file__).resolve().parents[1] / "data" / "hf"
SLOW = pytest.mark.slow  # the same code as what stands before them
DECODERS, BERTS = ["qwen2", pytest.param("qwen3", marks=SLOW), "llama"], ["bert", pytest.param("bert_tanh", marks=SLOW)]
TOLERANCE = 1e-5

executor = pytest.mark.parametrize("how", ["jax", "dvm"])


def read(name):
    """(config, weights by name, cases) of a golden file."""
    with np.load(FOLDER / f"{name}.npz") as file:
        arrays = dict(file)
    config = models.load_config(json.loads(str(arrays.pop("config"))))
    weights, cases = {}, {}
    for key, array in arrays.items():
        part, rest = key.split("/", 1)
        if part == "weight":
            weights[rest] = array
        else:
            cases.setdefault(part, {})[rest] = array.astype(np.float32) if array.dtype == np.float16 else array
    return config, weights, list(cases.values())


def layer_weights(weights, prefix):
    return {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)}


def runner(how, fn, *specs):
    return jit(fn) if how == "jax" else dvm.compile(fn, *specs)


def close(got, want):
    assert error(np.asarray(got), want) <= TOLERANCE


def dims(config):
    return {
        "b": dvm.Dim("b", max=4),
        "p": dvm.Dim("p", min=0, max=512),
    }, f"b, {config.num_key_value_heads}, p, {config.head_dim}"


def check_block(how, config, weights, cases):
    params = models.params_from_hf(config, layer_weights(weights, "model.layers.0."))
    small, shape = {}, ""
    specs = []
    if how == "dvm":
        small, shape = dims(config)
        cache = dvm.spec(shape, jnp.float32, **small)
        specs = [params, dvm.spec(f"b, s, {config.hidden_size}", jnp.float32, b=small["b"]), cache, cache]
    run = runner(how, models.block(config), *specs)
    for case in cases:
        past = [case[f"in/past0/{part}"] for part in "kv"]
        y, *cache = run(params, case["out/hidden"], *past)
        close(y, case["out/layer0"])
        for got, old, part in zip(cache, past, "kv", strict=True):
            close(got, np.concatenate([old, case[f"out/new0/{part}"]], axis=2))


def check_model(how, config, weights, cases):
    layers = config.num_hidden_layers
    params = models.params_from_hf(config, weights, n_layers=layers)
    specs = []
    if how == "dvm":
        small, shape = dims(config)
        cache = dvm.spec(shape, jnp.float32, **small)
        specs = [params, dvm.spec("b, s", jnp.int32, b=small["b"]), [(cache, cache)] * layers]
    run = runner(how, models.causal_lm(config, layers), *specs)
    for case in cases:
        past = [tuple(case[f"in/past{i}/{part}"] for part in "kv") for i in range(layers)]
        logits, cache = run(params, case["in/ids"], past)
        close(logits, case["out/logits"])
        for i, pair in enumerate(cache):
            for got, part in zip(pair, "kv", strict=True):
                close(np.asarray(got)[:, :, past[i][0].shape[2] :], case[f"out/new{i}/{part}"])


def check_bert(how, config, weights, cases):
    params = models.params_from_hf(config, layer_weights(weights, "encoder.layer.0."))
    specs = []
    if how == "dvm":
        b, s = dvm.Dim("b", max=4), dvm.Dim("s", max=64)
        x = dvm.spec(f"b, s, {config.hidden_size}", jnp.float32, b=b, s=s)
        specs = [params, x, dvm.spec("b, s", jnp.int32, b=b, s=s)]
    run = runner(how, models.block(config), *specs)
    for case in cases:
        close(run(params, case["in/hidden"], case["in/mask"]), case["out/layer0"])


@executor
@pytest.mark.parametrize("name", DECODERS)
def test_golden_block(name, how):
    check_block(how, *read(name))


@executor
@pytest.mark.parametrize("name", DECODERS)
def test_golden_model(name, how):
    check_model(how, *read(name))


@executor
@pytest.mark.parametrize("name", BERTS)
def test_golden_bert(name, how):
    check_bert(how, *read(name))


def test_no_case_is_trivial():
    """The golden results depend on what they should: the cache, RoPE's scaling and the mask change them."""
    config, _, cases = read("llama")
    assert config.rope_scaling is not None and config.rope_scaling.rope_type == "llama3"
    assert {case["in/past0/k"].shape[2] for case in cases} >= {0, 7, 11}
    assert any((case["in/mask"] == 0).any() for case in read("bert")[2])


@pytest.mark.slow
@executor
@pytest.mark.parametrize("name", ["qwen2.5-0.5b", "llama-3.2-1b", "bert-base"])
def test_live_at_full_size(name, how):
    """Our own configuration files, given to ``transformers`` as they are but for the number of layers and the vocabulary."""
    pytest.importorskip("transformers")
    import configs
    from scripts import make_hf_golden as golden

    # Two layers: transformers applies the final norm to the hidden states that follow the last one.
    fields = json.loads(configs.model_file(name).read_text()) | {"num_hidden_layers": 2, "vocab_size": 512}
    for ignored in ("architectures", "torch_dtype"):
        fields.pop(ignored, None)
    model = golden.build(fields)
    cases = [
        {k: v.astype(np.float32) if v.dtype == np.float16 else v for k, v in c.items()} for c in golden.run_cases(model)
    ]
    config = models.load_config(fields)
    check = check_bert if name == "bert-base" else check_block
    check(how, config, golden.weights(model), cases)
