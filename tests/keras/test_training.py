"""fit, evaluate and predict of a distributed model equal those of the same model on one device."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tofu_tf
from tofu_tf.runtime import variables

# Five steps in float32, summed in another order.
CLOSE = {"rtol": 1e-4, "atol": 1e-5}

R = np.random.RandomState(0)
X, Y = R.rand(33, 8).astype(np.float32), R.rand(33, 4).astype(np.float32)
FIT = {"batch_size": 16, "epochs": 2, "shuffle": False, "verbose": 0}


def mlp(optimizer="sgd", loss="mse", metrics=(), compiled=True, **options):
    tf_keras.utils.set_random_seed(1)
    model = tf_keras.Sequential(
        [tf_keras.layers.Dense(16, "relu", input_shape=(8,)), tf_keras.layers.Dense(4)]
    )
    if compiled:
        optimizer = tf_keras.optimizers.get(optimizer)
        model.compile(optimizer, loss, metrics=list(metrics), **options)
    return model


def spread(model, k=2, **options):
    return tofu_tf.distribute(model, k, device_type="CPU", **options)


def pair(k=2, make=mlp, **options):
    return make(**options), spread(make(**options), k)


def assert_same_state(model, other):
    for group in ("weights", "optimizer", "metrics"):
        mine, theirs = state(model, group), state(other, group)
        assert len(mine) == len(theirs)
        for a, b in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), err_msg=a.name, **CLOSE)


def state(model, group):
    if group == "weights":
        return model.weights
    if group == "optimizer":
        return model.optimizer.variables if model.optimizer else []
    return [v for metric in model.metrics for v in metric.variables]


def assert_same_history(history, expected):
    assert list(history.history) == list(expected.history)
    for key, values in expected.history.items():
        np.testing.assert_allclose(history.history[key], values, err_msg=key, **CLOSE)


@pytest.mark.parametrize("k, optimizer", [(1, "sgd"), (2, "adam"), (3, "sgd"), (4, "adam")])
def test_fit_evaluate_predict(k, optimizer):
    one, many = pair(k, optimizer=optimizer, metrics=["mae"])
    assert_same_history(many.fit(X, Y, **FIT), one.fit(X, Y, **FIT))
    assert_same_state(many, one)
    np.testing.assert_allclose(
        many.evaluate(X, Y, batch_size=16, verbose=0),
        one.evaluate(X, Y, batch_size=16, verbose=0),
        **CLOSE,
    )
    np.testing.assert_allclose(
        many.predict(X, batch_size=16, verbose=0), one.predict(X, batch_size=16, verbose=0), **CLOSE
    )


def test_the_last_smaller_batch():
    """cases.md 2: the losses of one device."""
    model = spread(mlp(tf_keras.optimizers.SGD(0.1)), 4)
    losses = model.fit(X, Y, **FIT).history["loss"]
    np.testing.assert_allclose(losses, [0.33344, 0.21783], atol=6e-6)  # five digits are given


def by_batch_size(y, p):
    size = tf.cast(tf.shape(y)[0], tf.float32)
    return tf.reduce_sum(tf.math.squared_difference(y, p)) / size


@pytest.mark.parametrize("rows, batch", [(33, 16), (5, 1), (7, 3), (3, 32)])
def test_batches_of_any_size(rows, batch):
    """Batches of one row, fewer rows than devices, a loss that divides by the batch's size."""
    one, many = pair(4, loss=by_batch_size)
    options = FIT | {"batch_size": batch, "validation_split": 0.3}
    data = X[:rows], Y[:rows]
    assert_same_history(many.fit(*data, **options), one.fit(*data, **options))
    assert_same_state(many, one)
    got = many.predict(data[0], batch_size=batch, verbose=0)
    np.testing.assert_allclose(got, one.predict(data[0], batch_size=batch, verbose=0), **CLOSE)


def test_predict_keeps_the_order_of_rows():
    model = mlp(compiled=False)
    expected = model(X).numpy()
    spread(model, 3)
    np.testing.assert_allclose(model.predict(X, batch_size=5, verbose=0), expected, **CLOSE)
    np.testing.assert_allclose(model.predict_on_batch(X[:7]), expected[:7], **CLOSE)


def subclassed():
    tf_keras.utils.set_random_seed(2)

    class Classifier(tf_keras.Model):
        def __init__(self):
            super().__init__()
            self.hidden = tf_keras.layers.Dense(12, "tanh")
            self.head = tf_keras.layers.Dense(5)

        def call(self, x, training=False):
            return self.head(self.hidden(x))

    return Classifier()


def test_unbuilt_and_compiled_later():
    labels = R.randint(0, 5, size=33)
    loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    one, many = subclassed(), spread(subclassed(), 4)
    histories = []
    for model in (one, many):
        tf_keras.utils.set_random_seed(3)
        model.compile("adam", loss, metrics=["accuracy"])
        histories.append(model.fit(X, labels, **FIT))
    assert_same_history(histories[1], histories[0])
    assert_same_state(many, one)


def test_single_batches():
    one, many = pair(metrics=["mae"])
    for _ in range(3):
        np.testing.assert_allclose(many.train_on_batch(X, Y), one.train_on_batch(X, Y), **CLOSE)
    np.testing.assert_allclose(many.test_on_batch(X, Y), one.test_on_batch(X, Y), **CLOSE)
    assert many.test_on_batch(X, Y, return_dict=True).keys() == {"loss", "mae"}


def test_predicting_first_does_not_fix_how_variables_lie():
    one, many = pair(2, metrics=["mae"])
    np.testing.assert_allclose(many.predict(X, verbose=0), one.predict(X, verbose=0), **CLOSE)
    many.evaluate(X, Y, verbose=0)
    one.evaluate(X, Y, verbose=0)
    fresh = spread(mlp(metrics=["mae"]), 2, batch=(X[:16], Y[:16]))
    one.fit(X, Y, **FIT)
    many.fit(X, Y, **FIT)
    assert_same_state(many, one)

    def layouts(plan):
        return {name: plan.layouts[v.ref] for name, v in plan.variables.items()}

    found = {tuple(layouts(many.tofu.plan).values()), tuple(layouts(fresh.tofu.plan).values())}
    assert len(found) == 1
    before = [variables.sharding_of(v).resources for v in many.weights]
    many.predict(X, verbose=0)
    many.evaluate(X, Y, verbose=0)
    many.train_on_batch(X[:5], Y[:5])
    after = [variables.sharding_of(v).resources for v in many.weights]
    assert all(
        a is b
        for old, new in zip(before, after, strict=True)
        for a, b in zip(old, new, strict=True)
    )


def test_weights_are_whole_and_current(tmp_path):
    one, many = pair(4, optimizer="adam")
    one.fit(X, Y, **FIT)
    many.fit(X, Y, **FIT)
    for a, b in zip(many.get_weights(), one.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, **CLOSE)
    many.set_weights([w * 0.5 for w in one.get_weights()])
    one.set_weights([w * 0.5 for w in one.get_weights()])
    one.fit(X, Y, **FIT)
    many.fit(X, Y, **FIT)
    assert_same_state(many, one)
    many.save_weights(str(tmp_path / "w.h5"))
    plain = mlp()
    plain.load_weights(str(tmp_path / "w.h5"))
    for a, b in zip(many.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_memory_is_cut():
    model = tf_keras.Sequential([tf_keras.layers.Dense(64, input_shape=(32,))])
    model.compile("adam", "mse")
    spread(model, 2).train_on_batch(np.ones([6, 32]), np.ones([6, 64]))
    kernel = model.layers[0].kernel
    parts = variables.sharding_of(kernel).resources
    assert sorted(p.shape.num_elements() for p in parts) == [32 * 64 // 2] * 2
    emptied = tf.raw_ops.ReadVariableOp(resource=kernel.handle, dtype=tf.float32)
    assert emptied.shape.num_elements() == 0
    slots = [v for v in model.optimizer.variables if v.shape == kernel.shape]
    for slot in slots:
        assert [p.shape for p in variables.sharding_of(slot).resources] == [p.shape for p in parts]
    assert len(slots) == 2


def test_recompiling_keeps_the_distribution():
    one, many = pair(2)
    one.fit(X, Y, **FIT)
    many.fit(X, Y, **FIT)
    before = [variables.sharding_of(v).resources for v in many.weights]
    for model in (one, many):
        model.compile(tf_keras.optimizers.Adam(0.01), "mae", metrics=["mse"])
    assert many.tofu.plans == {}
    assert_same_history(many.fit(X, Y, **FIT), one.fit(X, Y, **FIT))
    assert_same_state(many, one)
    after = [variables.sharding_of(v).resources for v in many.weights]
    assert all(
        a is b
        for old, new in zip(before, after, strict=True)
        for a, b in zip(old, new, strict=True)
    )
    assert all(variables.sharding_of(v) is not None for v in many.optimizer.variables[:-1])


@pytest.mark.parametrize("steps", [2, 3])
def test_steps_per_execution(steps):
    one, many = pair(2, steps_per_execution=steps, metrics=["mae"])
    options = FIT | {"batch_size": 8}
    assert_same_history(many.fit(X, Y, **options), one.fit(X, Y, **options))
    assert_same_state(many, one)
    got = many.predict(X, batch_size=8, verbose=0)
    np.testing.assert_allclose(got, one.predict(X, batch_size=8, verbose=0), **CLOSE)


def test_side_effects_happen_once():
    """cases.md 10: seven steps count as seven."""

    class Counting(tf_keras.layers.Layer):
        def build(self, shape):
            self.calls = self.add_weight(
                "calls", shape=(), dtype="int64", initializer="zeros", trainable=False
            )

        def call(self, x):
            self.calls.assign_add(1)
            return x

    tf_keras.utils.set_random_seed(1)
    model = tf_keras.Sequential(
        [tf_keras.layers.Dense(8, input_shape=(8,)), Counting(), tf_keras.layers.Dense(4)]
    )
    mean = tf_keras.metrics.MeanAbsoluteError()
    model.compile(tf_keras.optimizers.SGD(0.01, use_ema=True), "mse", metrics=[mean])
    spread(model, 4)
    model.fit(X[:28], Y[:28], batch_size=4, verbose=0, epochs=1)
    assert model.layers[1].calls.numpy() == 7
    assert model.optimizer.iterations.numpy() == 7
    assert model._train_counter.numpy() == 7
    assert mean.count.numpy() == 28


def test_two_models_interleaved():
    """cases.md 11."""
    ones, manys = zip(pair(2), pair(3, optimizer="adam"), strict=True)
    for rows in (16, 5):
        for one, many in zip(ones, manys, strict=True):
            for model in (one, many):
                model.train_on_batch(X[:rows], Y[:rows])
            np.testing.assert_allclose(
                many.predict(X[:9], verbose=0), one.predict(X[:9], verbose=0), **CLOSE
            )
            np.testing.assert_allclose(
                many.evaluate(X[:rows], Y[:rows], verbose=0),
                one.evaluate(X[:rows], Y[:rows], verbose=0),
                **CLOSE,
            )
    for one, many in zip(ones, manys, strict=True):
        assert_same_state(many, one)


def test_models_that_share_layers():
    def make():
        tf_keras.utils.set_random_seed(4)
        trunk = tf_keras.Sequential([tf_keras.layers.Dense(8, input_shape=(8,))])
        heads = [tf_keras.Sequential([trunk, tf_keras.layers.Dense(4)]) for _ in range(2)]
        for head in heads:
            head.compile("sgd", "mse")
        return heads

    ones, manys = make(), [spread(model, 2) for model in make()]
    for _ in range(2):
        for one, many in zip(ones, manys, strict=True):
            np.testing.assert_allclose(many.train_on_batch(X, Y), one.train_on_batch(X, Y), **CLOSE)
    for one, many in zip(ones, manys, strict=True):
        assert_same_state(many, one)


class Stop(Exception):
    pass


def raising():
    yield X[:16], Y[:16]
    raise Stop


def interrupted():
    class Interrupt(tf_keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise KeyboardInterrupt

    return Interrupt()


def checked(y, p):
    return tf.debugging.check_numerics(tf.reduce_mean(tf.square(y - p), -1), "loss")


@pytest.mark.parametrize(
    "error, spoil",
    [
        (ValueError, lambda model: model.fit(X, Y[:, :3], **FIT)),
        ((tf.errors.InvalidArgumentError,), lambda model: model.fit(X * np.nan, Y, **FIT)),
        ((Stop, tf.errors.UnknownError), lambda model: model.fit(raising(), verbose=0)),
        (KeyboardInterrupt, lambda model: model.fit(X, Y, callbacks=[interrupted()], **FIT)),
    ],
)
def test_an_error_comes_through_and_the_next_fit_works(error, spoil):
    model = spread(mlp(loss=checked), 2)
    with pytest.raises(error):
        spoil(model)
    one = mlp(loss=checked)
    weights = one.get_weights()
    model.set_weights(weights)
    assert_same_history(model.fit(X, Y, **FIT), one.fit(X, Y, **FIT))


def test_data_sets_that_end():
    one, many = pair(2)
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(16)
    unknown = data.filter(lambda x, y: True)
    for model in (one, many):
        model.fit(unknown, epochs=2, verbose=0)
        model.fit(data.repeat(), steps_per_epoch=3, verbose=0)
    for a, b in zip(many.get_weights(), one.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, **CLOSE)
    # Keras's own function counts one step more: it advances the counter before the data run out.
    assert many.optimizer.iterations.numpy() == 9


def test_dictionaries_and_weights():
    def make():
        tf_keras.utils.set_random_seed(6)
        a, b = tf_keras.Input((8,), name="a"), tf_keras.Input((4,), name="b")
        joined = tf_keras.layers.Concatenate()([a, b])
        model = tf_keras.Model(
            {"a": a, "b": b}, {"out": tf_keras.layers.Dense(3, name="out")(joined)}
        )
        model.compile("sgd", {"out": "mse"}, weighted_metrics=["mae"])
        return model

    one, many = make(), spread(make(), 2)
    data = {"x": {"a": X, "b": Y}, "y": {"out": X[:, :3]}, "sample_weight": Y[:, 0]}
    assert_same_history(many.fit(**data, **FIT), one.fit(**data, **FIT))
    found = many.predict(data["x"], verbose=0)
    np.testing.assert_allclose(found["out"], one.predict(data["x"], verbose=0)["out"], **CLOSE)


def test_learning_rates_change_between_epochs():
    one, many = pair(2)
    halve = tf_keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)
    for model in (one, many):
        model.fit(X, Y, callbacks=[halve], **FIT)
    assert_same_state(many, one)
    assert many.optimizer.learning_rate.numpy() == one.optimizer.learning_rate.numpy()


def test_from_inside_a_function():
    one, many = pair(2)
    train = many.make_train_function()
    iterator = iter(tf.data.Dataset.from_tensors((X, Y)).repeat())

    @tf.function
    def three():
        for _ in tf.range(3):
            logs = train(iterator)
        return logs["loss"]

    for _ in range(2):
        three()
    for _ in range(6):
        one.train_on_batch(X, Y)
    for a, b in zip(many.get_weights(), one.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, **CLOSE)


def test_two_threads():
    one, many = pair(2)
    many.train_on_batch(X, Y)
    one.train_on_batch(X, Y)
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(many.predict_on_batch(X))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(results) == 4
    for result in results:
        np.testing.assert_allclose(result, one.predict_on_batch(X), **CLOSE)


@pytest.mark.parametrize("ending", [".keras", ".h5", ""])
def test_saved_models_are_ordinary_ones(tmp_path, ending):
    model = spread(mlp("adam"), 2)
    model.fit(X, Y, **FIT)
    path = tmp_path / f"saved{ending}"
    model.save(path)
    plain = tf_keras.models.load_model(path)
    for a, b in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    if not ending:
        assert b"task:0" not in (path / "saved_model.pb").read_bytes()
    np.testing.assert_allclose(plain.predict(X, verbose=0), model.predict(X, verbose=0), **CLOSE)
    plain.fit(X, Y, **FIT)
    model.fit(X, Y, **FIT)
    if ending:  # Keras's SavedModels do not bring back the optimizer's counter and slots at once
        assert_same_state(model, plain)


def test_exported_functions_are_ordinary_ones(tmp_path):
    model = spread(mlp("adam"), 2)
    model.fit(X, Y, **FIT)
    model.export(str(tmp_path / "exported"))
    loaded = tf.saved_model.load(str(tmp_path / "exported"))
    np.testing.assert_allclose(loaded.serve(X), model.predict(X, verbose=0), **CLOSE)
