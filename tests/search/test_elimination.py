"""Elimination finds what trying everything finds, within any table limit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tofu_tf import errors
from tofu_tf.cost.communication import FORBIDDEN
from tofu_tf.search.elimination import minimise
from tofu_tf.search.factors import Collecting, FactorGraph
from tofu_tf.search.oracle import brute_force


@st.composite
def factor_graphs(draw: st.DrawFn) -> FactorGraph:
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))
    collecting = Collecting(sizes)
    scopes = st.lists(st.integers(0, len(sizes) - 1), min_size=1, max_size=3, unique=True)
    for scope in draw(st.lists(scopes, max_size=8)):
        shape = [sizes[v] for v in scope]
        cells = st.lists(
            st.one_of(st.integers(0, 9), st.just(FORBIDDEN)),
            min_size=int(np.prod(shape)),
            max_size=int(np.prod(shape)),
        )
        table = np.array(draw(cells), np.int64).reshape(shape)
        collecting.add(scope, table, draw(st.integers(1, 3)))
    return collecting.graph()


@given(factor_graphs(), st.sampled_from([1, 4, 16, 1 << 24]))
@settings(max_examples=300, deadline=None)
def test_equals_brute_force(graph: FactorGraph, most_entries: int) -> None:
    found, best = minimise(graph, most_entries), brute_force(graph)
    if best.cost < FORBIDDEN:
        assert found.cost == best.cost == graph.cost(found.chosen)
    else:
        assert found.cost >= FORBIDDEN


@given(factor_graphs())
@settings(max_examples=50, deadline=None)
def test_every_time_the_same(graph: FactorGraph) -> None:
    again = FactorGraph(graph.sizes, dict(reversed(graph.tables.items())), graph.constant)
    assert minimise(graph) == minimise(graph)
    assert minimise(again).cost == minimise(graph).cost


@given(factor_graphs(), st.randoms())
@settings(max_examples=50, deadline=None)
def test_a_settled_variable_keeps_its_choice(graph: FactorGraph, random: object) -> None:
    best = brute_force(graph)
    settled = graph.given(0, best.chosen[0])
    assert brute_force(settled).cost == best.cost


def test_a_long_chain_needs_small_tables_only() -> None:
    collecting = Collecting([4] * 500)
    rng = np.random.default_rng(0)
    for v in range(499):
        collecting.add((v, v + 1), rng.integers(0, 100, (4, 4)))
    assert minimise(collecting.graph()).largest <= 64


def test_the_first_of_equal_choices() -> None:
    collecting = Collecting([3, 3])
    collecting.add((0, 1), np.full((3, 3), 7))
    assert minimise(collecting.graph()).chosen == (0, 0)


def test_too_entangled_is_said() -> None:
    collecting = Collecting([8] * 14)
    rng = np.random.default_rng(0)
    for pair in itertools.combinations(range(14), 2):
        collecting.add(pair, rng.integers(0, 100, (8, 8)))
    with pytest.raises(errors.PlanError, match="largest table would have"):
        minimise(collecting.graph(), most_entries=1 << 6)
