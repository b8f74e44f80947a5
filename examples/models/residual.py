"""Residual nets with bottlenecks (He et al. 2016, v1), widened as in Tofu's evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tf_keras as keras

layers = keras.layers

RESNET_BLOCKS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
RESNET_FILTERS = (64, 256, 512, 1024, 2048)  # of the stem and of the four stages
MOMENTUM = 0.9  # of moving averages: a small data set has too few steps for Keras's 0.99


def resnet(
    input_shape: Sequence[int] = (224, 224, 3), classes: int = 1000, depth: int = 50, width: int = 1
) -> keras.Model:
    """WResNet-`depth`-`width`: a 7x7 stem with max pooling, four stages of bottlenecks, global
    pooling, logits. All widths are times `width`."""
    if depth not in RESNET_BLOCKS:
        raise ValueError(f"resnet depth {depth}: expected one of {sorted(RESNET_BLOCKS)}")
    first, *filters = (n * width for n in RESNET_FILTERS)
    image = layers.Input(tuple(input_shape), name="image")
    return finish(image, stages(stem(image, first), filters, RESNET_BLOCKS[depth]), classes)


def wide_resnet(
    input_shape: Sequence[int] = (8, 8, 1),
    classes: int = 10,
    width: int = 2,
    filters: Sequence[int] = (8, 32, 64),
    blocks: Sequence[int] = (1, 1),
) -> keras.Model:
    """The same net for small images: a 3x3 stem without pooling.

    `filters` are those of the stem and of the stages, before they are multiplied by `width`.
    """
    if len(filters) != len(blocks) + 1:
        raise ValueError(
            f"wide_resnet: {len(filters)} filters for {len(blocks)} stages, expected one more"
        )
    first, *others = (n * width for n in filters)
    image = layers.Input(tuple(input_shape), name="image")
    x = layers.ReLU(name="stem_relu")(_convolution(image, first, 3, 1, "stem"))
    return finish(image, stages(x, others, blocks), classes)


def stem(x: Any, filters: int) -> Any:
    """A padded 7x7 convolution and a padded max pooling, both of stride 2."""
    x = layers.ZeroPadding2D(3, name="stem_pad")(x)
    x = _convolution(x, filters, 7, 2, "stem", padding="valid")
    x = layers.ZeroPadding2D(1, name="pool_pad")(layers.ReLU(name="stem_relu")(x))
    return layers.MaxPooling2D(3, 2, name="pool")(x)


def stages(x: Any, filters: Sequence[int], blocks: Sequence[int]) -> Any:
    """So many bottlenecks of each width; all stages but the first begin with stride 2."""
    for s, (n, count) in enumerate(zip(filters, blocks, strict=True)):
        for b in range(count):
            x = _bottleneck(x, n, 2 if s and not b else 1, f"stage{s}_block{b}")
    return x


def _bottleneck(x: Any, filters: int, stride: int, name: str) -> Any:
    """1x1 (strided), 3x3, 1x1 convolutions and the shortcut, projected where the shape changes."""
    inner = filters // 4
    shortcut = x
    if stride > 1 or x.shape[-1] != filters:
        shortcut = _convolution(x, filters, 1, stride, f"{name}_shortcut")
    y = layers.ReLU(name=f"{name}_relu1")(_convolution(x, inner, 1, stride, f"{name}_conv1"))
    y = layers.ReLU(name=f"{name}_relu2")(_convolution(y, inner, 3, 1, f"{name}_conv2"))
    y = _convolution(y, filters, 1, 1, f"{name}_conv3")
    return layers.ReLU(name=f"{name}_relu")(layers.Add(name=f"{name}_add")([shortcut, y]))


def _convolution(
    x: Any, filters: int, kernel: int, stride: int, name: str, padding: str = "same"
) -> Any:
    """A convolution without bias, then batch normalisation."""
    x = layers.Conv2D(filters, kernel, stride, padding, use_bias=False, name=name)(x)
    return layers.BatchNormalization(momentum=MOMENTUM, name=f"{name}_norm")(x)


def finish(image: Any, x: Any, classes: int) -> keras.Model:
    """The model from `image` to the logits of the mean of `x` over space."""
    x = layers.GlobalAveragePooling2D(name="mean")(x)
    return keras.Model(image, layers.Dense(classes, name="logits")(x))
