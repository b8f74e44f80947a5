"""A strided slice's masks against NumPy's indexing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tofu_tf.ops.indexing import Pick, picks

SHAPE = (6, 7, 3)
EVERY = slice(None)


def masks(**bits: int) -> tuple[int, ...]:
    return tuple(bits.get(n, 0) for n in ("begin", "end", "ellipsis", "new", "shrink"))


@pytest.mark.parametrize(
    "begin, end, strides, given, index",
    [
        ((1, 2), (5, 7), (1, 2), masks(), np.s_[1:5, 2:7:2]),
        ((1, 2), (5, 7), (1, 2), masks(begin=2, end=1), np.s_[1:, :7:2]),
        ((-1,), (0,), (1,), masks(shrink=1), np.s_[-1]),
        ((5, -1), (0, -7), (-2, -1), masks(), np.s_[5:0:-2, -1:-7:-1]),
        ((0, 0), (0, 0), (-1, 1), masks(begin=3, end=3), np.s_[::-1, :]),
        ((0, 1), (0, 2), (1, 1), masks(ellipsis=1, shrink=2), np.s_[..., 1]),
        ((2, 0, 1), (3, 0, 2), (1, 1, 1), masks(ellipsis=2), np.s_[2:3, ..., 1:2]),
        ((0, 1), (0, 4), (1, 1), masks(new=1), np.s_[np.newaxis, 1:4]),
        (
            (3, 0, 0),
            (4, 0, 0),
            (1, 1, 1),
            masks(new=2, shrink=1, begin=4, end=4),
            np.s_[3, None, :],
        ),
        ((-100,), (100,), (1,), masks(), np.s_[-100:100]),
        # a new axis is stronger than a shrunk one
        ((0,), (0,), (1,), masks(new=1, shrink=1), np.s_[np.newaxis]),
    ],
)
def test_picks_take_what_numpy_takes(
    begin: tuple[int, ...], end: tuple[int, ...], strides: tuple[int, ...], given: Any, index: Any
) -> None:
    x = np.arange(np.prod(SHAPE)).reshape(SHAPE)
    expected = x[index]
    found = picks(SHAPE, begin, end, strides, given)
    rest = iter(n for n in expected.shape)
    where: list[Any] = []
    for pick in found:
        if pick.kind == "new":
            assert next(rest) == 1
        elif pick.kind == "shrink":
            where.append(np.array([pick.begin]))
        else:
            where.append(pick.begin + pick.stride * np.arange(next(rest)))
    assert list(rest) == []
    assert np.array_equal(x[np.ix_(*where)].reshape(expected.shape), expected)


def test_dimensions_beyond_the_given_ones_are_taken_whole() -> None:
    assert picks(SHAPE, (2,), (3,), (1,), masks(shrink=1)) == [
        Pick("shrink", 2),
        Pick("range"),
        Pick("range"),
    ]
