"""Narrowing finds what trying everything finds, or a true bound, however little it may take."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.search.test_elimination import factor_graphs
from tofu_tf.cost.communication import FORBIDDEN
from tofu_tf.search.factors import FactorGraph
from tofu_tf.search.narrowing import Limits, narrow
from tofu_tf.search.oracle import brute_force


@given(factor_graphs(), st.integers(0, 3), st.sampled_from([1, 2, 4, 16, 1 << 24]))
@settings(max_examples=300, deadline=None)
def test_the_minimum_or_a_true_bound(graph: FactorGraph, above: int, largest: int) -> None:
    least = brute_force(graph).cost
    upper = min(least + above, FORBIDDEN)
    found = narrow(graph, upper, Limits(largest=largest))
    if least >= FORBIDDEN:
        assert found.chosen is None
        return
    assert found.lower <= least <= found.cost <= upper
    if found.chosen is None:
        assert found.cost == upper
    else:
        assert graph.cost(found.chosen) == found.cost < upper
    if largest == 1 << 24:
        assert found.cost == found.lower == least


@pytest.mark.parametrize("largest", [1, 1 << 24])
def test_nothing_below_what_is_known(largest: int) -> None:
    graph = FactorGraph((2, 2), {}, 5)
    found = narrow(graph, 5, Limits(largest=largest))
    assert (found.chosen, found.cost, found.lower) == (None, 5, 5)
