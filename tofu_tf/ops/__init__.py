"""Descriptions of TensorFlow's ops; importing the package fills `registry.REGISTRY`."""

from tofu_tf.ops import (
    control,
    elementwise,
    matrix,
    reductions,
)

__all__ = [
    "control",
    "elementwise",
    "matrix",
    "reductions",
]
