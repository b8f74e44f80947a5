"""Small nodes that bodies add to a piece: filled tensors, localised indices, slices, kept rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tofu_tf.ops.registry import Emitter, Piece


def scalar(emit: Emitter, value: float, dtype: str, part: str) -> str:
    """A scalar constant of the named dtype."""
    return emit.const(np.asarray(value).astype(tf.as_dtype(dtype).as_numpy_dtype), part)


def ints(emit: Emitter, values: Sequence[int], part: str) -> str:
    """A vector constant of int32 (a shape, axes, offsets)."""
    return emit.const(np.asarray(values, np.int32), part)


def chosen(piece: Piece, *names: str) -> dict[str, Any]:
    """The named attributes of the piece's node."""
    return {name: piece.node.attrs[name] for name in names}


def filled(
    emit: Emitter, shape: Sequence[int], value: float, dtype: str, part: str = ""
) -> list[str]:
    """A tensor that is `value` everywhere, without a constant of its size in the graph."""
    dims = ints(emit, shape, f"{part}dims")
    one = scalar(emit, value, dtype, f"{part}value")
    return emit.add("Fill", [dims, one], {"T": dtype, "index_type": "int32"}, part)


def passed(emit: Emitter, tensor: str, dtype: str) -> list[str]:
    """The tensor itself, as the piece's output."""
    return emit.add("Identity", [tensor], {"T": dtype})


def reshaped(
    emit: Emitter, tensor: str, shape: Sequence[int], dtype: str, part: str = ""
) -> list[str]:
    """The tensor in another shape."""
    dims = ints(emit, shape, f"{part}shape")
    return emit.add("Reshape", [tensor, dims], {"T": dtype, "Tshape": "int32"}, part)


def sliced(
    emit: Emitter,
    tensor: str,
    bounds: Sequence[tuple[int, int]],
    dtype: str,
    part: str = "",
) -> list[str]:
    """The box `bounds` of the tensor."""
    begin = ints(emit, [lo for lo, _ in bounds], f"{part}begin")
    size = ints(emit, [hi - lo for lo, hi in bounds], f"{part}size")
    return emit.add("Slice", [tensor, begin, size], {"T": dtype, "Index": "int32"}, part)


def localised(emit: Emitter, indices: str, bounds: tuple[int, int], dtype: str) -> tuple[str, str]:
    """Indices relative to ``bounds[0]`` and a mask of those that fall into `bounds`.

    Indices that fall outside come out as -1, which scatters and one-hots skip.
    """
    lo, hi = bounds
    at = emit.add("Sub", [indices, scalar(emit, lo, dtype, "first")], {"T": dtype}, part="offset")[
        0
    ]
    zero, size = scalar(emit, 0, dtype, "zero"), scalar(emit, hi - lo, dtype, "size")
    above = emit.add("GreaterEqual", [at, zero], {"T": dtype}, part="above")[0]
    below = emit.add("Less", [at, size], {"T": dtype}, part="below")[0]
    inside = emit.add("LogicalAnd", [above, below], {}, part="inside")[0]
    none = scalar(emit, -1, dtype, "none")
    local = emit.add("SelectV2", [inside, at, none], {"T": dtype}, part="local")[0]
    return local, inside


def kept_rows(emit: Emitter, mask: str, tensors: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """Of every tensor (name -> (tensor, dtype)) the rows where the vector `mask` holds."""
    where = emit.add("Where", [mask], {"T": "bool"}, part="where")[0]
    rows = emit.add(
        "Reshape",
        [where, ints(emit, [-1], "rows_shape")],
        {"T": "int64", "Tshape": "int32"},
        part="rows",
    )[0]
    axis = emit.const(np.asarray(0, np.int32), "rows_axis")
    return {
        name: emit.add(
            "GatherV2",
            [tensor, rows, axis],
            {"Tparams": dtype, "Tindices": "int64", "Taxis": "int32", "batch_dims": 0},
            part=f"kept_{name}",
        )[0]
        for name, (tensor, dtype) in tensors.items()
    }
