"""Where an operator of which nothing is known runs: on an accelerator, or on the CPU beside it."""

from __future__ import annotations

from collections.abc import Iterator

from tofu_tf.graph.functions import named_by, reachable
from tofu_tf.graph.ir import Graph, Node
from tofu_tf.graph.registered import has_kernel

_HOST_TYPES = frozenset({"string", "resource", "variant"})


def whole_on_host(node: Node, graph: Graph, device_type: str) -> bool:
    """Whether `node` runs on the CPU beside worker 0: strings, tables, or ops without a kernel for
    that type of device, in it or in the functions that it calls. Its variables go with it.
    """
    if device_type == "CPU":
        return False
    specs = (*map(graph.spec, node.inputs), *node.outputs)
    return any(s.dtype in _HOST_TYPES for s in specs) or not all(
        has_kernel(op, device_type) for op in _ops(node, graph)
    )


def _ops(node: Node, graph: Graph) -> Iterator[str]:
    yield node.op
    for function in reachable(named_by(node.op, node.attrs), graph.functions).values():
        for inner in function.node_def:
            if inner.op not in graph.functions:
                yield inner.op
