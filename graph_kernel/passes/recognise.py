"""The recognisers in the order in which they run: what looks for a composite comes after what makes it."""

from __future__ import annotations

from graph_kernel.passes.base import Pass
from graph_kernel.passes.recognise_attention import RecogniseAttention
from graph_kernel.passes.recognise_gelu import RecogniseGelu
from graph_kernel.passes.recognise_layer_norm import RecogniseLayerNorm
from graph_kernel.passes.recognise_linear import RecogniseLinear, RecogniseRelu
from graph_kernel.passes.recognise_rms_norm import RecogniseRmsNorm
from graph_kernel.passes.recognise_rope import RecogniseRope
from graph_kernel.passes.recognise_silu import RecogniseSilu
from graph_kernel.passes.recognise_softmax import RecogniseSoftmax

RECOGNISERS: tuple[type[Pass], ...] = (
    RecogniseSoftmax,
    RecogniseLayerNorm,
    RecogniseRmsNorm,
    RecogniseGelu,
    RecogniseSilu,
    RecogniseRope,
    RecogniseAttention,
    RecogniseLinear,
    RecogniseRelu,
)
