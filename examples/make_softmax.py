"""Makes ``softmax.onnx``, the model of the command line's examples: ``y = softmax(2 * x)`` over the last axis of ``x[batch, seq]``."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def make() -> onnx.ModelProto:
    """The model, with ``batch`` and ``seq`` left open."""
    dims = ["batch", "seq"]
    nodes = [
        helper.make_node("Mul", ["x", "scale"], ["scaled"], name="scale_x"),
        helper.make_node("Softmax", ["scaled"], ["y"], name="softmax", axis=-1),
    ]
    graph = helper.make_graph(
        nodes,
        "softmax",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, dims)],
        [numpy_helper.from_array(np.float32(2.0), "scale")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


if __name__ == "__main__":
    model = make()
    onnx.checker.check_model(model)
    onnx.save(model, Path(__file__).with_name("softmax.onnx"))
