"""The ONNX front end: ``load`` turns a model into a graph of canonical ops with symbolic shapes.

Reading order: ``loader``, ``source`` (files and protos), ``inputs`` (dimensions), ``convert`` (the walk over nodes),
``tensor`` and ``builder`` (what converters work with), ``values`` (shape computations that vanish), then one file per
op family.
"""

from graph_kernel.from_onnx.convert import supported_ops
from graph_kernel.from_onnx.loader import load

__all__ = ["load", "supported_ops"]
