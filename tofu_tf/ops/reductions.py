"""Reductions over given axes, scans along one, and what picks along one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tofu_tf.ops.parts import chosen, scalar
from tofu_tf.ops.registry import Emitter, Piece, Sample, op, same_op
from tofu_tf.tdl.expressions import Max, Min, Opaque, Prod, Sum, apply


def reduced_axes(axes: np.ndarray, rank: int) -> tuple[int, ...]:
    """The dimensions named by a scalar or vector of axes; negative ones count from the end."""
    return tuple(sorted({int(a) % rank for a in np.reshape(axes, -1)})) if rank else ()


def reduction(
    reducer: Callable[..., Any], x: Any, axes: np.ndarray, keep_dims: bool
) -> Callable[..., Any]:
    """``reducer(lambda *r: x[i and r])``: axes r0, r1 ... in the reduced dimensions' order."""
    gone = reduced_axes(axes, x.rank)
    extents = tuple(x.shape[d] for d in gone)
    kept = [d for d in range(x.rank) if d not in gone]

    def element(*i: Any) -> Any:
        own = dict(zip(range(x.rank) if keep_dims else kept, i, strict=True))
        return reducer(
            lambda *r: x[tuple(r[gone.index(d)] if d in gone else own[d] for d in range(x.rank))],
            r=extents,
        )

    return element


def _axes(*values: int) -> np.ndarray:
    return np.asarray(values, np.int32)


def _samples(
    dtype: str = "float64", low: float = -2.0, high: float = 2.0, more: Sequence[Sample] = ()
) -> tuple[Sample, ...]:
    x = ((3, 4, 5), dtype)
    return (
        Sample((x, _axes(0, 2)), {"": ("i0", "r0", "r1")}, low=low, high=high),
        Sample((x, _axes(1)), {"": ("i0", "i2", "r0")}, {"keep_dims": True}, low, high),
        Sample((x, np.asarray(-1, np.int32)), {"": ("i0", "i1", "r0")}, low=low, high=high),
        Sample((x, np.asarray([0, 1, 2], np.int64)), {"": ("r0", "r1", "r2")}, low=low, high=high),
        Sample((x, _axes()), {"": ("i0", "i1", "i2")}, low=low, high=high),
        Sample((((), dtype), _axes()), {"": ()}, low=low, high=high),
        *more,
    )


def input_size(inputs: Sequence[Any], outputs: Sequence[Any], attributes: Mapping[str, Any]) -> int:
    """One operation per element of the first input."""
    return int(inputs[0].size)


@op(
    "Sum",
    constants=(1,),
    flops=input_size,
    samples=_samples(more=(Sample((((6, 4), "float32"), _axes(0)), {"": ("i0", "r0")}),)),
)
def sum_(x: Any, axes: np.ndarray, *, keep_dims: bool) -> Any:
    return reduction(Sum, x, axes, keep_dims)


@op("Prod", constants=(1,), flops=input_size, samples=_samples(low=0.5, high=1.5))
def prod(x: Any, axes: np.ndarray, *, keep_dims: bool) -> Any:
    return reduction(Prod, x, axes, keep_dims)


@op("Max", constants=(1,), flops=input_size, samples=_samples())
def max_(x: Any, axes: np.ndarray, *, keep_dims: bool) -> Any:
    return reduction(Max, x, axes, keep_dims)


@op("Min", constants=(1,), flops=input_size, samples=_samples("int32", -9, 9))
def min_(x: Any, axes: np.ndarray, *, keep_dims: bool) -> Any:
    return reduction(Min, x, axes, keep_dims)


@op("All", constants=(1,), flops=input_size, samples=_samples("bool"))
def all_(x: Any, axes: np.ndarray, *, keep_dims: bool) -> Any:
    """The minimum of truth values."""
    return reduction(Min, x, axes, keep_dims)


@op("Any", constants=(1,), flops=input_size, samples=_samples("bool"))
def any_(x: Any, axes: np.ndarray, *, keep_dims: bool) -> Any:
    """The maximum of truth values."""
    return reduction(Max, x, axes, keep_dims)


def _mean(emit: Emitter, piece: Piece) -> list[str]:
    reduced = [a for a in piece.box if a.startswith("r")]
    if piece.whole(*reduced):
        return same_op(emit, piece)
    # the part's mean, weighted by its share: nothing overflows that the whole op keeps in range
    dtype = piece.specs[0].dtype
    axes = emit.const(piece.constants[1], "axes")
    attrs = chosen(piece, "T", "Tidx", "keep_dims")
    mean = emit.add("Mean", [piece.inputs[0], axes], attrs, part="mean")
    share = 1.0
    for a in reduced:
        lo, hi = piece.box[a]
        share *= (hi - lo) / piece.extents[a]
    return emit.add("Mul", [*mean, scalar(emit, share, dtype, "share")], {"T": dtype})


@op(
    "Mean",
    body=_mean,
    constants=(1,),
    flops=input_size,
    samples=_samples(
        more=(
            Sample((((6, 4), "float32"), _axes(0)), {"": ("i0", "r0")}),
            Sample((((6, 4), "bfloat16"), _axes(0)), {"": ("i0", "r0")}, low=0.5),
            Sample((((6, 4), "int32"), _axes(0)), {"": ("i0",)}, low=-9, high=9),
        )
    ),
)
def mean(x: Any, axes: np.ndarray, *, keep_dims: bool) -> Any:
    """A Sum times a number; for whole numbers a rounded quotient: parts do not add up to it."""
    whole = x.dtype.startswith(("int", "uint"))
    element = reduction(Sum, x, axes, keep_dims)
    return lambda *i: apply(element(*i)) if whole else element(*i)


@op(
    "EuclideanNorm",
    constants=(1,),
    flops=input_size,
    samples=(Sample((((3, 4, 5), "float64"), _axes(1)), {"": ("i0", "i1")}),),
)
def euclidean_norm(x: Any, axes: np.ndarray, *, keep_dims: bool) -> Any:
    """``sqrt(Sum(x ** 2))``: parts do not add up."""
    element = reduction(Sum, x, axes, keep_dims)
    return lambda *i: apply(element(*i))


@op(
    "L2Loss",
    flops=lambda inputs, outputs, attributes: 2 * inputs[0].size,
    samples=(
        Sample((((3, 5), "float64"),), {"": ("r0", "r1")}),
        Sample((((4,), "float32"),), {"": ("r0",)}),
    ),
)
def l2_loss(x: Any) -> Any:
    """``Sum(x ** 2) / 2``."""
    return lambda: Sum(lambda *r: x[r], r=x.shape)


@op(
    "ArgMax",
    "ArgMin",
    constants=(1,),
    flops=input_size,
    samples=(
        Sample((((3, 4, 5), "float64"), np.asarray(1, np.int32)), {"": ("i0", "i1")}),
        Sample(
            (((3, 5), "float32"), np.asarray(-1, np.int64)), {"": ("i0",)}, {"output_type": "int32"}
        ),
    ),
)
def arg_max(x: Any, axis: np.ndarray) -> Any:
    """A place along `axis`, of which all is read."""
    gone = int(axis) % x.rank
    return lambda *i: apply(x[(*i[:gone], slice(None), *i[gone:])])


def _along(x: Any, axis: int) -> Any:
    """A function of all elements along `axis` whose result has that axis too."""
    return lambda *i: Opaque(x[(*i[:axis], slice(None), *i[axis + 1 :])])[i[axis]]


@op(
    "Cumsum",
    "Cumprod",
    "CumulativeLogsumexp",
    constants=(1,),
    flops=input_size,
    samples=(
        Sample((((3, 4, 5), "float64"), np.asarray(1, np.int32)), {"": ("i0", "i2")}),
        Sample(
            (((3, 4), "float64"), np.asarray(-1, np.int32)),
            {"": ("i0",)},
            {"exclusive": True, "reverse": True},
        ),
    ),
)
def scan(x: Any, axis: np.ndarray) -> Any:
    return _along(x, int(axis) % x.rank)


@op(
    "TopKV2",
    constants=(1,),
    flops=input_size,
    samples=(Sample((((3, 4, 5), "float64"), np.asarray(2, np.int32)), {"": ("i0", "i1")}),),
)
def top_k(x: Any, k: np.ndarray) -> Any:
    """Values and places of the `k` largest along the last axis."""
    element = _along(x, x.rank - 1)
    return element, element


@op(
    "InTopKV2",
    "InTopK",
    flops=input_size,
    samples={
        "InTopKV2": (
            Sample(
                (
                    ((5, 4), "float32"),
                    np.asarray([0, 1, 2, 3, 0], np.int32),
                    np.asarray(2, np.int32),
                ),
                {"": ("i",)},
            ),
        ),
        "InTopK": (
            Sample(
                (((5, 4), "float32"), np.asarray([0, 1, 2, 3, 0], np.int32)), {"": ("i",)}, {"k": 2}
            ),
        ),
    },
)
def in_top_k(predictions: Any, targets: Any, *k: Any) -> Any:
    """Whether the target of a row is among its `k` largest."""
    return lambda i: apply(predictions[i, :], targets[i], *(n[()] for n in k))
