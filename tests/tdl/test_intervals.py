"""Interval analysis against the enumeration of every element."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tofu_tf.tdl.expressions import Affine
from tofu_tf.tdl.intervals import Boxes, access_regions, interval
from tofu_tf.tdl.regions import Region

Box = dict[str, tuple[int, int]]

AXES = ("i", "j", "k")
coefficients = st.dictionaries(st.sampled_from(AXES), st.integers(-3, 3), max_size=3)
ranges = st.tuples(st.integers(0, 5), st.integers(1, 4)).map(lambda t: (t[0], t[0] + t[1]))
boxes_of_axes = st.fixed_dictionaries(dict.fromkeys(AXES, ranges))


def one_worker(box: Box) -> Boxes:
    return Boxes(
        {a: np.array([lo]) for a, (lo, _) in box.items()},
        {a: np.array([hi]) for a, (_, hi) in box.items()},
        np.array([True]),
    )


def whole_values(form: Affine, box: Box) -> list[int]:
    """Every whole value that the form takes in the box."""
    found = []
    for at in itertools.product(*(range(*box[a]) for a in AXES)):
        place = dict(zip(AXES, at, strict=True))
        top = form.offset + sum(c * place[a] for a, c in form.terms)
        if top % form.divisor == 0:
            found.append(top // form.divisor)
    return found


@given(coefficients, st.integers(-9, 9), boxes_of_axes)
def test_interval_is_the_exact_hull(terms: dict[str, int], offset: int, box: Box) -> None:
    form = Affine.of(terms, offset)
    lo, hi = interval(form, one_worker(box))
    values = whole_values(form, box)
    assert (lo[0], hi[0]) == (min(values), max(values) + 1)


@given(st.integers(-9, 9), st.sampled_from([1, -1]), st.integers(2, 4), boxes_of_axes)
def test_interval_of_a_quotient_is_the_hull_of_its_whole_values(
    offset: int, sign: int, divisor: int, box: Box
) -> None:
    form = Affine.of({"i": sign}, offset, divisor)
    lo, hi = interval(form, one_worker(box))
    values = whole_values(form, box)
    if values:
        assert (lo[0], hi[0]) == (min(values), max(values) + 1)
    else:
        assert hi[0] <= lo[0]


@given(coefficients, st.integers(-9, 9), st.integers(2, 4), boxes_of_axes)
def test_interval_of_any_quotient_holds_all_whole_values(
    terms: dict[str, int], offset: int, divisor: int, box: Box
) -> None:
    form = Affine.of(terms, offset, divisor)
    lo, hi = interval(form, one_worker(box))
    assert all(lo[0] <= v < hi[0] for v in whole_values(form, box))


@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from(AXES), st.sampled_from([1, -1])), st.integers(-6, 6)
        ),
        min_size=1,
        max_size=3,
    ),
    st.integers(1, 9),
    boxes_of_axes,
)
def test_accesses_are_joined_and_clipped(
    accesses: list[tuple[dict[str, int], int]], extent: int, box: Box
) -> None:
    forms = [Affine.of(*a) for a in accesses]
    # an access that falls outside entirely joins with an empty range at the border
    assume(all(any(0 <= v < extent for v in whole_values(f, box)) for f in forms))
    region = access_regions([(f,) for f in forms], (extent,), one_worker(box))[0]
    inside = [v for f in forms for v in whole_values(f, box) if 0 <= v < extent]
    assert region == Region(((min(inside), max(inside) + 1),))


@given(coefficients, st.integers(-9, 9), st.integers(1, 4), st.integers(1, 9), boxes_of_axes)
def test_all_that_an_access_touches_is_in_its_region(
    terms: dict[str, int], offset: int, divisor: int, extent: int, box: Box
) -> None:
    form = Affine.of(terms, offset, divisor)
    assume(form.terms)
    region = access_regions([(form,)], (extent,), one_worker(box))[0]
    inside = {v for v in whole_values(form, box) if 0 <= v < extent}
    assert inside <= (set(range(*region.bounds[0])) if region else set())


@pytest.mark.parametrize(
    "form, box, extent, expected",
    [
        # a 3-wide window of stride 2 with one row of padding: the halo, clipped at the border
        (Affine.of({"i": 2, "k": 1}, -1), {"i": (0, 3), "k": (0, 3)}, 9, (0, 6)),
        (Affine.of({"i": 2, "k": 1}, -1), {"i": (3, 5), "k": (0, 3)}, 9, (5, 9)),
        # its gradient: rows that no output reaches are not read
        (Affine.of({"i": 1, "k": -1}, 1, 2), {"i": (0, 1), "k": (0, 1)}, 5, None),
        (Affine.of({"i": 1, "k": -1}, 1, 2), {"i": (4, 9), "k": (0, 3)}, 5, (2, 5)),
        # a mirrored read
        (Affine.of({"i": -1}, 8), {"i": (0, 3)}, 9, (6, 9)),
        # wholly in the padding
        (Affine.of({"i": 1}, -4), {"i": (0, 4)}, 9, None),
    ],
)
def test_regions_of_usual_accesses(
    form: Affine, box: Box, extent: int, expected: tuple[int, int] | None
) -> None:
    region = access_regions([(form,)], (extent,), one_worker(box))[0]
    assert region == (None if expected is None else Region((expected,)))


def test_no_access_reads_nothing() -> None:
    assert access_regions([], (4, 5), one_worker({"i": (0, 2)}))[0] is None


def test_a_scalar_is_read_by_every_worker_that_works() -> None:
    boxes = Boxes({}, {}, np.array([True, False]))
    assert access_regions([()], (), boxes).tuple() == (Region(()), None)
