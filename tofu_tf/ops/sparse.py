"""What is sparse: products of matrices of few elements, counts of numbers, diagonals."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tofu_tf.ops.registry import Emitter, Piece, Sample, op
from tofu_tf.tdl.expressions import Max, Operand, Sum, apply

ALL = slice(None)

_PLACES = np.asarray([[0, 3], [1, 0], [1, 2], [3, 1], [2, 2]])
_SHAPE = np.asarray([4, 4])
_VALUES = ((5,), "float64")


@op(
    "SparseTensorDenseMatMul",
    constants=(2,),
    uncut=("i",),
    flops=lambda inputs, outputs, attributes: 2 * inputs[1].size * outputs[0].shape[-1],
    samples=(
        Sample((_PLACES, _VALUES, _SHAPE, ((4, 6), "float64")), {"": ("j", "e")}),
        Sample(
            (_PLACES, _VALUES, _SHAPE, ((6, 4), "float64")),
            {"": ("j", "e")},
            {"adjoint_a": True, "adjoint_b": True},
        ),
        Sample(
            (_PLACES.astype(np.int32), ((5,), "float32"), _SHAPE, ((4, 1), "float32")),
            {"": ("e",)},
        ),
    ),
)
def sparse_matmul(
    places: Operand, values: Operand, shape: np.ndarray, b: Operand, *, adjoint_b: bool
) -> Any:
    """A sum over the elements of the first matrix, whose rows may be any."""

    def element(i: Any, j: Any) -> Any:
        column = (j, ALL) if adjoint_b else (ALL, j)
        return Sum(lambda e: apply(places[e, ALL], values[e], b[column]))

    return element


_COUNTED = np.asarray([2, 0, 2, 3, 4, 0, 9], np.int32)
_ROWS = np.asarray([[2, 0, 2], [1, 1, 5]], np.int32)
_BINS = np.asarray(5, np.int32)
_UNWEIGHTED = np.zeros((0,))


def _bincount_body(emit: Emitter, piece: Piece) -> list[str]:
    numbers, _, weights = piece.inputs
    if piece.reads[2] is None:  # without weights every number counts once
        dtype = tf.as_dtype(piece.specs[2].dtype).as_numpy_dtype
        weights = emit.const(np.zeros((0,), dtype), "weights")
    inputs = [numbers, emit.const(piece.constants[1], "bins"), weights]
    return emit.add("DenseBincount", inputs, piece.node.attrs)


@op(
    "DenseBincount",
    body=_bincount_body,
    constants=(1,),
    uncut=("v",),
    flops=lambda inputs, outputs, attributes: inputs[0].size,
    samples=(
        Sample((_COUNTED, _BINS, ((7,), "float64")), {"": ("n",)}),
        Sample((_COUNTED, _BINS, _UNWEIGHTED), {"": ("n",)}),
        Sample((_COUNTED, _BINS, _UNWEIGHTED), {"": ("n",)}, {"binary_output": True}),
        Sample((_ROWS, _BINS, ((2, 3), "float32")), {"": ("b", "n")}),
    ),
)
def bincount(numbers: Operand, bins: np.ndarray, weights: Operand, *, binary_output: bool) -> Any:
    """How often each number below `bins` occurs (in a row), by weight, or whether it does."""
    reducer = Max if binary_output else Sum

    def element(v: Any, *row: Any) -> Any:
        def counted(n: Any) -> Any:
            weight = [weights[(*row, n)]] if weights.shape == numbers.shape else []
            return apply(numbers[(*row, n)], *weight)

        return reducer(lambda n: counted(n))

    return (lambda v: element(v)) if numbers.rank == 1 else (lambda b, v: element(v, b))


@op(
    "DiagPart",
    flops=lambda inputs, outputs, attributes: 0,
    samples=(
        Sample((((5, 5), "float64"),), {"": ("i0",)}),
        Sample((((2, 3, 2, 3), "float32"),), {"": ("i0", "i1")}),
    ),
)
def diagonal(x: Operand) -> Any:
    return lambda *i: x[(*i, *i)]
