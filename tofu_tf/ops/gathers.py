"""Ops that read or write rows by index: gathers, one-hot, scatters, sums by segment.

The rows that indices choose among are an axis too: a part of a table gives the rows that it has and
zeros for the rest, and the parts add up.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tofu_tf.ops.parts import chosen, localised, reshaped, scalar
from tofu_tf.ops.registry import Emitter, Piece, Sample, op
from tofu_tf.tdl.expressions import Max, Min, Opaque, Prod, Sum, apply

_ADDABLE = ("float", "bfloat", "int", "uint", "complex")


def _gathered(table: Any, ids: Any, axis: int, batch: int) -> Any:
    extra = ids.rank - batch  # dimensions that the indices put in the place of `axis`

    def element(*i: Any) -> Any:
        before, place, after = i[:axis], i[axis : axis + extra], i[axis + extra :]
        at = ids[(*i[:batch], *place)]
        if not table.dtype.startswith(_ADDABLE):
            return apply(table[(*before, slice(None), *after)], at)
        return Sum(lambda v: apply(table[(*before, v, *after)], at), v=table.shape[axis])

    return element


def _gather_body(emit: Emitter, piece: Piece) -> list[str]:
    axis, batch = _gather_place(piece)
    table, ids = piece.specs[0], piece.specs[1]
    place = emit.const(np.asarray(axis, np.int32), "axis")
    attrs = {
        "Tparams": table.dtype,
        "Tindices": ids.dtype,
        "Taxis": "int32",
        "batch_dims": batch,
    }
    if "v" not in piece.box or piece.whole("v"):
        return emit.add("GatherV2", [piece.inputs[0], piece.inputs[1], place], attrs)
    local, inside = localised(emit, piece.inputs[1], piece.box["v"], ids.dtype)
    zero = scalar(emit, 0, ids.dtype, "least")
    some = emit.add("Maximum", [local, zero], {"T": ids.dtype}, part="some")[0]
    rows = emit.add("GatherV2", [piece.inputs[0], some, place], attrs, part="rows")[0]
    read = piece.reads[1]
    assert read is not None
    rank = len(piece.node.outputs[0].shape)
    shape = [*read.shape[:batch], *[1] * (axis - batch), *read.shape[batch:]]
    shape += [1] * (rank - len(shape))
    mask = reshaped(emit, inside, shape, "bool", "mask")[0]
    nothing = scalar(emit, 0, table.dtype, "nothing")
    return emit.add("SelectV2", [mask, rows, nothing], {"T": table.dtype})


def _gather_place(piece: Piece) -> tuple[int, int]:
    batch = int(piece.attributes.get("batch_dims", 0)) % (len(piece.specs[1].shape) + 1)
    if piece.node.op == "GatherV2":
        return int(piece.constants[2]) % len(piece.specs[0].shape), batch
    return (batch if piece.node.op == "ResourceGather" else 0), batch


_TABLE = ((5, 4), "float64")
_IDS = np.asarray([[3, 0, 3], [4, 1, 0]], np.int32)


@op(
    "GatherV2",
    body=_gather_body,
    constants=(2,),
    samples=(
        Sample((_TABLE, _IDS, np.asarray(0, np.int32)), {"": ("i0", "i1", "i2", "v")}),
        Sample((_TABLE, _IDS[0], np.asarray(-1, np.int64)), {"": ("i0", "i1", "v")}),
        Sample((_TABLE, np.asarray(2, np.int64), np.asarray(0, np.int32)), {"": ("i0", "v")}),
        Sample(
            (((2, 5, 4), "float32"), _IDS, np.asarray(1, np.int32)),
            {"": ("i0", "i1", "i2", "v")},
            {"batch_dims": 1},
        ),
        Sample(
            (((2, 4, 5), "float32"), _IDS, np.asarray(2, np.int32)),
            {"": ("i0", "i1", "i2", "v")},
            {"batch_dims": 1},
        ),
        Sample((((5, 4), "bool"), _IDS, np.asarray(0, np.int32)), {"": ("i0", "i1", "i2")}),
    ),
)
def gather(table: Any, ids: Any, axis: np.ndarray, *, batch_dims: int) -> Any:
    batch = batch_dims % (ids.rank + 1)
    return _gathered(table, ids, int(axis) % table.rank, batch)


@op(
    "Gather",
    body=_gather_body,
    samples=(Sample((_TABLE, _IDS), {"": ("i0", "i1", "i2", "v")}),),
)
def gather_v1(table: Any, ids: Any) -> Any:
    return _gathered(table, ids, 0, 0)


@op(
    "ResourceGather",
    body=_gather_body,
    samples=(
        Sample((_TABLE, _IDS), {"": ("i0", "i1", "i2", "v")}, {"dtype": "float64"}),
        Sample(
            (_TABLE, _IDS.astype(np.int64)), {"": ("i0", "i1", "i2", "v")}, {"dtype": "float64"}
        ),
    ),
)
def resource_gather(table: Any, ids: Any, *, batch_dims: int) -> Any:
    """Rows of a variable's version, which stands at input 0."""
    return _gathered(table, ids, batch_dims, batch_dims)


_PLACES = np.asarray([[3, 0], [4, 1], [0, 3], [1, 1]], np.int32)


def _gather_nd_body(emit: Emitter, piece: Piece) -> list[str]:
    # a variable's version is an ordinary tensor here
    attrs = {"Tparams": piece.specs[0].dtype, "Tindices": piece.specs[1].dtype}
    return emit.add("GatherNd", piece.inputs, attrs)


@op(
    "GatherNd",
    "ResourceGatherNd",
    body=_gather_nd_body,
    samples=(
        Sample((((5, 4, 3), "float64"), _PLACES), {"": ("i0", "i1")}),
        Sample((_TABLE, _PLACES), {"": ("i0",)}),
    ),
)
def gather_nd(table: Any, places: Any) -> Any:
    """The part of `table` at the place that a row of `places` holds."""
    depth, lead = places.shape[-1], places.rank - 1
    return lambda *i: apply(
        table[(*[slice(None)] * depth, *i[lead:])], places[(*i[:lead], slice(None))]
    )


def _one_hot_body(emit: Emitter, piece: Piece) -> list[str]:
    depth_axis = _one_hot_axis(len(piece.specs[0].shape), piece.attributes["axis"])
    lo, hi = piece.writes[0].bounds[depth_axis]
    dtype = piece.specs[0].dtype
    ids = piece.inputs[0]
    if lo:
        ids = emit.add("Sub", [ids, scalar(emit, lo, dtype, "first")], {"T": dtype}, part="offset")[
            0
        ]
    depth = emit.const(np.asarray(hi - lo, np.int32), "depth")
    attrs = chosen(piece, "T", "TI", "axis")
    return emit.add("OneHot", [ids, depth, *piece.inputs[2:]], attrs)


def _one_hot_axis(rank: int, axis: int) -> int:
    return rank if axis == -1 else axis


@op(
    "OneHot",
    body=_one_hot_body,
    constants=(1,),
    samples=(
        Sample(
            (_IDS, np.asarray(5, np.int32), ((), "float64"), ((), "float64")),
            {"": ("i0", "i1", "i2")},
        ),
        Sample(
            (_IDS.astype(np.int64), np.asarray(5, np.int32), ((), "float32"), ((), "float32")),
            {"": ("i0", "i1", "i2")},
            {"axis": 1},
        ),
    ),
)
def one_hot(ids: Any, depth: np.ndarray, on: Any, off: Any, *, axis: int) -> Any:
    at = _one_hot_axis(ids.rank, axis)
    return lambda *i: apply(ids[(*i[:at], *i[at + 1 :])], on[()], off[()])


def _segment_body(emit: Emitter, piece: Piece) -> list[str]:
    """Rows of other segments get index -1, which the kernel leaves out."""
    ids = piece.inputs[1]
    dtype = piece.specs[1].dtype
    lo, hi = piece.writes[0].bounds[0]
    if not piece.whole("i0"):
        ids, _ = localised(emit, ids, (lo, hi), dtype)
    count = emit.const(np.asarray(hi - lo, np.int32), "count")
    attrs = {**chosen(piece, "T", "Tindices"), "Tnumsegments": "int32"}
    return emit.add(piece.node.op, [piece.inputs[0], ids, count], attrs)


_ROWS = np.asarray([2, 0, 2, 3, -1, 0], np.int32)
_SEGMENTS = np.asarray(4, np.int32)

for _name, _reducer in (("Sum", Sum), ("Prod", Prod), ("Max", Max), ("Min", Min)):

    def _unsorted(data: Any, ids: Any, count: np.ndarray, *, _reducer: Any = _reducer) -> Any:
        """The reduction of the rows whose segment is r."""
        return lambda *i: _reducer(lambda *n: apply(data[(*n, *i[1:])], ids[n]), n=ids.shape)

    op(
        f"UnsortedSegment{_name}",
        body=_segment_body,
        constants=(2,),
        flops=lambda inputs, outputs, attributes: inputs[0].size,
        samples=(
            Sample((((6, 3), "float64"), _ROWS, _SEGMENTS), {"": ("i0", "i1", "n0")}),
            Sample(
                (((2, 3, 4), "float64"), _IDS, np.asarray(5, np.int32)),
                {"": ("i0", "i1", "n0", "n1")},
            ),
            Sample(
                (((6,), "int32"), _ROWS.astype(np.int64), _SEGMENTS),
                {"": ("i0", "n0")},
                low=-3,
                high=3,
            ),
        ),
    )(_unsorted)


@op(
    "SegmentSum",
    "SegmentMean",
    "SegmentMax",
    "SegmentMin",
    "SegmentProd",
    flops=lambda inputs, outputs, attributes: inputs[0].size,
    samples=(
        Sample((((6, 3), "float64"), np.asarray([0, 0, 1, 1, 1, 3], np.int32)), {"": ("i1",)}),
    ),
)
def segment(data: Any, ids: Any) -> Any:
    """Sorted segments: all rows together."""
    return lambda *i: Opaque(data[(slice(None), *i[1:])], ids[:])[i[0]]


def _scatter_nd_body(emit: Emitter, piece: Piece) -> list[str]:
    shape = emit.const(np.asarray(piece.writes[0].shape, piece.constants[2].dtype), "shape")
    return emit.add("ScatterNd", [*piece.inputs[:2], shape], piece.node.attrs)


@op(
    "ScatterNd",
    body=_scatter_nd_body,
    constants=(2,),
    flops=lambda inputs, outputs, attributes: inputs[1].size,
    samples=(
        Sample(
            (_PLACES, ((4, 3), "float64"), np.asarray([5, 4, 3], np.int32)),
            {"": ("i2", "n0")},
        ),
        Sample(
            (_PLACES[:, :1], ((4, 3), "float64"), np.asarray([5, 3], np.int32)),
            {"": ("i1", "n0")},
        ),
    ),
)
def scatter_nd(places: Any, updates: Any, shape: np.ndarray) -> Any:
    """Zeros, and at each place the sum of its updates; the indexed dimensions stay whole."""
    depth = places.shape[-1]

    def element(*i: Any) -> Any:
        Opaque()[i[:depth]]
        return Sum(
            lambda *n: apply(updates[(*n, *i[depth:])], places[(*n, slice(None))]),
            n=places.shape[:-1],
        )

    return element


@op(
    "TensorScatterAdd",
    "TensorScatterSub",
    "TensorScatterUpdate",
    "TensorScatterMax",
    "TensorScatterMin",
    flops=lambda inputs, outputs, attributes: inputs[2].size,
    samples=(
        Sample((((5, 4, 3), "float64"), _PLACES, ((4, 3), "float64")), {"": ("i2",)}),
        Sample((((5, 3), "float64"), _PLACES[:, :1], ((4, 3), "float64")), {"": ("i1",)}),
    ),
)
def tensor_scatter(tensor: Any, places: Any, updates: Any) -> Any:
    """`tensor` changed at some places; the indexed dimensions stay whole."""
    depth, lead = places.shape[-1], places.rank - 1

    def element(*i: Any) -> Any:
        where = (*[slice(None)] * depth, *i[depth:])
        rows = updates[(*[slice(None)] * lead, *i[depth:])]
        every = places[tuple(slice(None) for _ in places.shape)]
        return Opaque(tensor[where], rows, every)[i[:depth]]

    return element
