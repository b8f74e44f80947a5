"""A Keras model, spread over devices: `distribute`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tofu_tf.keras import batches, checking, training
from tofu_tf.plan import files
from tofu_tf.plan.machine import machine_of
from tofu_tf.plan.plans import Plan
from tofu_tf.runtime import devices as finding

Model = TypeVar("Model")


def distribute(
    model: Model,
    devices: int | Sequence[str] | None = None,
    *,
    device_type: str | None = None,
    batch: Any = None,
    constraints: Mapping[str, Any] | None = None,
    plan: Plan | str | Path | None = None,
    objective: str = "bytes",
    algorithm: str = "recursion",
    lowering: str = "p2p",
    undescribed: str = "whole",
    random: str = "exact",
) -> Model:
    """The same model, whose fit, evaluate and predict now run partitioned over the devices.

    Args:
      model: a tf_keras model, compiled or not, built or not.
      devices: None for all visible GPUs, a number of devices, or a list of device names.
      device_type: ``"CPU"`` or ``"GPU"``; None for GPUs where there are any, else CPUs.
      batch: ``x``, ``(x, y)`` or ``(x, y, sample_weight)`` of arrays or specs, or a data set: the
        step is planned, and refused, at once. None: when the first batch comes, before any variable
        moves.
      constraints: layouts that are asked for, as ``{"dense/kernel": (None, "d0")}``: for each
        dimension the cuts that divide it. Names may be patterns.
      plan: the training step's plan, or a file that holds it, instead of a search.
      objective: what the search minimises: ``"bytes"`` between devices.
      algorithm: how it searches.
      lowering: how data move between devices: ``"p2p"``, ``"collective"`` (by TensorFlow's
        collectives where one fits), or ``"auto"``: collectives on distinct physical GPUs only.
      undescribed: run ops that nothing is known of (no description, sizes that depend on data,
        loops) ``"whole"`` on the first device, listed in the plan and once in the log, or
        ``"refuse"`` steps that hold any.
      random: ``"exact"``: one device's random numbers bit for bit; a piece that is cut inside a row
        draws whole rows and keeps its part. ``"independent"``: each part draws only its own
        elements, from a stream of its own; seeded runs repeat on the same devices and plan.

    Raises:
      ModelError: not a tf_keras model, run_eagerly, made under a tf.distribute strategy.
      DeviceError: devices that are unknown, repeated or too few.
      PlanError: with `batch`, a step that cannot be partitioned; a `plan` that is none, or that
        comes with `constraints`, which it would not follow.
    """
    checking.check_model(model)
    names = finding.find_devices(devices, device_type)
    given = files.given_plan(plan, constraints)
    distribution = training.Distribution(
        model,
        machine_of(names),
        constraints,
        given,
        objective,
        algorithm,
        lowering,
        undescribed,
        random,
    )
    if batch is not None:
        data = batches.specs_of(batch)
        compiled = checking.is_compiled(model)
        distribution.prepare("train" if compiled else "predict", data if compiled else data[:1])
    training.install(model, distribution)
    return model
