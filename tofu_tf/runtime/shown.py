"""What a user's variable object shows while its value lies in parts: whole current values."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tofu_tf import errors
from tofu_tf.runtime import devices, private_api

_STATE = "_tofu_state"
_tracing = threading.local()


@contextlib.contextmanager
def whole_variables_traced() -> Iterator[None]:
    """While a step is traced here, variables in parts enter its graph as ordinary ones.

    Only for graphs that are partitioned afterwards; what is read eagerly meanwhile is current.
    """
    depth = getattr(_tracing, "depth", 0)
    _tracing.depth = depth + 1
    try:
        yield
    finally:
        _tracing.depth = depth


def _ordinary() -> bool:
    return getattr(_tracing, "depth", 0) > 0 and not tf.executing_eagerly()


def is_traced_whole() -> bool:
    """Whether what is built here is the graph of a step that is partitioned afterwards."""
    return _ordinary()


def innermost(variable: Any) -> Any:
    """The resource variable inside wrappers such as mixed precision's."""
    while not isinstance(variable, private_api.BaseResourceVariable):
        inner = getattr(variable, "_variable", None)
        if inner is None:
            raise errors.ModelError(
                f"variable {getattr(variable, 'name', variable)!s}",
                f"a {type(variable).__name__}",
                "a resource variable",
            )
        variable = inner
    return variable


def state_of(variable: Any) -> Any:
    return variable.__dict__.get(_STATE)


def show(variable: Any, state: Any) -> None:
    """Makes the object read and write the parts in `state`."""
    variable.__dict__[_STATE] = state
    variable.__class__ = _in_parts(type(variable))


def hide(variable: Any) -> None:
    variable.__class__ = type(variable)._ordinary_class
    del variable.__dict__[_STATE]


_classes: dict[type, type] = {}


def _in_parts(ordinary: type) -> type:
    """The subclass of a variable's class whose objects show parts."""
    if ordinary not in _classes:
        members = {"_ordinary_class": ordinary, "__module__": ordinary.__module__}
        _classes[ordinary] = type(ordinary.__name__, (_ShownInParts, ordinary), members)
    return _classes[ordinary]


class _ShownInParts:
    """Overrides of what a resource variable does through its handle.

    No `__slots__`: the class of an object can only be replaced by one of the same memory layout.
    """

    @property
    def _handle(self) -> Any:
        # Eager operators written in C++ read `_handle` themselves where it is a tensor.
        return None if tf.executing_eagerly() else self.__dict__["_handle"]

    @property
    def handle(self) -> Any:
        # A variable that lies whole in one place can be used by its handle, as generators are.
        parts = [] if _tracing_depth() else list(state_of(self).handles)
        return parts[0] if len(parts) == 1 else self.__dict__["_handle"]

    @property
    def device(self) -> str:
        handle_device: str = self.__dict__["_handle"].device
        return handle_device if _ordinary() else devices.host_of(handle_device)

    def __tf_tracing_type__(self, signature_context: Any) -> Any:
        if _tracing_depth():
            return super().__tf_tracing_type__(signature_context)  # type: ignore[misc]
        raise errors.ModelError(
            f"variable {self.name}",  # type: ignore[attr-defined]
            "a distributed variable as the argument of a tf.function",
            remedy="let the function refer to the variable instead of taking it as an argument",
        )

    def _read_variable_op(self, no_copy: bool = False) -> Any:
        if _ordinary():
            return super()._read_variable_op(no_copy)  # type: ignore[misc]
        private_api.variable_accessed(self)
        with private_api.stop_recording():
            value = tf.identity(state_of(self).read())
        private_api.record_read(value, self.handle)
        return value

    def numpy(self) -> Any:
        if not tf.executing_eagerly():
            return super().numpy()  # type: ignore[misc]
        value: np.ndarray = state_of(self).numpy()
        return value[()] if value.ndim == 0 else value

    def is_initialized(self, name: str | None = None) -> Any:
        if _ordinary():
            return super().is_initialized(name)  # type: ignore[misc]
        return tf.constant(True)

    def assign(
        self, value: Any, use_locking: Any = None, name: Any = None, read_value: bool = True
    ) -> Any:
        if _ordinary():
            return super().assign(value, use_locking, name, read_value)  # type: ignore[misc]
        return self._written(state_of(self).assign(value), read_value)

    def assign_add(
        self, delta: Any, use_locking: Any = None, name: Any = None, read_value: bool = True
    ) -> Any:
        if _ordinary():
            return super().assign_add(delta, use_locking, name, read_value)  # type: ignore[misc]
        return self._written(state_of(self).assign_add(delta), read_value)

    def assign_sub(
        self, delta: Any, use_locking: Any = None, name: Any = None, read_value: bool = True
    ) -> Any:
        if _ordinary():
            return super().assign_sub(delta, use_locking, name, read_value)  # type: ignore[misc]
        return self._written(state_of(self).assign_sub(delta), read_value)

    def _written(self, writes: list[Any], read_value: bool) -> Any:
        if tf.executing_eagerly():
            return self if read_value else None
        if not read_value:
            return tf.group(*writes)
        with tf.control_dependencies(writes):
            return tf.identity(self._read_variable_op())

    def sparse_read(self, indices: Any, name: str | None = None) -> Any:
        if _ordinary():
            return super().sparse_read(indices, name)  # type: ignore[misc]
        return tf.gather(self._read_variable_op(), indices, name=name)

    def gather_nd(self, indices: Any, name: str | None = None) -> Any:
        if _ordinary():
            return super().gather_nd(indices, name)  # type: ignore[misc]
        return tf.gather_nd(self._read_variable_op(), indices, name=name)

    def _strided_slice_assign(
        self, begin: Any, end: Any, strides: Any, value: Any, name: Any, **masks: int
    ) -> Any:
        if _ordinary():
            return super()._strided_slice_assign(  # type: ignore[misc]
                begin, end, strides, value, name, **masks
            )
        updated = tf.raw_ops.TensorStridedSliceUpdate(
            input=self._read_variable_op(),
            begin=begin,
            end=end,
            strides=strides,
            value=tf.convert_to_tensor(value, self.dtype),  # type: ignore[attr-defined]
            **masks,
        )
        return self.assign(updated)

    def _restore_from_tensors(self, restored_tensors: Any) -> Any:
        (value,) = restored_tensors.values()
        return self.assign(value, read_value=False)


def _scatter(name: str) -> Any:
    """An override of one of the scatter methods, by computing the whole new value."""

    def scatter(self: Any, sparse_delta: Any, use_locking: bool = False, name: Any = None) -> Any:
        if _ordinary():
            return getattr(super(_ShownInParts, self), method)(sparse_delta, use_locking, name)
        if not isinstance(sparse_delta, tf.IndexedSlices):
            raise TypeError(
                f"Argument `sparse_delta` must be a `tf.IndexedSlices`. Received {sparse_delta}"
            )
        indices = sparse_delta.indices[..., tf.newaxis]
        updates = tf.cast(sparse_delta.values, self.dtype)
        return self.assign(compute(self._read_variable_op(), indices, updates))

    method, compute = f"scatter_{name}", _COMPUTE[name]
    return scatter


def _scatter_nd(name: str) -> Any:
    def scatter(self: Any, indices: Any, updates: Any, name: Any = None) -> Any:
        if _ordinary():
            return getattr(super(_ShownInParts, self), method)(indices, updates, name)
        updates = tf.convert_to_tensor(updates, self.dtype)
        return self.assign(compute(self._read_variable_op(), indices, updates))

    method, compute = f"scatter_nd_{name}", _COMPUTE[name]
    return scatter


_COMPUTE = {
    "add": tf.tensor_scatter_nd_add,
    "sub": tf.tensor_scatter_nd_sub,
    "max": tf.tensor_scatter_nd_max,
    "min": tf.tensor_scatter_nd_min,
    "update": tf.tensor_scatter_nd_update,
}
for _name in _COMPUTE:
    setattr(_ShownInParts, f"scatter_{_name}", _scatter(_name))
    setattr(_ShownInParts, f"scatter_nd_{_name}", _scatter_nd(_name))


def _refused(method: str) -> Any:
    def refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _ordinary():
            return getattr(super(_ShownInParts, self), method)(*args, **kwargs)
        raise errors.ModelError(
            f"variable {self.name}",
            f"{method} while its value lies in parts",
            remedy="read the value, change it and assign it",
        )

    return refuse


for _name in ("scatter_mul", "scatter_div", "batch_scatter_update", "count_up_to"):
    setattr(_ShownInParts, _name, _refused(_name))


def _tracing_depth() -> int:
    depth: int = getattr(_tracing, "depth", 0)
    return depth
