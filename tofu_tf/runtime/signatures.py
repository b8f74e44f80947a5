"""What a call's arguments look like: tensors by shape and type, everything else by value."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tofu_tf import errors

_REMEDY = (
    "give dense tensors, arrays or tf.TensorSpecs of static shape; in tf.data, "
    "batch(n, drop_remainder=True) makes the batch size known"
)


@dataclasses.dataclass(frozen=True)
class Call:
    """One call's arguments.

    `values`: the positional ones and those by keyword, arrays as tensors. `specs`: the same nest
    with a `tf.TensorSpec` for every tensor. `key`: equal for calls that one trace serves.
    """

    values: tuple[tuple[Any, ...], Mapping[str, Any]]
    specs: tuple[tuple[Any, ...], Mapping[str, Any]]
    key: tuple[Hashable, ...]


def call_of(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """The arguments of ``function(*args, **kwargs)``, defaults filled in.

    Arrays become tensors; tensors and specs count by shape and type, variables and other objects by
    identity or, where they can be hashed, by value and type, as for a tf.function.

    Raises:
      TypeError: arguments that the function does not take.
      CaptureError: sparse or ragged tensors, or unknown dimensions; all in one message.
    """
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    wrong: list[str] = []
    # Of one structure by whatever way an argument came.
    structure = (bound.args, dict(sorted(bound.kwargs.items())))
    names = _names(bound)
    values = tf.nest.map_structure(_value, structure)
    leaves = tf.nest.flatten(values)
    specs = [_spec(leaf, name, wrong) for leaf, name in zip(leaves, names, strict=True)]
    if wrong:
        raise errors.CaptureError(
            f"arguments of {getattr(function, '__name__', function)}",
            "; ".join(wrong),
            "dense tensors of static shape",
            _REMEDY,
        )
    key = (repr(tf.nest.map_structure(lambda _: 0, structure)), *map(_key, specs))
    return Call(values, tf.nest.pack_sequence_as(values, specs), key)


def key_text(key: tuple[Any, ...]) -> str:
    """``float32[16, 8], 3``."""
    return ", ".join(str(entry[1]) for entry in key[1:])


def _names(bound: inspect.BoundArguments) -> list[str]:
    """For every leaf the parameter that it belongs to, with its position where there are more."""
    by_keyword = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
    kinds = {name: parameter.kind for name, parameter in bound.signature.parameters.items()}
    named = [(n, v) for n, v in bound.arguments.items() if kinds[n] not in by_keyword]
    names = []
    for name, value in [*named, *sorted(bound.kwargs.items())]:
        count = len(tf.nest.flatten(value))
        names += [name] if count == 1 else [f"{name}_{i}" for i in range(count)]
    return names


def _value(leaf: Any) -> Any:
    return tf.convert_to_tensor(leaf) if isinstance(leaf, np.ndarray | np.generic) else leaf


def _spec(leaf: Any, name: str, wrong: list[str]) -> Any:
    if isinstance(leaf, tf.Tensor | tf.TensorSpec):
        if not leaf.shape.is_fully_defined():
            wrong.append(f"{name} is {leaf.dtype.name}{leaf.shape}")
        return tf.TensorSpec(leaf.shape, leaf.dtype, name)
    if not isinstance(leaf, tf.Variable) and _is_composite(leaf):
        wrong.append(f"{name} is a {type(leaf).__name__}")
    return leaf


def _is_composite(leaf: Any) -> bool:
    flat = tf.nest.flatten(leaf, expand_composites=True)
    return len(flat) != 1 or flat[0] is not leaf


def _key(leaf: Any) -> tuple[Any, Any]:
    if isinstance(leaf, tf.TensorSpec):
        return "tensor", f"{leaf.dtype.name}{leaf.shape.as_list()}"
    if isinstance(leaf, tf.Variable):
        return "variable", id(leaf)  # the step's arguments keep it alive
    try:
        hash(leaf)
    except TypeError:
        return type(leaf), id(leaf)
    return type(leaf), leaf
