"""Small Keras models that together hold what MLPs and convolutional nets train with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tf_keras as keras

L = keras.layers
BATCH = 6


def mlp(optimizer: Any, **compiled: Any) -> keras.Model:
    model = keras.Sequential([L.Input((8,)), L.Dense(5, activation="relu"), L.Dense(3)])
    model.compile(optimizer, **{"loss": "mse", "metrics": ["mae"], **compiled})
    return model


def cnn(optimizer: Any) -> keras.Model:
    image = L.Input((9, 7, 3))
    x = L.Conv2D(4, 3, padding="same", use_bias=False)(image)
    x = L.ReLU()(L.BatchNormalization()(x))
    x = L.MaxPool2D(2, padding="same")(x)
    y = L.Conv2D(4, 1, kernel_regularizer=keras.regularizers.L2(1e-3))(x)
    x = L.AveragePooling2D(2)(L.Add()([x, y]))
    x = L.Dense(3, activation="softmax")(L.GlobalAveragePooling2D()(x))
    model = keras.Model(image, x)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def classifier(from_logits: bool, sparse: bool) -> keras.Model:
    layers = [L.Input((8,)), L.Dense(5, activation="tanh"), L.Dense(3)]
    model = keras.Sequential(layers if from_logits else [*layers, L.Softmax()])
    kind = "SparseCategoricalCrossentropy" if sparse else "CategoricalCrossentropy"
    loss = getattr(keras.losses, kind)(from_logits=from_logits)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, metrics=["accuracy"])
    return model


def dropout() -> keras.Model:
    model = keras.Sequential([L.Input((8,)), L.Dense(5), L.Dropout(0.5, seed=3), L.Dense(3)])
    model.compile("sgd", "mse")
    return model


class Custom(keras.Model):
    """Built at its first step; counts its calls; trains with a tape of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = L.Dense(3)
        self.calls = self.add_weight(name="calls", shape=(), dtype="int64", trainable=False)

    def call(self, x: Any) -> Any:
        self.calls.assign_add(1)
        return self.dense(x["a"]) + self.dense(x["b"])


def custom() -> keras.Model:
    model = Custom()
    model.compile(keras.optimizers.Adam(clipnorm=1.0, ema_momentum=0.9, use_ema=True), "mse")
    return model


def _opt(name: str, **options: Any) -> Any:
    return getattr(keras.optimizers, name)(**options)


Data = Callable[[np.random.RandomState], tuple[Any, ...]]


def vectors(r: np.random.RandomState) -> tuple[Any, ...]:
    return r.rand(BATCH, 8).astype("float32"), r.rand(BATCH, 3).astype("float32")


def weighted(r: np.random.RandomState) -> tuple[Any, ...]:
    return *vectors(r), r.rand(BATCH).astype("float32")


def labelled(r: np.random.RandomState) -> tuple[Any, ...]:
    return r.rand(BATCH, 8).astype("float32"), r.randint(0, 3, BATCH)


def one_hot(r: np.random.RandomState) -> tuple[Any, ...]:
    return r.rand(BATCH, 8).astype("float32"), np.eye(3, dtype="float32")[r.randint(0, 3, BATCH)]


def images(r: np.random.RandomState) -> tuple[Any, ...]:
    return r.rand(BATCH, 9, 7, 3).astype("float32"), r.randint(0, 3, BATCH)


def pairs(r: np.random.RandomState) -> tuple[Any, ...]:
    x = {"a": r.rand(BATCH, 4).astype("float32"), "b": r.rand(BATCH, 4).astype("float32")}
    return x, r.rand(BATCH, 3).astype("float32")


legacy = keras.optimizers.legacy
MODELS: dict[str, tuple[Callable[[], keras.Model], Data]] = {
    "mlp-adam": (lambda: mlp(_opt("Adam", learning_rate=0.01)), vectors),
    "mlp-adamw": (lambda: mlp(_opt("AdamW", learning_rate=0.01)), vectors),
    "mlp-sgd": (lambda: mlp(_opt("SGD", learning_rate=0.1)), weighted),
    "mlp-nesterov": (lambda: mlp(_opt("SGD", momentum=0.9, nesterov=True)), vectors),
    "mlp-rmsprop-clip": (lambda: mlp(_opt("RMSprop", global_clipnorm=0.1)), vectors),
    "mlp-legacy-adam": (lambda: mlp(legacy.Adam(0.01)), vectors),
    "mlp-legacy-sgd": (lambda: mlp(legacy.SGD(0.01, momentum=0.5)), vectors),
    "mlp-jit": (lambda: mlp(_opt("Adam", jit_compile=True)), vectors),
    "cnn-momentum": (lambda: cnn(_opt("SGD", momentum=0.9)), images),
    "cnn-adam": (lambda: cnn(_opt("Adam")), images),
    "sparse-logits": (lambda: classifier(True, True), labelled),
    "sparse-probabilities": (lambda: classifier(False, True), labelled),
    "dense-logits": (lambda: classifier(True, False), one_hot),
    "dense-probabilities": (lambda: classifier(False, False), one_hot),
    "mlp-nadam": (lambda: mlp(_opt("Nadam")), vectors),
    "dropout": (dropout, vectors),
    "custom": (custom, pairs),
}
