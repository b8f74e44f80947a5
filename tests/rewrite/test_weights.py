"""Large constants of exported graphs are cut like variables, however the plan wants it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.rewrite import random_plans
from tofu_tf.capture.captured import Captured
from tofu_tf.capture.graph_defs import capture_graph_def
from tofu_tf.cost.evaluation import evaluate
from tofu_tf.graph.ir import CONST, WEIGHT
from tofu_tf.pipeline import apply_plan, find_plan
from tofu_tf.plan.machine import imagined
from tofu_tf.plan.plans import Plan
from tofu_tf.report.counting import count_communication

R = np.random.RandomState(0)
X = R.randn(6, 15)
W = R.randn(15, 14)
FILTER = R.randn(3, 3, 2, 9)


def frozen(name: str, weight: Any, x: np.ndarray, body: Any) -> tuple[Captured, list[np.ndarray]]:
    with tf.Graph().as_default() as graph:
        fed = tf.compat.v1.placeholder(tf.float64, x.shape, "x")
        body(fed, tf.identity(tf.constant(weight, name=name)))
        with tf.compat.v1.Session() as session:
            expected = session.run(["y:0"], {"x:0": x})
    return capture_graph_def(graph.as_graph_def(), ["y:0"]), expected


CASES = {
    "matrix": ("w", W, X, lambda x, w: tf.matmul(x, w, name="y")),
    "twice": ("w", W, X, lambda x, w: tf.matmul(x @ w, w, transpose_b=True, name="y")),
    "elementwise": ("w", R.randn(12, 13), R.randn(12, 13), lambda x, w: tf.add(x, w, "y")),
    "filter": (
        "w",
        FILTER,
        R.randn(2, 7, 5, 2),
        lambda x, w: tf.identity(tf.nn.conv2d(x, w, 1, "SAME"), "y"),
    ),
    "fetched": ("w", W, X, lambda x, w: tf.identity(w, "y")),
}


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> Any:
    name, weight, x, body = CASES[request.param]
    captured, expected = frozen(name, weight, x, body)
    assert captured.graph.nodes[name].op == WEIGHT
    return captured, x, expected


def check(captured: Captured, x: np.ndarray, expected: list[np.ndarray], plan: Plan) -> None:
    placed = apply_plan(captured.graph, plan)
    fed = [x] if captured.graph.inputs else []
    got, _ = random_plans.run_placed(placed, captured, fed)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
    counted = count_communication(placed.graph_def, placed.feed_nodes, placed.result_nodes)
    assert counted.total == evaluate(captured.graph, plan)


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("seed", range(3))
def test_random_plans(case: Any, workers: int, seed: int) -> None:
    captured, x, expected = case
    check(captured, x, expected, random_plans.random_plan(captured.graph, workers, seed))


@pytest.mark.parametrize("workers", [3, 4])
def test_found_plans(case: Any, workers: int) -> None:
    """No device holds more than its part."""
    captured, x, expected = case
    plan = find_plan(captured.graph, imagined(workers))
    assert not plan.layouts[next(iter(r for r in plan.layouts if r.node == "w"))].replicated
    check(captured, x, expected, plan)
    held = dict.fromkeys(plan.machine.devices, 0)
    for node in apply_plan(captured.graph, plan).graph_def.node:
        if node.op == "Const" and node.attr["dtype"].type == tf.float64.as_datatype_enum:
            held[node.device] += tf.make_ndarray(node.attr["value"].tensor).size
    (weight,) = (n.outputs[0].size for n in captured.graph if n.op == WEIGHT)
    assert sum(held.values()) == weight
    assert max(held.values()) <= 1.35 * weight / workers  # 14 or 15 rows in 4 parts


@pytest.mark.parametrize(
    "value, op",
    [
        (R.randn(12, 11), WEIGHT),
        (R.randn(12, 11).astype("float16"), CONST),  # 264 bytes
        (R.randn(24, 24).astype("float16"), WEIGHT),
        (R.randn(8, 16), CONST),  # 1024 bytes
        (np.full((64, 64), 0.5), CONST),  # nothing to save
        (np.full((64, 64), np.nan), WEIGHT),  # equal to nothing
        (R.randint(0, 9, (64, 64)), CONST),  # indices
    ],
)
def test_which_constants_are_weights(value: np.ndarray, op: str) -> None:
    with tf.Graph().as_default() as graph:
        tf.abs(
            tf.compat.v1.placeholder(value.dtype, value.shape, "x") + tf.constant(value, name="w"),
            "y",
        )
    assert capture_graph_def(graph.as_graph_def(), ["y"]).graph.nodes["w"].op == op


def test_what_runs_whole_reads_a_whole_weight() -> None:
    """Nothing is cut that would be brought together again in every step."""

    def body(x: Any, w: Any) -> None:
        tf.abs(tf.raw_ops.LowerBound(sorted_inputs=x, values=w), "y")

    with tf.Graph().as_default() as graph:
        body(tf.compat.v1.placeholder(tf.float64, [20, 20]), tf.constant(R.randn(20, 20), name="w"))
    captured = capture_graph_def(graph.as_graph_def(), ["y"])
    plan = find_plan(captured.graph, imagined(2))
    assert [w.op for w in plan.whole.values()] == ["LowerBound"]
    (layout,) = (plan.layouts[r] for r in plan.layouts if r.node == "w")
    assert layout.home
    placed = apply_plan(captured.graph, plan)
    counted = count_communication(placed.graph_def, placed.feed_nodes, placed.result_nodes)
    assert counted.total == plan.predicted_bytes


def test_a_wish_for_copies() -> None:
    """Every worker with a whole copy moves nothing."""
    captured, expected = frozen(*CASES["matrix"])
    wishes = {"w": (None, None), "x": ("d0d1", None), "y": ("d0d1", None)}
    plan = find_plan(captured.graph, imagined(4), constraints=wishes)
    assert plan.predicted_bytes == 0
    check(captured, X, expected, plan)
