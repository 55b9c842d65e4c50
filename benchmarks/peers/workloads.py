"""The workloads: a function in JAX and in PyTorch, its weights, and a fixed stream of shapes each.

Inputs are float32 (BERT's mask is int32). Every workload says how a user who pads to powers of two would pad it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import dvm
from dvm import models

Dims = dict[str, int]
Inputs = list[np.ndarray]


@dataclass(frozen=True)
class Workload:
    """``jax_fn(params, *inputs)``; ``torch_fn`` is a name in ``make_torch``. ``inputs`` maps an input to its shape in dims."""

    name: str
    title: str
    stream: Sequence[Dims]
    inputs: dict[str, tuple[int | str, ...]]
    jax_fn: Callable[..., Any]
    make_torch: Callable[[Any], Callable[..., Any]]
    params: Callable[[], Any] = dict
    make: Callable[[Dims, np.random.Generator], Inputs] | None = None
    make_onnx: Callable[[], bytes] | None = None  # where PyTorch's exporter cannot
    padded_fn: Callable[..., Any] | None = None  # where padding needs more than larger arrays
    pad: Callable[[Inputs, Dims, Dims], Inputs] | None = None
    crop: Callable[[Any, Dims], Any] | None = None
    fixed: Dims = field(default_factory=dict)  # dims that are numbers for every peer
    tolerance: float = 1e-4

    def shape(self, name: str, dims: Dims) -> tuple[int, ...]:
        """The shape of an input at ``dims``."""
        known = {**self.fixed, **dims}
        return tuple(d if isinstance(d, int) else known[d] for d in self.inputs[name])

    def arrays(self, dims: Dims, seed: int = 0) -> Inputs:
        """Inputs at ``dims``."""
        rng = np.random.default_rng([seed, *dims.values()])
        if self.make is not None:
            return self.make(dims, rng)
        return [rng.standard_normal(self.shape(name, dims), np.float32) for name in self.inputs]

    def specs(self) -> list[Any]:
        """``dvm.spec`` of every input, each dim up to the stream's largest."""
        highest = {d: max(x[d] for x in self.stream) for d in self.stream[0]}
        lowest = {d: min(x[d] for x in self.stream) for d in self.stream[0]}
        dtypes = [a.dtype for a in self.arrays(self.stream[0])]
        specs = []
        for (_, shape), dtype in zip(self.inputs.items(), dtypes, strict=True):
            text = ", ".join(str(self.fixed.get(d, d)) if isinstance(d, str) else str(d) for d in shape)
            used = [d for d in shape if isinstance(d, str) and d in highest]
            dims = {d: dvm.Dim(min=min(lowest[d], 1), max=highest[d]) for d in used}
            specs.append(dvm.spec(text, jnp.dtype(dtype), **dims))
        return specs


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


def grow(array: np.ndarray, shape: Sequence[int], at_end: bool = True) -> np.ndarray:
    """The array in the corner of zeros of a larger shape."""
    out = np.zeros(shape, array.dtype)
    out[tuple(slice(0, n) if at_end else slice(m - n, m) for n, m in zip(array.shape, shape, strict=True))] = array
    return out


def _pairs(text: str, names: str = "b s") -> list[Dims]:
    return [dict(zip(names.split(), map(int, item.split("x")), strict=True)) for item in text.split()]


# Layers --------------------------------------------------------------------------------------------------------------


def _decoder(name: str) -> models.DecoderConfig:
    return models.as_decoder(models.load_config(name))


def qwen_block() -> Workload:
    """A Qwen2.5-0.5B decoder block at full size, prefill."""
    config = _decoder("qwen2.5-0.5b")
    fn = models.prefill_block(config)

    def make_torch(params: Any) -> Any:
        from benchmarks.peers import torch_models as tm

        return tm.Module(lambda p, x: tm.decoder_layer(config, p, x), tm.decoder_params(config, params))

    stream = "1x1 3x1 1x7 2x16 1x33 4x31 2x63 1x127 1x128 3x65 1x257 2x200 4x128 1x512 2x5 1x19 1x300 2x101"
    return Workload(
        "qwen_block", "Qwen2.5-0.5B block", _pairs(stream), {"x": ("b", "s", config.hidden_size)}, fn, make_torch,
        params=lambda: models.init_params(config), crop=lambda y, d: y[: d["b"], : d["s"]],
    )  # fmt: skip


def decode() -> Workload:
    """One token a step with a cache that grows from 1 to 512."""
    config = _decoder("qwen2.5-0.5b")
    kv, hd = config.num_key_value_heads, config.head_dim
    fn = models.block(config)
    cache: tuple[int | str, ...] = (1, kv, "p", hd)

    def make_torch(params: Any) -> Any:
        from benchmarks.peers import torch_models as tm

        return tm.Module(lambda p, x, k, v: tm.decoder_layer(config, p, x, (k, v)), tm.decoder_params(config, params))

    def padded(params: Any, x: Any, k: Any, v: Any, positions: Any, mask: Any) -> Any:
        return fn(params, x, k, v, positions, mask)

    def pad(arrays: Inputs, dims: Dims, larger: Dims) -> Inputs:
        x, k, v = arrays
        old, new = dims["p"], larger["p"]  # the cache is padded in front, where the mask hides it
        shape = (1, kv, new, hd)
        mask = (np.arange(new + 1) >= new - old).astype(np.int32)[None]
        return [x, grow(k, shape, False), grow(v, shape, False), np.full((1, 1), old, np.int32), mask]

    def crop(result: Any, dims: Dims) -> Any:
        y, k, v = result
        return y, k[:, :, -dims["p"] - 1 :], v[:, :, -dims["p"] - 1 :]

    lengths = sorted({*range(1, 9), *(round(512 ** (i / 25)) for i in range(26)), 100, 200, 255, 256, 300, 400, 450})
    stream = [{"p": n} for n in lengths[:31]] + [{"p": 512}]
    inputs = {"x": (1, 1, config.hidden_size), "k": cache, "v": cache}
    return Workload(
        "decode", "decode, cache 1-512", stream, inputs, fn, make_torch, params=lambda: models.init_params(config),
        padded_fn=padded, pad=pad, crop=crop,
    )  # fmt: skip


def bert() -> Workload:
    """A BERT layer, hidden 256, with a padding mask."""
    full = models.load_config("bert-base")
    assert isinstance(full, models.BertConfig)
    config = replace(full, hidden_size=256, intermediate_size=1024, num_attention_heads=4)

    def make_torch(params: Any) -> Any:
        from benchmarks.peers import torch_models as tm

        return tm.Module(lambda p, x, m: tm.bert_layer(config, p, x, m), params)

    def make(dims: Dims, rng: np.random.Generator) -> Inputs:
        b, s = dims["b"], dims["s"]
        mask = (np.arange(s) < rng.integers(1, s + 1, (b, 1))).astype(np.int32)
        return [rng.standard_normal((b, s, 256), np.float32), mask]

    stream = "1x1 1x5 2x8 1x17 4x16 1x31 2x33 1x64 3x50 1x100 8x12 1x127 2x128 1x200 4x65 1x256 2x150 3x1 1x90"
    inputs: dict[str, tuple[int | str, ...]] = {"x": ("b", "s", 256), "mask": ("b", "s")}
    return Workload(
        "bert", "BERT layer, h 256", _pairs(stream), inputs, models.block(config), make_torch,
        params=lambda: models.init_params(config), make=make, crop=lambda y, d: y[: d["b"], : d["s"]],
    )  # fmt: skip


def mmoe() -> Workload:
    """The MMoE model of ``configs/models``."""
    config = models.load_config("mmoe")
    assert isinstance(config, models.MMoEConfig)

    def make_torch(params: Any) -> Any:
        from benchmarks.peers import torch_models as tm

        return tm.Module(lambda p, x: tm.mmoe(config, p, x), params)

    sizes = [1, 2, 3, 7, 16, 17, 31, 64, 100, 127, 128, 200, 256, 257, 300, 400, 511, 512, 700, 1000]
    return Workload(
        "mmoe", "MMoE", [{"b": n} for n in sizes], {"x": ("b", config.num_features)}, models.block(config), make_torch,
        params=lambda: models.init_params(config), crop=lambda ys, d: [y[: d["b"]] for y in ys],
    )  # fmt: skip


def language_model(name: str, layers: int = 8) -> Workload:
    """A scaled model from embedding to LM head, prefill of token ids (the caches are empty)."""
    config = models.as_decoder(models.scaled(models.load_config(name)))
    lm = models.causal_lm(config, layers)
    kv, hd = config.num_key_value_heads, config.head_dim

    def fn(params: Any, ids: Any) -> Any:
        empty = jnp.zeros((ids.shape[0], kv, 0, hd), jnp.float32)
        return lm(params, ids, [(empty, empty)] * layers)[0]

    def make_torch(params: Any) -> Any:
        from benchmarks.peers import torch_models as tm

        def run(p: Any, ids: Any) -> Any:
            x = p["embed"][ids.long()]
            for layer in p["layers"]:
                x = tm.decoder_layer(config, layer, x)
            return tm._rms_norm(x, p["norm"], config.rms_norm_eps) @ p["head"]

        head = params["embed"].T if config.tie_word_embeddings else params["lm_head"]
        layer_params = [tm.decoder_params(config, p) for p in params["layers"]]
        return tm.Module(run, {**params, "head": head, "layers": layer_params})

    def make(dims: Dims, rng: np.random.Generator) -> Inputs:
        return [rng.integers(0, config.vocab_size, (dims["b"], dims["s"]), np.int32)]

    stream = _pairs("1x1 1x7 2x16 1x33 1x64 2x50 1x100 1x128 3x31 1x200")
    return Workload(
        f"lm8_{config.name.split('-')[0].split('.')[0]}", f"{config.name} scaled, {layers} layers", stream,
        {"ids": ("b", "s")}, fn, make_torch, params=lambda: models.init_params(config, n_layers=layers), make=make,
        crop=lambda y, d: y[: d["b"], : d["s"]],
    )  # fmt: skip


# Operators -----------------------------------------------------------------------------------------------------------


def matmul() -> Workload:
    """[m, 4096] x [4096, 4096], the weight fixed."""
    sizes = [1, 2, 3, 5, 7, 8, 11, 13, 16, 17, 19, 23, 29, 31, 32, 33, 37, 48, 64, 65, 128]

    def params() -> Any:
        return {"w": np.random.default_rng(1).standard_normal((4096, 4096), np.float32) / 64}

    return Workload(
        "matmul", "matmul m x 4096 x 4096", [{"m": n} for n in sizes], {"x": ("m", 4096)}, lambda p, x: x @ p["w"],
        _plain_torch(lambda p, x: x @ p["w"]), params=params, crop=lambda y, d: y[: d["m"]],
    )  # fmt: skip


def addmm_fixed() -> Workload:
    """c + a @ b with b fixed."""
    sizes = [1, 2, 5, 8, 16, 17, 31, 64, 65, 100, 128, 200, 256, 257]

    def params() -> Any:
        return {"w": np.random.default_rng(1).standard_normal((2048, 1024), np.float32) / 45}

    inputs: dict[str, tuple[int | str, ...]] = {"c": ("m", 1024), "a": ("m", 2048)}
    return Workload(
        "addmm_fixed", "addmm m x 2048 x 1024", [{"m": n} for n in sizes], inputs, lambda p, c, a: c + a @ p["w"],
        _plain_torch(lambda p, c, a: c + a @ p["w"]), params=params, crop=lambda y, d: y[: d["m"]],
    )  # fmt: skip


def addmm() -> Workload:
    """c + a @ b, every size dynamic."""
    rng = np.random.default_rng(5)
    stream = [dict(zip("mkn", map(int, rng.integers(1, 200, 3)), strict=True)) for _ in range(20)]
    inputs: dict[str, tuple[int | str, ...]] = {"c": ("m", "n"), "a": ("m", "k"), "b": ("k", "n")}
    return Workload(
        "addmm", "addmm, every size dynamic", stream, inputs, lambda p, c, a, b: c + a @ b,
        _plain_torch(lambda p, c, a, b: c + a @ b), crop=lambda y, d: y[: d["m"], : d["n"]],
    )  # fmt: skip


def layernorm() -> Workload:
    """LayerNorm over 2048 of [b, s, 2048]."""
    h = 2048

    def fn(p: Any, x: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * p["scale"] + p["shift"]

    def torch_fn(p: Any, x: Any) -> Any:
        import torch

        return torch.nn.functional.layer_norm(x, (h,), p["scale"], p["shift"], 1e-5)

    def params() -> Any:
        rng = np.random.default_rng(2)
        return {"scale": rng.standard_normal(h, np.float32), "shift": rng.standard_normal(h, np.float32)}

    stream = _pairs("1x1 1x7 1x64 2x100 1x257 3x128 1x512 2x333 1x1024 4x300 1x1500 2x1024 1x3000 3x1100 2x2048 1x4001")
    return Workload(
        "layernorm", "LayerNorm b x s x 2048", stream, {"x": ("b", "s", h)}, fn, _plain_torch(torch_fn), params=params,
        crop=lambda y, d: y[: d["b"], : d["s"]],
    )  # fmt: skip


def elementwise(large: bool = False) -> Workload:
    """silu(x) * y + x."""
    small = [1, 7, 100, 1000, 1023, 4097, 10007, 32768, 65537, 100000, 131071, 200000, 250007, 300000, 400000]
    big = [1_000_000, 1_048_577, 1_500_001, 2_000_003, 3_000_000, 4_194_304, 5_000_011, 8_000_000]
    sizes = big if large else [*small, 500_000, 600_011, 700_000, 800_000, 900_001]

    def torch_fn(p: Any, x: Any, y: Any) -> Any:
        import torch

        return torch.nn.functional.silu(x) * y + x

    name = "elementwise_large" if large else "elementwise"
    return Workload(
        name, name.replace("_", ", "), [{"n": n} for n in sizes], {"x": ("n",), "y": ("n",)},
        lambda p, x, y: jax.nn.silu(x) * y + x, _plain_torch(torch_fn), crop=lambda y, d: y[: d["n"]],
    )  # fmt: skip


def if_else_add() -> Workload:
    """x + y if the mean of x is positive, else x - y, on [b, s, f]."""

    def fn(p: Any, x: Any, y: Any) -> Any:
        return jax.lax.cond(x.mean() > 0, lambda: x + y, lambda: x - y)

    def torch_fn(p: Any, x: Any, y: Any) -> Any:
        return x + y if x.mean() > 0 else x - y

    rng = np.random.default_rng(7)
    stream = [
        {"b": int(rng.integers(1, 9)), "s": int(rng.integers(1, 65)), "f": int(rng.integers(1, 257))} for _ in range(20)
    ]
    shape: tuple[int | str, ...] = ("b", "s", "f")
    return Workload(
        "if_else_add", "if-else-add", stream, {"x": shape, "y": shape}, fn, _plain_torch(torch_fn),
        crop=lambda y, d: y[: d["b"], : d["s"], : d["f"]],
        make_onnx=_if_else_onnx,
    )  # fmt: skip


def _if_else_onnx() -> bytes:
    from onnx import parser

    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    main (float[b, s, f] x, float[b, s, f] y) => (float[b, s, f] z) {
        zero = Constant <value = float {0}> ()
        mean = ReduceMean <keepdims = 0> (x)
        positive = Greater (mean, zero)
        z = If (positive) <
            then_branch = plus () => (float[b, s, f] sum) { sum = Add (x, y) },
            else_branch = minus () => (float[b, s, f] difference) { difference = Sub (x, y) }
        >
    }"""
    return parser.parse_model(text).SerializeToString()


def _plain_torch(fn: Callable[..., Any]) -> Callable[[Any], Any]:
    def make(params: Any) -> Any:
        from benchmarks.peers import torch_models as tm

        return tm.Module(fn, params)

    return make


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "qwen_block": qwen_block,
    "decode": decode,
    "bert": bert,
    "mmoe": mmoe,
    "matmul": matmul,
    "addmm_fixed": addmm_fixed,
    "addmm": addmm,
    "layernorm": layernorm,
    "elementwise": elementwise,
    "elementwise_large": lambda: elementwise(large=True),
    "if_else_add": if_else_add,
    "lm8_qwen": lambda: language_model("qwen2.5-0.5b"),
    "lm8_llama": lambda: language_model("llama-3.2-1b"),
}
