"""Images with channels first, gradients of grouped and dilated convolutions: cut every way, run by XLA.

TensorFlow's CPU kernels lack these, so the conformance samples cannot hold them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tofu_tf.ops  # noqa: F401  fills the registry
from tests.conformance import running
from tofu_tf.graph import attributes
from tofu_tf.graph.registered import attribute_kinds, op_definition
from tofu_tf.ops.registry import REGISTRY, Sample

NCHW = {"data_format": "NCHW"}
STRIDES = (1, 1, 2, 2)
F64 = "float64"
GROUPED = {"strides": (1, 2, 1, 1), "padding": "SAME"}
DILATED = {"strides": (1, 1, 1, 1), "padding": "SAME", "dilations": (1, 2, 3, 1)}
POOL = {"ksize": (1, 1, 3, 2), "strides": STRIDES, "padding": "SAME", **NCHW}
TILES = {"ksize": (1, 1, 2, 2), "strides": STRIDES, "padding": "VALID", **NCHW}


def case(op: str, *inputs: Any, axes: str, **attrs: Any) -> Any:
    given = tuple(i if isinstance(i, np.ndarray) else (i, F64) for i in inputs)
    return pytest.param(op, Sample(given, {"": tuple(axes.split())}, attrs), id=f"{op}-{axes}")


def shape(*sizes: int) -> np.ndarray:
    return np.array(sizes, np.int32)


CONV = {"strides": STRIDES, "padding": "SAME", **NCHW}
CASES = [
    case("Conv2D", (2, 3, 7, 6), (3, 3, 3, 4), axes="b co y x ci", **CONV),
    case(
        "Conv2DBackpropInput",
        shape(2, 3, 7, 6),
        (3, 3, 3, 4),
        (2, 4, 4, 3),
        axes="b ci y x co",
        **CONV,
    ),
    case(
        "Conv2DBackpropFilter",
        (2, 3, 7, 6),
        shape(3, 3, 3, 4),
        (2, 4, 4, 3),
        axes="b ci co oy ox",
        **CONV,
    ),
    case("MaxPool", (2, 3, 7, 6), axes="b c y x", **POOL),
    case("AvgPool", (2, 3, 7, 6), axes="b c y x", **POOL),
    case("MaxPoolGrad", (2, 3, 7, 6), (2, 3, 4, 3), (2, 3, 4, 3), axes="b c y x.0 x.1", **POOL),
    case("MaxPoolGrad", (2, 3, 8, 5), (2, 3, 4, 2), (2, 3, 4, 2), axes="b c y.0 y.1 x", **TILES),
    case("AvgPoolGrad", shape(2, 3, 7, 6), (2, 3, 4, 3), axes="b c y x", **POOL),
    # three groups of two channels in, three out
    case(
        "Conv2DBackpropInput",
        shape(2, 5, 4, 6),
        (3, 3, 2, 9),
        (2, 3, 4, 9),
        axes="b y x ci.0 ci.1",
        **GROUPED,
    ),
    case(
        "Conv2DBackpropFilter",
        (2, 5, 4, 6),
        shape(3, 3, 2, 9),
        (2, 3, 4, 9),
        axes="b oy ox co.0 co.1",
        **GROUPED,
    ),
    case(
        "Conv2DBackpropInput",
        shape(2, 7, 6, 2),
        (3, 2, 2, 3),
        (2, 7, 6, 3),
        axes="b y x ci co",
        **DILATED,
    ),
    case(
        "Conv2DBackpropFilter",
        (2, 7, 6, 2),
        shape(3, 2, 2, 3),
        (2, 7, 6, 3),
        axes="b oy ox ci co",
        **DILATED,
    ),
]


def run_by_xla(op: str, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> list[Any]:
    """The outputs of one node, compiled; whole numbers in its inputs are part of the program."""
    kinds = attribute_kinds(op)
    given = {
        name: attributes.decode(a) if isinstance(a, attributes.AttrValue) else a
        for name, a in attrs.items()
        if kinds[name] != "type"
    }
    names = [a.name for a in op_definition(op).input_arg]
    operands = dict(zip(names, inputs, strict=True))
    fixed = {n: x.numpy() for n, x in operands.items() if x.dtype.is_integer}
    free = {n: x for n, x in operands.items() if n not in fixed}

    @tf.function(jit_compile=True, autograph=False)
    def compiled(**tensors: Any) -> Any:
        return getattr(tf.raw_ops, op)(**tensors, **fixed, **given)

    return [compiled(**free)]


@pytest.mark.parametrize("op, sample", CASES)
def test_pieces_equal_the_whole(op: str, sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "run", run_by_xla)
    whole = running.case_of(REGISTRY[op], sample)
    running.check_axes(whole)
    assert running.check_pieces(whole) > len(sample.axes[""])
