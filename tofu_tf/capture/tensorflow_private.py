"""The capture layer's private TensorFlow API, in one place."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
import tf_keras
from tensorflow.core.protobuf import config_pb2, meta_graph_pb2
from tensorflow.python.eager import context
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.framework.ops import EagerTensor
from tensorflow.python.grappler import tf_optimizer
from tensorflow.python.ops import handle_data_util, resource_variable_ops
from tf_keras.src import backend

from tofu_tf.errors import CaptureError


def optimize(config: config_pb2.ConfigProto, meta: meta_graph_pb2.MetaGraphDef) -> Any:
    """The GraphDef that Grappler makes of `meta` under `config`."""
    return tf_optimizer.OptimizeGraph(config, meta)


def copy_handle_data(source: tf.Tensor, target: tf.Tensor) -> None:
    """Tells `target`, a placeholder, the shape and dtype of the variable behind `source`."""
    handle_data_util.copy_handle_data(source, target)


def handle_spec(handle: tf.Tensor) -> tuple[tf.TensorShape, tf.DType] | None:
    """Shape and dtype of the variable behind `handle`; None when it is no variable's."""
    data = resource_variable_ops.get_eager_safe_handle_data(handle)
    if data is None or not data.is_set or len(data.shape_and_type) != 1:
        return None
    entry = data.shape_and_type[0]
    return tf.TensorShape(entry.shape), tf.dtypes.as_dtype(entry.dtype)


def variable_over(handle: tf.Tensor, name: str) -> tf.Variable:
    """A variable object over `handle`, for one that no Python object in reach stands for."""
    spec = handle_spec(handle)
    if spec is None:
        raise ValueError(f"{name} is no variable's handle")
    return resource_variable_ops.BaseResourceVariable(
        trainable=False, shape=spec[0], dtype=spec[1], handle=handle, name=name, handle_name=name
    )


def captures_of(graph: FuncGraph) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """(outer tensor, placeholder) of everything that a traced function closes over."""
    return list(graph.captures)


def control_outputs_of(graph: FuncGraph) -> list[tf.Operation]:
    """The operations that a traced function runs whatever is fetched."""
    return list(graph.control_outputs)


class AbstractVariable(resource_variable_ops.ResourceVariable):
    """A variable of this shape and dtype that holds no value; TensorFlow takes it for any other.

    `initial`: makes a value when one is read eagerly, for small ones: Keras computes with counters
    and statistics while it makes a model. UninitializedVariable is of another class than variables
    usually are, and some functions (tf.cast) make other nodes of it.
    """

    def __init__(
        self,
        shape: tf.TensorShape,
        dtype: tf.DType,
        initial: Callable[[], Any] | None = None,
        **keywords: Any,
    ) -> None:
        self._initial = initial
        empty = resource_variable_ops.UninitializedVariable(shape=shape, dtype=dtype, **keywords)
        empty.handle._parent_trackable = weakref.ref(self)
        resource_variable_ops.BaseResourceVariable.__init__(
            self,
            trainable=empty.trainable,
            shape=shape,
            dtype=dtype,
            handle=empty.handle,
            constraint=empty.constraint,
            synchronization=empty.synchronization,
            aggregation=empty.aggregation,
            handle_name=empty._shared_name,
            unique_id=empty._unique_id,
            in_graph_mode=False,
        )

    def _read_variable_op(self, no_copy: bool = False) -> tf.Tensor:
        value = super()._read_variable_op(no_copy)
        # What was never assigned reads as a tensor without elements, of one dimension.
        if isinstance(value, EagerTensor) and not self.shape.is_compatible_with(value.shape):
            if self._initial is not None:
                self.assign(tf.cast(self._initial(), self.dtype))
                return super()._read_variable_op(no_copy)
            raise CaptureError(
                f"variable {self.name.partition(':')[0]}",
                "read, and made inside tofu_tf.abstract() or an abstract trace: it has no value",
                "code that does not need values to make a model or to trace a step",
                "make and run the model outside tofu_tf.abstract()",
            )
        return value

    def __repr__(self) -> str:
        return f"<tf.Variable {self.name!r} shape={self.shape} dtype={self.dtype.name}, no value>"


def scratch_graph() -> contextlib.AbstractContextManager[Any]:
    """A function's graph that is thrown away: tensors made inside are symbols."""
    return FuncGraph("scratch").as_default()


def is_optimizer(thing: Any) -> bool:
    """Whether it is one of tf_keras.optimizers (not a legacy one), whose `build` makes slots."""
    return isinstance(thing, tf_keras.optimizers.Optimizer)


@contextlib.contextmanager
def generators_kept() -> Iterator[None]:
    """Undoes on leaving what was drawn from Keras's and TensorFlow's generators of seeds."""
    keras_generator = getattr(backend._SEED_GENERATOR, "generator", None)
    generators = [g for g in (keras_generator, getattr(context.context(), "_rng", None)) if g]
    states = [g.getstate() for g in generators]
    try:
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.setstate(state)
