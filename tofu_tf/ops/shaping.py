"""Ops that only name elements anew: reshape, transpose, broadcast, space and batch moves."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tofu_tf.ops.parts import ints, reshaped, sliced
from tofu_tf.ops.registry import Emitter, Piece, Sample, op
from tofu_tf.tdl.expressions import Opaque, apply

_NOTHING = lambda inputs, outputs, attributes: 0  # noqa: E731  moves are no arithmetic
_X = ((4, 6), "float64")


def aligned_groups(
    before: Sequence[int], after: Sequence[int]
) -> list[tuple[list[int], list[int]]]:
    """The smallest runs of dimensions of equal size, ``(dimensions before, dimensions after)``.

    Dimensions of extent 1 are in none.
    """
    groups: list[tuple[list[int], list[int]]] = []
    left = [d for d, n in enumerate(before) if n != 1]
    right = [d for d, n in enumerate(after) if n != 1]
    while left or right:
        a, b = [left.pop(0)], [right.pop(0)]
        m, n = before[a[0]], after[b[0]]
        while m != n:
            if m < n:
                a.append(left.pop(0))
                m *= before[a[-1]]
            else:
                b.append(right.pop(0))
                n *= after[b[-1]]
        groups.append((a, b))
    return groups


def _strides(sizes: Sequence[int]) -> list[int]:
    return [int(np.prod(sizes[d + 1 :], dtype=np.int64)) for d in range(len(sizes))]


def _divide_in_turn(first: Sequence[int], second: Sequence[int]) -> bool:
    """Whether the strides of both lists of sizes divide each other in a chain (whole factors)."""
    chain = sorted({*_strides(first), *_strides(second)})
    return all(b % a == 0 for a, b in itertools.pairwise(chain))


def _reshaped_read(x: Any, after: Sequence[int]) -> Any:
    """``x`` at the same linear index.

    Where the factors of a group are not whole, its outermost dimension alone can be cut: a range of
    it is a range of elements, which lie in a range of x's outermost rows and need not fill them.
    """
    if 0 in x.shape or 0 in after:
        return lambda *i: Opaque(x[tuple(slice(None) for _ in x.shape)])[i]

    groups = aligned_groups(x.shape, after)

    def element(*i: Any) -> Any:
        first: list[Any] = [0] * x.rank
        last: list[Any] = [0] * x.rank
        whole: list[Any] = []
        for ins, outs in groups:
            sizes, targets = [x.shape[d] for d in ins], [after[d] for d in outs]
            if not _divide_in_turn(sizes, targets):
                row, step = _strides(sizes)[0], _strides(targets)[0]
                first[ins[0]] = (i[outs[0]] * step - row + 1) / row
                last[ins[0]] = (i[outs[0]] * step + step - 1) / row
                for d in ins[1:]:
                    first[d] = last[d] = slice(None)
                whole += [i[d] for d in outs[1:]]
                continue
            linear = sum(
                (i[d] * stride for d, stride in zip(outs, _strides(targets), strict=True)), start=0
            )
            for n, (d, stride) in enumerate(zip(ins, _strides(sizes), strict=True)):
                first[d] = last[d] = linear // stride if n == 0 else linear // stride % sizes[n]
        value = apply(x[tuple(first)], x[tuple(last)])
        return Opaque(value)[tuple(whole)] if whole else value

    return element


def _reshape_body(emit: Emitter, piece: Piece) -> list[str]:
    dtype, read, write = piece.specs[0].dtype, piece.reads[0], piece.writes[0]
    if read is None or read.size == write.size:
        return reshaped(emit, piece.inputs[0], write.shape, dtype)
    # Of the rows that were read only some elements are wanted, one range for each group.
    before, after = piece.specs[0].shape, piece.node.outputs[0].shape
    sizes, bounds = [], []
    for ins, outs in aligned_groups(before, after):
        sizes.append(math.prod(read.shape[d] for d in ins))
        row, step = (_strides([s[d] for d in ds])[0] for s, ds in ((before, ins), (after, outs)))
        first, count = 0, math.prod(write.shape[d] for d in outs)
        if count < sizes[-1]:
            first = write.origin[outs[0]] * step - read.origin[ins[0]] * row
        bounds.append((first, first + count))
    rows = reshaped(emit, piece.inputs[0], sizes, dtype, "rows")[0]
    kept = sliced(emit, rows, bounds, dtype, "kept")[0]
    return reshaped(emit, kept, write.shape, dtype)


def _reshape_sample(shape: tuple[int, ...], to: tuple[int, ...], *axes: str) -> Sample:
    return Sample(((shape, "float64"), np.asarray(to, np.int32)), {"": axes})


@op(
    "Reshape",
    body=_reshape_body,
    constants=(1,),
    exact=True,
    flops=_NOTHING,
    samples=(
        _reshape_sample((4, 6), (24,), "i0.0", "i0.1"),
        _reshape_sample((24,), (4, 6), "i0", "i1"),
        _reshape_sample((4, 5, 6), (4, 30), "i0", "i1.0", "i1.1"),
        _reshape_sample((4, 30), (4, 5, 6), "i0", "i1", "i2"),
        _reshape_sample((6, 4), (3, 8), "i0", "i1.0", "i1.1"),
        _reshape_sample((5, 3), (3, 5), "i0"),
        _reshape_sample((4, 5, 3), (4, 3, 5), "i0", "i1"),
        _reshape_sample((7, 6, 15), (10, 63), "i0"),
        _reshape_sample((10, 63), (7, 90), "i0"),
        _reshape_sample((5, 1, 3, 4, 9), (3, 5, 6, 6), "i0", "i2"),
        _reshape_sample((4, 1, 3), (1, 4, 3, 1), "i1", "i2"),
        _reshape_sample((1, 1), ()),
        _reshape_sample((), (1, 1)),
        _reshape_sample((2, 12, 5), (-1, 5), "i0.0", "i0.1", "i1"),
    ),
)
def reshape(x: Any, shape: np.ndarray, *, out: tuple[tuple[int, ...], ...]) -> Any:
    """The same linear index, as quotients and remainders by the strides."""
    return _reshaped_read(x, out[0])


def _expanded(rank: int, axis: np.ndarray) -> int:
    return int(np.reshape(axis, -1)[0]) % (rank + 1)


@op(
    "ExpandDims",
    constants=(1,),
    flops=_NOTHING,
    samples=(
        Sample((_X, np.asarray(1, np.int32)), {"": ("i0", "i2")}),
        Sample((_X, np.asarray([-1], np.int64)), {"": ("i0", "i1")}),
        Sample((((), "float32"), np.asarray(0, np.int32)), {"": ()}),
    ),
)
def expand_dims(x: Any, axis: np.ndarray) -> Any:
    """``x`` without the coordinate of the new dimension."""
    at = _expanded(x.rank, axis)
    return lambda *i: x[(*i[:at], *i[at + 1 :])]


def squeezed_dims(shape: Sequence[int], given: Sequence[int]) -> tuple[int, ...]:
    """The dimensions that Squeeze takes out: those given, or all of extent 1."""
    if given:
        return tuple(sorted(d % len(shape) for d in given))
    return tuple(d for d, n in enumerate(shape) if n == 1)


def _squeeze_body(emit: Emitter, piece: Piece) -> list[str]:
    # named one by one: a dimension that is cut down to one row must stay
    gone = squeezed_dims(piece.specs[0].shape, piece.attributes["squeeze_dims"])
    if not gone:
        return emit.add("Identity", piece.inputs, {"T": piece.node.attrs["T"]})
    return emit.add(
        "Squeeze", piece.inputs, {"T": piece.node.attrs["T"], "squeeze_dims": list(gone)}
    )


@op(
    "Squeeze",
    body=_squeeze_body,
    flops=_NOTHING,
    samples=(
        Sample((((4, 1, 3, 1), "float64"),), {"": ("i0", "i1")}),
        Sample((((4, 1, 3, 1), "float64"),), {"": ("i0", "i1")}, {"squeeze_dims": (-3,)}),
        Sample((((4, 3), "float64"),), {"": ("i0", "i1")}),
        Sample((((1,), "float64"),), {"": ()}),
    ),
)
def squeeze(x: Any, *, squeeze_dims: tuple[int, ...]) -> Any:
    """``x`` at 0 in the dimensions that go."""
    gone = squeezed_dims(x.shape, squeeze_dims)

    def element(*i: Any) -> Any:
        rest = iter(i)
        return x[tuple(0 if d in gone else next(rest) for d in range(x.rank))]

    return element


@op(
    "Transpose",
    "ConjugateTranspose",
    constants=(1,),
    flops=_NOTHING,
    samples=(
        Sample((_X, np.asarray([1, 0], np.int32)), {"": ("i0", "i1")}),
        Sample(
            (((2, 3, 4, 5), "float64"), np.asarray([0, 3, 1, 2], np.int64)),
            {"": ("i0", "i1", "i2", "i3")},
        ),
    ),
)
def transpose(x: Any, perm: np.ndarray) -> Any:
    """``out[i]`` with ``i[d]`` the coordinate of dimension ``perm[d]`` of `x`."""
    at = [0] * x.rank
    for d, source in enumerate(perm):
        at[int(source)] = d
    return lambda *i: x[tuple(i[d] for d in at)]


def _broadcast_body(emit: Emitter, piece: Piece) -> list[str]:
    shape = ints(emit, piece.writes[0].shape, "shape")
    attrs = {"T": piece.node.attrs["T"], "Tidx": "int32"}
    return emit.add("BroadcastTo", [piece.inputs[0], shape], attrs)


@op(
    "BroadcastTo",
    body=_broadcast_body,
    constants=(1,),
    flops=_NOTHING,
    samples=(
        Sample((((4, 1), "float64"), np.asarray([4, 6], np.int32)), {"": ("i0", "i1")}),
        Sample((((6,), "float64"), np.asarray([3, 4, 6], np.int64)), {"": ("i0", "i1", "i2")}),
        Sample((((), "int32"), np.asarray([4, 6], np.int32)), {"": ("i0", "i1")}),
    ),
)
def broadcast_to(x: Any, shape: np.ndarray) -> Any:
    return lambda *i: x.broadcast(*i)


def _fill_body(emit: Emitter, piece: Piece) -> list[str]:
    shape = ints(emit, piece.writes[0].shape, "shape")
    attrs = {"T": piece.node.attrs["T"], "index_type": "int32"}
    return emit.add("Fill", [shape, piece.inputs[1]], attrs)


@op(
    "Fill",
    body=_fill_body,
    constants=(0,),
    flops=_NOTHING,
    samples=(
        Sample((np.asarray([4, 6], np.int32), ((), "float64")), {"": ("i0", "i1")}),
        Sample((np.asarray([], np.int32), ((), "float64")), {"": ()}),
    ),
)
def fill(dims: np.ndarray, value: Any) -> Any:
    return lambda *i: apply(value[()])


def _tile_body(emit: Emitter, piece: Piece) -> list[str]:
    read = piece.reads[0]
    assert read is not None
    times = [n // max(m, 1) for n, m in zip(piece.writes[0].shape, read.shape, strict=True)]
    attrs = {"T": piece.node.attrs["T"], "Tmultiples": "int32"}
    return emit.add("Tile", [piece.inputs[0], ints(emit, times, "multiples")], attrs)


@op(
    "Tile",
    body=_tile_body,
    constants=(1,),
    flops=_NOTHING,
    samples=(
        Sample((_X, np.asarray([1, 1], np.int32)), {"": ("i0", "i1")}),
        Sample((_X, np.asarray([3, 1], np.int32)), {"": ("i0.0", "i0.1", "i1")}),
        Sample((((4, 1), "float64"), np.asarray([1, 5], np.int64)), {"": ("i0", "i1")}),
        Sample((((1,), "float64"), np.asarray([1], np.int32)), {"": ()}),
    ),
)
def tile(x: Any, multiples: np.ndarray) -> Any:
    """``x[i % n]``."""
    return lambda *i: x[
        tuple(
            0 if n == 1 else c if m == 1 else c % n
            for c, n, m in zip(i, x.shape, multiples.tolist(), strict=True)
        )
    ]


@op(
    "ReverseV2",
    constants=(1,),
    flops=_NOTHING,
    samples=(
        Sample((_X, np.asarray([0], np.int32)), {"": ("i0", "i1")}),
        Sample((((5, 3, 4), "float64"), np.asarray([-1, 0], np.int64)), {"": ("i0", "i1", "i2")}),
    ),
)
def reverse(x: Any, axes: np.ndarray) -> Any:
    """``x[n - 1 - i]`` along the given dimensions."""
    turned = {int(a) % x.rank for a in axes}
    return lambda *i: x[
        tuple(
            n - 1 - c if d in turned else c for d, (c, n) in enumerate(zip(i, x.shape, strict=True))
        )
    ]


@op(
    "Roll",
    constants=(2,),
    flops=_NOTHING,
    samples=(
        Sample((_X, np.asarray(1, np.int32), np.asarray(0, np.int32)), {"": ("i1",)}),
        Sample((_X, np.asarray([1, -2], np.int32), np.asarray([0, 1], np.int32)), {"": ()}),
    ),
)
def roll(x: Any, shift: Any, axis: np.ndarray) -> Any:
    """All along the dimensions that are rolled."""
    turned = {int(a) % x.rank for a in np.reshape(axis, -1)}

    def element(*i: Any) -> Any:
        where = tuple(slice(None) if d in turned else c for d, c in enumerate(i))
        every = tuple(slice(None) for _ in shift.shape)
        return Opaque(x[where], shift[every])[tuple(i[d] for d in sorted(turned))]

    return element
