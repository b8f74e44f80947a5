"""Max pooling that also says where each largest element is: images are independent."""

from __future__ import annotations

from typing import Any

import numpy as np

from tofu_tf.ops.pooling import forward_flops
from tofu_tf.ops.registry import Sample, op
from tofu_tf.tdl.expressions import Opaque, Operand

ALL = slice(None)
_WINDOWS = {"ksize": (1, 2, 2, 1), "strides": (1, 2, 2, 1), "padding": "SAME"}
_IMAGES = ((3, 4, 5, 2), "float32")


def _corners(images: int) -> np.ndarray:
    """The place of every window's first element, counted over the image."""
    b, y, x, c = np.indices((images, 2, 3, 2))
    return np.asarray(((2 * y) * 5 + 2 * x) * 2 + c + 0 * b)


def _of_an_image(b: Any, include_batch_in_index: bool, *operands: Operand) -> Any:
    """What depends on all of an image; on all images where places count over the batch."""
    row = ALL if include_batch_in_index else b
    return Opaque(*(x[row, ALL, ALL, ALL] for x in operands))


@op(
    "MaxPoolWithArgmax",
    flops=forward_flops,
    samples=(
        Sample((_IMAGES,), {"": ("b",)}, _WINDOWS),
        Sample((_IMAGES,), {"": ("b",)}, {**_WINDOWS, "Targmax": "int32", "padding": "VALID"}),
    ),
)
def max_pool_with_argmax(x: Operand, *, include_batch_in_index: bool) -> Any:
    """Places count over an image's rows, columns and channels: these stay whole."""

    def element(b: Any, *i: Any) -> Any:
        if include_batch_in_index:
            return _of_an_image(b, True, x)[(b, *i)]
        return _of_an_image(b, False, x)[i]

    return lambda b, y, x, c: element(b, y, x, c), lambda b, y, x, c: element(b, y, x, c)


@op(
    "MaxPoolGradWithArgmax",
    flops=lambda inputs, outputs, attributes: inputs[1].size,
    samples=(Sample((_IMAGES, ((3, 2, 3, 2), "float32"), _corners(3)), {"": ("b",)}, _WINDOWS),),
)
def max_pool_grad_with_argmax(
    x: Operand, gradient: Operand, places: Operand, *, include_batch_in_index: bool
) -> Any:
    def element(b: Any, *i: Any) -> Any:
        whole = include_batch_in_index
        value = _of_an_image(b, whole, x, gradient, places)
        return value[(b, *i) if whole else i]

    return lambda b, y, x, c: element(b, y, x, c)
