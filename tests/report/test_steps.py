"""What `tofu_tf.describe` says of a function's and a model's steps."""

from __future__ import annotations

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
