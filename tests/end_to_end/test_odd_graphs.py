"""Graphs that are unlike a chain of layers: cut where they can be, whole and reported elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from tests.end_to_end import oracle

L = keras.layers
R = np.random.RandomState(0)
ROWS, STEPS, WIDTH, CLASSES = 7, 6, 20, 11
X, Y = R.rand(2 * ROWS, STEPS, WIDTH), R.rand(2 * ROWS, CLASSES)


def seven_reshapes(x: Any) -> Any:
    h = L.Dense(24, name="trunk")(x)  # [7, 6, 24]
    shapes = [(144,), (12, 12), (24, 6), (3, 48), (2, 3, 24), (6, 4, 6), (9, 16)]
    views = [tf.reshape(h, (ROWS, *shape)) for shape in shapes]
    joined = tf.concat([tf.reshape(v, (ROWS, 144)) for v in views[:4]], axis=1)
    product = 1.0
    for v in views[4:]:
        product *= tf.reshape(v, (ROWS, 36, 4))
    return tf.concat([joined, tf.reshape(product, (ROWS, 144))], axis=1)


def mixed_reshapes(x: Any) -> Any:
    """Rows and columns that do not align: whatever was cut is not a range afterwards."""
    h = L.Dense(15, name="trunk")(x)  # 7 x 6 x 15 = 630 elements
    a = tf.reshape(tf.reshape(h, (10, 63)) * 2.0, (ROWS, 90))
    b = tf.reshape(tf.tanh(tf.reshape(h, (30, 21))), (ROWS, 90))
    return a * b


def shared(x: Any) -> Any:
    """One layer for two inputs, another one twice in a row."""
    twice, both = L.Dense(WIDTH, "tanh", name="twice"), L.Dense(13, name="both")
    h = twice(twice(x))
    return both(h) * both(x)


def nested(x: Any) -> Any:
    """A model used as a layer, twice."""
    inside = L.Input((STEPS, WIDTH))
    inner = keras.Model(inside, L.Dense(WIDTH, "tanh")(L.Dense(17)(inside)))
    return inner(inner(x)) + x


def gathers(x: Any) -> Any:
    return Applied(gathered)(L.Dense(WIDTH, name="trunk")(x))


def gathered(h: Any) -> Any:
    steps = tf.gather(h, [5, 0, 0, 3], axis=1)
    places = tf.gather_nd(h, [[[0, 1], [5, 2]]] * ROWS, batch_dims=1)
    along = tf.experimental.numpy.take_along_axis(h, tf.argsort(h, axis=-1), axis=-1)
    return tf.concat([tf.reshape(t, (ROWS, -1)) for t in (steps, places, along)], axis=1)


def ranks(x: Any) -> Any:
    h = L.Dense(WIDTH, name="trunk")(x)
    values, at = tf.math.top_k(h, 3)
    ordered = tf.sort(h, axis=1)
    runs = tf.cumsum(h, axis=1, exclusive=True) + tf.math.cumsum(h, axis=2, reverse=True)
    places = tf.cast(at, h.dtype) * values
    return tf.concat([places, ordered, runs, tf.math.cumprod(h, axis=-1)], axis=-1)


def rare_moves(x: Any) -> Any:
    h = L.Dense(WIDTH, name="trunk")(x)
    rolled = tf.roll(h, [1, -2], [1, 2]) + tf.reverse(h, [2])
    bent = tf.pad(h, [[0, 0], [1, 2], [0, 0]], "SYMMETRIC")
    band = tf.linalg.band_part(tf.matmul(h, h, transpose_b=True), 1, 2)
    return tf.concat([rolled, bent, tf.pad(band, [[0, 0], [0, 0], [0, WIDTH - STEPS]])], axis=1)


def recomputed(x: Any) -> Any:
    dense = L.Dense(WIDTH, "tanh", name="trunk")
    dense.build(x.shape)
    return Recomputed(dense)(x)


class Recomputed(L.Layer):
    """A layer whose activations are made again in the backward pass."""

    def __init__(self, inner: Any, **options: Any) -> None:
        super().__init__(**options)
        self.inner = inner

    def call(self, x: Any) -> Any:
        return tf.recompute_grad(lambda t: tf.square(self.inner(t)))(x)


GRAPHS: dict[str, Callable[[Any], Any]] = {
    "seven reshapes": seven_reshapes,
    "mixed reshapes": mixed_reshapes,
    "shared layers": shared,
    "nested models": nested,
    "gathers": gathers,
    "ranks": ranks,
    "rare moves": rare_moves,
    "recomputed": recomputed,
}


class Applied(L.Layer):
    """A function of tensors as a layer, for those that Keras would trace op by op."""

    def __init__(self, function: Callable[[Any], Any], **options: Any) -> None:
        super().__init__(**options)
        self.function = function

    def call(self, x: Any) -> Any:
        return self.function(x)


def around(graph: Callable[[Any], Any], step: type[keras.Model] = keras.Model) -> keras.Model:
    x = L.Input((STEPS, WIDTH), batch_size=ROWS)
    out = graph(L.Dense(WIDTH, "tanh", name="before")(x))
    model = step(x, L.Dense(CLASSES, name="head")(L.Flatten()(out)))
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
    return model


def check(make: Callable[[], keras.Model], k: int, **options: Any) -> keras.Model:
    make = oracle.in_float64(make)
    return oracle.check(make, (X, Y), k, batch=ROWS, tolerance=oracle.FLOAT64, **options)


QUICK = {("seven reshapes", 4), ("gathers", 3)}


@pytest.mark.parametrize(
    "name, k",
    [
        pytest.param(name, k, marks=[] if (name, k) in QUICK else pytest.mark.slow)
        for name in GRAPHS
        for k in (2, 3, 4, 5, 8)
    ],
)
def test_described_ops(name, k):
    check(lambda: around(GRAPHS[name]), k)


def unheard(x: Any) -> Any:
    """A Bessel function, which is in no table, nor is its derivative."""
    return tf.math.special.bessel_i0(x)


class Looping(keras.Model):
    """The gradients are halved in a loop as long as they are too large."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compiled_loss(y, self(x, training=True))
        weights = self.trainable_variables
        gradients = tape.gradient(loss, weights)
        scale = tf.while_loop(
            lambda s: s * tf.linalg.global_norm(gradients) > 0.1,
            lambda s: (s / 2,),
            (tf.constant(1.0, gradients[0].dtype),),
        )[0]
        self.optimizer.apply_gradients(
            [(g * scale, w) for g, w in zip(gradients, weights, strict=True)]
        )
        return {m.name: m.result() for m in self.metrics}


class Choosing(keras.Model):
    """The gradients are scaled down if they are too large."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compiled_loss(y, self(x, training=True))
        weights = self.trainable_variables
        gradients = tape.gradient(loss, weights)
        norm = tf.linalg.global_norm(gradients)
        gradients = tf.cond(
            norm > 0.1, lambda: [g * (0.1 / norm) for g in gradients], lambda: list(gradients)
        )
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return {m.name: m.result() for m in self.metrics}


def flat(x: Any) -> Any:
    return x


@pytest.mark.parametrize("k", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_an_op_nobody_has_heard_of_runs_whole_and_is_reported(k, caplog):
    with caplog.at_level(logging.WARNING, "tofu_tf"):
        model = check(lambda: around(lambda x: Applied(unheard)(x)), k, undescribed="whole")
    (step,) = oracle.steps(model)
    kinds = {whole.op for whole in step.plan.whole.values()}
    assert kinds == {"BesselI0", "BesselI1"}
    assert all(whole.reason and whole.nbytes for whole in step.plan.whole.values())
    said = [r.getMessage() for r in caplog.records if "run whole" in r.getMessage()]
    assert len(said) == 1
    assert all(kind in said[0] for kind in kinds)
    assert cut_kernels(model) == {"before/kernel", "head/kernel"}


def test_a_loop_in_the_step_runs_whole_and_is_reported():
    model = check(lambda: around(flat, Looping), 3, undescribed="whole")
    (step,) = oracle.steps(model)
    assert {whole.op for whole in step.plan.whole.values()} & {"While", "StatelessWhile"}
    assert cut_kernels(model) == {"before/kernel", "head/kernel"}


def test_a_condition_in_the_step():
    model = check(lambda: around(flat, Choosing), 3)
    assert cut_kernels(model) == {"before/kernel", "head/kernel"}


def cut_kernels(model: keras.Model) -> set[str]:
    """Kernels that the (only) step does not keep whole: their neighbours do not matter."""
    (step,) = oracle.steps(model)
    layouts = {v.name: step.plan.layouts[v.ref] for v in step.captured.graph.variables.values()}
    return {
        name
        for name, layout in layouts.items()
        if name.endswith("kernel")
        and "SGD" not in name
        and not layout.replicated
        and not layout.home
    }
