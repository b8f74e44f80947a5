"""Training over k devices equals training on one: digits models, odd sizes, batches that do not divide."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tf_keras as keras
from models import build_model

from tests.end_to_end import oracle

R = np.random.RandomState(0)
STEPS = 5


def sgd(name: str, rate: float = 0.05, momentum: float = 0.0, **sizes):
    model = build_model(name, **sizes)
    model.compile(
        keras.optimizers.SGD(rate, momentum),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def images(rows: int, shape=(8, 8, 1), classes: int = 10):
    return R.rand(rows, *shape).astype("float32"), R.randint(0, classes, rows)


DIGITS = {
    "mlp": functools.partial(sgd, "mlp", input_shape=(8, 8, 1), widths=(32, 48, 32)),
    "cnn": functools.partial(sgd, "cnn", filters=(8, 12), width=24),
    "wide_resnet": functools.partial(sgd, "wide_resnet", width=1, filters=(8, 16, 32)),
}


@pytest.mark.parametrize("k", [2, 3, 4, 8])
@pytest.mark.parametrize("name", DIGITS)
def test_digits_models(name, k):
    """SGD: with Adam one device with weights moved by 1 ulp leaves the tolerance on wide ResNets too."""
    oracle.check(DIGITS[name], images(16 * STEPS), k, batch=16)
