"""Keras's fit, evaluate and predict on partitioned steps, made when a batch first comes."""

from __future__ import annotations

import fnmatch
import functools
import threading
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tofu_tf import pipeline
from tofu_tf.capture.captured import Captured
from tofu_tf.capture.keras_steps import capture_step
from tofu_tf.keras import batches, checking, steps
from tofu_tf.plan.layouts import Layout
from tofu_tf.plan.machine import Machine
from tofu_tf.plan.plans import Plan
from tofu_tf.runtime import shown, variables

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
    ) -> None:
        self.machine = machine
        self._model = model
        self._constraints = dict(constraints or {})
        self._given = plan
        self._objective, self._algorithm, self._lowering = objective, algorithm, lowering
        self._steps: dict[tuple[str, tuple[Any, ...]], steps.Step] = {}
        self._layouts: dict[str, Layout] = {}  # by identity of the variable
        self._settled: set[str] = set()
        self._lock = threading.RLock()

    @property
    def devices(self) -> tuple[str, ...]:
        return self.machine.devices

    @property
    def plans(self) -> dict[tuple[str, str], Plan]:
        """Every plan made since the model was last compiled, by kind of step and signature."""
        return {
            (kind, batches.key_text(key)): step.plan for (kind, key), step in self._steps.items()
        }

    @property
    def plan(self) -> Plan | None:
        """The first training step's plan; before there is one, the latest; None before any."""
        step = self._shown()
        return step.plan if step is not None else self._given

    @property
    def graph_def(self) -> graph_pb2.GraphDef | None:
        """The partitioned graph that goes with `plan`; None before any batch was seen."""
        step = self._shown()
        return step.placed.graph_def if step is not None else None

    def __repr__(self) -> str:
        made = ", ".join(f"{kind} {text}" for kind, text in self.plans) or "none yet"
        return f"<Distribution over {len(self.devices)} devices; steps: {made}>"

    def forget(self) -> None:
        """Drops the steps; variables stay where they are, and new steps are planned around them."""
        with self._lock:
            self._steps.clear()

    def prepare(self, kind: str, data: Any) -> steps.Step:
        """The step for data of this signature; no variable moves.

        Raises:
          TofuError: the step cannot be captured, planned or rewritten.
        """
        key = (kind, batches.key_of(data))
        with self._lock:
            if key not in self._steps:
                specs = batches.tensor_specs(data)
                self._steps[key] = _eagerly(lambda: self._made(kind, specs))
            return self._steps[key]

    def run(self, kind: str, data: Any) -> Any:
        """The result of one step."""
        with self._lock:
            return self.prepare(kind, data)(data)

    def _made(self, kind: str, data: Any) -> steps.Step:
        with shown.whole_variables_traced():
            captured = capture_step(self._model, kind, data)
        names = {name: steps.identity_of(v) for name, v in captured.variables.items()}
        pinned = self._pinned(kind, captured, names)
        plan = self._planned(kind, captured, pinned)
        placed = pipeline.apply_plan(captured.graph, plan, lowering=self._lowering)
        step = steps.make_step(kind, captured, plan, placed)
        self._record(step, names)
        return step

    def _planned(self, kind: str, captured: Captured, pinned: Mapping[str, Layout]) -> Plan:
        first = kind == "train" and not self._settled
        if first and self._given is not None:
            pipeline.check_plan(self._given, captured.graph, self.machine)
            return self._given
        constraints = self._constraints
        if not first and (self._settled or checking.is_compiled(self._model)):
            # A tensor's constraint is meant for the training step; a variable's holds everywhere.
            constraints = {
                name: wish
                for name, wish in constraints.items()
                if (matched := _matching(name, captured)) and not matched & set(pinned)
            }
        return pipeline.find_plan(
            captured.graph,
            self.machine,
            objective=self._objective,
            algorithm=self._algorithm,
            constraints=constraints or None,
            pinned=pinned or None,
        )

    def _pinned(self, kind: str, captured: Captured, names: Mapping[str, str]) -> dict[str, Layout]:
        """Layouts that stay: settled ones, provisional ones outside training, another model's."""
        pinned = {}
        for name, identity in names.items():
            if identity in self._settled or (kind != "train" and identity in self._layouts):
                pinned[name] = self._layouts[identity]
            elif identity not in self._layouts:
                state = variables.sharding_of(captured.variables[name])
                here = (self.machine.devices, self.machine.factors)
                if state is not None and state.origin is not None and state.origin[:2] == here:
                    pinned[name] = state.origin[2]
        return pinned

    def _record(self, step: steps.Step, names: Mapping[str, str]) -> None:
        moved = set()
        for name, identity in names.items():
            layout = step.layout(name)
            if self._layouts.setdefault(identity, layout) != layout:
                moved.add(identity)
                self._layouts[identity] = layout
            if step.kind == "train":
                self._settled.add(identity)
        if moved:
            self._steps = {
                key: other
                for key, other in self._steps.items()
                if moved.isdisjoint(map(steps.identity_of, other.captured.variables.values()))
            }

    def _shown(self) -> steps.Step | None:
        trained = [step for step in self._steps.values() if step.kind == "train"]
        shown_first = trained or list(self._steps.values())[-1:]
        return shown_first[0] if shown_first else None


def _eagerly(make: Callable[[], steps.Step]) -> steps.Step:
    """What `make` returns when nothing is being traced around it.

    A graph under construction is left by another thread: tf.init_scope stops gradient tapes, also
    those of the step that is captured inside.
    """
    if tf.executing_eagerly():
        return make()
    with futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(make).result()


def _matching(name: str, captured: Captured) -> set[str]:
    pattern = name.removesuffix(":0")
    return {v for v in captured.graph.variables if fnmatch.fnmatchcase(v, pattern)}


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
