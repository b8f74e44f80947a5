"""Op definitions of the installed TensorFlow: the graph layer's only private API."""

from __future__ import annotations

import functools

from tensorflow.core.framework import attr_value_pb2, kernel_def_pb2, node_def_pb2, op_def_pb2
from tensorflow.python.framework import kernels, op_def_registry


@functools.cache
def op_definition(op: str) -> op_def_pb2.OpDef | None:
    """The OpDef registered under `op`; None for an op that TensorFlow does not know."""
    found: op_def_pb2.OpDef | None = op_def_registry.get(op)
    return found


@functools.cache
def attribute_kinds(op: str) -> dict[str, str]:
    """Kind (``int``, ``list(type)`` ...) of every attribute of `op`; empty for an unknown op."""
    definition = op_definition(op)
    return {a.name: a.type for a in definition.attr} if definition is not None else {}


@functools.cache
def has_kernel(op: str, device_type: str) -> bool:
    """Whether some kernel of `op` runs on devices of this type."""
    found = kernels.get_registered_kernels_for_op(op).kernel
    return any(k.device_type in (device_type, "DEFAULT") and not k.label for k in found)


def runs(node: node_def_pb2.NodeDef, device_type: str) -> bool:
    """Whether some kernel runs `node`, with its data types, on devices of this type; also for a
    function's call and for an op that TensorFlow does not know.
    """
    found = _kernels(node.op)
    if not found:
        return True
    given = {name: _attribute(node, name) for k in found for name in _constrained(k)}
    key = tuple((name, value.SerializeToString()) for name, value in sorted(given.items()))
    return _runs(node.op, device_type, key)


@functools.cache
def _runs(op: str, device_type: str, values: tuple[tuple[str, bytes], ...]) -> bool:
    given = {name: attr_value_pb2.AttrValue.FromString(text) for name, text in values}
    return any(
        k.device_type in (device_type, "DEFAULT")
        and all(_allows(c.allowed_values.list, given[c.name]) for c in k.constraint)
        for k in _kernels(op)
    )


def _allows(allowed: attr_value_pb2.AttrValue.ListValue, value: attr_value_pb2.AttrValue) -> bool:
    kind = value.WhichOneof("value")
    if kind == "list":
        return set(value.list.type) <= set(allowed.type)
    known = {"type": allowed.type, "s": allowed.s, "b": allowed.b, "i": allowed.i}
    return kind in known and getattr(value, kind) in known[kind]


@functools.cache
def _kernels(op: str) -> tuple[kernel_def_pb2.KernelDef, ...]:
    found = kernels.get_registered_kernels_for_op(op).kernel
    return tuple(k for k in found if not k.label)


def _constrained(kernel: kernel_def_pb2.KernelDef) -> list[str]:
    return [c.name for c in kernel.constraint]


def _attribute(node: node_def_pb2.NodeDef, name: str) -> attr_value_pb2.AttrValue:
    if name in node.attr:
        return node.attr[name]
    definition = op_definition(node.op)
    assert definition is not None, "it has kernels"
    return next(a.default_value for a in definition.attr if a.name == name)


def output_type(node: node_def_pb2.NodeDef, index: int) -> int | None:
    """The DataType of an output of a node; None where its op is not known."""
    definition = op_definition(node.op)
    if definition is None:
        return None
    types: list[int] = []
    for arg in definition.output_arg:
        if arg.type_list_attr:
            types += _attribute(node, arg.type_list_attr).list.type
        else:
            count = _attribute(node, arg.number_attr).i if arg.number_attr else 1
            types += [_attribute(node, arg.type_attr).type if arg.type_attr else arg.type] * count
    return types[index] if index < len(types) else None
