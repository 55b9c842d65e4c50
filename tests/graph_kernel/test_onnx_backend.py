"""ONNX's own node tests, loaded as they are and with the first input's sizes made symbolic."""

import re
import warnings
from collections import defaultdict
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test.runner import Runner

import dvm
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
    r"if_seq": "sequences as results",
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


# ---- the same cases through dvm.backend, compiled and run by the machine's reference executor

REFUSALS = Path(__file__).parents[1] / "data" / "onnx_backend_refused.txt"
# Cases whose 16-bit results differ in the last place: ours are rounded once, ONNX's after every operation.
ROUNDING = re.compile(r"attention_4d_causal_fp16|causal_conv_with_state_silu_fp16")
SAMPLE = re.compile(
    r"^test_(abs|add_bcast|and_bcast|argmax_.*keepdims_example|averagepool_2d_pads|batchnorm_example|cast_FLOAT_to_(FLOAT16|FLOAT8E5M2)|"
    r"clip_example|concat_2d_axis_1|conv_with_strides_padding|cumsum_2d_axis_1|dequantizelinear_int4|einsum_batch_matmul|"
    r"erf|expand_dim_changed|gather_elements_0|gelu_tanh_1|gemm_default_vector_bias|layer_normalization_2d_axis1|lstm_defaults|"
    r"matmul_4d|mod_mixed_sign_float32|onehot_with_axis|pow_bcast_array|quantizelinear_axis|reduce_mean_keepdims_random|"
    r"reshape_negative_dim|resize_upsample_scales_nearest|rotary_embedding_interleaved|scatternd|softmax_axis_0|split_equal_parts_1d_opset18|"
    r"tile|topk|transpose_default|where_example)$"
)


def outcome(case):
    """Nothing if a case gives ONNX's results through the backend, else what was said."""
    try:
        rep = dvm.backend.prepare(case.model, tier="reference")
        for inputs, outputs in case.data_sets:
            expected = [numpy_helper.to_array(o) if isinstance(o, onnx.TensorProto) else o for o in outputs]
            rtol = 1e-2 if ROUNDING.search(case.name) else case.rtol
            Runner.assert_similar_outputs(expected, list(rep.run(inputs)), rtol=rtol, atol=case.atol)
    except dvm.UnsupportedOp as error:
        return "UnsupportedOp: " + str(error).splitlines()[-1].strip()
    except dvm.CompileError as error:
        return "CompileError: " + str(error).splitlines()[-1].strip()
    return ""


def test_a_sample_through_the_backend(cases):
    found = {c.name: outcome(c) for group in cases.values() for c in group if SAMPLE.search(c.name)}
    assert len(found) > 30
    assert {name: said for name, said in found.items() if said} == {}


@pytest.mark.slow
def test_all_through_the_backend(cases, update_golden):
    """Every case gives ONNX's result or is in the list of refusals; nothing else is raised, nothing is wrong. The list has no others."""
    found = {c.name: outcome(c) for group in cases.values() for c in group}
    text = "".join(f"{name}\t{said}\n" for name, said in sorted(found.items()) if said)
    if update_golden:
        REFUSALS.write_text(text)
    listed = {line.split("\t")[0] for line in REFUSALS.read_text().splitlines()}
    assert {line.split("\t")[0] for line in text.splitlines()} == listed
    assert len(found) - text.count("\n") > 1600


def test_how_many(cases):
    """The skip list is short: most cases give the right values."""
    done = 0
    for case in (c for group in cases.values() for c in group if c.model.opset_import[0].version >= 13):
        done += not any(re.search(pattern, case.name) for pattern in REFUSED)
    assert done > 1400
