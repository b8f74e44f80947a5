"""Moves between space, batch and depth, and resizing of images."""

from __future__ import annotations

from typing import Any

import numpy as np

from tofu_tf.ops.parts import chosen, filled, ints
from tofu_tf.ops.registry import Emitter, Piece, Sample, op
from tofu_tf.tdl.expressions import Opaque, Sum, apply


def _moves(inputs: Any, outputs: Any, attributes: Any) -> int:
    return 0


_X = ((2, 4, 6, 3), "float64")
_SPACE = {"": ("i1", "i2", "i3")}


def _rows_only(x: Any) -> Any:
    """A function of each example: other dimensions stay whole."""
    return lambda *i: Opaque(x[(i[0], *[slice(None)] * (x.rank - 1))])[i[1:]]


def _space_to_batch_body(emit: Emitter, piece: Piece) -> list[str]:
    block, paddings = piece.constants[1].tolist(), piece.constants[2].tolist()
    write, read = piece.writes[0], piece.reads[0]
    if read is None:
        return filled(emit, write.shape, 0, piece.specs[0].dtype)
    local = []
    for d, (b, (before, _)) in enumerate(zip(block, paddings, strict=True), start=1):
        lo, hi = write.bounds[d]
        first, last = read.bounds[d]
        local.append((first + before - lo * b, hi * b - before - last))
    attrs = chosen(piece, "T") | {"Tblock_shape": "int32", "Tpaddings": "int32"}
    given = emit.const(np.asarray(local, np.int32).reshape(-1, 2), "paddings")
    return emit.add("SpaceToBatchND", [piece.inputs[0], ints(emit, block, "block"), given], attrs)


@op(
    "SpaceToBatchND",
    body=_space_to_batch_body,
    constants=(1, 2),
    flops=_moves,
    uncut=("i0",),  # the batch holds all places of a block, one after the other
    samples=(
        Sample((_X, np.array([2, 3]), np.zeros((2, 2), np.int64)), _SPACE),
        Sample((_X, np.array([2, 2], np.int32), np.array([[1, 3], [2, 0]], np.int32)), _SPACE),
    ),
)
def space_to_batch(x: Any, block: np.ndarray, paddings: np.ndarray) -> Any:
    """``x[n, h * block + place in the block - padding, ...]``."""
    sizes, before = block.tolist(), paddings.reshape(-1, 2)[:, 0].tolist()

    def element(*i: Any) -> Any:
        place, n = i[0] // x.shape[0], i[0] % x.shape[0]
        where: list[Any] = []
        for b, pad, c in reversed(list(zip(sizes, before, i[1:], strict=False))):
            where.insert(0, c * b + place % b - pad)
            place = place // b
        return x[(n, *where, *i[len(sizes) + 1 :])]

    return element


def _batch_to_space_body(emit: Emitter, piece: Piece) -> list[str]:
    block, crops = piece.constants[1].tolist(), piece.constants[2].tolist()
    write, read = piece.writes[0], piece.reads[0]
    assert read is not None
    local = []
    for d, (b, (before, _)) in enumerate(zip(block, crops, strict=True), start=1):
        lo, hi = write.bounds[d]
        first, last = read.bounds[d]
        local.append((lo + before - first * b, last * b - hi - before))
    attrs = chosen(piece, "T") | {"Tblock_shape": "int32", "Tcrops": "int32"}
    given = emit.const(np.asarray(local, np.int32).reshape(-1, 2), "crops")
    return emit.add("BatchToSpaceND", [piece.inputs[0], ints(emit, block, "block"), given], attrs)


_BATCHED = ((12, 3, 2, 3), "float64")


@op(
    "BatchToSpaceND",
    body=_batch_to_space_body,
    constants=(1, 2),
    flops=_moves,
    uncut=("i0",),
    samples=(
        Sample((_BATCHED, np.array([2, 3]), np.zeros((2, 2), np.int64)), _SPACE),
        Sample(
            (_BATCHED, np.array([2, 2], np.int32), np.array([[1, 2], [0, 1]], np.int32)), _SPACE
        ),
    ),
)
def batch_to_space(x: Any, block: np.ndarray, crops: np.ndarray) -> Any:
    """``x[:, floor((h + crop) / block), ...]``, by the first and the last row that may be it."""
    sizes, before = block.tolist(), crops.reshape(-1, 2)[:, 0].tolist()

    def element(*i: Any) -> Any:
        first, last = [], []
        for b, crop, c in zip(sizes, before, i[1:], strict=False):
            first.append((c + crop - b + 1) / b)
            last.append((c + crop) / b)
        rest = i[len(sizes) + 1 :]
        return apply(x[(slice(None), *first, *rest)], x[(slice(None), *last, *rest)])

    return element


@op(
    "SpaceToDepth",
    flops=_moves,
    uncut=("i3",),  # a block's rows are all in the depth
    samples=(Sample((_X,), {"": ("i0", "i1", "i2")}, {"block_size": 2}),),
)
def space_to_depth(x: Any, *, block_size: int, data_format: str) -> Any:
    """``x[n, h * b + row, w * b + column, c]``; row, column and c make up the depth."""
    if data_format != "NHWC":
        return _rows_only(x)
    b, depth = block_size, x.shape[-1]

    def element(i0: Any, i1: Any, i2: Any, i3: Any) -> Any:
        place = i3 // depth
        return x[i0, i1 * b + place // b, i2 * b + place % b, i3 % depth]

    return element


@op(
    "DepthToSpace",
    flops=_moves,
    uncut=("i3",),
    samples=(
        Sample((((2, 4, 3, 8), "float64"),), {"": ("i0", "i1.0", "i2.0")}, {"block_size": 2}),
    ),
)
def depth_to_space(x: Any, *, block_size: int, data_format: str) -> Any:
    """``x[n, h // b, w // b, (h % b * b + w % b) * depth + c]``; a block stays whole."""
    if data_format != "NHWC":
        return _rows_only(x)
    b, depth = block_size, x.shape[-1] // block_size**2

    def element(i0: Any, i1: Any, i2: Any, i3: Any) -> Any:
        row, column = i1 % b, i2 % b
        value = x[i0, i1 // b, i2 // b, (row * b + column) * depth + i3]
        return Opaque(value)[row, column]

    return element


_IMAGES = ((2, 4, 3, 3), "float64")
_ROWS_AND_CHANNELS = {"": ("i0", "i3")}


def _each_channel(x: Any, *others: Any) -> Any:
    """A function of whole images, channel by channel; `others` are images of the result's shape."""
    return lambda i0, i1, i2, i3: Opaque(x[i0, :, :, i3], *(y[i0, :, :, i3] for y in others))[
        i1, i2
    ]


@op(
    "ResizeBilinear",
    "ResizeBicubic",
    "ResizeArea",
    constants=(1,),
    flops=lambda inputs, outputs, attributes: 8 * outputs[0].size,  # four neighbours
    samples={
        name: (
            Sample((_IMAGES, np.array([5, 7], np.int32)), _ROWS_AND_CHANNELS),
            *(
                [
                    Sample(
                        (_IMAGES, np.array([8, 3], np.int32)),
                        _ROWS_AND_CHANNELS,
                        {"half_pixel_centers": True},
                    )
                ]
                if name != "ResizeArea"
                else []
            ),
        )
        for name in ("ResizeBilinear", "ResizeBicubic", "ResizeArea")
    },
)
def resize(x: Any, size: np.ndarray) -> Any:
    return _each_channel(x)


@op(
    "ResizeBilinearGrad",
    "ResizeBicubicGrad",
    flops=lambda inputs, outputs, attributes: 8 * inputs[0].size,
    samples=(Sample((((2, 5, 7, 3), "float32"), _IMAGES), _ROWS_AND_CHANNELS),),
)
def resize_grad(g: Any, original: Any) -> Any:
    """The gradient by `original`, of which only the shape matters."""
    return _each_channel(g, original)


def _whole_factor(before: int, after: int) -> int:
    return after // before if after % before == 0 else 0


def _nearest_body(emit: Emitter, piece: Piece) -> list[str]:
    size = ints(emit, piece.writes[0].shape[1:3], "size")
    attrs = chosen(piece, "T", "align_corners", "half_pixel_centers")
    return emit.add(piece.node.op, [piece.inputs[0], size], attrs)


@op(
    "ResizeNearestNeighbor",
    body=_nearest_body,
    constants=(1,),
    flops=_moves,
    samples=(
        Sample((_IMAGES, np.array([8, 9], np.int32)), {"": ("i0", "i1.0", "i2.0", "i3")}),
        Sample(
            (_IMAGES, np.array([8, 3], np.int32)),
            {"": ("i0", "i1.0", "i2", "i3")},
            {"half_pixel_centers": True},
        ),
        Sample((_IMAGES, np.array([6, 9], np.int32)), _ROWS_AND_CHANNELS),
        Sample((_IMAGES, np.array([8, 9], np.int32)), _ROWS_AND_CHANNELS, {"align_corners": True}),
    ),
)
def resize_nearest(x: Any, size: np.ndarray, *, align_corners: bool) -> Any:
    """``x[n, h // factor, w // factor, c]`` for whole factors; a row's copies stay together."""
    up, across = (_whole_factor(x.shape[d + 1], int(n)) for d, n in enumerate(size))
    if align_corners or not up or not across:
        return _each_channel(x)

    def element(i0: Any, i1: Any, i2: Any, i3: Any) -> Any:
        together = tuple(c % f for c, f in ((i1, up), (i2, across)) if f > 1)
        return Opaque(x[i0, i1 // up, i2 // across, i3])[together]

    return element


@op(
    "ResizeNearestNeighborGrad",
    body=_nearest_body,
    constants=(1,),
    flops=_moves,
    samples=(
        Sample(
            (((2, 8, 9, 3), "float64"), np.array([4, 3], np.int32)), {"": ("i0", "i1", "i2", "i3")}
        ),
        Sample((((2, 6, 9, 3), "float64"), np.array([4, 3], np.int32)), _ROWS_AND_CHANNELS),
    ),
)
def resize_nearest_grad(g: Any, size: np.ndarray, *, align_corners: bool) -> Any:
    """The sum of the gradients of all copies of a row."""
    up, across = (_whole_factor(int(n), g.shape[d + 1]) for d, n in enumerate(size))
    if align_corners or not up or not across:
        return _each_channel(g)
    return lambda i0, i1, i2, i3: apply(
        Sum(lambda a, b: g[i0, i1 * up + a, i2 * across + b, i3], a=up, b=across)
    )


@op(
    "CropAndResize",
    constants=(3,),
    samples=(
        Sample(
            (
                ((2, 5, 6, 3), "float32"),
                np.array([[0, 0, 1, 1], [0.1, 0.2, 0.8, 0.9], [0, 0, 0.5, 0.5]], np.float32),
                np.array([0, 1, 1], np.int32),
                np.array([3, 4], np.int32),
            ),
            _ROWS_AND_CHANNELS,
        ),
    ),
)
def crop_and_resize(x: Any, boxes: Any, images: Any, size: np.ndarray) -> Any:
    """One picture per box."""
    return lambda i0, i1, i2, i3: Opaque(x[:, :, :, i3], boxes[i0, :], images[i0])[i1, i2]


@op(
    "ImageProjectiveTransformV3",
    constants=(2,),
    samples=(
        Sample(
            (
                ((2, 5, 6, 3), "float32"),
                np.array([[1, 0.1, 0, 0, 1, 0, 0, 0]] * 2, np.float32),
                np.array([5, 6], np.int32),
                np.array(0.0, np.float32),
            ),
            _ROWS_AND_CHANNELS,
            {"interpolation": "BILINEAR", "fill_mode": "CONSTANT"},
        ),
        Sample(
            (
                ((2, 5, 6, 3), "float32"),
                np.array([[1, 0.1, 0, 0, 1, 0, 0, 0]], np.float32),
                np.array([5, 6], np.int32),
                np.array(0.0, np.float32),
            ),
            _ROWS_AND_CHANNELS,
            {"interpolation": "NEAREST", "fill_mode": "REFLECT"},
        ),
    ),
)
def projective_transform(x: Any, transforms: Any, size: np.ndarray, fill: Any) -> Any:
    """Whole images, channel by channel; one transform for each or one for all."""
    one = transforms.shape[0] == 1
    return lambda i0, i1, i2, i3: Opaque(
        x[i0, :, :, i3], transforms[0 if one else i0, :], fill[()]
    )[i1, i2]


@op(
    "AdjustContrastv2",
    samples=(Sample((((2, 5, 6, 3), "float32"), np.array(0.7, np.float32)), _ROWS_AND_CHANNELS),),
)
def adjust_contrast(x: Any, factor: Any) -> Any:
    """About the mean of each image's channel."""
    return lambda *i: Opaque(x[(*i[:-3], slice(None), slice(None), i[-1])], factor[()])[i[-3:-1]]


def _spectrum(rank: int) -> Any:
    def describe(x: Any, *lengths: Any) -> Any:
        return lambda *i: Opaque(x[(*i[:-rank], *[slice(None)] * rank)])[i[-rank:]]

    return describe


_SIGNAL = {"": ("i0",)}
op("FFT", "IFFT", samples=(Sample((((3, 4), "complex64"),), _SIGNAL),))(_spectrum(1))
op("FFT2D", "IFFT2D", samples=(Sample((((3, 4, 4), "complex64"),), _SIGNAL),))(_spectrum(2))
op(
    "RFFT",
    "IRFFT",
    constants=(1,),
    samples={
        "RFFT": (Sample((((3, 8), "float32"), np.array([8], np.int32)), _SIGNAL),),
        "IRFFT": (Sample((((3, 5), "complex64"), np.array([8], np.int32)), _SIGNAL),),
    },
)(_spectrum(1))
op(
    "RFFT2D",
    "IRFFT2D",
    constants=(1,),
    samples={
        "RFFT2D": (Sample((((3, 4, 8), "float32"), np.array([4, 8], np.int32)), _SIGNAL),),
        "IRFFT2D": (Sample((((3, 4, 5), "complex64"), np.array([4, 8], np.int32)), _SIGNAL),),
    },
)(_spectrum(2))
