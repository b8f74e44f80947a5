"""What `tofu_tf.describe` says of a function's and a model's steps."""

from __future__ import annotations

import re

import numpy as np
import tensorflow as tf
import tf_keras

import tofu_tf


def test_a_function() -> None:
    w = tf.Variable(np.ones((32, 32)))
    step = tofu_tf.function(lambda x: x @ w @ tf.transpose(w), devices=2, device_type="CPU")
    concrete = step.get_concrete_function(tf.TensorSpec([64, 32], tf.float64))
    text = tofu_tf.describe(concrete)
    moved = concrete.plan.predicted_bytes
    assert moved > 0
    assert f"({moved} bytes) per step" in text.split("counted communication:")[1]
    assert [f"device:CPU:{i}" in text for i in range(3)] == [True, True, False]


def test_a_model() -> None:
    model = tf_keras.Sequential([tf_keras.layers.Dense(48, input_shape=(40,))])
    model.compile("sgd", "mse")
    batch = np.ones((16, 40)), np.ones((16, 48))
    tofu_tf.distribute(model, 2, device_type="CPU", batch=batch)
    (step,) = model.tofu.steps
    assert "communication by kind" in tofu_tf.describe(step)


def test_what_goes_point_to_point_beside_collectives_is_marked() -> None:
    w = tf.Variable(np.ones((36, 36)))
    options = {"devices": 2, "device_type": "CPU", "lowering": "collective"}
    step = tofu_tf.function(lambda x: x @ w @ tf.transpose(w), **options)
    even = step.get_concrete_function(tf.TensorSpec([64, 36], tf.float64))
    assert re.search(r"^all-gather  ", tofu_tf.describe(even), re.M)
    odd = tofu_tf.function(
        lambda x, y: (x @ w @ tf.transpose(w), tf.transpose(y) @ y),
        constraints={"y": ("d0", None)},
        **options,
    )
    both = odd.get_concrete_function(
        tf.TensorSpec([64, 36], tf.float64), tf.TensorSpec([65, 36], tf.float64)
    )
    text = tofu_tf.describe(both)
    assert re.search(r"^all-gather  ", text, re.M)
    assert re.search(r"^(fetch|reduce-scatter) \(p2p\)", text, re.M)
    assert f"({both.plan.predicted_bytes} bytes)" in text.split("counted communication:")[1]
