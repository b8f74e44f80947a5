"""Maximum and average pooling, in two and three dimensions.

A piece pads only where the image ends, with what leaves a maximum alone or with zeros; an average
at a border is divided again, since the kernels count the real elements of a window only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tofu_tf.graph.ir import TensorSpec
from tofu_tf.ops import windows
from tofu_tf.ops.registry import Emitter, Piece, Sample, op
from tofu_tf.tdl.expressions import Max, Opaque, Operand, Sum, Value

Shape = tuple[int, ...]
ALL = slice(None)


def view_of(
    attributes: Mapping[str, Any], image: Shape, count: Shape
) -> tuple[windows.Window, ...]:
    """The windows of a pooling node, from its decoded attributes and whole shapes."""
    form = attributes["data_format"]
    return windows.windows(
        image,
        [attributes["ksize"][d] for d in windows.spatial_dims(form)],
        count,
        attributes["strides"],
        attributes["padding"],
        form,
        attributes.get("explicit_paddings", ()),
    )


def forward_flops(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Mapping[str, Any]
) -> int:
    """One per output element and tap."""
    return outputs[0].size * math.prod(attributes["ksize"])


def lowest(dtype: str) -> float:
    """What no maximum chooses."""
    kind = tf.as_dtype(dtype)
    return float(kind.min) if kind.is_integer else -math.inf


def divided_again(
    emit: Emitter,
    piece: Piece,
    averages: str,
    view: Sequence[windows.Window],
    count: Sequence[windows.Range],
) -> str:
    """Averages over all taps of each window as averages over those that lie on the image."""
    form = piece.attributes["data_format"]
    factors = np.ones([1] * len(form))
    for d, w, c in zip(windows.spatial_dims(form), view, count, strict=True):
        shape = [1] * len(form)
        shape[d] = -1
        factors = factors * (w.kernel / np.asarray(w.real_taps(c), np.float64)).reshape(shape)
    if np.all(factors == 1):
        return averages
    dtype = piece.node.outputs[0].dtype
    by = emit.const(factors.astype(tf.as_dtype(dtype).as_numpy_dtype), "taps/factors")
    return emit.add("Mul", [averages, by], {"T": dtype}, "taps")[0]


def _max_pool(emit: Emitter, piece: Piece) -> list[str]:
    rows, a = piece.reads[0], piece.attributes
    if rows is None:
        return windows.zeros(emit, piece)
    form, shape = a["data_format"], piece.specs[0].shape
    view = view_of(a, shape, piece.node.outputs[0].shape)
    image, attrs = windows.bordered(
        emit,
        piece,
        piece.inputs[0],
        view,
        windows.ranges(rows, form),
        windows.ranges(piece.writes[0], form),
        lowest(piece.specs[0].dtype),
    )
    return emit.add(piece.node.op, [image], attrs)


def _avg_pool(emit: Emitter, piece: Piece) -> list[str]:
    rows, a = piece.reads[0], piece.attributes
    if rows is None:
        return windows.zeros(emit, piece)
    form, shape = a["data_format"], piece.specs[0].shape
    view = view_of(a, shape, piece.node.outputs[0].shape)
    held, count = windows.ranges(rows, form), windows.ranges(piece.writes[0], form)
    image, attrs = windows.bordered(emit, piece, piece.inputs[0], view, held, count, 0.0)
    averages = emit.add(piece.node.op, [image], attrs)[0]
    if windows.is_whole(view, held, count):
        return [averages]
    return [divided_again(emit, piece, averages, view, count)]


def _pool(
    data: Operand,
    reduction: Any,
    attributes: Mapping[str, Any],
    out: tuple[Shape, ...],
) -> Any:
    form = attributes["data_format"]
    at = windows.pixels(data, form)
    ksize = attributes["ksize"]
    if ksize[0] != 1 or ksize[form.index("C")] != 1:
        whole = [ALL] * data.rank
        return windows.over_image(
            lambda b, space, c: Opaque(data[tuple(whole)])[(b, *space, c)], form
        )
    view = view_of(attributes, data.shape, out[0])

    def element(b: Any, space: tuple[Any, ...], c: Any) -> Value:
        return windows.over_taps(
            reduction,
            view,
            lambda taps: at(
                b, *(w.row(s, t) for w, s, t in zip(view, space, taps, strict=True)), c
            ),
        )

    return windows.over_image(element, form)


def given(
    ksize: Shape, strides: Shape, padding: str, data_format: str, paddings: Shape = ()
) -> dict[str, Any]:
    """The attributes of a pooling as one mapping."""
    return {
        "ksize": ksize,
        "strides": strides,
        "padding": padding,
        "data_format": data_format,
        "explicit_paddings": paddings,
    }


def _sample(
    name: str,
    image: Shape,
    kernel: Shape,
    stride: Shape,
    padding: str = "SAME",
    dtype: str = "float64",
    paddings: Shape = (),
) -> Sample:
    """A pooling of `image` (channels last); `kernel` and `stride` are spatial."""
    attrs: dict[str, Any] = {
        "ksize": (1, *kernel, 1),
        "strides": (1, *stride, 1),
        "padding": padding,
        "data_format": "NHWC" if len(image) == 4 else "NDHWC",
    }
    border = [(0, 0)] * len(kernel)
    if paddings:
        border = list(zip(paddings[::2], paddings[1::2], strict=True))
        attrs["explicit_paddings"] = (0, 0, *paddings, 0, 0)
    size = [n + sum(p) for n, p in zip(image[1:-1], border, strict=True)]
    if padding == "SAME":
        count = [-(-n // s) for n, s in zip(size, stride, strict=True)]
    else:
        count = [(n - k) // s + 1 for n, k, s in zip(size, kernel, stride, strict=True)]
    out = (image[0], *count, image[-1])
    axes: list[str] = []
    space = "zyx"[-len(kernel) :]
    for axis, shape in zip(("b", *space, "c"), range(len(image)), strict=True):
        extent = out[shape] if not name.endswith("Grad") else image[shape]
        if extent < 2:
            continue
        if name.startswith("Max") and name.endswith("Grad") and axis in space:
            k, s = kernel[space.index(axis)], stride[space.index(axis)]
            if k == s and k > 1 and extent % k == 0 and not paddings:
                axes += [f"{axis}.0", f"{axis}.1"] if extent > k else [axis]
                continue
        axes.append(axis)
    x, y = (image, dtype), (out, dtype)
    inputs: dict[str, tuple[Any, ...]] = {
        "MaxPool": (x,),
        "AvgPool": (x,),
        "MaxPoolGrad": (_ties(image, dtype), y, y),
        "AvgPoolGrad": (np.array(image, np.int32), y),
    }
    return Sample(inputs[name.replace("3D", "")], {"": tuple(axes)}, attrs)


def _ties(shape: Shape, dtype: str) -> np.ndarray:
    """Few different values: most windows hold their maximum several times."""
    n = math.prod(shape)
    values = (np.arange(n) * 7 % 11) % 3
    return np.asarray(values.reshape(shape), dtype)


def samples(name: str) -> tuple[Sample, ...]:
    """The samples of a pooling op or gradient, by its name."""
    if "3D" in name:
        return (
            _sample(name, (2, 6, 5, 4, 2), (2, 3, 2), (2, 2, 1), dtype="float32"),
            _sample(name, (1, 7, 5, 6, 3), (3, 2, 2), (2, 2, 2), "VALID", dtype="float32"),
        )
    cases = [
        _sample(name, (3, 8, 6, 2), (2, 2), (2, 2), "VALID"),
        _sample(name, (2, 9, 7, 2), (2, 2), (2, 2), "VALID"),
        _sample(name, (2, 9, 7, 2), (2, 2), (2, 2)),
        _sample(name, (2, 12, 7, 3), (3, 3), (2, 2)),
        _sample(name, (2, 5, 6, 2), (5, 3), (1, 1)),
        _sample(name, (2, 11, 8, 2), (2, 1), (4, 3), "VALID"),
        _sample(name, (2, 7, 7, 3), (7, 7), (7, 7), "VALID", dtype="float32"),
        _sample(name, (1, 4, 5, 3), (7, 4), (1, 2)),
    ]
    if name.startswith("Max"):
        cases.append(_sample(name, (2, 7, 6, 2), (3, 2), (2, 1), "EXPLICIT", paddings=(1, 2, 0, 1)))
    return tuple(cases)


_ACROSS_CHANNELS = Sample(
    (((2, 3, 3, 4), "float32"),),
    {"": ()},
    {"ksize": (1, 1, 1, 2), "strides": (1, 1, 1, 2), "padding": "VALID", "data_format": "NHWC"},
)


@op(
    "MaxPool",
    "MaxPool3D",
    body=_max_pool,
    flops=forward_flops,
    uncut=windows.TAPS,
    samples={
        "MaxPool": (*samples("MaxPool"), _ACROSS_CHANNELS),
        "MaxPool3D": samples("MaxPool3D"),
    },
)
def max_pool(
    data: Operand,
    *,
    ksize: Shape,
    strides: Shape,
    padding: str,
    data_format: str,
    explicit_paddings: Shape = (),
    out: tuple[Shape, ...],
) -> Any:
    return _pool(data, Max, given(ksize, strides, padding, data_format, explicit_paddings), out)


@op(
    "AvgPool",
    "AvgPool3D",
    body=_avg_pool,
    flops=forward_flops,
    uncut=windows.TAPS,
    samples={name: samples(name) for name in ("AvgPool", "AvgPool3D")},
)
def avg_pool(
    data: Operand,
    *,
    ksize: Shape,
    strides: Shape,
    padding: str,
    data_format: str,
    out: tuple[Shape, ...],
) -> Any:
    return _pool(data, Sum, given(ksize, strides, padding, data_format), out)
