"""Graphs for tests, from Python functions over v1 graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tofu_tf.capture.shaping import static_shapes
from tofu_tf.graph.importing import import_graph
from tofu_tf.graph.ir import Graph


def graph_of(
    build: Callable[[], Any],
    inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
    effects: Sequence[str] = (),
) -> Graph:
    """What `build` makes, imported; without outputs and effects, all that it returns."""
    with tf.Graph().as_default() as graph:
        results = tf.nest.flatten(build())
    if not outputs and not effects:
        outputs = [t.name for t in results if isinstance(t, tf.Tensor)]
        effects = [op.name for op in results if isinstance(op, tf.Operation)]
    return import_graph(graph.as_graph_def(), static_shapes(graph), inputs, outputs, effects)


def fed(name: str, shape: Sequence[int] = (2,), dtype: tf.DType = tf.float32) -> tf.Tensor:
    """A placeholder."""
    return tf.compat.v1.placeholder(dtype, shape, name)
