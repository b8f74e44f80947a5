"""`tofu_tf.function` against tf.function: the same program, the same numbers."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf

import tofu_tf
from tofu_tf import errors
from tofu_tf.report.counting import count_communication
from tofu_tf.runtime import variables

CLOSE = {"rtol": 1e-10, "atol": 1e-12}
R = np.random.default_rng(0)
X, Y = R.normal(size=(13, 30)), R.normal(size=(13, 25))  # large enough to be cut


def partitioned(function, k=4, **options):
    return tofu_tf.function(function, devices=k, device_type="CPU", **options)


def in_one(function, **options):
    return tf.function(function)


def loop(wrap, k=4, **options):
    """A GradientTape loop over plain variables: its step, loss and variables."""
    rng = np.random.default_rng(1)
    w = [tf.Variable(rng.normal(size=s) * 0.3) for s in [(30, 43), (43,), (43, 25)]]
    slots = [tf.Variable(tf.zeros_like(v)) for v in w]
    count = tf.Variable(0, dtype=tf.int64)

    def step(batch, rate=0.1, power=2):
        x, y = batch["x"], batch["y"]
        with tf.GradientTape() as tape:
            h = tf.tanh(tf.nn.bias_add(tf.matmul(x, w[0]), w[1]))
            loss = tf.reduce_mean(tf.abs(tf.matmul(h, w[2]) - y) ** power)
        for v, m, g in zip(w, slots, tape.gradient(loss, w)):  # noqa: B905  (autograph)
            m.assign(0.9 * m + g)
            v.assign_sub(rate * m)
        count.assign_add(1)
        return {"loss": loss, "seen": (count.read_value(), None)}

    return wrap(step, k=k, **options) if wrap is partitioned else wrap(step), [*w, *slots, count]


def assert_same(left, right):
    for a, b in zip(left, right, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), **CLOSE)


def run_loop(wrap, k=4, **options):
    """cases.md 15: what is seen of a loop on the way, its variables and its step."""
    step, state = loop(wrap, k, **options)
    seen = []
    for i in range(6):
        rows = 13 if i % 2 else 8  # two shapes
        out = step({"x": tf.constant(X[:rows]), "y": Y[:rows]}, power=2 if i < 4 else 3)
        seen += [out["loss"].numpy(), out["seen"][0].numpy(), state[0].numpy().sum()]
        assert out["seen"][1] is None
        state[2].assign(state[2] * 0.9)
        state[1][2:4].assign([0.5, -0.5])
    return seen, state, step


@pytest.mark.parametrize("k", [2, 3, 4])
def test_a_loop_with_a_tape(k):
    seen, state, step = run_loop(partitioned, k)
    expected, theirs, _ = run_loop(in_one)
    np.testing.assert_allclose(seen, expected, **CLOSE)
    assert_same(state, theirs)
    assert len(step.concrete_functions) == 4  # two shapes, two powers
    regions = {part.region for part in variables.sharding_of(state[0]).parts}
    assert len(regions) == k


def test_what_ran_can_be_seen():
    step, _ = loop(partitioned)
    assert step.plan is None
    assert step.graph_def is None
    spec = {"x": tf.TensorSpec([8, 30], tf.float64), "y": tf.TensorSpec([8, 25], tf.float64)}
    concrete = step.get_concrete_function(spec)
    assert step.get_concrete_function(batch=spec, rate=0.1).plan is concrete.plan is step.plan
    devices = {node.device for node in concrete.graph_def.node}
    assert len(devices) == 4
    placed = concrete.placed
    counted = count_communication(placed.graph_def, placed.feed_nodes, placed.result_nodes)
    assert counted.total == concrete.plan.predicted_bytes > 0
    assert "float64[8, 30], float64[8, 25], 0.1, 2" in repr(concrete)
    assert step.machine.workers == 4


def made_inside(wrap):
    class Model(tf.Module):
        def __init__(self):
            super().__init__()
            self.w = None

        def __call__(self, x, scale=1.0):
            if self.w is None:
                self.w = tf.Variable(np.arange(750).reshape(30, 25) / 750.0, name="w")
            self.w.assign_add(0.001 * tf.matmul(x, tf.matmul(x, self.w), transpose_a=True))
            return scale * tf.matmul(x, self.w)

    model = Model()
    return wrap(model.__call__), model


def test_variables_made_on_the_first_call():
    (step, model), (other, one) = made_inside(partitioned), made_inside(in_one)
    for scale in (1.0, 1.0, 3.0):
        np.testing.assert_allclose(step(X, scale), other(X, scale), **CLOSE)
        assert_same([model.w], [one.w])
    step(X[:4])
    assert len(step.concrete_functions) == 3


def test_variables_made_on_every_call():
    step = partitioned(lambda x: x + tf.Variable(1.0))
    with pytest.raises(ValueError, match="singleton"):
        step(tf.constant([1.0, 2.0]))


def test_inside_a_function():
    def outer_of(wrap):
        step, state = loop(wrap)

        @tf.function
        def outer(x, y):
            total = tf.constant(0.0, tf.float64)
            for i in tf.range(3):
                out = step({"x": x, "y": y})
                state[2].assign(state[2] * 0.9)
                if i > 0:
                    total += out["loss"]
            return total, step({"x": x, "y": y})["loss"], tf.reduce_sum(state[0])

        return outer, state

    outer, state = outer_of(partitioned)
    expected, theirs = outer_of(in_one)
    for _ in range(2):
        np.testing.assert_allclose(outer(X, Y), expected(X, Y), **CLOSE)
        assert_same(state, theirs)


def test_inside_another_partitioned_one():
    w = tf.Variable(np.ones((30, 25)))
    inner = partitioned(lambda x, by: tf.matmul(x, w) * by)

    def step(x):
        w.assign(w * 0.5)
        return inner(x, 2.0)

    np.testing.assert_allclose(inner(X, 3.0), X @ w.numpy() * 3, **CLOSE)
    outer = partitioned(step)
    for _ in range(2):
        value = outer(X)
        np.testing.assert_allclose(value, X @ w.numpy() * 2, **CLOSE)
    np.testing.assert_allclose(w, np.full((30, 25), 0.25))
    assert len(inner.concrete_functions) == 1


def test_autograph_converts_what_is_called():
    w = tf.Variable(np.ones((30, 25)))

    def branch(x):
        if tf.reduce_sum(x) > 0:
            return tf.matmul(x, w)
        return -tf.matmul(x, w)

    # Without autograph Python would ask a symbolic tensor for its truth.
    inner = partitioned(branch)
    for call in (inner, partitioned(lambda x: inner(x)), tf.function(lambda x: inner(x))):
        for sign in (1.0, -1.0):
            x = sign * np.abs(X)
            np.testing.assert_allclose(call(tf.constant(x)), sign * (x @ w.numpy()), **CLOSE)


def test_a_shared_variable_stays_where_the_first_function_put_it():
    step, state = loop(partitioned)
    step({"x": X, "y": Y})
    before = variables.sharding_of(state[0]).resources
    read = partitioned(lambda x: tf.matmul(x, state[0]))
    np.testing.assert_allclose(read(X), X @ state[0].numpy(), **CLOSE)
    step({"x": X, "y": Y})
    assert variables.sharding_of(state[0]).resources is before


def test_arguments_of_every_kind():
    class Rate:
        def __init__(self, value):
            self.value = value

    scale, other = tf.Variable(2.0, dtype=tf.float64), tf.Variable(2.0, dtype=tf.float64)

    def step(x, _by, *more, rate, switch=True, **named):
        out = x * _by if switch else x
        for term in more:
            out += term
        return [out * rate.value, named["bias"] + 1, "x_" in named]

    mine, theirs = partitioned(step), in_one(step)
    rate = Rate(3.0)
    for args, kwargs in [
        ((X, 2), {"rate": rate, "bias": X[0]}),
        ((X, 2, X, 1.5), {"rate": rate, "bias": X[0], "x_": "text"}),
        ((X, scale), {"switch": False, "rate": rate, "bias": tf.constant(X[0])}),
        ((X, 2), {"bias": X[0], "rate": rate}),
    ]:
        # a variable in parts is no argument of a tf.function
        plain = [other if a is scale else a for a in args]
        for a, b in zip(mine(*args, **kwargs), theirs(*plain, **kwargs), strict=True):
            np.testing.assert_allclose(a, b, **CLOSE)
    assert len(mine.concrete_functions) == 3
    mine(X, True, rate=rate, bias=X[0])  # True is not 1
    mine(X, 1, rate=rate, bias=X[0])
    assert len(mine.concrete_functions) == 5


def test_a_decorated_method():
    class Model:
        def __init__(self, value):
            self.w = tf.Variable(np.full((30, 25), value))

        @tofu_tf.function(devices=2, device_type="CPU")
        def __call__(self, x):
            """The product."""
            self.w.assign(self.w * 2)
            return tf.matmul(x, self.w)

    first, second = Model(1.0), Model(3.0)
    np.testing.assert_allclose(first(X), X @ np.full((30, 25), 2.0), **CLOSE)
    np.testing.assert_allclose(second(X), X @ np.full((30, 25), 6.0), **CLOSE)
    np.testing.assert_allclose(first(X), X @ np.full((30, 25), 4.0), **CLOSE)
    assert first.__call__.__doc__ == "The product."
    assert len(first.__call__.concrete_functions) == 1
    gone = weakref.ref(second)
    del second
    gc.collect()
    assert gone() is None


def test_errors_inside_come_through_and_the_next_call_works():
    w = tf.Variable(np.ones((30, 25)))

    def step(x, fail=False):
        if fail:
            raise KeyError("mine")
        y = tf.matmul(tf.debugging.check_numerics(x, "not a number here"), w)
        w.assign_add(tf.ones_like(w))
        return y

    mine = partitioned(step)
    with pytest.raises(KeyError, match="mine"):
        mine(X, True)
    for _ in range(2):
        with pytest.raises(tf.errors.InvalidArgumentError, match="not a number here"):
            mine(X * np.nan)
        value = w.numpy()
        np.testing.assert_allclose(mine(X), X @ value, **CLOSE)
        np.testing.assert_allclose(w, value + 1, **CLOSE)
    with pytest.raises(TypeError, match="missing a required argument: 'x'"):
        mine()


@pytest.mark.parametrize(
    "value, said",
    [
        (tf.TensorSpec([None, 30]), r"x is float32\(None, 30\)"),
        (tf.ragged.constant([[1.0], [1.0, 2.0]]), "x is a RaggedTensor"),
    ],
)
def test_arguments_that_are_refused(value, said):
    with pytest.raises(errors.CaptureError, match=said):
        partitioned(lambda x: x + 1).get_concrete_function(value)


@pytest.mark.parametrize("where", ["eagerly", "in a graph"])
def test_a_tape_around_it_is_refused(where):
    w = tf.Variable(np.ones((30, 25)))
    mine = partitioned(lambda x: tf.reduce_sum(tf.matmul(x, w)))

    def outside(x):
        with tf.GradientTape() as tape:
            loss = mine(x)
        return tape.gradient(loss, w)

    outside = outside if where == "eagerly" else tf.function(outside)
    with pytest.raises(errors.CaptureError, match="take the gradient inside"):
        outside(tf.constant(X))


def test_a_loop_outlives_its_trace():
    """The functions that a step calls stay registered when what traced them is gone."""
    w = tf.Variable(np.ones((30, 25)))

    def looped(x):
        n = tf.constant(0)
        while n < tf.cast(tf.reduce_sum(x), tf.int32) % 3 + 2:
            x *= 1.5
            n += 1
        return tf.matmul(x, w)

    expected = tf.function(looped)(X).numpy()
    inner = partitioned(looped, 2)
    inner.get_concrete_function(X)
    gc.collect()
    for call in (tf.function(lambda x: inner(x)), inner):
        np.testing.assert_allclose(call(tf.constant(X)), expected, **CLOSE)
        gc.collect()
