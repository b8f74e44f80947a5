"""One search: the groups' choices along each cut, and the factor graph of the operators' costs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

from tofu_tf import errors
from tofu_tf.coarsen.groups import Coarse, Group, Operator
from tofu_tf.cost.candidates import Way
from tofu_tf.cost.communication import Choices, Pricing
from tofu_tf.plan.layouts import Layout
from tofu_tf.plan.machine import Machine


@dataclasses.dataclass(frozen=True)
class Problem:
    """A coarse graph on a machine, with the prices of its operators."""

    coarse: Coarse
    machine: Machine
    pricing: Pricing

    @property
    def factors(self) -> tuple[int, ...]:
        return self.machine.factors

    @functools.cached_property
    def writers(self) -> Mapping[int, tuple[tuple[Operator, int], ...]]:
        """For each group the operators (and their output) that write a variable's version in it."""
        found: dict[int, list[tuple[Operator, int]]] = {}
        for operator in self.coarse.operators:
            for o in range(len(operator.outputs) - operator.versions, len(operator.outputs)):
                if operator.outputs[o] >= 0 and not operator.internal:
                    found.setdefault(operator.outputs[o], []).append((operator, o))
        return {g: tuple(writers) for g, writers in found.items()}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What an algorithm yields: each group's layout, each operator's way to be cut, and their
    bytes.

    `reasons`: for groups that some cut does not divide, why. `bound`: no layouts that the rules
    allow cost fewer bytes; None where nobody asked.
    """

    layouts: tuple[Layout, ...]
    ways: tuple[tuple[Way, bool], ...]  # and whether it is worker 0's alone
    bytes: int
    reasons: Mapping[int, str]
    bound: int | None = None


def extended(problem: Problem, group: Group, prefix: Layout) -> tuple[Choices, str]:
    """The layouts that continue `prefix` by one cut, first choice first, and why it is not cut if
    so.

    The dimension that leaves the largest parts comes first, so that equal costs give even parts. A
    group is copied along a cut only when no dimension can be divided any more (or its updates
    cannot be).
    """
    s = len(prefix.cuts)
    if group.fixed is not None:
        return (Layout(group.fixed.cuts[: s + 1], group.fixed.home),), "asked for"
    factor = problem.factors[s]
    left = list(group.shape)
    for before, d in zip(problem.factors, prefix.cuts, strict=False):
        if d is not None:
            left[d] //= before
    dims = sorted((d for d in range(len(left)) if left[d] >= factor), key=lambda d: (-left[d], d))
    copied = Layout((*prefix.cuts, None))
    shown = f"{list(group.shape)}"
    if not dims:
        return (copied,), f"no dimension of {shown} can still be cut in {factor} by d{s}"
    choices = tuple(Layout((*prefix.cuts, d)) for d in dims)
    writable = tuple(c for c in choices if _writable(problem, group, c))
    if not writable:
        return (copied,), f"its update cannot be cut along any dimension of {shown} by d{s}"
    return writable, ""


def _writable(problem: Problem, group: Group, layout: Layout) -> bool:
    # one cut at a time: the earlier ones have been asked about before
    last = Layout(layout.cuts[-1:])
    factor = problem.factors[len(layout.cuts) - 1]
    return all(
        problem.pricing.can_write(operator, o, last, (factor,))
        for operator, o in problem.writers.get(group.id, ())
    )


def refuse_impossible(problem: Problem, operators: Sequence[int]) -> None:
    """Nothing; raises PlanError when there are `operators` that no choice allows, by position."""
    if operators:
        found = [problem.coarse.operators[o] for o in operators]
        raise errors.PlanError(
            ", ".join(f"{operator.nodes[0]} ({_op(operator)})" for operator in found),
            "cannot write its variable as that is cut, in any way",
            "an operator that can be cut along some dimension of the variable that it updates",
            "pin the variable to be copied, for example constraints={name: (None, ...)}",
        )


def _op(operator: Operator) -> str:
    return operator.described.entry.name if operator.described is not None else "no description"


def way_inside(problem: Problem, operator: Operator, layouts: Sequence[Layout]) -> tuple[Way, bool]:
    """How an operator inside one group is cut, and whether it is at home."""
    way = _following(operator, layouts)
    if way is not None:
        return way, False
    around = {g: (layouts[g],) for g in operator.groups}
    matrices = problem.pricing.matrices(operator, problem.factors, around)
    best, _ = matrices.cheapest([0] * len(operator.groups))
    return matrices.ways[best], matrices.home


def uncut_reasons(problem: Problem, layouts: Sequence[Layout]) -> dict[int, str]:
    """For each group that some cut does not divide, why."""
    found: dict[int, str] = {}
    for group, layout in zip(problem.coarse.groups, layouts, strict=True):
        texts = []
        for s, d in enumerate(layout.cuts):
            if d is None:
                texts.append(extended(problem, group, Layout(layout.cuts[:s], layout.home))[1])
        if texts:
            found[group.id] = "; ".join(dict.fromkeys(texts))
    return found


def _following(operator: Operator, layouts: Sequence[Layout]) -> Way | None:
    """How an element-wise operator works where its tensors lie; None if it has no such axes."""
    layout = layouts[operator.outputs[0]]
    if operator.described is None or layout.home:
        return None
    applied = operator.described.applied[0]
    dims = applied.description.writes[0].dims
    axes: list[str | None] = []
    for d in layout.cuts:
        form = None if d is None else dims[d]
        axes.append(None if form is None else form.axis)
        if d is not None and axes[-1] not in applied.axes:
            return None
    return applied.variant.name, tuple(axes)
