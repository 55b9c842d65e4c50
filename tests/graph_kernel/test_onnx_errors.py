"""Models that cannot be loaded: each gets an error of the right class that says what is wrong and where."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from graph_kernel.from_onnx import load
from tests.graph_kernel.onnx_harness import MODELS, close, parse, random_feeds, run
from vm.errors import CompileError, DvmError, UnsupportedOp


def test_not_a_model(tmp_path):
    for name, data in (
        ("empty.onnx", b""),
        ("text.onnx", b"this is text, not a protobuf\n" * 9),
        ("zeros.onnx", bytes(99)),
    ):
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(CompileError):
            load(path)
    with pytest.raises(CompileError, match="No such file"):
        load(tmp_path / "missing.onnx")
    with pytest.raises(CompileError, match="path or an onnx.ModelProto"):
        load(42)


def test_truncated_everywhere(tmp_path):
    data = (MODELS / "mmoe.onnx").read_bytes()
    path = tmp_path / "cut.onnx"
    for i in range(40):
        path.write_bytes(data[: len(data) * i // 40])
        with pytest.raises(CompileError):
            load(path)


def test_flipped_bits_never_crash(tmp_path):
    data = (MODELS / "mmoe.onnx").read_bytes()
    rng = np.random.default_rng(0)
    path = tmp_path / "flipped.onnx"
    loaded = 0
    for _ in range(150):
        flipped = bytearray(data)
        # weights are most of the file: aim at the structure in front of and behind them half of the time
        at = int(rng.integers(len(data))) if rng.random() < 0.5 else int(rng.integers(4000))
        flipped[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(flipped)
        try:
            load(path)
            loaded += 1
        except DvmError:
            pass
    assert loaded  # a flipped weight is still a model


def test_old_and_future_opsets():
    for version in (12, onnx.defs.onnx_opset_version() + 1):
        model = parse("f (float[n] x) => (float[n] y) { y = Neg(x) }", version)
        with pytest.raises(CompileError, match=f"opset {version}; 13 to"):
            load(model)


def test_all_unsupported_operators_at_once():
    model = parse("""f (float[n, 2, 3, 3] x, int64[4] s) => (float y, float z) {
        a = Det(x) b = Det(a) c = Relu(x) d = StringNormalizer(c) i = Expand(x, s) e = Neg(i) y = Add(b, e) z = local.Mystery(c) }""")
    with pytest.raises(UnsupportedOp) as caught:
        load(model)
    text = str(caught.value)
    # what only depends on an unsupported node is not listed
    assert "Det (1): 'a'" in text and "StringNormalizer (1): 'd'" in text
    assert "Expand (1): 'i': input 1 (s) sets a shape but depends on data" in text
    assert "local::Mystery (1): 'z'" in text
    assert "Relu" not in text and "Add" not in text


def test_unsupported_operators_in_branches():
    model = parse("""f (float[n, n] x, bool p) => (float y) {
        y = If(p) <then_branch = t () => (float u) { u = Det(x) },
                   else_branch = e () => (float v) { w = Det(x) v = Neg(w) }> }""")
    with pytest.raises(UnsupportedOp) as caught:
        load(model)
    assert "Det (2): 'w'" in str(caught.value)
    assert "If" not in str(caught.value)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("y = Reshape(x, s)", "Reshape.*'y': .*\\(s\\).*depends on data"),
        ("y = Expand(x, s)", "Expand.*'y': .*\\(s\\).*depends on data"),
        (
            "z = Constant<value_int=0>() l = Gather(s, z) o = Constant<value_int=1>() y = Range(z, l, o)",
            "Range.*'y'.*data",
        ),
        ("y = Tile(x, s)", "Tile.*depends on data"),
    ],
)
def test_shapes_that_depend_on_data(body, message):
    model = parse(f"f (float[a, b] x, int64[2] s) => (float y) {{ {body} }}")
    with pytest.raises(UnsupportedOp, match=message):
        load(model)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("f (float[2] x) => (float[3] y) { y = Add(x, nothing) }", "Add.*'nothing'"),
        ("f (float[2] x) => (float[3] y) { z = Neg(x) }", "output 'y'"),
        ("f (float[2, 3] x, float[4, 5] w) => (float y) { y = MatMul(x, w) }", "4, 5.*MatMul at y"),
        ("f (float[2, 3] x, float[4] w) => (float y) { y = Add(x, w) }", "cannot be broadcast.*Add at y"),
        ("f (float[2, 3] x) => (float y) { y = Softmax<axis=5>(x) }", "Softmax.*axis 5"),
        ("f (float[2, 3] x) => (float y) <int64[2] s = {4, 2}> { y = Reshape(x, s) }", "Reshape at y.*6 elements"),
        ("f (float[2, 3] x) => (float y) <int64[2] s = {-1, -1}> { y = Reshape(x, s) }", "more than one -1"),
        ("f (float[2, 3] x) => (float y) { y = Neg() }", "Neg.*no input 0"),
        ("f (string[2] x) => (string[2] y) { y = Identity(x) }", "STRING"),
        ("f (float[a, 3] x, float[4, 5] y) => (float z) { z = Concat<axis=0>(x, y) }", "Concat"),
    ],
)
def test_what_is_wrong_and_where(text, message):
    with pytest.raises(DvmError, match=message):
        load(parse(text))


def test_an_input_without_a_shape():
    model = parse("f (float[n] x) => (float[n] y) { y = Neg(x) }")
    model.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(CompileError, match="'x' has no shape"):
        load(model)


def test_a_sequence_as_input():
    model = parse("f (float[n] x) => (float[n] y) { y = Neg(x) }")
    info = onnx.helper.make_tensor_sequence_value_info("x", onnx.TensorProto.FLOAT, None)
    model.graph.input[0].CopyFrom(info)
    with pytest.raises(UnsupportedOp, match="'x' is a sequence"):
        load(model)


def test_damaged_initializers():
    model = parse("f (float[n, 2] x) => (float[n, 2] y) <float[2] w = {1.0, 2.0}> { y = Add(x, w) }")
    model.graph.initializer[0].dims[:] = [3]
    with pytest.raises(CompileError, match="initializer 'w'"):
        load(model)
    model.graph.initializer[0].data_type = 999
    with pytest.raises(CompileError, match="initializer 'w'"):
        load(model)


# ---- external data


def external(tmp_path, location, offset=0, length=8, write=True):
    model = parse("f (float[n, 2] x) => (float[n, 2] y) <float[2] w = {1.0, 2.0}> { y = Add(x, w) }")
    tensor = model.graph.initializer[0]
    data = numpy_helper.to_array(tensor).tobytes()
    tensor.ClearField("float_data")
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))
    if write:
        (tmp_path / "inside").mkdir(exist_ok=True)
        (tmp_path / "weights.bin").write_bytes(bytes(offset) + data)
        (tmp_path / "inside" / "weights.bin").write_bytes(bytes(offset) + data)
    path = tmp_path / "inside" / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_external_data(tmp_path):
    graph = load(external(tmp_path, "weights.bin", offset=64))
    close(run(graph, {"x": np.ones((3, 2), np.float32)})[0], np.tile(np.float32([2, 3]), (3, 1)))


def test_external_data_of_a_proto(tmp_path):
    model = onnx.load(external(tmp_path, "weights.bin"), load_external_data=False)
    with pytest.raises(CompileError, match="path instead of a ModelProto"):
        load(model)


@pytest.mark.parametrize("location", ["../weights.bin", "/etc/passwd", "a/../../weights.bin", "link.bin", ""])
def test_external_data_outside_the_directory(tmp_path, location):
    path = external(tmp_path, location)
    (tmp_path / "inside" / "link.bin").symlink_to(tmp_path / "weights.bin")
    with pytest.raises(CompileError, match="outside the model's directory"):
        load(path)


def test_external_data_that_is_missing_or_short(tmp_path):
    with pytest.raises(CompileError, match="does not exist"):
        load(external(tmp_path, "other.bin"))
    with pytest.raises(CompileError, match="needs bytes"):
        load(external(tmp_path, "weights.bin", length=800))
    with pytest.raises(CompileError, match="does not fit its shape"):
        load(external(tmp_path, "weights.bin", length=4))


# ---- functions


def test_model_functions_are_inlined():
    functions = """<domain: "local", opset_import: ["" : 21]> twice (a) => (c) { b = Add(a, a) c = local.again(b) }
        <domain: "local", opset_import: ["" : 21]> again (a) => (c) { c = Add(a, a) }"""
    functions = functions.replace('opset_import: ["" : 21]', 'opset_import: ["" : 21, "local" : 1]')
    model = parse("f (float[n] x) => (float[n] y) { y = local.twice(x) }", functions=functions)
    graph = load(model)
    assert [n.op for n in graph.nodes] == ["add", "add"]
    feeds = random_feeds(model, {"n": 5})
    close(run(graph, feeds)[0], feeds["x"] * 4)
