"""A captured step: its Graph, its arguments and results, and whose variables it uses."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import function_pb2

from tofu_tf.errors import CaptureError
from tofu_tf.graph.ir import Graph


@dataclasses.dataclass(frozen=True)
class Captured:
    """A step as a Graph.

    `input_structure`: the arguments as given, a `tf.TensorSpec` for every tensor; other leaves are
    baked in.
    `output_structure`: the result, a TypeSpec for every tensor (or composite), None where there is
    None.
    `variables`: name in the graph -> the user's own object.
    `captures`: name of a placeholder -> the tensor that is fed to it after the arguments, in this
    order.
    `library`: functions that calls, conditionals and loops left in the graph refer to.
    """

    graph: Graph
    input_structure: Any
    output_structure: Any
    variables: Mapping[str, tf.Variable]
    captures: Mapping[str, tf.Tensor]
    library: function_pb2.FunctionDefLibrary


def tensor_leaves(structure: Any) -> list[tf.TensorSpec]:
    """The tensors of a nest of specs, in call order; Python leaves left out."""
    return [
        s
        for s in tf.nest.flatten(structure, expand_composites=True)
        if isinstance(s, tf.TensorSpec)
    ]


def flatten_inputs(captured: Captured, arguments: Any) -> list[Any]:
    """What `captured.graph.inputs` are fed with: the tensors of `arguments`, then the captures.

    Raises:
      CaptureError: `arguments` are not structured as those of the trace.
    """
    try:
        tf.nest.assert_same_structure(captured.input_structure, arguments, expand_composites=True)
    except (TypeError, ValueError) as error:
        raise CaptureError(
            "arguments",
            str(error).splitlines()[0],
            f"the structure {captured.input_structure}",
            "trace again",
        ) from error
    specs = tf.nest.flatten(captured.input_structure, expand_composites=True)
    leaves = tf.nest.flatten(arguments, expand_composites=True)
    fed = [
        leaf for spec, leaf in zip(specs, leaves, strict=True) if isinstance(spec, tf.TensorSpec)
    ]
    return fed + list(captured.captures.values())


def pack_outputs(captured: Captured, tensors: Sequence[Any]) -> Any:
    """The step's result from `captured.graph.outputs`, structured as the function returned it."""
    left = iter(tensors)
    specs = tf.nest.flatten(captured.output_structure, expand_composites=True)
    leaves = [None if spec is None else next(left) for spec in specs]
    return tf.nest.pack_sequence_as(captured.output_structure, leaves, expand_composites=True)
