"""Ops that join tensors, take them apart, or put a border around one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tofu_tf.ops.parts import filled, ints, passed, sliced
from tofu_tf.ops.registry import Emitter, Piece, Sample, op, same_op
from tofu_tf.tdl.expressions import Named, Opaque, apply

Place = tuple[Any, ...]


def _moves(inputs: Any, outputs: Any, attributes: Any) -> int:
    return 0


def _shifted(i: Place, axis: int, offset: int) -> Place:
    return (*i[:axis], i[axis] + offset, *i[axis + 1 :])


def _joined(parts: Sequence[Any], axis: int) -> Any:
    """``parts[n][i - offset n]``: what lies outside a part is not read of it."""
    ends = np.cumsum([x.shape[axis] for x in parts]).tolist()
    starts = [0, *ends[:-1]]
    return lambda *i: apply(
        *(x[_shifted(i, axis, -start)] for x, start in zip(parts, starts, strict=True))
    )


def _concat_body(emit: Emitter, piece: Piece) -> list[str]:
    positions = [n for n in range(len(piece.specs)) if n not in piece.constants]
    at = next(iter(piece.constants))
    present = [piece.inputs[n] for n in positions if piece.reads[n] is not None]
    dtype = piece.node.outputs[0].dtype
    if len(present) == 1:
        return passed(emit, present[0], dtype)
    axis = emit.const(piece.constants[at].astype(np.int32), "axis")
    attrs = {"N": len(present), "T": dtype, "Tidx": "int32"}
    return emit.add("ConcatV2", [*present, axis], attrs)


_TRIPLE = (((4, 3), "float64"), ((4, 1), "float64"), ((4, 5), "float64"))
_BOTH = {"": ("i0", "i1")}
_ROW_AXIS, _COLUMN_AXIS = np.asarray(0, np.int32), np.asarray(1, np.int32)


@op(
    "ConcatV2",
    body=_concat_body,
    constants=(-1,),
    flops=_moves,
    samples=(
        Sample((*_TRIPLE, _COLUMN_AXIS), _BOTH),
        Sample((*_TRIPLE, np.asarray(-1, np.int64)), _BOTH),
        Sample((((2, 5), "int32"), ((6, 5), "int32"), _ROW_AXIS), _BOTH),
    ),
)
def concat(*operands: Any) -> Any:
    *parts, axis = operands
    return _joined(parts, int(axis) % parts[0].rank)


@op(
    "Concat",
    body=_concat_body,
    constants=(0,),
    flops=_moves,
    samples=(Sample((_COLUMN_AXIS, *_TRIPLE), _BOTH),),
)
def concat_v1(axis: np.ndarray, *parts: Any) -> Any:
    return _joined(parts, int(axis))


def _parted(x: Any, axis: int, sizes: Sequence[int]) -> Any:
    """``x[i + offset n]`` for output n; outputs of unequal sizes have axes of their own."""
    starts = np.cumsum([0, *sizes[:-1]]).tolist()
    if len(set(sizes)) == 1:
        return tuple(lambda *i, s=s: x[_shifted(i, axis, s)] for s in starts)

    def part(n: int, start: int) -> Named:
        names = tuple(f"s{n}" if d == axis else f"i{d}" for d in range(x.rank))
        return Named(names, lambda *i: Opaque(x[_shifted(i, axis, start)])[i[axis]])

    return tuple(part(n, start) for n, start in enumerate(starts))


def _parted_body(axis_at: int) -> Any:
    """The body of a split: cut along the axis of the split, every output is a slice of its own."""

    def body(emit: Emitter, piece: Piece) -> list[str]:
        x = next(n for n in range(len(piece.specs)) if n not in piece.constants)
        axis = int(np.reshape(piece.constants[axis_at], -1)[0]) % len(piece.specs[x].shape)
        read = piece.reads[x]
        assert read is not None
        sizes = [o.shape[axis] for o in piece.node.outputs]
        if all(w.shape[axis] == n for w, n in zip(piece.writes, sizes, strict=True)):
            return same_op(emit, piece)
        starts = np.cumsum([0, *sizes[:-1]]).tolist()
        origin = read.origin[axis]
        found: list[str] = []
        for n, (write, start) in enumerate(zip(piece.writes, starts, strict=True)):
            bounds = [(0, hi - lo) for lo, hi in read.bounds]
            lo, hi = write.bounds[axis]
            bounds[axis] = (start + lo - origin, start + hi - origin)
            dtype = piece.node.outputs[0].dtype
            found += sliced(emit, piece.inputs[x], bounds, dtype, f"part{n}")
        return found

    return body


@op(
    "Split",
    body=_parted_body(0),
    constants=(0,),
    flops=_moves,
    samples=(
        Sample((_COLUMN_AXIS, ((4, 6), "float64")), _BOTH, {"num_split": 2}),
        Sample((_COLUMN_AXIS, ((4, 3), "float64")), {"": ("i0",)}, {"num_split": 3}),
        Sample((_ROW_AXIS, ((6, 5), "float64")), _BOTH, {"num_split": 2}),
    ),
)
def split(axis: np.ndarray, x: Any, *, num_split: int) -> Any:
    at = int(np.reshape(axis, -1)[0]) % x.rank
    return _parted(x, at, [x.shape[at] // num_split] * num_split)


@op(
    "SplitV",
    body=_parted_body(2),
    constants=(1, 2),
    flops=_moves,
    samples=(
        Sample(
            (((4, 6), "float64"), np.asarray([3, 3], np.int32), _COLUMN_AXIS),
            _BOTH,
            {"num_split": 2},
        ),
        Sample(
            (((4, 6), "float64"), np.asarray([1, -1, 2], np.int64), _COLUMN_AXIS),
            {"": ("i0",)},
            {"num_split": 3},
        ),
        # a part without elements
        Sample(
            (((4, 6), "float64"), np.asarray([3, 3, -1], np.int32), _COLUMN_AXIS),
            {"": ("i0",)},
            {"num_split": 3},
        ),
    ),
)
def split_v(
    x: Any, sizes: np.ndarray, axis: np.ndarray, *, out: tuple[tuple[int, ...], ...]
) -> Any:
    at = int(axis) % x.rank
    return _parted(x, at, [shape[at] for shape in out])


@op(
    "Pack",
    flops=_moves,
    samples=(
        Sample((((4, 5), "float64"),) * 3, {"": ("i1", "i2")}),
        Sample((((4, 5), "float64"),) * 3, {"": ("i0", "i1")}, {"axis": -1}),
        Sample((((), "int32"),) * 3, {"": ()}),
    ),
)
def pack(*parts: Any, axis: int) -> Any:
    """Part n at place n of the new dimension, which stays whole."""
    at = axis % (parts[0].rank + 1)
    return lambda *i: Opaque(*(x[(*i[:at], *i[at + 1 :])] for x in parts))[i[at]]


@op(
    "Unpack",
    flops=_moves,
    samples=(
        Sample((((3, 4, 5), "float64"),), _BOTH, {"num": 3}),
        Sample((((4, 5, 2), "float64"),), _BOTH, {"num": 2, "axis": -1}),
        Sample((((3,), "float64"),), {"": ()}, {"num": 3}),
    ),
)
def unpack(x: Any, *, axis: int, num: int) -> Any:
    """``x[.., n, ..]`` for output n."""
    at = axis % x.rank
    return tuple(lambda *i, n=n: x[(*i[:at], n, *i[at:])] for n in range(num))


def _padded(x: Any, paddings: np.ndarray) -> Any:
    """``x[i - before]``: outside there is nothing to read."""
    return lambda *i: x[tuple(c - int(before) for c, (before, _) in zip(i, paddings, strict=True))]


def _pad_body(emit: Emitter, piece: Piece) -> list[str]:
    dtype = piece.node.outputs[0].dtype
    write, read = piece.writes[0], piece.reads[0]
    if read is None:
        if len(piece.inputs) < 3:
            return filled(emit, write.shape, 0, dtype)
        dims = ints(emit, write.shape, "dims")
        return emit.add("Fill", [dims, piece.inputs[2]], {"T": dtype, "index_type": "int32"})
    local = []
    for (lo, hi), (a, b), (before, _) in zip(
        write.bounds, read.bounds, piece.constants[1].tolist(), strict=True
    ):
        local.append((a + before - lo, hi - b - before))
    paddings = emit.const(np.asarray(local, np.int32).reshape(-1, 2), "paddings")
    attrs = {"T": dtype, "Tpaddings": "int32"}
    return emit.add(piece.node.op, [piece.inputs[0], paddings, *piece.inputs[2:]], attrs)


_BORDER = np.asarray([[2, 1], [0, 3]], np.int32)


@op(
    "Pad",
    body=_pad_body,
    constants=(1,),
    flops=_moves,
    samples=(
        Sample((((4, 5), "float64"), _BORDER), _BOTH),
        Sample((((2, 5), "float32"), np.asarray([[9, 0], [0, 0]], np.int64)), _BOTH),
    ),
)
def pad(x: Any, paddings: np.ndarray) -> Any:
    return _padded(x, paddings)


@op(
    "PadV2",
    body=_pad_body,
    constants=(1,),
    flops=_moves,
    samples=(Sample((((4, 5), "float64"), _BORDER, ((), "float64")), _BOTH),),
)
def pad_v2(x: Any, paddings: np.ndarray, value: Any) -> Any:
    element = _padded(x, paddings)
    return lambda *i: apply(element(*i), value[()])


@op(
    "MirrorPad",
    "MirrorPadGrad",
    constants=(1,),
    flops=_moves,
    samples={
        "MirrorPad": (
            Sample(
                (((4, 5), "float64"), np.asarray([[0, 0], [1, 2]], np.int32)),
                {"": ("i0",)},
                {"mode": "REFLECT"},
            ),
        ),
        "MirrorPadGrad": (
            Sample(
                (((4, 5), "float64"), np.asarray([[0, 0], [1, 1]], np.int32)),
                {"": ("i0",)},
                {"mode": "SYMMETRIC"},
            ),
        ),
    },
)
def mirror_pad(x: Any, paddings: np.ndarray) -> Any:
    """All along the dimensions that have a border."""
    bordered = [d for d, (a, b) in enumerate(paddings.tolist()) if a or b]

    def element(*i: Any) -> Any:
        where = tuple(slice(None) if d in bordered else c for d, c in enumerate(i))
        return Opaque(x[where])[tuple(i[d] for d in bordered)]

    return element
