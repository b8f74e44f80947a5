"""The TensorFlow internals that run a placed step: the runtime layer's only private API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import function_pb2
from tensorflow.python.eager import context, execute, record
from tensorflow.python.framework import ops
from tensorflow.python.ops import resource_variable_ops

BaseResourceVariable = resource_variable_ops.BaseResourceVariable
variable_accessed: Callable[[Any], None] = resource_variable_ops.variable_accessed


def device_names() -> tuple[str, ...]:
    """Full names of all logical devices, of every joined worker; starts TensorFlow."""
    context.ensure_initialized()
    return tuple(context.context().devices())


def seeding() -> Any:
    """An object that is another one after each tf.random.set_seed."""
    return getattr(context.context(), "_rng", None)  # there is none before the first


def add_function(definition: function_pb2.FunctionDef) -> None:
    context.ensure_initialized()
    context.context().add_function_def(definition)


def hold_function(definition: function_pb2.FunctionDef) -> None:
    """Keeps the function registered until `remove_functions`, whoever else registered it and lets
    it go; one of this name that is there in another form stays as it is.
    """
    try:
        add_function(definition)
    except tf.errors.InvalidArgumentError:
        add_function(context.context().get_function_def(definition.signature.name))


def has_function(name: str) -> bool:
    return bool(context.context().has_function(name))


def remove_functions(names: Sequence[str]) -> None:
    for name in names:
        context.context().remove_function(name)


def call_function(
    name: str, inputs: Sequence[Any], output_types: Sequence[tf.DType], config: bytes
) -> list[Any]:
    """Outputs of the registered function `name`, run eagerly or added to the current graph."""
    input_types = [x.dtype for x in inputs]
    if tf.executing_eagerly():
        ctx = context.context()
        attrs = (
            *("Tin", tuple(t.as_datatype_enum for t in input_types)),
            *("Tout", tuple(t.as_datatype_enum for t in output_types)),
            *("f", name.encode(), "config_proto", config, "config", "", "executor_type", ""),
        )
        outputs = execute.execute(
            b"StatefulPartitionedCall", len(output_types), list(inputs), attrs=attrs, ctx=ctx
        )
        return list(outputs or ())
    graph = ops.get_default_graph()
    captured = [graph.capture(x) if hasattr(graph, "capture") else x for x in inputs]
    call = graph.create_op(
        "StatefulPartitionedCall",
        captured,
        list(output_types),
        attrs={
            "Tin": _type_list(input_types),
            "Tout": _type_list(output_types),
            "f": tf.compat.v1.AttrValue(func=tf.compat.v1.NameAttrList(name=name)),
            "config_proto": tf.compat.v1.AttrValue(s=config),
        },
    )
    return list(call.outputs)


def _type_list(types: Sequence[tf.DType]) -> Any:
    return tf.compat.v1.AttrValue(
        list=tf.compat.v1.AttrValue.ListValue(type=[t.as_datatype_enum for t in types])
    )


def make_variable(value: Any, name: str) -> Any:
    """A resource variable on the current device; no scope that changes creation applies."""
    return resource_variable_ops.ResourceVariable(value, trainable=False, name=name)


def read(handle: Any, dtype: tf.DType) -> Any:
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)


def empty(handle: Any, dtype: tf.DType) -> None:
    """Puts a tensor without elements into the resource, which frees what it held."""
    nothing = tf.zeros([0], dtype)
    tf.raw_ops.AssignVariableOp(resource=handle, value=nothing, validate_shape=False)


def record_read(result: Any, handle: Any) -> None:
    """Tells gradient tapes that `result` is the value behind `handle`."""
    record.record_operation("ReadVariableOp", [result], [handle], lambda x: [x], lambda x: [x])


def record_call(
    name: str,
    outputs: Sequence[Any],
    inputs: Sequence[Any],
    variables: Sequence[Any],
    backward: Callable[..., Any],
) -> None:
    """Tells gradient tapes that `outputs` follow from `inputs` and the values of `variables`."""
    for variable in variables:
        variable_accessed(variable)
    handles = [variable.handle for variable in variables]
    record.record_operation(name, list(outputs), [*inputs, *handles], backward)


def stop_recording() -> Any:
    return record.stop_recording()
