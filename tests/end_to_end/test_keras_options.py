"""Optimizers, losses, metrics and regularisation: each, cut over k devices, as on one device."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tf_keras as keras

from tests.end_to_end import oracle

R = np.random.RandomState(0)
ROWS, FEATURES, CLASSES = 44, 12, 10  # four batches of 10 and one of 4
X = R.rand(ROWS, FEATURES).astype("float32")
DIGITS = R.randint(0, CLASSES, ROWS)
ONE_HOT = np.eye(CLASSES, dtype="float32")[DIGITS]
REAL = R.rand(ROWS, CLASSES).astype("float32")
WEIGHTS = R.rand(ROWS).astype("float32")


def net(optimizer, loss, metrics=(), head=None, regularizer=None, **options):
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((FEATURES,)),
            layers.Dense(20, "relu", kernel_regularizer=regularizer, name="hidden"),
            layers.Dense(CLASSES, head, bias_regularizer=regularizer, name="head"),
        ]
    )
    model.compile(optimizer(), loss, metrics=list(metrics), **options)
    return model


SGD = keras.optimizers.SGD
OPTIMIZERS = {
    "sgd": lambda: SGD(0.1),
    "momentum": lambda: SGD(0.1, momentum=0.9),
    "nesterov": lambda: SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
    "decaying rate": lambda: SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)),
}
CROSS_ENTROPY = keras.losses.CategoricalCrossentropy
SPARSE = keras.losses.SparseCategoricalCrossentropy
LOSSES = {
    "sparse, logits": (SPARSE(from_logits=True), None, DIGITS),
    "sparse, probabilities": (SPARSE(), "softmax", DIGITS),
    "sparse, probabilities that are no softmax": (SPARSE(), "sigmoid", DIGITS),
    "one-hot, logits": (CROSS_ENTROPY(from_logits=True), None, ONE_HOT),
    "one-hot, probabilities": (CROSS_ENTROPY(), "softmax", ONE_HOT),
    "one-hot, probabilities that are no softmax": (CROSS_ENTROPY(), "sigmoid", ONE_HOT),
    "mse": ("mse", None, REAL),
}


@pytest.mark.parametrize("name, k", list(zip(OPTIMIZERS, itertools.cycle([2, 3]), strict=False)))
def test_optimizers(name, k):
    oracle.check(lambda: net(OPTIMIZERS[name], "mse"), (X, REAL), k, batch=10)


@pytest.mark.parametrize("name", LOSSES)
def test_losses_with_accuracy(name):
    loss, head, y = LOSSES[name]
    metrics = ["mse"] if name == "mse" else ["accuracy"]
    oracle.check(
        lambda: net(OPTIMIZERS["momentum"], loss, metrics, head),
        (X[:40], y[:40]),
        4,
        batch=10,
        validation_data=(X[40:], y[40:]),
    )


@pytest.mark.parametrize(
    "regularizer",
    [keras.regularizers.L2(0.01), keras.regularizers.L1L2(0.01, 0.02)],
    ids=["l2", "l1l2"],
)
def test_regularisation(regularizer):
    oracle.check(
        lambda: net(OPTIMIZERS["sgd"], "mse", ["mse"], regularizer=regularizer),
        (X, REAL),
        4,
        batch=10,
    )


def test_sample_weights_and_weighted_metrics():
    oracle.check(
        lambda: net(OPTIMIZERS["adam"], LOSSES["sparse, logits"][0], weighted_metrics=["accuracy"]),
        (X, DIGITS, WEIGHTS),
        3,
        batch=10,
    )


def test_class_weights():
    oracle.check(
        lambda: net(OPTIMIZERS["sgd"], LOSSES["sparse, logits"][0], ["accuracy"]),
        (X, DIGITS),
        2,
        batch=10,
        class_weight={digit: 1.0 + digit for digit in range(CLASSES)},
    )


def test_float64():
    """Nothing but the order of sums differs: nine digits more than float32 has to give."""
    make = oracle.in_float64(
        lambda: net(OPTIMIZERS["adam"], LOSSES["sparse, logits"][0], ["accuracy"])
    )
    model = oracle.check(make, (X.astype("float64"), DIGITS), 4, batch=10, tolerance=oracle.FLOAT64)
    assert {w.dtype.name for w in model.weights} == {"float64"}
