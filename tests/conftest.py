"""Eight logical CPUs for every test, and golden texts (`pytest --update-golden` rewrites them)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # read when TensorFlow is imported

import tensorflow as tf

DEVICES = 8  # of the largest partition that a test makes

# Before anything initialises TensorFlow: afterwards devices cannot be made.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * DEVICES
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden texts")
    parser.addoption("--lowering", help="how data move where a test does not say (default p2p)")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--lowering"):
        from tofu_tf.keras.models import distribute
        from tofu_tf.runtime.functions import function

        for taken in (distribute, function):
            taken.__kwdefaults__["lowering"] = config.getoption("--lowering")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[..., None]:
    """A function (text, name) that compares with golden/<name>.txt beside the test's file.

    The name is the test's own where none is given.
    """

    def check(text: str, name: str | None = None) -> None:
        path = Path(request.path).parent / "golden" / f"{name or request.node.name}.txt"
        text = text.rstrip("\n") + "\n"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"{path} is missing: write it with pytest --update-golden"
        assert text == path.read_text(), f"{path} differs: compare, then pytest --update-golden"

    return check
