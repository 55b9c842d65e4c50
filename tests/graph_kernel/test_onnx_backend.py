"""ONNX's own node tests, loaded as they are and with the first input's sizes made symbolic."""

import re
import warnings
from collections import defaultdict

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from graph_kernel.from_onnx import load
from graph_kernel.verifier import verify
from tests.graph_kernel.onnx_harness import close, run
from vm.errors import CompileError, UnsupportedOp

# Cases that must end in UnsupportedOp (or in CompileError about their opset), and why.
REFUSED = {
    r"string|regex|strnorm|tfidf|label_encoder": "no strings on the chip",
    r"optional_(get|has)|identity_opt": "optional values",
    r"adagrad|adam|momentum": "training",
    r"ai_onnx_ml": "classical machine learning",
    r"bernoulli|training_dropout": "random numbers",
    r"nonmaxsuppression": "sizes that depend on data",
    r"range_.*_expanded": "sizes that depend on data",
    r"gridsample|deform_conv|roialign|col2im|maxunpool|with_argmax": "gathers in two dimensions",
    r"image_decoder|melweight|^test_d?stft|^test_dft|det_": "signals and images",
    r"bitcast": "bits of one type as another",
    r"resize_.*(antialias|exclude_outside|crop|not_larger|not_smaller)": "rare modes of Resize",
}
# Shapes given as inputs are made constants: exporters write them that way.
SHAPE_INPUTS = re.compile("resize|range|onehot|blackman|hamming|hann")
# Every case costs a proof or two; these have dozens of cases of one kind, or sizes no transformer has
SYMBOLIC_SKIPPED = re.compile("_expanded|linear_attention|_3d_dilations|flexattention|^test_cast|local_window")


@pytest.fixture(scope="module")
def cases():
    """Cases by the op that they test; models of several nodes are under the empty name."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = defaultdict(list)
        for case in collect_testcases(None):
            nodes = case.model.graph.node
            found[nodes[0].op_type if len(nodes) == 1 else ""].append(case)
    return found


OPS = sorted({s.name for s in onnx.defs.get_all_schemas()}) + [""]


def baked(model, arrays, name):
    """The model with the inputs that set shapes as constants, and the other inputs."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    feeds = {}
    for info, array in zip(model.graph.input, arrays, strict=True):
        sets_shape = array.dtype.kind in "iu" and array.ndim <= 1
        if sets_shape or (array.ndim <= 1 and SHAPE_INPUTS.search(name)):
            copy.graph.initializer.append(numpy_helper.from_array(array, info.name))
        else:
            feeds[info.name] = array
    return copy, feeds


def symbolised(model):
    """The model with names instead of the sizes of its first input."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for info in copy.graph.input[:1]:
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            dim.dim_param = f"{info.name}_{axis}"
    return copy


def check(case, change):
    """None, or what is wrong with a case."""
    for inputs, outputs in case.data_sets:
        if not all(isinstance(a, (np.ndarray, np.generic)) for a in [*inputs, *outputs]):
            return None  # sequences and optionals as graph inputs
        arrays = [np.asarray(a) for a in inputs]
        feeds = {i.name: a for i, a in zip(case.model.graph.input, arrays, strict=True)}
        try:
            graph = load(change(case.model))
        except UnsupportedOp:
            model, feeds = baked(case.model, arrays, case.name)
            graph = load(change(model))
        verify(graph)
        for actual, expected in zip(run(graph, feeds), outputs, strict=True):
            close(actual, np.asarray(expected), rtol=max(case.rtol, 1e-4), atol=max(case.atol, 1e-5))
    return None


def problems(found, change, skipped=None):
    """What is wrong, case by case."""
    wrong = []
    for case in found:
        if skipped is not None and skipped.search(case.name):
            continue
        try:
            check(case, change)
        except UnsupportedOp as error:
            if not any(re.search(pattern, case.name) for pattern in REFUSED):
                wrong.append((case.name, str(error)))
        except CompileError as error:
            if "opset" not in str(error):
                wrong.append((case.name, str(error)))
        except Exception as error:
            wrong.append((case.name, f"{type(error).__name__}: {error}"))
    return wrong


@pytest.mark.parametrize("op", OPS)
def test_node(cases, op):
    assert not problems(cases[op], lambda model: model)


@pytest.mark.parametrize("op", OPS)
def test_node_with_symbolic_sizes(cases, op):
    some = cases[op][::4] if op == "Attention" else cases[op]  # 77 cases of one op
    assert not problems(some, symbolised, SYMBOLIC_SKIPPED)


def test_how_many(cases):
    """The skip list is short: most cases give the right values."""
    done = 0
    for case in (c for group in cases.values() for c in group if c.model.opset_import[0].version >= 13):
        done += not any(re.search(pattern, case.name) for pattern in REFUSED)
    assert done > 1400
