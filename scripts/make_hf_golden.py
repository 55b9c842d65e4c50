"""Golden tensors from Hugging Face ``transformers``: tiny random models run in PyTorch on the CPU, float32, eager attention.

    python scripts/make_hf_golden.py            # rewrites tests/data/hf/*.npz; needs the extra ``hf``

Each file holds ``config`` (the model's config.json as text), ``weight/NAME`` (float16, exact: the models run with the rounded values)
and for each case k ``case{k}/in/*`` and ``case{k}/out/*``:

- decoder: in ``ids``, ``past{i}/k`` and ``past{i}/v`` (float16, exact too); out ``logits``, ``hidden`` (the input of layer 0), ``layer0``
  (its output), ``new{i}/k`` and ``new{i}/v`` (what the cache gained);
- BERT: in ``hidden`` and ``mask``; out ``layer0``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

LAYERS = 2
DECODER_CASES = [(2, 7, 0), (1, 1, 0), (1, 1, 7), (2, 5, 11), (3, 1, 19), (1, 17, 40)]  # batch, sequence, past
BERT_CASES = [(1, 1, 0), (1, 11, 0), (2, 13, 5), (3, 9, 8)]  # batch, sequence, padding of the last row

_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_hidden_layers": LAYERS,
    "vocab_size": 61,
}
_DECODER = {**_SIZES, "num_key_value_heads": 2, "max_position_embeddings": 512, "rms_norm_eps": 1e-6}
_BERT = {**_SIZES, "model_type": "bert", "num_hidden_layers": 1, "max_position_embeddings": 64}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MODELS: dict[str, dict[str, Any]] = {
    "qwen2": {"model_type": "qwen2", **_DECODER, "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", **_DECODER, "head_dim": 24, "tie_word_embeddings": True},
    "llama": {"model_type": "llama", **_DECODER, "tie_word_embeddings": False, "rope_parameters": _LLAMA3},
    "bert": {**_BERT, "hidden_act": "gelu"},
    "bert_tanh": {**_BERT, "hidden_act": "gelu_new"},
}


def build(fields: dict[str, Any], seed: int = 0) -> transformers.PreTrainedModel:
    """A model with these config fields and random weights that float16 holds exactly."""
    fields = dict(fields)
    config = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
    kind = transformers.AutoModel if config.model_type == "bert" else transformers.AutoModelForCausalLM
    model = kind.from_config(config, attn_implementation="eager").eval().float()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.ndim > 1:
                noise *= weight.shape[-1] ** -0.5
            else:
                noise = 0.1 * noise + float("norm" in name.lower() and name.endswith("weight"))
            weight.copy_(noise.half().float())
    return model


def weights(model: transformers.PreTrainedModel) -> dict[str, np.ndarray]:
    """The model's tensors, float16, by name."""
    return {name: w.detach().half().numpy() for name, w in model.state_dict().items() if w.is_floating_point()}


def run_decoder(model: transformers.PreTrainedModel, b: int, s: int, past: int, seed: int) -> dict[str, np.ndarray]:
    """One case of a decoder: ``in/*`` and ``out/*`` as in the files. The cache's contents are random."""
    rng = np.random.default_rng(seed)
    c = model.config
    head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    case: dict[str, np.ndarray] = {"in/ids": rng.integers(0, c.vocab_size, (b, s), dtype=np.int32)}
    cache = transformers.DynamicCache()
    for i in range(c.num_hidden_layers):
        for part in "kv":
            shape = (b, c.num_key_value_heads, past, head_dim)
            case[f"in/past{i}/{part}"] = rng.standard_normal(shape).astype(np.float16)
        if past:
            k, v = (torch.from_numpy(case[f"in/past{i}/{part}"]).float() for part in "kv")
            cache.update(k, v, i)
    with torch.no_grad():
        out = model(torch.from_numpy(case["in/ids"]).long(), cache=cache, use_cache=True, output_hidden_states=True)
    case["out/logits"] = out.logits.numpy()
    case["out/hidden"], case["out/layer0"] = (h.numpy() for h in out.hidden_states[:2])
    for i, layer in enumerate(cache.layers):
        case[f"out/new{i}/k"], case[f"out/new{i}/v"] = (t[:, :, past:].numpy() for t in (layer.keys, layer.values))
    return case


def run_bert(model: transformers.PreTrainedModel, b: int, s: int, padding: int, seed: int) -> dict[str, np.ndarray]:
    """One case of BERT's first layer; the last row of the batch has ``padding`` hidden tokens at its end."""
    rng = np.random.default_rng(seed)
    mask = np.ones((b, s), np.int32)
    mask[-1, s - padding :] = 0
    ids = torch.from_numpy(rng.integers(0, model.config.vocab_size, (b, s)))
    with torch.no_grad():
        out = model(ids, attention_mask=torch.from_numpy(mask).long(), output_hidden_states=True)
    return {"in/hidden": out.hidden_states[0].numpy(), "in/mask": mask, "out/layer0": out.hidden_states[1].numpy()}


def run_cases(model: transformers.PreTrainedModel) -> list[dict[str, np.ndarray]]:
    """Every case of the model's family."""
    if model.config.model_type == "bert":
        return [run_bert(model, *case, seed=k) for k, case in enumerate(BERT_CASES)]
    return [run_decoder(model, *case, seed=k) for k, case in enumerate(DECODER_CASES)]


def main() -> None:
    """Writes every golden file."""
    folder = Path(__file__).resolve().parents[1] / "tests" / "data" / "hf"
    folder.mkdir(parents=True, exist_ok=True)
    for name, fields in MODELS.items():
        model = build(fields)
        arrays = {"config": np.array(json.dumps(model.config.to_dict(), sort_keys=True))}
        arrays |= {f"weight/{n}": w for n, w in weights(model).items()}
        for k, case in enumerate(run_cases(model)):
            arrays |= {f"case{k}/{n}": a for n, a in case.items()}
        path = folder / f"{name}.npz"
        np.savez_compressed(path, **arrays)
        print(f"{path.name}: {path.stat().st_size} bytes, {len(arrays)} arrays")


if __name__ == "__main__":
    main()
