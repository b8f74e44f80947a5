"""What a finished Plan moves, exactly: the figure that the rewritten graph is counted against."""

from __future__ import annotations

from collections.abc import Callable

from tofu_tf.graph.ir import Graph, Node
from tofu_tf.ops.applicable import Describing
from tofu_tf.plan.collectives import Choosing
from tofu_tf.plan.plans import Plan, Strategy
from tofu_tf.plan.routing import moved_bytes
from tofu_tf.tdl import strategies
from tofu_tf.tdl.strategies import Work


def evaluate(
    graph: Graph,
    plan: Plan,
    describing: Describing | None = None,
    choosing: Choosing | None = None,
) -> int:
    """Bytes that cross between devices in one step under `plan`, feeds and results apart.

    `choosing` says what goes by collectives; without it all goes point to point.
    """
    return moved_bytes(graph, plan, works(plan, describing or Describing(graph)), choosing)


def works(plan: Plan, describing: Describing) -> Callable[[Node], Work | None]:
    """For every node its work under `plan`, None where it has none; equal works are one object."""
    factors = plan.machine.factors
    known: dict[tuple[str, Strategy], Work] = {}

    def work(node: Node) -> Work | None:
        strategy = plan.strategies.get(node.name)
        if strategy is None:
            return None
        described = describing(node)
        if described is None:
            return strategies.whole_work(
                [describing.graph.spec(r).region_shape for r in node.inputs],
                [s.region_shape for s in node.outputs],
                plan.machine.workers,
            )
        key = (described.signature, strategy)
        if key not in known:
            known[key] = strategies.work_of(
                described.variant(strategy.body).description,
                strategy.axes,
                factors,
                strategy.home,
            )
        return known[key]

    return work
