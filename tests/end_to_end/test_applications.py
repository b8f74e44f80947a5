"""Every model of tf_keras.applications: one training step over two devices is that of one device.

Full depth, small images. All compute in 64 bits: batch normalisation over four images that have
shrunk to a pixel divides by deviations of rounding size, so that 32 bits are chaotic. No op may
run whole.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tf_keras as keras

from tests.end_to_end import oracle

apps = keras.applications
ROWS, CLASSES = 2, 10

# Name -> the smallest side of an image that the model takes, or that leaves it something to see.
SIDES = {
    "VGG16": 32,
    "VGG19": 32,
    "ResNet50": 32,
    "ResNet101": 32,
    "ResNet152": 32,
    "ResNet50V2": 32,
    "ResNet101V2": 32,
    "ResNet152V2": 32,
    "InceptionV3": 75,
    "InceptionResNetV2": 75,
    "Xception": 71,
    "MobileNet": 32,
    "MobileNetV2": 32,
    "MobileNetV3Small": 32,
    "MobileNetV3Large": 32,
    "DenseNet121": 32,
    "DenseNet169": 32,
    "DenseNet201": 32,
    "NASNetMobile": 32,
    "NASNetLarge": 32,
    **{f"EfficientNetB{n}": 32 for n in range(8)},
    **{f"EfficientNetV2{n}": 32 for n in ("B0", "B1", "B2", "B3", "S", "M", "L")},
    **{f"ConvNeXt{n}": 32 for n in ("Tiny", "Small", "Base", "Large", "XLarge")},
    **{
        f"RegNet{kind}{n}": 32
        for kind in "XY"
        for n in (
            "002",
            "004",
            "006",
            "008",
            "016",
            "032",
            "040",
            "064",
            "080",
            "120",
            "160",
            "320",
        )
    },
    **{f"ResNetRS{n}": 32 for n in (50, 101, 152, 200, 270, 350, 420)},
}
# Weights and gradients of one in 64 bits, twice, leave no room for the step.
HUGE = ("ConvNeXtXLarge", "RegNetX320", "RegNetY320")
# CPU kernels know one group of channels; XLA knows many.
GROUPED = ("RegNet", "ConvNeXt")


def make(name: str) -> Callable[[], keras.Model]:
    def built() -> keras.Model:
        side = SIDES[name]
        options = {"weights": None, "classes": CLASSES, "classifier_activation": None}
        model = getattr(apps, name)(input_shape=(side, side, 3), **options)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.01), loss, jit_compile=name.startswith(GROUPED))
        return model

    return oracle.in_float64(built)


def data(name: str) -> tuple[np.ndarray, np.ndarray]:
    r = np.random.RandomState(0)
    return r.uniform(0, 255, (ROWS, SIDES[name], SIDES[name], 3)), r.randint(0, CLASSES, ROWS)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n == "VGG16" else pytest.mark.slow) for n in SIDES],
)
def test_one_step(name: str) -> None:
    if name in HUGE:
        pytest.skip("more than a third of 24 GiB for weights alone")
    oracle.check(make(name), data(name), 2, batch=ROWS, tolerance=oracle.FLOAT64)


def test_no_model_is_left_out() -> None:
    """Every function of tf_keras.applications that makes a model is named above."""
    made = {n for n in dir(apps) if n[0].isupper() and callable(getattr(apps, n))}
    assert made == set(SIDES)
