"""A placed GraphDef as a MetaGraphDef: signature, variables and saver as the original's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2, saver_pb2

from tofu_tf.graph.persistence import parsed
from tofu_tf.rewrite.persisting import Persisted


def as_meta_graph(
    persisted: Persisted,
    original: meta_graph_pb2.MetaGraphDef,
    shapes: Mapping[str, Sequence[int]],
    signature: str = "",
) -> meta_graph_pb2.MetaGraphDef:
    """The MetaGraphDef of a placed graph.

    It has the original's tags, the one `signature` that was partitioned (with the shapes that its
    inputs now have, and its outputs as `shapes` says), a SaverDef where the original is saved and
    restored, and the collections ``variables`` and ``trainable_variables`` with the shards. What
    else the original has belongs to nodes that are gone. Nothing is initialised on loading: values
    come from the checkpoint, or from the graph's initialisers when they are run.
    """
    out = meta_graph_pb2.MetaGraphDef()
    out.meta_info_def.tags.extend(original.meta_info_def.tags)
    out.meta_info_def.tensorflow_version = original.meta_info_def.tensorflow_version
    out.meta_info_def.tensorflow_git_version = original.meta_info_def.tensorflow_git_version
    out.graph_def.CopyFrom(persisted.graph_def)
    for variable in persisted.variables:
        data = variable.SerializeToString()
        out.collection_def["variables"].bytes_list.value.append(data)
        if variable.trainable:
            out.collection_def["trainable_variables"].bytes_list.value.append(data)
    saver = persisted.saver
    if saver is not None:
        out.saver_def.filename_tensor_name = saver.filename
        out.saver_def.save_tensor_name = saver.save
        out.saver_def.restore_op_name = saver.restore
        out.saver_def.version = saver_pb2.SaverDef.V2
        out.saver_def.max_to_keep = original.saver_def.max_to_keep
    if signature:
        made = out.signature_def[signature]
        made.CopyFrom(original.signature_def[signature])
        placed = {node.name: node for node in persisted.graph_def.node}
        for info in made.inputs.values():
            node = placed.get(parsed(info.name).node)
            if node is not None:
                info.tensor_shape.CopyFrom(node.attr["shape"].shape)
        for info in made.outputs.values():
            if info.name in shapes:
                info.tensor_shape.CopyFrom(tf.TensorShape(shapes[info.name]).as_proto())
    return out
