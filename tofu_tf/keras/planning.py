"""The plan of a step that is not run: `plan_step`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tf_keras

from tofu_tf.capture.captured import Captured
from tofu_tf.capture.drawing import MODES, Streams
from tofu_tf.capture.functions import capture_function
from tofu_tf.capture.keras_steps import capture_step
from tofu_tf.keras import batches, checking
from tofu_tf.pipeline import check_choices, check_known, find_plan, with_bytes
from tofu_tf.plan.constraints import Wish
from tofu_tf.plan.machine import Machine, imagined
from tofu_tf.plan.plans import Plan
from tofu_tf.runtime.signatures import call_of


def plan_step(
    step: tf_keras.Model | Callable[..., Any],
    batch: Any,
    machine: Machine | int,
    *,
    kind: str | None = None,
    constraints: Mapping[str, Wish] | None = None,
    objective: str = "bytes",
    algorithm: str = "recursion",
    lowering: str = "p2p",
    undescribed: str = "whole",
    random: str = "exact",
) -> Plan:
    """How a step would lie on the devices of `machine`; nothing runs, and no weight is made.

    Together with `tofu_tf.abstract` models are planned that fit nowhere; made as usual, a model
    gets no optimizer slots here either, and is left as it was. `distribute` and `function` take
    the plan.

    Args:
      step: a tf_keras model, compiled or not; or a function, as `tofu_tf.function` takes it.
      batch: arrays or `tf.TensorSpec`s: ``x``, ``(x, y)`` or ``(x, y, sample_weight)`` of a model,
        or a data set; of a function the tuple of its arguments.
      machine: a Machine, or a number of logical CPUs, which need not be there.
      kind: ``train``, ``test`` or ``predict``; None: a compiled model's training step, another's
        prediction.

    The others are those of `distribute`.

    Raises:
      ModelError: not a tf_keras model, run_eagerly, a `batch` without static shapes.
      CaptureError: the step cannot be captured, or reads values of abstract variables.
      PlanError: it cannot be planned.
    """
    check_choices(objective, algorithm, undescribed)
    check_known("lowering", lowering, ("p2p", "collective"))
    check_known("random", random, MODES)
    streams = Streams(random)
    dynamic = undescribed == "whole"
    if not isinstance(step, tf_keras.Model) and callable(step) and not _is_model(step):
        captured = _captured_call(step, batch, dynamic, streams)
    else:
        checking.check_model(step)
        wanted = kind or ("train" if checking.is_compiled(step) else "predict")
        data = batches.tensor_specs(batches.specs_of(batch))
        data = data[:1] if wanted == "predict" else data
        captured = capture_step(step, wanted, data, dynamic, streams, abstract=True)
    plan = find_plan(
        captured.graph,
        imagined(machine) if isinstance(machine, int) else machine,
        objective=objective,
        algorithm=algorithm,
        constraints=constraints,
        undescribed=undescribed,
    )
    return with_bytes(captured.graph, plan, lowering) if lowering == "collective" else plan


def _is_model(step: Any) -> bool:
    """Whether it is some Keras's layer or model, which is refused with better words."""
    return any(str(kind.__module__).split(".")[0] == "keras" for kind in type(step).__mro__)


def _captured_call(function: Any, batch: Any, dynamic: bool, streams: Streams) -> Captured:
    plain = getattr(function, "python_function", function)
    call = call_of(plain, batch if isinstance(batch, tuple) else (batch,), {})

    def spread(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return plain(*args, **kwargs)

    return capture_function(spread, call.specs, (), dynamic, streams, abstract=True)
