"""Whether a Plan that was given back fits a graph and a machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tofu_tf import errors
from tofu_tf.graph import traversal
from tofu_tf.graph.ir import Graph, Node
from tofu_tf.plan.layouts import Layout
from tofu_tf.plan.machine import Machine
from tofu_tf.plan.plans import Plan, Strategy

# Says what is wrong with a node's strategy, "" when it can be run.
Verdict = Callable[[Node, Strategy], str]

_SHOWN = 12


def check_fit(plan: Plan, graph: Graph, machine: Machine, verdict: Verdict) -> None:
    """Nothing when `plan` is one for `graph` on `machine`.

    Raises:
      PlanError: another machine, another graph, layouts that do not fit their tensors, strategies
        that cannot be run; all of one kind at once.
    """
    if (plan.machine.workers, plan.machine.factors) != (machine.workers, machine.factors):
        raise errors.PlanError(
            "plan",
            f"is for {plan.machine.workers} devices (factors {_product(plan.machine)})",
            f"{machine.workers} devices (factors {_product(machine)})",
            "plan again for these devices",
        )
    fingerprint = traversal.fingerprint(graph)
    if plan.fingerprint != fingerprint:
        raise errors.PlanError(
            "plan",
            f"is a plan for another model or other input shapes (graph {plan.fingerprint[:12]})",
            f"graph {fingerprint[:12]}",
            "plan again for this model, batch size and optimizer",
        )
    missing = [str(r) for r in graph.refs() if r not in plan.layouts]
    if missing:
        raise errors.PlanError(
            "plan",
            f"has no layout for {_listed(missing)}",
            "a layout for every tensor (are the names those of another trace?)",
            "plan again for this model",
        )
    strange = [f"tensor {r}" for r in plan.layouts if r.node not in graph.nodes]
    strange += [f"node {n}" for n in plan.strategies if n not in graph.nodes]
    if strange:
        raise errors.PlanError(
            "plan",
            f"speaks of {_listed(strange)}, which the graph has not",
            "names of the graph's nodes",
            "plan again, or undo the edit",
        )
    wrong = [*_misfits(plan, graph, machine), *_refused(plan, graph, verdict)]
    if wrong:
        raise errors.PlanError(
            "plan",
            _listed(wrong),
            "layouts and strategies that fit",
            "plan again, or undo the edit",
        )


def _product(machine: Machine) -> str:
    return " x ".join(map(str, machine.factors)) or "1"


def _listed(texts: list[str]) -> str:
    more = len(texts) - _SHOWN
    return "; ".join(texts[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _misfits(plan: Plan, graph: Graph, machine: Machine) -> Iterator[str]:
    for node in graph:
        for ref, spec in zip(node.refs, node.outputs, strict=True):
            text = misfit(plan.layouts[ref], spec.region_shape, machine)
            if text:
                yield f"{ref} {list(spec.shape)} cannot lie as {plan.layouts[ref]}: {text}"
    for name, refs in traversal.versions(graph).items():
        if len({plan.layouts[r] for r in refs}) > 1:
            yield f"variable {name} has versions that lie differently"


def misfit(layout: Layout, shape: tuple[int, ...], machine: Machine) -> str:
    """Why a tensor of this shape cannot lie so; "" when it can."""
    if len(layout.cuts) != len(machine.factors):
        return f"{len(layout.cuts)} cuts, the machine has {len(machine.factors)}"
    parts = [1] * len(shape)
    for d, f in zip(layout.cuts, machine.factors, strict=True):
        if d is None:
            continue
        if layout.home:
            return "on worker 0 only, and cut"
        if d >= len(shape):
            return f"it has no dimension {d}"
        parts[d] *= f
    for d, n in enumerate(parts):
        if n > max(shape[d], 1):
            return f"dimension {d} has {shape[d]} elements for {n} parts"
    return ""


def _refused(plan: Plan, graph: Graph, verdict: Verdict) -> Iterator[str]:
    for node in graph:
        strategy = plan.strategies.get(node.name)
        if strategy is None:
            continue
        text = verdict(node, strategy)
        if text:
            yield f"{node.name} ({node.op}) cannot be cut as {strategy}: {text}"
