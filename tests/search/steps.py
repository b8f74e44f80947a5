"""Small steps as Graphs: a plain product of matrices, a perceptron."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import tensorflow as tf

from tests.graph.building import fed, graph_of
from tofu_tf.graph.ir import Graph


def variable(name: str, shape: Sequence[int], dtype: tf.DType = tf.float32) -> tf.Tensor:
    """The handle of a variable."""
    return tf.raw_ops.VarHandleOp(dtype=dtype, shape=shape, shared_name=name, name=name)


def read(handle: tf.Tensor, shape: Sequence[int], dtype: tf.DType = tf.float32) -> tf.Tensor:
    value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
    value.set_shape(shape)
    return value


def product(m: int, k: int, n: int) -> Graph:
    """``y = a @ w`` with a fed and w a variable."""

    def build() -> tf.Tensor:
        return tf.matmul(fed("a", (m, k)), read(variable("w", (k, n)), (k, n)), name="y")

    return graph_of(build, ["a"], ["y"])


def inference(batch: int, sizes: Sequence[int]) -> Graph:
    """``relu(... relu(x @ w0) ...) @ wn``."""

    def build() -> tf.Tensor:
        h = fed("x", (batch, sizes[0]))
        for i, (a, b) in enumerate(itertools.pairwise(sizes)):
            h = tf.matmul(tf.nn.relu(h) if i else h, read(variable(f"w{i}", (a, b)), (a, b)))
        return tf.identity(h, name="out")

    return graph_of(build, ["x"], ["out"])


def training(batch: int, sizes: Sequence[int], names: str = "w") -> Graph:
    """One step of gradient descent with momentum on a perceptron, with a counter of steps."""

    def build() -> list[tf.Tensor | tf.Operation]:
        x, y = fed("x", (batch, sizes[0])), fed("y", (batch, sizes[-1]))
        handles, weights, h = [], [], x
        for i, (a, b) in enumerate(itertools.pairwise(sizes)):
            handles.append(variable(f"{names}{i}", (a, b)))
            weights.append(read(handles[-1], (a, b)))
            h = tf.matmul(tf.nn.relu(h) if i else h, weights[-1])
        loss = tf.reduce_mean(tf.square(h - y), name="loss")
        steps = variable("steps", (), tf.int64)
        one = tf.constant(1, tf.int64)
        effects = [tf.raw_ops.AssignAddVariableOp(resource=steps, value=one, name="count")]
        gradients = tf.gradients(loss, weights)
        for i, (handle, weight, g) in enumerate(zip(handles, weights, gradients, strict=True)):
            slot = variable(f"{names}{i}/momentum", weight.shape)
            moved = 0.9 * read(slot, weight.shape) + g
            effects += [
                tf.raw_ops.AssignVariableOp(resource=slot, value=moved),
                tf.raw_ops.AssignSubVariableOp(resource=handle, value=0.1 * moved),
            ]
        return [loss, *effects]

    return graph_of(build, ["x", "y"])
