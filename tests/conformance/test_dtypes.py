"""The first sample of every op in every other type that it has a CPU kernel for, in pieces."""

from __future__ import annotations

import dataclasses
import random
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import kernels

import tofu_tf.ops  # noqa: F401  fills the registry
from tests.conformance import running
from tofu_tf.graph.registered import op_definition
from tofu_tf.ops.registry import REGISTRY, OpEntry, Sample
from tofu_tf.tdl import strategies

TYPES = (
    *("float16", "bfloat16", "float32", "float64", "complex64"),
    *("int8", "uint8", "int16", "int32", "int64", "bool"),
)
CUTS = 3  # of each variant, drawn with a seed; all of them in the op's own samples' type
DEFAULT = 20  # one case of so many runs by default, the rest are slow


def type_attribute(op: str, sample: Sample) -> tuple[str, str] | None:
    """The attribute that the first input's type is, and that type; None where it is fixed."""
    definition = op_definition(op)
    if definition is None or not definition.input_arg or not sample.inputs:
        return None
    first = definition.input_arg[0]
    given = sample.inputs[0]
    name = given.dtype.name if isinstance(given, np.ndarray | np.generic) else given[1]
    if first.type == tf.resource.as_datatype_enum:
        attrs = {a.name for a in definition.attr}
        found = next((a for a in ("T", "dtype") if a in attrs), "")
    else:
        found = first.type_attr
    return (found, name) if found else None


def has_kernel(op: str, attribute: str, dtype: str) -> bool:
    number = tf.as_dtype(dtype).as_datatype_enum
    allowed = next(a for a in op_definition(op).attr if a.name == attribute).allowed_values
    if allowed.list.type and number not in allowed.list.type:
        return False
    for kernel in kernels.get_registered_kernels_for_op(op).kernel:
        named = [c for c in kernel.constraint if c.name == attribute]
        if kernel.device_type == "CPU" and all(number in c.allowed_values.list.type for c in named):
            return True
    return False


def retyped(sample: Sample, old: str, new: str) -> Sample:
    """The sample with `new` in the place of the type `old`; whole numbers from 1 to 3."""

    def given(value: Any) -> Any:
        if isinstance(value, np.ndarray | np.generic):
            same = tf.as_dtype(value.dtype).name == old
            return value.astype(tf.as_dtype(new).as_numpy_dtype) if same else value
        shape, name = value
        return (shape, new if name == old else name)

    attrs = {key: new if value == old else value for key, value in sample.attrs.items()}
    whole = not new.startswith(("float", "bfloat", "complex"))
    low, high = (1.0, 3.0) if whole else (sample.low, sample.high)
    return dataclasses.replace(
        sample, inputs=tuple(map(given, sample.inputs)), attrs=attrs, low=low, high=high, rtol=0.0
    )


def cases() -> Iterator[Any]:
    n = 0
    for name, entry in REGISTRY.items():
        found = type_attribute(name, entry.samples[0])
        for dtype in TYPES if found else ():
            attribute, old = found or ("", "")
            if dtype != old and has_kernel(name, attribute, dtype):
                n += 1
                marks = () if n % DEFAULT == 0 else (pytest.mark.slow,)
                yield pytest.param(entry, old, dtype, id=f"{name}-{dtype}", marks=marks)


@pytest.mark.parametrize("entry, old, dtype", list(cases()))
def test_pieces_equal_the_whole(entry: OpEntry, old: str, dtype: str) -> None:
    sample = retyped(entry.samples[0], old, dtype)
    try:
        case = running.case_of(entry, sample)
    except (tf.errors.OpError, TypeError, ValueError) as error:
        pytest.skip(f"the whole op does not run so: {str(error).splitlines()[0]}")
    rng = random.Random(zlib.crc32(f"{entry.name}{dtype}".encode()))
    ran = 0
    for applied in case.described.applied:
        legal = [
            cut
            for cut in running.cuts_of(applied)
            if strategies.is_legal(applied.description, *cut)
        ]
        for axes, factors in rng.sample(legal, min(CUTS, len(legal))):
            ran += 1
            running.check_cut(case, applied, axes, factors)
    assert ran
