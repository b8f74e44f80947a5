"""What no exported graph may hold that is to be partitioned, said before anything is done."""

from __future__ import annotations

from collections.abc import Iterator

import tensorflow as tf
from tensorflow.core.framework import graph_pb2, types_pb2
from tensorflow.core.framework.node_def_pb2 import NodeDef

from tofu_tf.errors import GraphError

_PYTHON = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})
_REFERENCES = frozenset({"Variable", "VariableV2", "TemporaryVariable", "AutoReloadVariable"})
_SHOWN = 5


def refuse(graph_def: graph_pb2.GraphDef) -> None:
    """Nothing, for a graph that can be partitioned.

    Raises:
      GraphError: a graph that lies on several devices, calls Python, or has variables that are fed
        as handles or are references.
    """
    _refuse_placed(graph_def)
    _refuse_python(graph_def)
    _refuse_references(graph_def)
    _refuse_fed_variables(graph_def)


def _shown(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (" ..." if len(names) > _SHOWN else "")


def devices_of(graph_def: graph_pb2.GraphDef) -> tuple[str, ...]:
    """The distinct devices that its nodes name, in order of appearance."""
    return tuple(dict.fromkeys(n.device for n in graph_def.node if n.device))


def _refuse_placed(graph_def: graph_pb2.GraphDef) -> None:
    """A host and one accelerator are one place."""
    places: dict[str, dict[tuple[object, ...], str]] = {}
    for device in devices_of(graph_def):
        spec = tf.DeviceSpec.from_string(device)
        if spec.device_type:
            place = (spec.job or "localhost", spec.task or 0, spec.device_index or 0)
            places.setdefault(spec.device_type, {}).setdefault(place, device)
    several = [device for held in places.values() if len(held) > 1 for device in held.values()]
    if several:
        raise GraphError(
            "graph",
            f"already placed on {len(several)} devices ({_shown(several)})",
            "a graph for one device",
            "export it without devices; tofu-tf show counts a placed graph as it is",
        )


def _all_nodes(graph_def: graph_pb2.GraphDef) -> Iterator[tuple[str, NodeDef]]:
    for node in graph_def.node:
        yield node.name, node
    for function in graph_def.library.function:
        for node in function.node_def:
            yield f"{function.signature.name}/{node.name}", node


def _refuse_python(graph_def: graph_pb2.GraphDef) -> None:
    calls = [f"{name} ({n.op})" for name, n in _all_nodes(graph_def) if n.op in _PYTHON]
    if calls:
        raise GraphError(
            _shown(calls),
            f"{len(calls)} calls of Python functions, which no GraphDef holds",
            "TensorFlow's own ops",
            "export without tf.py_function and tf.numpy_function, or fetch what does not need them",
        )


def _refuse_references(graph_def: graph_pb2.GraphDef) -> None:
    held = [f"{name} ({n.op})" for name, n in _all_nodes(graph_def) if n.op in _REFERENCES]
    if held:
        raise GraphError(
            _shown(held),
            f"{len(held)} reference variables of TensorFlow 1",
            "resource variables (VarHandleOp)",
            "call tf.compat.v1.enable_resource_variables() before building the graph, or freeze it",
        )


def _refuse_fed_variables(graph_def: graph_pb2.GraphDef) -> None:
    """Variables that are fed as handles: their shapes are not in a GraphDef."""
    fed = [
        n.name
        for n in graph_def.node
        if n.op == "Placeholder" and n.attr["dtype"].type == types_pb2.DT_RESOURCE
    ]
    if fed:
        raise GraphError(
            _shown(fed),
            f"{len(fed)} Placeholders for variables of a traced function, of unknown shape",
            "variables in the graph (VarHandleOp), or weights as constants",
            "save it with tf.saved_model.save, or freeze it with convert_variables_to_constants_v2",
        )
