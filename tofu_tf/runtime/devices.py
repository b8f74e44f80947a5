"""Full names of the devices that a model is spread over; logical CPUs."""

from __future__ import annotations

import difflib
import logging
import operator
from collections.abc import Iterable, Sequence

import tensorflow as tf

from tofu_tf import errors
from tofu_tf.runtime import private_api

_log = logging.getLogger(__name__)

DEVICE_TYPES = ("CPU", "GPU")


def use_cpus(n: int) -> None:
    """Makes `n` logical CPUs of this host's one; comes before any model or tensor is made.

    Raises:
      DeviceError: TensorFlow has already started with another number of logical CPUs.
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise errors.DeviceError("use_cpus", f"n = {n!r}", "a whole number of at least 1")
    physical = tf.config.list_physical_devices("CPU")
    if not physical:
        raise errors.DeviceError("use_cpus", "TensorFlow sees no CPU", "one physical CPU")
    try:
        tf.config.set_logical_device_configuration(
            physical[0], [tf.config.LogicalDeviceConfiguration()] * n
        )
    except RuntimeError as error:
        now = sum(_device_type(name) == "CPU" for name in private_api.device_names())
        if now != n:
            raise errors.DeviceError(
                f"use_cpus({n})",
                f"TensorFlow has already started, with {now} logical CPU{'s' * (now != 1)}",
                remedy="call tofu_tf.use_cpus before any model or tensor is made",
            ) from error


def find_devices(
    devices: int | Sequence[str] | None = None, device_type: str | None = None
) -> tuple[str, ...]:
    """Full names of the devices to run on.

    Args:
      devices: None for all visible GPUs; a number for that many of them; or a list of device names.
      device_type: ``"CPU"`` or ``"GPU"``; None for GPUs where there are any, else CPUs.

    Raises:
      DeviceError: fewer devices than asked for, unknown or repeated names: all in one message.
    """
    if device_type is not None and device_type not in DEVICE_TYPES:
        raise errors.DeviceError(
            "device_type", f"{device_type!r}", "one of " + ", ".join(map(repr, DEVICE_TYPES))
        )
    known = private_api.device_names()
    if devices is None or isinstance(devices, bool):
        return _first(devices, device_type, known)
    if hasattr(devices, "__index__"):  # NumPy's integers too
        return _first(operator.index(devices), device_type, known)
    return _named(devices, device_type, known)


def _first(n: int | None, device_type: str | None, known: Sequence[str]) -> tuple[str, ...]:
    if isinstance(n, bool) or (n is not None and n < 1):
        raise errors.DeviceError("devices", f"{n!r}", "at least one device", "such as devices=4")
    kind = device_type or "GPU"
    found = tuple(d for d in known if _device_type(d) == kind)
    if not found and device_type is None:
        kind = "CPU"
        found = tuple(d for d in known if _device_type(d) == kind)
        _log.info("no GPU is visible: running on %s of %d CPUs", n or "all", len(found))
    if len(found) < (n or 1):
        remedy = (
            f"call tofu_tf.use_cpus({n}) before any model or tensor is made"
            if kind == "CPU"
            else 'ask for fewer, or run on CPUs with device_type="CPU"'
        )
        raise errors.DeviceError(
            f"devices={n}", f"{len(found)} {kind}s: {_listed(found)}", f"{n or 1} {kind}s", remedy
        )
    return found[:n]


def _named(names: Sequence[str], device_type: str | None, known: Sequence[str]) -> tuple[str, ...]:
    if (
        isinstance(names, str)
        or not isinstance(names, Iterable)
        or not all(isinstance(name, str) for name in names)
        or not names
    ):
        raise errors.DeviceError(
            "devices",
            f"{names!r}",
            "None, a number of devices, or a list of device names",
            "such as devices=4",
        )
    full = [_canonical(name, known) for name in names]
    unknown = [name for name, found in zip(names, full, strict=True) if found is None]
    if unknown:
        near = {
            guess for name in unknown for guess in difflib.get_close_matches(name, known, 1, 0.6)
        }
        raise errors.DeviceError(
            "devices",
            f"unknown: {_listed(unknown)}",
            f"names among {_listed(known)}",
            f"did you mean {_listed(sorted(near))}?" if near else "",
        )
    found = tuple(name for name in full if name is not None)
    repeated = sorted({name for name in found if found.count(name) > 1})
    if repeated:
        raise errors.DeviceError("devices", f"repeated: {_listed(repeated)}", "each device once")
    kinds = {_device_type(name) for name in found}
    if len(kinds) > 1 or (device_type is not None and kinds != {device_type}):
        raise errors.DeviceError(
            "devices",
            f"types {_listed(sorted(kinds))}",
            f"all of one type ({device_type or 'any'})",
        )
    return found


def _canonical(name: str, known: Sequence[str]) -> str | None:
    """The one known device that `name` (``GPU:1``, ``/gpu:1``, a full name ...) stands for."""
    try:
        spec = tf.DeviceSpec.from_string(name if name.startswith("/") else f"/device:{name}")
    except ValueError:
        return None
    if spec.device_type is None or spec.device_index is None:
        return None
    fits = [
        d for d in known if tf.DeviceSpec.from_string(d).make_merged_spec(spec).to_string() == d
    ]
    return fits[0] if fits else None


def host_of(device: str) -> str:
    """Full name of the first CPU of the task that `device` belongs to."""
    return tf.DeviceSpec.from_string(device).replace(device_type="CPU", device_index=0).to_string()


def are_distinct_gpus(names: Sequence[str]) -> bool:
    """Whether these are GPUs of which each is a physical one, so that NCCL can join them."""
    counts = {
        len(tf.config.list_logical_devices("GPU")),
        len(tf.config.list_physical_devices("GPU")),
    }
    return len(counts) == 1 and all(_device_type(name) == "GPU" for name in names)


def _device_type(name: str) -> str:
    return name.rsplit("/device:", 1)[-1].split(":")[0]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "none"
