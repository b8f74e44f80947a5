"""Batch normalisation with the fused kernels, whole along the statistics or cut along them.

The fused kernels keep batch and space whole: cut along channels they run as they are. The bodies
called "split" cut batch and space too: partial sums over the piece, one small reduction to the sums
of the whole batch, then the normalisation. As in the kernels, the running variance has Bessel's
correction; what is saved for the gradient is the biased variance on a CPU and the inverse deviation
on a GPU (cuDNN).
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import numpy as np

from tofu_tf.ops import parts, windows
from tofu_tf.ops.registry import Emitter, Piece, Sample, Variant, op
from tofu_tf.tdl.expressions import Opaque, Operand, Sum, apply

Shape = tuple[int, ...]
ALL = slice(None)


def _statistics(operands: Sequence[Any], attributes: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The internal reductions of a split body: two sums per channel."""
    return [("c",), ("c",)] if attributes["is_training"] else []


def _nothing(*r: Any) -> Any:
    """The element of an output that no one reads."""
    return apply()


class _Arithmetic:
    """Element-wise nodes of one piece in float32, and sums per channel."""

    def __init__(self, emit: Emitter, piece: Piece) -> None:
        form = piece.attributes["data_format"]
        self.emit = emit
        self.channel = form.index("C")
        self.rank = len(form)
        self.dtype = piece.specs[0].dtype
        shape = piece.specs[0].shape
        self.count = math.prod(shape) // shape[self.channel]

    def binary(self, kind: str, a: str, b: str, part: str) -> str:
        return self.emit.add(kind, [a, b], {"T": "float32"}, part)[0]

    def scaled(self, a: str, factor: float, part: str) -> str:
        factor_name = self.emit.const(np.asarray(factor, np.float32), f"{part}/by")
        return self.binary("Mul", a, factor_name, part)

    def single(self, tensor: str, part: str) -> str:
        """An image tensor as float32."""
        if self.dtype == "float32":
            return tensor
        attrs = {"SrcT": self.dtype, "DstT": "float32"}
        return self.emit.add("Cast", [tensor], attrs, part)[0]

    def native(self, tensor: str, part: str) -> str:
        """A float32 image tensor in the op's own dtype."""
        if self.dtype == "float32":
            return tensor
        attrs = {"SrcT": "float32", "DstT": self.dtype}
        return self.emit.add("Cast", [tensor], attrs, part)[0]

    def per_channel(self, image: str, part: str) -> str:
        """[c] sums of an image tensor."""
        dims = [d for d in range(self.rank) if d != self.channel]
        axes = self.emit.const(np.asarray(dims, np.int32), f"{part}/axes")
        attrs = {"T": "float32", "Tidx": "int32", "keep_dims": False}
        return self.emit.add("Sum", [image, axes], attrs, part)[0]

    def along(self, vector: str, part: str) -> str:
        """A [c] vector in a shape that broadcasts over the image."""
        if self.channel == self.rank - 1:
            return vector
        shape = [-1] + [1] * (self.rank - self.channel - 1)
        target = parts.ints(self.emit, shape, f"{part}/shape")
        return self.emit.add(
            "Reshape", [vector, target], {"T": "float32", "Tshape": "int32"}, part
        )[0]

    def inverse_deviation(self, variance: str, epsilon: float) -> str:
        shift = self.emit.const(np.asarray(epsilon, np.float32), "epsilon")
        shifted = self.binary("AddV2", variance, shift, "shifted")
        return self.emit.add("Rsqrt", [shifted], {"T": "float32"}, "inverse")[0]


def _present(emit: Emitter, piece: Piece, position: int, part: str) -> str:
    """Input `position`, or an empty vector where the kernel ignores it."""
    return piece.inputs[position] or emit.const(np.zeros(0, np.float32), part)


def _fused(emit: Emitter, piece: Piece) -> list[str]:
    """The fused kernel on the piece."""
    given = [_present(emit, piece, i, f"in{i}") for i in range(len(piece.inputs))]
    return emit.add(piece.node.op, given, piece.node.attrs, outputs=len(piece.node.outputs))


def _normalize_split(emit: Emitter, piece: Piece) -> Generator[str, str, list[str]]:
    """Mean, then variance of the whole batch; then the inference kernel with them."""
    a = piece.attributes
    if not a["is_training"]:
        return _fused(emit, piece)
    do = _Arithmetic(emit, piece)
    x = do.single(piece.inputs[0], "x32")
    total = yield do.per_channel(x, "sum")
    mean = do.scaled(total, 1.0 / do.count, "mean")
    squares = do.binary("SquaredDifference", x, do.along(mean, "mean_along"), "squares")
    total = yield do.per_channel(squares, "sum_of_squares")
    variance = do.scaled(total, 1.0 / do.count, "variance")
    attrs = {**piece.node.attrs, "is_training": False, "exponential_avg_factor": 1.0}
    given = [*piece.inputs[:3], mean, variance]
    normal = emit.add(piece.node.op, given, attrs, outputs=6)
    unbiased = do.scaled(variance, do.count / max(do.count - 1, 1), "unbiased")
    factor = a["exponential_avg_factor"]
    moving = [mean, unbiased]
    if factor != 1:
        for i, name in enumerate(("moving_mean", "moving_variance")):
            kept = do.scaled(piece.inputs[3 + i], 1 - factor, f"{name}/kept")
            taken = do.scaled(moving[i], factor, f"{name}/taken")
            moving[i] = do.binary("AddV2", kept, taken, name)
    saved = variance
    if piece.device_type == "GPU":
        saved = do.inverse_deviation(variance, a["epsilon"])
    return [normal[0], *moving, mean, saved, normal[5]]


def _gradient_split(emit: Emitter, piece: Piece) -> Generator[str, str, list[str]]:
    """Sums of dy and dy (x - mean) over the whole batch: the gradients of offset and scale."""
    a = piece.attributes
    if not a["is_training"]:
        return _fused(emit, piece)
    do = _Arithmetic(emit, piece)
    dy, x = do.single(piece.inputs[0], "dy32"), do.single(piece.inputs[1], "x32")
    scale, mean, saved = piece.inputs[2:5]
    inverse = saved if piece.device_type == "GPU" else do.inverse_deviation(saved, a["epsilon"])
    centred = do.binary("Sub", x, do.along(mean, "mean_along"), "centred")
    offset_gradient = yield do.per_channel(dy, "sum")
    projected = do.binary("Mul", dy, centred, "projected")
    projection = yield do.per_channel(projected, "projection")
    scale_gradient = do.binary("Mul", projection, inverse, "scale_gradient")
    # dx = scale inverse (dy - mean of dy - (x - mean) inverse^2 mean of dy (x - mean))
    average = do.scaled(offset_gradient, 1.0 / do.count, "average")
    slope = do.scaled(
        do.binary("Mul", scale_gradient, inverse, "slope_sum"), 1.0 / do.count, "slope"
    )
    gain = do.binary("Mul", scale, inverse, "gain")
    level = do.binary("Sub", dy, do.along(average, "average_along"), "level")
    tilt = do.binary("Mul", centred, do.along(slope, "slope_along"), "tilt")
    rest = do.binary("Sub", level, tilt, "rest")
    gradient = do.native(do.binary("Mul", rest, do.along(gain, "gain_along"), "gradient"), "native")
    return [gradient, scale_gradient, offset_gradient, *_empty(emit, piece)]


def _empty(emit: Emitter, piece: Piece) -> list[str]:
    """The two placeholder outputs of the gradient."""
    return [
        emit.const(np.zeros(piece.node.outputs[o].shape, np.float32), f"placeholder{o}")
        for o in (3, 4)
    ]


def _split_forward(
    x: Operand,
    scale: Operand,
    offset: Operand,
    mean: Operand,
    variance: Operand,
    *,
    is_training: bool,
    exponential_avg_factor: float,
    data_format: str,
    out: tuple[Shape, ...],
) -> Any:
    at = windows.pixels(x, data_format)

    def element(b: Any, space: tuple[Any, ...], c: Any) -> Any:
        value = apply(at(b, *space, c), scale[c], offset[c])
        # in inference the plain kernel can be cut everywhere: nothing is left to do for this body
        return value if is_training else Opaque(value, mean[c], variance[c])[(b, *space, c)]

    def moving(c: Any) -> Any:
        if is_training and exponential_avg_factor == 1:
            return apply(scale[c])
        return apply(mean[c], variance[c])

    statistics = (lambda c: moving(c), lambda c: moving(c), lambda c: apply(), lambda c: apply())
    return (windows.over_image(element, data_format), *statistics, _nothing)


def _positive(channels: int) -> np.ndarray:
    return np.linspace(0.3, 1.7, channels, dtype=np.float32)


def _forward(x: Shape, training: bool, dtype: str = "float32", **attrs: Any) -> Sample:
    form = attrs.setdefault("data_format", "NHWC")
    c = x[form.index("C")]
    ignored = training and attrs.get("exponential_avg_factor", 1.0) == 1
    given = ((0,), "float32") if ignored else ((c,), "float32")
    variance = given if ignored else _positive(c)
    names = _image_axes(x, form)
    axes = {"": names, "split": ()} if not training else {"": ("c",), "split": names}
    return Sample(
        ((x, dtype), ((c,), "float32"), ((c,), "float32"), given, variance),
        axes,
        {**attrs, "is_training": training, "epsilon": 1e-3},
        # the CPU kernel leaves what it saves for a gradient unset in inference
        unspecified=() if training else (3, 4),
    )


def _backward(x: Shape, training: bool, dtype: str = "float32", **attrs: Any) -> Sample:
    form = attrs.setdefault("data_format", "NHWC")
    c = x[form.index("C")]
    vector = ((c,), "float32")
    names = _image_axes(x, form)
    axes = {"": names, "split": ()} if not training else {"": ("c",), "split": names}
    return Sample(
        ((x, dtype), (x, dtype), vector, vector, _positive(c), ((), "float32")),
        axes,
        {**attrs, "is_training": training, "epsilon": 1e-3},
    )


def _image_axes(x: Shape, data_format: str) -> tuple[str, ...]:
    """The axes of an image of this shape that have more than one element."""
    names = dict(zip("NDHWC", "bzyxc", strict=True))
    return tuple(names[f] for f, n in zip(data_format, x, strict=True) if n > 1)


def _forward_flops(
    inputs: Sequence[Any], outputs: Sequence[Any], attributes: Mapping[str, Any]
) -> int:
    """Four per element to normalise, scale and shift; four more for mean and variance."""
    return (8 if attributes.get("is_training", True) else 4) * int(inputs[0].size)


def _backward_flops(
    inputs: Sequence[Any], outputs: Sequence[Any], attributes: Mapping[str, Any]
) -> int:
    """Per element two to normalise, four for the two sums over all images, five to combine."""
    return 11 * int(inputs[1].size)


@op(
    "FusedBatchNormV3",
    body=_fused,
    flops=_forward_flops,
    samples=(
        _forward((5, 4, 3, 6), True),
        _forward((5, 4, 3, 6), True, exponential_avg_factor=0.1),
        _forward((5, 4, 3, 6), True, dtype="bfloat16", exponential_avg_factor=0.25),
        _forward((5, 4, 3, 6), False),
        _forward((4, 5, 3, 6), True, data_format="NCHW", exponential_avg_factor=0.1),
        # layer normalisation: the rows stand for channels
        _forward((1, 12, 7, 1), True, data_format="NCHW"),
        _forward((1, 1, 1, 6), True, exponential_avg_factor=0.1),
        _forward((2, 3, 4, 3, 5), True, data_format="NDHWC"),
    ),
    variants=(
        Variant(
            _split_forward,
            _normalize_split,
            "split",
            _statistics,
            # scale and offset for the image, the running statistics each for its next value
            serves={1: (0,), 2: (0,), 3: (1,), 4: (2,)},
        ),
    ),
)
def fused_batch_norm(
    x: Operand,
    scale: Operand,
    offset: Operand,
    mean: Operand,
    variance: Operand,
    *,
    is_training: bool,
    exponential_avg_factor: float,
    data_format: str,
    out: tuple[Shape, ...],
) -> Any:
    at, space_rank = windows.pixels(x, data_format), len(data_format) - 2
    if not is_training:
        given = windows.over_image(
            lambda b, space, c: apply(at(b, *space, c), scale[c], offset[c], mean[c], variance[c]),
            data_format,
        )
        statistics = [lambda c: apply(mean[c]), lambda c: apply(variance[c])] * 2
        return (given, *statistics, _nothing)

    def channel(c: Any) -> Any:
        return at(ALL, *[ALL] * space_rank, c)

    def moving(c: Any) -> Any:
        if exponential_avg_factor == 1:
            return apply(channel(c))
        return apply(channel(c), mean[c], variance[c])

    return (
        windows.over_image(
            lambda b, space, c: Opaque(channel(c), scale[c], offset[c])[(b, *space)], data_format
        ),
        lambda c: moving(c),
        lambda c: moving(c),
        lambda c: apply(channel(c)),
        lambda c: apply(channel(c)),
        _nothing,
    )


def _split_gradient(
    gradient: Operand,
    x: Operand,
    scale: Operand,
    mean: Operand,
    variance: Operand,
    reserved: Operand,
    *,
    is_training: bool,
    data_format: str,
    out: tuple[Shape, ...],
) -> Any:
    dy, at = windows.pixels(gradient, data_format), windows.pixels(x, data_format)

    def element(b: Any, space: tuple[Any, ...], c: Any) -> Any:
        value = apply(dy(b, *space, c), at(b, *space, c), scale[c], mean[c], variance[c])
        return value if is_training else Opaque(value)[(b, *space, c)]

    sums = (lambda c: apply(scale[c]), lambda c: apply(scale[c]))
    return (windows.over_image(element, data_format), *sums, _nothing, _nothing)


@op(
    "FusedBatchNormGradV3",
    body=_fused,
    flops=_backward_flops,
    samples=(
        _backward((5, 4, 3, 6), True),
        _backward((5, 4, 3, 6), True, dtype="bfloat16"),
        _backward((5, 4, 3, 6), False),
        _backward((4, 5, 3, 6), True, data_format="NCHW"),
        _backward((1, 12, 7, 1), True, data_format="NCHW"),
        _backward((2, 3, 4, 3, 5), True, data_format="NDHWC"),
    ),
    variants=(
        Variant(
            _split_gradient,
            _gradient_split,
            "split",
            _statistics,
            # scale for the image's gradient, the variance for that and its own
            serves={2: (0,), 4: (0, 1)},
        ),
    ),
)
def fused_batch_norm_grad(
    gradient: Operand,
    x: Operand,
    scale: Operand,
    mean: Operand,
    variance: Operand,
    reserved: Operand,
    *,
    is_training: bool,
    data_format: str,
    out: tuple[Shape, ...],
) -> Any:
    dy, at = windows.pixels(gradient, data_format), windows.pixels(x, data_format)
    space_rank = len(data_format) - 2
    if is_training:

        def channel(c: Any) -> Any:
            rest = [ALL] * space_rank
            return apply(dy(ALL, *rest, c), at(ALL, *rest, c), scale[c], mean[c], variance[c])

        return (
            windows.over_image(lambda b, space, c: Opaque(channel(c))[(b, *space)], data_format),
            lambda c: channel(c),
            lambda c: channel(c),
            _nothing,
            _nothing,
        )

    def term(b: Any, space: tuple[Any, ...], c: Any) -> Any:
        return apply(dy(b, *space, c), at(b, *space, c), scale[c], mean[c], variance[c])

    # frozen statistics: everything is linear in dy, so the kernel's own sums are partial sums
    if space_rank == 2:
        total: Any = lambda c: Sum(lambda b, y, x: term(b, (y, x), c))  # noqa: E731
    else:
        total = lambda c: Sum(lambda b, z, y, x: term(b, (z, y, x), c))  # noqa: E731
    return (windows.over_image(term, data_format), total, total, _nothing, _nothing)
