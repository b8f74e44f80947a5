"""The text of rewritten graphs under plans made by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.rewrite.random_plans import run_placed
from tofu_tf.capture.captured import Captured
from tofu_tf.capture.functions import capture_function
from tofu_tf.graph import traversal
from tofu_tf.graph.ir import CONST, PLACEHOLDER, VARIABLE, Graph
from tofu_tf.plan.layouts import Layout
from tofu_tf.plan.machine import imagined
from tofu_tf.plan.plans import Plan, Strategy
from tofu_tf.rewrite.rewriting import rewrite
from tofu_tf.rewrite.text import placed_text

Cuts = tuple[int | None, ...]


def plan_of(
    graph: Graph,
    workers: int,
    layouts: Mapping[str, Cuts | str],
    chosen: Mapping[str, tuple[str | None, ...] | str],
    bodies: Mapping[str, str] | None = None,
) -> Plan:
    """A plan from layouts by op or variable name and strategies by op; the rest is replicated."""
    machine = imagined(workers)
    whole = (None,) * len(machine.factors)
    versions = traversal.version_variables(graph)
    plan_layouts, strategies = {}, {}
    for node in graph:
        for ref in node.refs:
            cuts = layouts.get(
                versions.get(ref, node.name if node.op == PLACEHOLDER else node.op), whole
            )
            plan_layouts[ref] = Layout(whole, True) if cuts == "home" else Layout(cuts)
        if node.op not in (CONST, PLACEHOLDER, VARIABLE):
            axes = chosen.get(node.op, whole)
            body = (bodies or {}).get(node.op, "")
            strategies[node.name] = (
                Strategy(whole, True) if axes == "home" else Strategy(axes, body=body)
            )
    return Plan(machine, plan_layouts, strategies, "")


def matmul_step() -> tuple[Callable[..., Any], list[np.ndarray]]:
    rng = np.random.default_rng(0)
    return (lambda a, b: tf.matmul(a, b)), [rng.normal(size=(5, 6)), rng.normal(size=(6, 4))]


def update_step() -> tuple[Callable[..., Any], list[np.ndarray]]:
    with tf.device("/device:CPU:0"):
        w = tf.Variable(np.random.default_rng(1).normal(size=(64, 96)), name="w")

    def step(x: tf.Tensor) -> tf.Tensor:
        y = tf.tanh(x) @ w
        w.assign_sub(tf.ones_like(w) * 0.5)
        return tf.reduce_sum(y)

    return step, [np.random.default_rng(2).normal(size=(6, 64))]


CASES: dict[str, tuple[Callable[..., Any], int, dict[str, Any], dict[str, Any]]] = {
    # rows of a, whole b
    "matmul_rows": (
        matmul_step,
        2,
        {"tensors_0": (0,), "MatMul": (0,)},
        {"MatMul": ("i",)},
    ),
    # partial sums over an inner dimension that does not divide, wanted whole on each of three
    "matmul_inner_to_all": (
        matmul_step,
        3,
        {"tensors_0": (1,), "tensors_1": (0,)},
        {"MatMul": ("k",)},
    ),
    # partial sums that end up in parts: a reduce-scatter
    "matmul_inner_to_rows": (
        matmul_step,
        2,
        {"tensors_0": (1,), "tensors_1": (0,), "MatMul": (0,)},
        {"MatMul": ("k",)},
    ),
    # rows of x, a weight cut along its columns that every worker gathers, gated by the owner's Tanh
    "gathered_weight": (
        update_step,
        2,
        {"tensors_0": (0,), "Tanh": (0,), "MatMul": (0,), "w": (1,), "Sum": "home"},
        {"Tanh": ("i0",), "MatMul": ("i",), "AssignSubVariableOp": ("i1",), "Sum": ("i0",)},
    ),
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_text(case: str, golden: Callable[..., None]) -> None:
    make, workers, layouts, chosen = CASES[case]
    step, feeds = make()
    captured: Captured = capture_function(step, [tf.TensorSpec(f.shape, f.dtype) for f in feeds])
    placed = rewrite(captured.graph, plan_of(captured.graph, workers, layouts, chosen))
    golden(placed_text(placed.graph_def), case)
    got, _ = run_placed(placed, captured, feeds)
    np.testing.assert_allclose(got[0], step(*map(tf.constant, feeds)), rtol=1e-12)


def test_the_same_text_twice() -> None:
    step, feeds = matmul_step()
    texts = set()
    for _ in range(2):
        captured = capture_function(step, [tf.TensorSpec(f.shape, f.dtype) for f in feeds])
        plan = plan_of(captured.graph, 3, {"MatMul": (0,)}, {"MatMul": ("j",)})
        texts.add(placed_text(rewrite(captured.graph, plan).graph_def))
    assert len(texts) == 1
