"""Small training steps over plain variables, as (function, arguments), for rewriting tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

Step = tuple[Callable[..., Any], list[np.ndarray], list[tf.Variable]]


def _variables(shapes: list[tuple[int, ...]], rng: np.random.Generator) -> list[tf.Variable]:
    with tf.device("/device:CPU:0"):
        return [tf.Variable(rng.normal(size=s) * 0.3, dtype=tf.float64) for s in shapes]


def mlp() -> Step:
    rng = np.random.default_rng(0)
    weights = _variables([(6, 5), (5,), (5, 7), (7,)], rng)
    slots = _variables([tuple(w.shape) for w in weights], rng)
    with tf.device("/device:CPU:0"):
        count = tf.Variable(0, dtype=tf.int64)

    def step(x: tf.Tensor, y: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            h = tf.nn.relu(tf.nn.bias_add(tf.matmul(x, weights[0]), weights[1]))
            logits = tf.nn.bias_add(tf.matmul(h, weights[2]), weights[3])
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            loss = tf.reduce_mean(each) + 0.01 * tf.reduce_sum(tf.square(weights[0]))
        gradients = tape.gradient(loss, weights)
        count.assign_add(1)
        for w, m, g in zip(weights, slots, gradients, strict=True):
            m.assign(0.9 * m + g)
            w.assign_sub(0.1 * m / tf.cast(count, tf.float64))
        return loss, logits

    x = rng.normal(size=(7, 6))
    y = rng.integers(0, 7, size=(7,))
    return step, [x, y], [*weights, *slots, count]


def regression() -> Step:
    rng = np.random.default_rng(2)
    weights = _variables([(6, 5), (5,), (5, 3)], rng)
    slots = _variables([tuple(w.shape) for w in weights], rng)
    with tf.device("/device:CPU:0"):
        count = tf.Variable(0, dtype=tf.int64)

    def step(x: tf.Tensor, y: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            h = tf.tanh(tf.nn.bias_add(tf.matmul(x, weights[0]), weights[1]))
            out = tf.matmul(h, weights[2])
            loss = tf.reduce_mean(tf.square(out - y)) + 0.01 * tf.nn.l2_loss(weights[0])
        gradients = tape.gradient(loss, weights)
        count.assign_add(1)
        for w, m, g in zip(weights, slots, gradients, strict=True):
            m.assign(0.9 * m + g)
            w.assign_sub(0.1 * m / tf.cast(count, tf.float64))
        return loss, out, tf.reduce_max(out, 0)

    return step, [rng.normal(size=(7, 6)), rng.normal(size=(7, 3))], [*weights, *slots, count]


def conv() -> Step:
    rng = np.random.default_rng(1)
    weights = _variables([(3, 3, 2, 4), (3, 3, 4, 3), (3, 5)], rng)

    def step(x: tf.Tensor, y: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            h = tf.nn.relu(tf.nn.conv2d(x, weights[0], 2, "SAME"))
            h = tf.nn.max_pool2d(h, 2, 1, "SAME")
            h = tf.nn.conv2d(tf.pad(h, [[0, 0], [1, 1], [1, 1], [0, 0]]), weights[1], 1, "VALID")
            logits = tf.matmul(tf.reduce_mean(h, [1, 2]), weights[2])
            loss = tf.reduce_mean(tf.square(logits - y))
        for w, g in zip(weights, tape.gradient(loss, weights), strict=True):
            w.assign_sub(0.1 * g)
        return loss

    return step, [rng.normal(size=(3, 9, 7, 2)), rng.normal(size=(3, 5))], weights


STEPS: dict[str, Callable[[], Step]] = {"mlp": mlp, "conv": conv, "regression": regression}
