"""The paper's search: one cut after the other, each at its exact optimum (section 5 of the paper).

Cut s is chosen with the earlier ones settled; the cost of a choice is the exact bytes among the
``k1 * ... * ks`` workers that exist after it, over all ways to cut each operator so often, so the
last cut's minimum is the plan's cost.
"""

from __future__ import annotations

from tofu_tf.cost import candidates
from tofu_tf.cost.candidates import Way
from tofu_tf.plan.layouts import Layout
from tofu_tf.search.elimination import minimise
from tofu_tf.search.problem import Outcome, Problem, extended, factor_graph, ways_of


def recursion(problem: Problem) -> Outcome:
    """Layouts and ways found cut by cut.

    Raises:
      PlanError: operators that no choice allows, or a graph too entangled to be solved exactly.
    """
    operators = problem.coarse.operators
    layouts = [
        Layout((), g.fixed.home if g.fixed is not None else False) for g in problem.coarse.groups
    ]
    reasons: dict[int, list[str]] = {}
    prefixes: list[tuple[Way, ...] | None] = [None] * len(operators)
    cost = 0
    for s in range(len(problem.factors)):
        choices = []
        for group, layout in zip(problem.coarse.groups, layouts, strict=True):
            possible, reason = extended(problem, group, layout)
            choices.append(possible)
            if possible[0].cuts[-1] is None and reason not in reasons.setdefault(group.id, []):
                reasons[group.id].append(reason)
        graph, made = factor_graph(problem, s + 1, choices, prefixes)
        solution = minimise(graph)
        cost = solution.cost
        layouts = [c[n] for c, n in zip(choices, solution.chosen, strict=False)]
        for o, (operator, matrices) in enumerate(zip(operators, made, strict=True)):
            described = operator.described
            if (
                matrices is not None
                and described is not None
                and s + 1 < len(problem.factors)
                and candidates.count_ways(described, s + 2) > candidates.MOST_WAYS
            ):
                best, _ = matrices.cheapest([solution.chosen[g] for g in operator.groups])
                prefixes[o] = (matrices.ways[best],)
    return Outcome(
        tuple(layouts),
        ways_of(problem, layouts, prefixes),
        cost,
        {g: "; ".join(texts) for g, texts in reasons.items() if texts},
    )
