"""Convolutional nets without shortcuts: LeNet-like and VGG."""

from __future__ import annotations

from collections.abc import Sequence

import tf_keras as keras

# Convolutions per stage (Simonyan and Zisserman 2015, table 1, columns A, B, D and E).
VGG_STAGES = {
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
}
VGG_FILTERS = (64, 128, 256, 512, 512)


def cnn(
    input_shape: Sequence[int] = (8, 8, 1),
    classes: int = 10,
    filters: Sequence[int] = (16, 32),
    width: int = 64,
    momentum: float = 0.9,
) -> keras.Model:
    """LeNet with batch normalisation: a convolution and max pooling per entry of `filters`, then
    two dense layers."""
    layers = keras.layers
    model = keras.Sequential([layers.Input(tuple(input_shape))])
    for i, n in enumerate(filters):
        model.add(layers.Conv2D(n, 3, padding="same", use_bias=False, name=f"conv{i}"))
        model.add(layers.BatchNormalization(momentum=momentum, name=f"norm{i}"))
        model.add(layers.ReLU(name=f"relu{i}"))
        model.add(layers.MaxPooling2D(2, padding="same", name=f"pool{i}"))
    model.add(layers.Flatten(name="flat"))
    model.add(layers.Dense(width, "relu", name="dense"))
    model.add(layers.Dense(classes, name="logits"))
    return model


def vgg(
    input_shape: Sequence[int] = (224, 224, 3),
    classes: int = 1000,
    depth: int = 16,
    filters: Sequence[int] = VGG_FILTERS,
    widths: Sequence[int] = (4096, 4096),
) -> keras.Model:
    """VGG of that depth without dropout; fewer `filters` than stages leave the last stages out."""
    if depth not in VGG_STAGES:
        raise ValueError(f"vgg depth {depth}: expected one of {sorted(VGG_STAGES)}")
    layers = keras.layers
    model = keras.Sequential([layers.Input(tuple(input_shape))])
    for s, (n, convolutions) in enumerate(zip(filters, VGG_STAGES[depth], strict=False)):
        for c in range(convolutions):
            name = f"stage{s}_conv{c}"
            model.add(layers.Conv2D(n, 3, padding="same", activation="relu", name=name))
        model.add(layers.MaxPooling2D(2, name=f"stage{s}_pool"))
    model.add(layers.Flatten(name="flat"))
    for i, width in enumerate(widths):
        model.add(layers.Dense(width, "relu", name=f"dense{i}"))
    model.add(layers.Dense(classes, name="logits"))
    return model
