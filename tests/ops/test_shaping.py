"""Groups of dimensions that a reshape keeps together."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tofu_tf.ops.shaping import aligned_groups, squeezed_dims


@pytest.mark.parametrize(
    "before, after, groups",
    [
        ((4, 6), (24,), [([0, 1], [0])]),
        ((4, 6), (4, 6), [([0], [0]), ([1], [1])]),
        ((4, 6, 5), (24, 5), [([0, 1], [0]), ([2], [1])]),
        ((2, 3, 4), (6, 1, 4), [([0, 1], [0]), ([2], [2])]),
        ((1, 8), (8, 1), [([1], [0])]),
        ((4, 9), (6, 6), [([0, 1], [0, 1])]),
        ((), (1, 1), []),
    ],
)
def test_aligned_groups(
    before: tuple[int, ...], after: tuple[int, ...], groups: list[tuple[list[int], list[int]]]
) -> None:
    assert aligned_groups(before, after) == groups


@given(st.lists(st.integers(1, 4), max_size=5), st.randoms())
def test_groups_have_equal_sizes_and_hold_every_dimension(sizes: list[int], random: object) -> None:
    after = list(sizes)
    random.shuffle(after)  # type: ignore[attr-defined]
    groups = aligned_groups(sizes, after)
    for ins, outs in groups:
        assert math.prod(sizes[d] for d in ins) == math.prod(after[d] for d in outs)
    assert [d for ins, _ in groups for d in ins] == [d for d, n in enumerate(sizes) if n > 1]
    assert [d for _, outs in groups for d in outs] == [d for d, n in enumerate(after) if n > 1]


@pytest.mark.parametrize(
    "shape, given, gone",
    [((4, 1, 3, 1), (), (1, 3)), ((4, 1, 3, 1), (-3,), (1,)), ((4, 3), (), ())],
)
def test_squeezed_dims(
    shape: tuple[int, ...], given: tuple[int, ...], gone: tuple[int, ...]
) -> None:
    assert squeezed_dims(shape, given) == gone
