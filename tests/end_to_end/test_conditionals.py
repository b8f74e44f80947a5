"""What calls ``tf.cond`` within a step, Keras or a user: nothing is refused, and all is equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from tests.end_to_end import oracle

L = keras.layers
R = np.random.RandomState(0)
ROWS, BATCH = 30, 6
X = R.rand(ROWS, 22).astype("float32")
IMAGES = R.rand(ROWS, 12, 10, 3).astype("float32")
Y = R.rand(ROWS, 7).astype("float32")
SIGNS = R.choice([-1.0, 1.0], (ROWS, 7)).astype("float32")
BITS = R.randint(0, 2, (ROWS, 7)).astype("float32")
CLASSES = R.randint(0, 7, ROWS)
IDS = R.randint(0, 17, (ROWS, 3))


def mlp(optimizer: Any, loss: Any = "mse", **compiled: Any) -> keras.Model:
    model = keras.Sequential([L.Input((22,)), L.Dense(33, "tanh"), L.Dense(18, "relu"), L.Dense(7)])
    model.compile(optimizer, loss, **compiled)
    return model


def piecewise() -> keras.Model:
    rates = keras.optimizers.schedules.PiecewiseConstantDecay([1, 3], [0.1, 0.05, 0.01])
    return mlp(keras.optimizers.SGD(rates, momentum=0.9))


def cosine() -> keras.Model:
    rates = keras.optimizers.schedules.CosineDecay(
        0.01, 10, alpha=0.1, warmup_target=0.1, warmup_steps=3
    )
    return mlp(keras.optimizers.SGD(rates))


def ema() -> keras.Model:
    return mlp(
        keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2)
    )


def mean_iou() -> keras.Model:
    iou = keras.metrics.MeanIoU(7, sparse_y_pred=False)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return mlp(keras.optimizers.SGD(0.1), loss, metrics=[iou])


def resized(layer: Callable[[], Any]) -> Callable[[], keras.Model]:
    def made() -> keras.Model:
        layers = [L.Conv2D(5, 3, padding="same"), layer(), L.Conv2D(8, 3, activation="relu")]
        model = keras.Sequential(
            [L.Input((12, 10, 3)), *layers, L.GlobalAveragePooling2D(), L.Dense(7)]
        )
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model

    return made


class Accumulating(keras.Model):
    """Applies the sum of the gradients of every two batches."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.seen = tf.Variable(0, dtype=tf.int64, trainable=False, name="seen")
        self.sums = [
            tf.Variable(tf.zeros_like(w), trainable=False, name=f"sum{i}")
            for i, w in enumerate(self.trainable_variables)
        ]

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compiled_loss(y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        for total, gradient in zip(self.sums, gradients):  # noqa: B905  (autograph)
            total.assign_add(gradient)
        self.seen.assign_add(1)
        tf.cond(self.seen % 2 == 0, self.apply, lambda: None)
        return {m.name: m.result() for m in self.metrics}

    def apply(self) -> None:
        self.optimizer.apply_gradients(zip(self.sums, self.trainable_variables))  # noqa: B905
        for total in self.sums:
            total.assign(tf.zeros_like(total))


def accumulating() -> keras.Model:
    inputs = L.Input((22,))
    model = Accumulating(inputs, L.Dense(7)(L.Dense(33, "tanh")(inputs)))
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


class Gated(L.Layer):
    """One of two branches, by the data: weights in both, a count in one, and a check."""

    def build(self, shape: Any) -> None:
        self.one = self.add_weight("one", (shape[-1], 24))
        self.other = self.add_weight("other", (shape[-1], 24))
        self.count = self.add_weight("count", (), dtype="int64", trainable=False)

    def call(self, x: Any) -> Any:
        def then() -> Any:
            self.count.assign_add(1)
            tf.debugging.assert_less(tf.reduce_sum(x), 1e9)
            return tf.tanh(x @ self.one)

        return tf.cond(tf.reduce_mean(x) > 0.5, then, lambda: tf.nn.relu(x @ self.other) * 0.5)


def gated() -> keras.Model:
    model = keras.Sequential([L.Input((22,)), Gated(), L.Dense(7)])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    return model


def embedded() -> keras.Model:
    """Gradients of looked-up rows inside the conditional of a loss scale."""
    model = keras.Sequential(
        [L.Input((3,), dtype="int64"), L.Embedding(17, 40), L.Flatten(), L.Dense(7)]
    )
    inner = keras.optimizers.Adam(0.01)
    model.compile(keras.mixed_precision.LossScaleOptimizer(inner, initial_scale=16.0), "mse")
    return model


MODELS: dict[str, tuple[oracle.Make, np.ndarray, np.ndarray]] = {
    "nadam": (lambda: mlp(keras.optimizers.Nadam(0.01)), X, Y),
    "ema": (ema, X, Y),
    "hinge": (lambda: mlp("sgd", "hinge"), X, SIGNS),
    "hinge_of_bits": (lambda: mlp("sgd", "hinge"), X, BITS),
    "squared_hinge": (lambda: mlp("sgd", "squared_hinge"), X, BITS),
    "cosine": (cosine, X, Y),
    "piecewise": (piecewise, X, Y),
    "mean_iou": (mean_iou, X, CLASSES),
    "resizing": (resized(lambda: L.Resizing(9, 11)), IMAGES, Y),
    "center_crop": (resized(lambda: L.CenterCrop(8, 7)), IMAGES, Y),
    "center_crop_of_small": (resized(lambda: L.CenterCrop(14, 7)), IMAGES, Y),
    "accumulating": (accumulating, X, Y),
    "gated": (gated, X, Y),
    "embedded": (embedded, IDS, Y),
}
QUICK = {("nadam", 2), ("accumulating", 3), ("gated", 2), ("mean_iou", 2), ("embedded", 2)}


@pytest.mark.parametrize(
    ("name", "k"),
    [
        (name, k) if (name, k) in QUICK else pytest.param(name, k, marks=pytest.mark.slow)
        for name in MODELS
        for k in (2, 3, 4)
    ],
)
def test_equals_one_device(name: str, k: int) -> None:
    make, x, y = MODELS[name]
    model = oracle.check(make, (x, y), k, batch=BATCH)
    for step in oracle.steps(model):
        assert {whole.op for whole in step.plan.whole.values()} <= {"Assert"}
        assert not any(n.op in ("If", "StatelessIf", "Case") for n in step.placed.graph_def.node)
    single = oracle.made(make)
    oracle.train(single, (x, y), BATCH)
    found, expected = (m.evaluate(x, y, batch_size=BATCH, verbose=0) for m in (model, single))
    np.testing.assert_allclose(found, expected, 1e-4)
