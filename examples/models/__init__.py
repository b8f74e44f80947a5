"""Keras models that examples, tests and benchmarks train, one file per family; MODELS by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tf_keras as keras

from models.convolutional import cnn, vgg
from models.perceptron import mlp
from models.residual import resnet, wide_resnet

MODELS: Mapping[str, Callable[..., keras.Model]] = {
    "mlp": mlp,
    "cnn": cnn,
    "vgg": vgg,
    "resnet": resnet,
    "wide_resnet": wide_resnet,
}


def build_model(name: str, **sizes: Any) -> keras.Model:
    """The model of that name, not compiled, ending in logits.

    Args:
      name: a key of MODELS.
      sizes: what the model's function takes, such as `input_shape` and `classes`.

    Raises:
      ValueError: an unknown name; the message lists the known ones.
    """
    if name not in MODELS:
        raise ValueError(f"model {name!r}: expected one of {', '.join(sorted(MODELS))}")
    return MODELS[name](**sizes)
