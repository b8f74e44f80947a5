"""What a step's data look like: specs of a batch, and the key under which its step is kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from tofu_tf import errors

_REMEDY = (
    "give arrays, tensors or tf.TensorSpecs of a static shape; in tf.data, "
    "batch(n, drop_remainder=True) makes the batch size known"
)


def specs_of(batch: Any) -> Any:
    """What Keras hands to a step for `batch`, a `tf.TensorSpec` of static shape for every tensor.

    Args:
      batch: ``x``, ``(x,)``, ``(x, y)`` or ``(x, y, sample_weight)`` of arrays, tensors or specs,
        or a `tf.data.Dataset` of such.

    Raises:
      ModelError: leaves without shape and type, or with unknown dimensions; all in one message.
    """
    if isinstance(batch, tf.data.Dataset):
        batch = batch.element_spec
    if not isinstance(batch, tuple):
        batch = (batch,)
    while len(batch) > 1 and batch[-1] is None:
        batch = batch[:-1]
    wrong: list[str] = []
    made = tf.nest.map_structure(lambda leaf: _spec(leaf, wrong), _tuples(batch))
    if wrong:
        raise errors.ModelError("batch", "; ".join(wrong), "static shapes", _REMEDY)
    return made


def key_of(data: Any) -> tuple[Any, ...]:
    """A hashable key, equal for data of one structure, shapes and types.

    Raises:
      ModelError: sparse or ragged tensors, or unknown dimensions.
    """
    leaves = tf.nest.flatten(data)
    wrong = [text for leaf in leaves if (text := _unfit(leaf))]
    if wrong:
        raise errors.ModelError("batch", "; ".join(wrong), "dense tensors of static shape", _REMEDY)
    structure = repr(tf.nest.map_structure(lambda _: 0, data))
    return structure, *((tuple(leaf.shape.as_list()), leaf.dtype.name) for leaf in leaves)


def key_text(key: tuple[Any, ...]) -> str:
    """``float32[16, 8], float32[16, 4]``."""
    return ", ".join(f"{dtype}{list(shape)}" for shape, dtype in key[1:])


def tensor_specs(data: Any) -> Any:
    """The specs of data of static shape."""
    return tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), data)


def _tuples(structure: Any) -> Any:
    """Lists become tuples, as Keras does before it makes a data set."""
    if isinstance(structure, dict):
        return type(structure)((key, _tuples(value)) for key, value in structure.items())
    if isinstance(structure, list) or type(structure) is tuple:
        return tuple(_tuples(value) for value in structure)
    return structure


def _spec(leaf: Any, wrong: list[str]) -> Any:
    if isinstance(leaf, np.ndarray | np.generic):
        dtype = leaf.dtype
        if np.issubdtype(dtype, np.floating):
            dtype = tf_keras.backend.floatx()  # Keras casts arrays, and only arrays
        return tf.TensorSpec(leaf.shape, dtype)
    text = _unfit(leaf)
    if text:
        wrong.append(text)
        return leaf
    return tf.TensorSpec(leaf.shape, leaf.dtype)


def _unfit(leaf: Any) -> str:
    """Why a leaf has no static spec; empty when it has."""
    if not isinstance(leaf, tf.Tensor | tf.TensorSpec):
        return f"a {type(leaf).__name__}"
    if not leaf.shape.is_fully_defined():
        return f"{leaf.dtype.name}{leaf.shape}"
    return ""
