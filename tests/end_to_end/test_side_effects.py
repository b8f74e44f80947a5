"""Counters, moving averages and metrics: once in a step, however many devices run it."""

from __future__ import annotations

import numpy as np
import tf_keras as keras

from tests.end_to_end import oracle

R = np.random.RandomState(0)
STEPS, K = 7, 4
X, Y = R.rand(STEPS * 8, 6).astype("float32"), R.rand(STEPS * 8, 5).astype("float32")


class Counting(keras.layers.Layer):
    """Passes its input on, and counts its calls."""

    def build(self, shape):
        self.calls = self.add_weight(name="calls", shape=(), dtype="int64", trainable=False)
        super().build(shape)

    def call(self, x):
        self.calls.assign_add(1)
        return x


def counted() -> keras.Model:
    model = keras.Sequential(
        [
            keras.layers.Input((6,)),
            keras.layers.Dense(10, name="hidden"),
            Counting(name="counting"),
            keras.layers.BatchNormalization(momentum=0.9, name="norm"),
            keras.layers.Dense(5, name="head"),
        ]
    )
    optimizer = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9)
    model.compile(optimizer, "mse", metrics=[keras.metrics.MeanSquaredError("error")])
    return model


def test_once_in_every_step():
    model = oracle.check(counted, (X, Y), K, batch=8)
    assert int(model.get_layer("counting").calls) == STEPS
    assert int(model.optimizer.iterations) == STEPS
    assert int(model._train_counter) == STEPS
    for metric in model.metrics:  # the loss and the error: every row once
        assert float(metric.count) == len(X)

    model.evaluate(X[:16], Y[:16], batch_size=8, verbose=0)
    assert int(model.get_layer("counting").calls) == STEPS + 2
    assert int(model.optimizer.iterations) == STEPS
    model.predict(X[:24], batch_size=8, verbose=0)
    assert int(model.get_layer("counting").calls) == STEPS + 5
