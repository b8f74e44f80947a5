"""The whole road in functions: a Graph to a Plan, a Plan to a placed graph, a GraphDef to a placed
one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from tensorflow.core.framework import graph_pb2

from tofu_tf.capture.graph_defs import capture_graph_def, split_fetches
from tofu_tf.cost.evaluation import evaluate
from tofu_tf.graph.ir import Graph
from tofu_tf.ops.applicable import Describing
from tofu_tf.plan.collectives import Choosing
from tofu_tf.plan.constraints import Wish
from tofu_tf.plan.machine import Machine, imagined
from tofu_tf.plan.plans import Plan
from tofu_tf.rewrite.collectives import rewrite_with_collectives
from tofu_tf.rewrite.exporting import exported
from tofu_tf.rewrite.placed import Placed
from tofu_tf.rewrite.rewriting import rewrite
from tofu_tf.search.checking import check_plan
from tofu_tf.search.planning import check_choices, check_known, find_plan

# How a change of layout becomes nodes.
LOWERINGS: dict[str, Callable[[Graph, Plan, Describing | None], Placed]] = {
    "p2p": rewrite,
    "collective": rewrite_with_collectives,
}


def apply_plan(
    graph: Graph, plan: Plan, lowering: str = "p2p", describing: Describing | None = None
) -> Placed:
    """The step over all devices of the plan's machine: one explicit graph with a device on every
    node.

    Args:
      graph: the step that `plan` was made for.
      plan: see `find_plan`.
      lowering: a key of LOWERINGS; "p2p" sends slices from their owners to where they are needed,
        "collective" does so only where no collective op makes just that change of layout.
      describing: descriptions of the graph's nodes, where the caller has them already.

    Raises:
      PlanError: an unknown lowering.
      RewriteError: the plan does not fit the graph.
    """
    check_known("lowering", lowering, LOWERINGS)
    return LOWERINGS[lowering](graph, plan, describing)


def with_bytes(
    graph: Graph, plan: Plan, lowering: str, describing: Describing | None = None
) -> Plan:
    """`plan` whose predicted bytes are what it moves under `lowering`.

    Collectives take in all members of a group, also those whose copy nobody needs.
    """
    choosing = Choosing(plan.machine.device_type) if lowering == "collective" else None
    moved = evaluate(graph, plan, describing, choosing)
    return dataclasses.replace(plan, predicted_bytes=moved)


def partition(
    graph_def: graph_pb2.GraphDef,
    *,
    fetches: Sequence[str],
    machine: Machine | int,
    targets: Sequence[str] = (),
    batch: int | None = None,
    objective: str = "bytes",
    algorithm: str = "recursion",
    constraints: Mapping[str, Wish] | None = None,
    lowering: str = "p2p",
    undescribed: str = "whole",
) -> tuple[graph_pb2.GraphDef, Plan]:
    """A GraphDef rewritten over the devices of `machine`, and the plan that it follows.

    Args:
      graph_def: any GraphDef with static shapes; functions in it are inlined.
      fetches: ``node`` or ``node:0`` names, of tensors or of operations; they keep their names, and
        tensors are whole, on the first device.
      machine: a Machine, or a number of logical CPUs.
      targets: operations that must run as well.
      batch: the size of unknown first dimensions of Placeholders.
      objective: see `find_plan`; also `algorithm` and `constraints`.
      lowering: see `apply_plan`.
      undescribed: run ops that nothing is known of "whole" on the first device, or "refuse" them.

    Returns:
      The placed GraphDef, which stock TensorFlow runs, and its Plan. Placeholders keep their names.
      A variable ``v`` becomes VarHandleOps with the shared names ``v/shard0`` ...

    Raises:
      GraphError: names that are not in the graph, ops or edges that TensorFlow does not know.
      CaptureError: unknown dimensions; with `undescribed` "whole", of Placeholders only.
      UndescribedError: ops without a description, which are refused.
      PlanError: more workers than any tensor can be cut for; a constraint that cannot be.
    """
    target = imagined(machine) if isinstance(machine, int) else machine
    dynamic = undescribed == "whole"
    graph = capture_graph_def(graph_def, fetches, targets, batch, dynamic=dynamic).graph
    describing = Describing(graph)
    plan = find_plan(
        graph,
        target,
        objective=objective,
        algorithm=algorithm,
        constraints=constraints,
        describing=describing,
        undescribed=undescribed,
    )
    placed = apply_plan(graph, plan, lowering, describing)
    if lowering == "collective":
        plan = with_bytes(graph, plan, lowering, describing)
    tensors, operations = split_fetches(fetches, targets, {n.name: n for n in graph_def.node})
    return exported(placed, graph, tensors, operations), plan


__all__ = [
    "LOWERINGS",
    "apply_plan",
    "check_choices",
    "check_known",
    "check_plan",
    "find_plan",
    "partition",
    "with_bytes",
]
