"""A Graph on one device: the oracle for versions. Every variable version is an ordinary tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import function_pb2, graph_pb2
from tensorflow.core.framework.node_def_pb2 import NodeDef

from tofu_tf.graph.attributes import encode
from tofu_tf.graph.ir import VARIABLE, Graph, Node, TensorSpec
from tofu_tf.graph.traversal import last_versions


def runnable(
    graph: Graph, library: function_pb2.FunctionDefLibrary | None = None
) -> graph_pb2.GraphDef:
    """`graph` as a GraphDef whose variables are fed and whose versions are outputs.

    A node that touches variables gets fresh ones, filled with the versions that it refers to, and
    what it writes is read back: the kernel that runs is the original's own.
    """
    result = graph_pb2.GraphDef(library=library)
    names: dict[str, str] = {}  # output of the Graph -> output of the GraphDef
    for node in graph:
        if node.op == VARIABLE:
            _add(result, node.name, "Placeholder", [], _typed(node.outputs[0]))
            names[f"{node.name}:0"] = f"{node.name}:0"
            continue
        operands = [names[str(ref)] for ref in node.inputs]
        waits = [f"^{c}" for c in node.controls]
        for i, variable in node.variables.items():
            spec = graph.variables[variable].spec
            operands[i], assigned = _fresh_variable(result, node, variable, spec, operands[i])
            waits.append(f"^{assigned}")
        made = _add(result, node.name, node.op, [*operands, *waits], {})
        for name, attr in node.attrs.items():
            made.attr[name].CopyFrom(attr)
        own = len(node.outputs) - len(node.writes)
        for i in range(own):
            names[f"{node.name}:{i}"] = f"{node.name}:{i}"
        for i, variable in enumerate(node.writes):
            spec = graph.variables[variable].spec
            read = f"{node.name}/next{i}"
            handle = f"{_scope(node, variable)}/handle"
            attrs = {"dtype": encode(spec.dtype, "type")}
            _add(result, read, "ReadVariableOp", [f"{handle}:0", f"^{node.name}"], attrs)
            names[f"{node.name}:{own + i}"] = f"{read}:0"
    # Fetches go by the Graph's names.
    result.node.add(name="names", op="NoOp").attr["names"].CopyFrom(
        encode([f"{k} {v}" for k, v in names.items()], "list(string)")
    )
    return result


def _scope(node: Node, variable: str) -> str:
    return f"{node.name}/held{list(dict.fromkeys(node.variables.values())).index(variable)}"


def _fresh_variable(
    result: graph_pb2.GraphDef, node: Node, variable: str, spec: TensorSpec, value: str
) -> tuple[str, str]:
    scope = _scope(node, variable)
    handle, assigned = f"{scope}/handle", f"{scope}/assigned"
    if not any(n.name == handle for n in result.node[-4 * len(node.variables) :]):
        attrs = {**_typed(spec), "shared_name": encode(handle)}
        _add(result, handle, "VarHandleOp", [], attrs)
        _add(
            result, assigned, "AssignVariableOp", [f"{handle}:0", value], {"dtype": attrs["dtype"]}
        )
    return f"{handle}:0", assigned


def _typed(spec: TensorSpec) -> dict[str, Any]:
    return {"dtype": encode(spec.dtype, "type"), "shape": encode(spec.shape, "shape")}


def _add(
    result: graph_pb2.GraphDef, name: str, op: str, inputs: Sequence[str], attrs: Mapping[str, Any]
) -> NodeDef:
    node = result.node.add(name=name, op=op, input=list(inputs))
    for key, attr in attrs.items():
        node.attr[key].CopyFrom(attr)
    return node


class Running:
    """A Session over one Graph; a `step` takes the variables' values and yields the next."""

    def __init__(
        self, graph: Graph, library: function_pb2.FunctionDefLibrary | None = None
    ) -> None:
        graph_def = runnable(graph, library)
        names = graph_def.node.pop()
        self.names = dict(text.decode().split(" ") for text in names.attr["names"].list.s)
        self.graph = graph
        config = tf.compat.v1.ConfigProto()
        # Another rewriter behind ours would be what is tested.
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        with tf.Graph().as_default() as built:
            tf.graph_util.import_graph_def(graph_def, name="")
        self.built = built
        self.session = tf.compat.v1.Session(graph=built, config=config)

    def step(
        self, inputs: Sequence[Any], variables: Mapping[str, np.ndarray]
    ) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
        """Outputs in order, and every variable's value afterwards."""
        fed = {f"{name}:0": value for name, value in zip(self.graph.inputs, inputs, strict=True)}
        fed |= {f"{v.node}:0": variables[name] for name, v in self.graph.variables.items()}
        last = last_versions(self.graph)
        fetches = [self.names[str(ref)] for ref in (*self.graph.outputs, *last.values())]
        effects = [self.built.get_operation_by_name(name) for name in self.graph.effects]
        values, _ = self.session.run((fetches, effects), fed)
        count = len(self.graph.outputs)
        return values[:count], dict(zip(last, values[count:], strict=True))
