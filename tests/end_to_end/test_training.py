"""Training over k devices equals training on one: the digits models, VGG, bottlenecks."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tf_keras as keras
from models import build_model, residual

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
    """SGD: with Adam one device leaves the tolerance too when its weights move by 1 ulp."""
    oracle.check(DIGITS[name], images(16 * STEPS), k, batch=16)


@pytest.mark.parametrize("k", [2, 4])
def test_a_step_of_vgg(k):
    vgg = functools.partial(
        sgd, "vgg", depth=11, input_shape=(16, 16, 3), filters=(8, 16, 24), widths=(32,), classes=10
    )
    oracle.check(vgg, images(8, (16, 16, 3)), k, batch=8)


def shallow_resnet() -> keras.Model:
    """ResNet-50's stem and first blocks: padding, a strided 7x7, max pooling, both shortcuts."""
    image = keras.layers.Input((23, 23, 3))
    x = residual.stem(image, 16)
    x = residual.stages(x, (32, 64), (2, 1))
    model = residual.finish(image, x, 10)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.05, 0.9, nesterov=True), loss)
    return model


@pytest.mark.parametrize("k", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_steps_of_a_bottleneck_resnet(k):
    oracle.check(shallow_resnet, images(12, (23, 23, 3)), k, batch=4)


@pytest.mark.slow
@pytest.mark.parametrize("name, sizes", [
    ("resnet", {"depth": 50, "input_shape": (64, 64, 3), "classes": 10}),
    ("vgg", {"depth": 16, "input_shape": (32, 32, 3), "classes": 10, "widths": (512, 512)}),
])  # fmt: skip
def test_one_step_at_full_depth(name, sizes):
    """float64: so deep a net in float32 is far from itself after 1 ulp in its weights."""
    make = oracle.in_float64(functools.partial(sgd, name, 0.01, **sizes))
    x, y = images(4, sizes["input_shape"])
    oracle.check(make, (x.astype("float64"), y), 4, batch=4, tolerance=oracle.FLOAT64)
