"""What TensorFlow itself sends when it runs a placed GraphDef: the oracle of the counter."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tofu_tf.report import counting

v1 = tf.compat.v1
_FED = re.compile(r"^_arg_(.+)_\d+_\d+$")  # what a Session puts in the place of a fed node


def bytes_that_tensorflow_sends(
    graph_def: graph_pb2.GraphDef,
    targets: Collection[str],
    feeds: Mapping[str, Any] | None = None,
) -> int:
    """The bytes that enter _Send in the partition graphs of a v1 Session that runs `targets`.

    Variables start at zero.
    """
    config = v1.ConfigProto(device_count={"CPU": 8})
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = v1.OptimizerOptions.L0
    metadata = v1.RunMetadata()
    with counting.infer_shapes(graph_def).as_default() as graph:
        own = {operation.name for operation in graph.get_operations()}
        handles = [op for op in graph.get_operations() if op.type == "VarHandleOp"]
        zeros = []
        for handle in handles:
            shape, dtype = handle.get_attr("shape"), handle.get_attr("dtype")
            with tf.device(handle.device):
                value = tf.zeros(tf.TensorShape(shape), dtype)
                zeros.append(tf.raw_ops.AssignVariableOp(resource=handle.outputs[0], value=value))
        with v1.Session(config=config) as session:
            session.run(zeros)
            # Operations, not tensors: a fetched tensor would be sent to the client's device.
            session.run(
                [graph.get_operation_by_name(name) for name in targets],
                {f"{name}:0": value for name, value in (feeds or {}).items()},
                options=v1.RunOptions(output_partition_graphs=True),
                run_metadata=metadata,
            )
    sent = [
        _FED.sub(r"\1", node.input[0])
        for partition in metadata.partition_graphs
        for node in partition.node
        if node.op == "_Send"
    ]
    # A control edge between devices sends a tensor of no elements, made by no node of ours.
    tensors = [
        graph.get_tensor_by_name(counting.tensor_name(name))
        for name in sent
        if counting.producer(name) in own
    ]
    return sum(tensor.shape.num_elements() * tensor.dtype.size for tensor in tensors)
