"""Changes of layout as collectives: a table of cases."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tofu_tf.plan.classifying import COLLECTIVES, Kind, classify, classify_regions
from tofu_tf.plan.layouts import Layout, layout_regions
from tofu_tf.plan.transfers import fetched_elements
from tofu_tf.tdl.regions import Region, Regions
from tofu_tf.tdl.splitting import mixed_index

ONE = (4,)
TWO = (2, 2)


def layout(text: str) -> Layout:
    """``0,R`` as a Layout, the way that it prints."""
    if text == "home":
        return Layout((None, None), True)
    return Layout(tuple(None if c == "R" else int(c) for c in text.split(",")))


CASES = [
    # source, partial cuts, target, shape, factors, kind, groups
    ("0", (), "0", (8, 8), ONE, Kind.NONE, ()),
    ("R", (), "0", (8, 8), ONE, Kind.NONE, ()),
    ("R", (), "0", (9, 8), ONE, Kind.NONE, ()),
    ("0", (), "R", (8, 8), ONE, Kind.ALL_GATHER, ((0, 1, 2, 3),)),
    ("1", (), "R", (8, 8), ONE, Kind.ALL_GATHER, ((0, 1, 2, 3),)),
    ("0", (), "R", (9, 8), ONE, Kind.FETCH, ()),  # unequal shards
    ("0", (), "R", (3, 8), ONE, Kind.FETCH, ()),  # a worker holds nothing
    ("0", (), "1", (8, 8), ONE, Kind.ALL_TO_ALL, ((0, 1, 2, 3),)),
    ("0", (), "1", (8, 9), ONE, Kind.FETCH, ()),
    ("0", (), "1", (9, 8), ONE, Kind.FETCH, ()),
    ("0", (), "1", (8, 3), ONE, Kind.FETCH, ()),
    ("R", (0,), "R", (8, 8), ONE, Kind.ALL_REDUCE, ((0, 1, 2, 3),)),
    ("R", (0,), "R", (9, 7), ONE, Kind.ALL_REDUCE, ((0, 1, 2, 3),)),  # all hold the whole
    ("R", (0,), "R", (), ONE, Kind.ALL_REDUCE, ((0, 1, 2, 3),)),
    ("R", (0,), "0", (8, 8), ONE, Kind.REDUCE_SCATTER, ((0, 1, 2, 3),)),
    ("R", (0,), "1", (8, 8), ONE, Kind.REDUCE_SCATTER, ((0, 1, 2, 3),)),
    ("R", (0,), "0", (9, 8), ONE, Kind.OTHER, ()),
    ("R", (0,), "0", (3, 8), ONE, Kind.OTHER, ()),
    # Two cuts: the groups are those of the cut that changes.
    ("0,R", (), "R,R", (8, 8), TWO, Kind.ALL_GATHER, ((0, 2), (1, 3))),
    ("R,0", (), "R,R", (8, 8), TWO, Kind.ALL_GATHER, ((0, 1), (2, 3))),
    ("0,1", (), "0,R", (8, 8), TWO, Kind.ALL_GATHER, ((0, 1), (2, 3))),
    ("0,1", (), "R,1", (8, 8), TWO, Kind.ALL_GATHER, ((0, 2), (1, 3))),
    ("0,1", (), "R,R", (8, 8), TWO, Kind.ALL_GATHER, ((0, 1, 2, 3),)),
    ("0,0", (), "0,R", (8, 8), TWO, Kind.ALL_GATHER, ((0, 1), (2, 3))),
    ("0,0", (), "1,1", (8, 8), TWO, Kind.ALL_TO_ALL, ((0, 1, 2, 3),)),
    ("0,0", (), "0,1", (8, 8), TWO, Kind.ALL_TO_ALL, ((0, 1), (2, 3))),
    ("0,R", (), "1,R", (8, 8), TWO, Kind.ALL_TO_ALL, ((0, 2), (1, 3))),
    ("0,1", (), "1,0", (8, 8), TWO, Kind.FETCH, ()),  # a swap: two workers keep what they have
    ("0,R", (), "R,1", (8, 8), TWO, Kind.FETCH, ()),  # a gather of what is then cut away
    ("R,R", (0, 1), "R,R", (8, 8), TWO, Kind.ALL_REDUCE, ((0, 1, 2, 3),)),
    ("R,R", (0,), "R,R", (8, 8), TWO, Kind.ALL_REDUCE, ((0, 2), (1, 3))),
    ("R,0", (0,), "R,0", (8, 8), TWO, Kind.ALL_REDUCE, ((0, 2), (1, 3))),
    ("R,0", (0,), "R,0", (9, 8), TWO, Kind.ALL_REDUCE, ((0, 2), (1, 3))),
    ("R,0", (0,), "1,0", (8, 8), TWO, Kind.REDUCE_SCATTER, ((0, 2), (1, 3))),
    # Shards are equal in each group, which is what a collective needs, if not between groups.
    ("0,1", (), "0,R", (9, 8), TWO, Kind.ALL_GATHER, ((0, 1), (2, 3))),
    ("0,1", (), "R,1", (9, 8), TWO, Kind.FETCH, ()),
    ("R,R", (0, 1), "0,1", (8, 8), TWO, Kind.REDUCE_SCATTER, ((0, 1, 2, 3),)),
    ("R,R", (0, 1), "0,R", (8, 8), TWO, Kind.OTHER, ()),  # scattered over one, reduced over both
    ("R,0", (0,), "R,R", (8, 8), TWO, Kind.OTHER, ()),  # reduced and gathered
    ("home", (), "R,R", (8, 8), TWO, Kind.FETCH, ()),
    ("home", (), "0,R", (8, 8), TWO, Kind.FETCH, ()),
    ("0,R", (), "home", (8, 8), TWO, Kind.FETCH, ()),
    ("R,R", (), "home", (8, 8), TWO, Kind.NONE, ()),
    ("R,R", (0, 1), "home", (8, 8), TWO, Kind.OTHER, ()),
]


@pytest.mark.parametrize("source, partial, target, shape, factors, kind, groups", CASES)
def test_classify(source, partial, target, shape, factors, kind, groups) -> None:
    change = classify(layout(source), partial, layout(target), shape, factors)
    assert (change.kind, change.groups) == (kind, groups)


def regions(*bounds: tuple[int, int] | None) -> Regions:
    return Regions.of([None if b is None else Region((b,)) for b in bounds], 1)


@pytest.mark.parametrize(
    "held, need, kind",
    [
        # a halo of one element on each side
        (((0, 4), (4, 8)), ((0, 5), (3, 8)), Kind.FETCH),
        # a strided read of less than the whole
        (((0, 4), (4, 8)), ((0, 7), (0, 7)), Kind.FETCH),
        (((0, 4), (4, 8)), ((0, 8), (0, 8)), Kind.ALL_GATHER),
        (((0, 4), (4, 8)), ((0, 8), None), Kind.FETCH),
        (((0, 4), (4, 8)), ((1, 3), (5, 8)), Kind.NONE),
        # the halves swapped: nobody needs a part of everybody
        (((0, 4), (4, 8)), ((4, 8), (0, 4)), Kind.FETCH),
    ],
)
def test_regions(held, need, kind) -> None:
    same = np.zeros(len(held), np.int64)
    assert classify_regions(regions(*held), same, regions(*need)).kind == kind


FACTORS = st.sampled_from([(2, 2), (3, 2), (2, 3)])

layouts = st.lists(st.sampled_from([None, 0, 1]), min_size=2, max_size=2).map(
    lambda cuts: Layout(tuple(cuts))
)


@settings(max_examples=200, deadline=None)
@given(
    layouts,
    layouts,
    st.tuples(st.integers(1, 12), st.integers(1, 12)),
    st.sampled_from([(2, 2), (3, 2)]),
)
def test_kinds_agree_with_what_moves(source, target, shape, factors) -> None:
    """Nothing moves exactly in `NONE`; the workers of a collective's group are all alike."""
    held, need = (layout_regions(way, shape, factors) for way in (source, target))
    change = classify(source, (), target, shape, factors)
    assert (change.kind is Kind.NONE) == (fetched_elements(held, need) == 0)
    if change.kind in COLLECTIVES:
        assert sorted(w for g in change.groups for w in g) == list(range(len(held.present)))
        for group in change.groups:
            assert len(set(held.sizes()[list(group)].tolist())) == 1
            assert len(set(need.sizes()[list(group)].tolist())) == 1
    else:
        assert change.groups == ()


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([(0,), (1,), (0, 1)]), layouts, FACTORS)
def test_reductions_over_a_group_hold_every_partial_once(partial, target, factors) -> None:
    shape = (12, 12)
    source = Layout(tuple(None if s in partial else target.cuts[s] for s in range(2)))
    change = classify(source, partial, target, shape, factors)
    index, parts = mixed_index(partial, factors)
    for group in change.groups:
        assert sorted(index[list(group)].tolist()) == list(range(parts))
