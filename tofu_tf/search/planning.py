"""A Graph on a Machine -> its Plan: coarsen, search, write down."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterable, Mapping

from tofu_tf import errors
from tofu_tf.coarsen.coarsening import coarsen, kept_variables
from tofu_tf.coarsen.groups import COPIED, HOME, SMALL_BYTES, Coarse
from tofu_tf.cost.communication import Pricing
from tofu_tf.cost.evaluation import evaluate
from tofu_tf.graph import traversal
from tofu_tf.graph.ir import CONST, Graph, Node, Ref
from tofu_tf.ops.applicable import Describing
from tofu_tf.plan.constraints import Wish, wanted_layouts
from tofu_tf.plan.layouts import Layout
from tofu_tf.plan.machine import Machine
from tofu_tf.plan.plans import Plan, Strategy, with_specs
from tofu_tf.search.algorithms import ALGORITHMS, OBJECTIVES
from tofu_tf.search.problem import Outcome, Problem
from tofu_tf.search.whole import announce, run_whole

# What to do with ops that nothing is known of.
UNDESCRIBED = {"refuse": False, "whole": True}


def find_plan(
    graph: Graph,
    machine: Machine,
    *,
    objective: str = "bytes",
    algorithm: str = "recursion",
    constraints: Mapping[str, Wish] | None = None,
    pinned: Mapping[str, Layout] | None = None,
    small_bytes: int = SMALL_BYTES,
    describing: Describing | None = None,
    undescribed: str = "whole",
    announced: set[str] | None = None,
) -> Plan:
    """How every tensor of `graph` lies on `machine` and how every operator is cut.

    Args:
      graph: the step.
      machine: the devices and their cuts.
      objective: what is minimised, see OBJECTIVES.
      algorithm: how it is searched, see ALGORITHMS.
      constraints: layouts by name, ``{"dense/kernel": (None, "d0")}`` (see `plan.constraints`).
      pinned: variables' layouts that an earlier plan has settled.
      small_bytes: tensors up to this size are copied, or kept on worker 0, instead of cut.
      describing: descriptions of the graph's nodes, where the caller has them already.
      undescribed: run ops that nothing is known of "whole" on the first device, with their inputs
        brought there, listed in the plan and in the log; or "refuse" them.
      announced: what the log holds already, and is not said again.

    Raises:
      PlanError: an unknown objective, algorithm or `undescribed`; more workers than any tensor can
        be cut for.
      ConstraintError: a constraint that matches nothing or cannot be.
      UndescribedError: ops without a description, which are refused.
    """
    check_choices(objective, algorithm, undescribed)
    describing = describing or Describing(graph)
    wanted = wanted_layouts(graph, machine, constraints, pinned)
    _check_size(graph, machine)
    coarse = coarsen(graph, describing, wanted, small_bytes, UNDESCRIBED[undescribed])
    outcome = ALGORITHMS[algorithm](Problem(coarse, machine, Pricing()))
    layouts = _layouts(coarse, machine, outcome)
    plan = Plan(
        machine,
        layouts,
        _strategies(coarse, machine, outcome),
        traversal.fingerprint(graph),
        algorithm,
        objective,
        search_bytes=outcome.bytes,
        bound=outcome.bound,
        reasons=_reasons(coarse, layouts, outcome, kept_variables(graph, describing)),
    )
    plan = dataclasses.replace(
        plan,
        predicted_bytes=evaluate(graph, plan, describing),
        whole=run_whole(graph, plan, describing),
    )
    announce(plan, set() if announced is None else announced)
    return with_specs(plan, graph)


def check_choices(objective: str, algorithm: str, undescribed: str) -> None:
    """Nothing when all are known names.

    Raises:
      PlanError: the first that is not, with those that are.
    """
    check_known("objective", objective, OBJECTIVES)
    check_known("algorithm", algorithm, ALGORITHMS)
    check_known("undescribed", undescribed, UNDESCRIBED)


def check_known(what: str, name: object, known: Iterable[str]) -> None:
    """Nothing when `name` is one of those `known`; else a PlanError that lists them."""
    names = sorted(known)
    if name not in names:
        near = difflib.get_close_matches(str(name), names, 1)
        raise errors.PlanError(
            f"{what} {name!r}",
            "is not known",
            f"one of {', '.join(map(repr, names))}",
            f"did you mean {near[0]!r}?" if near else f"leave {what} out for the usual one",
        )


def _check_size(graph: Graph, machine: Machine) -> None:
    """Raises PlanError when no tensor at all can be cut for so many workers."""
    largest: tuple[int, Ref | None, tuple[int, ...]] = (0, None, ())
    for node in graph:
        for ref, spec in zip(node.refs, node.outputs, strict=True):
            if node.op == CONST or not spec.itemsize or not spec.is_static:
                continue
            if _divides(spec.shape, machine.factors):
                return
            for n in spec.shape:
                if n > largest[0]:
                    largest = (n, ref, spec.shape)
    if largest[1] is not None:
        raise errors.PlanError(
            f"{machine.workers} workers",
            "no tensor of the step can be cut in so many parts: the largest dimension is "
            f"{largest[0]}, of {largest[1]} {list(largest[2])}",
            f"a tensor that can be cut in {' x '.join(map(str, machine.factors))}",
            "use fewer devices or a larger batch",
        )


def _divides(shape: tuple[int, ...], factors: tuple[int, ...]) -> bool:
    """Whether some layout leaves every worker a part of its own."""
    if math.prod(shape) < math.prod(factors):
        return False
    left = list(shape)
    for f in factors:
        d = max(range(len(left)), key=lambda d: left[d], default=None)
        if d is None or left[d] < f:
            return False
        left[d] //= f
    return True


def _layouts(coarse: Coarse, machine: Machine, outcome: Outcome) -> dict[Ref, Layout]:
    uncut = (None,) * len(machine.factors)
    fixed = {COPIED: Layout(uncut), HOME: Layout(uncut, home=True)}
    return {
        ref: outcome.layouts[coarse.group_of[ref]]
        if ref in coarse.group_of
        else fixed[coarse.small[ref]]
        for ref in coarse.graph.refs()
    }


def _strategies(coarse: Coarse, machine: Machine, outcome: Outcome) -> dict[str, Strategy]:
    found: dict[str, Strategy] = {}
    for operator, ((body, axes), home) in zip(coarse.operators, outcome.ways, strict=True):
        for name in operator.nodes:
            found[name] = Strategy(axes, home, body)
    return {name: found[name] for name in coarse.graph.nodes if name in found}


def _reasons(
    coarse: Coarse, layouts: Mapping[Ref, Layout], outcome: Outcome, kept: Mapping[str, Node]
) -> dict[Ref, str]:
    found: dict[Ref, str] = {}
    handed = {
        ref: f"its handle goes into {kept[name].name} ({kept[name].op}), which runs whole"
        for name, refs in traversal.versions(coarse.graph).items()
        if name in kept
        for ref in refs
    }
    for node in coarse.graph:
        if node.op == CONST:
            continue
        for ref, spec in zip(node.refs, node.outputs, strict=True):
            layout = layouts[ref]
            if ref in coarse.group_of:
                if None in layout.cuts:
                    found[ref] = outcome.reasons.get(coarse.group_of[ref], "asked for")
            elif ref in handed:
                found[ref] = handed[ref]
            elif not spec.is_static:
                found[ref] = "its size depends on data"
            elif layout.home:
                found[ref] = "happens once" if spec.itemsize else f"{spec.dtype} is not cut"
            elif spec.nbytes:
                found[ref] = f"{spec.nbytes} bytes, {coarse.small_bytes} or fewer are copied"
            else:
                found[ref] = "no elements" if not spec.size else f"{spec.dtype} is not cut"
    return found
