"""What a caller gives distribute: plans, devices and constraints, and what is no such thing."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import tf_keras as keras

import tofu_tf
from tofu_tf.errors import ConstraintError, DeviceError, PlanError, PlanFileError, TofuError
from tofu_tf.plan.files import save_plan

X, Y = np.ones((16, 40), np.float32), np.ones((16, 24), np.float32)


def _model() -> keras.Model:
    keras.backend.clear_session()  # plans know nodes by name, and Keras numbers its models
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.layers.Dense(48, "tanh", name="a"), keras.layers.Dense(24)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def _plan() -> Any:
    return tofu_tf.distribute(_model(), 2, device_type="CPU", batch=(X, Y)).tofu.plan


def test_a_plan_runs_on_the_devices_that_are_asked_for(tmp_path: pathlib.Path) -> None:
    keras.Sequential()
    save_plan(_plan(), tmp_path / "plan.json")
    model = tofu_tf.distribute(_model(), ["CPU:5", "CPU:6"], plan=tmp_path / "plan.json")
    model.fit(X, Y, batch_size=16, verbose=0)
    placed = {n.device.rpartition(":")[2] for n in model.tofu.graph_def.node}
    assert placed == {"5", "6"}
    assert model.tofu.plan.machine.devices == model.tofu.devices


def test_numpy_numbers_of_devices() -> None:
    assert len(tofu_tf.distribute(_model(), np.int64(3), device_type="CPU").tofu.devices) == 3


@pytest.mark.parametrize(
    "given, kind",
    [
        ({"devices": 2.0}, DeviceError),
        ({"devices": True}, DeviceError),
        ({"devices": "4"}, DeviceError),
        ({"constraints": {"a/kernel": None}}, ConstraintError),
        ({"constraints": {"a/kernel": 5}}, ConstraintError),
        ({"constraints": {"a/kernel": (0, None)}}, ConstraintError),
        ({"constraints": {5: (None,)}}, ConstraintError),
        ({"constraints": "a"}, ConstraintError),
        ({"plan": 5}, PlanError),
        ({"objective": "speed", "batch": None}, PlanError),
        ({"algorithm": "joined", "batch": None}, PlanError),
        ({"lowering": "nccl", "batch": None}, PlanError),
        ({"undescribed": "ignore", "batch": None}, PlanError),
        ({"plan": {"format": "tofu_tf plan"}}, PlanError),
    ],
)
def test_what_is_no_such_thing(given: dict[str, Any], kind: type[TofuError]) -> None:
    options = {"devices": 2, "device_type": "CPU", "batch": (X, Y), **given}
    with pytest.raises(kind) as caught:
        tofu_tf.distribute(_model(), **options)
    assert "remedy" in str(caught.value)


def test_a_plan_beside_constraints_is_refused() -> None:
    with pytest.raises(PlanError, match="plan and constraints"):
        tofu_tf.distribute(_model(), 2, plan=_plan(), constraints={"a/kernel": ("d0", None)})


def test_a_file_nested_too_deep(tmp_path: pathlib.Path) -> None:
    (tmp_path / "plan.json").write_text("[" * 100_000)
    with pytest.raises(PlanFileError, match="not JSON"):
        tofu_tf.distribute(_model(), 2, plan=tmp_path / "plan.json")
