"""A placed GraphDef as text: one node a line, with its device; the same text for the same graph."""

from __future__ import annotations

from tensorflow.core.framework import graph_pb2, node_def_pb2

from tofu_tf.graph.attributes import decode, matters
from tofu_tf.graph.text import value_text


def placed_text(graph_def: graph_pb2.GraphDef) -> str:
    """The listing of a placed graph: ``name = Op(inputs) {attrs} ^controls @CPU:1``, in its
    order.
    """
    return "\n".join(map(_line, graph_def.node)) + "\n"


def _line(node: node_def_pb2.NodeDef) -> str:
    inputs = ", ".join(i for i in node.input if not i.startswith("^"))
    attrs = ", ".join(
        f"{name}={value_text(decode(attr))}"
        for name, attr in sorted(node.attr.items())
        if matters(node.op, name, attr)
    )
    text = f"{node.name} = {node.op}({inputs})"
    if attrs:
        text += f" {{{attrs}}}"
    controls = " ".join(i for i in node.input if i.startswith("^"))
    if controls:
        text += f" {controls}"
    return f"{text} @{node.device.rsplit('/device:', 1)[-1] or '?'}"
