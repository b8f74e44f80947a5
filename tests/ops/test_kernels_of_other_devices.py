"""Images with channels first, gradients of grouped and dilated convolutions: cut every way.

TensorFlow's CPU kernels lack these, so the conformance samples cannot hold them. Here they are made
of the kernels that there are: images transposed, groups apart, filters with zeros between taps.
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
from tofu_tf.graph.registered import op_definition
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


RUN = running.run
VECTORS = ("input_sizes", "orig_input_shape")
PER_DIM = ("strides", "ksize", "dilations")


def run_made_up(op: str, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> list[Any]:
    """The outputs of one node, with kernels for NHWC, one group and no dilation only."""
    if "strides" not in attrs:
        return RUN(op, inputs, attrs)
    names = [a.name for a in op_definition(op).input_arg]
    given = dict(zip(names, inputs, strict=True))
    decoded = {
        n: attributes.decode(a) if isinstance(a, attributes.AttrValue) else a
        for n, a in attrs.items()
    }
    if decoded.get("data_format") == "NCHW":
        return _channels_last(op, given, decoded)
    if max(decoded.get("dilations", (1,))) > 1:
        return _undilated(op, given, decoded)
    if op == "Conv2DBackpropInput":
        groups = int(given["input_sizes"][3]) // given["filter"].shape[2]
    elif op == "Conv2DBackpropFilter":
        groups = given["input"].shape[3] // int(given["filter_sizes"][2])
    else:
        groups = 1
    return RUN(op, inputs, attrs) if groups == 1 else _ungrouped(op, given, decoded, groups)


def _channels_last(op: str, given: dict[str, Any], decoded: dict[str, Any]) -> list[Any]:
    last, first = [0, 2, 3, 1], [0, 3, 1, 2]
    for name, tensor in given.items():
        if name in VECTORS:
            given[name] = tf.gather(tensor, last)
        elif not name.startswith("filter"):
            given[name] = tf.transpose(tensor, last)
    for name in set(PER_DIM) & set(decoded):
        decoded[name] = tuple(decoded[name][d] for d in last)
    if decoded.get("explicit_paddings"):
        pairs = np.reshape(decoded["explicit_paddings"], (4, 2))[last]
        decoded["explicit_paddings"] = tuple(int(n) for n in pairs.ravel())
    found = run_made_up(op, list(given.values()), {**decoded, "data_format": "NHWC"})
    return found if op == "Conv2DBackpropFilter" else [tf.transpose(y, first) for y in found]


def _ungrouped(
    op: str, given: dict[str, Any], decoded: Mapping[str, Any], groups: int
) -> list[Any]:
    parts: dict[str, Any] = {}
    for name, tensor in given.items():
        if name.endswith("sizes"):
            own = np.array(tensor)
            own[3] //= groups
            parts[name] = [tf.constant(own)] * groups
        else:
            parts[name] = tf.split(tensor, groups, axis=3)
    every = [RUN(op, [p[g] for p in parts.values()], decoded)[0] for g in range(groups)]
    return [tf.concat(every, axis=3)]


def _undilated(op: str, given: dict[str, Any], decoded: dict[str, Any]) -> list[Any]:
    _, dy, dx, _ = decoded["dilations"]
    if "filter" in given:
        taps = np.array(given["filter"])
        wide = np.zeros(
            ((taps.shape[0] - 1) * dy + 1, (taps.shape[1] - 1) * dx + 1, *taps.shape[2:])
        )
        wide[::dy, ::dx] = taps
        given["filter"] = tf.constant(wide)
    else:
        ky, kx, *channels = np.array(given["filter_sizes"])
        given["filter_sizes"] = tf.constant([(ky - 1) * dy + 1, (kx - 1) * dx + 1, *channels])
    found = RUN(op, list(given.values()), {**decoded, "dilations": (1, 1, 1, 1)})[0]
    return [found[::dy, ::dx] if op == "Conv2DBackpropFilter" else found]


@pytest.mark.parametrize("op, sample", CASES)
def test_pieces_equal_the_whole(op: str, sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "run", run_made_up)
    whole = running.case_of(REGISTRY[op], sample)
    running.check_axes(whole)
    assert running.check_pieces(whole) > len(sample.axes[""])
