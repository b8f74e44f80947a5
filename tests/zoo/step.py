"""What a step of the zoo is: a function, its arguments, the variables that it changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

FLOAT64 = 1e-10  # some hundred terms, summed in another order


@dataclasses.dataclass(frozen=True)
class Step:
    """A function of tensors over plain variables.

    `tolerance`: of its results, relative to the largest of a tensor, where it computes in less
    than 64 bits. `compiled`: one device runs it by XLA, as CPU kernels lack some of its ops.
    `dynamic`: sizes depend on data, so that what makes them runs whole.
    """

    function: Callable[..., Any]
    feeds: tuple[np.ndarray, ...]
    tolerance: float = FLOAT64
    compiled: bool = False
    dynamic: bool = False


@dataclasses.dataclass(frozen=True)
class Training:
    """A Keras model, compiled, and what its training step receives: ``(x, y)`` or ``(x,)``."""

    make: Callable[[], keras.Model]
    data: Callable[[np.random.RandomState], tuple[Any, ...]]
    dtype: str = "float64"
    tolerance: float = FLOAT64
    compiled: bool = False


def variable(value: Any, dtype: Any = None) -> tf.Variable:
    with tf.device("/device:CPU:0"):
        return tf.Variable(value, dtype=dtype)
