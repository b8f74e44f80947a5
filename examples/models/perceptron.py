"""Multi-layer perceptrons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tf_keras as keras


def mlp(
    input_shape: Sequence[int] = (256,),
    classes: int | None = 10,
    widths: Sequence[int] = (256, 512, 512, 256),
    activation: str = "relu",
    regularizer: Any = None,
) -> keras.Model:
    """Dense layers of these widths on the flattened input, then `classes` logits (None: none)."""
    layers = keras.layers
    model = keras.Sequential([layers.Input(tuple(input_shape)), layers.Flatten(name="flat")])
    for i, width in enumerate(widths):
        model.add(layers.Dense(width, activation, kernel_regularizer=regularizer, name=f"dense{i}"))
    if classes is not None:
        model.add(layers.Dense(classes, kernel_regularizer=regularizer, name="logits"))
    return model
