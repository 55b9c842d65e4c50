"""``dvm.backend`` as users of ONNX's backend interface call it. ONNX's own node tests are in tests/graph_kernel/test_onnx_backend.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper
from onnx.backend.base import Backend, BackendRep

import dvm

TIER = "reference"
SOFTMAX = Path(__file__).parents[2] / "examples" / "softmax.onnx"


def parsed(graph):
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]>\n{graph}')


def softmax(x, scale=1):
    x = x * np.float32(scale)
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_it_is_a_backend():
    assert issubclass(dvm.backend, Backend)
    assert dvm.backend.supports_device("CPU") and not dvm.backend.supports_device("CUDA")
    with pytest.raises(dvm.InputError, match="no device 'CUDA'"):
        dvm.backend.prepare(SOFTMAX, "CUDA")


def test_prepared_once_run_at_many_sizes():
    before = dvm.stats().compiles
    rep = dvm.backend.prepare(onnx.load(SOFTMAX), dims={"seq": dvm.Dim(max=64)}, tier=TIER)
    assert isinstance(rep, BackendRep)
    for shape in [(2, 7), (1, 1), (0, 5), (3, 64)]:
        x = np.random.default_rng(0).random(shape, np.float32)
        for inputs in ([x], x, {"x": x}):
            (y,) = rep.run(inputs)
            np.testing.assert_allclose(y, softmax(x, 2), rtol=1e-6)
    assert dvm.stats().compiles - before == 1
    with pytest.raises(dvm.ShapeError, match="seq"):
        rep.run([np.ones((1, 65), np.float32)])
    with pytest.raises(dvm.InputError, match="takes 1 inputs, got 2"):
        rep.run([x, x])


def test_run_model_from_a_path():
    x = np.random.default_rng(0).random((2, 7), np.float32)
    (y,) = dvm.backend.run_model(str(SOFTMAX), [x], tier=TIER)
    np.testing.assert_allclose(y, softmax(x, 2), rtol=1e-6)


def test_run_node():
    x, y = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((3,), np.float32)
    (z,) = dvm.backend.run_node(helper.make_node("Add", ["x", "y"], ["z"]), [x, y], tier=TIER)
    np.testing.assert_array_equal(z, x + y)
    a, b = dvm.backend.run_node(helper.make_node("Split", ["x"], ["a", "b"], num_outputs=2), x, tier=TIER)
    np.testing.assert_array_equal(np.concatenate([a, b]), x)
    (z,) = dvm.backend.run_node(helper.make_node("Clip", ["x", "", "high"], ["z"]), [x, np.float32(2)], tier=TIER)
    np.testing.assert_array_equal(z, np.minimum(x, 2))
    (z,) = dvm.backend.run_node(helper.make_node("Softmax", ["x"], ["z"]), {"x": x}, opset_version=13, tier=TIER)
    np.testing.assert_allclose(z, softmax(x), rtol=1e-6)
    with pytest.raises(dvm.InputError, match="takes 2 inputs, got 1"):
        dvm.backend.run_node(helper.make_node("Add", ["x", "y"], ["z"]), [x])
    with pytest.raises(dvm.UnsupportedOp, match="Frobnicate"):
        dvm.backend.run_node(helper.make_node("Frobnicate", ["x"], ["z"]), [x])


def test_initializers_are_no_inputs():
    rep = dvm.backend.prepare(
        parsed("main (float[n] x, float[1] w) => (float[n] y) <float[1] w = {2}> { y = Mul (x, w) }"), tier=TIER
    )
    (y,) = rep.run([np.ones(3, np.float32)])
    np.testing.assert_array_equal(y, [2, 2, 2])


def test_inputs_that_set_shapes_are_read_at_the_run():
    rep = dvm.backend.prepare(
        parsed("main (float[n] x, int64[r] shape) => (float z) { y = Exp (x)  z = Reshape (y, shape) }"), tier=TIER
    )
    assert rep.program is None
    before = dvm.stats().compiles
    x = np.arange(6, dtype=np.float32)
    for shape in [(2, 3), (-1, 2), (2, 3), (6, 1, 1)]:
        (z,) = rep.run([x, np.array(shape)])
        np.testing.assert_allclose(z, np.exp(x).reshape(shape), rtol=1e-6)
    assert dvm.stats().compiles - before == 3  # once for every value


def test_what_is_unsupported_is_said_at_once():
    model = parsed("main (float[n] x) => (float[n] y) { y = RandomNormalLike (x) }")
    with pytest.raises(dvm.UnsupportedOp, match="RandomNormalLike"):
        dvm.backend.prepare(model)
    broken = parsed("main (float[n] x) => (float[n] y) { y = Add (x) }")
    with pytest.raises(onnx.checker.ValidationError):
        dvm.backend.prepare(broken)
