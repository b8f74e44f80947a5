"""All cuts at once: a tensor's whole layout is one choice, so that the minimum is the plan's.

A group's choices are the layouts that the recursion can reach, an operator's all its ways to be
cut. From the recursion's outcome on, one cut after the other is searched again with the rest kept
(descent), and then two at a time where the graph allows. Then all of them: exactly where
elimination can be, else with bounds (see `narrowing`), which say how far from the minimum the
outcome may be.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection

from tofu_tf.cost import candidates
from tofu_tf.cost.candidates import FREE, Axes
from tofu_tf.cost.communication import Choices
from tofu_tf.plan.layouts import Layout
from tofu_tf.search.narrowing import Limits, narrow
from tofu_tf.search.problem import Outcome, Problem, extended
from tofu_tf.search.recursion import cut_by_cut, outcome_of, solve
from tofu_tf.search.sharing import Settled, Sharing

# Cuts up to which pairs of them are searched again too.
MOST_PAIRED = 4


def joint(problem: Problem, limits: Limits | None = None) -> Outcome:
    """Layouts and ways of the least bytes over all cuts, never above the recursion's.

    `bound` of the outcome is None where there is too much to choose from to say.

    Raises:
      PlanError: operators that no choice allows.
    """
    limits = limits or Limits()
    sharing = Sharing(problem)
    best = cut_by_cut(sharing)
    cuts = len(problem.factors)
    if cuts <= 1:
        exact = sharing.level == 0
        return outcome_of(problem, best, best.bytes if exact else None)
    best = _descend(sharing, best, 1, limits)
    if 2 < cuts <= MOST_PAIRED:
        best = _descend(sharing, best, 2, limits)
    choices = [layouts_of(problem, group.id) for group in problem.coarse.groups]
    described = [o.described for o in problem.coarse.operators]
    if max(map(len, choices), default=0) > limits.layouts or any(
        d is not None and candidates.count_ways(d, cuts) > candidates.MOST_WAYS for d in described
    ):
        return outcome_of(problem, best)
    tables = sharing.tables(choices, [None] * len(described), cuts, sharing.folds(0), lower=True)
    found = narrow(tables.graph, best.bytes, limits)
    if found.chosen is not None:
        better = tables.settled(found.chosen, found.cost)
        if not tables.exact:
            better = _priced(sharing, better)
        best = min(best, better, key=lambda settled: settled.bytes)
    return outcome_of(problem, best, found.lower)


def _priced(sharing: Sharing, settled: Settled) -> Settled:
    """The same layouts and ways with their exact bytes."""
    cuts = len(sharing.problem.factors)
    choices = [(layout,) for layout in settled.layouts]
    patterns = [axes or None for (_, axes), _ in settled.ways]
    return solve(sharing, choices, patterns, cuts)


def _descend(sharing: Sharing, start: Settled, free: int, limits: Limits) -> Settled:
    """`start`, or what searching so many cuts at a time again finds, until nothing is gained."""
    best, cuts = start, len(sharing.problem.factors)
    sets = list(itertools.combinations(range(cuts), free))
    idle = 0  # sets in a row without gain
    for chosen in itertools.cycle(sets):
        if idle == len(sets):
            return best
        choices = [
            _varied(sharing.problem, g, layout, chosen) for g, layout in enumerate(best.layouts)
        ]
        patterns = [_freed(axes, chosen) if axes else None for (_, axes), _ in best.ways]
        if free == 1:
            found = solve(sharing, choices, patterns, cuts)
        else:
            tables = sharing.tables(choices, patterns, cuts, sharing.folds(sharing.level))
            narrowed = narrow(tables.graph, best.bytes, limits)
            found = best
            if narrowed.chosen is not None:
                found = tables.settled(narrowed.chosen, narrowed.cost)
        idle = 0 if found.bytes < best.bytes else idle + 1
        best = found if found.bytes < best.bytes else best
    return best


def _freed(axes: Axes, free: Collection[int]) -> Axes:
    return tuple(FREE if s in free else a for s, a in enumerate(axes))


def layouts_of(problem: Problem, g: int) -> Choices:
    """All layouts of group g that the recursion can reach."""
    group = problem.coarse.groups[g]
    home = group.fixed.home if group.fixed is not None else False
    cuts = range(len(problem.factors))
    return _varied(problem, g, Layout((None,) * len(cuts), home), cuts)


def _varied(problem: Problem, g: int, layout: Layout, free: Collection[int]) -> Choices:
    """The layouts of group g that differ from `layout` along the cuts `free` only."""
    group = problem.coarse.groups[g]
    found: Choices = (Layout((), layout.home),)
    for s in range(len(problem.factors)):
        found = tuple(
            longer
            for prefix in found
            for longer in extended(problem, group, prefix)[0]
            if s in free or longer.cuts[s] == layout.cuts[s]
        )
    return found
