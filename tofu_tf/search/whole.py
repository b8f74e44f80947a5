"""What a plan runs whole on worker 0: each such operator with its reason and cost, and the log."""

from __future__ import annotations

import logging

from tofu_tf.coarsen.coarsening import undescribed
from tofu_tf.graph import traversal
from tofu_tf.graph.ir import CONST, Graph, Ref
from tofu_tf.ops.applicable import Describing
from tofu_tf.plan.layouts import layout_regions
from tofu_tf.plan.plans import Plan, Whole

_log = logging.getLogger(__name__)


def run_whole(graph: Graph, plan: Plan, describing: Describing) -> dict[str, Whole]:
    """The nodes of `graph` that run whole, with the bytes that `plan` moves for each."""
    needed = {*traversal.consumers(graph), *graph.outputs}
    return {
        node.name: Whole(
            node.op,
            describing.why_not(node),
            sum(_absent(graph, plan, ref) for ref in dict.fromkeys(node.inputs))
            + sum(_elsewhere(graph, plan, ref) for ref in node.refs if ref in needed),
        )
        for node in undescribed(graph, describing)
    }


def _sizes(graph: Graph, plan: Plan, ref: Ref) -> list[int]:
    shape = graph.spec(ref).region_shape
    owned = layout_regions(plan.layouts[ref], shape, plan.machine.factors).sizes()
    return [int(n) * graph.spec(ref).itemsize for n in owned]


def _absent(graph: Graph, plan: Plan, ref: Ref) -> int:
    """Bytes of a tensor that worker 0 does not own."""
    if graph.nodes[ref.node].op == CONST:
        return 0
    return graph.spec(ref).nbytes - _sizes(graph, plan, ref)[0] if graph.spec(ref).is_static else 0


def _elsewhere(graph: Graph, plan: Plan, ref: Ref) -> int:
    """Bytes of a tensor that the other workers own."""
    return sum(_sizes(graph, plan, ref)[1:])


def announce(plan: Plan, announced: set[str]) -> None:
    """Logs what runs whole, all in one message; what is in `announced` is left out, the rest goes
    there.
    """
    kinds: dict[tuple[str, str], list[str]] = {}
    for name, whole in plan.whole.items():
        if name not in announced:
            kinds.setdefault((whole.op, whole.reason), []).append(name)
    if not kinds:
        return
    announced.update(plan.whole)
    lines = []
    for (op, reason), names in kinds.items():
        moved = sum(plan.whole[name].nbytes for name in names)
        many = f"{len(names)} nodes, such as " if len(names) > 1 else ""
        lines.append(f"{op} ({many}{names[0]}): {reason}; {moved} bytes moved per step")
    _log.warning("run whole on %s: %s", plan.machine.devices[0], "; ".join(lines))
