"""Refusals of models that cannot be distributed, each with its remedy."""

from __future__ import annotations

import logging
from typing import Any

import tensorflow as tf
import tf_keras

from tofu_tf import errors

_log = logging.getLogger(__name__)


def check_model(model: Any) -> None:
    """Refuses what is not a tf_keras model that runs in graphs outside tf.distribute.

    Raises:
      ModelError: with the remedy.
    """
    if not isinstance(model, tf_keras.Model):
        raise _not_a_model(model)
    where = f"model {model.name}"
    if not tf.executing_eagerly():
        raise errors.ModelError(
            where, "TensorFlow 2 behaviour is off or a graph is being built", "eager execution"
        )
    strategy = getattr(model, "_distribution_strategy", None)
    if strategy is not None or tf.distribute.has_strategy():
        kind = type(strategy or tf.distribute.get_strategy()).__name__
        raise errors.ModelError(
            where,
            f"made under tf.distribute's {kind}",
            "a model made outside every strategy's scope",
            "make the model without strategy.scope(); tofu_tf spreads it itself",
        )
    check_mode(model)


def check_mode(model: Any) -> None:
    """Refuses eager running, which leaves no graph to partition."""
    if model.run_eagerly:
        raise errors.ModelError(
            f"model {model.name}",
            "run_eagerly is on: there is no graph to partition",
            remedy="compile with run_eagerly=False, and do not call "
            "tf.config.run_functions_eagerly(True)",
        )


def is_compiled(model: Any) -> bool:
    return getattr(model, "optimizer", None) is not None


def mention_ignored(model: Any) -> None:
    """Says that compile's jit_compile has no effect: XLA's clusters would ignore the placement."""
    if getattr(model, "jit_compile", None):
        _log.warning("model %s: jit_compile=True is ignored when distributed", model.name)


def _not_a_model(model: Any) -> errors.ModelError:
    homes = {str(kind.__module__).split(".")[0] for kind in type(model).__mro__}
    if "keras" in homes:
        return errors.ModelError(
            f"model {getattr(model, 'name', model)}",
            "a Keras 3 model (tf.keras is Keras 3 here)",
            "a tf_keras model",
            "make the model with `import tf_keras`, or set TF_USE_LEGACY_KERAS=1 in the "
            "environment before TensorFlow is imported",
        )
    return errors.ModelError("model", f"a {type(model).__name__}", "a tf_keras.Model")
