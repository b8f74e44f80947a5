"""Op definitions of the installed TensorFlow: the graph layer's only private API."""

from __future__ import annotations

import functools

from tensorflow.core.framework import op_def_pb2
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
