"""find_devices and use_cpus: what is asked for, what comes out."""

from __future__ import annotations

import subprocess
import sys

import pytest
import tensorflow as tf

from tofu_tf import errors
from tofu_tf.runtime import devices

CPUS = tuple(f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(8))


@pytest.mark.parametrize(
    "asked, device_type, expected",
    [
        (8, "CPU", CPUS),
        (3, "CPU", CPUS[:3]),
        (None, "CPU", CPUS),
        (["CPU:1", "/cpu:0"], None, (CPUS[1], CPUS[0])),
        (["/device:CPU:7"], None, (CPUS[7],)),
        ([CPUS[2], "cpu:3"], "CPU", (CPUS[2], CPUS[3])),
    ],
)
def test_found(asked, device_type, expected):
    assert devices.find_devices(asked, device_type) == expected


@pytest.mark.parametrize(
    "asked, device_type, said",
    [
        (9, "CPU", [*CPUS, "use_cpus(9)"]),
        (0, "CPU", ["at least one"]),
        (True, "CPU", ["at least one"]),
        (
            ["CPU:0", "CPU:8", "TPU:1", "nonsense"],
            None,
            ["CPU:8, TPU:1, nonsense", CPUS[0], CPUS[7]],
        ),
        (["CPU:0", "CPU:1", "/cpu:0"], None, ["repeated", CPUS[0]]),
        (["CPU:0"], "GPU", ["CPU", "GPU"]),
        ("CPU:0", None, ["list of device names"]),
        ([], None, ["list of device names"]),
        (2, "TPU", ["'TPU'", "'CPU', 'GPU'"]),
    ],
)
def test_refused(asked, device_type, said):
    with pytest.raises(errors.DeviceError) as refused:
        devices.find_devices(asked, device_type)
    assert [text for text in said if text not in str(refused.value)] == []


def test_cpus_stand_in_for_gpus_with_one_log_line(caplog):
    if tf.config.list_physical_devices("GPU"):
        pytest.skip("has a GPU")
    with caplog.at_level("INFO"):
        assert devices.find_devices(2) == CPUS[:2]
    assert [r.message for r in caplog.records if r.name.startswith("tofu_tf")] == [
        "no GPU is visible: running on 2 of 8 CPUs"
    ]


LATE = """
import tensorflow as tf
from tofu_tf import errors
from tofu_tf.runtime import devices
devices.use_cpus(2)
devices.use_cpus(3)
tf.zeros([1])
devices.use_cpus(3)
assert len(devices.find_devices(device_type="CPU")) == 3
try:
    devices.use_cpus(4)
except errors.DeviceError as error:
    print(error)
"""


def test_use_cpus_comes_first():
    run = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, timeout=200)
    assert run.stdout.splitlines() == [
        "use_cpus(4): TensorFlow has already started, with 3 logical CPUs",
        "  remedy: call tofu_tf.use_cpus before any model or tensor is made",
    ], run.stderr


@pytest.mark.parametrize("n", [0, -1, 2.0, True, "2"])
def test_use_cpus_wants_a_number(n):
    with pytest.raises(errors.DeviceError, match="whole number"):
        devices.use_cpus(n)
