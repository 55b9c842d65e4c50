"""JAX blocks of the model families in ``configs/models``, written as a model author writes them.

Every function here works for any batch, sequence and cache length, and traces with symbolic ones. Weights are stored ``[in, out]``.
Norms, softmax and RoPE are computed in float32, everything else in the dtype of the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dvm.model_config import BertConfig, Config, DecoderConfig, MMoEConfig, RopeScaling, load_config, scaled
from vm.errors import CompileError

__all__ = [
    "BertConfig",
    "Config",
    "DecoderConfig",
    "MMoEConfig",
    "RopeScaling",
    "as_decoder",
    "block",
    "causal_lm",
    "init_params",
    "load_config",
    "param_specs",
    "params_from_hf",
    "prefill_block",
    "scaled",
]

Array = jax.Array
Params = dict[str, Any]
Cache = tuple[Array, Array]

_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": partial(jax.nn.gelu, approximate=False),
    "gelu_new": partial(jax.nn.gelu, approximate=True),
    "gelu_pytorch_tanh": partial(jax.nn.gelu, approximate=True),
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
}


# Parameters ----------------------------------------------------------------------------------------------------------


class Param(NamedTuple):
    """One parameter: its shape and the name of the Hugging Face tensor (relative to the layer or the model) that holds it."""

    shape: tuple[int, ...]
    hf: str = ""


def _decoder_layer_params(c: DecoderConfig) -> dict[str, Param]:
    d, f, hd = c.hidden_size, c.intermediate_size, c.head_dim
    q, kv = c.num_attention_heads * hd, c.num_key_value_heads * hd
    table = {
        "input_norm": Param((d,), "input_layernorm.weight"),
        "post_norm": Param((d,), "post_attention_layernorm.weight"),
    }
    dense = [
        ("q", "self_attn.q_proj", d, q, c.qkv_bias),
        ("k", "self_attn.k_proj", d, kv, c.qkv_bias),
        ("v", "self_attn.v_proj", d, kv, c.qkv_bias),
        ("o", "self_attn.o_proj", q, d, c.o_bias),
        ("gate", "mlp.gate_proj", d, f, c.mlp_bias),
        ("up", "mlp.up_proj", d, f, c.mlp_bias),
        ("down", "mlp.down_proj", f, d, c.mlp_bias),
    ]
    for name, hf, rows, cols, bias in dense:
        table[name] = Param((rows, cols), f"{hf}.weight")
        if bias:
            table[f"{name}_bias"] = Param((cols,), f"{hf}.bias")
    if c.qk_norm:
        table["q_norm"] = Param((hd,), "self_attn.q_norm.weight")
        table["k_norm"] = Param((hd,), "self_attn.k_norm.weight")
    return table


def _bert_layer_params(c: BertConfig) -> dict[str, Param]:
    d, f = c.hidden_size, c.intermediate_size
    dense = [
        ("q", "attention.self.query", d, d),
        ("k", "attention.self.key", d, d),
        ("v", "attention.self.value", d, d),
        ("o", "attention.output.dense", d, d),
        ("up", "intermediate.dense", d, f),
        ("down", "output.dense", f, d),
    ]
    table = {}
    for name, hf, rows, cols in dense:
        table[name] = Param((rows, cols), f"{hf}.weight")
        table[f"{name}_bias"] = Param((cols,), f"{hf}.bias")
    for name, hf in (("attention_norm", "attention.output.LayerNorm"), ("output_norm", "output.LayerNorm")):
        table[name] = Param((d,), f"{hf}.weight")
        table[f"{name}_bias"] = Param((d,), f"{hf}.bias")
    return table


def _mmoe_params(c: MMoEConfig) -> dict[str, Param]:
    e, t, x = c.num_experts, c.num_tasks, c.num_features
    hidden, out, tower = c.expert_hidden_size, c.expert_output_size, c.tower_hidden_size
    table = {
        "expert_in": Param((e, x, hidden)),
        "expert_in_bias": Param((e, hidden)),
        "expert_out": Param((e, hidden, out)),
        "expert_out_bias": Param((e, out)),
    }
    for i in range(t):
        table[f"gate{i}"] = Param((x, e))
        table[f"tower{i}_in"] = Param((out, tower))
        table[f"tower{i}_in_bias"] = Param((tower,))
        table[f"tower{i}_out"] = Param((tower, 1))
        table[f"tower{i}_out_bias"] = Param((1,))
    return table


def _layer_params(config: Config) -> dict[str, Param]:
    if isinstance(config, DecoderConfig):
        return _decoder_layer_params(config)
    if isinstance(config, BertConfig):
        return _bert_layer_params(config)
    return _mmoe_params(config)


def _model_params(config: Config) -> dict[str, Param]:
    """What a whole model has besides its layers."""
    if not isinstance(config, DecoderConfig):
        raise CompileError(
            f"model config '{config.name}': a whole model is built for decoders only, not for {config.model_type}"
        )
    table = {
        "embed": Param((config.vocab_size, config.hidden_size), "model.embed_tokens.weight"),
        "norm": Param((config.hidden_size,), "model.norm.weight"),
    }
    if not config.tie_word_embeddings:
        table["lm_head"] = Param((config.hidden_size, config.vocab_size), "lm_head.weight")
    return table


def _build(config: Config, n_layers: int | None, make: Callable[[str, Param], Any]) -> Params:
    """The parameter tree: of one layer, or of a model with ``n_layers``; ``make`` gets the prefix of the layer's Hugging Face names."""
    layer = _layer_params(config)
    if n_layers is None:
        return {name: make("", p) for name, p in layer.items()}
    tree: Params = {name: make("", p) for name, p in _model_params(config).items()}
    tree["layers"] = [{name: make(f"model.layers.{i}.", p) for name, p in layer.items()} for i in range(n_layers)]
    return tree


def param_specs(config: Config, dtype: Any = jnp.float32, n_layers: int | None = None) -> Params:
    """Shapes and dtypes of the parameters, as ``init_params`` makes them."""
    return _build(config, n_layers, lambda _, p: jax.ShapeDtypeStruct(p.shape, dtype))


def init_params(config: Config, seed: int = 0, dtype: Any = jnp.float32, n_layers: int | None = None) -> Params:
    """Random parameters of one layer, or with ``n_layers`` of a whole decoder model (embedding, layers, final norm, LM head).

    Matrices are normal with variance 1 / rows, norm weights near 1, biases near 0: activations keep their size and every parameter
    has an effect on the result. The values are drawn in float32, so that the same seed gives the same weights, rounded, in any dtype.
    """
    rng = np.random.default_rng(seed)

    def make(_: str, p: Param) -> Array:
        value = rng.standard_normal(p.shape, np.float32)
        if len(p.shape) > 1:
            value *= p.shape[-2] ** -0.5
        else:
            value *= 0.1
        return jnp.asarray(value, dtype)

    params = _build(config, n_layers, make)
    return jax.tree.map_with_path(lambda path, v: v + jnp.ones((), dtype) if _is_norm(path) else v, params)


def _is_norm(path: tuple[Any, ...]) -> bool:
    return str(path[-1].key).endswith("norm")


def params_from_hf(
    config: Config, tensors: Mapping[str, np.ndarray], dtype: Any = jnp.float32, n_layers: int | None = None
) -> Params:
    """Parameters from Hugging Face tensors: one layer's (names relative to the layer), or a whole causal LM's with ``n_layers``.

    Raises ``CompileError`` for a tensor that is missing or has another shape than the configuration says.
    """
    if isinstance(config, MMoEConfig):
        raise CompileError("MMoE is a family of our own: there are no Hugging Face tensors for it")

    def make(prefix: str, p: Param) -> Array:
        name = prefix + p.hf
        if name not in tensors:
            raise CompileError(f"model config '{config.name}': tensor '{name}' is missing")
        value = np.asarray(tensors[name])
        if len(p.shape) == 2 and "embed" not in p.hf:
            value = value.T  # torch.nn.Linear stores [out, in]
        if value.shape != p.shape:
            raise CompileError(
                f"model config '{config.name}': tensor '{name}' has shape {value.shape}, expected {p.shape}"
            )
        return jnp.asarray(value, dtype)

    return _build(config, n_layers, make)


# Pieces --------------------------------------------------------------------------------------------------------------


def _dense(params: Params, name: str, x: Array) -> Array:
    """x[..., in] @ w[in, out] plus the bias, if there is one."""
    y = x @ params[name]
    bias = params.get(f"{name}_bias")
    return y if bias is None else y + bias


def _rms_norm(x: Array, weight: Array, eps: float) -> Array:
    x32 = x.astype(jnp.float32)
    variance = jnp.mean(jnp.square(x32), axis=-1, keepdims=True)
    return (x32 * jax.lax.rsqrt(variance + eps)).astype(x.dtype) * weight


def _layer_norm(params: Params, name: str, x: Array, eps: float) -> Array:
    x32 = x.astype(jnp.float32)
    centred = x32 - jnp.mean(x32, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    y = centred * jax.lax.rsqrt(variance + eps) * params[name] + params[f"{name}_bias"]
    return y.astype(x.dtype)


def rope_frequencies(config: DecoderConfig) -> np.ndarray:
    """RoPE's angle per position for each pair of a head, float32 [head_dim / 2].

    Llama 3's scaling leaves wavelengths below original / high_freq_factor alone, divides the frequency of those above
    original / low_freq_factor by ``factor`` and goes from one to the other linearly in the number of turns (Llama 3.1, model card code).
    """
    hd, scaling = config.head_dim, config.rope_scaling
    frequency = config.rope_theta ** -(np.arange(0, hd, 2) / hd)
    if scaling is not None and scaling.rope_type == "linear":
        frequency = frequency / scaling.factor
    elif scaling is not None:
        turns = scaling.original_max_position_embeddings * frequency / (2 * np.pi)
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
        frequency = keep * frequency + (1 - keep) * frequency / scaling.factor
    return frequency.astype(np.float32)


def _rope(x: Array, cos: Array, sin: Array) -> Array:
    """Turns the pairs (i, i + head_dim / 2) of x[b, heads, s, head_dim] by the angles behind cos and sin [b | 1, 1, s, head_dim / 2]."""
    x1, x2 = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([x1 * cos - x2 * sin, x2 * cos + x1 * sin], axis=-1).astype(x.dtype)


def _split_heads(x: Array, heads: int, head_dim: int) -> Array:
    b, s, _ = x.shape
    return x.reshape(b, s, heads, head_dim)


# Llama, Qwen2, Qwen3 --------------------------------------------------------------------------------------------------


def _attention(
    config: DecoderConfig,
    params: Params,
    x: Array,
    past: Cache | None = None,
    positions: Array | None = None,
    mask: Array | None = None,
) -> tuple[Array, Cache]:
    b, s, _ = x.shape
    heads, kv_heads, head_dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    q = _split_heads(_dense(params, "q", x), heads, head_dim)
    k = _split_heads(_dense(params, "k", x), kv_heads, head_dim)
    v = _split_heads(_dense(params, "v", x), kv_heads, head_dim)
    if config.qk_norm:
        q = _rms_norm(q, params["q_norm"], config.rms_norm_eps)
        k = _rms_norm(k, params["k_norm"], config.rms_norm_eps)
    q, k, v = (t.swapaxes(1, 2) for t in (q, k, v))

    p = 0 if past is None else past[0].shape[2]
    slots = jnp.arange(s, dtype=jnp.int32) + p  # where in the cache each new token lies
    angles = (slots if positions is None else positions[:, None, :])[..., None] * rope_frequencies(config)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    q, k = _rope(q, cos, sin), _rope(k, cos, sin)
    if past is not None:
        k = jnp.concatenate([past[0], k], axis=2)
        v = jnp.concatenate([past[1], v], axis=2)

    grouped = q.reshape(b, kv_heads, heads // kv_heads, s, head_dim)
    scores = jnp.einsum("bgrqd,bgkd->bgrqk", grouped, k, preferred_element_type=jnp.float32) * head_dim**-0.5
    visible = jnp.arange(p + s, dtype=jnp.int32) <= slots[:, None]
    if mask is not None:
        visible = visible & (mask != 0)[:, None, None, None, :]
    scores = jnp.where(visible, scores, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
    out = jnp.einsum("bgrqk,bgkd->bgrqd", weights, v)
    out = out.transpose(0, 3, 1, 2, 4).reshape(b, s, heads * head_dim)
    return _dense(params, "o", out), (k, v)


def _decoder_layer(config: DecoderConfig, params: Params, x: Array, *args: Any) -> tuple[Array, Cache]:
    attended, cache = _attention(config, params, _rms_norm(x, params["input_norm"], config.rms_norm_eps), *args)
    x = x + attended
    h = _rms_norm(x, params["post_norm"], config.rms_norm_eps)
    gated = _ACTIVATIONS[config.hidden_act](_dense(params, "gate", h)) * _dense(params, "up", h)
    return x + _dense(params, "down", gated), cache


def _decoder_block(config: DecoderConfig) -> Callable[..., tuple[Array, Array, Array]]:
    def decoder_block(
        params: Params,
        x: Array,
        past_k: Array,
        past_v: Array,
        positions: Array | None = None,
        mask: Array | None = None,
    ) -> tuple[Array, Array, Array]:
        y, (k, v) = _decoder_layer(config, params, x, (past_k, past_v), positions, mask)
        return y, k, v

    return decoder_block


def prefill_block(config: Config) -> Callable[[Params, Array], Array]:
    """The decoder block without a cache: ``fn(params, x[b, s, hidden]) -> y[b, s, hidden]``, causal. Llama, Qwen2 and Qwen3 only."""
    decoder = as_decoder(config)

    def prefill(params: Params, x: Array) -> Array:
        return _decoder_layer(decoder, params, x)[0]

    return prefill


def causal_lm(config: Config, n_layers: int) -> Callable[[Params, Array, Sequence[Cache]], tuple[Array, list[Cache]]]:
    """A whole decoder with ``n_layers``: ``fn(params, ids[b, s], past) -> (logits[b, s, vocab], cache)``.

    ``past`` and the cache are lists with a pair of keys and values a layer, as in ``block``; ``params`` come from
    ``init_params(config, ..., n_layers=n_layers)``. Token ids are of an integer type.
    """
    decoder = as_decoder(config)

    def lm(params: Params, ids: Array, past: Sequence[Cache]) -> tuple[Array, list[Cache]]:
        x = params["embed"][ids]
        cache = []
        for i in range(n_layers):
            x, layer_cache = _decoder_layer(decoder, params["layers"][i], x, past[i])
            cache.append(layer_cache)
        x = _rms_norm(x, params["norm"], decoder.rms_norm_eps)
        head = params["embed"].T if decoder.tie_word_embeddings else params["lm_head"]
        return x @ head, cache

    return lm


def as_decoder(config: Config) -> DecoderConfig:
    """``config`` if it is of a decoder family, else a ``CompileError``."""
    if not isinstance(config, DecoderConfig):
        raise CompileError(f"model config '{config.name}': {config.model_type} is not a decoder")
    return config


# BERT ----------------------------------------------------------------------------------------------------------------


def _bert_layer(config: BertConfig) -> Callable[[Params, Array, Array], Array]:
    heads, head_dim, eps = config.num_attention_heads, config.head_dim, config.layer_norm_eps
    activation = _ACTIVATIONS[config.hidden_act]

    def bert_layer(params: Params, x: Array, mask: Array) -> Array:
        q, k, v = (_split_heads(_dense(params, name, x), heads, head_dim).swapaxes(1, 2) for name in ("q", "k", "v"))
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k, preferred_element_type=jnp.float32) * head_dim**-0.5
        scores = jnp.where((mask != 0)[:, None, None, :], scores, jnp.finfo(jnp.float32).min)
        weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
        out = jnp.einsum("bhqk,bhkd->bhqd", weights, v).swapaxes(1, 2).reshape(x.shape)
        x = _layer_norm(params, "attention_norm", x + _dense(params, "o", out), eps)
        h = activation(_dense(params, "up", x))
        return _layer_norm(params, "output_norm", x + _dense(params, "down", h), eps)

    return bert_layer


# MMoE ----------------------------------------------------------------------------------------------------------------


def _mmoe_block(config: MMoEConfig) -> Callable[[Params, Array], tuple[Array, ...]]:
    activation = _ACTIVATIONS[config.hidden_act]

    def mmoe(params: Params, x: Array) -> tuple[Array, ...]:
        h = activation(jnp.einsum("bf,efh->beh", x, params["expert_in"]) + params["expert_in_bias"])
        experts = activation(jnp.einsum("beh,eho->beo", h, params["expert_out"]) + params["expert_out_bias"])
        outputs = []
        for i in range(config.num_tasks):
            gate = jax.nn.softmax((x @ params[f"gate{i}"]).astype(jnp.float32), axis=-1).astype(x.dtype)
            mixed = jnp.einsum("be,beo->bo", gate, experts)
            tower = activation(_dense(params, f"tower{i}_in", mixed))
            outputs.append(jax.nn.sigmoid(_dense(params, f"tower{i}_out", tower)))
        return tuple(outputs)

    return mmoe


def block(config: Config) -> Callable[..., Any]:
    """The JAX function of one block of ``config``; ``params`` come from ``init_params(config, ...)``.

    - Llama, Qwen2, Qwen3: ``fn(params, x[b, s, hidden], past_k[b, kv, p, head_dim], past_v[b, kv, p, head_dim], positions=None,
      mask=None) -> (y[b, s, hidden], k[b, kv, p + s, head_dim], v[b, kv, p + s, head_dim])``. One function for prefill (p = 0) and decode:
      token i attends to the cache and to the new tokens up to itself. RoPE's positions are p .. p + s - 1 unless given as integers
      ``positions[b, s]``; ``mask[b, p + s]`` hides the keys where it is 0 (padding).
    - BERT: ``fn(params, x[b, s, hidden], mask[b, s]) -> y[b, s, hidden]``; keys with mask 0 are hidden.
    - MMoE: ``fn(params, x[b, features]) -> tuple`` of one probability [b, 1] a task.
    """
    if isinstance(config, DecoderConfig):
        return _decoder_block(config)
    if isinstance(config, BertConfig):
        return _bert_layer(config)
    return _mmoe_block(config)
