"""The blocks of ``dvm.models`` and the small workloads in PyTorch, with the same weights; for PyTorch and, exported, for ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from dvm.models import BertConfig, DecoderConfig, MMoEConfig, rope_frequencies

Tensor = Any  # torch.Tensor: PyTorch is optional and not type-checked
Params = dict[str, Any]


def _dense(p: Params, name: str, x: Tensor) -> Tensor:
    y = x @ p[name]
    return y + p[f"{name}_bias"] if f"{name}_bias" in p else y


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def _rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    x1, x2 = x.chunk(2, -1)
    return torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin], -1)


def decoder_layer(config: DecoderConfig, p: Params, x: Tensor, past: tuple[Tensor, Tensor] | None = None) -> Any:
    """``y[b, s, hidden]`` of ``x``; with a cache (keys and values ``[b, kv, past, head_dim]``) also the longer cache."""
    b, s, _ = x.shape
    heads, kv, hd = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    h = _rms_norm(x, p["input_norm"], config.rms_norm_eps)
    q = _dense(p, "q", h).view(b, s, heads, hd).transpose(1, 2)
    k = _dense(p, "k", h).view(b, s, kv, hd).transpose(1, 2)
    v = _dense(p, "v", h).view(b, s, kv, hd).transpose(1, 2)
    start = 0 if past is None else past[0].shape[2]
    angles = (torch.arange(s) + start)[:, None] * p["frequencies"]
    cos, sin = angles.cos(), angles.sin()
    q, k = _rope(q, cos, sin), _rope(k, cos, sin)
    visible = None
    if past is not None:
        k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        visible = torch.arange(k.shape[2]) <= (torch.arange(s) + start)[:, None]
    rep = heads // kv
    keys, values = (t[:, :, None].expand(b, kv, rep, t.shape[2], hd).reshape(b, heads, t.shape[2], hd) for t in (k, v))
    out = F.scaled_dot_product_attention(q, keys, values, attn_mask=visible, is_causal=past is None)
    x = x + _dense(p, "o", out.transpose(1, 2).reshape(b, s, heads * hd))
    h = _rms_norm(x, p["post_norm"], config.rms_norm_eps)
    y = x + _dense(p, "down", F.silu(_dense(p, "gate", h)) * _dense(p, "up", h))
    return y if past is None else (y, k, v)


def bert_layer(config: BertConfig, p: Params, x: Tensor, mask: Tensor) -> Tensor:
    """``y[b, s, hidden]`` of ``x`` and ``mask[b, s]`` (0 hides a key)."""
    b, s, _ = x.shape
    d = config.hidden_size  # a number, which the exporter wants
    heads, eps = config.num_attention_heads, config.layer_norm_eps
    q, k, v = (_dense(p, n, x).view(b, s, heads, config.head_dim).transpose(1, 2) for n in "qkv")
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=(mask != 0)[:, None, None, :])
    out = _dense(p, "o", out.transpose(1, 2).reshape(b, s, d))
    x = F.layer_norm(x + out, (d,), p["attention_norm"], p["attention_norm_bias"], eps)
    h = F.gelu(_dense(p, "up", x))
    return F.layer_norm(x + _dense(p, "down", h), (d,), p["output_norm"], p["output_norm_bias"], eps)


def mmoe(config: MMoEConfig, p: Params, x: Tensor) -> tuple[Tensor, ...]:
    """One probability ``[b, 1]`` a task, of ``x[b, features]``."""
    h = torch.relu(torch.einsum("bf,efh->beh", x, p["expert_in"]) + p["expert_in_bias"])
    experts = torch.relu(torch.einsum("beh,eho->beo", h, p["expert_out"]) + p["expert_out_bias"])
    outputs = []
    for i in range(config.num_tasks):
        gate = torch.softmax(x @ p[f"gate{i}"], -1)
        mixed = (gate[:, None, :] @ experts)[:, 0]
        tower = torch.relu(_dense(p, f"tower{i}_in", mixed))
        outputs.append(torch.sigmoid(_dense(p, f"tower{i}_out", tower)))
    return tuple(outputs)


class Module(torch.nn.Module):
    """A function of (params, *inputs) with its parameters inside."""

    def __init__(self, fn: Callable[..., Any], params: Any) -> None:
        super().__init__()
        self.fn = fn
        self.params = _tensors(params)

    def forward(self, *inputs: Tensor) -> Any:
        """The function at its parameters."""
        return self.fn(self.params, *inputs)


def _tensors(params: Any) -> Any:
    if isinstance(params, dict):
        return {k: _tensors(v) for k, v in params.items()}
    if isinstance(params, list):
        return [_tensors(v) for v in params]
    return torch.from_numpy(np.array(params))


def decoder_params(config: DecoderConfig, params: Params) -> Params:
    """The layer's parameters with RoPE's frequencies, which PyTorch models keep as a buffer."""
    return {**params, "frequencies": rope_frequencies(config)}
