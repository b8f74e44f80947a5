"""Exported GraphDefs: frozen weights, VarHandleOps, an unknown batch, and bad requests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tests.graph.building import fed
from tests.graph.running import Running
from tofu_tf.capture.graph_defs import capture_graph_def
from tofu_tf.errors import CaptureError, GraphError
from tofu_tf.graph.ir import TensorSpec

raw = tf.raw_ops


def exported() -> graph_pb2.GraphDef:
    """A frozen layer, a trained one, and an operation that trains it."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, (None, 3), "x")
        frozen = tf.identity(
            tf.constant(np.eye(3, 4, dtype=np.float32), name="frozen"), "frozen/read"
        )
        h = tf.matmul(x, frozen, name="hidden")
        w = raw.VarHandleOp(dtype=tf.float32, shape=(4, 2), shared_name="out/kernel", name="kernel")
        y = tf.matmul(h, raw.ReadVariableOp(resource=w, dtype=tf.float32), name="y")
        flat = tf.reshape(y, [tf.shape(y)[0] * 2], name="flat")
        with tf.control_dependencies([flat]):
            down = raw.AssignSubVariableOp(
                resource=w, value=tf.matmul(h, y, transpose_a=True), name="down"
            )
        tf.group(down, name="train")
        fed("unused", (None, None))
    return graph.as_graph_def()


def test_inference_and_training() -> None:
    captured = capture_graph_def(exported(), ["flat:0"], ["train"], batch=5)
    graph = captured.graph
    assert graph.inputs == ("x",)
    assert graph.nodes["x"].outputs == (TensorSpec((5, 3), "float32"),)
    assert graph.nodes["hidden"].inputs[1].node == "frozen"
    assert list(graph.variables) == ["out/kernel"]
    assert graph.effects == ("down",)
    x = np.arange(15, dtype=np.float32).reshape(5, 3) / 8
    w = np.arange(8, dtype=np.float32).reshape(4, 2)
    (out,), state = Running(graph).step([x], {"out/kernel": w})
    hidden = x @ np.eye(3, 4, dtype=np.float32)
    np.testing.assert_array_equal(out, (hidden @ w).ravel())
    np.testing.assert_array_equal(state["out/kernel"], w - hidden.T @ (hidden @ w))


def test_only_what_is_fetched() -> None:
    captured = capture_graph_def(exported(), ["hidden"], shapes={"x": (2, 3)})
    assert set(captured.graph.nodes) == {"x", "frozen", "hidden"}
    assert captured.output_structure == (tf.TensorSpec((2, 4), tf.float32),)


@pytest.mark.parametrize(
    ("fetches", "options", "error", "message"),
    [
        (["flat"], {}, CaptureError, r"x \(None, 3\)"),
        ([], {}, GraphError, "at least one"),
        (["probs", "a/hidden:0"], {"batch": 2}, GraphError, "perhaps hidden"),
        (["flat"], {"shapes": {"z": (2,)}}, GraphError, "no needed placeholder"),
        (["flat"], {"shapes": {"x": (2, 4)}}, GraphError, r"one that fits \(None, 3\)"),
    ],
)
def test_bad_requests(fetches: Any, options: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        capture_graph_def(exported(), fetches, **options)


def test_calls_are_inlined() -> None:
    @tf.function
    def inner(x: Any) -> Any:
        return tf.tanh(x)

    with tf.Graph().as_default() as graph:
        tf.identity(inner(fed("x", (2, 2))), name="out")
    captured = capture_graph_def(graph.as_graph_def(), ["out:0"])
    assert {n.op for n in captured.graph} == {"Placeholder", "Tanh"}


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([("a", "Nope", []), ("b", "Neither", [])], "Neither .*; Nope"),
        ([("a", "NoOp", []), ("b", "Abs", ["gone", "^lost"])], r"b <- gone; b <- \^lost"),
        ([("a", "NoOp", []), ("b", "Abs", ["a:3"])], "graph: "),
        ([("b", "NoOp", []), ("b", "NoOp", [])], "several nodes of one name"),
    ],
)
def test_bad_graphs(nodes: Any, message: str) -> None:
    broken = graph_pb2.GraphDef()
    for name, op, inputs in nodes:
        broken.node.add(name=name, op=op, input=inputs)
    with pytest.raises(GraphError, match=message):
        capture_graph_def(broken, ["b"])
