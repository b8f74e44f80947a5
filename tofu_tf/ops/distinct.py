"""Distinct ids in a vector of known size: the op of this package that stands for Unique."""

from __future__ import annotations

from typing import Any

import numpy as np

from tofu_tf.graph.ir import PADDED_UNIQUE
from tofu_tf.ops.parts import scalar
from tofu_tf.ops.registry import Emitter, Piece, Sample, op
from tofu_tf.tdl.expressions import Opaque


def _padded_unique_body(emit: Emitter, piece: Piece) -> list[str]:
    """Unique, and of every place's ids (all equal) the largest; places without ids get -1."""
    ids, places = piece.specs[0], piece.node.outputs[1]
    attrs = {"T": ids.dtype, "out_idx": places.dtype}
    index = emit.add("Unique", [piece.inputs[0]], attrs, part="unique", outputs=2)[1]
    count = emit.const(np.asarray(ids.shape[0], np.int32), "count")
    attrs = {"T": ids.dtype, "Tindices": places.dtype, "Tnumsegments": "int32"}
    found = emit.add("UnsortedSegmentMax", [piece.inputs[0], index, count], attrs, part="found")[0]
    none = scalar(emit, -1, ids.dtype, "none")
    return [emit.add("Maximum", [found, none], {"T": ids.dtype})[0], index]


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
