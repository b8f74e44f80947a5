"""The zoo: small steps that together hold every described op, each captured and run once.

`python -m tests.zoo.zoo` prints how many nodes each has, and which ops none has.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from tests.zoo import elementwise, generative, images, sequences, tensors, updates
from tests.zoo.step import Step, Training
from tofu_tf.capture.captured import Captured
from tofu_tf.capture.functions import capture_function
from tofu_tf.capture.keras_steps import capture_step, step_function

# Keras models and plain functions; `NAMES` has those first that are quickly made.
TRAININGS: dict[str, Training] = {**images.MODELS, **sequences.MODELS, **generative.MODELS}
FUNCTIONS: dict[str, Callable[[], Step]] = {
    **images.FUNCTIONS,
    **{
        function.__name__: function
        for function in (
            elementwise.unary,
            elementwise.binary,
            elementwise.gradients,
            elementwise.bits,
            elementwise.quantised,
            tensors.moves,
            tensors.moved_back,
            tensors.blocks,
            tensors.gathers,
            tensors.scatters,
            tensors.segments,
            tensors.orders,
            tensors.reductions,
            tensors.products,
            tensors.linear_algebra,
            tensors.sparse_products,
            tensors.diagonals,
            tensors.transforms,
            tensors.losses,
            tensors.draws,
            updates.dense,
            updates.sparse,
            updates.assigned,
        )
    },
}
NAMES = (*FUNCTIONS, *TRAININGS)


@dataclasses.dataclass(frozen=True)
class Case:
    """A captured step, what it is fed, and its outputs and variables after it on one device."""

    name: str
    captured: Captured
    feeds: tuple[np.ndarray, ...]
    outputs: tuple[np.ndarray, ...]
    after: dict[str, np.ndarray]
    tolerance: float


@functools.cache
def case(name: str) -> Case:
    """The step of that name, its variables as they were before it."""
    if name in TRAININGS:
        return _trained(name, TRAININGS[name])
    step = FUNCTIONS[name]()
    specs = [tf.TensorSpec(f.shape, f.dtype) for f in step.feeds]
    captured = capture_function(step.function, specs, dynamic=step.dynamic)
    return _run(name, captured, step.function, step.feeds, step)


def _trained(name: str, training: Training) -> Case:
    before = keras.backend.floatx()
    keras.backend.set_floatx(training.dtype)
    try:
        keras.utils.set_random_seed(1)
        model = training.make()
        given = training.data(np.random.RandomState(0))
        data = tf.nest.map_structure(lambda x: _narrow(x, training.dtype), given)
        specs = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), data)
        captured = capture_step(model, "train", specs)
        step = step_function(model, "train")

        def run(*flat: Any) -> Any:
            return step(tf.nest.pack_sequence_as(data, flat))

        return _run(name, captured, run, tuple(tf.nest.flatten(data)), training)
    finally:
        keras.backend.set_floatx(before)


def _narrow(x: np.ndarray, dtype: str) -> np.ndarray:
    return x.astype(dtype if x.dtype == np.float64 else "int32")


def _run(
    name: str,
    captured: Captured,
    function: Callable[..., Any],
    feeds: tuple[np.ndarray, ...],
    made: Step | Training,
) -> Case:
    before = {n: v.numpy() for n, v in captured.variables.items()}
    compiled = tf.function(function, jit_compile=made.compiled or None)
    outputs = compiled(*map(tf.constant, feeds))
    found = tuple(t.numpy() for t in tf.nest.flatten(outputs) if t is not None)
    after = {n: v.numpy() for n, v in captured.variables.items()}
    for n, v in captured.variables.items():
        v.assign(before[n])
    return Case(name, captured, feeds, found, after, made.tolerance)


def held_ops() -> Iterator[tuple[str, str]]:
    """(op, name of a step) for every op type in a step's graph."""
    for name in NAMES:
        for op in sorted({node.op for node in case(name).captured.graph}):
            yield op, name


if __name__ == "__main__":
    import time

    from tofu_tf.ops.registry import REGISTRY

    missing = set(REGISTRY)
    for step_name in NAMES:
        start = time.perf_counter()
        try:
            graph = case(step_name).captured.graph
        except Exception as error:  # shows all that fail
            print(f"{step_name}: {type(error).__name__} {str(error)[:300]}")
            continue
        missing -= {node.op for node in graph}
        unknown = {node.op for node in graph} - set(REGISTRY)
        print(
            f"{step_name}: {len(graph.nodes)} nodes, {time.perf_counter() - start:.1f} s, "
            f"undescribed {sorted(unknown)}"
        )
    print(len(missing), "missing:", *sorted(missing))
