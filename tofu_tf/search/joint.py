"""All cuts at once: a tensor's whole layout is one choice, so that the minimum is the plan's.

A group's choices are the layouts that the recursion can reach. Where the tables of an exact search
would be too large, a lower bound says of every choice how much more it costs at least (see
`bounds`): what costs too much is dropped, and among what is left an exact search finds the minimum.
Where even that is too much, few cuts at a time are searched again with the others kept (descent),
and the bound says how far from the minimum the outcome may be.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from tofu_tf.search.bounds import bound
from tofu_tf.search.elimination import Solution, demand, minimise
from tofu_tf.search.problem import Outcome, Problem
from tofu_tf.search.recursion import recursion
from tofu_tf.search.spaces import (
    Kept,
    Limits,
    Space,
    assemble,
    demanded,
    differing,
    outcome_of,
    space_of,
)
from tofu_tf.tdl.regions import IntArray

# Tables for a bound: many small ones are quicker than few large ones.
BOUND_ENTRIES = 1 << 12

# Bounds that are made, each after better layouts were found, and the parts of the gap up to which
# choices are searched when there is too much below all of it.
MOST_ROUNDS = 6
PARTS = (1.0, 0.5, 0.25, 0.1, 0.03, 0.01, 0.001, 0.0)


def joint(problem: Problem, limits: Limits | None = None) -> Outcome:
    """Layouts and ways of the least bytes over all cuts, never above the recursion's.

    `bound` of the outcome is None where some tensor or operator has too many choices to say.

    Raises:
      PlanError: operators that no choice allows.
    """
    limits = limits or Limits()
    best = recursion(problem)
    cuts = len(problem.factors)
    if cuts <= 1:
        return dataclasses.replace(best, bound=best.bytes)
    whole = space_of(problem, best, range(cuts), limits)
    if whole is None:
        return _descend(problem, None, best, limits)
    if _fits(whole, None, limits, limits.quick):
        best = _cheapest(whole, None, best, limits)
        return dataclasses.replace(best, bound=best.bytes)
    best = _narrow(whole, best, limits)
    if best.bytes == best.bound:
        return best
    return _descend(problem, whole, best, limits)


def _descend(problem: Problem, whole: Space | None, start: Outcome, limits: Limits) -> Outcome:
    """`start`, or what is found by searching few cuts at a time again until nothing is gained."""
    best = start
    cuts = len(problem.factors)
    for free in range(1, min(3, cuts)):
        sets = list(itertools.combinations(range(cuts), free))
        idle = 0  # sets in a row without gain
        for chosen in itertools.cycle(sets):
            if idle == len(sets):
                break
            before, kept = best.bytes, None
            space = whole
            if whole is not None:
                kept = differing(whole, best.layouts, chosen)
            else:
                space = space_of(problem, best, chosen, limits)
            if space is not None and _fits(space, kept, limits, limits.quick):
                best = _cheapest(space, kept, best, limits)
            idle = 0 if best.bytes < before else idle + 1
    return best


def _narrow(whole: Space, start: Outcome, limits: Limits) -> Outcome:
    """The minimum, or the best found and its bound."""
    best, lower = start, 0
    kept: tuple[IntArray, ...] = tuple(np.arange(len(c)) for c in whole.choices)
    for _ in range(MOST_ROUNDS):
        before = best.bytes
        graph = assemble(whole, kept, BOUND_ENTRIES)
        found = bound(graph, best.bytes)
        lower = max(lower, found.lower)
        if graph.cost(found.chosen) < best.bytes:
            solution = Solution(found.chosen, graph.cost(found.chosen), 0)
            best = outcome_of(whole, kept, solution)
        gap = best.bytes - lower
        if gap <= 0:
            break
        # further variables are ways of operators
        regrets = found.regrets[: len(kept)]
        for part in PARTS:
            some = [k[r <= part * gap] for k, r in zip(kept, regrets, strict=True)]
            if _fits(whole, some, limits, limits.work):
                best = _cheapest(whole, some, best, limits)
                # what was left out costs more than this
                lower = max(lower, min(best.bytes, found.lower + int(part * gap)))
                break
        if lower >= best.bytes or best.bytes == before:
            break
        left = best.bytes - found.lower
        kept = tuple(k[r < left] for k, r in zip(kept, regrets, strict=True))
    return dataclasses.replace(best, bound=min(lower, best.bytes))


def _fits(space: Space, kept: Kept, limits: Limits, work: int) -> bool:
    scopes, sizes, making = demanded(space, kept, limits.dense)
    if making > work:
        return False
    largest, total = demand(scopes, sizes)
    return largest <= limits.largest and total <= limits.total


def _cheapest(space: Space, kept: Kept, best: Outcome, limits: Limits) -> Outcome:
    """The cheapest of what is left of `space`, or `best` where that is not above it."""
    solution = minimise(assemble(space, kept, limits.dense))
    if solution.cost >= best.bytes:
        return best
    return dataclasses.replace(outcome_of(space, kept, solution), bound=best.bound)
