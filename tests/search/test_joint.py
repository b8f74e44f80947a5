"""All cuts at once: what trying everything finds, never above the recursion, with a true bound."""

from __future__ import annotations

import itertools
import random

import pytest
import tensorflow as tf

from tests.graph.building import fed, graph_of
from tests.search import steps
from tofu_tf.coarsen.coarsening import coarsen
from tofu_tf.cost import evaluation
from tofu_tf.cost.communication import Pricing
from tofu_tf.graph.ir import Graph
from tofu_tf.ops.applicable import Describing
from tofu_tf.plan.machine import imagined
from tofu_tf.plan.plans import Plan, Strategy
from tofu_tf.search.checking import check_plan
from tofu_tf.search.elimination import minimise
from tofu_tf.search.joint import joint, layouts_of
from tofu_tf.search.narrowing import Limits
from tofu_tf.search.planning import find_plan
from tofu_tf.search.problem import Problem
from tofu_tf.search.recursion import recursion
from tofu_tf.search.sharing import Sharing, Tables

SIZES = (96, 160, 64, 128)

GRAPHS = {
    "product": lambda: steps.product(64, 96, 48),
    "inference": lambda: steps.inference(80, (240, 480, 240)),
    "training": lambda: steps.training(64, SIZES),
    "odd training": lambda: steps.training(33, (35, 9, 50)),
    "thin training": lambda: steps.training(512, (6, 3, 40)),
}


def problem_of(graph: Graph, k: int) -> Problem:
    return Problem(coarsen(graph, Describing(graph)), imagined(k), Pricing())


def all_tables(problem: Problem) -> Tables:
    """The factor graph of all layouts and ways that the recursion can reach."""

    sharing = Sharing(problem)
    cuts = len(problem.factors)
    choices = [layouts_of(problem, g.id) for g in problem.coarse.groups]
    patterns = [None] * len(problem.coarse.operators)
    return sharing.tables(choices, patterns, cuts, sharing.folds(0))


@pytest.mark.parametrize("k", [1, 2, 4, 6, 8, 12])
@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_never_above_the_recursion_and_proven(name: str, k: int) -> None:
    graph = GRAPHS[name]()
    problem = problem_of(graph, k)
    found = joint(problem)
    assert found.bytes == found.bound
    assert found.bytes <= recursion(problem).bytes
    check_plan(find_plan(graph, imagined(k), algorithm="joint"), graph, imagined(k))


def test_better_than_one_cut_after_the_other() -> None:
    problem = problem_of(GRAPHS["training"](), 8)
    assert joint(problem).bytes < recursion(problem).bytes


@pytest.mark.parametrize("k", [2, 3, 4])
def test_no_layouts_and_ways_move_less(k: int) -> None:
    """Counted one plan at a time, by what the rewriter would print; a few hundred for k = 4."""
    graph = two_readers()
    problem = problem_of(graph, k)
    best = find_plan(graph, imagined(k), algorithm="joint")
    tables, group_of = all_tables(problem), problem.coarse.group_of
    operators = [
        (operator, sorted(set(matrices.ways)))
        for operator, matrices in zip(problem.coarse.operators, tables.matrices, strict=True)
        if matrices is not None
    ]
    describing, rng = Describing(graph), random.Random(k)
    every = itertools.product(*tables.choices, *(ways for _, ways in operators))
    for picked in every if k < 4 else rng.sample(list(every), 300):
        layouts, ways = picked[: len(tables.choices)], picked[len(tables.choices) :]
        held = {
            ref: layouts[group_of[ref]] if ref in group_of else layout
            for ref, layout in best.layouts.items()
        }
        cut = dict(best.strategies)
        for (operator, _), (body, axes) in zip(operators, ways, strict=True):
            cut |= {name: Strategy(axes, body=body) for name in operator.nodes}
        plan = Plan(best.machine, held, cut, best.fingerprint)
        assert best.predicted_bytes <= evaluation.evaluate(graph, plan, describing)
    assert best.search_bytes == best.predicted_bytes


def two_readers() -> Graph:
    """Both products need x: where they need the same region of it, it moves once."""

    def build() -> list[tf.Tensor]:
        x = fed("x", (16, 48))
        v = steps.read(steps.variable("v", (48, 40)), (48, 40))
        w = steps.read(steps.variable("w", (16, 56)), (16, 56))
        return [tf.matmul(x, v, name="a"), tf.matmul(x, w, transpose_a=True, name="b")]

    return graph_of(build, ["x"], ["a", "b"])


@pytest.mark.parametrize("k", [4, 8])
@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_any_limits_keep_the_bound_true(name: str, k: int) -> None:
    problem = problem_of(GRAPHS[name](), k)
    least = joint(problem).bytes
    for limits in (Limits(largest=64), Limits(largest=1 << 10, total=1 << 12), Limits(layouts=4)):
        found = joint(problem, limits)
        assert found.bound is None or found.bound <= least <= found.bytes
        assert found.bytes <= recursion(problem).bytes


# The weights of thin training are small enough to lie on worker 0.
@pytest.mark.parametrize("name", sorted(set(GRAPHS) - {"thin training"}))
@pytest.mark.parametrize("k", [2, 4, 6, 8])
@pytest.mark.parametrize("algorithm", ["recursion", "joint"])
def test_what_is_minimised_is_what_moves(name: str, k: int, algorithm: str) -> None:
    """But for the scalars that worker 0 hands out, whose readers are taken one by one."""
    plan = find_plan(GRAPHS[name](), imagined(k), algorithm=algorithm)
    assert plan.predicted_bytes <= plan.search_bytes <= plan.predicted_bytes + 64 * k


def test_an_outcome_costs_what_its_layouts_and_ways_cost() -> None:
    problem = problem_of(GRAPHS["training"](), 8)
    tables = all_tables(problem)
    solution = minimise(tables.graph)
    settled = tables.settled(solution.chosen, solution.cost)
    sharing = Sharing(problem)
    again = sharing.tables(
        [(layout,) for layout in settled.layouts],
        [axes or None for (_, axes), _ in settled.ways],
        3,
        sharing.folds(0),
    )
    assert minimise(again.graph).cost == settled.bytes == solution.cost


@pytest.mark.parametrize("k", [32, 64])
def test_many_workers(k: int) -> None:
    problem = problem_of(GRAPHS["training"](), k)
    assert joint(problem).bytes <= recursion(problem).bytes
