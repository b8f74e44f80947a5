"""Baselines are plans like any other: they check, run, and what they move is counted alike."""

from __future__ import annotations

import functools

import pytest
import tensorflow as tf

from tests.rewrite import steps as captured_steps
from tests.search import steps
from tofu_tf.capture.functions import capture_function
from tofu_tf.graph.ir import Graph, Ref
from tofu_tf.pipeline import apply_plan
from tofu_tf.plan.layouts import Layout
from tofu_tf.plan.machine import imagined
from tofu_tf.plan.plans import Plan
from tofu_tf.report.counting import count_communication
from tofu_tf.search.algorithms import ALGORITHMS
from tofu_tf.search.checking import check_plan
from tofu_tf.search.planning import find_plan

SIZES = (96, 160, 64)
# Their layouts and ways are among those that the other searches choose from.
SAME_RULES = ("all-row", "spartan", "equal-chop", "icml18")


@functools.cache
def graph_named(name: str) -> Graph:
    if name in captured_steps.STEPS:
        step, feeds, _ = captured_steps.STEPS[name]()
        return capture_function(step, [tf.TensorSpec(f.shape, f.dtype) for f in feeds]).graph
    return {
        "training": lambda: steps.training(64, SIZES),
        "large batch": lambda: steps.training(4096, SIZES),
        "inference": lambda: steps.inference(80, (240, 480, 240)),
        "uneven": lambda: steps.training(33, (35, 9, 50)),
    }[name]()


@functools.cache
def plan_of(name: str, k: int, algorithm: str) -> Plan:
    small = 8 if name in captured_steps.STEPS else 1024
    return find_plan(graph_named(name), imagined(k), algorithm=algorithm, small_bytes=small)


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
@pytest.mark.parametrize("k", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("name", ["mlp", "conv", "regression"])
def test_counted_bytes_are_the_predicted_ones(name: str, k: int, algorithm: str) -> None:
    graph, plan = graph_named(name), plan_of(name, k, algorithm)
    check_plan(plan, graph, imagined(k))
    placed = apply_plan(graph, plan)
    counted = count_communication(
        placed.graph_def, feeds=placed.feed_nodes, results=placed.result_nodes
    )
    assert counted.total == plan.predicted_bytes


@pytest.mark.parametrize("algorithm", SAME_RULES)
@pytest.mark.parametrize("k", [2, 4, 6, 8])
@pytest.mark.parametrize("name", ["training", "large batch", "inference", "uneven", "mlp", "conv"])
def test_joint_is_never_above_those_of_the_same_rules(name: str, k: int, algorithm: str) -> None:
    best, plan = plan_of(name, k, "joint"), plan_of(name, k, algorithm)
    assert best.gap == 0
    assert best.search_bytes <= plan_of(name, k, "recursion").search_bytes
    assert best.search_bytes <= plan.search_bytes


@pytest.mark.parametrize("k", [2, 4, 8])
def test_data_parallel_sums_gradients_only(k: int) -> None:
    graph, plan = graph_named("training"), plan_of("training", k, "data-parallel")
    weights = [v for v in graph.variables.values() if v.name in ("w0", "w1")]
    assert all(plan.layouts[v.ref].replicated for v in weights)
    assert set(plan.layouts[Ref("MatMul")].cuts) == {0}
    sums = sum(2 * (k - 1) * v.spec.nbytes for v in weights)
    assert sums <= plan.predicted_bytes <= 1.01 * sums


@pytest.mark.parametrize("k", [2, 4, 8])
def test_fully_sharded_keeps_a_part_of_every_weight(k: int) -> None:
    graph, plan = graph_named("large batch"), plan_of("large batch", k, "fully-sharded")
    for v in graph.variables.values():
        assert set(plan.layouts[v.ref].cuts) == {0} or v.name == "steps"
    assert set(plan.layouts[Ref("MatMul")].cuts) == {0}
    replicated = plan_of("large batch", k, "data-parallel")
    assert plan.predicted_bytes >= replicated.predicted_bytes


@pytest.mark.parametrize("k", [2, 4])
def test_columns_then_rows(k: int) -> None:
    plan = plan_of("inference", k, "megatron")
    every = len(imagined(k).factors)
    assert plan.layouts[Ref("w0")] == Layout((1,) * every)
    assert plan.layouts[Ref("w1")] == Layout((0,) * every)


def test_all_rows() -> None:
    graph, plan = graph_named("training"), plan_of("training", 4, "all-row")
    for ref in graph.refs():
        if graph.spec(ref).nbytes > 1024 and not plan.layouts[ref].replicated:
            assert plan.layouts[ref] == Layout((0, 0))


@pytest.mark.parametrize("algorithm", ["equal-chop", "icml18", "spartan"])
def test_one_dimension_each(algorithm: str) -> None:
    plan = plan_of("training", 8, algorithm)
    assert all(len(set(layout.cuts)) == 1 for layout in plan.layouts.values())
