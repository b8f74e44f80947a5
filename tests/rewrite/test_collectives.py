"""Collectives in rewritten steps: the numbers of one device, the bytes that are predicted."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tests.rewrite import random_plans as plans
from tests.rewrite import steps
from tofu_tf.capture.functions import capture_function
from tofu_tf.cost.evaluation import evaluate
from tofu_tf.graph.ir import Ref
from tofu_tf.pipeline import apply_plan, find_plan
from tofu_tf.plan.collectives import Choosing
from tofu_tf.plan.layouts import Layout
from tofu_tf.plan.machine import imagined
from tofu_tf.plan.plans import Plan, Strategy
from tofu_tf.report.communication import moved_by_kind
from tofu_tf.report.counting import count_communication
from tofu_tf.rewrite.placed import Placed


@pytest.fixture(scope="module", params=sorted(steps.STEPS))
def case(request: pytest.FixtureRequest) -> Any:
    """A captured step, its feeds, and outputs and variables after one run on one device."""
    step, feeds, variables = steps.STEPS[request.param]()
    captured = capture_function(step, [tf.TensorSpec(f.shape, f.dtype) for f in feeds])
    before = [v.numpy() for v in variables]
    outputs = [t.numpy() for t in tf.nest.flatten(tf.function(step)(*map(tf.constant, feeds)))]
    after = {name: v.numpy() for name, v in captured.variables.items()}
    for v, value in zip(variables, before, strict=True):
        v.assign(value)
    return captured, feeds, outputs, after


def collectives(graph_def: graph_pb2.GraphDef) -> list[Any]:
    return [node for node in graph_def.node if node.op.startswith("Collective")]


def assert_ordered(placed: Placed) -> None:
    """One order on all devices, every member an effect, every key once."""
    nodes = {node.name: node for node in placed.graph_def.node}
    members = collectives(placed.graph_def)
    assert {node.name for node in members} <= set(placed.effects)
    number = {}
    chains = defaultdict(list)
    for node in members:
        key = tuple(int(tf.make_ndarray(nodes[i].attr["value"].tensor)) for i in node.input[1:4])
        number.setdefault(key, len(number))
        assert key[0] == len(placed.groups[key[1]])
        assert node.device in placed.groups[key[1]]
        chains[node.device].append((number[key], node))
    for chain in chains.values():
        assert [n for n, _ in chain] == sorted({n for n, _ in chain})
        for (_, a), (_, b) in itertools.pairwise(chain):
            assert f"^{a.name}" in b.input


@pytest.mark.parametrize("workers", [2, 3, 4, 6])
@pytest.mark.parametrize("seed", range(4))
def test_equals_one_device(case: Any, workers: int, seed: int) -> None:
    captured, feeds, outputs, after = case
    plan = plans.random_plan(captured.graph, workers, seed)
    placed = apply_plan(captured.graph, plan, "collective")
    assert_ordered(placed)
    counted = count_communication(placed.graph_def, placed.feed_nodes, placed.result_nodes)
    choosing = Choosing("CPU")
    assert counted.total == evaluate(captured.graph, plan, choosing=choosing) > 0
    moved = moved_by_kind(captured.graph, plan, choosing=choosing)
    assert sum(m.nbytes for m in moved) == counted.total
    assert any(m.collective for m in moved) == bool(placed.groups)
    got, variables = plans.run_placed(placed, captured, feeds)
    for a, b in zip(got, outputs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
    for name, value in after.items():
        np.testing.assert_allclose(variables[name], value, rtol=1e-10, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("workers", [2, 3, 4, 6, 8])
def test_found_plans(case: Any, workers: int) -> None:
    captured, *_ = case
    plan = find_plan(captured.graph, imagined(workers), small_bytes=8)
    placed = apply_plan(captured.graph, plan, "collective")
    counted = count_communication(placed.graph_def, placed.feed_nodes, placed.result_nodes)
    assert counted.total == evaluate(captured.graph, plan, choosing=Choosing("CPU")) > 0


@pytest.mark.parametrize(
    "a, b, axis, out, op, nbytes",
    [
        # i, k and j are the axes of a [4, 6] x [6, 8] product on two devices.
        (1, 0, "k", None, "CollectiveReduceV2", 2 * 32),
        (0, 0, "i", 0, "CollectiveGatherV2", 48),
        (0, None, "j", 1, "CollectiveGatherV2", 24),
        (1, None, "j", 1, "CollectiveGatherV2", 24),
        (0, None, "i", 1, "CollectiveAllToAllV2", 16),
        (None, 0, "j", 1, "CollectiveAllToAllV2", 24),
        ("home", None, "i", 0, None, 12),
        (1, 0, "k", 0, None, 2 * 16),  # reduce-scatter has no kernel on CPUs
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "complex64"])
def test_a_product(a, b, axis, out, op, nbytes, dtype) -> None:
    rng = np.random.default_rng(0)
    left, right = ((10 * rng.normal(size=s)).astype(dtype) for s in [(4, 6), (6, 8)])
    captured = capture_function(tf.matmul, [tf.TensorSpec(x.shape, x.dtype) for x in (left, right)])
    graph = captured.graph
    product = graph.outputs[0]
    refs = [graph.nodes[product.node].inputs[i] for i in range(2)]

    def layout(cut: int | str | None) -> Layout:
        return Layout((None,), home=True) if cut == "home" else Layout((cut,))

    layouts = {Ref(refs[0].node): layout(a), Ref(refs[1].node): layout(b), product: layout(out)}
    plan = Plan(imagined(2), layouts, {product.node: Strategy((axis,))}, "")
    placed = apply_plan(graph, plan, "collective")
    counted = count_communication(placed.graph_def, placed.feed_nodes, placed.result_nodes)
    if dtype == "complex64":
        op = None  # of no collective
        if out is None:
            nbytes //= 2  # nobody reads the second device's copy
    assert {node.op for node in collectives(placed.graph_def)} == ({op} if op else set())
    assert counted.total == nbytes * np.dtype(dtype).itemsize
    (got,), _ = plans.run_placed(placed, captured, [left, right])
    np.testing.assert_allclose(got, left @ right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows, some", [(8, True), (7, False)])
def test_unequal_shards_go_point_to_point(rows: int, some: bool) -> None:
    x = np.ones((rows, 6))
    captured = capture_function(
        lambda x: tf.matmul(x, tf.ones((6, 4), tf.float64)), [tf.TensorSpec(x.shape, x.dtype)]
    )
    graph = captured.graph
    product = graph.outputs[0]
    (feed,) = graph.inputs
    layouts = {ref: Layout((None, None)) for ref in graph.refs()}
    layouts |= {Ref(feed): Layout((0, 0)), product: Layout((None, None))}
    plan = Plan(imagined(4), layouts, {product.node: Strategy((None, None))}, "")
    placed = apply_plan(graph, plan, "collective")
    assert bool(collectives(placed.graph_def)) == bool(placed.groups) == some


def test_keys_are_never_used_twice(case: Any) -> None:
    captured, *_ = case
    plan = find_plan(captured.graph, imagined(4), small_bytes=8, algorithm="data-parallel")
    keys = [set(apply_plan(captured.graph, plan, "collective").groups) for _ in range(3)]
    assert all(keys)
    assert len(set.union(*keys)) == sum(map(len, keys))
