"""Static shapes of a GraphDef's tensors, as TensorFlow's own shape inference finds them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tofu_tf.capture.tensorflow_private import copy_handle_data
from tofu_tf.errors import CaptureError, GraphError
from tofu_tf.graph.attributes import WHY_DYNAMIC, attribute
from tofu_tf.graph.importing import Shapes
from tofu_tf.graph.ir import Graph, Node, TensorSpec

# (op, output) whose shape TensorFlow never infers -> the one the CPU kernel gives it. The reserve
# space of fused batch normalisation only goes from the forward op to its gradient on the same
# device.
_KERNEL_SHAPES = {("FusedBatchNormV3", 5): ()}
# Scope of the placeholders made here: `a/b/resource` would make a scope of the node `a/b` that is
# still to come.
_FED = "fed_from_outside/"
_SHOWN = 8  # offenders that an error names one by one
_NO_SHAPE = frozenset({"resource", "variant"})


def imported(
    graph_def: graph_pb2.GraphDef,
    placeholders: Mapping[str, tf.Tensor] | None = None,
    shapes: Mapping[str, tf.TensorShape] | None = None,
) -> tf.Graph:
    """`graph_def` as a tf.Graph, with everything known about its placeholders.

    Args:
      placeholders: those of the traced function, by name: handle data and shapes are taken from
        them (a GraphDef holds no handle data).
      shapes: shapes that replace those written in the placeholders (an unknown batch made known).
    """
    known = dict(placeholders or {})
    given = dict(shapes or {})
    rest = graph_pb2.GraphDef(versions=graph_def.versions, library=graph_def.library)
    own: dict[str, tuple[tf.DType, tf.TensorShape]] = {}
    for node in graph_def.node:
        if node.name in known:
            own[node.name] = (known[node.name].dtype, given.get(node.name, known[node.name].shape))
        elif node.name in given:
            own[node.name] = (tf.dtypes.as_dtype(node.attr["dtype"].type), given[node.name])
        else:
            copied = rest.node.add()
            copied.CopyFrom(node)
            # Colocation with nodes that inlining removed fails the import; devices of this host
            # mean nothing.
            copied.attr.pop("_class", None)
            copied.device = ""
    graph = tf.Graph()
    with graph.as_default():
        mapping = {}
        # Shorter names first: TensorFlow refuses a name that is already a scope.
        for name, (dtype, shape) in sorted(own.items()):
            tensor = tf.compat.v1.placeholder(dtype, shape, _FED + name)
            if name_of(tensor.op) != name:
                raise GraphError(name, f"a node name that TensorFlow changes to {tensor.op.name}")
            if dtype == tf.resource and name in known:
                copy_handle_data(known[name], tensor)
            mapping[f"{name}:0"] = mapping[f"^{name}"] = tensor
        try:
            tf.graph_util.import_graph_def(rest, name="", input_map=_used(rest, mapping))
        except (ValueError, tf.errors.OpError) as error:
            raise GraphError(
                "graph", str(error).splitlines()[0], "a GraphDef that TensorFlow imports"
            ) from error
    return graph


def name_of(op: tf.Operation) -> str:
    """The name in the GraphDef of an operation that `imported` made."""
    return str(op.name).removeprefix(_FED)


def operation(graph: tf.Graph, name: str) -> tf.Operation | None:
    """The operation that `imported` made of the node of this name; None where there is none."""
    for found in (name, _FED + name):
        try:
            return graph.get_operation_by_name(found)
        except KeyError:
            continue
    return None


def _used(graph_def: graph_pb2.GraphDef, mapping: Mapping[str, object]) -> dict[str, object]:
    """The entries of `mapping` that some node uses: TensorFlow refuses the others."""
    used = set()
    for node in graph_def.node:
        for text in node.input:
            used.add(text if text.startswith("^") or text[-2:] == ":0" else f"{text}:0")
    return {key: value for key, value in mapping.items() if key in used}


def static_shapes(graph: tf.Graph) -> Shapes:
    """The spec of every output of every node; -1 for what is unknown, one -1 for a rank."""
    return {
        name_of(op): tuple(_spec(t, op.type, i) for i, t in enumerate(op.outputs))
        for op in graph.get_operations()
    }


def _spec(tensor: tf.Tensor, op: str, index: int) -> TensorSpec:
    dtype = tensor.dtype.base_dtype.name
    shape = tensor.shape
    if shape.rank is None:
        if dtype in _NO_SHAPE:
            return TensorSpec((), dtype)
        return TensorSpec(_KERNEL_SHAPES.get((op, index), (-1,)), dtype)
    return TensorSpec(tuple(-1 if d is None else d for d in shape.as_list()), dtype)


def is_static(specs: Iterable[TensorSpec]) -> bool:
    """Whether every dimension is known."""
    return all(d >= 0 for spec in specs for d in spec.shape)


def _why(node: Node) -> str:
    reason = attribute(node, WHY_DYNAMIC, "")
    return f" because of {reason}" if reason else ""


def check_static(graph: Graph, remedy: str) -> None:
    """Raises CaptureError where tensors have unknown dimensions, with the names of those that do
    not only follow from others.
    """
    unknown = [ref for ref in graph.refs() if not is_static([graph.spec(ref)])]
    if not unknown:
        return
    named = set(unknown)
    sources = [r for r in unknown if named.isdisjoint(graph.nodes[r.node].inputs)]
    shown = [
        f"{ref} ({graph.nodes[ref.node].op}, {graph.spec(ref)})" + _why(graph.nodes[ref.node])
        for ref in sources[:_SHOWN]
    ]
    if len(sources) > _SHOWN:
        shown.append(f"and {len(sources) - _SHOWN} more")
    rest = len(unknown) - len(sources)
    follow = f", and {rest} that follow from them" if rest else ""
    raise CaptureError(
        "; ".join(shown),
        f"{len(sources)} tensors with unknown dimensions (-1){follow}",
        "static shapes",
        remedy,
    )
