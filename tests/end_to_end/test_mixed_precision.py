"""Mixed precision: policies of layers, loss scales, and batches whose gradients are not finite."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable
from typing import Any

import numpy as np
import pytest
import tf_keras as keras

from tests.end_to_end import oracle

L = keras.layers
R = np.random.RandomState(0)
ROWS, BATCH = 18, 6
VECTORS = R.randn(ROWS, 20).astype("float32")
IMAGES = R.rand(ROWS, 9, 7, 3).astype("float32")
SEQUENCES = R.randn(ROWS, 5, 12).astype("float32")
Y = R.rand(ROWS, 6).astype("float32")
SCALE = keras.mixed_precision.LossScaleOptimizer
# Half the distance from 1 to the next number: what one rounding may change, relatively.
ROUNDING = {"mixed_float16": 2.0**-11, "mixed_bfloat16": 2.0**-8}


def head(inputs: Any, x: Any) -> keras.Model:
    """The loss is computed in float32, as Keras's guide has it."""
    model = keras.Model(inputs, L.Activation("linear", dtype="float32")(L.Dense(6)(x)))
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
    return model


def mlp() -> keras.Model:
    inputs = L.Input((20,))
    return head(inputs, L.Dense(31, "relu")(L.Dense(34, "tanh")(inputs)))


def cnn() -> keras.Model:
    inputs = L.Input((9, 7, 3))
    x = L.Conv2D(8, 3, padding="same", use_bias=False)(inputs)
    x = L.ReLU()(L.BatchNormalization()(x))
    x = L.MaxPool2D()(x)
    x = L.Conv2D(12, 3, strides=2, padding="same")(x)
    return head(inputs, L.GlobalAveragePooling2D()(L.BatchNormalization()(x)))


def lstm() -> keras.Model:
    inputs = L.Input((5, 12))
    return head(inputs, L.LSTM(14, unroll=True)(inputs))


def transformer() -> keras.Model:
    inputs = L.Input((5, 12))
    x = L.Dense(16)(inputs)
    x = L.LayerNormalization()(x + L.MultiHeadAttention(2, 8)(x, x))
    x = L.LayerNormalization()(x + L.Dense(16)(L.Dense(40, "gelu")(x)))
    return head(inputs, L.GlobalAveragePooling1D()(x))


# ... and how many numbers of half precision the longest sum between weights and gradients has.
MODELS: dict[str, tuple[Callable[[], keras.Model], np.ndarray, int]] = {
    "mlp": (mlp, VECTORS, 34),
    "cnn": (cnn, IMAGES, BATCH * 9 * 7),
    "lstm": (lstm, SEQUENCES, 14),
    "transformer": (transformer, SEQUENCES, 40),
}


def under(policy: str, make: oracle.Make) -> oracle.Make:
    def made() -> keras.Model:
        keras.mixed_precision.set_global_policy(policy)
        try:
            return make()
        finally:
            # not the one before: a policy that is set no longer follows Keras's floatx
            keras.mixed_precision.set_global_policy(None)

    return made


QUICK = {
    ("mlp", "mixed_float16", 3),
    ("cnn", "mixed_bfloat16", 2),
    ("transformer", "mixed_float16", 2),
}


def with_slow(quick: Collection[tuple[Any, ...]], *ranges: Iterable[Any]) -> list[Any]:
    """All combinations; those that are not quick are marked slow."""
    return [
        case if case in quick else pytest.param(*case, marks=pytest.mark.slow)
        for case in itertools.product(*ranges)
    ]


@pytest.mark.parametrize(("name", "policy", "k"), with_slow(QUICK, MODELS, ROUNDING, (2, 3, 4)))
def test_policies_equal_one_device(name: str, policy: str, k: int) -> None:
    make, x, terms = MODELS[name]
    before = dict(oracle.state(oracle.made(under(policy, make))))
    single = oracle.made(under(policy, make))
    one = oracle.train(single, (x, Y), BATCH)
    model = oracle.distributed(under(policy, make), k)
    left = oracle.train(model, (x, Y), BATCH)
    oracle.assert_steps_hold(model)
    assert not model.tofu.plan.whole
    # The float32 weights move by sums of numbers of half precision, which run in another order.
    # Where n roundings are as likely up as down, sums differ by about sqrt(n) of them; twice that
    # is allowed, of the longest way that any weight has gone.
    within = 2 * np.sqrt(terms) * ROUNDING[policy]
    moved = max(
        np.abs(one.state[key] - value).max() for key, value in before.items() if "weight" in key
    )
    np.testing.assert_allclose(left.losses, one.losses, rtol=within)
    assert list(left.state) == list(one.state)
    for key, value in one.state.items():
        exact = value.dtype.kind != "f" or "loss_scale" in key
        assert left.state[key].dtype == value.dtype
        atol = 0 if exact else within * moved
        # What a metric has summed up is a sum of losses.
        rtol = within if "metric" in key else 0
        np.testing.assert_allclose(left.state[key], value, rtol, atol, err_msg=key)
    if policy == "mixed_float16":
        assert isinstance(model.optimizer, SCALE)


def optimizer(kind: str, **scale: Any) -> Callable[[], Any]:
    legacy = keras.optimizers.legacy
    inner = {
        "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
        "adam": lambda: keras.optimizers.Adam(0.01, clipnorm=1.0, use_ema=True),
        "legacy adam": lambda: legacy.Adam(0.01),
    }[kind]
    return lambda: SCALE(inner(), **scale)


# In float32 a scale of a power of two changes no digit, and all is held to float32's tolerance.
SCALES: dict[str, Callable[[], Any]] = {
    "dynamic": optimizer("adam"),
    "growing": optimizer("sgd", initial_scale=4.0, dynamic_growth_steps=2),
    "fixed": optimizer("adam", dynamic=False, initial_scale=1024.0),
    "legacy": optimizer("legacy adam", initial_scale=8.0, dynamic_growth_steps=2),
}


def scaled(name: str) -> oracle.Make:
    def made() -> keras.Model:
        model = mlp()
        model.compile(SCALES[name](), "mse", metrics=["mae"])
        return model

    return made


BAD = {"finite": 0.0, "inf": np.inf, "nan": np.nan}
QUICK_SCALES = {("dynamic", 2, "inf"), ("growing", 3, "nan"), ("growing", 3, "finite")}


@pytest.mark.parametrize(("name", "k", "bad"), with_slow(QUICK_SCALES, SCALES, (2, 3, 4), BAD))
def test_one_decision_for_all_weights(name: str, k: int, bad: str) -> None:
    """The second of four batches has a number that is none; only one worker may see it first."""
    x = np.concatenate([VECTORS, VECTORS[:BATCH]])
    y = np.concatenate([Y, Y[:BATCH]])
    x[BATCH + 2, 7] = BAD[bad]
    model = oracle.check(scaled(name), (x, y), k, batch=BATCH)
    assert not model.tofu.plan.whole


@pytest.mark.parametrize("k", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_too_large_a_scale_halves_and_leaves_the_weights(k: int) -> None:
    def made() -> keras.Model:
        model = mlp()
        model.compile(SCALE(keras.optimizers.Adam(0.01), initial_scale=2.0**40), "mse")
        return model

    model = oracle.distributed(under("mixed_float16", made), k)
    before = [w.numpy() for w in model.weights]
    model.fit(VECTORS, Y, batch_size=BATCH, verbose=0)
    assert model.optimizer.loss_scale.numpy() == 2.0**37
    assert model.optimizer.iterations.numpy() == 3  # Keras counts such steps too
    for weight, value in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(weight.numpy(), value)


@pytest.mark.parametrize("k", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_scale_moves_hardly_more_bytes(k: int) -> None:
    """Beside the scale, a byte of every gradient says whether it is finite, to every worker."""

    def plain() -> keras.Model:
        inputs = L.Input((20,))
        x = L.Dense(300, "relu")(L.Dense(200, "relu")(inputs))
        model = keras.Model(inputs, L.Dense(6)(x))
        model.compile(keras.optimizers.Adam(0.01), "mse")
        return model

    def with_scale() -> keras.Model:
        model = plain()
        model.compile(SCALE(keras.optimizers.Adam(0.01)), "mse")
        return model

    moved = []
    for make in (plain, with_scale):
        model = oracle.distributed(make, k)
        oracle.train(model, (VECTORS[:BATCH], Y[:BATCH]), BATCH)
        moved.append(model.tofu.plan.predicted_bytes)
    gradients, scale, links = 6, 4, k * (k - 1)
    small = 200 + 300 + 200 * 6 + 6  # whether each element of a small gradient is finite: gathered
    assert moved[0] <= moved[1] <= moved[0] + gradients * links + scale * (k - 1) + small * (k - 1)
