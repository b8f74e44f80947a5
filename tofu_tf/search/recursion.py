"""The paper's search: one cut after the other, each at its exact optimum (section 5 of the paper).

Cut s is chosen with the earlier ones settled, of tensors and of operators; the cost of a choice is
the exact bytes among the ``k1 * ... * ks`` workers that exist after it, a region that several
operators need paid once, so the last cut's minimum is the plan's cost.
"""

from __future__ import annotations

from collections.abc import Sequence

from tofu_tf.cost.candidates import FREE, Axes
from tofu_tf.cost.communication import Choices
from tofu_tf.plan.layouts import Layout
from tofu_tf.search.elimination import MOST_ENTRIES, demand, minimise
from tofu_tf.search.problem import Outcome, Problem, extended, uncut_reasons, way_inside
from tofu_tf.search.sharing import LEVELS, Settled, Sharing

# Entries of all tables of one elimination; a graph that takes more is folded (see `solve`).
MOST_TOTAL = 1 << 27


def recursion(problem: Problem) -> Outcome:
    """Layouts and ways found cut by cut.

    Raises:
      PlanError: operators that no choice allows, or a graph too entangled to be solved exactly.
    """
    return outcome_of(problem, cut_by_cut(Sharing(problem)))


def cut_by_cut(sharing: Sharing) -> Settled:
    """The last of the cuts, each settled with those before."""
    problem = sharing.problem
    groups, operators = problem.coarse.groups, problem.coarse.operators
    layouts = tuple(Layout((), g.fixed.home if g.fixed is not None else False) for g in groups)
    settled = Settled(layouts, ((("", ()), False),) * len(operators), 0)
    for s in range(len(problem.factors)):
        choices = [
            extended(problem, group, layout)[0]
            for group, layout in zip(groups, settled.layouts, strict=True)
        ]
        patterns: list[Axes | None] = [None] * len(operators)
        if s:
            patterns = [(*axes, FREE) if axes else None for (_, axes), _ in settled.ways]
        settled = solve(sharing, choices, patterns, s + 1)
    return settled


def solve(
    sharing: Sharing, choices: Sequence[Choices], patterns: Sequence[Axes | None], cuts: int
) -> Settled:
    """The cheapest of the `choices`, with ways that follow the `patterns`.

    Where the graph is too entangled, groups and operators that look alike are decided alike, as
    little as need be: the steps of an unrolled recurrent net become one (section 5.1 of the paper).

    Raises:
      PlanError: see `minimise`.
    """
    while True:
        tables = sharing.tables(choices, patterns, cuts, sharing.folds(sharing.level))
        largest, total = demand(tables.graph)
        if largest <= MOST_ENTRIES and total <= MOST_TOTAL:
            break
        if sharing.level == LEVELS:
            break
        sharing.level += 1  # as entangled for the next cut
    solution = minimise(tables.graph)
    return tables.settled(solution.chosen, solution.cost)


def outcome_of(problem: Problem, settled: Settled, bound: int | None = None) -> Outcome:
    """The outcome that the settled layouts and ways are."""
    ways = tuple(
        way_inside(problem, operator, settled.layouts) if operator.internal else way
        for operator, way in zip(problem.coarse.operators, settled.ways, strict=True)
    )
    reasons = uncut_reasons(problem, settled.layouts)
    return Outcome(settled.layouts, ways, settled.bytes, reasons, bound)
