"""An exported GraphDef -> Captured: what its fetches need, with static shapes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.core.framework.node_def_pb2 import NodeDef

from tofu_tf.capture.captured import Captured
from tofu_tf.capture.deduplicating import pad_distinct
from tofu_tf.capture.dilating import fuse_dilated
from tofu_tf.capture.inlining import CALLS, inline
from tofu_tf.capture.refusing import refuse
from tofu_tf.capture.shaping import check_static, imported
from tofu_tf.capture.straightening import straighten
from tofu_tf.errors import CaptureError, GraphError
from tofu_tf.graph import state
from tofu_tf.graph.functions import named_by, reachable
from tofu_tf.graph.importing import check_nodes, import_graph
from tofu_tf.graph.ir import CONST, WEIGHT, Graph, TensorSpec, constant_value
from tofu_tf.graph.persistence import ancestors, parsed
from tofu_tf.graph.registered import op_definition

_BEHIND = "tofu_behind/"  # scope of what takes the place of a fetched call
_FED = ("Placeholder", "PlaceholderWithDefault")
_LIMIT = 2**31  # protocol buffers hold no more bytes
WEIGHT_BYTES = 1024  # constants of at most so many bytes are copied to wherever they are read
_FLOATS = frozenset({"bfloat16", "float16", "float32", "float64", "complex64", "complex128"})


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
    graph_def = _needed(graph_def, [_node(root) for root in (*outputs, *effects)])
    refuse(graph_def)
    graph_def, outputs, effects = _behind_calls(graph_def, outputs, effects)
    nodes = {node.name: node for node in graph_def.node}
    fed = _needed_placeholders(nodes, [*outputs, *effects])
    known = _shapes(fed, nodes, dict(shapes or {}), batch)
    flat = inline(graph_def, [*fed, *outputs, *effects])
    straight = straighten(
        flat,
        [*fed, *(_node(f) for f in (*outputs, *effects))],
        lambda graph_def, states: imported(graph_def, states, known),
    )
    folded = straight.graph_def
    graph = import_graph(folded, straight.shapes, fed, outputs, effects)
    graph = fuse_dilated(pad_distinct(graph))
    if not dynamic:
        check_static(
            graph,
            "give the batch size and the shapes of the placeholders; with undescribed='whole' "
            "(--undescribed=whole) ops whose output shape depends on data run whole, on one device",
        )
    graph = with_weights(graph)
    inputs = tuple(_tensor_spec(graph.nodes[name].outputs[0], name) for name in fed)
    results = tuple(_tensor_spec(graph.spec(ref), None) for ref in graph.outputs)
    return Captured(graph, inputs, results, {}, {}, folded.library)


def _needed(graph_def: graph_pb2.GraphDef, roots: Sequence[str]) -> graph_pb2.GraphDef:
    """The part that `roots` need: what else is in a SavedModel (other signatures, what saves and
    restores) is neither inlined nor checked.
    """
    found = ancestors({node.name: node for node in graph_def.node}, roots)
    out = graph_pb2.GraphDef(versions=graph_def.versions)
    out.node.extend(node for node in graph_def.node if node.name in found)
    called = [name for node in out.node for name in named_by(node.op, node.attr)]
    library = {f.signature.name: f for f in graph_def.library.function}
    out.library.function.extend(reachable(called, library).values())
    out.library.gradient.extend(graph_def.library.gradient)
    return out


def _behind_calls(
    graph_def: graph_pb2.GraphDef, outputs: Sequence[str], effects: Sequence[str]
) -> tuple[graph_pb2.GraphDef, list[str], list[str]]:
    """The graph with nodes behind the calls that are fetched, and these in their place.

    A call that is itself fetched stays a call, and one with side effects has them whichever output
    is fetched.
    """
    functions = {function.signature.name for function in graph_def.library.function}
    calls = {node.name: node for node in graph_def.node if node.op in CALLS or node.op in functions}
    asked = dict.fromkeys(n for n in (*map(_node, outputs), *effects) if n in calls)
    if not asked:
        return graph_def, list(outputs), list(effects)
    found, done = [], []
    for text in outputs:
        ref = parsed(text)
        if ref.node not in calls:
            found.append(text)
            continue
        made = graph_def.node.add(name=f"{_BEHIND}{ref.node}/{ref.index}", op="Identity")
        made.input.append(str(ref))
        made.attr["T"].type = _output_type(calls[ref.node], ref.index, graph_def)
        found.append(made.name)
    for name in asked:
        if name in effects or calls[name].op != "PartitionedCall":
            graph_def.node.add(name=f"{_BEHIND}{name}", op="NoOp", input=[f"^{name}"])
            done.append(f"{_BEHIND}{name}")
    return graph_def, found, [*(e for e in effects if e not in calls), *done]


def _output_type(node: NodeDef, index: int, graph_def: graph_pb2.GraphDef) -> int:
    if "Tout" in node.attr:
        types = node.attr["Tout"].list.type
    else:
        (function,) = (f for f in graph_def.library.function if f.signature.name == node.op)
        types = [arg.type for arg in function.signature.output_arg]
    if index >= len(types):
        raise GraphError(
            f"{node.name}:{index}",
            "an output that its node does not have",
            f"an output below {len(types)}",
        )
    return types[index]


def with_weights(graph: Graph) -> Graph:
    """`graph` with a Weight in the place of every large constant of floating-point numbers.

    A constant belongs to whoever reads it and may be copied anywhere; a Weight is cut as variables
    are. Where all elements are alike (zeros of a first state) a copy is nothing to save.
    """
    nodes = {}
    for name, node in graph.nodes.items():
        large = node.op == CONST and node.outputs[0].nbytes > WEIGHT_BYTES
        if large and node.outputs[0].dtype in _FLOATS:
            value = constant_value(node)
            if np.any(value != value.flat[0]):
                node = dataclasses.replace(node, op=WEIGHT)
        nodes[name] = node
    return dataclasses.replace(graph, nodes=nodes)


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
        if "Tout" in nodes[_node(text)].attr:  # a call
            is_tensor = len(nodes[_node(text)].attr["Tout"].list.type) > 0
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


def effectful(graph_def: graph_pb2.GraphDef, fetches: Sequence[str]) -> frozenset[str]:
    """The nodes of those `fetches` that come after a side effect in the original."""
    nodes = {node.name: node for node in graph_def.node}
    quiet = {*state.READERS, *state.HANDLE_MAKERS, *state.RANDOM, "Placeholder"}
    active = {
        node.name
        for node in graph_def.node
        if node.op not in quiet and (op_definition(node.op) is None or state.is_stateful(node.op))
    }
    return frozenset(
        name for name in map(_node, fetches) if not active.isdisjoint(ancestors(nodes, [name]))
    )
