"""Training with collectives: one device's numbers, no hang, and life after an error."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import tofu_tf
from tests.end_to_end import oracle, programs
from tofu_tf.plan.machine import imagined, machine_of
from tofu_tf.runtime import devices
from tofu_tf.runtime.steps import Steps

R = np.random.default_rng(0)
X, Y = R.normal(size=(40, 32)).astype("float32"), R.normal(size=(40, 24)).astype("float32")
COLLECTIVE = {"device_type": "CPU", "lowering": "collective"}


def mlp(optimizer: str = "adam", units: int = 48) -> keras.Model:
    model = keras.Sequential(
        [
            keras.layers.Dense(units, "relu", input_shape=(32,)),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(units, "tanh"),
            keras.layers.Dense(24),
        ]
    )
    model.compile(optimizer, "mse", metrics=["mae"])
    return model


def collectives(graph_def: tf.compat.v1.GraphDef) -> int:
    return sum(node.op.startswith("Collective") for node in graph_def.node)


@pytest.mark.parametrize("k", [2, 3, 4])
def test_two_models_and_changing_batches(k: int) -> None:
    makers = [lambda: mlp("adam", 48), lambda: mlp("sgd", 36)]
    ones = [oracle.made(make) for make in makers]
    spread = [tofu_tf.distribute(oracle.made(make), k, **COLLECTIVE) for make in makers]
    for batch in (16, 12, 16):  # the last one smaller
        for one, many in zip(ones, spread, strict=True):
            expected = oracle.train(one, (X, Y), batch)
            oracle.assert_equal(oracle.train(many, (X, Y), batch), expected, oracle.FLOAT32)
            np.testing.assert_allclose(
                many.predict(X, batch_size=batch, verbose=0),
                one.predict(X, batch_size=batch, verbose=0),
                **oracle.FLOAT32,
            )
    for many in spread:
        oracle.assert_steps_hold(many)
        assert any(collectives(step.placed.graph_def) for step in many.tofu.steps)


def test_inside_a_function_and_twice_in_a_step() -> None:
    w = tf.Variable(R.normal(size=(64, 64)))
    value = w.numpy()

    def product(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.matmul(x, w), tf.matmul(tf.matmul(x, w), w)

    def pure(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return tf.matmul(tf.matmul(x, y), y)

    mine = tofu_tf.function(product, devices=4, **COLLECTIVE)
    other = tofu_tf.function(pure, devices=4, **COLLECTIVE)
    spec = tf.TensorSpec([64, 64], tf.float64)
    assert collectives(mine.get_concrete_function(spec).graph_def)
    assert collectives(other.get_concrete_function(spec, spec).graph_def)

    @tf.function
    def outer(x: tf.Tensor) -> tf.Tensor:
        one, _unused = mine(x)
        mine(x)
        both = other(x, x) + other(2 * x, x)  # no variable puts these in order
        for _ in tf.range(3):
            both += other(x, x)
        return one + both + mine(x)[1]

    x = R.normal(size=(64, 64)) / 8
    expected = x @ value + 6 * x @ x @ x + x @ value @ value
    for _ in range(3):
        np.testing.assert_allclose(outer(tf.constant(x)), expected, rtol=1e-9, atol=1e-9)


def test_unequal_shards_train_point_to_point() -> None:
    model = oracle.check(
        lambda: mlp("sgd", 37), (X[:35], Y[:35]), 3, batch=7, lowering="collective"
    )
    (step,) = model.tofu.steps
    kinds = tofu_tf.describe(step).split("communication by kind\n")[1].splitlines()
    changes = {line.split("  ")[0]: line.split() for line in kinds if line[:1].isalpha()}
    # What is exactly a collective is not marked, and only that has its members in the graph.
    assert [kind for kind in changes if kind.endswith("(p2p)")]
    together = [k for k in changes if k.startswith(("all-", "reduce-")) and "(p2p)" not in k]
    assert bool(together) == bool(collectives(step.placed.graph_def))


def test_an_output_that_nobody_uses() -> None:
    """Pruned in a tf.function around it, where a collective without all its members would hang."""
    w = tf.Variable(R.normal(size=(64, 64)))
    mine = tofu_tf.function(
        lambda x: (tf.matmul(x, w), tf.matmul(tf.matmul(x, w), w), tf.reduce_sum(x)),
        devices=4,
        **COLLECTIVE,
    )
    x = R.normal(size=(64, 64))
    assert collectives(mine.get_concrete_function(tf.TensorSpec(x.shape, x.dtype)).graph_def)
    for used in range(3):
        outer = tf.function(lambda x, used=used: mine(x)[used])
        expected = (x @ w.numpy(), x @ w.numpy() @ w.numpy(), x.sum())[used]
        np.testing.assert_allclose(outer(x), expected, rtol=1e-9, atol=1e-9)
    tf.function(lambda x: [mine(x), tf.constant(1)][1])(x)  # none of them


PROGRAM = """
import numpy as np, tensorflow as tf, tofu_tf
tofu_tf.use_cpus(4)
w = tf.Variable(np.eye(64))
def step(x):
    y = tf.matmul(tf.debugging.check_numerics(tf.matmul(x, w), "not a number here"), w)
    w.assign_add(0.01 * tf.matmul(x, y, transpose_a=True))
    return y
mine = tofu_tf.function(step, devices=4, device_type="CPU", lowering="collective")
count = lambda: sum(n.op.startswith("Collective") for n in mine.graph_def.node)
x = np.ones((64, 64)) / 8
bad = x.copy()
bad[WHERE] = np.nan
mine(x)
before = w.numpy()
assert count()
try:
    mine(bad)
except tf.errors.InvalidArgumentError as error:
    assert "not a number here" in str(error), error
    print("came through")
for _ in range(2):
    before = w.numpy()
    np.testing.assert_allclose(mine(x), x @ before @ before)
    np.testing.assert_allclose(w, before + 0.01 * x.T @ (x @ before @ before))
again = tofu_tf.function(lambda x: x @ w @ w, devices=4, device_type="CPU", lowering="collective")
np.testing.assert_allclose(again(x), x @ w.numpy() @ w.numpy())
print("goes on, collectives left:", count())
"""


@pytest.mark.parametrize("where", [":", "0", "63", "(slice(None), 0)"])
def test_an_error_amid_collectives(where, tmp_path) -> None:
    """The user's error comes through, from all devices or one while others wait, and training goes
    on, if need be point to point.
    """
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.replace("WHERE", where))
    ran = programs.run(str(path))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "came through" in ran.stdout
    assert "goes on" in ran.stdout


LATE = """
import tensorflow as tf, tofu_tf
tofu_tf.use_cpus(2)
from tofu_tf.rewrite.placed import Placed
from tofu_tf.runtime import devices, function
from tofu_tf.errors import DeviceError
cpus = devices.find_devices(2, "CPU")
w = tf.Variable(tf.ones([64, 64]))
mine = tofu_tf.function(
    lambda x: x @ w @ w, devices=2, device_type="CPU", lowering="collective")
count = lambda: sum(n.op.startswith("Collective") for n in mine.graph_def.node)
mine(tf.ones([64, 64]))
print(count() > 0)
with tf.Graph().as_default() as graph, tf.device(cpus[0]):
    tf.raw_ops.CollectiveReduceV2(
        input=tf.ones([4]), group_size=2, group_key=77, instance_key=1, ordering_token=[],
        merge_op="Add", final_op="Id", timeout_seconds=1, name="dense/piece0/collected")
name = "dense/piece0/collected"
placed = Placed(graph.as_graph_def(), (), (name + ":0",), (), (name,), groups={77: cpus})
try:
    function.PlacedFunction(placed)([], [])
except DeviceError as error:
    print(error)
print(float(mine(tf.ones([64, 64]))[0, 0]), count())
"""


def test_a_member_that_does_not_come(tmp_path) -> None:
    path = tmp_path / "late.py"
    path.write_text(LATE)
    ran = programs.run(str(path))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "dense/piece0/collected: a collective timed out over" in ran.stdout
    assert "CPU:0" in ran.stdout
    assert "CPU:1" in ran.stdout
    assert ran.stdout.startswith("True\n")
    assert ran.stdout.endswith("4096.0 0\n")  # no collective left, as none would run


def test_auto_is_point_to_point_on_cpus() -> None:
    machine = machine_of(devices.find_devices(2, "CPU"), None)
    assert Steps(machine, lowering="auto")._lowering == "p2p"


def test_gpus_that_share_a_chip_are_refused(monkeypatch) -> None:
    machine = imagined(2, "GPU")
    monkeypatch.setattr(devices, "are_distinct_gpus", lambda names: False)
    with pytest.raises(tofu_tf.TofuError, match="on one physical GPU"):
        Steps(machine, lowering="collective")
    assert Steps(machine, lowering="auto")._lowering == "p2p"
    monkeypatch.setattr(devices, "are_distinct_gpus", lambda names: True)
    assert {Steps(machine, lowering=way)._lowering for way in ("auto", "collective")} == {
        "collective"
    }


def cnn() -> keras.Model:
    model = keras.Sequential(
        [
            keras.layers.Conv2D(8, 3, padding="same", activation="relu", input_shape=(8, 8, 4)),
            keras.layers.BatchNormalization(),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(12),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"], steps_per_execution=2)
    return model


def test_a_convolutional_net_in_steps_of_two() -> None:
    data = R.normal(size=(32, 8, 8, 4)).astype("float32"), R.integers(0, 12, 32)
    options = {"batch": 8, "validation_split": 0.25, "lowering": "collective"}
    model = oracle.check(cnn, data, 4, **options)
    assert all(collectives(step.placed.graph_def) for step in model.tofu.steps)


def test_an_unknown_lowering() -> None:
    step = tofu_tf.function(lambda x: x + 1, devices=2, device_type="CPU", lowering="magic")
    with pytest.raises(tofu_tf.TofuError, match="one of 'auto', 'collective', 'p2p'"):
        step(tf.ones([4]))
