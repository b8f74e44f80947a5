"""Batch normalisation uses the statistics of the whole batch, wherever its rows lie."""

from __future__ import annotations

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
