"""Composites: named compositions of other ops, found by the ``recognise_*`` passes and expanded again before fusion.

A composite holds its own meaning: ``body`` is a graph of ordinary ops (or of other composites) over the node's inputs, and the node
means exactly that graph. The other attributes say what was recognised, for people and for rules; they never replace the body.
"""

from __future__ import annotations

import numpy as np

from graph_kernel.ir import Graph, Origin, Value
from graph_kernel.ops.base import Attrs, OpDef, Pattern, Type, fail, register
from graph_kernel.ops.control import match_parameters
from symbolic import Scope


def _infer(scope: Scope, inputs: tuple[Value, ...], attrs: Attrs, origin: Origin) -> list[Type]:
    body: Graph = attrs["body"]
    match_parameters(scope, "a composite", body.inputs, inputs, origin)
    if len(body.outputs) != 1:
        raise fail(origin, f"a composite has one result, its body gives {len(body.outputs)}")
    return [(body.outputs[0].shape, body.outputs[0].dtype)]


def _evaluate(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    result: list[np.ndarray] = attrs["body"](*xs)
    return result


for _name, _doc in (
    (
        "attention",
        "softmax(q . k * scale + mask) . v; inputs q, k, v, then whatever the mask is made of. scale: the product of all constant "
        "factors before the mask; mask: none, add, select or both; causal: whether keys after the query are hidden by position; "
        "guarded: whether rows that are all hidden give 0 instead of NaN",
    ),
    (
        "gelu",
        "x * P(N(0, 1) < x); form: erf, erfc (both exact, they round differently) or tanh (the approximation by Hendrycks and Gimpel)",
    ),
    (
        "layer_norm",
        "(x - mean) / sqrt(variance + eps) over axes, then times a scale and plus a bias, the other inputs, as affine says; variance: "
        "centred (mean of (x - mean)^2) or moments (mean of x^2 less mean^2, which rounds differently)",
    ),
    ("linear", "a . b + bias, where the bias has only axes that a or b alone gives the product"),
    ("relu", "max(x, 0); NaN stays"),
    ("rms_norm", "x / sqrt(mean(x^2) + eps) over axes, then scale where it is an input"),
    (
        "rope",
        "the pairs (i, i + n/2) of axis turned by angles whose cosines and sines are the other inputs; form: rotate (tables of n entries) "
        "or halves (of n/2)",
    ),
    ("silu", "x * logistic(beta * x)"),
    ("softmax", "exp(x - max) / sum(exp(x - max)) over axes; a row that is all -inf gives NaN"),
):
    register(OpDef(_name, Pattern.COMPOSITE, None, _infer, _evaluate, doc=_doc))
