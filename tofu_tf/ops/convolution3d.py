"""Three-dimensional convolution and its gradients; the kernels know no explicit padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tofu_tf.ops import convolution, windows
from tofu_tf.ops.registry import Sample, op
from tofu_tf.tdl.expressions import Operand, Sum

Shape = tuple[int, ...]


def _samples(
    image: Shape, kernel: Shape, strides: Shape, padding: str, dtype: str = "float64"
) -> dict[str, Sample]:
    """One convolution's sample for each of the three ops."""
    sizes = list(zip(image[1:4], kernel[:3], strides, strict=True))
    if padding == "SAME":
        count = [-(-n // s) for n, _, s in sizes]
    else:
        count = [(n - k) // s + 1 for n, k, s in sizes]
    out = (image[0], *count, kernel[4])
    attrs = {"strides": (1, *strides, 1), "padding": padding}
    return {
        "Conv3D": Sample(
            ((image, dtype), (kernel, dtype)), {"": ("b", "z", "y", "x", "ci", "co")}, attrs
        ),
        "Conv3DBackpropInputV2": Sample(
            (np.array(image, np.int64), (kernel, dtype), (out, dtype)),
            {"": ("b", "z", "y", "x", "ci", "co")},
            attrs,
        ),
        "Conv3DBackpropFilterV2": Sample(
            ((image, dtype), np.array(kernel, np.int32), (out, dtype)),
            {"": ("b", "oz", "oy", "ox", "ci", "co")},
            attrs,
        ),
    }


_CASES = (
    _samples((2, 5, 6, 4, 2), (3, 3, 3, 2, 3), (1, 1, 1), "SAME"),
    _samples((2, 9, 8, 7, 2), (3, 2, 1, 2, 2), (2, 2, 3), "SAME"),
    _samples((2, 6, 5, 4, 2), (2, 2, 2, 2, 2), (2, 1, 1), "VALID", "float32"),
    _samples((2, 3, 4, 3, 2), (5, 3, 4, 2, 2), (1, 1, 1), "SAME"),
)


def _of(name: str) -> tuple[Sample, ...]:
    return tuple(case[name] for case in _CASES)


def _windows(
    image: Shape,
    kernel: Shape,
    count: Shape,
    strides: Shape,
    padding: str,
    data_format: str,
    dilations: Sequence[int],
) -> tuple[windows.Window, ...]:
    return windows.windows(image, kernel[:3], count, strides, padding, data_format, (), dilations)


@op(
    "Conv3D",
    body=convolution.convolve,
    flops=convolution.convolution_flops,
    uncut=windows.TAPS,
    samples=_of("Conv3D"),
)
def conv3d(
    data: Operand,
    filt: Operand,
    *,
    strides: Shape,
    padding: str,
    dilations: Shape,
    data_format: str,
    out: tuple[Shape, ...],
) -> Any:
    u, v, h = _windows(data.shape, filt.shape, out[0], strides, padding, data_format, dilations)
    at = windows.pixels(data, data_format)
    return windows.arranged(
        lambda b, z, y, x, co: Sum(
            lambda kz, ky, kx, ci: (
                at(b, u.row(z, kz), v.row(y, ky), h.row(x, kx), ci) * filt[kz, ky, kx, ci, co]
            )
        ),
        data_format,
    )


@op(
    "Conv3DBackpropInputV2",
    body=convolution.input_gradient,
    constants=(0,),
    flops=convolution.input_gradient_flops,
    uncut=windows.TAPS,
    samples=_of("Conv3DBackpropInputV2"),
)
def conv3d_backprop_input(
    input_sizes: np.ndarray,
    filt: Operand,
    gradient: Operand,
    *,
    strides: Shape,
    padding: str,
    dilations: Shape,
    data_format: str,
    out: tuple[Shape, ...],
) -> Any:
    u, v, h = _windows(out[0], filt.shape, gradient.shape, strides, padding, data_format, dilations)
    at = windows.pixels(gradient, data_format)
    return windows.arranged(
        lambda b, z, y, x, ci: Sum(
            lambda kz, ky, kx, co: (
                at(b, u.window(z, kz), v.window(y, ky), h.window(x, kx), co)
                * filt[kz, ky, kx, ci, co]
            )
        ),
        data_format,
    )


@op(
    "Conv3DBackpropFilterV2",
    body=convolution.filter_gradient,
    constants=(1,),
    flops=convolution.filter_gradient_flops,
    uncut=windows.TAPS,
    samples=_of("Conv3DBackpropFilterV2"),
)
def conv3d_backprop_filter(
    data: Operand,
    filter_sizes: np.ndarray,
    gradient: Operand,
    *,
    strides: Shape,
    padding: str,
    dilations: Shape,
    data_format: str,
    out: tuple[Shape, ...],
) -> Any:
    u, v, h = _windows(data.shape, out[0], gradient.shape, strides, padding, data_format, dilations)
    at, grad = windows.pixels(data, data_format), windows.pixels(gradient, data_format)
    return lambda kz, ky, kx, ci, co: Sum(
        lambda b, oz, oy, ox: (
            at(b, u.row(oz, kz), v.row(oy, ky), h.row(ox, kx), ci) * grad(b, oz, oy, ox, co)
        )
    )
