"""What baselines are made of: layouts along given dimensions, batches, searches among few layouts.

Every operator is cut in the cheapest of the ways that a baseline allows, so that each is at its
best by the one measure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from tofu_tf import errors
from tofu_tf.coarsen.groups import Group, Operator
from tofu_tf.cost import candidates
from tofu_tf.cost.candidates import Way
from tofu_tf.cost.communication import FORBIDDEN, Choices, Matrices
from tofu_tf.graph.ir import PLACEHOLDER
from tofu_tf.plan.layouts import Layout
from tofu_tf.search.problem import Outcome, Problem
from tofu_tf.search.recursion import outcome_of, solve
from tofu_tf.search.sharing import Rule, Ruling, Settled, Sharing
from tofu_tf.tdl.descriptions import Dims


def along(problem: Problem, group: Group, dims: Sequence[int]) -> Layout:
    """Every cut divides the first of `dims` that has room for it; copied where none has.

    A cut along which the group's update cannot be made copies it too.
    """
    if group.fixed is not None:
        return group.fixed
    left, cuts = list(group.shape), []
    for factor in problem.factors:
        d = next(
            (d for d in dims if left[d] >= factor and _writable(problem, group, d, factor)), None
        )
        cuts.append(d)
        if d is not None:
            left[d] //= factor
    return Layout(tuple(cuts))


def copied(problem: Problem, group: Group) -> Layout:
    return along(problem, group, ())


def each_dimension(problem: Problem, group: Group) -> Choices:
    """One layout for each dimension, along which all cuts go that it has room for; the others go
    along the largest. Those that are divided most come alone.
    """
    dims = sorted(range(len(group.shape)), key=lambda d: (-group.shape[d], d))
    found = [along(problem, group, (d, *dims)) for d in dims] or [copied(problem, group)]
    least = min(layout.cuts.count(None) for layout in found)
    return tuple(dict.fromkeys(f for f in found if f.cuts.count(None) == least))


def _writable(problem: Problem, group: Group, d: int, factor: int) -> bool:
    return all(
        problem.pricing.can_write(operator, o, Layout((d,)), (factor,))
        for operator, o in problem.writers.get(group.id, ())
    )


def has_variable(problem: Problem, group: Group) -> bool:
    """Whether a variable lies in the group: a weight with its gradient, or an optimizer's slot."""
    return any(ref.node in _variable_nodes(problem) for ref in group.members)


def _variable_nodes(problem: Problem) -> frozenset[str]:
    return frozenset(v.ref.node for v in problem.coarse.graph.variables.values())


def batch_dimensions(problem: Problem) -> Mapping[int, int]:
    """For each group that has one the dimension that the examples of the batch run along.

    That of what is fed is the first one; operators hand it on along their axes.
    """
    graph = problem.coarse.graph
    found: dict[int, int] = {}
    for group in problem.coarse.groups:
        if group.shape and any(graph.nodes[r.node].op == PLACEHOLDER for r in group.members):
            found[group.id] = 0
    weights = {g.id for g in problem.coarse.groups if has_variable(problem, g)}
    before = -1
    while before < len(found):
        before = len(found)
        for operator in problem.coarse.operators:
            if operator.described is None:
                continue
            description = operator.described.applied[0].description
            axes = {
                _outer(access, found[g])
                for g, accesses in zip(operator.inputs, description.reads, strict=True)
                if g in found
                for access in accesses
            } - {None}
            for g, write in zip(operator.outputs, description.writes, strict=False):
                if g < 0 or g in weights or g in found:
                    continue
                for d in range(len(write.dims)):
                    if _outer(write.dims, d) in axes:
                        found.setdefault(g, d)
    return found


def batch_ways(operator: Operator, batch: Mapping[int, int], matrices: Matrices) -> list[bool]:
    """[ways] whether a way goes along the batch along all cuts."""
    described = operator.described
    if described is None:
        return [False] * len(matrices.ways)
    axes: dict[str, set[str | None]] = {}
    for applied in described.applied:
        description = applied.description
        read = [
            _outer(access, batch[g])
            for g, accesses in zip(operator.inputs, description.reads, strict=True)
            if g in batch
            for access in accesses
        ]
        written = [
            _outer(write.dims, batch[g])
            for g, write in zip(operator.outputs, description.writes, strict=False)
            if g in batch
        ]
        axes[applied.variant.name] = {*read, *written} - {None}
    return [bool(used) and axes[body].issuperset(used) for body, used in matrices.ways]


def _outer(dims: Dims, d: int) -> str | None:
    """The axis that a dimension mostly runs along."""
    form = dims[d]
    if form is None or not form.terms:
        return None
    return max(form.terms, key=lambda term: abs(term[1]))[0]


def cheapest(problem: Problem, choices: Sequence[Choices], rule: Rule | None = None) -> Outcome:
    """The least bytes over `choices` of every group, exactly, each operator cut as `rule` allows.

    Where no solution obeys the rule, it is left out. Of operators with very many ways those alone
    count that go along one axis but for the last cut.
    """
    cuts = len(problem.factors)
    patterns = [None] * len(problem.coarse.operators)

    def under(given: Rule | None) -> Settled:
        sharing = Sharing(problem, given, lambda operator: straight(problem, operator))
        return solve(sharing, choices, patterns, cuts)

    if rule is not None:
        try:
            settled = under(rule)
        except errors.PlanError:  # some operator has no way that obeys
            settled = under(None)
        if settled.bytes < FORBIDDEN:
            return outcome_of(problem, settled)
    return outcome_of(problem, under(None))


def straight(problem: Problem, operator: Operator) -> tuple[Way, ...] | None:
    """For an operator with very many ways those that go along one axis; else None."""
    described, factors = operator.described, problem.factors
    if described is None or candidates.count_ways(described, len(factors)) <= candidates.MOST_WAYS:
        return None
    before = math.prod(factors[:-1])
    return tuple(
        (applied.variant.name, (axis,) * (len(factors) - 1))
        for applied in described.applied
        for axis in (*applied.axes, None)
        if axis is None or applied.description.extents[axis] >= before
    )


def only_ways(matrices: Matrices, fine: Sequence[bool] | np.ndarray) -> Ruling:
    """These ways alone; all of them where none is fine."""
    rows = np.flatnonzero(np.array(fine))
    return Ruling(rows if len(rows) else np.arange(len(fine)), (None,) * len(matrices.parts))
