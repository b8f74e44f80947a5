"""Slices by constant bounds, and the gradient of a strided one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from tofu_tf.ops.parts import filled, ints, passed
from tofu_tf.ops.registry import Emitter, Piece, Sample, op


def _moves(inputs: Any, outputs: Any, attributes: Any) -> int:
    return 0


def _vector(*values: int) -> np.ndarray:
    return np.asarray(values, np.int32)


_X = ((6, 7), "float64")
_BOTH = {"": ("i0", "i1")}


def _same(emit: Emitter, piece: Piece) -> list[str]:
    # just the elements of the slice are read: nothing is left to cut away
    return passed(emit, piece.inputs[0], piece.node.outputs[0].dtype)


@op(
    "Slice",
    body=_same,
    constants=(1, 2),
    flops=_moves,
    samples=(
        Sample((_X, _vector(1, 2), _vector(4, 3)), _BOTH),
        Sample((_X, np.asarray([2, 0]), np.asarray([-1, 5])), _BOTH),
    ),
)
def slice_(x: Any, begin: np.ndarray, size: np.ndarray) -> Any:
    """``x[i + begin]``."""
    return lambda *i: x[tuple(c + int(b) for c, b in zip(i, begin, strict=True))]


@dataclasses.dataclass(frozen=True)
class Pick:
    """What a strided slice does with one dimension.

    `kind`: ``range`` (indices ``begin + stride * n``), ``shrink`` (the index `begin`, no dimension
    left) or ``new`` (a dimension of extent 1 that the input has not).
    """

    kind: str
    begin: int = 0
    stride: int = 1


def picks(
    shape: Sequence[int],
    begin: Sequence[int],
    end: Sequence[int],
    strides: Sequence[int],
    masks: Sequence[int],
) -> list[Pick]:
    """The Picks of a strided slice of `shape`.

    `masks`: begin, end, ellipsis, new axis, shrink axis, as in the op's attributes.
    """
    begin_mask, end_mask, ellipsis_mask, new_mask, shrink_mask = masks
    given = len(begin)
    dots = next((n for n in range(given) if ellipsis_mask >> n & 1), given)
    # a bit counts only where no stronger mask has it: ellipsis, then new axis, then shrink
    used = sum(1 for n in range(given) if n != dots and not new_mask >> n & 1)
    found: list[Pick] = []
    d = 0
    for n in range(max(given, dots + 1)):
        if n == dots:
            for _ in range(len(shape) - used):
                found.append(Pick("range"))
                d += 1
        elif new_mask >> n & 1:
            found.append(Pick("new"))
        else:
            size = shape[d]
            if shrink_mask >> n & 1:
                at = int(begin[n])
                found.append(Pick("shrink", at + size if at < 0 else at))
            else:
                bounds = slice(
                    None if begin_mask >> n & 1 else int(begin[n]),
                    None if end_mask >> n & 1 else int(end[n]),
                    int(strides[n]),
                )
                first, _, stride = bounds.indices(size)
                found.append(Pick("range", first, stride))
            d += 1
    return found


def _masks(attributes: Any) -> tuple[int, ...]:
    names = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
    return tuple(int(attributes[name]) for name in names)


def _strided_body(emit: Emitter, piece: Piece) -> list[str]:
    """One strided slice of the hull that was read, from its first (or last) element."""
    shape = piece.specs[0].shape
    begin, end, strides = (piece.constants[n].tolist() for n in (1, 2, 3))
    parts = picks(shape, begin, end, strides, _masks(piece.attributes))
    every = new = shrink = 0
    for n, pick in enumerate(parts):
        every |= (pick.kind == "range") << n
        new |= (pick.kind == "new") << n
        shrink |= (pick.kind == "shrink") << n
    zeros = [0] * len(parts)
    attrs = {
        "T": piece.node.attrs["T"],
        "Index": "int32",
        "begin_mask": every,
        "end_mask": every,
        "ellipsis_mask": 0,
        "new_axis_mask": new,
        "shrink_axis_mask": shrink,
    }
    inputs = [
        piece.inputs[0],
        ints(emit, zeros, "begin"),
        ints(emit, [1] * len(parts), "end"),
        ints(emit, [p.stride for p in parts], "strides"),
    ]
    return emit.add("StridedSlice", inputs, attrs)


def _strided_sample(x: Any, begin: Any, end: Any, strides: Any, *axes: str, **masks: int) -> Sample:
    return Sample((x, _vector(*begin), _vector(*end), _vector(*strides)), {"": axes}, masks)


@op(
    "StridedSlice",
    body=_strided_body,
    constants=(1, 2, 3),
    flops=_moves,
    samples=(
        _strided_sample(_X, (1, 2), (5, 7), (1, 2), "i0", "i1"),
        _strided_sample(
            _X, (0, 3), (0, 4), (1, 1), "i0", begin_mask=1, end_mask=1, shrink_axis_mask=2
        ),
        _strided_sample(_X, (-1,), (0,), (1,), "i0", shrink_axis_mask=1),
        _strided_sample(
            _X,
            (0, 0, 1),
            (0, 0, 5),
            (1, 1, 2),
            "i1",
            "i2",
            new_axis_mask=1,
            begin_mask=2,
            end_mask=2,
        ),
        _strided_sample(
            ((3, 4, 5, 2), "float64"),
            (0, 1),
            (0, 2),
            (1, 1),
            "i0",
            "i1",
            "i2",
            ellipsis_mask=1,
            shrink_axis_mask=2,
        ),
        _strided_sample(_X, (5, -1), (0, -7), (-2, -1), "i0", "i1"),
        _strided_sample(_X, (0, 0), (0, 0), (-1, 1), "i0", "i1", begin_mask=3, end_mask=3),
        _strided_sample(((4,), "int32"), (1,), (2,), (1,), shrink_axis_mask=1),
    ),
)
def strided_slice(
    x: Any,
    begin: np.ndarray,
    end: np.ndarray,
    strides: np.ndarray,
    *,
    begin_mask: int,
    end_mask: int,
    ellipsis_mask: int,
    new_axis_mask: int,
    shrink_axis_mask: int,
) -> Any:
    """``x[begin + stride * i]``."""
    masks = (begin_mask, end_mask, ellipsis_mask, new_axis_mask, shrink_axis_mask)
    parts = picks(x.shape, begin.tolist(), end.tolist(), strides.tolist(), masks)

    def element(*i: Any) -> Any:
        rest = iter(i)
        where: list[Any] = []
        for pick in parts:
            if pick.kind == "new":
                next(rest)
            elif pick.kind == "shrink":
                where.append(pick.begin)
            else:
                where.append(next(rest) * pick.stride + pick.begin)
        return x[tuple(where)]

    return element


def _strided_grad_body(emit: Emitter, piece: Piece) -> list[str]:
    """The same gradient for the part; it begins where the first gradient row falls."""
    shape = piece.constants[0].tolist()
    begin, end, strides = (piece.constants[n].tolist() for n in (1, 2, 3))
    parts = picks(shape, begin, end, strides, _masks(piece.attributes))
    write, read = piece.writes[0], piece.reads[4]
    dtype = piece.node.outputs[0].dtype
    if read is None:
        return filled(emit, write.shape, 0, dtype)
    local: list[tuple[int, int, int]] = []
    new = shrink = open_end = 0
    d = o = 0  # dimension of the result, of the gradient
    for n, pick in enumerate(parts):
        if pick.kind == "new":
            local.append((0, 1, 1))
            new |= 1 << n
            o += 1
            continue
        lo = write.bounds[d][0]
        if pick.kind == "shrink":
            first = pick.begin - lo
            local.append((first, first + 1, 1))
            shrink |= 1 << n
        else:
            a, b = read.bounds[o]
            first = pick.begin + a * pick.stride - lo
            last = pick.begin + (b - 1) * pick.stride - lo
            local.append((first, last + pick.stride, pick.stride))
            # an end of -1 would count from the back
            open_end |= (last + pick.stride < 0) << n
            o += 1
        d += 1
    attrs = {
        "T": dtype,
        "Index": "int32",
        "begin_mask": 0,
        "end_mask": open_end,
        "ellipsis_mask": 0,
        "new_axis_mask": new,
        "shrink_axis_mask": shrink,
    }
    inputs = [
        ints(emit, write.shape, "shape"),
        *(
            ints(emit, [p[n] for p in local], name)
            for n, name in enumerate(("begin", "end", "strides"))
        ),
        piece.inputs[4],
    ]
    return emit.add("StridedSliceGrad", inputs, attrs)


def _grad_sample(
    dy: tuple[int, ...], shape: Any, begin: Any, end: Any, strides: Any, *axes: str, **masks: int
) -> Sample:
    given = (_vector(*shape), _vector(*begin), _vector(*end), _vector(*strides), (dy, "float64"))
    return Sample(given, {"": axes}, masks)


@op(
    "StridedSliceGrad",
    body=_strided_grad_body,
    constants=(0, 1, 2, 3),
    flops=_moves,
    samples=(
        _grad_sample((4, 3), (6, 7), (1, 2), (5, 7), (1, 2), "i0", "i1"),
        _grad_sample(
            (6,),
            (6, 7),
            (0, 3),
            (0, 4),
            (1, 1),
            "i0",
            "i1",
            begin_mask=1,
            end_mask=1,
            shrink_axis_mask=2,
        ),
        _grad_sample(
            (1, 6, 2),
            (6, 7),
            (0, 0, 1),
            (0, 0, 5),
            (1, 1, 2),
            "i0",
            "i1",
            new_axis_mask=1,
            begin_mask=2,
            end_mask=2,
        ),
        _grad_sample(
            (3, 4, 5),
            (3, 4, 5, 2),
            (0, 1),
            (0, 2),
            (1, 1),
            "i0",
            "i1",
            "i2",
            "i3",
            ellipsis_mask=1,
            shrink_axis_mask=2,
        ),
        _grad_sample((3, 6), (6, 7), (5, -1), (0, -7), (-2, -1), "i0", "i1"),
    ),
)
def strided_slice_grad(
    shape: np.ndarray,
    begin: np.ndarray,
    end: np.ndarray,
    strides: np.ndarray,
    dy: Any,
    *,
    begin_mask: int,
    end_mask: int,
    ellipsis_mask: int,
    new_axis_mask: int,
    shrink_axis_mask: int,
) -> Any:
    """``dy[(i - begin) / stride]`` where that is whole, else 0."""
    masks = (begin_mask, end_mask, ellipsis_mask, new_axis_mask, shrink_axis_mask)
    parts = picks(shape.tolist(), begin.tolist(), end.tolist(), strides.tolist(), masks)

    def element(*i: Any) -> Any:
        rest = iter(i)
        where: list[Any] = []
        taken: list[Any] = []
        for pick in parts:
            if pick.kind == "new":
                where.append(0)
                continue
            c = next(rest)
            ahead = c - pick.begin if pick.stride > 0 else pick.begin - c
            if pick.kind == "range":
                where.append(ahead / abs(pick.stride))
            else:
                taken.append(ahead)
        return dy.only(*taken)[tuple(where)]

    return element
