"""Trains TensorFlow models whose operators are too large for one device, cut over several."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tofu_tf.keras.models import distribute
    from tofu_tf.runtime.devices import use_cpus

__all__ = ["distribute", "use_cpus"]


def __getattr__(name: str) -> Any:
    """The public name; imported on first use, so that the pure layers do without TensorFlow."""
    if name == "distribute":
        from tofu_tf.keras import models

        return models.distribute
    if name == "use_cpus":
        from tofu_tf.runtime import devices

        return devices.use_cpus
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
