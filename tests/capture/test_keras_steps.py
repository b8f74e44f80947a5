"""A captured Keras step, run from its Graph, is the step that Keras runs: bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from tests.capture.zoo import MODELS
from tests.graph.running import Running
from tofu_tf.capture.captured import Captured, flatten_inputs, pack_outputs
from tofu_tf.capture.keras_steps import capture_step, step_function, variable_names
from tofu_tf.errors import CaptureError
from tofu_tf.graph.text import graph_text

STEPS = 2
# XLA rounds a fused update otherwise than one kernel after the other.
CLOSE = {"mlp-jit": 1e-6}


@pytest.fixture(autouse=True)
def plain_tensorflow() -> Any:
    """Keeps Grappler's remapper out of Keras's step: fused kernels round otherwise."""
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


def specs(data: Any) -> Any:
    return tf.nest.map_structure(lambda a: tf.TensorSpec(a.shape, a.dtype), data)


def seeded(make: Callable[[], keras.Model]) -> keras.Model:
    keras.utils.set_random_seed(7)
    return make()


def values(captured: Captured) -> dict[str, np.ndarray]:
    return {name: v.numpy() for name, v in captured.variables.items()}


def compare(name: str, kind: str, seen: Any, expected: Any) -> None:
    bound = CLOSE.get(name, 0) if kind == "train" else 0
    tf.nest.assert_same_structure(seen, expected)
    for got, wanted in zip(tf.nest.flatten(seen), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=bound, atol=bound, equal_nan=True)


FORWARD = ("mlp-adam", "cnn-momentum", "dropout", "custom")
CASES = [
    *((name, "train") for name in MODELS),
    *((name, kind) for name in FORWARD for kind in ("test", "predict")),
]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_step_equals_keras(name: str, kind: str) -> None:
    make, data_of = MODELS[name]
    batches = [data_of(random) for random in [np.random.RandomState(0)] for _ in range(STEPS)]
    if kind == "predict":
        batches = [batch[:1] for batch in batches]

    model = seeded(make)
    captured = capture_step(model, kind, specs(batches[0]))
    running = Running(captured.graph, captured.library)
    state, seen = values(captured), []
    for batch in batches:
        outputs, state = running.step(flatten_inputs(captured, (batch,)), state)
        seen.append(pack_outputs(captured, outputs))

    twin = seeded(make)
    keras_step = tf.function(step_function(twin, kind))
    for batch, mine in zip(batches, seen, strict=True):
        outputs = keras_step(tf.nest.map_structure(tf.constant, batch))
        compare(name, kind, mine, tf.nest.map_structure(np.asarray, outputs))
    variables = zip(variable_names(model), variable_names(twin), strict=True)
    for (ours, variable), (_, theirs) in variables:
        compare(name, kind, state.get(ours, variable.numpy()), theirs.numpy())
    compare(name, kind, state[f"{kind}_counter"], STEPS)


def test_variables_keep_their_names_in_every_step() -> None:
    make, data_of = MODELS["cnn-adam"]
    model = make()
    batch = data_of(np.random.RandomState(0))
    train = capture_step(model, "train", specs(batch))
    test = capture_step(model, "test", specs(batch))
    shared = set(train.variables) & set(test.variables)
    metrics = {f"{m}/{v}" for m in ("loss", "accuracy") for v in ("total", "count")}
    assert shared == metrics | {v.name.partition(":")[0] for v in model.weights}
    assert all(train.variables[n] is test.variables[n] for n in shared)
    named = dict(variable_names(model))
    assert all(named[n] is v for n, v in train.variables.items())
    assert not set(train.graph.nodes) & {"NoOp", "ReadVariableOp"}


def test_traced_once() -> None:
    model = MODELS["mlp-adam"][0]()
    calls = []
    original = model.train_step
    model.train_step = lambda data: calls.append(1) or original(data)
    batch = MODELS["mlp-adam"][1](np.random.RandomState(0))
    capture_step(model, "train", specs(batch))
    assert len(calls) == 1


def test_model_trains_on_after_capture() -> None:
    make, data_of = MODELS["mlp-adam"]
    batch = data_of(np.random.RandomState(0))
    weights = []
    for captured in (False, True):
        model = seeded(make)
        if captured:
            capture_step(model, "train", specs(batch))
        model.fit(*batch, epochs=2, batch_size=6, verbose=0)
        weights.append(model.get_weights() + [v.numpy() for v in model.optimizer.variables])
    compare("", "train", weights[1], weights[0])


def test_unknown_batch_is_refused_with_every_tensor() -> None:
    model = MODELS["mlp-adam"][0]()
    with pytest.raises(CaptureError, match=r"x \(None, 8\); y \(None, 3\)"):
        capture_step(model, "train", (tf.TensorSpec((None, 8)), tf.TensorSpec((None, 3))))


def test_unknown_kind() -> None:
    with pytest.raises(CaptureError, match="one of train, test, predict"):
        capture_step(MODELS["mlp-adam"][0](), "fit", (tf.TensorSpec((6, 8)),))


def test_listing(golden: Callable[..., None]) -> None:
    dense = keras.layers.Dense(3, activation="relu", name="dense")
    model = keras.Sequential([keras.layers.Input((4,)), dense], name="net")
    model.compile(keras.optimizers.SGD(0.5), "mse")
    captured = capture_step(model, "train", (tf.TensorSpec((2, 4)), tf.TensorSpec((2, 3))))
    golden(graph_text(captured.graph))
