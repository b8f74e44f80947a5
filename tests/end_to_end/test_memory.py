"""Weights and optimizer state lie in parts, and only in parts."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from tests.end_to_end import oracle, programs
from tofu_tf.runtime import variables

R = np.random.RandomState(0)
X, Y = R.rand(12, 96).astype("float32"), R.rand(12, 120).astype("float32")


def mlp() -> keras.Model:
    layers = [keras.layers.Input((96,)), keras.layers.Dense(144, "relu"), keras.layers.Dense(120)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(1e-3), "mse")
    return model


def stored(variable: tf.Variable) -> list[tuple[str, int]]:
    """(device, bytes) of every live resource of a variable, as the resources themselves tell."""
    parts = variables.sharding_of(variable)
    found = []
    for resource in parts.resources if parts else [variable]:
        value = tf.raw_ops.ReadVariableOp(resource=resource.handle, dtype=resource.dtype)
        found.append((resource.handle.device, len(value.numpy().tobytes())))
    return found


@pytest.mark.parametrize("k", [2, 3, 4, 5, 8])
def test_a_kth_of_every_kernel_and_slot_on_each_device(k):
    """Sizes 96, 144 and 120 do not divide by 5: there, one slice more at most."""
    model = oracle.distributed(mlp, k)
    oracle.train(model, (X, Y), 12)
    large = [v for v in (*model.weights, *model.optimizer.variables) if len(v.shape) == 2]
    assert len(large) == 6  # two kernels, two slots each
    per_device: dict[str, int] = defaultdict(int)
    for variable in large:
        parts = stored(variable)
        whole = int(np.prod(variable.shape)) * 4
        slice_bytes = whole // min(n for n in variable.shape if n >= k)
        assert len({device for device, _ in parts}) == k, variable.name
        assert sum(nbytes for _, nbytes in parts) == whole
        assert max(nbytes for _, nbytes in parts) <= whole / k + slice_bytes, variable.name
        for device, nbytes in parts:
            per_device[device] += nbytes
    assert max(per_device.values()) <= 1.1 * min(per_device.values()), per_device


def test_the_former_whole_copies_are_freed():
    model = oracle.distributed(mlp, 4)
    before = {id(v): v.handle for v in (*model.weights, *model.optimizer.variables)}
    oracle.train(model, (X, Y), 12)
    for variable in (*model.weights, *model.optimizer.variables):
        handle = before.get(id(variable), variable.handle)
        left = tf.raw_ops.ReadVariableOp(resource=handle, dtype=variable.dtype)
        assert tf.size(left) == 0, variable.name


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_resident_memory_does_not_grow(optimizer):
    """201 MB of weights: after the first steps at most 15% above what was there before."""
    ran = programs.run("tests/end_to_end/resident.py", optimizer, "4")
    assert ran.returncode == 0, ran.stderr
    megabytes = {
        what: float(value) for what, value in (line.split() for line in ran.stdout.splitlines())
    }
    assert megabytes["variables"] > 400
    assert max(megabytes["step0"], megabytes["step2"]) <= 1.15 * megabytes["before"], megabytes
