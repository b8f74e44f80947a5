"""Descriptions of TensorFlow's ops; importing the package fills `registry.REGISTRY`."""

from tofu_tf.ops import (
    control,
    elementwise,
)

__all__ = [
    "control",
    "elementwise",
]
