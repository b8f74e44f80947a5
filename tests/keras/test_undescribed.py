"""Models with ops that nothing is known of: refused by name, or whole and equal to one device."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from tests.end_to_end import oracle
from tofu_tf import errors

R = np.random.RandomState(0)
ROWS, K = 24, 2
X = R.rand(ROWS, 6, 5).astype("float32")
IDS = R.randint(0, 11, (ROWS, 6))
Y = R.rand(ROWS, 24).astype("float32")


def loop() -> keras.Model:
    """The loop of a recurrent layer takes its weights' handles or values."""
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((6, 5)),
            layers.Dense(16, "tanh"),
            layers.SimpleRNN(12),
            layers.Dense(24),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


def masked() -> keras.Model:
    """The loss is over rows that depend on the data."""

    def loss(y, p):
        kept = tf.boolean_mask(tf.square(y - p), y[:, 0] > 0.3)
        return tf.reduce_mean(kept)

    model = keras.Sequential(
        [keras.layers.Input((6, 5)), keras.layers.Flatten(), keras.layers.Dense(24)]
    )
    model.compile(keras.optimizers.SGD(0.1), loss)
    return model


def printing() -> keras.Model:
    def shown(x):
        tf.print(tf.reduce_sum(x), output_stream="file:///dev/null")
        return x

    model = keras.Sequential(
        [
            keras.layers.Input((6, 5)),
            keras.layers.Flatten(),
            keras.layers.Dense(32, "relu"),
            keras.layers.Lambda(shown),
            keras.layers.Dense(24),
        ]
    )
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


class Distinct(keras.layers.Embedding):
    """Keeps the mean square of the rows of distinct words small: how many are there counts."""

    def call(self, ids):
        distinct, _ = tf.unique(tf.reshape(ids, [-1]))
        rows = tf.gather(self.embeddings, distinct)
        self.add_loss(0.1 * tf.reduce_mean(rows**2))
        return super().call(ids)


def embedded() -> keras.Model:
    """Sizes differ from batch to batch in what the loss adds, and so in the table's gradient."""
    model = keras.Sequential(
        [
            keras.layers.Input((6,), dtype="int64"),
            Distinct(11, 30),
            keras.layers.Flatten(),
            keras.layers.Dense(24),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


class Choosing(keras.layers.Layer):
    """A conditional that prints in one branch stays one; its gradient is one too."""

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight("kernel", (shape[-1], 24))

    def call(self, x: Any) -> Any:
        def then() -> Any:
            tf.print(tf.reduce_sum(x), output_stream="file:///dev/null")
            return tf.tanh(x @ self.kernel)

        return tf.cond(tf.reduce_mean(x) > 0.5, then, lambda: x @ self.kernel)


def choosing() -> keras.Model:
    model = keras.Sequential(
        [keras.layers.Input((6, 5)), keras.layers.Flatten(), Choosing(), keras.layers.Dense(24)]
    )
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


MODELS = {
    "loop": (loop, X),
    "masked": (masked, X),
    "printing": (printing, X),
    "embedded": (embedded, IDS),
    "choosing": (choosing, X),
}


@pytest.mark.parametrize("name", MODELS)
def test_whole_equals_one_device(name: str, caplog: pytest.LogCaptureFixture) -> None:
    make, x = MODELS[name]
    single = oracle.made(make)
    one = oracle.train(single, (x, Y), 8)
    model = oracle.distributed(make, K, undescribed="whole")
    with caplog.at_level(logging.WARNING, "tofu_tf"):
        left = oracle.train(model, (x, Y), 8)
        oracle.assert_equal(left, one, oracle.FLOAT32)
        found, expected = (m.evaluate(x, Y, batch_size=8, verbose=0) for m in (model, single))
        np.testing.assert_allclose(found, expected, 1e-4)
    oracle.assert_steps_hold(model)
    plan = model.tofu.plan
    assert plan.whole
    said = [r.getMessage() for r in caplog.records if "run whole on" in r.getMessage()]
    assert said
    for name in plan.whole:
        assert sum(f"({name})" in text or f"such as {name})" in text for text in said) <= 1
    # what is known is cut as ever
    assert any(not s.home and any(s.axes) for s in plan.strategies.values())


def test_with_collectives() -> None:
    one = oracle.train(oracle.made(loop), (X, Y), 8)
    model = oracle.distributed(loop, K, undescribed="whole", lowering="collective")
    oracle.assert_equal(oracle.train(model, (X, Y), 8), one, oracle.FLOAT32)
    assert model.tofu.plan.whole


@pytest.mark.parametrize("name", ["loop", "printing", "choosing"])
def test_refused_when_asked(name: str) -> None:
    make, x = MODELS[name]
    with pytest.raises(errors.TofuError, match="undescribed='whole'"):
        oracle.train(oracle.distributed(make, K), (x, Y), 8)


def test_a_conditional_says_why_it_is_whole() -> None:
    with pytest.raises(errors.UndescribedError, match=r"If .*: a branch has a side effect"):
        oracle.train(oracle.distributed(choosing, K), (X, Y), 8)


def test_a_size_that_depends_on_data_names_the_remedy() -> None:
    with pytest.raises(errors.CaptureError, match="undescribed='whole'"):
        oracle.train(oracle.distributed(masked, K), (X, Y), 8)
