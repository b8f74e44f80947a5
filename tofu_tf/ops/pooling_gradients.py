"""The gradients of maximum and average pooling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tofu_tf.graph.ir import TensorSpec
from tofu_tf.ops import parts, pooling, windows
from tofu_tf.ops.registry import Emitter, Piece, op
from tofu_tf.tdl.expressions import Max, Named, Operand, Sum, Value, apply

Shape = tuple[int, ...]


def _gradient_flops(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Mapping[str, Any]
) -> int:
    return inputs[-1].size * math.prod(attributes["ksize"])


def _max_pool_gradient(emit: Emitter, piece: Piece) -> list[str]:
    """All windows that touch the piece's rows, each complete: ties break as in the whole run."""
    held, taken, a = piece.reads[0], piece.reads[2], piece.attributes
    if held is None or taken is None:
        return windows.zeros(emit, piece)
    form, dtype = a["data_format"], piece.specs[0].dtype
    view = pooling.view_of(a, piece.specs[0].shape, piece.specs[1].shape)
    count = windows.ranges(taken, form)
    rows = tuple(w.inside(c) for w, c in zip(view, count, strict=True))
    image = windows.rows_of(emit, piece.inputs[0], dtype, held, rows, form, "windows")
    image, attrs = windows.bordered(emit, piece, image, view, rows, count, pooling.lowest(dtype))
    gradient = emit.add(piece.node.op, [image, *piece.inputs[1:]], attrs)[0]
    if not windows.is_whole(view, rows, count):
        rows = tuple(w.span(c) for w, c in zip(view, count, strict=True))
    return windows.settled(emit, piece, gradient, rows, form)


def _avg_pool_gradient(emit: Emitter, piece: Piece) -> list[str]:
    taken, a = piece.reads[1], piece.attributes
    if taken is None:
        return windows.zeros(emit, piece)
    form, shape = a["data_format"], piece.node.outputs[0].shape
    view, count = pooling.view_of(a, shape, piece.specs[1].shape), windows.ranges(taken, form)
    attrs, gradient = piece.node.attrs, piece.inputs[1]
    rows = windows.ranges(piece.writes[0], form)
    if not windows.is_whole(view, rows, count):
        attrs = windows.without_padding(attrs)
        gradient = pooling.divided_again(emit, piece, gradient, view, count)
        rows = tuple(w.span(c) for w, c in zip(view, count, strict=True))
    image = list(piece.writes[0].shape)
    for d, (lo, hi) in zip(windows.spatial_dims(form), rows, strict=True):
        image[d] = hi - lo
    sizes = parts.ints(emit, image, "sizes")
    found = emit.add(piece.node.op, [sizes, gradient], attrs)[0]
    return windows.settled(emit, piece, found, rows, form)


@op(
    "MaxPoolGrad",
    "MaxPool3DGrad",
    body=_max_pool_gradient,
    flops=_gradient_flops,
    uncut=windows.TAPS,
    samples={name: pooling.samples(name) for name in ("MaxPoolGrad", "MaxPool3DGrad")},
)
def max_pool_grad(
    data: Operand,
    pooled: Operand,
    gradient: Operand,
    *,
    ksize: Shape,
    strides: Shape,
    padding: str,
    data_format: str,
    explicit_paddings: Shape = (),
    out: tuple[Shape, ...],
) -> Any:
    given = pooling.given(ksize, strides, padding, data_format, explicit_paddings)
    view = pooling.view_of(given, data.shape, pooled.shape)
    at = windows.pixels(data, data_format)
    best, dy = windows.pixels(pooled, data_format), windows.pixels(gradient, data_format)
    names = tuple(f"j{axis}" for axis in "zyx"[-len(view) :])

    def element(b: Any, space: tuple[Any, ...], c: Any) -> Value:
        def of_window(taps: tuple[Any, ...]) -> Value:
            # windows that tile the image: the one that holds the row, so that no halo is read
            chosen = [
                row // w.kernel if _tiles(w) else w.window(row, tap)
                for w, row, tap in zip(view, space, taps, strict=True)
            ]
            largest = Max(
                Named(
                    names,
                    lambda *others: at(
                        b, *(w.row(o, t) for w, o, t in zip(view, chosen, others, strict=True)), c
                    ),
                ),
                **{name: w.kernel for name, w in zip(names, view, strict=True)},
            )
            return apply(largest, best(b, *chosen, c), dy(b, *chosen, c))

        return windows.over_taps(Sum, view, of_window)

    return windows.over_image(element, data_format)


def _tiles(w: windows.Window) -> bool:
    return w.kernel == w.stride > 1 and w.before == 0 and w.size == w.count * w.kernel


@op(
    "AvgPoolGrad",
    "AvgPool3DGrad",
    body=_avg_pool_gradient,
    constants=(0,),
    flops=_gradient_flops,
    uncut=windows.TAPS,
    samples={name: pooling.samples(name) for name in ("AvgPoolGrad", "AvgPool3DGrad")},
)
def avg_pool_grad(
    orig_input_shape: np.ndarray,
    gradient: Operand,
    *,
    ksize: Shape,
    strides: Shape,
    padding: str,
    data_format: str,
    out: tuple[Shape, ...],
) -> Any:
    view = pooling.view_of(
        pooling.given(ksize, strides, padding, data_format), out[0], gradient.shape
    )
    dy = windows.pixels(gradient, data_format)

    def element(b: Any, space: tuple[Any, ...], c: Any) -> Value:
        return windows.over_taps(
            Sum,
            view,
            lambda taps: dy(
                b, *(w.window(row, t) for w, row, t in zip(view, space, taps, strict=True)), c
            ),
        )

    return windows.over_image(element, data_format)
