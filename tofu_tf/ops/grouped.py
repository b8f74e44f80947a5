"""Gradients of grouped convolutions on the CPU, whose kernels know one group: a node per group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tofu_tf.ops import parts
from tofu_tf.ops.registry import Emitter, Piece


def gradient(
    emit: Emitter,
    piece: Piece,
    operands: Sequence[str],
    dims: Sequence[int],
    sizes: Sequence[int],
    attrs: Mapping[str, Any],
    groups: int,
) -> str:
    """A convolution's gradient of shape `sizes`, which the operand "" stands for.

    `dims[i]`: the dimension of operand i along which groups follow each other; of the result, for
    the operand that is its shape.
    """
    position = operands.index("")
    if groups == 1 or piece.device_type != "CPU":
        shape = parts.ints(emit, sizes, "sizes")
        given = [shape if i == position else name for i, name in enumerate(operands)]
        return emit.add(piece.node.op, given, attrs)[0]
    dtype = piece.node.outputs[0].dtype
    own = list(sizes)
    own[dims[position]] //= groups
    shape = parts.ints(emit, own, "sizes")
    columns = []
    for i, (name, dim) in enumerate(zip(operands, dims, strict=True)):
        if i == position:
            columns.append([shape] * groups)
            continue
        axis = emit.const(np.asarray(dim, np.int32), f"groups{i}/axis")
        split = {"num_split": groups, "T": dtype}
        columns.append(emit.add("Split", [axis, name], split, f"groups{i}", groups))
    every = [
        emit.add(piece.node.op, given, attrs, f"group{g}")[0]
        for g, given in enumerate(zip(*columns, strict=True))
    ]
    axis = emit.const(np.asarray(dims[position], np.int32), "axis")
    return emit.add("ConcatV2", [*every, axis], {"N": groups, "T": dtype, "Tidx": "int32"})[0]
