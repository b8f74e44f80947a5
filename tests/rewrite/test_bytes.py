"""Bytes that the rewritten graph moves, counted on it alone, are those that its plan predicts."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tests.rewrite import random_plans, steps
from tofu_tf.capture.functions import capture_function
from tofu_tf.cost.evaluation import evaluate
from tofu_tf.graph.ir import Graph
from tofu_tf.pipeline import apply_plan, find_plan
from tofu_tf.plan.machine import imagined
from tofu_tf.plan.plans import Plan
from tofu_tf.report.counting import count_communication


def _counted(graph: Graph, plan: Plan) -> int:
    placed = apply_plan(graph, plan)
    return count_communication(
        placed.graph_def, feeds=placed.feed_nodes, results=placed.result_nodes
    ).total


@pytest.fixture(scope="module", params=sorted(steps.STEPS))
def graph(request: pytest.FixtureRequest) -> Graph:
    step, feeds, _ = steps.STEPS[request.param]()
    return capture_function(step, [tf.TensorSpec(f.shape, f.dtype) for f in feeds]).graph


@pytest.mark.parametrize("workers", [2, 3, 4, 6])
@pytest.mark.parametrize("seed", range(3))
def test_random_plans(graph: Graph, workers: int, seed: int) -> None:
    plan = random_plans.random_plan(graph, workers, seed)
    assert _counted(graph, plan) == evaluate(graph, plan) > 0


@pytest.mark.parametrize("workers", [2, 3, 4, 6, 8])
def test_found_plans(graph: Graph, workers: int) -> None:
    plan = find_plan(graph, imagined(workers), small_bytes=8)
    assert _counted(graph, plan) == plan.predicted_bytes > 0
