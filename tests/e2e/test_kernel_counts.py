"""How many kernels blocks of real models become at their full size, symbolic in every dim, and what they compute."""

import jax.numpy as jnp
import pytest

from codegen import compile_graph
from dvm import models, pipeline
from graph_kernel import passes
from tests.models import harness

COUNTS = {"qwen2.5-0.5b": 6, "bert-base": 6, "mmoe": 8}


def program_of_block(name: str, dtype: type = jnp.float32):
    """The block's program; nothing is compiled by XLA."""
    config = models.load_config(name)
    traced = pipeline.from_function(
        models.block(config), (models.param_specs(config, dtype), *harness.specs(config, dtype)), {}
    )
    passes.optimise(traced.graph)
    return compile_graph(traced.graph, {})


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", COUNTS)
def test_kernels_of_a_block(name, dtype):
    program = program_of_block(name, dtype)
    kernels = program.debug["kernels"]
    assert len(kernels) <= COUNTS[name], [k["ops"] for k in kernels]
    weights = sum(k["ops"].count("dot") for k in kernels)
    assert weights == {"qwen2.5-0.5b": 9, "bert-base": 8, "mmoe": 10}[name]  # nothing is multiplied twice
