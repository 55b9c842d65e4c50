"""Function bodies that ONNX's own schemas define ops by: the fallback for ops without a converter."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import defs, helper

from graph_kernel.from_onnx.registry import Call
from graph_kernel.from_onnx.tensor import Tensor
from vm.errors import UnsupportedOp


def _schema(node: onnx.NodeProto, opsets: dict[str, int]) -> Any:
    """The op's schema (its C++ class has more attributes than its stubs say), or None."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    try:
        return defs.get_schema(node.op_type, opsets.get(domain, 1), domain)
    except (defs.SchemaError, TypeError):  # a damaged name is no text
        return None


def has_function(node: onnx.NodeProto, opsets: dict[str, int]) -> bool:
    """Whether ONNX defines the op as a composition of others."""
    schema = _schema(node, opsets)
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


def function_body(call: Call, opsets: dict[str, int]) -> tuple[onnx.FunctionProto, dict[str, int]]:
    """The body of the op for this node, with the node's attributes filled in, and the opsets it is written in."""
    node = call.node
    schema = _schema(node, opsets)
    if schema is None:
        raise UnsupportedOp(f"{call.where()}: the operator is not supported")
    version = opsets.get("", 1)
    body = onnx.FunctionProto()
    if schema.has_context_dependent_function:
        types = [_type_proto(t).SerializeToString() for t in call.inputs]
        at = _newest(schema.context_dependent_function_opset_versions, version)
        text = schema.get_context_dependent_function_with_opset_version(at, node.SerializeToString(), types)
    else:
        at = _newest(schema.function_opset_versions, version)
        text = schema.get_function_with_opset_version(at)
    if not text:
        raise UnsupportedOp(f"{call.where()}: the operator is not supported with these inputs")
    body.ParseFromString(text)
    return _with_attributes(body, node, schema), {o.domain: o.version for o in body.opset_import}


def _newest(versions: list[int], limit: int) -> int:
    return max((v for v in versions if v <= limit), default=min(versions))


def _type_proto(tensor: Tensor | None) -> onnx.TypeProto:
    if tensor is None or tensor.items is not None:
        return onnx.TypeProto()
    elem = helper.np_dtype_to_tensor_dtype(tensor.dtype)
    return helper.make_tensor_type_proto(elem, [d if isinstance(d, int) else str(d) for d in tensor.shape])


def _with_attributes(body: onnx.FunctionProto, node: onnx.NodeProto, schema: Any) -> onnx.FunctionProto:
    """References to the function's attributes replaced by the node's values or the schema's defaults."""
    given = {a.name: a for a in node.attribute}
    for name, attribute in schema.attributes.items():
        if name not in given and attribute.default_value.type:
            given[name] = attribute.default_value
    for inner in body.node:
        _fill(inner, given)
    return body


def _fill(node: onnx.NodeProto, given: dict[str, onnx.AttributeProto]) -> None:
    for attribute in list(node.attribute):
        if attribute.ref_attr_name:
            value = given.get(attribute.ref_attr_name)
            if value is None:
                node.attribute.remove(attribute)
                continue
            name = attribute.name
            attribute.CopyFrom(value)
            attribute.name = name
        for inner in attribute.g.node:
            _fill(inner, given)
