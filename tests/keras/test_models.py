"""distribute(): what it takes, what it refuses, and what model.tofu shows."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tofu_tf
from tofu_tf import errors
from tofu_tf.plan import files
from tofu_tf.plan.machine import imagined
from tofu_tf.runtime import variables

X = np.random.default_rng(0).normal(size=(8, 6))  # float64: Keras casts it
Y = np.random.default_rng(1).normal(size=(8, 4)).astype(np.float32)


def mlp(compiled=True, built=True, **options):
    tf_keras.utils.set_random_seed(5)
    layers = [
        tf_keras.layers.Dense(
            10, "relu", name="hidden", **({"input_shape": (6,)} if built else {})
        ),
        tf_keras.layers.Dense(4, name="head"),
    ]
    model = tf_keras.Sequential(layers, name="mlp")
    if compiled:
        model.compile("sgd", "mse", **options)
    return model


def spread(model, k=2, **options):
    return tofu_tf.distribute(model, k, device_type="CPU", **options)


def test_the_model_stays_itself():
    model = mlp()
    assert spread(model) is model
    assert isinstance(model, tf_keras.Sequential)
    assert model.tofu.devices == imagined(2).devices
    assert model.tofu.plan is None
    assert model.tofu.graph_def is None
    assert "none yet" in repr(model.tofu)


@pytest.mark.parametrize(
    "batch",
    [
        (X, Y),
        (X, Y, None),
        (tf.constant(X, tf.float32), Y),
        (tf.TensorSpec([8, 6]), tf.TensorSpec([8, 4])),
        tf.data.Dataset.from_tensor_slices((X.astype("float32"), Y)).batch(8, drop_remainder=True),
    ],
)
def test_a_batch_plans_at_once(batch):
    model = spread(mlp(), batch=batch)
    assert list(model.tofu.plans) == [("train", "float32[8, 6], float32[8, 4]")]
    plan = model.tofu.plan
    assert all(variables.sharding_of(v) is None for v in model.variables)
    assert {node.device for node in model.tofu.graph_def.node} <= set(model.tofu.devices)
    model.train_on_batch(X, Y)
    assert model.tofu.plan is plan
    assert len(model.tofu.plans) == 1
    assert all(variables.sharding_of(v) is not None for v in model.variables)


def test_an_uncompiled_model_is_planned_for_prediction():
    model = spread(mlp(compiled=False), batch=(X, Y))
    assert [kind for kind, _ in model.tofu.plans] == ["predict"]


@pytest.mark.parametrize(
    "batch, said",
    [
        ((tf.TensorSpec([None, 6]), tf.TensorSpec([None, 4])), ["float32(None, 6)", "(None, 4)"]),
        (tf.data.Dataset.from_tensor_slices((X, Y)).batch(8), ["(None, 6)", "drop_remainder"]),
        ((X, 3), ["a int"]),
        (tf.sparse.from_dense(X), ["a SparseTensor"]),
    ],
)
def test_a_batch_needs_static_shapes(batch, said):
    with pytest.raises(errors.ModelError) as refused:
        spread(mlp(), batch=batch)
    assert [text for text in said if text not in str(refused.value)] == []


def eager_everywhere(model):
    tf.config.run_functions_eagerly(True)
    try:
        spread(model)
    finally:
        tf.config.run_functions_eagerly(False)


def under_strategy(make):
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        return make()


@pytest.mark.parametrize(
    "act, said",
    [
        (lambda: spread(mlp(run_eagerly=True)), ["run_eagerly", "mlp", "run_eagerly=False"]),
        (lambda: eager_everywhere(mlp()), ["run_functions_eagerly"]),
        (
            lambda: spread(tf.keras.Sequential()),
            ["Keras 3", "import tf_keras", "TF_USE_LEGACY_KERAS=1"],
        ),
        (lambda: spread(tf.keras.Model()), ["Keras 3"]),
        (lambda: spread("mlp"), ["a str", "tf_keras.Model"]),
        (lambda: spread(tf_keras.layers.Dense(1)), ["a Dense"]),
        (lambda: spread(under_strategy(mlp)), ["OneDeviceStrategy", "strategy.scope()"]),
        (lambda: under_strategy(lambda: spread(mlp())), ["OneDeviceStrategy"]),
    ],
)
def test_refused_models(act, said):
    with pytest.raises(errors.ModelError) as refused:
        act()
    assert [text for text in said if text not in str(refused.value)] == []


def test_eager_running_after_distribute_is_refused():
    model = spread(mlp())
    model.compile("sgd", "mse", run_eagerly=True)
    with pytest.raises(errors.ModelError, match="run_eagerly"):
        model.fit(X, Y, verbose=0)
    model.compile("sgd", "mse")
    model.fit(X, Y, verbose=0)


def test_jit_compile_is_said_to_be_ignored(caplog):
    model = mlp(compiled=False)
    model.compile("sgd", "mse", jit_compile=True)
    spread(model)
    with caplog.at_level("WARNING"):
        model.fit(X, Y, batch_size=4, epochs=2, verbose=0)
    assert ["jit_compile" in r.message for r in caplog.records if "tofu_tf" in r.name] == [True]


def kernel_shapes(model):
    return {
        v.name: [r.shape.as_list() for r in variables.sharding_of(v).resources]
        for v in model.variables
        if "kernel" in v.name
    }


def test_constraints_are_kept():
    asked = {"hidden/kernel": (None, "d0"), "head/kernel": ("d0", None)}
    model = spread(mlp(), constraints=asked, batch=(X, Y))
    model.train_on_batch(X, Y)
    expected = {"hidden/kernel:0": [[6, 5]] * 2, "head/kernel:0": [[5, 4]] * 2}
    assert kernel_shapes(model) == expected
    model.predict(X, verbose=0)
    model.train_on_batch(X[:3], Y[:3])
    assert kernel_shapes(model) == expected


@pytest.mark.parametrize(
    "constraints, said",
    [
        ({"hidden/kernal": (None, "d0")}, ["hidden/kernal", "hidden/kernel"]),
        ({"head/bias": ("d7",), "hidden/bias": (None, None)}, ["head/bias", "hidden/bias"]),
    ],
)
def test_impossible_constraints_are_refused_before_anything_moves(constraints, said):
    model = spread(mlp(), constraints=constraints)
    before = model.get_weights()
    with pytest.raises(errors.ConstraintError) as refused:
        model.fit(X, Y, verbose=0)
    assert [text for text in said if text not in str(refused.value)] == []
    assert all(variables.sharding_of(v) is None for v in model.variables)
    for a, b in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(errors.ConstraintError):
        spread(mlp(), constraints=constraints, batch=(X, Y))


def test_a_plan_is_given_back(tmp_path):
    asked = {"hidden/kernel": ("d0", None)}
    plan = spread(mlp(), constraints=asked, batch=(X, Y)).tofu.plan
    files.save_plan(plan, tmp_path / "plan.json")
    for given in (plan, tmp_path / "plan.json", str(tmp_path / "plan.json")):
        model = spread(mlp(), plan=given)
        model.train_on_batch(X, Y)
        kernel = variables.sharding_of(model.layers[0].kernel)
        assert [r.shape.as_list() for r in kernel.resources] == [[3, 10]] * 2


@pytest.mark.parametrize("k, batch", [(4, (X, Y)), (2, (X[:4], Y[:4]))])
def test_a_plan_that_does_not_fit_is_refused(k, batch):
    plan = spread(mlp(), batch=(X, Y)).tofu.plan
    with pytest.raises(errors.PlanError):
        spread(mlp(), k, plan=plan, batch=batch)


LATE = """
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tf_keras
import tofu_tf
tf_keras.Sequential([tf_keras.layers.Dense(1)]).compile("sgd", "mse")
try:
    tofu_tf.use_cpus(2)
except tofu_tf.errors.DeviceError as error:
    print(error)
"""


def test_cpus_are_made_before_models():
    run = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, timeout=200)
    assert "call tofu_tf.use_cpus before any model or tensor is made" in run.stdout, run.stderr
