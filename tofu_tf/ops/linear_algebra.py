"""Functions of each matrix of a batch: factorisations, solvers, diagonals; the batch is cut."""

from __future__ import annotations

from typing import Any

import numpy as np

from tofu_tf.ops.registry import Sample, op
from tofu_tf.tdl.expressions import Named, Opaque, apply

_SQUARE = np.stack([np.eye(3) * 3 + 0.1 * n for n in range(4)])
_BATCH = {"": ("i0",)}
_MATRICES = (((4, 3, 3), "float64"),)
_DIAGONALS = ((4, 3), "float64")


def _batched(batch: int, operands: tuple[Any, ...], out: tuple[tuple[int, ...], ...]) -> Any:
    """For every output a function of what the operands hold of one place of the batch.

    Operands without the batch's dimensions are parameters of all. Outputs share the batch's axes
    and have the rest of their own; those without a batch are empty: nobody asked for them.
    """
    places = operands[0].shape[:batch] if operands[0].rank > batch else out[0][:batch]

    def element(*i: Any) -> Any:
        read = []
        for x in operands:
            shared = x.rank > batch and x.shape[:batch] == places
            own = i[:batch] if shared else ()
            read.append(x[(*own, *[slice(None)] * (x.rank - len(own)))])
        value = Opaque(*read)
        return value[i[batch:]] if len(i) > batch else value

    found = []
    for n, shape in enumerate(out):
        asked = shape[:batch] == places
        axes = (f"i{d}" if asked and d < batch else f"o{n}d{d}" for d in range(len(shape)))
        found.append(Named(tuple(axes), element if asked else lambda *_: apply()))
    return tuple(found)


def each_matrix(*operands: Any, out: tuple[tuple[int, ...], ...]) -> Any:
    """A function of the matrices in the last two dimensions of the first operand."""
    return _batched(operands[0].rank - 2, operands, out)


op(
    "Cholesky",
    "CholeskyGrad",
    "LogMatrixDeterminant",
    "MatrixBandPart",
    "MatrixDeterminant",
    "MatrixDiagPart",
    "MatrixDiagPartV3",
    "MatrixInverse",
    "MatrixSetDiag",
    "MatrixSetDiagV3",
    "MatrixSolve",
    "MatrixTriangularSolve",
    "Qr",
    "SelfAdjointEigV2",
    "Svd",
    samples={
        "Cholesky": (Sample((_SQUARE,), _BATCH),),
        "CholeskyGrad": (Sample((_SQUARE, *_MATRICES), _BATCH),),
        "LogMatrixDeterminant": (Sample((_SQUARE,), _BATCH),),
        "MatrixBandPart": (Sample((*_MATRICES, np.asarray(1), np.asarray(0)), _BATCH),),
        "MatrixDeterminant": (Sample(_MATRICES, _BATCH),),
        "MatrixDiagPart": (Sample(_MATRICES, _BATCH),),
        "MatrixDiagPartV3": (
            Sample((*_MATRICES, np.asarray([-1, 1], np.int32), np.asarray(0.0)), _BATCH),
        ),
        "MatrixInverse": (Sample((_SQUARE,), _BATCH),),
        "MatrixSetDiag": (Sample((*_MATRICES, _DIAGONALS), _BATCH),),
        "MatrixSetDiagV3": (Sample((*_MATRICES, _DIAGONALS, np.asarray(0, np.int32)), _BATCH),),
        "MatrixSolve": (Sample((_SQUARE, ((4, 3, 2), "float64")), _BATCH),),
        "MatrixTriangularSolve": (Sample((_SQUARE, ((4, 3, 2), "float64")), _BATCH),),
        "Qr": (Sample(_MATRICES, _BATCH),),
        "SelfAdjointEigV2": (
            Sample((_SQUARE,), _BATCH),
            Sample((_SQUARE,), _BATCH, {"compute_v": False}, unspecified=(1,)),
        ),
        "Svd": (
            Sample(_MATRICES, _BATCH),
            Sample(_MATRICES, _BATCH, {"compute_uv": False}, unspecified=(1, 2)),
        ),
    },
)(each_matrix)


@op(
    "MatrixDiag",
    "MatrixDiagV3",
    samples={
        "MatrixDiag": (Sample((_DIAGONALS,), _BATCH),),
        "MatrixDiagV3": (
            Sample(
                (
                    _DIAGONALS,
                    np.asarray(1, np.int32),
                    np.asarray(-1, np.int32),
                    np.asarray(-1, np.int32),
                    np.asarray(0.5),
                ),
                _BATCH,
            ),
        ),
    },
)
def each_diagonal(*operands: Any, out: tuple[tuple[int, ...], ...]) -> Any:
    """Matrices made from the first operand's last dimension (several diagonals: the last two)."""
    return _batched(len(out[0]) - 2, operands, out)
