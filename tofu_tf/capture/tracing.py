"""A Python function -> its traced graph, with the caller's variables named."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tofu_tf.capture.captured import tensor_leaves
from tofu_tf.capture.tensorflow_private import (
    captures_of,
    control_outputs_of,
    handle_spec,
    variable_over,
)
from tofu_tf.errors import CaptureError
from tofu_tf.graph.ir import TensorSpec, Variable

# Variables born during a trace (optimizer slots, metrics) must not land on an accelerator before
# they are cut.
HOST = "/device:CPU:0"


@dataclasses.dataclass(frozen=True)
class Traced:
    """A function's graph as traced: not inlined, shapes as the function's own graph knows them.

    `made_variables`: the trace made some, outside the graph; tf.function would trace again then.
    `placeholders` hold shape and handle data of everything fed or captured; `inputs`, `handles` and
    `captures` divide them into arguments, variables and other captured tensors.
    """

    graph_def: graph_pb2.GraphDef
    placeholders: Mapping[str, tf.Tensor]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    effects: tuple[str, ...]
    output_structure: Any
    handles: Mapping[str, Variable]
    variables: Mapping[str, tf.Variable]
    captures: Mapping[str, tf.Tensor]
    made_variables: bool


def trace(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    named: Iterable[tuple[str, tf.Variable]] | Callable[[], Iterable[tuple[str, tf.Variable]]] = (),
    lift: bool = True,
) -> Traced:
    """The graph of ``function(*arguments)``.

    Args:
      arguments: a nest with a `tf.TensorSpec` for every tensor; other leaves are passed as they
        are.
      named: names for variables, or a function that gives them after the trace, when all exist.
      lift: let the function make variables of symbolic values on its first call, at the price of a
        second trace whenever it makes any. Keras needs none of it.

    Raises:
      CaptureError: an argument without a static shape.
    """
    specs = tensor_leaves(arguments)
    _check_arguments(specs)
    flat = tf.nest.flatten(arguments, expand_composites=True)
    positions = [i for i, leaf in enumerate(flat) if isinstance(leaf, tf.TensorSpec)]

    def flat_step(*tensors: tf.Tensor) -> Any:
        leaves = list(flat)
        for position, tensor in zip(positions, tensors):  # noqa: B905  (autograph knows no strict)
            leaves[position] = tensor
        packed = tf.nest.pack_sequence_as(arguments, leaves, expand_composites=True)
        if lift:
            return function(*packed)
        with tf.variable_creator_scope(unlifted):
            return function(*packed)

    made: list[tf.Variable] = []

    def unlifted(next_creator: Callable[..., tf.Variable], **keywords: Any) -> tf.Variable:
        # An ordinary variable outside the graph, which tf.function need not lift out of it.
        made.append(next_creator(**{**keywords, "experimental_enable_variable_lifting": False}))
        return made[-1]

    with tf.device(HOST):
        concrete = tf.function(flat_step).get_concrete_function(*specs)
    traced = _read(concrete, len(specs), named() if callable(named) else named)
    return dataclasses.replace(traced, made_variables=bool(made))


def _check_arguments(specs: Sequence[tf.TensorSpec]) -> None:
    unknown = [
        f"{s.name or f'tensor {i}'} {s.shape}"
        for i, s in enumerate(specs)
        if not s.shape.is_fully_defined()
    ]
    if unknown:
        raise CaptureError(
            "; ".join(unknown),
            "arguments with unknown dimensions",
            "tf.TensorSpecs with static shapes",
            "give the batch size and every other dimension",
        )


def _read(concrete: Any, arguments: int, named: Iterable[tuple[str, tf.Variable]]) -> Traced:
    graph = concrete.graph
    fed = [tensor.op.name for tensor in graph.inputs[:arguments]]
    objects = {id(v.handle): (name, v) for name, v in reversed(list(named))}
    for variable in concrete.variables:
        objects.setdefault(id(variable.handle), (_plain(variable.name), variable))
    # Every name given is taken, used or not: the same variable then has the same name in every
    # step.
    taken = {name for name, _ in objects.values()}
    names = _NodeNames({op.name for op in graph.get_operations()})
    handles: dict[str, Variable] = {}
    variables: dict[str, tf.Variable] = {}
    captures: dict[str, tf.Tensor] = {}
    placeholders = {tensor.op.name: tensor for tensor in graph.inputs}
    for position, (outer, inner) in enumerate(captures_of(graph)):
        spec = handle_spec(inner) if inner.dtype == tf.resource else None
        if spec is None or not spec[0].is_fully_defined():
            captures[inner.op.name] = outer
            continue
        name, variable = objects.get(id(outer), ("", None))
        if variable is None:
            wanted = inner.op.name.removesuffix("/resource").removesuffix("/ReadVariableOp")
            name, variable = wanted, variable_over(outer, wanted)
        if variables.get(name, variable) is not variable or (
            id(outer) not in objects and name in taken
        ):
            name = _unique(name, taken | set(variables))
        variables[name] = variable
        handles[inner.op.name] = Variable(
            name,
            TensorSpec(tuple(spec[0].as_list()), spec[1].name),
            names.claim(name),
            position,
            bool(variable.trainable) and variable.dtype.is_floating,
        )
    return Traced(
        graph.as_graph_def(),
        placeholders,
        tuple(fed),
        tuple(tensor.name for tensor in graph.outputs),
        tuple(op.name for op in control_outputs_of(graph)),
        tf.nest.map_structure(_spec_of, graph.structured_outputs, expand_composites=False),
        handles,
        variables,
        captures,
        made_variables=False,
    )


def _spec_of(value: Any) -> Any:
    return None if value is None else tf.type_spec_from_value(value)


def _plain(name: str) -> str:
    return name.partition(":")[0]


def _unique(name: str, taken: Iterable[str]) -> str:
    """`name`, or the first of ``name_1``, ``name_2`` ... that is free."""
    used, found, n = set(taken), name, 0
    while found in used:
        n += 1
        found = f"{name}_{n}"
    return found


class _NodeNames:
    """Names for Variable nodes: the variable's own where it is legal and free."""

    def __init__(self, taken: set[str]) -> None:
        self.taken = taken

    def claim(self, name: str) -> str:
        legal = re.sub(r"[^A-Za-z0-9_.\\/-]", "_", name)
        legal = legal if re.match(r"[A-Za-z0-9.]", legal) else f"v{legal}"
        found = _unique(legal, self.taken)
        self.taken.add(found)
        return found
