"""Other searches: all rows, Spartan's greedy order, one k-way cut for each tensor or operator."""

from __future__ import annotations

import numpy as np

from tofu_tf.coarsen.groups import Operator
from tofu_tf.cost.communication import Matrices
from tofu_tf.search.baselines import rules
from tofu_tf.search.problem import Outcome, Problem
from tofu_tf.search.sharing import Ruling
from tofu_tf.tdl.regions import IntArray


def all_row(problem: Problem) -> Outcome:
    """Every tensor is cut along its first dimension that has room, whatever it costs."""
    return rules.cheapest(
        problem,
        [(rules.along(problem, g, range(len(g.shape))),) for g in problem.coarse.groups],
    )


def equal_chop(problem: Problem) -> Outcome:
    """Every tensor is cut k ways along one dimension, the best for all of them together."""
    return rules.cheapest(
        problem, [rules.each_dimension(problem, g) for g in problem.coarse.groups]
    )


def icml18(problem: Problem) -> Outcome:
    """As EqualChop, each operator in k ways along one axis too, and along a dimension of its output
    wherever it has one that can be cut: layers are not cut along what they sum over.

    (Jia et al., "Exploring hidden dimensions", ICML 2018, with one configuration for each layer.)
    """

    def rule(operator: Operator, matrices: Matrices) -> Ruling:
        straight = np.array([len(set(axes)) == 1 for _, axes in matrices.ways])
        described = operator.described
        if described is None:
            return rules.only_ways(matrices, straight)
        summed = {
            applied.variant.name: frozenset().union(*(w.over for w in applied.description.writes))
            for applied in described.applied
        }
        outer = np.array([not summed[body].intersection(axes) for body, axes in matrices.ways])
        both = straight & outer
        return rules.only_ways(matrices, both if both.any() else straight)

    return rules.cheapest(
        problem, [rules.each_dimension(problem, g) for g in problem.coarse.groups], rule
    )


def spartan(problem: Problem) -> Outcome:
    """Tensors are decided one by one, the largest first, each where the operators around it move
    least given those before (Huang et al., "Spartan", ATC 2015).
    """
    groups = problem.coarse.groups
    choices = [rules.each_dimension(problem, g) for g in groups]
    around: dict[int, list[tuple[Operator, Matrices]]] = {g.id: [] for g in groups}
    for operator in problem.coarse.operators:
        if operator.internal:
            continue
        prefixes = rules.straight(problem, operator)
        matrices = problem.pricing.matrices(
            operator, problem.factors, dict(enumerate(choices)), prefixes
        )
        for g in operator.groups:
            around[g].append((operator, matrices))
    left: list[IntArray] = [np.arange(len(c)) for c in choices]

    def size(g: int) -> tuple[int, int]:
        group = groups[g]
        return -int(np.prod(group.shape, dtype=np.int64)) * group.itemsize, g

    for g in sorted(range(len(groups)), key=size):
        total = np.zeros(len(choices[g]), np.int64)
        for operator, matrices in around[g]:
            each = matrices.base[:, None]
            for other, part in zip(operator.groups, matrices.parts, strict=True):
                each = each + (part if other == g else part[:, left[other]].min(1, keepdims=True))
            total = total + len(operator.nodes) * each.min(axis=0)
        left[g] = left[g][[int(np.argmin(total))]]
    return rules.cheapest(problem, [(c[int(n[0])],) for c, n in zip(choices, left, strict=True)])
