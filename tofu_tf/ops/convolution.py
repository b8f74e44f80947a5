"""Two-dimensional convolution and its gradients, grouped or not.

The input gradient is described in gather form: row y of the image takes what window
``(y + before - tap) / stride`` had of it, where that is whole. Spatial cuts read their halos; a
piece pads only where the image ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tofu_tf.graph.ir import TensorSpec
from tofu_tf.ops import dilation, grouped, windows
from tofu_tf.ops.registry import Emitter, Piece, Sample, op
from tofu_tf.tdl.expressions import Opaque, Operand, Sum

Shape = tuple[int, ...]


def view_of(
    attributes: Mapping[str, Any], image: Shape, kernel: Shape, count: Shape
) -> tuple[windows.Window, ...]:
    """The windows of a convolution node, from its decoded attributes and whole shapes."""
    return windows.windows(
        image,
        kernel[: len(image) - 2],
        count,
        attributes["strides"],
        attributes["padding"],
        attributes["data_format"],
        attributes.get("explicit_paddings", ()),
        attributes.get("dilations", ()),
    )


def channel_of(shape: Shape, data_format: str) -> int:
    return shape[data_format.index("C")]


def convolution_flops(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Mapping[str, Any]
) -> int:
    """Two per output element and filter tap."""
    kernel = inputs[1].shape
    return 2 * outputs[0].size * (inputs[1].size // kernel[-1])


def input_gradient_flops(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Mapping[str, Any]
) -> int:
    kernel = inputs[1].shape
    return 2 * inputs[2].size * (inputs[1].size // kernel[-1])


def filter_gradient_flops(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Mapping[str, Any]
) -> int:
    return 2 * inputs[2].size * (outputs[0].size // outputs[0].shape[-1])


def _bordered(
    emit: Emitter,
    piece: Piece,
    view: Sequence[windows.Window],
    rows: Sequence[windows.Range],
    count: Sequence[windows.Range],
) -> tuple[str, dict[str, Any]]:
    """The image, and attributes to run the op on it: a Pad where the op has no explicit padding."""
    if "explicit_paddings" not in piece.node.attrs:
        return windows.bordered(emit, piece, piece.inputs[0], view, rows, count, 0.0)
    form = piece.attributes["data_format"]
    return piece.inputs[0], windows.fitted(piece.node.attrs, view, rows, count, form)


def convolve(emit: Emitter, piece: Piece) -> list[str]:
    """A piece of a convolution: its rows with the padding that its windows need."""
    rows, a = piece.reads[0], piece.attributes
    if rows is None or piece.reads[1] is None:
        return windows.zeros(emit, piece)
    view = view_of(a, piece.specs[0].shape, piece.specs[1].shape, piece.node.outputs[0].shape)
    form = a["data_format"]
    lines, count = windows.ranges(rows, form), windows.ranges(piece.writes[0], form)
    moved = dilation.apart(piece, view, lines, count)
    if moved:
        image = moved.image(emit, piece.inputs[0], "apart")
        attrs = moved.attributes(piece.node.attrs)
        made = emit.add(piece.node.op, [image, piece.inputs[1]], attrs)
        return [moved.whole_results(emit, made[0])]
    image, attrs = _bordered(emit, piece, view, lines, count)
    return emit.add(piece.node.op, [image, piece.inputs[1]], attrs)


def input_gradient(emit: Emitter, piece: Piece) -> list[str]:
    """A piece of the image's gradient, from the windows that reach its rows; else zeros."""
    taken, a = piece.reads[2], piece.attributes
    if taken is None or piece.reads[1] is None:
        return windows.zeros(emit, piece)
    view = view_of(a, piece.node.outputs[0].shape, piece.specs[1].shape, piece.specs[2].shape)
    form = a["data_format"]
    rows, count = windows.ranges(piece.writes[0], form), windows.ranges(taken, form)
    spans = tuple(w.span(c) for w, c in zip(view, count, strict=True))
    if "explicit_paddings" in piece.node.attrs:
        # rows that no window reaches are filled up, those outside the piece never made
        rows = tuple(
            (max(lo, first), min(hi, last))
            for (lo, hi), (first, last) in zip(rows, spans, strict=True)
        )
        if any(lo >= hi for lo, hi in rows):
            return windows.zeros(emit, piece)
        attrs = windows.fitted(piece.node.attrs, view, rows, count, form)
    elif windows.is_whole(view, rows, count):
        attrs = dict(piece.node.attrs)
    else:
        rows, attrs = spans, windows.without_padding(piece.node.attrs)
    shape = list(piece.writes[0].shape)
    for d, (lo, hi) in zip(windows.spatial_dims(form), rows, strict=True):
        shape[d] = hi - lo
    if "Tshape" in attrs:
        attrs["Tshape"] = "int32"
    channel = form.index("C")
    groups = 1 if _is_depthwise(piece) else shape[channel] // piece.reads[1].shape[-2]
    operands, dims = ["", *piece.inputs[1:]], (channel, len(form) - 1, channel)
    moved = dilation.apart(piece, view, rows, count)
    if moved:
        operands[2] = moved.results(emit, operands[2], "apart")
        shape, attrs = moved.shape(shape), moved.attributes(attrs)
    gradient = grouped.gradient(emit, piece, operands, dims, shape, attrs, groups)
    if moved:
        gradient = moved.whole_image(emit, gradient)
    return windows.settled(emit, piece, gradient, rows, form)


def filter_gradient(emit: Emitter, piece: Piece) -> list[str]:
    """A piece's share of the filter's gradient: its windows over the rows that they cover."""
    rows, taken, a = piece.reads[0], piece.reads[2], piece.attributes
    if rows is None or taken is None:
        return windows.zeros(emit, piece)
    view = view_of(a, piece.specs[0].shape, piece.node.outputs[0].shape, piece.specs[2].shape)
    form = a["data_format"]
    lines, count = windows.ranges(rows, form), windows.ranges(taken, form)
    results = piece.inputs[2]
    moved = dilation.apart(piece, view, lines, count)
    if moved:
        image = moved.image(emit, piece.inputs[0], "apart")
        results = moved.results(emit, results, "results")
        attrs = moved.attributes(piece.node.attrs)
    else:
        image, attrs = _bordered(emit, piece, view, lines, count)
    channel, shape = form.index("C"), piece.writes[0].shape
    groups = 1 if _is_depthwise(piece) else rows.shape[channel] // shape[-2]
    operands, dims = [image, "", results], (channel, len(form) - 1, channel)
    return [grouped.gradient(emit, piece, operands, dims, shape, attrs, groups)]


def _is_depthwise(piece: Piece) -> bool:
    return piece.node.op.startswith("Depthwise")


def _sample(
    image: Shape, kernel: Shape, axes: str, dtype: str = "float64", **attrs: Any
) -> dict[str, Sample]:
    """One convolution's sample for each of the three ops; `axes` are those of the forward op."""
    strides = attrs.setdefault("strides", (1, 1, 1, 1))
    padding = attrs.setdefault("padding", "SAME")
    dilations = attrs.get("dilations", (1, 1, 1, 1))
    extra = attrs.get("explicit_paddings", (0,) * 8)
    reach = [(kernel[i] - 1) * dilations[i + 1] + 1 for i in (0, 1)]
    size = [image[i + 1] + extra[2 * i + 2] + extra[2 * i + 3] for i in (0, 1)]
    if padding == "SAME":
        count = [-(-size[i] // strides[i + 1]) for i in (0, 1)]
    else:
        count = [(size[i] - reach[i]) // strides[i + 1] + 1 for i in (0, 1)]
    out = (image[0], *count, kernel[3])
    names = axes.split()
    own = {"y": "oy", "x": "ox"}
    return {
        "Conv2D": Sample(((image, dtype), (kernel, dtype)), {"": tuple(names)}, attrs),
        "Conv2DBackpropInput": Sample(
            (np.array(image, np.int32), (kernel, dtype), (out, dtype)),
            {"": tuple(names)},
            attrs,
        ),
        "Conv2DBackpropFilter": Sample(
            ((image, dtype), np.array(kernel, np.int32), (out, dtype)),
            {"": tuple(own.get(n, n) for n in names)},
            attrs,
        ),
    }


_ALL = "b y x ci co"
_CASES = (
    _sample((4, 9, 7, 3), (3, 3, 3, 5), _ALL),
    _sample((3, 8, 8, 4), (3, 3, 4, 6), _ALL, strides=(1, 2, 2, 1)),
    _sample((1, 15, 13, 3), (7, 7, 3, 4), "y x ci co", strides=(1, 2, 2, 1)),
    _sample((2, 9, 8, 2), (3, 2, 2, 3), _ALL, padding="VALID"),
    _sample((2, 14, 9, 2), (1, 1, 2, 3), _ALL, padding="VALID", strides=(1, 2, 3, 1)),
    _sample((2, 14, 13, 2), (2, 1, 2, 3), _ALL, strides=(1, 4, 3, 1)),
    # lower than the kernel; a halo wider than a part
    _sample((2, 4, 5, 2), (7, 5, 2, 2), _ALL),
    _sample(
        (2, 7, 6, 2),
        (3, 3, 2, 2),
        _ALL,
        padding="EXPLICIT",
        explicit_paddings=(0, 0, 2, 1, 0, 3, 0, 0),
        strides=(1, 2, 1, 1),
    ),
    # windows that lie wholly in the padding
    _sample(
        (2, 5, 6, 2),
        (2, 2, 2, 2),
        _ALL,
        padding="EXPLICIT",
        explicit_paddings=(0, 0, 4, 3, 0, 0, 0, 0),
    ),
    _sample((2, 6, 6, 2), (3, 3, 2, 3), _ALL, dtype="float32"),
)


def _of(name: str) -> tuple[Sample, ...]:
    return tuple(case[name] for case in _CASES)


# CPU kernels: dilation and groups in the forward op only.
_FORWARD = (
    _sample((2, 11, 9, 2), (3, 3, 2, 3), _ALL, dilations=(1, 2, 3, 1))["Conv2D"],
    _sample((2, 5, 6, 6), (3, 3, 2, 9), "b y x co.0 co.1")["Conv2D"],
    _sample((2, 5, 6, 4), (3, 3, 1, 4), "b y x co")["Conv2D"],
)


@op(
    "Conv2D",
    body=convolve,
    flops=convolution_flops,
    uncut=("ky", "kx"),
    samples=(*_of("Conv2D"), *_FORWARD),
)
def conv2d(
    data: Operand,
    filt: Operand,
    *,
    strides: Shape,
    padding: str,
    explicit_paddings: Shape,
    dilations: Shape,
    data_format: str,
    out: tuple[Shape, ...],
) -> Any:
    v, h = windows.windows(
        data.shape,
        filt.shape[:2],
        out[0],
        strides,
        padding,
        data_format,
        explicit_paddings,
        dilations,
    )
    at = windows.pixels(data, data_format)
    groups = channel_of(data.shape, data_format) // filt.shape[2]
    if groups == 1:
        return windows.arranged(
            lambda b, y, x, co: Sum(
                lambda ky, kx, ci: at(b, v.row(y, ky), h.row(x, kx), ci) * filt[ky, kx, ci, co]
            ),
            data_format,
        )
    size, share = filt.shape[2], filt.shape[3] // groups
    # A part of every group's channels is no range of the image's: ci stays whole.
    return windows.arranged(
        lambda b, y, x, co: Sum(
            lambda ky, kx, ci: (
                at(b, v.row(y, ky), h.row(x, kx), co // share * size + ci)
                * filt[ky, kx, ci, co]
                * Opaque()[ci]
            )
        ),
        data_format,
    )


@op(
    "Conv2DBackpropInput",
    body=input_gradient,
    constants=(0,),
    flops=input_gradient_flops,
    uncut=("ky", "kx"),
    samples=_of("Conv2DBackpropInput"),
)
def conv2d_backprop_input(
    input_sizes: np.ndarray,
    filt: Operand,
    gradient: Operand,
    *,
    strides: Shape,
    padding: str,
    explicit_paddings: Shape,
    dilations: Shape,
    data_format: str,
    out: tuple[Shape, ...],
) -> Any:
    v, h = windows.windows(
        out[0],
        filt.shape[:2],
        gradient.shape,
        strides,
        padding,
        data_format,
        explicit_paddings,
        dilations,
    )
    at = windows.pixels(gradient, data_format)
    groups = channel_of(out[0], data_format) // filt.shape[2]
    if groups == 1:
        return windows.arranged(
            lambda b, y, x, ci: Sum(
                lambda ky, kx, co: (
                    at(b, v.window(y, ky), h.window(x, kx), co) * filt[ky, kx, ci, co]
                )
            ),
            data_format,
        )
    size, share = filt.shape[2], filt.shape[3] // groups
    return windows.arranged(
        lambda b, y, x, ci: Sum(
            lambda ky, kx, co: (
                at(b, v.window(y, ky), h.window(x, kx), ci // size * share + co)
                * filt[ky, kx, ci % size, ci // size * share + co]
                * Opaque()[co]
            ),
            ky=filt.shape[0],
            kx=filt.shape[1],
            co=share,
        ),
        data_format,
    )


@op(
    "Conv2DBackpropFilter",
    body=filter_gradient,
    constants=(1,),
    flops=filter_gradient_flops,
    uncut=("ky", "kx"),
    samples=_of("Conv2DBackpropFilter"),
)
def conv2d_backprop_filter(
    data: Operand,
    filter_sizes: np.ndarray,
    gradient: Operand,
    *,
    strides: Shape,
    padding: str,
    explicit_paddings: Shape,
    dilations: Shape,
    data_format: str,
    out: tuple[Shape, ...],
) -> Any:
    v, h = windows.windows(
        data.shape,
        out[0][:2],
        gradient.shape,
        strides,
        padding,
        data_format,
        explicit_paddings,
        dilations,
    )
    at, grad = windows.pixels(data, data_format), windows.pixels(gradient, data_format)
    groups = channel_of(data.shape, data_format) // out[0][2]
    if groups == 1:
        return lambda ky, kx, ci, co: Sum(
            lambda b, oy, ox: at(b, v.row(oy, ky), h.row(ox, kx), ci) * grad(b, oy, ox, co)
        )
    size, share = out[0][2], out[0][3] // groups
    return lambda ky, kx, ci, co: Sum(
        lambda b, oy, ox: (
            at(b, v.row(oy, ky), h.row(ox, kx), co // share * size + ci)
            * grad(b, oy, ox, co)
            * Opaque()[ci]
        )
    )
