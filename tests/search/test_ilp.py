"""The integer program finds what elimination finds, on made-up graphs and on those of steps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from tests.search import steps
from tests.search.test_elimination import factor_graphs
from tests.search.test_joint import GRAPHS, all_tables, problem_of
from tofu_tf import errors
from tofu_tf.cost.communication import FORBIDDEN
from tofu_tf.search.bounds import bound
from tofu_tf.search.elimination import minimise
from tofu_tf.search.factors import Collecting, FactorGraph
from tofu_tf.search.ilp import columns_of, integer_program, relaxation
from tofu_tf.search.oracle import brute_force


@given(factor_graphs())
@settings(max_examples=60, deadline=None)
def test_equals_brute_force(graph: FactorGraph) -> None:
    least = brute_force(graph).cost
    if least >= FORBIDDEN:
        with pytest.raises(errors.PlanError):
            integer_program(graph)
        return
    found = integer_program(graph)
    assert found.cost == found.bound == graph.cost(found.chosen) == least
    assert bound(graph).lower <= least
    assert relaxation(graph).bound <= least


@pytest.mark.parametrize("k", [2, 4, 6, 8])
@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_elimination_finds_the_same(name: str, k: int) -> None:
    problem = problem_of(GRAPHS[name](), k)
    graph = all_tables(problem).graph
    found = integer_program(graph)
    assert found.columns == columns_of(graph)
    assert found.cost == found.bound == minimise(graph).cost


def test_a_deep_step() -> None:
    problem = problem_of(steps.training(64, (96, 160, 64, 128, 96, 160, 64, 128, 96)), 4)
    graph = all_tables(problem).graph
    least = minimise(graph).cost
    assert integer_program(graph).cost == least
    assert (
        bound(graph).lower
        <= relaxation(graph).bound + 1 + least // 10**8
        <= least + 1 + least // 10**8
    )


@pytest.mark.parametrize("seed", range(3))
def test_bounds_are_close_to_the_relaxation(seed: int) -> None:
    rng = np.random.default_rng(seed)
    collecting = Collecting([3] * 12)
    for _ in range(20):
        a, b = sorted(rng.choice(12, 2, replace=False).tolist())
        collecting.add((a, b), rng.integers(0, 1000, (3, 3)))
    graph = collecting.graph()
    assert bound(graph).lower <= relaxation(graph).bound + 1
    assert bound(graph).lower >= 0.9 * relaxation(graph).bound
