"""Abstract capture: the graph is the ordinary one, no weight is made, and all is left as it was."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import tofu_tf
from tests.capture.zoo import MODELS, mlp, vectors
from tofu_tf.capture.abstract import AbstractVariable, abstract
from tofu_tf.capture.functions import capture_function
from tofu_tf.capture.keras_steps import capture_step, variable_names
from tofu_tf.errors import CaptureError, ModelError
from tofu_tf.graph.ir import Graph
from tofu_tf.graph.text import graph_text
from tofu_tf.plan.text import plan_text

L = keras.layers
O = keras.optimizers  # noqa: E741
legacy = keras.optimizers.legacy
Make = Callable[[], Any]


def unbuilt() -> keras.Model:
    """Without shapes until its first batch comes; its dropout has the program's seed."""
    model = keras.Sequential([L.Dense(5, "relu"), L.BatchNormalization(), L.Dropout(0.4)])
    model.add(L.Dense(3))
    model.compile(O.Adam(0.01), "mse", metrics=["mae", keras.metrics.MeanSquaredError()])
    return model


def scaled() -> keras.Model:
    model = keras.Sequential([L.Input((8,)), L.Dense(5, dtype="mixed_float16"), L.Dense(3)])
    model.compile(keras.mixed_precision.LossScaleOptimizer(O.SGD(0.1)), "mse")
    return model


class Adversaries(keras.Model):
    """Two nets with an optimizer each, which Keras does not know of; counts in Python."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = [L.Dense(3), L.Dense(3)]
        self.optimizers = {"first": O.Adam(0.01), "second": O.RMSprop(0.01)}
        self.traced = 0

    def train_step(self, data: Any) -> Any:
        self.traced += 1
        x, y = data
        for net, optimizer in zip(self.nets, self.optimizers.values(), strict=True):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((net(x) - y) ** 2)
            weights = net.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


def adversaries() -> keras.Model:
    model = Adversaries()
    model.compile()
    return model


CASES: dict[str, tuple[Make, Any]] = {
    **MODELS,
    "adadelta": (lambda: mlp(O.Adadelta()), vectors),
    "adafactor": (lambda: mlp(O.Adafactor()), vectors),
    "adagrad": (lambda: mlp(O.Adagrad(0.1)), vectors),
    "adamax": (lambda: mlp(O.Adamax()), vectors),
    "adversaries": (adversaries, vectors),
    "average": (lambda: mlp(O.SGD(0.1, use_ema=True, ema_overwrite_frequency=2)), vectors),
    "ftrl": (lambda: mlp(O.Ftrl(0.1)), vectors),
    "legacy-adagrad": (lambda: mlp(legacy.Adagrad(0.1)), vectors),
    "legacy-ftrl": (lambda: mlp(legacy.Ftrl(0.1)), vectors),
    "legacy-nadam": (lambda: mlp(legacy.Nadam(0.1)), vectors),
    "legacy-rmsprop": (lambda: mlp(legacy.RMSprop(0.1, momentum=0.5)), vectors),
    "lion": (lambda: mlp(O.Lion(0.1)), vectors),
    "scaled": (scaled, vectors),
    "schedule": (lambda: mlp(O.Adam(O.schedules.CosineDecay(0.1, 3))), vectors),
    "unbuilt": (unbuilt, vectors),
}


def cases(*quick: str) -> list[Any]:
    """All cases, those that are not `quick` as slow ones."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in CASES]


def specs(data: Any) -> Any:
    return tf.nest.map_structure(lambda a: tf.TensorSpec(a.shape, a.dtype), data)


def batch_of(name: str) -> Any:
    return CASES[name][1](np.random.RandomState(0))


def fresh(make: Make, scope: Any = contextlib.nullcontext) -> Any:
    """A model as the first one of a program makes it."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(7)
    with scope():
        return make()


def text(graph: Graph) -> str:
    """The listing without the numbers that TensorFlow gives to the functions of a conditional."""
    return re.sub(r"(_branch=\w+?)_\d+\b", r"\1", graph_text(graph))


@functools.cache
def ordinary(name: str) -> str:
    return text(capture_step(fresh(CASES[name][0]), "train", specs(batch_of(name))).graph)


def trained(model: Any, batch: Any) -> list[Any]:
    """Losses and all variables after three epochs."""
    x, y, weights = (*batch, None)[:3]
    losses = model.fit(x, y, len(y), 3, verbose=0, sample_weight=weights).history
    return [losses, {name: v.numpy() for name, v in variable_names(model)}]


@pytest.mark.parametrize("name", cases("adversaries", "mlp-adam", "scaled", "unbuilt"))
def test_the_graph_is_the_ordinary_one_and_the_model_is_left_as_it_was(name: str) -> None:
    make, batch = CASES[name][0], batch_of(name)
    expected, twin = ordinary(name), trained(fresh(make), batch)
    model = fresh(make)
    before = surface(model)
    captured = capture_step(model, "train", specs(batch), abstract=True)
    assert text(captured.graph) == expected
    assert surface(model) == before
    np.testing.assert_equal(trained(model, batch), twin)  # bit for bit


@pytest.mark.parametrize("name", cases("adagrad", "mlp-legacy-adam", "scaled", "unbuilt"))
def test_a_model_made_without_weights_has_the_ordinary_graph(name: str) -> None:
    expected = ordinary(name)
    model = fresh(CASES[name][0], abstract)
    captured = capture_step(model, "train", specs(batch_of(name)), abstract=True)
    assert text(captured.graph) == expected
    inner = {n: getattr(v, "_variable", v) for n, v in captured.variables.items()}
    real = [n for n, v in inner.items() if not isinstance(v, AbstractVariable)]
    assert [n for n in real if not n.startswith("random/")] == []  # states of three numbers


def surface(model: Any) -> dict[str, Any]:
    """What tells whether a model, its optimizers, metrics and containers were touched."""
    optimizers = [*getattr(model, "optimizers", {}).values(), model.optimizer]
    optimizers += [getattr(o, "inner_optimizer", None) for o in optimizers]
    parts = [model, *model.layers, *filter(None, optimizers), *model.metrics]
    parts += filter(None, (model.compiled_loss, model.compiled_metrics))
    found: dict[str, Any] = {}
    for i, part in enumerate(parts):
        for name, value in vars(part).items():
            if isinstance(value, list | dict):
                found[f"{i} {name}"] = (id(value), list(value))
            else:
                found[f"{i} {name}"] = value if isinstance(value, int | str) else id(value)
    return found


def test_slots_are_abstract_and_weights_stay() -> None:
    model = fresh(MODELS["mlp-adam"][0])
    captured = capture_step(model, "train", specs(batch_of("mlp-adam")), abstract=True)
    made = {name for name, v in captured.variables.items() if isinstance(v, AbstractVariable)}
    weights = [v.name.partition(":")[0] for v in model.weights]
    of_metrics = {f"mae/{part}" for part in ("total", "count")}  # compiling makes that of the loss
    assert made == {f"Adam/{slot}/{w}" for slot in "mv" for w in weights} | of_metrics
    assert captured.variables["dense/kernel"] is model.weights[0]


def test_other_kinds_of_steps() -> None:
    batch = specs(batch_of("unbuilt"))
    for kind, data in (("test", batch), ("predict", batch[:1])):
        model = fresh(unbuilt)
        found = capture_step(model, kind, data, abstract=True)
        assert not model.built
        assert text(found.graph) == text(capture_step(fresh(unbuilt), kind, data).graph)


class Trainer:
    """A loop of one's own that makes its weights and its optimizer's slots at its first step."""

    def __init__(self) -> None:
        self.net = keras.Sequential([L.Dense(5, "relu"), L.Dense(3)])
        self.optimizer = O.Adam(0.01)
        self.scale: tf.Variable | None = None
        self.seen: list[str] = []

    def step(self, x: Any, y: Any) -> Any:
        self.seen.append("traced")
        if self.scale is None:
            self.scale = tf.Variable(tf.ones(3), name="scale")
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.net(x) * self.scale - y) ** 2)
        weights = [*self.net.trainable_variables, self.scale]
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss


def test_a_function() -> None:
    data = specs(batch_of("mlp-adam"))
    expected = text(capture_function(fresh(Trainer).step, data).graph)
    trainer = fresh(Trainer)
    captured = capture_function(trainer.step, data, abstract=True)
    assert text(captured.graph) == expected
    assert all(isinstance(v, AbstractVariable) for n, v in captured.variables.items() if "/" in n)
    assert (trainer.scale, trainer.seen, trainer.net.built) == (None, [], False)
    assert not getattr(trainer.optimizer, "_built", False)
    assert "build" not in vars(trainer.optimizer)


COUNT = 0
RATE = O.SGD(0.1, momentum=0.9)


def counting(x: Any) -> Any:
    global COUNT
    COUNT += 1
    weight = WEIGHTS[0]
    RATE.apply_gradients([(weight * 2, weight)])
    return x * weight


WEIGHTS: list[Any] = []


def test_what_a_function_reaches_by_name_is_left_as_it_was() -> None:
    WEIGHTS[:] = [tf.Variable(tf.ones(4))]
    outside = [0]

    def step(x: Any) -> Any:
        outside.append(len(outside))
        return counting(x)

    captured = capture_function(step, (tf.TensorSpec((4,)),), abstract=True)
    assert (COUNT, outside, len(RATE.variables)) == (0, [0], 1)
    assert [n for n in captured.variables if "/m/" in n] == ["SGD/m/Variable"]


def test_variables_of_a_program() -> None:
    with abstract():
        given = tf.Variable(tf.ones((3, 2)), name="given")
        listed = tf.Variable([1, 2, 3])
        made = tf.Variable(lambda: tf.zeros((4,), tf.float64), shape=(None,))
    assert [(v.shape.as_list(), v.dtype.name) for v in (given, listed, made)] == [
        ([3, 2], "float32"),
        ([3], "int32"),
        ([None], "float64"),
    ]
    assert given.name == "given:0"
    assert isinstance(given, tf.Variable)
    assert type(tf.Variable(1.0)) is not AbstractVariable


def test_reading_a_value_is_refused_with_a_remedy() -> None:
    with abstract():
        weight = tf.Variable(tf.ones(2000), name="rates")
        small = tf.Variable(lambda: tf.fill((3,), 2.0))

    def step(x: Any) -> Any:
        with tf.init_scope():
            scale = float(weight.numpy()[0])
        return x * scale

    remedy = r"variable rates(.|\n)*outside tofu_tf.abstract"
    with pytest.raises(CaptureError, match=remedy):
        capture_function(step, (tf.TensorSpec((4,)),), abstract=True)
    assert "no value" in repr(weight)
    with pytest.raises(CaptureError, match=remedy):
        weight.numpy()
    weight.assign(tf.fill(2000, 3.0))
    assert weight.numpy()[0] == 3
    assert small.numpy().tolist() == [2, 2, 2]  # as the schedule of an optimizer reads its counter


def test_a_model_without_weights_does_not_run() -> None:
    def make() -> keras.Model:
        model = keras.Sequential([L.Input((40,)), L.Dense(50)])
        model.compile("sgd", "mse")
        return model

    model = tofu_tf.distribute(fresh(make, abstract), 2)
    with pytest.raises(CaptureError, match="has no value"):
        model.fit(np.ones((6, 40)), np.ones((6, 50)), verbose=0)


def test_the_plan_of_a_model_is_the_one_it_trains_under() -> None:
    make = functools.partial(mlp, "adam")
    batch = vectors(np.random.RandomState(0))
    plan = tofu_tf.plan_step(fresh(make, tofu_tf.abstract), specs(batch), 2)
    model = tofu_tf.distribute(fresh(make), 2, batch=batch)
    assert plan_text(plan) == plan_text(model.tofu.plan)
    given = tofu_tf.distribute(fresh(make), 2, plan=plan)
    given.fit(*batch, batch_size=6, verbose=0)
    assert given.tofu.plan.layouts == plan.layouts


def test_the_plan_of_a_function() -> None:
    data = specs(batch_of("mlp-adam"))
    plan = tofu_tf.plan_step(fresh(Trainer).step, data, 2)
    made = tofu_tf.function(fresh(Trainer).step, devices=2).get_concrete_function(*data)
    assert plan_text(plan) == plan_text(made.plan)


def test_no_step() -> None:
    with pytest.raises(ModelError, match="Keras 3"):
        tofu_tf.plan_step(tf.keras.Sequential(), (tf.TensorSpec((4, 3)),), 2)
    with pytest.raises(ModelError, match=r"tf_keras\.Model"):
        tofu_tf.plan_step(3, (tf.TensorSpec((4, 3)),), 2)
    with pytest.raises(ModelError, match="static"):
        tofu_tf.plan_step(unbuilt(), (tf.TensorSpec((None, 3)),), 2)


def test_a_users_module_may_be_called_as_one_of_the_standard_library() -> None:
    kind = type("Same", (Adversaries,), {"__module__": "test"})

    def make() -> keras.Model:
        model = kind()
        model.compile()
        return model

    model = fresh(make)
    capture_step(model, "train", specs(batch_of("mlp-adam")), abstract=True)
    assert (model.traced, [len(o.variables) for o in model.optimizers.values()]) == (0, [1, 1])
