"""Tables of a placed step: what each device does, what moves between them."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tofu_tf.pipeline import partition
from tofu_tf.plan.plans import Plan
from tofu_tf.report.counting import count_communication, edge_nodes
from tofu_tf.report.devices import device_shares
from tofu_tf.report.tables import (
    count_text,
    devices_table,
    plan_table,
    receivers_table,
    show,
    text_of,
)


def step_of() -> graph_pb2.GraphDef:
    """A training step of one layer on a variable, as somebody exports it."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, (8, 24), "x")
        w = tf.Variable(np.zeros((24, 16), np.float32), name="w", shape=(24, 16))
        y = tf.matmul(x, w)
        loss = tf.reduce_sum(y * y, name="loss")
        gradient = tf.gradients(loss, w)[0]
        w.assign_sub(gradient, name="step")
    return graph.as_graph_def()


@pytest.fixture(scope="module")
def placed() -> tuple[graph_pb2.GraphDef, Plan]:
    targets = [n.name for n in step_of().node if n.op == "AssignSubVariableOp"]
    return partition(
        step_of(), fetches=["loss"], targets=targets, machine=2, constraints={"w": (None, "d0")}
    )


def test_the_devices(placed: tuple[graph_pb2.GraphDef, Plan], golden: Callable[..., None]) -> None:
    graph_def, plan = placed
    # what initialises variables is no part of a step
    graph_def = tf.compat.v1.graph_util.extract_sub_graph(graph_def, ["loss", "step"])
    feeds, _ = edge_nodes(graph_def)
    counted = count_communication(graph_def, feeds)
    shares = device_shares(graph_def, counted)
    assert [s.variable_bytes for s in shares.devices] == [24 * 8 * 4] * 2
    assert not shares.unknown
    assert not shares.uncounted
    # Forward and gradient product, halved by the cut, and what is element-wise or reduces.
    products = 2 * (2 * 8 * 24 * 16) // 2
    assert all(products <= s.flops < 1.2 * products for s in shares.devices)
    assert sum(s.sent for s in shares.devices) == counted.total == plan.predicted_bytes
    tables = (plan_table(plan), devices_table(shares), receivers_table(counted))
    golden(text_of(*tables), "tables")


def test_what_is_unknown_is_named() -> None:
    with tf.Graph().as_default() as graph, tf.device("/device:CPU:0"):
        x = tf.compat.v1.placeholder(tf.float32, (None, 4), "x")
        tf.raw_ops.BesselI0(x=tf.nn.relu(x, name="relu"), name="odd")
    shares = device_shares(graph.as_graph_def(), count_communication(graph.as_graph_def()))
    assert shares.unknown == ("relu:0", "odd:0")
    text = text_of(devices_table(shares))
    assert "of unknown size, counted as nothing: relu:0, odd:0" in text
    assert "without a count of FLOPs: BesselI0 (1), Relu (1)" in text


def test_without_a_terminal_text_is_plain_and_of_one_width(placed) -> None:
    out = io.StringIO()
    show(plan_table(placed[1]), file=out)
    assert out.getvalue() == text_of(plan_table(placed[1]))
    assert "\x1b" not in out.getvalue()
    narrow = text_of(plan_table(placed[1]), width=60)
    assert max(map(len, narrow.splitlines())) <= 60


@pytest.mark.parametrize(
    "n, text", [(0, "0"), (999, "999"), (12_300, "12.30 K"), (4_560_000_000, "4.56 G")]
)
def test_counts(n: int, text: str) -> None:
    assert count_text(n) == text
