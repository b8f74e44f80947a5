"""Every optimizer, schedule and way to clip; training steps of one's own: as on one device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from tests.end_to_end import oracle
from tofu_tf.runtime import variables

L, O, S = keras.layers, keras.optimizers, keras.optimizers.schedules  # noqa: E741
R = np.random.RandomState(0)
ROWS, FEATURES, HIDDEN, CLASSES, K, STEPS = 10, 23, 20, 11, 3, 3
X, Y = R.rand(STEPS * ROWS, FEATURES), R.rand(STEPS * ROWS, CLASSES)
IMAGES = R.rand(STEPS * ROWS, 7, 5, 3)

Optimizer = Callable[[], Any]
MODERN: dict[str, Optimizer] = {
    "sgd": lambda: O.SGD(0.1),
    "momentum": lambda: O.SGD(0.1, momentum=0.9),
    "nesterov": lambda: O.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: O.Adam(0.01),
    "amsgrad": lambda: O.Adam(0.01, amsgrad=True),
    "adamw": lambda: O.AdamW(0.01, weight_decay=0.1),
    "adamw, amsgrad": lambda: O.AdamW(0.01, amsgrad=True),
    "adamax": lambda: O.Adamax(0.01),
    "nadam": lambda: O.Nadam(0.01),
    "rmsprop": lambda: O.RMSprop(0.01),
    "rmsprop, centered, momentum": lambda: O.RMSprop(0.01, momentum=0.5, centered=True),
    "adagrad": lambda: O.Adagrad(0.1),
    "adadelta": lambda: O.Adadelta(0.5),
    "adafactor": lambda: O.Adafactor(0.05),
    "adafactor, no factors, no limit": lambda: O.Adafactor(
        0.05, clip_threshold=1e9, relative_step=False
    ),
    "ftrl": lambda: O.Ftrl(0.1, l1_regularization_strength=0.01, l2_regularization_strength=0.02),
    "lion": lambda: O.Lion(0.01),
    "weight decay": lambda: O.SGD(0.1, weight_decay=0.05),
    "average": lambda: O.SGD(0.1, use_ema=True, ema_momentum=0.9),
    "average that overwrites": lambda: O.Adam(
        0.01, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2
    ),
    "jit": lambda: O.Adam(0.01, jit_compile=True),
}
LEGACY: dict[str, Optimizer] = {
    "sgd": lambda: O.legacy.SGD(0.1),
    "nesterov": lambda: O.legacy.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: O.legacy.Adam(0.01),
    "amsgrad": lambda: O.legacy.Adam(0.01, amsgrad=True),
    "adamax": lambda: O.legacy.Adamax(0.01),
    "nadam": lambda: O.legacy.Nadam(0.01),
    "rmsprop": lambda: O.legacy.RMSprop(0.01),
    "rmsprop, centered, momentum": lambda: O.legacy.RMSprop(0.01, momentum=0.5, centered=True),
    "adagrad": lambda: O.legacy.Adagrad(0.1),
    "adadelta": lambda: O.legacy.Adadelta(0.5),
    "ftrl": lambda: O.legacy.Ftrl(0.1, l1_regularization_strength=0.01),
    "decay": lambda: O.legacy.SGD(0.1, momentum=0.9, decay=0.5),
    "clipvalue": lambda: O.legacy.Adam(0.01, clipvalue=0.001),
    "clipnorm": lambda: O.legacy.SGD(0.1, clipnorm=0.01),
    "global_clipnorm": lambda: O.legacy.SGD(0.1, global_clipnorm=0.01),
}
SCHEDULES: dict[str, Callable[[], Any]] = {
    "exponential": lambda: S.ExponentialDecay(0.1, 2, 0.5),
    "exponential staircase": lambda: S.ExponentialDecay(0.1, 2, 0.5, staircase=True),
    "cosine": lambda: S.CosineDecay(0.1, 4, alpha=0.1),
    "cosine with warm-up": lambda: S.CosineDecay(0.01, 4, warmup_target=0.1, warmup_steps=2),
    "cosine restarts": lambda: S.CosineDecayRestarts(0.1, 2),
    "piecewise": lambda: S.PiecewiseConstantDecay([1, 2], [0.1, 0.05, 0.02]),
    "polynomial": lambda: S.PolynomialDecay(0.1, 2, 0.01, power=2.0),
    "polynomial that cycles": lambda: S.PolynomialDecay(0.1, 2, 0.01, cycle=True),
    "inverse time": lambda: S.InverseTimeDecay(0.1, 2, 0.5),
}
CLIPPED: dict[str, Optimizer] = {
    "clipvalue": lambda: O.SGD(1.0, clipvalue=0.01),
    "clipnorm": lambda: O.SGD(1.0, clipnorm=0.02),
    "global_clipnorm": lambda: O.SGD(1.0, global_clipnorm=0.02),
    "global_clipnorm, loose": lambda: O.SGD(0.1, global_clipnorm=1e3),
}


def mlp(optimizer: Optimizer) -> keras.Model:
    layers = [L.Input((FEATURES,)), L.Dense(HIDDEN, "tanh", name="hidden")]
    model = keras.Sequential([*layers, L.Dense(CLASSES, name="head")])
    model.compile(optimizer(), "mse")
    return model


def cnn(optimizer: Optimizer) -> keras.Model:
    layers = [L.Input((7, 5, 3)), L.Conv2D(9, 3, activation="tanh", name="hidden"), L.Flatten()]
    model = keras.Sequential([*layers, L.Dense(CLASSES, name="head")])
    model.compile(optimizer(), "mse")
    return model


def check(make: Callable[[], keras.Model], x: Any = X, y: Any = Y, **options: Any) -> keras.Model:
    """Three steps over three devices; slots lie as their weights do."""
    options = {"batch": ROWS, "tolerance": oracle.FLOAT64, **options}
    model = oracle.check(oracle.in_float64(make), (x, y), K, **options)
    for weight, slot in slots(model):
        assert regions(slot) == regions(weight), slot.name
    return model


def slots(model: keras.Model) -> Iterator[tuple[tf.Variable, tf.Variable]]:
    """Weights of the model with each optimizer variable of their shape and name."""
    found = model.optimizer.variables
    for slot in found() if callable(found) else found:
        for weight in model.trainable_variables:
            stem = weight.name.partition(":")[0]
            if slot.shape == weight.shape and stem in slot.name:
                yield weight, slot


def regions(variable: tf.Variable) -> list[Any]:
    return [(part.device, part.region) for part in variables.sharding_of(variable).parts]


def rows(table: dict[str, Any], *quick: str) -> list[Any]:
    """The names of a table; those that are not `quick` say of others what these say."""
    return [pytest.param(name, marks=[] if name in quick else pytest.mark.slow) for name in table]


@pytest.mark.parametrize("name", rows(MODERN, "adafactor"))
def test_optimizers(name):
    model = check(lambda: mlp(MODERN[name]))
    assert list(slots(model))


@pytest.mark.parametrize("name", rows(LEGACY, "amsgrad"))
def test_legacy_optimizers(name):
    model = check(lambda: mlp(LEGACY[name]))
    assert list(slots(model)) or name in ("sgd", "clipnorm", "global_clipnorm")


@pytest.mark.slow
@pytest.mark.parametrize("name", MODERN)
def test_optimizers_of_convolutions(name):
    check(lambda: cnn(MODERN[name]), IMAGES)


@pytest.mark.parametrize("name", rows(SCHEDULES))
def test_schedules(name):
    check(lambda: mlp(lambda: O.SGD(SCHEDULES[name]())))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cosine", "piecewise"])
def test_schedules_of_legacy_optimizers(name):
    check(lambda: mlp(lambda: O.legacy.Adam(SCHEDULES[name]())))


def tall(optimizer: Optimizer) -> keras.Model:
    """Two kernels of one size, of which one may be cut and the other one copied."""
    layers = [L.Input((FEATURES,)), L.Dense(HIDDEN, "tanh", name="hidden")]
    layers += [L.Dense(FEATURES, "tanh", name="second"), L.Dense(CLASSES, name="head")]
    model = keras.Sequential(layers)
    model.compile(optimizer(), "mse")
    return model


LAYOUTS = {
    "all cut": {"hidden/kernel": ("d0", None), "second/kernel": (None, "d0")},
    "one copied": {"hidden/kernel": (None, None), "second/kernel": ("d0", None)},
    "the other copied": {"hidden/kernel": (None, "d0"), "second/kernel": (None, None)},
    "both copied": {"hidden/kernel": (None, None), "second/kernel": (None, None)},
}


@pytest.mark.parametrize("layout", rows(LAYOUTS, "one copied"))
@pytest.mark.parametrize("name", rows(CLIPPED, "global_clipnorm"))
def test_a_norm_counts_every_gradient_element_once(name, layout):
    model = check(lambda: tall(CLIPPED[name]), constraints=LAYOUTS[layout])
    for weight in model.weights:
        wanted = LAYOUTS[layout].get(weight.name.removesuffix(":0"))
        if wanted is not None:
            copied = wanted == (None, None)
            assert (len({r for _, r in regions(weight)}) == 1) == copied, weight.name


class Adversarial(keras.Model):
    """Two nets against each other, each with an optimizer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.maker = keras.Sequential(
            [L.Input((CLASSES,)), L.Dense(HIDDEN, "tanh"), L.Dense(FEATURES, name="made")]
        )
        self.judge = keras.Sequential(
            [L.Input((FEATURES,)), L.Dense(HIDDEN, "tanh"), L.Dense(1, name="verdict")]
        )

    def call(self, noise: Any) -> Any:
        return self.judge(self.maker(noise))

    def compile(self, maker: Any, judge: Any) -> None:
        super().compile(optimizer=maker)
        self.of_judge = judge
        self.of_judge.build(self.judge.trainable_variables)
        self.optimizer.build(self.maker.trainable_variables)
        self.made_loss = keras.metrics.Mean("made_loss")
        self.judge_loss = keras.metrics.Mean("loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.made_loss, self.judge_loss]

    def train_step(self, data: Any) -> Any:
        real, noise = data
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        with tf.GradientTape() as tape:
            verdicts = tf.concat([self.judge(self.maker(noise)), self.judge(real)], 0)
            rows = tf.shape(real)[0]
            truth = tf.concat([tf.zeros((rows, 1)), tf.ones((rows, 1))], 0)
            judged = loss(truth, verdicts)
        weights = self.judge.trainable_variables
        self.of_judge.apply_gradients(zip(tape.gradient(judged, weights), weights, strict=True))
        with tf.GradientTape() as tape:
            verdicts = self.judge(self.maker(noise))
            fooled = loss(tf.ones_like(verdicts), verdicts)
        weights = self.maker.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(fooled, weights), weights, strict=True))
        self.made_loss.update_state(fooled)
        self.judge_loss.update_state(judged)
        return {m.name: m.result() for m in self.metrics}


def adversarial() -> keras.Model:
    model = Adversarial()
    model.compile(O.Adam(0.01), O.SGD(0.1, momentum=0.5))
    return model


class Accumulating(keras.Model):
    """Updates its weights after every second batch, with the sum of both gradients."""

    def build(self, shape: Any) -> None:
        super().build(shape)
        self.sums = [
            tf.Variable(tf.zeros_like(w), trainable=False, name=f"sum/{w.name[:-2]}")
            for w in self.trainable_variables
        ]
        self.batches = tf.Variable(0, dtype=tf.int64, trainable=False, name="batches")

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compiled_loss(y, self(x, training=True))
        weights = self.trainable_variables
        self.batches.assign_add(1)
        now = tf.cast(self.batches % 2 == 0, weights[0].dtype)
        for total, gradient in zip(self.sums, tape.gradient(loss, weights), strict=True):
            total.assign_add(gradient)
        self.optimizer.apply_gradients(
            [(s * now, w) for s, w in zip(self.sums, weights, strict=True)]
        )
        for total in self.sums:
            total.assign(total * (1 - now))
        return {m.name: m.result() for m in self.metrics}


def accumulating() -> keras.Model:
    x = L.Input((FEATURES,))
    h = L.Dense(HIDDEN, "tanh", name="hidden")(x)
    model = Accumulating(x, L.Dense(CLASSES, name="head")(h))
    model.build((None, FEATURES))
    model.compile(O.SGD(0.1), "mse")
    return model


class Wired(keras.Model):
    """Several inputs by name, several outputs, a loss of its own beside those compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = L.Dense(HIDDEN, name="left"), L.Dense(HIDDEN, name="right")
        self.head, self.tail = L.Dense(CLASSES, name="head"), L.Dense(CLASSES, name="tail")

    def call(self, inputs: Any) -> Any:
        h = tf.tanh(self.left(inputs["a"])) * tf.tanh(self.right(inputs["b"]))
        self.add_loss(0.1 * tf.reduce_mean(tf.square(h)))
        return {"head": self.head(h), "tail": self.tail(h)}


def wired() -> keras.Model:
    model = Wired()
    model.compile(
        O.Adam(0.01),
        {"head": "mse", "tail": "mae"},
        loss_weights={"head": 0.3, "tail": 0.7},
        metrics={"head": ["mae"]},
    )
    return model


@pytest.mark.slow
@pytest.mark.parametrize("k", [2, 3])
def test_two_optimizers(k):
    make = oracle.in_float64(adversarial)
    oracle.check(make, (X, Y), k, batch=ROWS, tolerance=oracle.FLOAT64)


def test_accumulated_gradients_lie_as_their_weights():
    model = check(accumulating, validation_data=(X[:ROWS], Y[:ROWS]))
    for weight, total in zip(model.trainable_variables, model.sums, strict=True):
        assert regions(total) == regions(weight)


@pytest.mark.slow
def test_named_inputs_and_outputs():
    x = {"a": X, "b": X[:, ::-1]}
    check(wired, x, {"head": Y, "tail": Y[::-1]})
