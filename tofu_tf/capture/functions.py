"""A Python function or tf.function -> Captured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from tofu_tf.capture.abstract import tracing_abstractly
from tofu_tf.capture.captured import Captured
from tofu_tf.capture.deduplicating import pad_distinct
from tofu_tf.capture.dilating import fuse_dilated
from tofu_tf.capture.drawing import Streams
from tofu_tf.capture.inlining import inline
from tofu_tf.capture.shaping import check_static, imported
from tofu_tf.capture.straightening import straighten
from tofu_tf.capture.tracing import Traced, trace
from tofu_tf.graph.importing import import_graph


def capture_function(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    named: Iterable[tuple[str, tf.Variable]] = (),
    dynamic: bool = False,
    streams: Streams | None = None,
    abstract: bool = False,
) -> Captured:
    """What ``function(*arguments)`` does, as a Graph with static shapes.

    Args:
      function: a Python function or a tf.function (whose own options, such as jit_compile, are
        ignored).
      arguments: a nest with a `tf.TensorSpec` of static shape for every tensor; other leaves are
        baked in.
      named: the names wanted for some of the variables; others keep their own.
      dynamic: whether tensors inside may have sizes that depend on data.
      streams: the generators that its random ops draw from; None: new ones.
      abstract: give variables made in the trace no value, and leave all objects as they were.

    Raises:
      CaptureError: unknown dimensions in the arguments, or left in the graph (all listed by name).
    """
    plain = getattr(function, "python_function", function)
    if not abstract:
        traced = trace(plain, tuple(arguments), named)
    else:
        with tracing_abstractly(plain) as made:
            traced = trace(plain, tuple(arguments), named)
            if made:  # tf.function's first call traces again then, and runs the second trace
                traced = trace(plain, tuple(arguments), named)
    return finish(traced, tuple(arguments), dynamic, streams)


def finish(
    traced: Traced,
    arguments: tuple[Any, ...],
    dynamic: bool = False,
    streams: Streams | None = None,
) -> Captured:
    """Inlines, straightens and imports a traced function; random ops draw from `streams`."""
    kept = [*traced.placeholders, *traced.outputs, *traced.effects]
    flat = inline(traced.graph_def, kept)
    fed = (*traced.inputs, *traced.captures)
    roots = [*fed, *(name.partition(":")[0] for name in traced.outputs), *traced.effects]
    straight = straighten(
        flat,
        roots,
        lambda graph_def, states: imported(graph_def, {**traced.placeholders, **states}),
        Streams() if streams is None else streams,
        traced.variables,
    )
    drawn = straight.drawn
    graph = import_graph(
        straight.graph_def,
        straight.shapes,
        fed,
        traced.outputs,
        traced.effects,
        {**traced.handles, **drawn.handles},
    )
    graph = fuse_dilated(pad_distinct(graph))
    if not dynamic:
        check_static(
            graph,
            "give every argument a static shape; an op whose output shape depends on data "
            "(Where, Unique, boolean_mask) has none: undescribed='whole' runs such ops whole, on "
            "one device",
        )
    objects = {**traced.variables, **drawn.variables}
    variables = {name: objects[name] for name in graph.variables}
    return Captured(
        graph,
        arguments,
        traced.output_structure,
        variables,
        traced.captures,
        straight.graph_def.library,
    )
