"""Bounds are below every solution, and what they drop no better solution has."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.search.test_elimination import factor_graphs
from tofu_tf.cost.communication import FORBIDDEN
from tofu_tf.search.bounds import bound
from tofu_tf.search.elimination import minimise
from tofu_tf.search.factors import Collecting, FactorGraph
from tofu_tf.search.oracle import brute_force


@given(factor_graphs(), st.integers(1, 6))
@settings(max_examples=300, deadline=None)
def test_never_above_the_minimum(graph: FactorGraph, passes: int) -> None:
    found, least = bound(graph, passes=passes), brute_force(graph).cost
    assert found.lower <= least <= graph.cost(found.chosen)


@given(factor_graphs(), st.integers(0, 3))
@settings(max_examples=300, deadline=None)
def test_every_better_solution_is_kept(graph: FactorGraph, above: int) -> None:
    upper = min(brute_force(graph).cost + above, FORBIDDEN)
    found = bound(graph, upper)
    assert found.lower <= min(upper, brute_force(graph).cost)
    for chosen in itertools.product(*(range(n) for n in graph.sizes)):
        cost = graph.cost(chosen)
        if cost < min(upper, graph.cost(found.chosen)):
            for regrets, c in zip(found.regrets, chosen, strict=True):
                assert found.lower + regrets[c] <= cost


@given(factor_graphs())
@settings(max_examples=50, deadline=None)
def test_nothing_is_left_below_the_bound(graph: FactorGraph) -> None:
    upper = bound(graph).lower
    found = bound(graph, upper)
    assert found.lower == upper
    assert not any(np.isfinite(r).any() for r in found.regrets)


@pytest.mark.parametrize("seed", range(5))
def test_a_chain_is_solved(seed: int) -> None:
    collecting = Collecting([4] * 60)
    rng = np.random.default_rng(seed)
    for v in range(59):
        collecting.add((v, v + 1), rng.integers(0, 1000, (4, 4)))
    graph = collecting.graph()
    assert bound(graph).lower == minimise(graph).cost


def test_regrets_are_rounded_with_the_bound() -> None:
    """Found by the test above: a bound of 4.8 is 5, and 5 plus a regret of 0.2 is not below 5."""
    no = FORBIDDEN
    three = np.full((4, 2, 4), 0)
    three[0, 1, 3] = three[1, 0, 3] = no
    three[1, 1] = no
    three[2] = [[no, 5, no, 6], [no, no, 0, 0]]
    three[3, 1, 2:] = no
    collecting = Collecting([4, 2, 4])
    collecting.add((0, 1, 2), three)
    collecting.add((0, 1), np.array([[no, no], [5, no], [0, 1], [no, no]]))
    collecting.add((1, 2), np.array([[0, 0, 0, 0], [no, 4, no, no]]))
    graph = collecting.graph()
    found, best = bound(graph, 6), brute_force(graph).cost
    assert (found.lower, best) == (5, 5)
    assert min(found.regrets[0][:3]) == 0
    for chosen in itertools.product(range(4), range(2), range(4)):
        if graph.cost(chosen) == best:
            assert all(r[c] == 0 for r, c in zip(found.regrets, chosen, strict=True))


def test_a_choice_that_cannot_be() -> None:
    collecting = Collecting([2, 2])
    table = np.array([[5, 3], [FORBIDDEN, FORBIDDEN]])
    collecting.add((0, 1), table)
    assert bound(collecting.graph(), passes=0).regrets[0].tolist() == [0, np.inf]
    found = bound(collecting.graph())
    assert (found.lower, found.chosen) == (3, (0, 1))
