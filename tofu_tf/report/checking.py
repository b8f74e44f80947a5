"""What is wrong with the placement of a GraphDef, found without running it.

Soft placement hides a node on a device that does not exist or has no kernel for it, and logical
CPUs let an op use a variable of another CPU where GPUs do not: so it is checked statically.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

import tensorflow as tf
from tensorflow.core.framework import graph_pb2, kernel_def_pb2
from tensorflow.python.framework import kernels

from tofu_tf.report import counting


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """A node that cannot run as it is placed."""

    node: str
    text: str

    def __str__(self) -> str:
        return f"{self.node}: {self.text}"


def check_placement(graph_def: graph_pb2.GraphDef, device_type: str | None = None) -> list[Problem]:
    """Every problem of a placed GraphDef; empty when stock TensorFlow runs each node where it is.

    Args:
      graph_def: a flat graph.
      device_type: checks kernels as if every device were of this type; None takes each node's own.
    """
    problems = [
        Problem(node.name, f"{what} in device {node.device!r}")
        for node in graph_def.node
        if (what := _missing_parts(node.device))
    ]
    problems += [
        Problem(node.name, "attribute _class overrides the device: strip it")
        for node in graph_def.node
        if "_class" in node.attr
    ]
    functions = {function.signature.name for function in graph_def.library.function}
    for operation in counting.infer_shapes(graph_def).get_operations():
        if operation.device:
            problems += _foreign_resources(operation)
            if operation.type not in functions:
                problems += _absent_kernel(operation, device_type)
    return problems


def _missing_parts(device: str) -> str:
    """What a full device name would have and this one lacks, as text."""
    if not device:
        return "nothing"
    spec = tf.DeviceSpec.from_string(device)
    parts = {
        "job": spec.job,
        "replica": spec.replica,
        "task": spec.task,
        "type": spec.device_type,
        "index": spec.device_index,
    }
    missing = [name for name, value in parts.items() if value is None]
    return f"no {', '.join(missing)}" if missing else ""


def _foreign_resources(operation: tf.Operation) -> Iterator[Problem]:
    for tensor in operation.inputs:
        owner = tensor.op.device
        if tensor.dtype == tf.resource and owner and owner != operation.device:
            yield Problem(
                operation.name,
                f"on {operation.device}, but its resource {tensor.name} is on {owner}",
            )


def _absent_kernel(operation: tf.Operation, device_type: str | None) -> Iterator[Problem]:
    on = device_type or tf.DeviceSpec.from_string(operation.device).device_type
    if not any(_serves(kernel, operation, on) for kernel in _kernels(operation.type)):
        dtypes = ", ".join(
            f"{attr.name}={operation.get_attr(attr.name).name}"
            for attr in operation.op_def.attr
            if attr.type == "type"
        )
        yield Problem(operation.name, f"no {on} kernel for {operation.type}({dtypes})")


@functools.cache
def _kernels(op: str) -> tuple[kernel_def_pb2.KernelDef, ...]:
    """The kernels that TensorFlow picks by itself: a label asks for a special one."""
    registered = kernels.get_registered_kernels_for_op(op).kernel
    return tuple(kernel for kernel in registered if not kernel.label)


def _serves(kernel: kernel_def_pb2.KernelDef, operation: tf.Operation, device_type: str) -> bool:
    """Whether `kernel` runs `operation` on that type; DEFAULT serves any (NoOp has no other)."""
    return kernel.device_type in (device_type, "DEFAULT") and all(
        _allows(constraint, operation.get_attr(constraint.name)) for constraint in kernel.constraint
    )


def _allows(constraint: kernel_def_pb2.KernelDef.AttrConstraint, value: object) -> bool:
    """Whether an attribute's value (each of a list's) is among those that a kernel is made for."""
    allowed = constraint.allowed_values.list
    known = {*map(tf.as_dtype, allowed.type), *allowed.s, *allowed.b, *allowed.i}
    return set(value if isinstance(value, list) else [value]) <= known
