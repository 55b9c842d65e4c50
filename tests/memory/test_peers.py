"""Temporaries of whole models: against the intermediates of the unfused graph, and of blocks against XLA's own plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import configs
import dvm
from dvm import models, pipeline
from tests.must_show.exported import DIMS, MODELS

SIZES = {
    "bert": {"batch": 4, "seq": 128},
    "llama": {"batch": 2, "seq": 32, "past": 64, "total": 96},
    "mmoe": {"batch": 256},
    "qwen2": {"batch": 4, "seq": 64},
}


@pytest.mark.parametrize("name", DIMS)
def test_temporaries_take_at_most_half_of_the_unfused_intermediates(name: str) -> None:
    def at(level: int) -> dvm.CompiledProgram:
        declared = {k: dvm.Dim(k, min=0) for k in DIMS[name]}
        traced = pipeline.from_onnx_model(MODELS / f"{name}.onnx", declared)
        return traced.compile(options=dvm.Options(level), start=False)

    fused, unfused = at(3), at(0)
    for scale in (1, 2):
        sizes = {k: n * scale for k, n in SIZES[name].items()}
        assert fused.memory(sizes).temp <= 0.5 * unfused.memory(sizes).unshared


DECODER = ({"b": 4, "s": 256}, {"b": 1, "s": 1024})
BLOCKS: dict[str, tuple[dict[str, int], ...]] = {
    **dict.fromkeys(configs.model_names(), DECODER),
    "bert-base": ({"b": 8, "s": 128}, {"b": 1, "s": 1024}),
    "mmoe": ({"b": 4096},),
}


def block_of(name: str) -> tuple[Callable[..., Any], Callable[[dict[str, int]], tuple[Any, ...]]]:
    """The scaled block of a configuration and its arguments' specs at given sizes (empty: symbolic)."""
    config = models.scaled(models.load_config(name))
    params = models.param_specs(config)

    def specs(sizes: dict[str, int]) -> tuple[Any, ...]:
        def spec(text: str, dtype: Any = jnp.float32) -> Any:
            if not sizes:
                return dvm.spec(text, dtype)
            return jax.ShapeDtypeStruct([sizes.get(d.strip()) or int(d) for d in text.split(",")], dtype)

        if isinstance(config, models.MMoEConfig):
            return params, spec(f"b, {config.num_features}")
        x = spec(f"b, s, {config.hidden_size}")
        return (params, x, spec("b, s", jnp.int32)) if isinstance(config, models.BertConfig) else (params, x)

    decoder = not isinstance(config, models.MMoEConfig | models.BertConfig)
    return (models.prefill_block(config) if decoder else models.block(config)), specs


@pytest.mark.parametrize("name", BLOCKS)
def test_temporaries_of_blocks_take_at_most_half_of_the_unfused_intermediates(name: str) -> None:
    function, specs = block_of(name)
    fused, unfused = (
        pipeline.from_function(function, specs({}), {}).compile(options=dvm.Options(level), start=False)
        for level in (3, 0)
    )
    for sizes in BLOCKS[name]:
        temp, intermediates = fused.memory(sizes).temp, unfused.memory(sizes).unshared
        assert temp <= 0.5 * intermediates, (sizes, temp, intermediates)


@pytest.mark.slow
@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_need_no_more_than_xla(name: str) -> None:
    function, specs = block_of(name)
    ours = pipeline.from_function(function, specs({}), {}).compile(start=False)
    for sizes in BLOCKS[name]:
        theirs = jax.jit(function).lower(*specs(sizes)).compile().memory_analysis().temp_size_in_bytes
        assert theirs >= 1 << 20, f"too small a shape to compare: {theirs}"
        assert ours.memory(sizes).temp <= theirs, (sizes, ours.memory(sizes).temp, theirs)
