"""Distinct ids in a vector of known size: the op of this package that stands for Unique."""

from __future__ import annotations

from typing import Any

import numpy as np

from tofu_tf.graph.ir import PADDED_UNIQUE
from tofu_tf.ops.parts import ints, scalar
from tofu_tf.ops.registry import Emitter, Piece, Sample, op
from tofu_tf.tdl.expressions import Opaque


def _padded_unique_body(emit: Emitter, piece: Piece) -> list[str]:
    """Unique, and -1 behind its ids: by ops with kernels for these types on every device."""
    ids, places = piece.specs[0], piece.node.outputs[1]
    attrs: dict[str, Any] = {"T": ids.dtype, "out_idx": places.dtype}
    distinct, index = emit.add("Unique", [piece.inputs[0]], attrs, part="distinct", outputs=2)
    found = emit.add("Shape", [distinct], {"T": ids.dtype, "out_type": "int32"}, part="found")[0]
    every = ints(emit, ids.shape, "every")
    left = emit.add("Sub", [every, found], {"T": "int32"}, part="left")[0]
    none = scalar(emit, -1, ids.dtype, "none")
    attrs = {"T": ids.dtype, "index_type": "int32"}
    padding = emit.add("Fill", [left, none], attrs, part="padding")[0]
    axis = emit.const(np.asarray(0, np.int32), "axis")
    attrs = {"N": 2, "T": ids.dtype, "Tidx": "int32"}
    padded = emit.add("ConcatV2", [distinct, padding, axis], attrs, part="padded")[0]
    return [emit.add("EnsureShape", [padded], {"T": ids.dtype, "shape": ids.shape})[0], index]


_UNCUT: dict[str, tuple[str, ...]] = {"": ()}


@op(
    PADDED_UNIQUE,
    body=_padded_unique_body,
    uncuttable="whether an id is new depends on all ids before it",
    samples=(
        Sample((np.asarray([7, 3, 7, 0, 3, 9, 7]),), _UNCUT, {"T": "int64", "out_idx": "int32"}),
        Sample(
            (np.asarray([5, -1, 5, 2, -1, -1], np.int32),),
            _UNCUT,
            {"T": "int32", "out_idx": "int64"},
        ),
    ),
)
def padded_unique(ids: Any) -> Any:
    """The distinct ids in the order in which they first appear, then -1; and the place of each id
    among them.
    """
    return lambda i: Opaque(ids[:])[i], lambda j: Opaque(ids[:])[j]
