"""Reading configurations, the rule that scales them, and what the blocks are without the compiler."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import configs
import dvm
from dvm import models
from tests.models import harness

DECODERS = [n for n in configs.model_names() if n not in ("bert-base", "mmoe")]


def fields_of(name):
    return json.loads(configs.model_file(name).read_text())


def test_names():
    assert configs.model_names() == (
        "bert-base",
        "llama-2-7b",
        "llama-3.1-8b",
        "llama-3.2-1b",
        "mmoe",
        "qwen2.5-0.5b",
        "qwen2.5-7b",
        "qwen3-0.6b",
    )


# hidden, intermediate, heads, key/value heads, head_dim, layers, vocabulary; parameters of one layer as published models have them
REAL = {
    "qwen2.5-0.5b": (896, 4864, 14, 2, 64, 24, 151936),
    "qwen2.5-7b": (3584, 18944, 28, 4, 128, 28, 152064),
    "qwen3-0.6b": (1024, 3072, 16, 8, 128, 28, 151936),
    "llama-2-7b": (4096, 11008, 32, 32, 128, 32, 32000),
    "llama-3.2-1b": (2048, 8192, 32, 8, 64, 16, 128256),
    "llama-3.1-8b": (4096, 14336, 32, 8, 128, 32, 128256),
}
TOTAL_PARAMETERS = {
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "llama-2-7b": 6_738_415_616,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.1-8b": 8_030_261_248,
}


@pytest.mark.parametrize("name", DECODERS)
def test_real_dimensions(name):
    c = models.load_config(name)
    assert REAL[name] == (
        c.hidden_size,
        c.intermediate_size,
        c.num_attention_heads,
        c.num_key_value_heads,
        c.head_dim,
        c.num_hidden_layers,
        c.vocab_size,
    )
    whole = models.param_specs(c, n_layers=c.num_hidden_layers)
    assert sum(p.size for p in jax.tree.leaves(whole)) == TOTAL_PARAMETERS[name]


def test_family_traits():
    qwen2, qwen3, llama = (models.load_config(n) for n in ("qwen2.5-0.5b", "qwen3-0.6b", "llama-3.2-1b"))
    assert (qwen2.qkv_bias, qwen2.qk_norm, qwen2.o_bias) == (True, False, False)
    assert (qwen3.qkv_bias, qwen3.qk_norm) == (False, True)
    assert llama.rope_scaling == models.RopeScaling("llama3", 32.0, 1.0, 4.0, 8192)


def test_names_paths_and_fields_are_the_same(tmp_path):
    known = models.load_config("qwen2.5-0.5b")
    assert models.load_config("Qwen2.5-0.5B") == known
    path = tmp_path / "config.json"
    path.write_text(json.dumps(fields_of("qwen2.5-0.5b")))
    for source in (path, str(path), tmp_path, fields_of("qwen2.5-0.5b")):
        assert dataclasses.replace(models.load_config(source), name=known.name) == known


def test_rope_fields_old_and_new():
    old = fields_of("llama-3.1-8b")
    new = {k: v for k, v in old.items() if k not in ("rope_theta", "rope_scaling")}
    new["rope_parameters"] = {"rope_theta": old["rope_theta"], **old["rope_scaling"]}
    assert models.load_config(new) == models.load_config(old)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "unknown model_type 'gpt2'; known are bert, llama"),
        ({"model_type": None}, "'model_type' is missing"),
        ({"hidden_size": None}, "'hidden_size' is missing"),
        ({"hidden_size": "896"}, "'hidden_size' must be a positive integer, got '896'"),
        ({"vocab_size": 0}, "'vocab_size' must be a positive integer, got 0"),
        ({"num_hidden_layers": True}, "'num_hidden_layers' must be a positive integer, got True"),
        ({"rms_norm_eps": "small"}, "'rms_norm_eps' must be a positive number"),
        ({"tie_word_embeddings": 1}, "'tie_word_embeddings' must be true or false"),
        ({"hidden_act": "swish2"}, "hidden_act 'swish2' is not supported"),
        ({"num_key_value_heads": 4}, "num_attention_heads = 14 is not a multiple of num_key_value_heads = 4"),
        ({"hidden_size": 900}, "hidden_size = 900 is not a multiple of num_attention_heads = 14"),
        ({"head_dim": 63}, "head_dim = 63 is not a multiple of 2"),
        ({"use_sliding_window": True}, "use_sliding_window is not supported"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_type 'yarn' is not supported"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_scaling': field 'low_freq_factor' is missing"),
        ({"rope_scaling": 4}, "rope_scaling must be an object"),
    ],
)
def test_bad_fields(change, message):
    with pytest.raises(dvm.CompileError, match="model config") as e:
        models.load_config(fields_of("qwen2.5-0.5b") | change)
    assert message in str(e.value)


def test_bad_files(tmp_path):
    with pytest.raises(dvm.CompileError, match="neither a file nor a known name; known are bert-base"):
        models.load_config("no-such-model")
    for text, message in (("{", "is not JSON"), ("[1]", "must be a JSON object, got list"), ("\xff", "is not JSON")):
        (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
        with pytest.raises(dvm.CompileError, match=message):
            models.load_config(tmp_path)


@pytest.mark.parametrize("name", configs.model_names())
def test_scaling_rule(name):
    c = models.load_config(name)
    small = models.scaled(c)
    if isinstance(c, models.MMoEConfig):
        assert small == c
        return
    assert small.head_dim == c.head_dim
    assert small.hidden_size % 128 == 0 and small.intermediate_size % 128 == 0
    assert small.hidden_size <= 512 and small.intermediate_size <= 2432
    if isinstance(c, models.DecoderConfig):
        assert small.num_key_value_heads == 2
        gqa = c.num_attention_heads // c.num_key_value_heads
        assert small.num_attention_heads == 2 * gqa
        assert dataclasses.replace(small, **{f: getattr(c, f) for f in SCALED_FIELDS}) == c


SCALED_FIELDS = (
    "name",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16], ids=lambda d: d.__name__)
@pytest.mark.parametrize("name", configs.model_names())
def test_traces_with_symbolic_dims(name, dtype):
    """One jaxpr for every shape: the output shapes are expressions, and the parameters' specs match the parameters."""
    config = models.load_config(name)
    b, s, p = jax.export.symbolic_shape("b, s, p")
    params = models.param_specs(config, dtype)
    specs = [
        jax.ShapeDtypeStruct(
            [{"b": b, "s": s, "p": p}.get(str(d), d) for d in map(_text_or_int, spec.shape)], spec.dtype
        )
        for spec in harness.specs(config, dtype)
    ]
    outs = jax.make_jaxpr(models.block(config))(params, *specs).out_avals
    assert all(o.dtype == dtype for o in outs)
    if isinstance(config, models.DecoderConfig):
        kv = config.num_key_value_heads
        assert [o.shape for o in outs] == [(b, s, config.hidden_size), *[(b, kv, p + s, config.head_dim)] * 2]
    elif isinstance(config, models.BertConfig):
        assert [o.shape for o in outs] == [(b, s, config.hidden_size)]
    else:
        assert [o.shape for o in outs] == [(b, 1)] * config.num_tasks


def _text_or_int(dim):
    # A dimension that may be 0 is traced as ``p_ - 1``: back to its name.
    return dim if isinstance(dim, int) else str(dim).split("_")[0]


@pytest.mark.parametrize("name", configs.model_names())
def test_specs_match_parameters(name):
    config = models.scaled(models.load_config(name))
    shape = jax.tree.map(lambda a: (a.shape, a.dtype), models.init_params(config, dtype=jnp.bfloat16))
    assert shape == jax.tree.map(lambda a: (a.shape, a.dtype), models.param_specs(config, jnp.bfloat16))


def test_same_seed_same_parameters_in_any_dtype():
    config = models.scaled(models.load_config("qwen3-0.6b"))
    wide, narrow = models.init_params(config, 7), models.init_params(config, 7, jnp.bfloat16)
    np.testing.assert_array_equal(wide["q"].astype(jnp.bfloat16), narrow["q"])
    assert not np.array_equal(wide["q"], models.init_params(config, 8)["q"])


@pytest.mark.parametrize("name", DECODERS)
def test_prefill_in_chunks_is_prefill(name):
    """The whole sequence at once, token by token through the cache, and the block without a cache agree."""
    config = models.scaled(models.load_config(name))
    params = models.init_params(config)
    fn = harness.jit(models.block(config))
    x, k, v = harness.inputs(config, {"b": 2, "s": 11, "p": 0}, jnp.float32)
    y, whole_k, whole_v = fn(params, x, k, v)
    parts = []
    for start, stop in ((0, 5), (5, 6), (6, 11)):
        part, k, v = fn(params, x[:, start:stop], k, v)
        parts.append(np.asarray(part))
    assert harness.error(np.concatenate(parts, axis=1), np.asarray(y)) <= 2e-6
    assert harness.error(np.asarray(k), np.asarray(whole_k)) <= 2e-6
    assert harness.error(np.asarray(v), np.asarray(whole_v)) <= 2e-6
    assert harness.error(np.asarray(models.prefill_block(config)(params, x)), np.asarray(y)) <= 2e-6


def test_left_padding_gives_what_the_row_alone_gives():
    config = models.scaled(models.load_config("qwen2.5-0.5b"))
    params = models.init_params(config)
    fn = harness.jit(models.block(config))
    x, k, v = harness.inputs(config, {"b": 1, "s": 6, "p": 0}, jnp.float32)
    alone = np.asarray(fn(params, x, k, v)[0])
    padded = np.concatenate([np.full((1, 3, config.hidden_size), 5, np.float32), x], axis=1)
    slots = np.arange(9)[None]
    y = fn(params, padded, k, v, np.maximum(slots - 3, 0).astype(np.int32), (slots >= 3).astype(np.int32))[0]
    assert harness.error(np.asarray(y)[:, 3:], alone) <= 2e-6


def test_decoder_only_builders_say_so():
    bert = models.load_config("bert-base")
    for build in (models.prefill_block, lambda c: models.causal_lm(c, 2)):
        with pytest.raises(dvm.CompileError, match="bert is not a decoder"):
            build(bert)
    with pytest.raises(dvm.CompileError, match="whole model is built for decoders only"):
        models.init_params(bert, n_layers=2)


def test_hf_tensors_are_checked():
    config = models.scaled(models.load_config("qwen3-0.6b"))
    with pytest.raises(dvm.CompileError, match=r"tensor 'input_layernorm.weight' is missing"):
        models.params_from_hf(config, {})
    with pytest.raises(dvm.CompileError, match=r"has shape \(3,\), expected \(128,\)"):
        models.params_from_hf(config, {"input_layernorm.weight": np.zeros(3)})
