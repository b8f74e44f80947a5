"""Nested balanced splits."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tofu_tf.tdl.splitting import digits, split

factors_of = st.lists(st.integers(2, 4), min_size=1, max_size=3).map(tuple)


@given(st.integers(0, 40), factors_of)
def test_parts_are_balanced_and_cover(extent: int, factors: tuple[int, ...]) -> None:
    lo, hi = split(extent, range(len(factors)), factors)
    assert lo[0] == 0
    assert hi[-1] == extent
    assert np.array_equal(lo[1:], hi[:-1])
    assert np.ptp(hi - lo) <= 1


@given(st.integers(0, 40), factors_of)
def test_finer_parts_lie_in_the_coarser_ones(extent: int, factors: tuple[int, ...]) -> None:
    for n in range(len(factors)):
        coarse_lo, coarse_hi = split(extent, range(n), factors)
        lo, hi = split(extent, range(n + 1), factors)
        assert np.all(coarse_lo <= lo)
        assert np.all(hi <= coarse_hi)


@given(st.integers(0, 40), factors_of, st.data())
def test_workers_of_one_group_have_one_part(
    extent: int, factors: tuple[int, ...], data: st.DataObject
) -> None:
    cuts = tuple(sorted(data.draw(st.sets(st.integers(0, len(factors) - 1)))))
    lo, hi = split(extent, cuts, factors)
    groups = digits(factors)[:, list(cuts)]
    for w in range(len(groups)):
        same = np.all(groups == groups[w], axis=1)
        assert np.all(lo[same] == lo[w])
        assert np.all(hi[same] == hi[w])


def test_first_cut_is_the_most_significant_digit() -> None:
    assert digits((2, 3)).tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
