"""Ways to train in parallel that people write by hand: by data, fully sharded, by columns and
rows.
"""

from __future__ import annotations

import numpy as np

from tofu_tf.coarsen.groups import Group, Operator
from tofu_tf.cost.communication import Choices, Matrices
from tofu_tf.search.baselines import rules
from tofu_tf.search.problem import Outcome, Problem
from tofu_tf.search.sharing import Ruling


def data_parallel(problem: Problem) -> Outcome:
    """Weights and what belongs to them on every worker, everything else cut along the batch, and
    every operator that knows of it.
    """
    batch = rules.batch_dimensions(problem)

    def rule(operator: Operator, matrices: Matrices) -> Ruling:
        return rules.only_ways(matrices, rules.batch_ways(operator, batch, matrices))

    return rules.cheapest(
        problem,
        [
            (rules.along(problem, g, [batch[g.id]] if g.id in batch else []),)
            for g in problem.coarse.groups
        ],
        rule,
    )


def fully_sharded(problem: Problem) -> Outcome:
    """As data parallel, but each worker keeps one part of every weight, gradient and slot."""
    batch = rules.batch_dimensions(problem)

    def dims(group: Group) -> list[int]:
        if group.id in batch:
            return [batch[group.id]]
        # whole rows if they suffice, as frameworks cut flattened weights
        return list(range(len(group.shape))) if rules.has_variable(problem, group) else []

    def rule(operator: Operator, matrices: Matrices) -> Ruling:
        return rules.only_ways(matrices, rules.batch_ways(operator, batch, matrices))

    return rules.cheapest(
        problem, [(rules.along(problem, g, dims(g)),) for g in problem.coarse.groups], rule
    )


def megatron(problem: Problem) -> Outcome:
    """Weights by columns or by rows and never moved, activations whole or cut along another
    dimension than the batch: the cheapest such plan (Shoeybi et al., "Megatron-LM", 2019).

    For a block of two dense layers or of attention that is columns, then rows.
    """
    batch = rules.batch_dimensions(problem)
    weights = {g.id for g in problem.coarse.groups if rules.has_variable(problem, g)}

    def choices(group: Group) -> Choices:
        if group.fixed is not None:
            return (group.fixed,)
        dims = [d for d in range(len(group.shape)) if batch.get(group.id) != d]
        found = [rules.along(problem, group, [d]) for d in dims]
        whole = rules.copied(problem, group)
        if group.id in weights and len(group.shape) > 1:
            cut = [f for f in found if None not in f.cuts]
            return tuple(dict.fromkeys(cut)) or (whole,)
        return tuple(dict.fromkeys((whole, *found)))

    def rule(operator: Operator, matrices: Matrices) -> Ruling:
        every = np.arange(len(matrices.base))
        allowed = tuple(
            part == 0 if g in weights and len(groups[g].shape) > 1 else None
            for g, part in zip(operator.groups, matrices.parts, strict=True)
        )
        possible = np.all([a.any(axis=1) for a in allowed if a is not None], axis=0)
        return Ruling(every, allowed if np.any(possible) else (None,) * len(allowed))

    groups = problem.coarse.groups
    return rules.cheapest(problem, [choices(g) for g in groups], rule)
