"""The package's public names exist, and importing the package alone loads no TensorFlow."""

from __future__ import annotations

import subprocess
import sys

import pytest

import tofu_tf


@pytest.mark.parametrize("name", tofu_tf.__all__)
def test_a_public_name(name: str) -> None:
    assert getattr(tofu_tf, name).__name__ == name


def test_an_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'partitoin'"):
        tofu_tf.partitoin  # noqa: B018


def test_the_pure_part_is_quick_to_import() -> None:
    code = "import sys, tofu_tf, tofu_tf.tdl.strategies; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
