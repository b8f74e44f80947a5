"""Nets of every common kind, trained three steps over k devices: equal to one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from tests.end_to_end import oracle
from tests.zoo import generative, images, sequences

STEPS = 3


def adam() -> Any:
    return keras.optimizers.Adam(0.01)


MODELS: dict[str, tuple[Callable[[], keras.Model], Callable[..., Any]]] = {
    "unet": (lambda: images.unet(adam()), images.MODELS["unet"].data),
    "lstm": (lambda: sequences.lstm(3, adam()), sequences.series),
    "vae": (generative.vae, generative.noisy),
    "siamese": (generative.siamese, generative.pairs),
    "gpt": (lambda: sequences.transformer(True, adam()), sequences.words),
    "bert": (lambda: sequences.transformer(False, adam()), sequences.words),
    "vit": (images.vit, images.MODELS["vit"].data),
    "convnext": (images.convnext, images.MODELS["convnext"].data),
    "conv1d": (images.conv1d, images.MODELS["conv1d"].data),
    "conv3d": (images.conv3d, images.MODELS["conv3d"].data),
    "autoencoder": (images.autoencoder, images.MODELS["autoencoder"].data),
    "dcgan": (generative.dcgan, generative.images_and_noise),
}
QUICK = (("vae", 3), ("autoencoder", 2))


def trained(model: keras.Model, data: tuple[Any, ...]) -> tuple[list[Any], dict[str, np.ndarray]]:
    """What Keras logs of each epoch of one batch, and every variable, of all optimizers."""
    rows = len(tf.nest.flatten(data)[0])
    x, y = data if len(data) == 2 else (*data, None)
    history = model.fit(x, y, batch_size=rows, epochs=STEPS, shuffle=False, verbose=0).history
    optimizers = {
        name: optimizer
        for name, optimizer in vars(model).items()
        if isinstance(optimizer, keras.optimizers.Optimizer)
    }
    variables = [("weight", v) for v in model.weights]
    for name, optimizer in optimizers.items():
        variables += [(name, v) for v in optimizer.variables]
    return list(history.items()), {
        f"{kind}{n} {v.name}": v.numpy() for n, (kind, v) in enumerate(variables)
    }


@pytest.mark.parametrize(
    "name, k",
    [
        pytest.param(n, k, marks=[] if (n, k) in QUICK else pytest.mark.slow)
        for n in MODELS
        for k in (2, 3)
    ],
)
def test_three_steps(name: str, k: int) -> None:
    make, draw = MODELS[name]
    with oracle.floatx("float64"):  # of the batches too
        data = draw(np.random.RandomState(0))
        history, expected = trained(oracle.made(make), data)
        model = oracle.distributed(make, k)
        logged, found = trained(model, data)
    assert [key for key, _ in logged] == [key for key, _ in history]
    for (key, values), (_, wanted) in zip(logged, history, strict=True):
        np.testing.assert_allclose(values, wanted, err_msg=key, **oracle.FLOAT64)
    assert list(found) == list(expected)
    for variable, value in expected.items():
        np.testing.assert_allclose(found[variable], value, err_msg=variable, **oracle.FLOAT64)
    assert any(np.any(v) for v in expected.values())
    oracle.assert_steps_hold(model)
    assert any(step.placed.shards for step in oracle.steps(model))
