"""Keras's fit, evaluate and predict on partitioned steps, made when a batch first comes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tofu_tf.capture.keras_steps import capture_step
from tofu_tf.keras import batches, checking
from tofu_tf.plan.machine import Machine
from tofu_tf.plan.plans import Plan
from tofu_tf.runtime import shown
from tofu_tf.runtime.steps import Step, Steps

KINDS = ("train", "test", "predict")


class Distribution:
    """How a model is spread over devices: ``model.tofu``.

    The first training step fixes how variables lie; whatever ran before it was provisional, and
    what comes later is planned around it.
    """

    def __init__(
        self,
        model: Any,
        machine: Machine,
        constraints: Mapping[str, Any] | None = None,
        plan: Plan | None = None,
        objective: str = "bytes",
        algorithm: str = "recursion",
        lowering: str = "p2p",
        undescribed: str = "whole",
        random: str = "exact",
    ) -> None:
        self.machine = machine
        self._model = model
        self._steps = Steps(
            machine, constraints, plan, objective, algorithm, lowering, undescribed, random
        )

    @property
    def devices(self) -> tuple[str, ...]:
        return self.machine.devices

    @property
    def steps(self) -> tuple[Step, ...]:
        """Every step made since the model was last compiled."""
        return tuple(self._steps.made.values())

    @property
    def plans(self) -> dict[tuple[str, str], Plan]:
        """Every plan made since the model was last compiled, by kind of step and signature."""
        return {
            (kind, batches.key_text(key)): step.plan
            for (kind, key), step in self._steps.made.items()
        }

    @property
    def plan(self) -> Plan | None:
        """The first training step's plan; before there is one, the latest; None before any."""
        step = self._shown()
        return step.plan if step is not None else self._steps.given

    @property
    def graph_def(self) -> graph_pb2.GraphDef | None:
        """The partitioned graph that goes with `plan`; None before any batch was seen."""
        step = self._shown()
        return step.placed.graph_def if step is not None else None

    def __repr__(self) -> str:
        made = ", ".join(f"{kind} {text}" for kind, text in self.plans) or "none yet"
        return f"<Distribution over {len(self.devices)} devices; steps: {made}>"

    def forget(self, kind: str | None = None) -> None:
        """Drops the steps, or those of one kind, and their random streams; variables stay where
        they are, and new steps are planned around them.
        """
        self._steps.forget(kind)

    def prepare(self, kind: str, data: Any) -> Step:
        """The step for data of this signature; no variable moves.

        Raises:
          TofuError: the step cannot be captured, planned or rewritten.
        """
        dynamic = self._steps.undescribed == "whole"
        # Keras traces a kind of step for all batch sizes at once
        streams = self._steps.streams(kind)
        return self._steps.find(
            kind,
            batches.key_of(data),
            lambda: capture_step(self._model, kind, batches.tensor_specs(data), dynamic, streams),
            settles=kind == "train",
            awaited=checking.is_compiled(self._model),
        )

    def run(self, kind: str, data: Any) -> Any:
        """The result of one step."""
        with self._steps.lock:
            return self.prepare(kind, data)(data)

    def _shown(self) -> Step | None:
        trained = [step for step in self.steps if step.kind == "train"]
        shown_first = trained or self.steps[-1:]
        return shown_first[0] if shown_first else None


def install(model: Any, distribution: Distribution) -> None:
    """Makes Keras's methods of this one model object run partitioned steps."""
    # Straight into the instance: Keras's __setattr__ would track and wrap what it is given.
    own = vars(model)
    for kind in KINDS:
        own[f"make_{kind}_function"] = _maker(model, distribution, kind)
        own[f"{kind}_function"] = None
    own["train_tf_function"] = None
    reset = type(model)._reset_compile_cache

    def reset_compile_cache() -> None:
        reset(model)
        distribution.forget()

    own["_reset_compile_cache"] = reset_compile_cache
    for name in ("save", "export"):
        own[name] = _exporter(model, getattr(type(model), name))
    own["tofu"] = distribution


def _exporter(model: Any, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def export(*args: Any, **kwargs: Any) -> Any:
        # The functions traced here must hold the variables that are saved, not their parts.
        with shown.whole_variables_traced():
            return method(model, *args, **kwargs)

    return export


def _maker(model: Any, distribution: Distribution, kind: str) -> Callable[..., Any]:
    def make_function(force: bool = False) -> Callable[[Any], Any]:
        checking.check_mode(model)
        slot = f"{kind}_function"
        if getattr(model, slot) is None or force:
            checking.mention_ignored(model)
            if force:
                distribution.forget(kind)  # Keras traces again
            own = vars(model)
            own[slot] = _function(model, distribution, kind)
        made: Callable[[Any], Any] = getattr(model, slot)
        return made

    return make_function


def _function(model: Any, distribution: Distribution, kind: str) -> Callable[[Any], Any]:
    @tf.autograph.experimental.do_not_convert
    def run(iterator: Any) -> Any:
        """Runs one execution: as many steps as compile's steps_per_execution says."""
        count = model._steps_per_execution
        with tf.init_scope():
            times = 1 if count is None else int(count.numpy())
        results = [distribution.run(kind, next(iterator)) for _ in range(times)]
        if kind != "predict" or len(results) == 1:
            return results[-1]
        return tf.nest.map_structure(lambda *parts: tf.concat(parts, 0), *results)

    run.__name__ = f"{kind}_function"
    return run
