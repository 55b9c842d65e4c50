"""How many kernels blocks of real models become at their full size, symbolic in every dim, and what they compute."""

from pathlib import Path

import jax.numpy as jnp
import pytest

from codegen import compile_graph
from dvm import models, pipeline
from graph_kernel import passes
from graph_kernel.from_onnx import load
from tests.models import harness
from vm.decode import decode, stored_buffers
from vm.program import HostStep
from vm.program.stages import kernels_of, launches
from vm.timing import Stopwatch

COUNTS = {"qwen2.5-0.5b": 6, "bert-base": 6, "mmoe": 8}


def program_of_block(name: str, dtype: type = jnp.float32):
    """The block's program; nothing is compiled by XLA."""
    config = models.load_config(name)
    traced = pipeline.from_function(
        models.block(config), (models.param_specs(config, dtype), *harness.specs(config, dtype)), {}
    )
    passes.optimise(traced.graph)
    return compile_graph(traced.graph, {"clock": Stopwatch})


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", COUNTS)
def test_kernels_of_a_block(name, dtype):
    program = program_of_block(name, dtype)
    kernels = program.debug["kernels"]
    assert len(kernels) <= COUNTS[name], [k["ops"] for k in kernels]
    weights = sum(k["ops"].count("dot") for k in kernels)
    assert weights == {"qwen2.5-0.5b": 9, "bert-base": 8, "mmoe": 10}[name]  # nothing is multiplied twice


DATA = Path(__file__).parents[1] / "data" / "models"
MOVING = {"concat", "reshape", "transpose", "slice", "broadcast", "pad", "rev"}
# kernels, stages; past keys and values that are copied into outputs
EXPORTED = {"bert": (12, 11, 0), "llama": (13, 12, 4), "mmoe": (9, 5, 0), "qwen2": (12, 12, 0)}


@pytest.mark.parametrize("name", EXPORTED)
def test_exported_models(name):
    """One launch, nothing on the host, and no kernel that only moves data, past keys and values into outputs excepted."""
    graph = load(DATA / f"{name}.onnx")
    passes.optimise(graph)
    program = compile_graph(graph, {"clock": Stopwatch})
    kernels = program.debug["kernels"]
    most, most_stages, copied = EXPORTED[name]
    assert len(kernels) <= most and len(program.stages) <= most_stages, [k["ops"] for k in kernels]
    assert launches(program) == 1 and not any(isinstance(s, HostStep) for s in program.steps)
    moving = [k["name"] for k in kernels if set(k["ops"]) <= MOVING]
    found = 0
    for step in [s for s in kernels_of(program.steps) if s.name in moving]:
        stored = set(stored_buffers(decode(program.templates[step.template])))
        for number, b in enumerate(step.buffers):
            buffer = program.buffers[b]
            if number in stored:
                assert buffer.alias is not None, "an output, whole"
                output = program.buffers[buffer.alias].output
                assert output is not None and program.outputs[output].name.startswith("present")
                found += 1
            else:
                assert buffer.input is not None and program.inputs[buffer.input].name.startswith("past")
    assert found == copied
