"""Depthwise convolution and its gradients: each channel has `m` filters of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tofu_tf.graph.ir import TensorSpec
from tofu_tf.ops import convolution, windows
from tofu_tf.ops.registry import Sample, op
from tofu_tf.tdl.expressions import Opaque, Operand, Sum, Value, apply

Shape = tuple[int, ...]


def _flops(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Mapping[str, Any]
) -> int:
    """Two per output element and filter tap."""
    kernel = inputs[1].shape
    return 2 * outputs[0].size * kernel[0] * kernel[1]


def _input_gradient_flops(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Mapping[str, Any]
) -> int:
    kernel = inputs[1].shape
    return 2 * inputs[2].size * kernel[0] * kernel[1]


def _filter_gradient_flops(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Mapping[str, Any]
) -> int:
    kernel = outputs[0].shape
    return 2 * inputs[2].size * kernel[0] * kernel[1]


def _samples(
    image: Shape, kernel: Shape, stride: int, padding: str, dtype: str, **attrs: Any
) -> dict[str, Sample]:
    """One depthwise convolution's sample for each of the three ops."""
    extra = attrs.get("explicit_paddings", (0,) * 8)
    size = [image[i] + extra[2 * i] + extra[2 * i + 1] for i in (1, 2)]
    if padding == "SAME":
        count = [-(-n // stride) for n in size]
    else:
        count = [(n - k) // stride + 1 for n, k in zip(size, kernel[:2], strict=True)]
    multiplied = kernel[3] > 1
    out = (image[0], *count, kernel[2] * kernel[3])
    given = {"strides": (1, stride, stride, 1), "padding": padding, **attrs}
    forward = ("b", "y", "x", *(("co.0", "co.1") if multiplied else ("co",)))
    return {
        "DepthwiseConv2dNative": Sample(((image, dtype), (kernel, dtype)), {"": forward}, given),
        "DepthwiseConv2dNativeBackpropInput": Sample(
            (np.array(image, np.int32), (kernel, dtype), (out, dtype)),
            {"": ("b", "y", "x", "c")},
            given,
        ),
        "DepthwiseConv2dNativeBackpropFilter": Sample(
            ((image, dtype), np.array(kernel, np.int32), (out, dtype)),
            {"": ("b", "oy", "ox", "c")},
            given,
        ),
    }


_CASES = (
    _samples((3, 7, 6, 4), (3, 3, 4, 1), 1, "SAME", "float64"),
    _samples((3, 9, 8, 4), (5, 3, 4, 2), 2, "SAME", "float64"),
    _samples((2, 9, 8, 3), (2, 2, 3, 1), 3, "VALID", "float32"),
    _samples((2, 4, 5, 2), (5, 5, 2, 3), 1, "SAME", "float64"),
    _samples(
        (2, 6, 5, 3),
        (3, 3, 3, 1),
        2,
        "EXPLICIT",
        "float64",
        explicit_paddings=(0, 0, 1, 2, 2, 0, 0, 0),
    ),
)


def _of(name: str) -> tuple[Sample, ...]:
    return tuple(case[name] for case in _CASES)


@op(
    "DepthwiseConv2dNative",
    body=convolution.convolve,
    flops=_flops,
    uncut=windows.TAPS,
    samples=_of("DepthwiseConv2dNative"),
)
def depthwise_conv2d(
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
    at, m = windows.pixels(data, data_format), filt.shape[3]
    return windows.arranged(
        lambda b, y, x, co: Sum(
            lambda ky, kx: (
                at(b, v.row(y, ky), h.row(x, kx), co // m) * filt[ky, kx, co // m, co % m]
            )
        ),
        data_format,
    )


@op(
    "DepthwiseConv2dNativeBackpropInput",
    body=convolution.input_gradient,
    constants=(0,),
    flops=_input_gradient_flops,
    uncut=windows.TAPS,
    samples=_of("DepthwiseConv2dNativeBackpropInput"),
)
def depthwise_conv2d_backprop_input(
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
    at, m = windows.pixels(gradient, data_format), filt.shape[3]

    def term(taps: tuple[Any, Any], b: Any, y: Any, x: Any, c: Any, q: Any) -> Value:
        ky, kx = taps
        given = at(b, v.window(y, ky), h.window(x, kx), c * m + q)
        # some of every channel's outputs is no range of the gradient: q stays whole
        return apply(given, filt[ky, kx, c, q], Opaque()[q])

    return windows.arranged(
        lambda b, y, x, c: Sum(lambda ky, kx, q: term((ky, kx), b, y, x, c, q)), data_format
    )


@op(
    "DepthwiseConv2dNativeBackpropFilter",
    body=convolution.filter_gradient,
    constants=(1,),
    flops=_filter_gradient_flops,
    uncut=windows.TAPS,
    samples=_of("DepthwiseConv2dNativeBackpropFilter"),
)
def depthwise_conv2d_backprop_filter(
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
    m = out[0][3]

    def term(b: Any, oy: Any, ox: Any, ky: Any, kx: Any, c: Any, q: Any) -> Value:
        row = at(b, v.row(oy, ky), h.row(ox, kx), c)
        return apply(row, grad(b, oy, ox, c * m + q), Opaque()[q])

    return lambda ky, kx, c, q: Sum(
        lambda b, oy, ox: term(b, oy, ox, ky, kx, c, q), oy=v.count, ox=h.count
    )
