"""Trains TensorFlow models whose operators are too large for one device, cut over several."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tofu_tf.capture.abstract import abstract
    from tofu_tf.errors import TofuError
    from tofu_tf.keras.models import distribute
    from tofu_tf.keras.planning import plan_step
    from tofu_tf.ops.registry import Sample, op
    from tofu_tf.pipeline import partition
    from tofu_tf.plan.machine import Link, Machine
    from tofu_tf.plan.plans import Plan
    from tofu_tf.report.steps import describe, draw
    from tofu_tf.runtime.devices import use_cpus
    from tofu_tf.runtime.functions import function
    from tofu_tf.tdl.expressions import Max, Min, Opaque, Prod, Sum

__all__ = [
    "Link",
    "Machine",
    "Max",
    "Min",
    "Opaque",
    "Plan",
    "Prod",
    "Sample",
    "Sum",
    "TofuError",
    "abstract",
    "describe",
    "distribute",
    "draw",
    "function",
    "op",
    "partition",
    "plan_step",
    "use_cpus",
]

# Imported on first use, so that the pure layers do without TensorFlow.
_HOMES = {
    "Link": "plan.machine",
    "Machine": "plan.machine",
    "Max": "tdl.expressions",
    "Min": "tdl.expressions",
    "Opaque": "tdl.expressions",
    "Plan": "plan.plans",
    "Prod": "tdl.expressions",
    "Sample": "ops.registry",
    "Sum": "tdl.expressions",
    "TofuError": "errors",
    "abstract": "capture.abstract",
    "describe": "report.steps",
    "distribute": "keras.models",
    "draw": "report.steps",
    "function": "runtime.functions",
    "op": "ops.registry",
    "partition": "pipeline",
    "plan_step": "keras.planning",
    "use_cpus": "runtime.devices",
}


def __getattr__(name: str) -> Any:
    """The public name, from the module that makes it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
