"""Shape arithmetic becomes constants, bit for bit; data and random numbers do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.graph.building import fed
from tofu_tf.capture.folding import fold
from tofu_tf.capture.shaping import is_static

raw = tf.raw_ops


def folded(build: Callable[[], Any], **options: Any) -> tuple[dict[str, Any], Any]:
    with tf.Graph().as_default() as graph:
        raw.Identity(input=build(), name="out")
    graph_def, shapes = fold(graph.as_graph_def(), ["out"], **options)
    return {n.name: n for n in graph_def.node}, shapes


def flattened() -> tf.Tensor:
    x = fed("x", (4, 3, 2))
    rows = raw.StridedSlice(
        input=raw.Shape(input=x), begin=[0], end=[1], strides=[1], shrink_axis_mask=1
    )
    return raw.Reshape(tensor=x, shape=tf.stack([rows, -1]), name="reshape")


def sizes() -> tf.Tensor:
    x = fed("x", (4, 3))
    n = raw.Size(input=x) + raw.Rank(input=x)
    shapes = raw.ShapeN(input=[x, tf.transpose(x)])
    size = tf.add_n([n + shapes[0][0] * 100, shapes[1][0] * 1000])
    return tf.add(fed("y", (), tf.int32), size, name="added")


def of_a_variable() -> tf.Tensor:
    h = raw.VarHandleOp(dtype=tf.float32, shape=(5, 7), shared_name="v")
    return tf.add(fed("y", (5, 7)), raw.Fill(dims=raw.VariableShape(input=h), value=2.0), "added")


def twice() -> tf.Tensor:
    """A shape that is known only once another one is."""
    x = fed("x", (6, 4))
    flat = tf.reshape(x, tf.py_function(lambda: 24, [], tf.int32) * 0 + [24])
    return tf.reshape(flat, raw.Shape(input=x), name="back")


def of_unknown_size() -> tf.Tensor:
    """Which axes were broadcast: how many depends on the constants that it is made of."""
    axes = raw.BroadcastGradientArgs(s0=[4, 1, 3], s1=[4, 5, 3]).r0
    return raw.Sum(input=fed("x", (4, 5, 3)), axis=axes, keep_dims=True, name="sum")


@pytest.mark.parametrize(
    ("build", "node", "operand", "value"),
    [
        (flattened, "reshape", 1, [4, -1]),
        (sizes, "added", 1, 12 + 2 + 400 + 3000),
        (of_a_variable, "added", 1, np.full((5, 7), 2, np.float32)),
        (twice, "back", 1, [6, 4]),
        (of_unknown_size, "sum", 1, [1]),
    ],
)
def test_folds(build: Callable[[], Any], node: str, operand: int, value: Any) -> None:
    nodes, shapes = folded(build)
    const = nodes[nodes[node].input[operand]]
    assert const.op == "Const"
    np.testing.assert_array_equal(tf.make_ndarray(const.attr["value"].tensor), value)
    assert shapes[const.name][0].shape == np.shape(value)
    assert is_static(shapes["out"])


def noise() -> tf.Tensor:
    return raw.RandomUniform(shape=[2], dtype=tf.float32, seed=1, seed2=2, name="kept")


def large() -> tf.Tensor:
    return raw.Fill(dims=[64, 64], value=1.0, name="kept")


def weight() -> tf.Tensor:
    return tf.identity(tf.constant([1.0, 2.0], name="weight"), name="kept")


def data() -> tf.Tensor:
    return tf.abs(fed("x"), name="kept")


@pytest.mark.parametrize("build", [noise, large, weight, data])
def test_keeps(build: Callable[[], Any]) -> None:
    nodes, _ = folded(build, size_limit=1024)
    assert list(nodes["out"].input) == ["kept"]


def test_constants_keep_what_their_sources_wait_for() -> None:
    def build() -> tf.Tensor:
        with tf.control_dependencies([tf.no_op("pivot")]):
            inner = tf.constant(2.0, name="inner")
        return tf.exp(inner, name="exp")

    nodes, _ = folded(build)
    assert nodes["out"].op == "Const"
    assert list(nodes["out"].input) == ["^pivot"]
