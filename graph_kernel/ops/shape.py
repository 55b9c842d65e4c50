"""Ops without inputs: ``constant``, ``dim`` (the value of a dimension) and ``iota``."""

from __future__ import annotations

import numpy as np

from graph_kernel.ir import Origin, Value
from graph_kernel.ops.base import Attrs, OpDef, Pattern, Type, check_axis, entrywise, register, static_shape
from symbolic import Scope


def _infer_constant(scope: Scope, inputs: tuple[Value, ...], attrs: Attrs, origin: Origin) -> list[Type]:
    value = attrs["value"]
    return [(tuple(int(n) for n in value.shape), value.dtype)]


def _constant_value(scope: Scope, values: list[np.ndarray], attrs: Attrs) -> np.ndarray | None:
    return entrywise(int, attrs["value"].astype(object)) if attrs["value"].dtype.kind in "iub" else None


register(
    OpDef(
        "constant",
        Pattern.SHAPE,
        0,
        _infer_constant,
        lambda xs, attrs: [attrs["value"]],
        value_rule=_constant_value,
        doc="the array in attribute value",
    )
)


def _dim_value(scope: Scope, values: list[np.ndarray], attrs: Attrs) -> np.ndarray:
    out = np.empty((), dtype=object)
    out[()] = attrs["expr"]
    return out


register(
    OpDef(
        "dim",
        Pattern.SHAPE,
        0,
        lambda scope, inputs, attrs, origin: [((), np.dtype(attrs["dtype"]))],
        lambda xs, attrs: [np.asarray(attrs["expr"]).astype(attrs["dtype"])],
        value_rule=_dim_value,
        doc="rank-0 tensor with the value of the dimension expr",
    )
)


def _infer_iota(scope: Scope, inputs: tuple[Value, ...], attrs: Attrs, origin: Origin) -> list[Type]:
    shape = tuple(attrs["shape"])
    check_axis(attrs["axis"], len(shape), origin)
    return [(shape, np.dtype(attrs["dtype"]))]


def _evaluate_iota(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    shape, axis = attrs["shape"], attrs["axis"]
    line = np.arange(shape[axis]).reshape([-1 if a == axis else 1 for a in range(len(shape))])
    return [np.broadcast_to(line.astype(attrs["dtype"]), shape)]


def _iota_value(scope: Scope, values: list[np.ndarray], attrs: Attrs) -> np.ndarray | None:
    shape = static_shape(attrs["shape"])
    if shape is None or np.dtype(attrs["dtype"]).kind not in "iu":
        return None
    return _evaluate_iota([], {"shape": shape, "axis": attrs["axis"], "dtype": np.int64})[0].astype(object)


register(
    OpDef(
        "iota",
        Pattern.BROADCAST,
        0,
        _infer_iota,
        _evaluate_iota,
        value_rule=_iota_value,
        doc="counts from 0 along axis; fills shape",
    )
)
