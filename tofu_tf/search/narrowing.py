"""The minimum of a factor graph that is too large to be eliminated whole, or a bound of it.

A lower bound says of every choice how much more any solution costs that has it (see `bounds`): what
costs too much is dropped, and among what is left elimination finds the minimum.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from tofu_tf.search.bounds import bound
from tofu_tf.search.elimination import demand, minimise
from tofu_tf.search.factors import FactorGraph
from tofu_tf.tdl.regions import IntArray

# Bounds that are made, each after better solutions were found, and the parts of the gap up to which
# choices are searched when there is too much below all of it.
MOST_ROUNDS = 6
PARTS = (1.0, 0.5, 0.25, 0.1, 0.03, 0.01, 0.001, 0.0)


@dataclasses.dataclass(frozen=True)
class Limits:
    """What an exact search may take.

    `layouts`: of one tensor. `largest` and `total`: entries of the tables that elimination makes.
    """

    layouts: int = 256
    largest: int = 1 << 24
    total: int = 1 << 27


@dataclasses.dataclass(frozen=True)
class Narrowed:
    """The best choices found (None: none below the given cost), their cost, and a lower bound."""

    chosen: tuple[int, ...] | None
    cost: int
    lower: int


def fits(graph: FactorGraph, limits: Limits) -> bool:
    """Whether elimination of the whole graph stays within the limits."""
    largest, total = demand(graph)
    return largest <= limits.largest and total <= limits.total


def narrow(graph: FactorGraph, upper: int, limits: Limits) -> Narrowed:
    """The minimum of `graph` where it is below `upper`, or the best found and a bound."""
    if fits(graph, limits):
        solution = minimise(graph)
        below = solution.chosen if solution.cost < upper else None
        return Narrowed(below, min(solution.cost, upper), min(solution.cost, upper))
    best: tuple[int, ...] | None = None
    cost, lower = upper, 0
    kept: tuple[IntArray, ...] = tuple(np.arange(n) for n in graph.sizes)
    for _ in range(MOST_ROUNDS):
        before = cost
        part_graph = graph.only(kept)
        found = bound(part_graph, cost)
        lower = max(lower, found.lower)
        decoded = part_graph.cost(found.chosen)
        if decoded < cost:
            best, cost = _numbers(kept, found.chosen), decoded
        gap = cost - lower
        if gap <= 0:
            break
        for part in PARTS:
            some = [k[r <= part * gap] for k, r in zip(kept, found.regrets, strict=True)]
            if not all(map(len, some)):
                continue
            smaller = graph.only(some)
            if fits(smaller, limits):
                solution = minimise(smaller)
                if solution.cost < cost:
                    best, cost = _numbers(some, solution.chosen), solution.cost
                # what was left out costs more than this
                lower = max(lower, min(cost, found.lower + int(part * gap)))
                break
        if lower >= cost or cost == before:
            break
        left = cost - found.lower
        kept = tuple(k[r < left] for k, r in zip(kept, found.regrets, strict=True))
        if not all(map(len, kept)):
            lower = cost
            break
    return Narrowed(best, cost, min(lower, cost))


def _numbers(kept: Sequence[IntArray], chosen: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(k[c]) for k, c in zip(kept, chosen, strict=True))
