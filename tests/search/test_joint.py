"""All cuts at once: what trying everything finds, never above the recursion, with a true bound."""

from __future__ import annotations

import itertools

import pytest

from tests.search import steps
from tofu_tf.coarsen.coarsening import coarsen
from tofu_tf.cost.communication import Pricing
from tofu_tf.graph.ir import Graph
from tofu_tf.ops.applicable import Describing
from tofu_tf.plan.machine import imagined
from tofu_tf.search.checking import check_plan
from tofu_tf.search.elimination import minimise
from tofu_tf.search.joint import joint
from tofu_tf.search.planning import find_plan
from tofu_tf.search.problem import Problem
from tofu_tf.search.recursion import recursion
from tofu_tf.search.spaces import Limits, assemble, outcome_of, space_of

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
    problem = problem_of(GRAPHS["training"](), 4)
    assert joint(problem).bytes < recursion(problem).bytes


@pytest.mark.parametrize("k", [4, 6])
def test_no_layouts_cost_less(k: int) -> None:
    problem = problem_of(steps.inference(8, (48, 40)), k)
    start = recursion(problem)
    space = space_of(problem, start, range(2), Limits())
    assert space is not None
    around = [range(len(c)) for c in space.choices]

    def cost(at: tuple[int, ...]) -> int:
        layouts = {g: (space.choices[g][n],) for g, n in enumerate(at)}
        total = 0
        for operator in problem.coarse.operators:
            if not operator.internal:
                matrices = problem.pricing.matrices(operator, problem.factors, layouts)
                total += len(operator.nodes) * int(matrices.table().min())
        return total

    assert joint(problem).bytes == min(cost(at) for at in itertools.product(*around))


@pytest.mark.parametrize("k", [4, 8])
@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_any_limits_keep_the_bound_true(name: str, k: int) -> None:
    problem = problem_of(GRAPHS[name](), k)
    least = joint(problem).bytes
    for limits in (
        Limits(quick=0),
        Limits(quick=0, work=0),
        Limits(dense=1),
        Limits(largest=64),
        Limits(choices=4, quick=1 << 10),
    ):
        found = joint(problem, limits)
        assert found.bound is None or found.bound <= least <= found.bytes
        assert found.bytes <= recursion(problem).bytes


def test_an_outcome_costs_what_its_layouts_and_ways_cost() -> None:
    problem = problem_of(GRAPHS["training"](), 8)
    space = space_of(problem, recursion(problem), range(3), Limits())
    assert space is not None
    found = outcome_of(space, None, minimise(assemble(space, None, 1 << 18)))
    total = 0
    for operator, (way, _) in zip(problem.coarse.operators, found.ways, strict=True):
        if operator.internal:
            continue
        layouts = {g: (found.layouts[g],) for g in operator.groups}
        matrices = problem.pricing.matrices(operator, problem.factors, layouts)
        row = matrices.ways.index(way)
        total += len(operator.nodes) * int(
            matrices.base[row] + sum(p[row, 0] for p in matrices.parts)
        )
    assert total == found.bytes


@pytest.mark.parametrize("k", [32])
def test_many_workers(k: int) -> None:
    problem = problem_of(GRAPHS["training"](), k)
    assert joint(problem).bytes <= recursion(problem).bytes
