"""A sample of a registered op -> a node of a graph, described."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, graph_pb2, node_def_pb2

from tofu_tf.errors import DescriptionError
from tofu_tf.graph import attributes, state
from tofu_tf.graph.ir import CONST, PADDED_UNIQUE, PLACEHOLDER, Graph, Node, Ref, TensorSpec
from tofu_tf.graph.registered import attribute_kinds, op_definition
from tofu_tf.ops.applicable import Described, Describing
from tofu_tf.ops.registry import OpEntry, Sample


def _padded_unique(
    specs: Sequence[TensorSpec], attrs: Mapping[str, attr_value_pb2.AttrValue]
) -> tuple[TensorSpec, ...]:
    return specs[0], TensorSpec(specs[0].shape, attributes.decode(attrs["out_idx"]))


# Ops that TensorFlow has not: whose attributes they have, and which outputs.
_OURS = {PADDED_UNIQUE: ("Unique", _padded_unique)}


@dataclasses.dataclass(frozen=True)
class Sampled:
    """A sample as the node ``node`` of a graph, and what is known of it."""

    node: Node
    graph: Graph
    described: Described


def sampled(entry: OpEntry, sample: Sample) -> Sampled:
    """The sample as a node; the sizes of its outputs are TensorFlow's.

    Raises:
      DescriptionError: the sample does not fit the op.
    """
    values = [np.asarray(i) if isinstance(i, np.ndarray | np.generic) else i for i in sample.inputs]
    specs = [_spec(v) for v in values]
    name, made = _OURS.get(entry.name, (entry.name, None))
    handles = handle_positions(name)
    attrs = sample_attributes(name, specs, sample.attrs)
    written = state.written_operands(node_def_pb2.NodeDef(op=name), handles)
    if made is None:
        outputs = _outputs(name, values, specs, attrs, handles)
    else:
        outputs = made(specs, attrs)
    constants = {i % len(values) for i in entry.constants}
    nodes: dict[str, Node] = {}
    for i, (value, spec) in enumerate(zip(values, specs, strict=True)):
        held = {"value": attributes.encode(value, "tensor")} if i in constants else {}
        op = CONST if i in constants else PLACEHOLDER
        nodes[f"in{i}"] = Node(f"in{i}", op, (), (spec,), held)
    nodes["node"] = Node(
        "node",
        entry.name,
        tuple(Ref(f"in{i}") for i in range(len(values))),
        (*outputs, *(specs[i] for i in written)),
        attrs,
        variables={i: f"v{i}" for i in handles},
        writes=tuple(f"v{i}" for i in written),
    )
    graph = Graph(nodes, (), (), {})
    describing = Describing(graph)
    described = describing(nodes["node"])
    if described is None:
        raise DescriptionError(f"sample of {entry.name}", describing.why_not(nodes["node"]))
    return Sampled(nodes["node"], graph, described)


def _spec(value: Any) -> TensorSpec:
    if isinstance(value, np.ndarray):
        return TensorSpec(value.shape, tf.as_dtype(value.dtype).name)
    return TensorSpec(tuple(value[0]), value[1])


def handle_positions(op: str) -> tuple[int, ...]:
    """Which inputs of the op are handles of variables."""
    definition = op_definition(op)
    args = definition.input_arg if definition is not None else ()
    return tuple(i for i, a in enumerate(args) if a.type == tf.resource.as_datatype_enum)


def sample_attributes(
    op: str, specs: Sequence[TensorSpec], given: Mapping[str, Any]
) -> dict[str, attr_value_pb2.AttrValue]:
    """The node's attributes: those given, those that follow from the inputs, the defaults."""
    kinds = attribute_kinds(op)
    definition = op_definition(op)
    found: dict[str, Any] = {}
    position = 0
    args = list(definition.input_arg) if definition is not None else []
    for n, arg in enumerate(args):
        count = 1
        if arg.number_attr or arg.type_list_attr:
            count = len(specs) - position - (len(args) - n - 1)
        if arg.number_attr:
            found[arg.number_attr] = count
        if arg.type_list_attr:
            found[arg.type_list_attr] = tuple(s.dtype for s in specs[position : position + count])
        if arg.type_attr:
            found[arg.type_attr] = specs[position].dtype
        position += count
    for name in ("dtype", "T"):  # of the variable behind a handle
        if name in kinds and name not in found and handle_positions(op):
            found[name] = specs[0].dtype
    encoded = {
        name: value
        if isinstance(value, attr_value_pb2.AttrValue)
        else attributes.encode(value, kinds[name])
        for name, value in {**found, **given}.items()
    }
    return attributes.complete(op, encoded)


def _outputs(
    op: str,
    values: Sequence[Any],
    specs: Sequence[TensorSpec],
    attrs: Mapping[str, attr_value_pb2.AttrValue],
    handles: Sequence[int],
) -> tuple[TensorSpec, ...]:
    """The specs of the op's own outputs, as TensorFlow infers them or, where sizes depend on data,
    finds them; without elements where the rank is unknown.
    """
    graph_def = graph_pb2.GraphDef()
    graph_def.versions.producer = tf.compat.v1.GRAPH_DEF_VERSION
    for i, (value, spec) in enumerate(zip(values, specs, strict=True)):
        node = graph_def.node.add(name=f"in{i}", op="Placeholder")
        if i in handles:
            node.op = "VarHandleOp"
        elif isinstance(value, np.ndarray):
            node.op = CONST
            node.attr["value"].CopyFrom(attributes.encode(value, "tensor"))
        node.attr["dtype"].CopyFrom(attributes.encode(spec.dtype, "type"))
        if node.op != CONST:
            node.attr["shape"].CopyFrom(attributes.encode(spec.shape, "shape"))
    node = graph_def.node.add(name="node", op=op, input=[f"in{i}" for i in range(len(values))])
    for name, attr in attrs.items():
        node.attr[name].CopyFrom(attr)
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
        made = graph.get_operation_by_name("node").outputs
        shapes = [(0,) if t.shape.rank is None else tuple(t.shape.as_list()) for t in made]
        if any(None in shape for shape in shapes):
            fed = {
                f"in{i}:0": np.zeros(spec.shape, tf.as_dtype(spec.dtype).as_numpy_dtype)
                for i, spec in enumerate(specs)
                if not isinstance(values[i], np.ndarray)
            }
            with tf.compat.v1.Session(graph=graph) as session:
                shapes = [np.shape(value) for value in session.run(list(made), fed)]
        return tuple(TensorSpec(s, t.dtype.name) for s, t in zip(shapes, made, strict=True))
