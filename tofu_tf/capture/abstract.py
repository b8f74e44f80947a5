"""Variables of shape and dtype only: planning needs no weights."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tofu_tf.capture.keeping import kept
from tofu_tf.capture.tensorflow_private import (
    AbstractVariable,
    generators_kept,
    is_optimizer,
    scratch_graph,
)

_VALUED_ELEMENTS = 1024  # of a variable that can be read


@contextlib.contextmanager
def abstract() -> Iterator[None]:
    """Makes variables, those of Keras models included, of shape and dtype only: without memory.

    A model that is made inside can be planned (`tofu_tf.plan_step`), whatever its size, and not
    run. Initial values are not computed where the shape is known without them, as it is in Keras;
    that of a small variable is when it is read.
    """
    with _creating():
        yield


@contextlib.contextmanager
def _creating(made: list[tf.Variable] | None = None) -> Iterator[None]:
    def create(next_creator: Callable[..., tf.Variable], **keywords: Any) -> tf.Variable:
        del next_creator
        variable = _without_value(**keywords)
        if made is not None:
            made.append(variable)
        return variable

    with tf.variable_creator_scope(create):
        yield


def check_value(variable: tf.Variable) -> None:
    """Nothing where the variable has a value, which a small one is given when it is asked for.

    Raises:
      CaptureError: it is one made without.
    """
    if isinstance(variable, AbstractVariable):
        variable.read_value()


@contextlib.contextmanager
def tracing_abstractly(*roots: Any) -> Iterator[list[tf.Variable]]:
    """Lets traces inside make variables without values; what `roots` reach is left as it was.

    Yields the list of the variables made, which grows.
    Optimizers among it build their slots here, and are unbuilt again on leaving; the same for
    layers, metrics, containers of losses and Python numbers.

    Raises:
      CaptureError: the trace needs a value of a variable that has none.
    """
    made: list[tf.Variable] = []
    with kept(*roots) as reached, generators_kept(), _creating(made):
        for thing in reached:
            if is_optimizer(thing):
                # Straight into the instance: Keras's __setattr__ would track it.
                vars(thing)["build"] = _built_symbolically(thing.build, made)
        yield made


def _built_symbolically(
    build: Callable[[Any], None], made: list[tf.Variable]
) -> Callable[[Any], None]:
    """An optimizer's `build` whose initial values are symbols: Keras gives slots whole tensors."""

    def build_symbolically(variables: Any) -> None:
        scope = tf.get_current_name_scope()
        with scratch_graph(), tf.name_scope(f"{scope}/" if scope else ""), _creating(made):
            build(variables)

    return build_symbolically


def _without_value(**keywords: Any) -> tf.Variable:
    initial = keywords.pop("initial_value", None)
    shape, dtype = keywords.pop("shape", None), keywords.pop("dtype", None)
    if shape is None or dtype is None:
        of_initial = _spec(initial, dtype)
        shape = of_initial.shape if shape is None else shape
        dtype = of_initial.dtype if dtype is None else dtype
    shape, dtype = tf.TensorShape(shape), tf.as_dtype(dtype)
    count = shape.num_elements()
    if initial is not None and count is not None and count <= _VALUED_ELEMENTS:
        keywords["initial"] = initial if callable(initial) else lambda: initial
    return AbstractVariable(shape=shape, dtype=dtype, **keywords)


def _spec(initial: Any, dtype: Any) -> tf.TensorSpec:
    """Shape and dtype of an initial value: a tensor, what can be converted, or a function."""
    if tf.is_tensor(initial) or isinstance(initial, tf.Variable):
        return tf.TensorSpec(initial.shape, initial.dtype)
    with scratch_graph():  # where nothing is computed
        value = tf.convert_to_tensor(initial() if callable(initial) else initial, dtype)
    return tf.TensorSpec(value.shape, value.dtype)
