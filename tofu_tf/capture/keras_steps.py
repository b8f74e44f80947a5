"""A Keras model's training, test or prediction step -> Captured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from tofu_tf.capture.abstract import tracing_abstractly
from tofu_tf.capture.captured import Captured
from tofu_tf.capture.drawing import Streams
from tofu_tf.capture.functions import finish
from tofu_tf.capture.tracing import Traced, trace
from tofu_tf.errors import CaptureError
from tofu_tf.graph.state import RANDOM

# Kind of step -> the model's method and the counter that Keras advances after it.
STEPS: Mapping[str, tuple[str, str]] = {
    "train": ("train_step", "_train_counter"),
    "test": ("test_step", "_test_counter"),
    "predict": ("predict_step", "_predict_counter"),
}


def capture_step(
    model: Any,
    kind: str,
    data: Any,
    dynamic: bool = False,
    streams: Streams | None = None,
    abstract: bool = False,
) -> Captured:
    """One step of `model` as Keras's own train / test / predict function runs it, counter included.

    Args:
      model: a tf_keras model, compiled unless `kind` is ``predict``; built here if it is not.
      kind: ``train``, ``test`` or ``predict``.
      data: what the step receives, ``(x,)``, ``(x, y)`` or ``(x, y, sample_weight)``, with a
        `tf.TensorSpec` of static shape for every tensor.
      dynamic: whether tensors inside may have sizes that depend on data.
      streams: the generators that its random ops draw from; None: new ones. Where some are there
        already, this is the step that Keras has traced for a free batch size: the seeds of layers
        stay as they are.
      abstract: give the variables that are made in the trace (slots of optimizers, metrics, those
        of a model that is not built yet) no value, and leave the model and all that hangs on it as
        it was.

    The only input is `data`. Variables are named as the model names them; a metric's and a
    counter's, which Keras leaves ambiguous, are ``<metric>/total`` and ``train_counter``.

    Raises:
      CaptureError: an unknown kind, or unknown dimensions (all listed by name).
    """
    if kind not in STEPS:
        raise CaptureError("kind of step", repr(kind), f"one of {', '.join(STEPS)}")

    if abstract:
        with tracing_abstractly(model):
            traced = _traced(model, kind, data, streams)
    else:
        traced = _traced(model, kind, data, streams)
    return finish(traced, (data,), dynamic, streams)


def _traced(model: Any, kind: str, data: Any, streams: Streams | None) -> Traced:
    def traced() -> Traced:
        step = step_function(model, kind)
        return trace(step, (name_data(data),), lambda: variable_names(model), lift=False)

    seeds = [(g, g._seed) for g in _generators(model)] if streams else []
    counters = _python_counters(model)
    first = traced()
    if first.made_variables and (_is_seeded(first) or _python_counters(model) != counters):
        # Keras's first call traces twice when it makes variables, and runs the second trace. That
        # shows where a trace advances something: the seeds of dropout layers, Nadam's count of
        # updates.
        first = traced()
    for generator, seed in seeds:
        generator._seed = seed
    return first


def _generators(model: Any) -> Iterator[Any]:
    """What gives the layers of a model the seeds of their random ops, one after the other."""
    for layer in model._flatten_layers():
        generator = getattr(layer, "_random_generator", None)
        if hasattr(generator, "_seed"):
            yield generator


def _is_seeded(traced: Traced) -> bool:
    """Whether some random op of the step repeats its stream in every run of the program."""
    bodies = [function.node_def for function in traced.graph_def.library.function]
    return any(
        node.op in RANDOM and (node.attr["seed"].i or node.attr["seed2"].i)
        for nodes in (traced.graph_def.node, *bodies)
        for node in nodes
    )


def _python_counters(model: Any) -> list[dict[str, int]]:
    """The Python integers that a trace may advance: the model's, its optimizer's."""
    optimizer = getattr(model, "optimizer", None)
    owners = [model, optimizer, getattr(optimizer, "inner_optimizer", None)]
    return [
        {key: value for key, value in vars(owner).items() if type(value) is int}
        for owner in owners
        if owner is not None
    ]


def step_function(model: Any, kind: str) -> Callable[[Any], Any]:
    """The body of Keras's `run_step`: the step, then its counter once that has succeeded."""
    method, counter = STEPS[kind]

    def run_step(data: Any) -> Any:
        outputs = getattr(model, method)(data)
        tensors = [t for t in tf.nest.flatten(outputs, expand_composites=True) if tf.is_tensor(t)]
        with tf.control_dependencies(tensors[:1]):
            getattr(model, counter).assign_add(1)
        return outputs

    return run_step


def name_data(data: Any) -> Any:
    """`data` with specs named ``x``, ``y``, ``sample_weight``: the names of the graph's inputs."""
    parts = ("x", "y", "sample_weight")
    if isinstance(data, tuple) and len(data) <= len(parts):
        return tuple(_named(part, name) for part, name in zip(data, parts, strict=False))
    return _named(data, "data")


def _named(part: Any, name: str) -> Any:
    if isinstance(part, tf.TensorSpec):
        return tf.TensorSpec(part.shape, part.dtype, name)
    if isinstance(part, Mapping):
        parts = {key: _named(value, f"{name}_{key}") for key, value in part.items()}
        return tf.nest.pack_sequence_as(part, tf.nest.flatten(parts))
    if isinstance(part, list | tuple) and not hasattr(part, "_fields"):
        return type(part)(_named(value, f"{name}_{i}") for i, value in enumerate(part))
    return part


def variable_names(model: Any) -> Iterator[tuple[str, tf.Variable]]:
    """A distinct name for every variable of a model, optimizer, metrics and counters included."""
    seen: set[str] = set()
    known: set[int] = set()
    for wanted, variable in _variables(model):
        if id(variable.handle) in known:
            continue
        known.add(id(variable.handle))
        name, n = wanted, 0
        while name in seen:
            n += 1
            name = f"{wanted}_{n}"
        seen.add(name)
        yield name, variable


def _variables(model: Any) -> Iterator[tuple[str, tf.Variable]]:
    optimizer = getattr(model, "optimizer", None)
    # Metrics that are layers of the model come under their metric's name as well.
    metrics = [
        (f"{m.name}/{_own(v)}", v) for m in getattr(model, "metrics", ()) for v in m.variables
    ]
    of_metrics = {id(v) for _, v in metrics}
    for variable in model.variables:
        if id(variable) not in of_metrics:
            yield variable.name.partition(":")[0], variable
    for variable in _optimizer_variables(optimizer):
        yield variable.name.partition(":")[0], variable
    yield from metrics
    for _, counter in STEPS.values():
        variable = getattr(model, counter, None)
        if variable is not None:
            yield counter.strip("_"), variable


def _own(variable: tf.Variable) -> str:
    return str(variable.name).partition(":")[0]


def _optimizer_variables(optimizer: Any) -> list[tf.Variable]:
    """Slots, counters and hyperparameters; a loss-scaling optimizer's inner ones too."""
    if optimizer is None:
        return []
    inner = getattr(optimizer, "inner_optimizer", None)
    variables = getattr(optimizer, "variables", [])
    found = list(variables() if callable(variables) else variables)
    rate = getattr(optimizer, "_learning_rate", None)
    if isinstance(rate, tf.Variable):
        found.append(rate)
    return found + _optimizer_variables(inner)
