"""Communication by kind adds up to what the plan predicts, whatever the plan."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.rewrite import random_plans, steps
from tofu_tf.capture.functions import capture_function
from tofu_tf.cost.evaluation import evaluate
from tofu_tf.graph.ir import Graph, Ref
from tofu_tf.pipeline import apply_plan, find_plan
from tofu_tf.plan.classifying import Kind
from tofu_tf.plan.layouts import Layout
from tofu_tf.plan.machine import imagined
from tofu_tf.plan.plans import Plan, Strategy
from tofu_tf.report.communication import Moved, moved_by_kind
from tofu_tf.report.counting import count_communication


def captured(step, *feeds: np.ndarray) -> Graph:
    return capture_function(step, [tf.TensorSpec(f.shape, f.dtype) for f in feeds]).graph


@pytest.fixture(scope="module", params=sorted(steps.STEPS))
def graph(request: pytest.FixtureRequest) -> Graph:
    step, feeds, _ = steps.STEPS[request.param]()
    return captured(step, *feeds)


@pytest.mark.parametrize("workers, seed", [(2, 0), (3, 1), (4, 2), (6, 3)])
def test_kinds_add_up(graph: Graph, workers: int, seed: int) -> None:
    plan = random_plans.random_plan(graph, workers, seed)
    moved = moved_by_kind(graph, plan)
    assert moved
    assert sum(m.nbytes for m in moved) == evaluate(graph, plan)
    assert all(m.changes > 0 and m.nbytes > 0 and m.kind is not Kind.NONE for m in moved)


@pytest.mark.parametrize("workers", [2, 3])
def test_kinds_are_what_is_counted(graph: Graph, workers: int) -> None:
    plan = find_plan(graph, imagined(workers), small_bytes=16)
    placed = apply_plan(graph, plan)
    counted = count_communication(placed.graph_def, placed.feed_nodes, placed.result_nodes)
    assert sum(m.nbytes for m in moved_by_kind(graph, plan)) == counted.total > 0


@pytest.mark.parametrize(
    "a, b, axes, out, expected",
    [
        # i, k and j are the axes of a [4, 6] x [6, 8] product of float32 on two devices.
        (0, None, "i", 0, []),
        # only the first device's copy is read: the sums that would make the other are not fetched
        (1, 0, "k", None, [Moved(Kind.ALL_REDUCE, 1, 32 * 4)]),
        (1, 0, "k", 0, [Moved(Kind.REDUCE_SCATTER, 1, 2 * 16 * 4)]),
        (0, 0, "i", 0, [Moved(Kind.ALL_GATHER, 1, 48 * 4)]),
        (0, None, "j", 1, [Moved(Kind.ALL_GATHER, 1, 24 * 4)]),
        (0, 0, "k", 0, [Moved(Kind.REDUCE_SCATTER, 1, 128), Moved(Kind.ALL_TO_ALL, 1, 48)]),
        (0, None, "i", 1, [Moved(Kind.ALL_TO_ALL, 1, 16 * 4)]),
        ("home", None, "i", 0, [Moved(Kind.FETCH, 1, 12 * 4)]),
    ],
)
def test_a_product(a, b, axes, out, expected) -> None:
    graph = captured(tf.matmul, np.zeros((4, 6), np.float32), np.zeros((6, 8), np.float32))
    product = graph.outputs[0]
    left, right = graph.nodes[product.node].inputs

    def layout(cut: int | str | None) -> Layout:
        return Layout((None,), home=True) if cut == "home" else Layout((cut,))

    layouts = {Ref(left.node): layout(a), Ref(right.node): layout(b), product: layout(out)}
    plan = Plan(imagined(2), layouts, {product.node: Strategy((axes,))}, "")
    assert list(moved_by_kind(graph, plan)) == expected
