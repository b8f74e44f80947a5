"""What each device of a placed GraphDef does: nodes, pieces, FLOPs, bytes held, sent, received."""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Mapping

import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2

from tofu_tf.graph.attributes import complete, decode
from tofu_tf.graph.ir import TensorSpec
from tofu_tf.graph.state import HANDLE_MAKERS, written_operands
from tofu_tf.ops.registry import REGISTRY
from tofu_tf.report.counting import (
    Communication,
    full_device,
    infer_shapes,
)

_PIECE = re.compile(r"(.+)/piece\d+(_\d+)?")
# Their values are the caller's, or part of the graph, or the variables'.
_NOT_MADE = frozenset({"Placeholder", "Const", "ReadVariableOp"})
# They compute nothing, described or not.
_MOVES = frozenset({"Slice", "ConcatV2", "Identity", "IdentityN", "NoOp"})


@dataclasses.dataclass(frozen=True)
class DeviceShare:
    """One device's part of a step.

    `nodes`: all nodes on it. `pieces`: those that are its share of a node of the original graph.
    `flops`: floating-point operations, of the ops that have a count. `variable_bytes`: variables
    that live there. `constant_bytes`: constants, such as frozen weights. `output_bytes`: all
    tensors made there in one step, added up as if none was freed. `sent`, `received`: bytes to and
    from other devices.
    """

    device: str
    nodes: int
    pieces: int
    flops: int
    variable_bytes: int
    constant_bytes: int
    output_bytes: int
    sent: int
    received: int


@dataclasses.dataclass(frozen=True)
class Shares:
    """Every device's share, and what could not be seen.

    `unknown`: tensors (``node:0``) of unknown size, counted as nothing. `uncounted`: ops without
    a count of FLOPs and how many nodes each has.
    """

    devices: tuple[DeviceShare, ...]
    unknown: tuple[str, ...]
    uncounted: Mapping[str, int]


def device_shares(graph_def: graph_pb2.GraphDef, moved: Communication) -> Shares:
    """The share of every device of a placed GraphDef, of which `moved` was counted.

    Feeds are in `moved` apart and count as neither sent nor received.
    """
    graph = infer_shapes(graph_def)
    variables = _variables(graph_def)
    counts: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    uncounted: defaultdict[str, int] = defaultdict(int)
    unknown = []
    for node in graph_def.node:
        count = counts[full_device(node.device)]
        count["nodes"] += 1
        count["pieces"] += bool(_PIECE.fullmatch(node.name))
        operation = graph.get_operation_by_name(node.name)
        if node.name in variables:
            count["variables"] += variables[node.name].nbytes
            continue
        made = [_spec(t) for t in operation.outputs]
        if node.op == "Const":
            count["constants"] += sum(spec.nbytes for spec in made if spec)
        if node.op not in _NOT_MADE:
            unknown += [f"{node.name}:{i}" for i, spec in enumerate(made) if spec is None]
            count["made"] += sum(spec.nbytes for spec in made if spec)
        flops = _flops(node, operation, variables)
        if flops is None:
            uncounted[node.op] += 1
        count["flops"] += flops or 0
    return Shares(
        tuple(
            DeviceShare(
                device,
                count["nodes"],
                count["pieces"],
                count["flops"],
                count["variables"],
                count["constants"],
                count["made"],
                moved.sent.get(device, 0),
                moved.received.get(device, 0),
            )
            for device, count in sorted(counts.items(), key=lambda item: _order(item[0]))
        ),
        tuple(unknown),
        dict(sorted(uncounted.items())),
    )


def _order(device: str) -> tuple[object, ...]:
    """Devices as one counts them: CPU:2 before CPU:10."""
    return tuple(int(p) if p.isdigit() else p for p in re.split(r"(\d+)", device))


def _variables(graph_def: graph_pb2.GraphDef) -> dict[str, TensorSpec]:
    return {
        node.name: TensorSpec(tuple(shape), decode(node.attr["dtype"]))
        for node in graph_def.node
        if node.op in HANDLE_MAKERS
        and (shape := decode(node.attr["shape"])) is not None
        and -1 not in shape
    }


def _spec(tensor: tf.Tensor) -> TensorSpec | None:
    """None where the size is not known; a handle or a string has no size that is known but 0."""
    dtype = tensor.dtype.base_dtype
    if dtype in (tf.resource, tf.variant, tf.string):
        return TensorSpec((), dtype.name)
    if not tensor.shape.is_fully_defined():
        return None
    return TensorSpec(tuple(tensor.shape.as_list()), dtype.name)


def _flops(
    node: node_def_pb2.NodeDef, operation: tf.Operation, variables: Mapping[str, TensorSpec]
) -> int | None:
    """None for an op that has no count. Variables stand for their handles, as their versions do."""
    if node.op in _NOT_MADE or node.op in _MOVES:
        return 0
    entry = REGISTRY.get(node.op)
    if entry is None:
        return None
    handles = {
        i: variables[t.op.name] for i, t in enumerate(operation.inputs) if t.op.name in variables
    }
    inputs = [handles.get(i) or _spec(t) for i, t in enumerate(operation.inputs)]
    outputs = [_spec(t) for t in operation.outputs]
    outputs += [handles[i] for i in written_operands(node, tuple(handles))]
    if None in inputs or None in outputs:
        return None
    if entry.flops is None:
        return sum(o.size for o in outputs if o) if entry.elementwise else 0
    attributes = {k: decode(v) for k, v in complete(node.op, node.attr).items()}
    return entry.flops(inputs, outputs, attributes)
