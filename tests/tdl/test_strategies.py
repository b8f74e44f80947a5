"""Strategies: what each worker reads and writes, partial results, cuts that would leave holes."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tofu_tf.tdl.descriptions import Description, describe
from tofu_tf.tdl.expressions import Sum
from tofu_tf.tdl.strategies import cuttable, is_legal, work_of

F = "float32"


def matmul(a: int, b: int, c: int) -> Description:
    return describe(
        lambda x, y: lambda i, j: Sum(lambda k: x[i, k] * y[k, j]),
        [((a, b), F), ((b, c), F)],
        [(a, c)],
    )


@pytest.mark.parametrize(
    "axes, factors, reads, writes, partials",
    [
        (("i",), (2,), ["[0:2, 0:6]", "[2:4, 0:6]"], ["[0:2, 0:8]", "[2:4, 0:8]"], [0, 0]),
        (("k",), (2,), ["[0:4, 0:3]", "[0:4, 3:6]"], ["[0:4, 0:8]"] * 2, [0, 1]),
        ((None,), (2,), ["[0:4, 0:6]"] * 2, ["[0:4, 0:8]"] * 2, [0, 0]),
        (
            ("k", "i"),
            (2, 2),
            ["[0:2, 0:3]", "[2:4, 0:3]", "[0:2, 3:6]", "[2:4, 3:6]"],
            ["[0:2, 0:8]", "[2:4, 0:8]"] * 2,
            [0, 0, 1, 1],
        ),
        (("k", "k"), (2, 2), None, None, [0, 1, 2, 3]),
    ],
)
def test_matmul_cut(
    axes: tuple[str | None, ...],
    factors: tuple[int, ...],
    reads: list[str] | None,
    writes: list[str] | None,
    partials: list[int],
) -> None:
    work = work_of(matmul(4, 6, 8), axes, factors)
    if reads is not None:
        assert [str(r) for r in work.reads[0].tuple()] == reads
    if writes is not None:
        assert [str(r) for r in work.writes[0].tuple()] == writes
    assert work.partials[0].tolist() == partials
    assert work.reducers == ("Sum",)


def test_more_workers_than_rows_leaves_some_without_work() -> None:
    work = work_of(matmul(2, 6, 8), ("i",), (3,))
    assert work.boxes.present.tolist() == [False, True, True]
    assert [r is None for r in work.reads[1].tuple()] == [True, False, False]


def test_at_home_one_worker_does_everything() -> None:
    work = work_of(matmul(4, 6, 8), (None,), (3,), home=True)
    assert [r is not None for r in work.writes[0].tuple()] == [True, False, False]


MERGED = describe(lambda x: lambda m: x[m // 6, m % 6], [((4, 6), F)], [(24,)], exact=True)


@pytest.mark.parametrize(
    "axes, factors, legal",
    [
        (("m.0",), (2,), True),
        (("m.0", "m.0"), (2, 2), True),
        (("m.1",), (2,), False),  # every row's half: not one range of the merged dimension
        (("m.0", "m.1"), (4, 2), True),  # one row each, then halves of it
        (("m.0", "m.1"), (2, 2), False),
        (("m",), (2,), False),  # no axis of that name is left
    ],
)
def test_cuts_that_leave_holes_are_illegal(
    axes: tuple[str, ...], factors: tuple[int, ...], legal: bool
) -> None:
    assert is_legal(MERGED, axes, factors) is legal


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes that group the same factors in two ways."""
    factors = draw(st.lists(st.integers(2, 4), min_size=1, max_size=4))
    assume(math.prod(factors) <= 64)

    def grouped() -> tuple[int, ...]:
        ends = sorted({len(factors), *draw(st.sets(st.integers(1, len(factors))))})
        return tuple(math.prod(factors[a:b]) for a, b in itertools.pairwise([0, *ends]))

    return grouped(), grouped()


@given(reshapes(), st.data())
def test_quotients_and_remainders_follow_a_reshape(
    shapes: tuple[tuple[int, ...], tuple[int, ...]], data: st.DataObject
) -> None:
    before, after = shapes

    def reshape(x: object) -> object:
        def element(*i: object) -> object:
            linear = 0
            for n, c in zip(after, i, strict=True):
                linear = linear * n + c  # type: ignore[operator]
            where = []
            for n in reversed(before):
                where.append(linear % n)
                linear = linear // n
            return x[tuple(reversed(where))]  # type: ignore[index]

        return element

    found = describe(reshape, [(before, F)], [after], exact=True)
    assert math.prod(found.extents.values()) == math.prod(after)
    axes = data.draw(st.lists(st.sampled_from(cuttable(found)), min_size=1, max_size=2))
    factors = tuple(data.draw(st.sampled_from([2, 3])) for _ in axes)
    assume(is_legal(found, axes, factors))
    whole = np.arange(math.prod(before)).reshape(before)
    work = work_of(found, axes, factors)
    result = np.full(after, -1)
    for w in range(math.prod(factors)):
        read, write = work.reads[0][w], work.writes[0][w]
        if read is None or write is None:
            continue
        part = whole[tuple(slice(*b) for b in read.bounds)]
        result[tuple(slice(*b) for b in write.bounds)] = part.reshape(write.shape)
    assert np.array_equal(result, whole.reshape(after))


def test_a_guard_says_who_reads() -> None:
    """The row that a gradient falls into is cut off from the others, who read nothing."""
    description = describe(lambda row: lambda i, j: row.only(i - 3)[j], [((5,), F)], [(8, 5)])
    assert str(description) == "[j] if i - 3 = 0 -> [i, j]"
    reads = work_of(description, ("i",), (4,)).reads[0]
    assert [r and str(r) for r in reads.tuple()] == [None, "[0:5]", None, None]
