"""Model configurations: a Hugging Face ``config.json`` read into one frozen dataclass a family, and scaled down for tests."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import configs
from vm.errors import CompileError

ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu")
_REQUIRED = object()


@dataclass(frozen=True)
class RopeScaling:
    """How RoPE's frequencies are stretched: ``llama3`` (a smooth band between two wavelengths) or ``linear`` (all alike)."""

    rope_type: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_max_position_embeddings: int = 0


@dataclass(frozen=True)
class DecoderConfig:
    """A Llama-like decoder: families ``llama``, ``qwen2`` and ``qwen3``. Field names are those of ``config.json``."""

    name: str
    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    hidden_act: str
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool


@dataclass(frozen=True)
class BertConfig:
    """A BERT encoder (post-layer-norm). Field names are those of ``config.json``."""

    name: str
    model_type: str
    vocab_size: int
    type_vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int
    hidden_act: str
    layer_norm_eps: float

    @property
    def head_dim(self) -> int:
        """Width of an attention head."""
        return self.hidden_size // self.num_attention_heads


@dataclass(frozen=True)
class MMoEConfig:
    """A multi-gate mixture of experts (Ma et al., KDD 2018): shared experts, and a gate and a tower for each task."""

    name: str
    model_type: str
    num_features: int
    num_experts: int
    expert_hidden_size: int
    expert_output_size: int
    num_tasks: int
    tower_hidden_size: int
    hidden_act: str


Config = DecoderConfig | BertConfig | MMoEConfig


class _Reader:
    """Typed access to the fields of one ``config.json``; every complaint names the file and the field."""

    def __init__(self, name: str, fields: Mapping[str, Any]) -> None:
        self.name = name
        self.fields = fields

    def error(self, message: str) -> CompileError:
        return CompileError(f"model config '{self.name}': {message}")

    def get(self, key: str, default: Any = _REQUIRED) -> Any:
        """The field's value; ``null`` counts as absent."""
        value = self.fields.get(key)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise self.error(f"field '{key}' is missing")
        return default

    def size(self, key: str, default: Any = _REQUIRED) -> int:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.error(f"field '{key}' must be a positive integer, got {value!r}")
        return value

    def number(self, key: str, default: Any = _REQUIRED) -> float:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise self.error(f"field '{key}' must be a positive number, got {value!r}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.error(f"field '{key}' must be true or false, got {value!r}")
        return value

    def activation(self, default: Any = _REQUIRED) -> str:
        value = self.get("hidden_act", default)
        if value not in ACTIVATIONS:
            raise self.error(f"hidden_act {value!r} is not supported; known are {', '.join(ACTIVATIONS)}")
        return value

    def divides(self, divisor: str, d: int, dividend: str, n: int) -> None:
        if n % d:
            raise self.error(f"{dividend} = {n} is not a multiple of {divisor} = {d}")


def _rope(r: _Reader) -> tuple[float, RopeScaling | None]:
    """RoPE's base and scaling, from ``rope_theta`` and ``rope_scaling`` or from the newer ``rope_parameters`` that holds both."""
    scaling = r.get("rope_parameters", None) or r.get("rope_scaling", None) or {}
    if not isinstance(scaling, Mapping):
        raise r.error(f"rope_scaling must be an object, got {scaling!r}")
    s = _Reader(f"{r.name}, rope_scaling", scaling)
    theta = s.number("rope_theta", r.get("rope_theta", 10000.0))
    kind = s.get("rope_type", s.get("type", "default"))
    if s.get("partial_rotary_factor", r.get("partial_rotary_factor", 1.0)) != 1.0:
        raise r.error("partial_rotary_factor other than 1 is not supported")
    if kind == "default":
        return theta, None
    if kind == "linear":
        return theta, RopeScaling("linear", s.number("factor"))
    if kind != "llama3":
        raise r.error(f"rope_type {kind!r} is not supported; known are default, linear and llama3")
    low, high = s.number("low_freq_factor"), s.number("high_freq_factor")
    if high <= low:
        raise s.error(f"high_freq_factor = {high} must be above low_freq_factor = {low}")
    original = s.size("original_max_position_embeddings", r.get("max_position_embeddings", 2048))
    return theta, RopeScaling("llama3", s.number("factor"), low, high, original)


def _read_decoder(r: _Reader, model_type: str) -> DecoderConfig:
    heads = r.size("num_attention_heads")
    kv_heads = r.size("num_key_value_heads", heads)
    hidden = r.size("hidden_size")
    r.divides("num_key_value_heads", kv_heads, "num_attention_heads", heads)
    if r.get("head_dim", None) is None:
        r.divides("num_attention_heads", heads, "hidden_size", hidden)
    head_dim = r.size("head_dim", hidden // heads)
    r.divides("2 (RoPE turns pairs)", 2, "head_dim", head_dim)
    if r.flag("use_sliding_window", False):
        raise r.error("use_sliding_window is not supported: every layer attends to the whole cache")
    theta, scaling = _rope(r)
    attention_bias = r.flag("attention_bias", False)
    return DecoderConfig(
        name=r.name,
        model_type=model_type,
        vocab_size=r.size("vocab_size"),
        hidden_size=hidden,
        intermediate_size=r.size("intermediate_size"),
        num_hidden_layers=r.size("num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=r.size("max_position_embeddings"),
        hidden_act=r.activation(),
        rms_norm_eps=r.number("rms_norm_eps"),
        rope_theta=theta,
        rope_scaling=scaling,
        tie_word_embeddings=r.flag("tie_word_embeddings", False),
        qkv_bias=model_type == "qwen2" or attention_bias,  # Qwen2 has these biases without a field that says so
        o_bias=model_type != "qwen2" and attention_bias,
        mlp_bias=model_type == "llama" and r.flag("mlp_bias", False),
        qk_norm=model_type == "qwen3",
    )


def _read_bert(r: _Reader, model_type: str) -> BertConfig:
    heads, hidden = r.size("num_attention_heads"), r.size("hidden_size")
    r.divides("num_attention_heads", heads, "hidden_size", hidden)
    if r.get("position_embedding_type", "absolute") != "absolute":
        raise r.error("only position_embedding_type 'absolute' is supported")
    return BertConfig(
        name=r.name,
        model_type=model_type,
        vocab_size=r.size("vocab_size"),
        type_vocab_size=r.size("type_vocab_size"),
        hidden_size=hidden,
        intermediate_size=r.size("intermediate_size"),
        num_hidden_layers=r.size("num_hidden_layers"),
        num_attention_heads=heads,
        max_position_embeddings=r.size("max_position_embeddings"),
        hidden_act=r.activation(),
        layer_norm_eps=r.number("layer_norm_eps"),
    )


def _read_mmoe(r: _Reader, model_type: str) -> MMoEConfig:
    return MMoEConfig(
        name=r.name,
        model_type=model_type,
        num_features=r.size("num_features"),
        num_experts=r.size("num_experts"),
        expert_hidden_size=r.size("expert_hidden_size"),
        expert_output_size=r.size("expert_output_size"),
        num_tasks=r.size("num_tasks"),
        tower_hidden_size=r.size("tower_hidden_size"),
        hidden_act=r.activation("relu"),
    )


_READERS: dict[str, Callable[[_Reader, str], Config]] = {
    "bert": _read_bert,
    "llama": _read_decoder,
    "mmoe": _read_mmoe,
    "qwen2": _read_decoder,
    "qwen3": _read_decoder,
}


def load_config(source: str | os.PathLike[str] | Mapping[str, Any]) -> Config:
    """Reads a model configuration.

    ``source`` is the name of one that comes with DVM (``configs.model_names()``; upper or lower case), the path of a ``config.json``
    or of the folder that holds it, or the fields themselves. Fields that do not change the computation are ignored.

    Raises ``CompileError`` for a name that does not exist, text that is not JSON, an unknown ``model_type``, a missing or impossible
    field, and a feature that the block builders do not have.
    """
    if isinstance(source, Mapping):
        name, fields = str(source.get("_name_or_path") or source.get("model_type")), dict(source)
    else:
        name, fields = _read_json(source)
    model_type = fields.get("model_type")
    if model_type is None:
        raise CompileError(f"model config '{name}': field 'model_type' is missing")
    if model_type not in _READERS:
        raise CompileError(f"model config '{name}': unknown model_type {model_type!r}; known are {', '.join(_READERS)}")
    return _READERS[model_type](_Reader(name, fields), model_type)


def _read_json(source: str | os.PathLike[str]) -> tuple[str, dict[str, Any]]:
    path = Path(source)
    text = None
    if path.is_dir():
        path = path / "config.json"
    known = configs.model_file(path.name.lower())
    if path.is_file():
        name, text = path.name.removesuffix(".json"), path.read_bytes()
    elif len(path.parts) == 1 and known.is_file():
        name, text = path.name.lower(), known.read_bytes()
    if text is None:
        raise CompileError(
            f"model config '{os.fspath(source)}' is neither a file nor a known name; known are {', '.join(configs.model_names())}"
        )
    try:
        fields = json.loads(text)
    except ValueError as e:
        raise CompileError(f"model config '{os.fspath(source)}' is not JSON: {e}") from e
    if not isinstance(fields, dict):
        raise CompileError(f"model config '{os.fspath(source)}' must be a JSON object, got {type(fields).__name__}")
    return name, fields


def scaled(config: Config, factor: int = 8) -> Config:
    """``config`` with smaller dimensions and the same structure, for tests.

    The rule: key/value heads become 2 (1 where there was 1) and the query heads follow, so that the GQA ratio and head_dim stay; hidden
    and intermediate size are divided by ``factor`` and rounded up to whole rows of 128, which the real ones are; the vocabulary is
    divided by ``factor`` squared, rounded up. BERT's hidden size is heads * head_dim and follows the heads. Everything else stays, and
    an MMoE configuration, small already, is returned as it is.
    """
    if isinstance(config, MMoEConfig):
        return config
    name = f"{config.name}/{factor}"
    vocab = -(-config.vocab_size // factor**2)
    intermediate = _divided(config.intermediate_size, factor)
    if isinstance(config, BertConfig):
        heads = min(2, config.num_attention_heads)
        hidden = heads * config.head_dim
        return replace(
            config,
            name=name,
            vocab_size=vocab,
            hidden_size=hidden,
            intermediate_size=intermediate,
            num_attention_heads=heads,
        )
    kv_heads = min(2, config.num_key_value_heads)
    return replace(
        config,
        name=name,
        vocab_size=vocab,
        hidden_size=_divided(config.hidden_size, factor),
        intermediate_size=intermediate,
        num_attention_heads=kv_heads * (config.num_attention_heads // config.num_key_value_heads),
        num_key_value_heads=kv_heads,
    )


def _divided(size: int, factor: int, row: int = 128) -> int:
    return -(-size // (factor * row)) * row
