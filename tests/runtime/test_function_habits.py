"""More habits of tf.function: what it takes and returns, and what may stand inside."""

from __future__ import annotations

import functools
import threading
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import tofu_tf
from tofu_tf import errors

CLOSE = {"rtol": 1e-10, "atol": 1e-12}
R = np.random.default_rng(0)
X = R.normal(size=(16, 32))
W = R.normal(size=(32, 24)) * 0.3
Pair = namedtuple("Pair", "a b")


def partitioned(function: Any, **options: Any) -> Any:
    return tofu_tf.function(function, devices=4, device_type="CPU", **options)


def assert_same(left: Any, right: Any) -> None:
    tf.nest.assert_same_structure(left, right)
    for a, b in zip(tf.nest.flatten(left), tf.nest.flatten(right), strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a, b, **CLOSE)


def returns_of_every_kind(w: tf.Variable) -> Callable[..., Any]:
    """Python numbers and arrays come back as tensors, None as it is."""
    return lambda x: {
        "pair": Pair(x @ w, [x, None]),
        "numbers": (3, 2.5, True),
        "array": np.arange(3),
        "empty": [],
        "same": (x, x),
    }


def nests(w: tf.Variable) -> Callable[..., Any]:
    def step(x: Any, pair: Any = Pair(1.0, [2.0]), *, scale: Any = (1, 2)) -> Any:  # noqa: B008
        return (x @ w) * pair.a + pair.b[0] * scale[1]

    return step


def closed_over(w: tf.Variable) -> Callable[..., Any]:
    """Tensors from outside, of which one is as large as a weight."""
    large, one = tf.constant(W), tf.constant(2.0, tf.float64)
    return lambda x: (x @ large * one, x @ (w + large))


def second_order(w: tf.Variable) -> Callable[..., Any]:
    def step(x: Any) -> Any:
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                loss = tf.reduce_sum(tf.tanh(x @ w) ** 2)
            gradient = inner.gradient(loss, w)
            norm = tf.reduce_sum(gradient * gradient)
        w.assign_sub(1e-4 * outer.gradient(norm, w))
        return loss, norm

    return step


def own_gradients(w: tf.Variable) -> Callable[..., Any]:
    @tf.custom_gradient
    def clipped(x: Any) -> Any:
        return x, lambda upstream: tf.clip_by_norm(upstream, 0.5)

    def step(x: Any) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_sum(clipped(x @ w) ** 2)
        w.assign_sub(tape.gradient(loss, w))
        return tape.gradient(loss, [w])

    return step


def slices_written(w: tf.Variable) -> Callable[..., Any]:
    def step(x: Any) -> Any:
        w[2:5].assign(tf.ones((3, 24), tf.float64) * x[0, 0])
        w.scatter_nd_add([[0]], x[:1, :24])
        return w + 1

    return step


def python_inside(w: tf.Variable) -> Callable[..., Any]:
    def step(x: Any) -> Any:
        y = tf.py_function(lambda a: a * 2, [x @ w], tf.float64)
        y.set_shape((x.shape[0], 24))
        return y, tf.numpy_function(lambda a: a + 1, [y], tf.float64)

    return step


def a_tensor_decides(w: tf.Variable) -> Callable[..., Any]:
    def step(x: Any, n: Any = 3) -> Any:
        y, n = x @ w, tf.constant(n)
        while tf.reduce_sum(y * y) > 1e-3 and n > 0:
            y, n = tf.tanh(y @ tf.transpose(w) @ w), n - 1
        return y, n

    return step


CALLS: list[tuple[Callable[..., Any], list[tuple[tuple[Any, ...], dict[str, Any]]]]] = [
    (returns_of_every_kind, [((X,), {})]),
    (
        nests,
        [
            ((X,), {}),
            ((X, Pair(X[0, 0], [3.0])), {"scale": (0, 5)}),
            ((X[:5],), {"scale": [1, tf.constant(2.0, tf.float64)]}),
        ],
    ),
    (closed_over, [((X,), {}), ((X[:4],), {})]),
    (second_order, [((X,), {}), ((X,), {})]),
    (own_gradients, [((X,), {}), ((X,), {})]),
    (slices_written, [((X,), {}), ((2 * X,), {})]),
    (python_inside, [((X,), {}), ((X,), {})]),
    (a_tensor_decides, [((X,), {}), ((X, 1), {})]),
]


@pytest.mark.parametrize("make, calls", CALLS)
def test_as_a_tf_function(make: Callable[..., Any], calls: Any) -> None:
    ours, theirs = tf.Variable(W), tf.Variable(W)
    mine, plain = partitioned(make(ours)), tf.function(make(theirs))
    for args, kwargs in calls:
        assert_same(mine(*args, **kwargs), plain(*args, **kwargs))
        np.testing.assert_allclose(ours, theirs, **CLOSE)


def training() -> tuple[keras.Model, Any, list[Any], Callable[..., Any]]:
    keras.utils.set_random_seed(1)
    layers = [
        keras.layers.Dense(48, "relu", kernel_regularizer="l2", input_shape=(32,)),
        keras.layers.BatchNormalization(),
        keras.layers.Dense(8),
    ]
    model = keras.Sequential(layers)
    optimizer = keras.optimizers.Adam(0.01, clipnorm=1.0)
    seen = [keras.metrics.Mean(), keras.metrics.MeanSquaredError()]
    measure = keras.losses.MeanSquaredError()

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            out = model(x, training=True)
            loss = measure(y, out) + tf.add_n(model.losses)
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))  # noqa: B905
        seen[0].update_state(loss)
        seen[1].update_state(y, out)
        return loss

    return model, optimizer, seen, step


def test_a_loop_over_a_keras_model() -> None:
    """Slots are made on the first call; rate and metrics are changed from outside."""
    (model, optimizer, seen, step), (one, their_optimizer, their_seen, plain) = (
        training(),
        training(),
    )
    mine, theirs = partitioned(step), tf.function(plain)
    x, y = X.astype("float32"), R.normal(size=(16, 8)).astype("float32")
    for i, rows in enumerate((16, 12, 16)):
        np.testing.assert_allclose(mine(x[:rows], y[:rows]), theirs(x[:rows], y[:rows]), rtol=1e-5)
        if i == 1:
            for o, m in ((optimizer, seen), (their_optimizer, their_seen)):
                o.learning_rate.assign(0.02)
                m[0].reset_state()
    for a, b in zip(model.weights + optimizer.variables, one.weights + their_optimizer.variables):  # noqa: B905
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-6)
    for a, b in zip(seen, their_seen, strict=True):
        np.testing.assert_allclose(a.result(), b.result(), rtol=1e-5)


def test_whatever_can_be_called() -> None:
    w = tf.Variable(W)

    class Called:
        def __call__(self, x: Any) -> Any:
            return x @ w

        @staticmethod
        @tofu_tf.function(devices=2, device_type="CPU")
        def static(x: Any) -> Any:
            return x @ w

    signed = tf.function(lambda x: x @ w, input_signature=[tf.TensorSpec([None, 32], tf.float64)])
    for function in (
        partitioned(Called()),
        partitioned(functools.partial(lambda a, x: x @ w * a, 1.0)),
        partitioned(signed),
        Called.static,
        Called().static,
    ):
        np.testing.assert_allclose(function(X), X @ W, **CLOSE)
        (concrete,) = function.concrete_functions
        assert "(float64[16, 32]) over" in repr(concrete).replace("1.0, ", "")


def test_a_concrete_function_is_called() -> None:
    w = tf.Variable(W)
    mine = partitioned(lambda x, by=1: x @ w * by)
    concrete = mine.get_concrete_function(tf.TensorSpec([16, 32], tf.float64), 2)
    np.testing.assert_allclose(concrete(X, by=2), X @ W * 2, **CLOSE)
    w.assign(2 * W)
    np.testing.assert_allclose(concrete(X, 2), X @ W * 4, **CLOSE)
    for args, said in (((X,), r"float64\[16, 32\], 1"), ((X[:3], 2), r"float64\[3, 32\], 2")):
        with pytest.raises(errors.CaptureError, match=rf"called with \({said}\)"):
            concrete(*args)
    assert len(mine.concrete_functions) == 1


def test_it_is_traced_once_for_each_signature() -> None:
    w, traced = tf.Variable(W), []

    def step(x: Any, by: int = 1) -> Any:
        traced.append(by)
        return x @ w * by

    mine = partitioned(step)
    for x, by in ((X, 1), (tf.constant(X), 1), (2 * X, 1), (X, 2), (X, 1), (X[:3], 1)):
        mine(x, by)
    assert traced == [1, 2, 1]


def test_several_threads() -> None:
    w = tf.Variable(np.zeros((32, 32)))
    mine = partitioned(lambda x: w.assign_add(0 * x + 1))
    x = np.ones((32, 32))
    threads = [threading.Thread(target=lambda: [mine(x) for _ in range(5)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(w, 20 * x)


def test_errors_of_ones_own() -> None:
    class Mine(Exception):
        pass

    def raises(x: Any) -> Any:
        raise Mine("here")

    w = tf.Variable(W)
    with pytest.raises(Mine, match="here"):
        partitioned(raises)(X)
    for wrap in (partitioned, tf.function):  # the same type, whoever runs it
        with pytest.raises(ValueError, match="Dimensions must be equal, but are 31 and 32"):
            wrap(lambda x: x @ w)(X[:, :31])
        with pytest.raises(tf.errors.InvalidArgumentError, match="no number"):
            wrap(lambda x: tf.debugging.check_numerics(x @ w, "no number"))(X * np.nan)


@pytest.mark.parametrize(
    "argument, said",
    [
        (lambda: tf.sparse.from_dense(X), "x is a SparseTensor"),
        (lambda: iter(tf.data.Dataset.from_tensors(X)), "x is a OwnedIterator"),
    ],
)
def test_what_is_no_dense_tensor(argument: Callable[[], Any], said: str) -> None:
    with pytest.raises(errors.CaptureError, match=said):
        partitioned(lambda x: x)(argument())
