"""``dvm.jit`` on the layers of every configuration: two compiles, whatever changes. The compiler is real; the machine only gives shapes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dvm
from dvm import models
from vm.binder import Binder

CONFIGS = sorted(path.stem for path in (Path(__file__).parents[2] / "configs" / "models").glob("*.json"))


class Shapes:
    """An executable whose results are zeros of the right shapes."""

    def __init__(self, program, tier):
        self.program, self.binder = program, Binder(program)

    def launch(self, arrays, bound):
        shapes = bound.output_shapes
        return [np.zeros(shape, spec.dtype) for shape, spec in zip(shapes, self.program.outputs, strict=True)]


def zeros(*shape):
    return np.zeros(shape, np.float32)


@pytest.mark.parametrize("name", CONFIGS)
def test_layers_compile_twice(name, monkeypatch):
    monkeypatch.setattr("dvm.program.make_executable", Shapes)
    config = models.scaled(models.load_config(name))
    layer = models.init_params(config)
    f = dvm.jit(models.block(config))
    for b, s, past in [(1, 7, 0), (1, 1, 7), (2, 5, 3), (3, 16, 0), (1, 1, 1), (2, 257, 64)]:
        if isinstance(config, models.DecoderConfig):
            cache = zeros(b, config.num_key_value_heads, past, config.head_dim)
            y, k, _ = f(layer, zeros(b, s, config.hidden_size), cache, cache)
            assert k.shape == (b, config.num_key_value_heads, past + s, config.head_dim)
        elif isinstance(config, models.BertConfig):
            y = f(layer, zeros(b, s, config.hidden_size), np.ones((b, s), np.int32))
        else:
            y = f(layer, zeros(b, config.num_features))[0]
        assert y.shape[0] == b
    assert len(f.programs) == 2, [line for line in f.programs[-1].constraints if "fixed" not in line]
