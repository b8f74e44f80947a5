"""A Python function whose calls run partitioned over devices: `tofu_tf.function`."""

from __future__ import annotations

import functools
import inspect
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tofu_tf import errors
from tofu_tf.capture.captured import Captured
from tofu_tf.capture.functions import capture_function
from tofu_tf.plan import files
from tofu_tf.plan.machine import Machine, machine_of
from tofu_tf.plan.plans import Plan
from tofu_tf.rewrite.placed import Placed
from tofu_tf.runtime import devices as finding
from tofu_tf.runtime import private_api, shown, signatures
from tofu_tf.runtime.steps import Step, Steps


class Concrete:
    """A function for one signature: its plan and placed graph, and how to call it."""

    def __init__(self, step: Step, key: tuple[Any, ...], function: Function) -> None:
        self._step, self._key, self._function = step, key, function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result for arguments of this signature.

        Raises:
          CaptureError: arguments of another one.
        """
        call = signatures.call_of(self._function.python_function, args, kwargs)
        if call.key != self._key:
            raise errors.CaptureError(
                repr(self),
                f"called with ({signatures.key_text(call.key)})",
                f"({signatures.key_text(self._key)})",
                "call the function itself, which has a concrete one for each signature",
            )
        return self._function(*args, **kwargs)

    @property
    def plan(self) -> Plan:
        return self._step.plan

    @property
    def placed(self) -> Placed:
        return self._step.placed

    @property
    def lowering(self) -> str:
        """How its data move: "p2p", or "collective" where that fits."""
        return self._step.lowering

    @property
    def graph_def(self) -> graph_pb2.GraphDef:
        """The partitioned graph: a device on every node."""
        return self._step.placed.graph_def

    @property
    def captured(self) -> Captured:
        """The function as one device would run it, with the variables that it uses."""
        return self._step.captured

    def __repr__(self) -> str:
        called = f"{self._function.__name__}({signatures.key_text(self._key)})"
        return f"<{called} over {self.plan.machine.workers} devices>"


class Function:
    """A function with tf.function's habits that runs over several devices; see `function`."""

    __name__: str

    def __init__(self, python: Callable[..., Any], options: Mapping[str, Any]) -> None:
        functools.update_wrapper(self, python, updated=())
        if not hasattr(self, "__name__"):  # an object that can be called, a functools.partial
            self.__name__ = type(python).__name__
        self.python_function = getattr(python, "python_function", python)
        self._options = dict(options)
        self._whole = tf.function(self.python_function)
        self._lock = threading.RLock()
        self._found: Steps | None = None  # devices are looked for when first needed
        self._names: dict[str, tf.Variable] = {}
        self._bound: weakref.WeakKeyDictionary[Any, Function] = weakref.WeakKeyDictionary()

    def __get__(self, instance: Any, owner: Any = None) -> Function:
        """The method of `instance`, with a cache of its own."""
        if instance is None:
            return self
        with self._lock:
            if instance not in self._bound:
                # Through a weak reference: the cache must not keep its key alive.
                method, reference = self.python_function, weakref.ref(instance)

                @functools.wraps(method)
                def bound(*args: Any, **kwargs: Any) -> Any:
                    return method(reference(), *args, **kwargs)

                bound.__signature__ = _without_self(method)  # type: ignore[attr-defined]
                self._bound[instance] = Function(bound, self._options)
            return self._bound[instance]

    @tf.autograph.experimental.do_not_convert
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result, of one step over all devices.

        Raises:
          TofuError: on the first call of a signature: it cannot be captured, planned or rewritten.
        """
        if shown.is_traced_whole():
            # Part of a step that is partitioned as a whole.
            return self._whole(*args, **kwargs)
        call = signatures.call_of(self.python_function, args, kwargs)
        with self._steps.lock:
            step = self._step(call)
            with private_api.stop_recording():
                outputs = step(*call.values)
        _refuse_gradients(self.__name__, step, call.values, outputs)
        return outputs

    def get_concrete_function(self, *args: Any, **kwargs: Any) -> Concrete:
        """What a call with such arguments (tensors or `tf.TensorSpec`s) runs; planned if it was not
        yet, while no variable moves.
        """
        call = signatures.call_of(self.python_function, args, kwargs)
        with self._steps.lock:
            return Concrete(self._step(call), call.key, self)

    @property
    def concrete_functions(self) -> tuple[Concrete, ...]:
        """One for every signature so far, in order."""
        if self._found is None:
            return ()
        made = self._found.made
        return tuple(Concrete(step, key, self) for (_, key), step in made.items())

    @property
    def plan(self) -> Plan | None:
        """The first signature's plan, None before there is one."""
        made = self.concrete_functions
        return made[0].plan if made else None

    @property
    def graph_def(self) -> graph_pb2.GraphDef | None:
        """The first signature's partitioned graph, None before there is one."""
        made = self.concrete_functions
        return made[0].graph_def if made else None

    @property
    def machine(self) -> Machine:
        return self._steps.machine

    @property
    def _steps(self) -> Steps:
        with self._lock:
            if self._found is None:
                self._found = _steps(**self._options)
            return self._found

    def _step(self, call: signatures.Call) -> Step:
        def capture() -> Captured:
            spread = _spread(self.python_function)
            dynamic = self._steps.undescribed == "whole"
            # every signature has its own, as every trace of a tf.function has
            streams = self._steps.streams(call.key)
            captured = capture_function(spread, call.specs, self._names.items(), dynamic, streams)
            self._names.update(captured.variables)  # the same names in every signature
            return captured

        return self._steps.find("call", call.key, capture)


def function(
    python: Callable[..., Any] | None = None,
    *,
    devices: int | Sequence[str] | None = None,
    device_type: str | None = None,
    constraints: Mapping[str, Any] | None = None,
    plan: Plan | str | Path | None = None,
    objective: str = "bytes",
    algorithm: str = "recursion",
    lowering: str = "p2p",
    undescribed: str = "whole",
    random: str = "exact",
) -> Any:
    """`python` as a function whose calls run partitioned over the devices; a decorator too.

    What `tf.function` takes and returns, this does: nests of tensors, arrays and Python values (a
    signature each), variables made on the first call, methods. Variables keep their objects, which
    read and write whole current values. The first signature that uses a variable fixes how it
    lies, and later ones are planned around it: call the training step first, or its
    `get_concrete_function`. Inside a tf.function or another one of these it works as well.
    Gradients are taken inside of it; a tape around it is refused.

    Args:
      python: a Python function or a tf.function (whose own options are ignored); None makes a
        decorator.
      devices: None for all visible GPUs, a number of devices, or a list of device names; looked for
        on the first call.
      device_type: ``"CPU"`` or ``"GPU"``; None for GPUs where there are any, else CPUs.
      constraints: layouts that are asked for, by names of variables and tensors.
      plan: the first signature's plan, or a file that holds it, instead of a search.
      objective: what the search minimises: ``"bytes"`` between devices.
      algorithm: how it searches.
      lowering: how data move between devices: ``"p2p"``, ``"collective"`` (by TensorFlow's
        collectives where one fits), or ``"auto"``: collectives on distinct physical GPUs only.
      undescribed: run ops that nothing is known of (no description, sizes that depend on data,
        loops) ``"whole"`` on the first device, listed in the plan and once in the log, or
        ``"refuse"`` functions that hold any.
      random: ``"exact"``: one device's random numbers bit for bit; a piece that is cut inside a row
        draws whole rows and keeps its part. ``"independent"``: each part draws only its own
        elements, from a stream of its own; seeded runs repeat on the same devices and plan.
    """
    options = {
        "devices": devices,
        "device_type": device_type,
        "constraints": constraints,
        "plan": plan,
        "objective": objective,
        "algorithm": algorithm,
        "lowering": lowering,
        "undescribed": undescribed,
        "random": random,
    }
    if python is None:
        return lambda python: Function(python, options)
    return Function(python, options)


def _steps(
    devices: int | Sequence[str] | None,
    device_type: str | None,
    plan: Plan | str | Path | None,
    **options: Any,
) -> Steps:
    names = finding.find_devices(devices, device_type)
    given = files.given_plan(plan, options["constraints"])
    return Steps(machine_of(names), plan=given, **options)


def _spread(python: Callable[..., Any]) -> Callable[..., Any]:
    def spread(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return python(*args, **kwargs)

    return spread


def _without_self(method: Callable[..., Any]) -> inspect.Signature:
    signature = inspect.signature(method)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def _refuse_gradients(name: str, step: Step, values: Any, outputs: Any) -> None:
    """Makes a tape around the call raise when it is asked for gradients through it."""

    def refuse(*_: Any) -> Any:
        raise errors.CaptureError(
            f"function {name}",
            "a gradient through a partitioned function",
            remedy="make the tf.GradientTape and take the gradient inside the function",
        )

    trainable = [v for v in step.captured.variables.values() if v.trainable]
    tensors = [t for t in tf.nest.flatten(values) if tf.is_tensor(t)]
    made = [t for t in tf.nest.flatten(outputs) if tf.is_tensor(t)]
    private_api.record_call(name, made, tensors, trainable, refuse)
