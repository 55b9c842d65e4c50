"""The op table: ``OPS[name]`` is the one declaration of each op. One family a file."""

from graph_kernel.ops import composite, control, elementwise, host, matmul, movement, reduce, shape, special, views
from graph_kernel.ops.base import OPS, OpDef, Pattern, on_chip
from graph_kernel.ops.values import infer_values, literal_value, propagate

__all__ = ["OPS", "OpDef", "Pattern", "infer_values", "literal_value", "on_chip", "propagate"]

_FAMILIES = (composite, control, elementwise, host, matmul, movement, reduce, shape, special, views)
