"""Whether a Plan can be carried out: its layouts fit, and every operator can be cut as it says."""

from __future__ import annotations

import numpy as np

from tofu_tf import errors
from tofu_tf.coarsen.coarsening import needs_strategy
from tofu_tf.graph.ir import Graph, Node
from tofu_tf.ops.applicable import Describing
from tofu_tf.plan.checking import check_fit
from tofu_tf.plan.layouts import layout_regions
from tofu_tf.plan.machine import Machine
from tofu_tf.plan.plans import Plan, Strategy
from tofu_tf.tdl import strategies


def check_plan(
    plan: Plan, graph: Graph, machine: Machine, describing: Describing | None = None
) -> None:
    """Nothing when `plan` can be carried out for `graph` on `machine`.

    Raises:
      PlanError: a plan for another graph or machine, or one that no longer fits (edited by hand).
    """
    describe = describing or Describing(graph)
    bare = [n.name for n in graph if needs_strategy(n) and n.name not in plan.strategies]
    factors = machine.factors
    versions = {name: v.ref for name, v in graph.variables.items()}

    def verdict(node: Node, strategy: Strategy) -> str:
        described = describe(node)
        if len(strategy.axes) != len(factors):
            return f"{len(strategy.axes)} cuts, the machine has {len(factors)}"
        if described is None:
            if not strategy.home:
                return f"it runs whole, on worker 0: {describe.why_not(node)}"
            cut = [v for v in node.variables.values() if not plan.layouts[versions[v]].home]
            return f"it takes handles, of {', '.join(cut)}, that lie elsewhere" if cut else ""
        known = {a.variant.name: a for a in described.applied}
        if strategy.body not in known:
            return f"it has no body {strategy.body!r}"
        applied = known[strategy.body]
        strange = [a for a in strategy.axes if a is not None and a not in applied.axes]
        if strange:
            return f"{', '.join(strange)} is none of its axes {', '.join(applied.axes)}"
        if not strategies.is_legal(applied.description, strategy.axes, factors):
            return "its pieces would not be ranges"
        if node.writes:
            work = strategies.work_of(applied.description, strategy.axes, factors, strategy.home)
            for o in range(len(node.outputs) - len(node.writes), len(node.outputs)):
                owned = layout_regions(plan.layouts[node.refs[o]], node.outputs[o].shape, factors)
                if work.writes[o].tuple() != owned.tuple() or len(np.unique(work.partials[o])) > 1:
                    return f"it writes a variable that lies as {plan.layouts[node.refs[o]]}"
        return ""

    check_fit(plan, graph, machine, verdict)
    if bare:
        raise errors.PlanError(
            "plan",
            f"has no strategy for {', '.join(bare[:12])}{' ...' if len(bare) > 12 else ''}",
            "a strategy for every operator",
            "plan again for this model",
        )
