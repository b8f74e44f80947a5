"""Batch normalisation uses the statistics of the whole batch, wherever its rows lie."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tf_keras as keras

from tests.end_to_end import oracle

ROWS, K, STEPS = 12, 4, 4
R = np.random.RandomState(0)
# The quarters of a batch have different means: what each device would see alone is wrong.
OFFSETS = np.repeat([-3.0, 0.0, 1.0, 5.0], ROWS // K)
IMAGES = (R.rand(STEPS, ROWS, 5, 6, 3) + OFFSETS[:, None, None, None]).astype("float32")
IMAGES = IMAGES.reshape(-1, 5, 6, 3)
LABELS = R.randint(0, 4, STEPS * ROWS)


def convolutional(frozen: bool = False) -> keras.Model:
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((5, 6, 3)),
            layers.BatchNormalization(momentum=0.9, name="first"),
            layers.Conv2D(8, 3, use_bias=False, name="conv"),
            layers.BatchNormalization(momentum=0.9, name="second"),
            layers.ReLU(),
            layers.GlobalAveragePooling2D(),
            layers.Dense(4, name="logits"),
        ]
    )
    model.get_layer("second").trainable = not frozen
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss)
    return model


def dense(frozen: bool = False) -> keras.Model:
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((5, 6, 3)),
            layers.Flatten(),
            layers.Dense(16, name="hidden"),
            # Of rank 2, that is not the fused kernel.
            layers.BatchNormalization(momentum=0.9, name="second"),
            layers.Dense(4, name="logits"),
        ]
    )
    model.get_layer("second").trainable = not frozen
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss)
    return model


@pytest.mark.parametrize("frozen", [False, True], ids=["training", "frozen"])
@pytest.mark.parametrize("make", [convolutional, dense], ids=lambda f: f.__name__)
def test_moving_averages_and_weights(make, frozen):
    oracle.check(
        lambda: make(frozen),
        (IMAGES, LABELS),
        K,
        batch=ROWS,
        validation_data=(IMAGES[:20], LABELS[:20]),
        validation_batch_size=ROWS,
    )


@pytest.mark.parametrize(
    "cut",
    [("d0d1", None, None, None), (None, "d0", "d1", None), (None, None, None, "d0d1")],
    ids=str,
)
def test_cut_along_batch_space_or_channels(cut):
    """The normalised tensor forced to lie each way."""
    oracle.check(
        convolutional,
        (IMAGES, LABELS),
        K,
        batch=ROWS,
        constraints={"sequential/second/FusedBatchNormV3": cut},
    )


def test_inference_uses_the_moving_averages():
    one = oracle.made(convolutional)
    many = oracle.distributed(convolutional, K)
    for model in (one, many):
        oracle.train(model, (IMAGES, LABELS), ROWS)
    # Rows in batches of another mean than the moving one: normalising by the batch would show.
    for rows in (slice(0, 3), slice(9, 14)):
        np.testing.assert_allclose(
            many.predict(IMAGES[rows], verbose=0),
            one.predict(IMAGES[rows], verbose=0),
            **oracle.FLOAT32,
        )


def wide() -> keras.Model:
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((5, 4, 67)),
            layers.Conv2D(520, 1, use_bias=False, name="conv"),
            layers.BatchNormalization(momentum=0.9, name="norm"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(67, name="logits"),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.05), loss)
    return model


@pytest.mark.parametrize("moving", ["moving_*", "*"])
def test_moving_averages_cut_finer_than_the_images(moving):
    """Several devices make the same channels of them, and only the owner's are of use."""
    asked = {"*/norm/FusedBatchNormV3": ("d0", None, None, "d1"), f"norm/{moving}": ("d0d1",)}
    x, y = R.rand(13, 5, 4, 67).astype("float32"), R.randint(0, 67, 13)
    oracle.check(wide, (x, y), K, batch=13, constraints=asked)


# What normalises, its input's shape without the batch.
Layer = Callable[[], Any]
LINE, ROW = (7, 24), (40,)
IMAGE = (5, 6, 3)
N = keras.layers
LAYERS: dict[str, tuple[Layer, tuple[int, ...]]] = {
    "unfused": (lambda: N.BatchNormalization(momentum=0.9, fused=False), IMAGE),
    "synchronised": (lambda: N.BatchNormalization(momentum=0.9, synchronized=True), IMAGE),
    "of rows": (lambda: N.BatchNormalization(axis=1, momentum=0.9), IMAGE),
    "of two axes": (lambda: N.BatchNormalization(axis=[1, 3], momentum=0.9), IMAGE),
    "without scale": (lambda: N.BatchNormalization(scale=False, momentum=0.9), IMAGE),
    "without offset": (lambda: N.BatchNormalization(center=False, momentum=0.9), IMAGE),
    "of rank 3": (lambda: N.BatchNormalization(momentum=0.9), LINE),
    "of rank 2": (lambda: N.BatchNormalization(momentum=0.9), ROW),
    "of rank 5": (lambda: N.BatchNormalization(momentum=0.9), (3, 2, 4, 8)),
    "layer, fused": (lambda: N.LayerNormalization(), LINE),
    "layer, small epsilon": (lambda: N.LayerNormalization(epsilon=1e-6), LINE),
    "layer of two axes": (lambda: N.LayerNormalization(axis=[1, 2]), LINE),
    "layer of images": (lambda: N.LayerNormalization(axis=-1), IMAGE),
    "group": (lambda: N.GroupNormalization(4), LINE),
    "group of images": (lambda: N.GroupNormalization(3), IMAGE),
    "instance": (lambda: N.GroupNormalization(-1), IMAGE),
    "unit": (lambda: N.UnitNormalization(), LINE),
    "unit of two axes": (lambda: N.UnitNormalization(axis=[1, 2]), LINE),
}  # SpectralNormalization cannot be built in this tf_keras: its InputSpec is of another Keras.


def around(name: str, frozen: bool = False) -> keras.Model:
    make, shape = LAYERS[name]
    norm = make()
    norm.trainable = not frozen
    layers = [N.Input(shape), N.Dense(shape[-1], name="before"), norm, N.Activation("tanh")]
    model = keras.Sequential([*layers, N.Flatten(), N.Dense(11, name="head")])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def quarters(shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Four batches whose quarters have different means."""
    r = np.random.RandomState(2)
    offsets = OFFSETS.reshape(-1, *[1] * len(shape))
    return (r.rand(STEPS, ROWS, *shape) + offsets).reshape(-1, *shape), r.rand(STEPS * ROWS, 11)


QUICK = {("of rank 3", K, False)}
CASES = [
    pytest.param(name, frozen, k, marks=[] if (name, k, frozen) in QUICK else pytest.mark.slow)
    for name in LAYERS
    for frozen in (False, True)
    for k in (3, K)
    if not frozen or k == K
]


@pytest.mark.parametrize("name, frozen, k", CASES)
def test_layers_that_normalise(name, frozen, k):
    """Training, then evaluation with what was learnt; in float64 no op is the fused one."""
    x, y = quarters(LAYERS[name][1])
    make = oracle.in_float64(lambda: around(name, frozen))
    oracle.check(
        make,
        (x, y),
        k,
        batch=ROWS,
        tolerance=oracle.FLOAT64,
        validation_data=(x[:20], y[:20]),
        validation_batch_size=ROWS,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_layers_that_normalise_in_float32(name):
    """There LayerNormalization and images go through the fused kernel."""
    x, y = quarters(LAYERS[name][1])
    oracle.check(lambda: around(name), (x.astype("float32"), y.astype("float32")), K, batch=ROWS)
