"""What a plan moves: by hand, shared fetches counted once."""

from __future__ import annotations

import pytest

from tests.search import steps
from tofu_tf.cost.evaluation import evaluate
from tofu_tf.graph.ir import Graph
from tofu_tf.plan.machine import imagined
from tofu_tf.search.planning import find_plan

F = 4


@pytest.mark.parametrize("k", [2, 3, 4, 5])
def test_columns_then_rows(k: int) -> None:
    # x is gathered by all (each lacks all but its own part), w0 is cut by columns and w1 by rows;
    # the partial results are then reduced where the output lies
    graph = steps.inference(80, (240, 480, 240))
    plan = find_plan(graph, imagined(k))
    assert plan.predicted_bytes == 2 * (k - 1) * 80 * 240 * F


@pytest.mark.parametrize("k", [2, 3])
def test_one_fetch_serves_two(k: int) -> None:
    graph = steps.training(64, (256, 512))
    plan = find_plan(graph, imagined(k))
    assert plan.predicted_bytes == evaluate(graph, plan) <= plan.search_bytes


def two_readers(same: bool) -> Graph:
    """x is read by two products whose weights differ in shape, or by one."""
    import tensorflow as tf

    from tests.graph.building import fed, graph_of

    def build() -> list[tf.Tensor]:
        x = fed("x", (64, 64))
        first = steps.read(steps.variable("v", (64, 4096)), (64, 4096))
        second = steps.read(steps.variable("w", (64, 8192)), (64, 8192))
        products = [tf.matmul(x, first)] if same else [tf.matmul(x, w) for w in (first, second)]
        return [tf.identity(p, name=f"out{i}") for i, p in enumerate(products)]

    return graph_of(build, ["x"], ["out0"] if same else ["out0", "out1"])


def test_a_fetch_is_paid_once() -> None:
    one, two = (find_plan(two_readers(same), imagined(2)) for same in (True, False))
    assert one.predicted_bytes == two.predicted_bytes == 64 * 64 * F
    assert two.search_bytes == one.search_bytes == one.predicted_bytes
