"""An exported GraphDef -> Captured: what its fetches need, with static shapes."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.core.framework.node_def_pb2 import NodeDef

from tofu_tf.capture.captured import Captured
from tofu_tf.capture.deduplicating import pad_distinct
from tofu_tf.capture.drawing import draw
from tofu_tf.capture.folding import fold
from tofu_tf.capture.inlining import inline
from tofu_tf.capture.shaping import check_static, imported
from tofu_tf.errors import CaptureError, GraphError
from tofu_tf.graph.importing import check_nodes, import_graph
from tofu_tf.graph.ir import TensorSpec
from tofu_tf.graph.registered import op_definition

_FED = ("Placeholder", "PlaceholderWithDefault")
_LIMIT = 2**31  # protocol buffers hold no more bytes


def capture_graph_def(
    graph_def: graph_pb2.GraphDef,
    fetches: Sequence[str],
    targets: Sequence[str] = (),
    batch: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dynamic: bool = False,
) -> Captured:
    """The part of `graph_def` that `fetches` need, as a Graph with static shapes.

    Args:
      fetches: tensors, ``softmax`` or ``softmax:0``; a node without outputs is a target.
      targets: operations that must run.
      batch: the size of every unknown first dimension of a placeholder.
      shapes: shapes of placeholders, instead of those written in the graph.
      dynamic: whether tensors inside may have sizes that depend on data.

    The inputs are the placeholders that are needed, in the graph's order. `variables` is empty:
    VarHandleOps name the graph's variables by their shared names.

    Raises:
      GraphError: an unknown op, fetch or bad edge, or a graph of more than 2 GiB.
      CaptureError: unknown dimensions (all listed by name).
    """
    if not fetches and not targets:
        raise GraphError("fetches", "none given", "at least one tensor or operation")
    if graph_def.ByteSize() >= _LIMIT:
        raise GraphError(
            "graph",
            f"{graph_def.ByteSize()} bytes",
            f"under {_LIMIT}",
            "keep the weights in variables instead of Consts",
        )
    check_nodes(graph_def)
    nodes = {node.name: node for node in graph_def.node}
    outputs, effects = split_fetches(fetches, targets, nodes)
    fed = _needed_placeholders(nodes, [*outputs, *effects])
    known = _shapes(fed, nodes, dict(shapes or {}), batch)
    flat = inline(graph_def, [*fed, *outputs, *effects])
    folded, specs = fold(
        draw(flat, None).graph_def,
        [*fed, *(_node(f) for f in (*outputs, *effects))],
        functools.partial(imported, shapes=known),
    )
    graph = pad_distinct(import_graph(folded, specs, fed, outputs, effects))
    if not dynamic:
        check_static(
            graph,
            "give the batch size and the shapes of the placeholders; with undescribed='whole' "
            "(--undescribed=whole) ops whose output shape depends on data run whole, on one device",
        )
    inputs = tuple(_tensor_spec(graph.nodes[name].outputs[0], name) for name in fed)
    results = tuple(_tensor_spec(graph.spec(ref), None) for ref in graph.outputs)
    return Captured(graph, inputs, results, {}, {}, folded.library)


def _tensor_spec(spec: TensorSpec, name: str | None) -> tf.TensorSpec:
    return tf.TensorSpec(spec.shape if spec.is_static else None, spec.dtype, name)


def _node(text: str) -> str:
    name, colon, index = text.rpartition(":")
    return name if colon and index.isdigit() else text


def split_fetches(
    fetches: Sequence[str], targets: Sequence[str], nodes: Mapping[str, NodeDef]
) -> tuple[list[str], list[str]]:
    """Tensors and operations; an unknown name is refused with its likely meanings."""
    missing = [text for text in (*fetches, *targets) if _node(text) not in nodes]
    if missing:
        last = {_node(m).rpartition("/")[2] for m in missing}
        near = [n for n in nodes if n.rpartition("/")[2] in last][:5]
        raise GraphError(
            ", ".join(missing),
            "fetches that the graph does not hold",
            "names of its nodes",
            f"perhaps {', '.join(near)}" if near else "",
        )
    outputs: list[str] = []
    effects = [_node(text) for text in targets]
    for text in fetches:
        definition = op_definition(nodes[_node(text)].op)
        is_tensor = definition is None or len(definition.output_arg) > 0
        (outputs if is_tensor else effects).append(text)
    return outputs, effects


def _needed_placeholders(nodes: Mapping[str, NodeDef], roots: Sequence[str]) -> list[str]:
    found: set[str] = set()
    stack = [_node(root) for root in roots]
    while stack:
        name = stack.pop()
        if name in found or name not in nodes:  # a bad edge: importing names them all
            continue
        found.add(name)
        stack += [_node(text.removeprefix("^")) for text in nodes[name].input]
    return [n for n in nodes if n in found and nodes[n].op in _FED]


def _shapes(
    fed: Sequence[str],
    nodes: Mapping[str, NodeDef],
    given: dict[str, Sequence[int]],
    batch: int | None,
) -> dict[str, tf.TensorShape]:
    """The shapes of the placeholders that differ from what the graph says."""
    unused = sorted(set(given) - set(fed))
    if unused:
        raise GraphError(
            ", ".join(unused), "shapes for what is no needed placeholder", ", ".join(fed)
        )
    found: dict[str, tf.TensorShape] = {}
    unknown = []
    for name in fed:
        written = tf.TensorShape(nodes[name].attr["shape"].shape)
        shape = tf.TensorShape(given[name]) if name in given else written
        if not shape.is_compatible_with(written):
            raise GraphError(name, f"shape {shape} given", f"one that fits {written}")
        if batch is not None and shape.rank and shape[0] is None:
            shape = tf.TensorShape([batch, *shape[1:]])
        if not shape.is_fully_defined():
            unknown.append(f"{name} {shape}")
        if shape != written:
            found[name] = shape
    if unknown:
        raise CaptureError(
            "; ".join(unknown),
            "placeholders with unknown dimensions",
            "static shapes",
            "give the batch size (--batch), or a shape for each",
        )
    return found
