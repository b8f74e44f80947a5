"""A traced function -> one flat GraphDef, by Grappler's function optimizer alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tensorflow.core.framework import graph_pb2, node_def_pb2
from tensorflow.core.protobuf import config_pb2, meta_graph_pb2, rewriter_config_pb2

from tofu_tf.capture.tensorflow_private import optimize

# These keep a call from being inlined: XLA-compiled optimizer updates, grouped convolutions, cuDNN
# variants.
_BARRIERS = ("_XlaMustCompile", "_noinline", "api_implements", "api_preferred_device")
CALLS = ("PartitionedCall", "StatefulPartitionedCall", "SymbolicGradient")
_LOOPS = ("While", "StatelessWhile")
_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")


def inline(graph_def: graph_pb2.GraphDef, kept: Sequence[str]) -> graph_pb2.GraphDef:
    """`graph_def` with calls replaced by bodies; `kept` names what is fed, fetched or must run.

    Loops and conditionals stay.
    """
    functions = {function.signature.name for function in graph_def.library.function}
    calls = {*CALLS, *functions}
    if not any(node.op in calls for node in graph_def.node):
        return graph_def
    flat = graph_pb2.GraphDef()
    flat.CopyFrom(graph_def)
    bodies = [function.node_def for function in flat.library.function]
    for function in flat.library.function:
        for name in _BARRIERS:
            function.attr.pop(name, None)
    for nodes in (flat.node, *bodies):
        _unblock(nodes)
    meta = meta_graph_pb2.MetaGraphDef(graph_def=flat)
    meta.collection_def["train_op"].node_list.value.extend(kept)
    config = config_pb2.ConfigProto()
    options = config.graph_options.rewrite_options
    options.min_graph_nodes = -1  # do not skip small graphs
    options.optimizers.append("function")
    options.function_optimization = rewriter_config_pb2.RewriterConfig.AGGRESSIVE
    inlined: graph_pb2.GraphDef = optimize(config, meta)
    return inlined


def _unblock(nodes: Iterable[node_def_pb2.NodeDef]) -> None:
    for node in nodes:
        for name in _BARRIERS[:2]:
            node.attr.pop(name, None)
        if node.op in _LOOPS + _BRANCHES:
            node.attr.pop("_lower_using_switch_merge", None)
